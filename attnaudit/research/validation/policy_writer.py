"""Write a policy as TOML. Comments above each threshold give the figures that justify it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from attnaudit.checks.policy import to_table
from attnaudit.research.reproduction.remedies_file import Remedy as ReproducedRemedy
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.figures_schema import CheckFigures, Figures
from attnaudit.research.validation.scoring import Gate
from attnaudit.research.validation.validation_schema import Remedy

HEAD = """\
# The default policy: which checks gate a release, and at which thresholds.
#
# `attnaudit validate` chose it from the tuning half of a population of models whose attention is known to be right or
# wrong. The figures above each threshold come from the held-out half. "area" is the area under the ROC curve; its
# interval resamples mechanisms. docs/validation.md describes the rule, and how to run it again.
"""
#: Training option -> the advice that a policy gives. The trend models of a population are trained with these options.
OPTIONS = {
    "tying": "tie each state to its embedding, `attnaudit train --tying 1`",
    "residual": "add the embedding to each state, `attnaudit train --residual`",
}
COMMENT_WIDTH = 118
#: A smaller change of a check's value does not count as a remedy. The values of the gated checks range from 0 to 1.
SMALLEST_EFFECT = 0.02
EVIDENCE = """\
# Evidence: measured and reported, never gated. A check that does not separate right from wrong attention on planted
# models may still help to understand why a model fails.
"""


def policy_text(
    gates: Sequence[Gate],
    candidates: Sequence[Candidate],
    figures: Sequence[CheckFigures],
    policy_figures: Figures | None,
    *,
    name: str,
    validated_on: Sequence[str],
    basis: Sequence[str] = (),
    evidence: Sequence[str] = (),
    remedies: Sequence[Remedy] = (),
    reproduced: Sequence[ReproducedRemedy] = (),
) -> str:
    """Return a policy as TOML, which `load_policy` reads.

    Args:
        gates: The gates of the policy.
        candidates: The checks. They must include every check that `gates` or `evidence` names.
        figures: The figures of the checks. A check without figures gets a comment that says so.
        policy_figures: The held-out figures of all gates together, or None.
        name: The name of the policy.
        validated_on: The families of models that the policy was validated on.
        basis: What the policy was validated on and how often it was wrong. Each text becomes a comment at the top.
        evidence: Ids of the checks that the policy reports without gating on them.
        remedies: The effects of training options that were measured on the population.
        reproduced: Remedies from reproductions of papers. Each question lists them after those of the population.
    """
    candidate_by_id = {candidate.check.id: candidate for candidate in candidates}
    figures_by_id = {check.check: check for check in figures}
    lines = [HEAD]
    if basis:
        lines = [f"{HEAD}#", *(line for text in basis for line in _comment(text)), ""]
    lines += ["[policy]", f"name = {_quoted(name)}", f"validated_on = {_array(validated_on)}"]
    if not gates:
        lines.append("informational = true")
    if policy_figures is not None and policy_figures.area is not None:
        lines += [
            "",
            f"# All gates together, held out: area {figure_text.area(policy_figures.area)}",
            *_alarm_comments(policy_figures),
        ]
    for question in dict.fromkeys(gate.question for gate in gates):
        own_gates = [gate for gate in gates if gate.question == question]
        from_population = _population_remedies(own_gates, remedies)
        from_papers = [remedy.words for remedy in reproduced if remedy.question == question]
        lines += [
            "",
            f"[policy.questions.{question}]",
            f"asks = {_quoted(figure_text.QUESTIONS[question])}",
            f"checks = {_array([gate.check for gate in own_gates])}",
            f"remedies = {_array([*from_population, *from_papers])}",
        ]
    for gate in gates:
        lines += ["", *_figure_comments(figures_by_id.get(gate.check)), *_table(candidate_by_id[gate.check], gate)]
    if evidence:
        lines += ["", EVIDENCE.rstrip()]
    for check in evidence:
        lines += ["", *_figure_comments(figures_by_id.get(check)), *_table(candidate_by_id[check], None)]
    return "\n".join(lines) + "\n"


def _figure_comments(check: CheckFigures | None) -> list[str]:
    figures = figure_text.published_figures(check) if check is not None else None
    if check is None or figures is None or figures.area is None:
        return ["# No figure: not measured on both faithful and unfaithful models."]
    half = "held out" if check.held_out else "tuning half"
    verdict = "" if check.discriminates else ", does not discriminate"
    lines = [f"# {half}: area {figure_text.area(figures.area)}{verdict}"]
    return [*lines, *_alarm_comments(figures)] if check.gated else lines


def _alarm_comments(figures: Figures) -> list[str]:
    return [
        f"# alarms on unfaithful models {figure_text.share(figures.sensitivity)}",
        f"# alarms on faithful models {figure_text.share(figures.false_alarms)}",
    ]


def _table(candidate: Candidate, gate: Gate | None) -> list[str]:
    table = {key: value for key, value in to_table(candidate.check).items() if key not in _GATE_KEYS}
    lines = ["[[check]]"]
    lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    lines.append('severity = "report"' if gate is None else f"{gate.direction} = {_value(gate.threshold)}")
    return lines


def _population_remedies(gates: Sequence[Gate], remedies: Sequence[Remedy]) -> list[str]:
    """Return one text for each training option that improves every gate by at least SMALLEST_EFFECT.

    The text gives the advice and the measured effect on each gate.
    """
    texts = []
    for option in dict.fromkeys(remedy.option for remedy in remedies):
        effects = []
        for gate in gates:
            remedy = next((r for r in remedies if (r.option, r.check) == (option, gate.check)), None)
            sign = 1 if gate.direction == "at_least" else -1
            effect = 0.0 if remedy is None else (remedy.treated - remedy.plain) * sign
            if remedy is None or effect < SMALLEST_EFFECT:
                break
            models = f"medians of {remedy.plain_models} plain models and {remedy.treated_models} with the option"
            effects.append(f"{remedy.check} {remedy.plain:.2f} → {remedy.treated:.2f} ({models})")
        else:
            texts.append(f"{OPTIONS.get(option, option)}: {', '.join(effects)}")
    return texts


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, width=COMMENT_WIDTH, break_on_hyphens=False)]


def _array(values: Sequence[str]) -> str:
    if sum(map(len, values)) < 80:
        return f"[{', '.join(map(_quoted, values))}]"
    return "[\n" + "".join(f"    {_quoted(value)},\n" for value in values) + "]"


#: Keys of a [[check]] table that are not copied from the check. Severity and threshold come from the gate, and the
#: other keys keep their defaults.
_GATE_KEYS = ("severity", "confidence", "inconclusive", "at_least", "at_most")


def _value(value: str | float | int | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else f"{value}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
