"""A policy chosen by the rule, as a file with the figure that justifies each threshold beside it."""

from __future__ import annotations

from collections.abc import Sequence

from attnaudit.checks.policy import to_table
from attnaudit.research.reproduction.remedies_file import Remedy as Reproduced
from attnaudit.research.validation import validation_wording
from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.scoring import Gate
from attnaudit.research.validation.validation_records import CheckFigures, Figures, Remedy

HEAD = """\
# The default policy: which checks gate a release, and where their thresholds stand.
#
# Chosen by `attnaudit validate` from the tuning half of a population of models whose attention is known to be right or
# wrong; the figures beside each threshold come from the other half. "area" is that under the ROC curve, its interval
# resamples kinds of models. How the rule works, and how to run it again: docs/validation.md.
"""
#: Options of `attnaudit train` that help.
OPTIONS = {
    "tying": "tie each state to its embedding, `attnaudit train --tying 1`",
    "residual": "add the embedding to each state, `attnaudit train --residual`",
}
#: What is less is no remedy, for checks that run from 0 to 1.
LEAST_EFFECT = 0.02
EVIDENCE = """\
# Evidence: measured and shown, never gated. What does not tell right from wrong attention on planted models may still
# help to see why a model fails.
"""


def policy_text(
    gates: Sequence[Gate],
    candidates: Sequence[Candidate],
    figures: Sequence[CheckFigures],
    whole: Figures | None,
    *,
    name: str,
    validated_on: Sequence[str],
    evidence: Sequence[str] = (),
    remedies: Sequence[Remedy] = (),
    reproduced: Sequence[Reproduced] = (),
) -> str:
    """TOML that `load_policy` reads. evidence: ids of checks that only report. validated_on: families of models.
    reproduced: remedies of papers done again, which stand behind those of the population."""
    known = {one.check.id: one for one in candidates}
    found = {one.check: one for one in figures}
    lines = [HEAD, "[policy]", f"name = {_text(name)}", f"validated_on = {_list(validated_on)}"]
    if whole is not None and whole.area is not None:
        lines += [
            "",
            f"# All gates together, held out: area {validation_wording.area(whole.area)}",
            f"# alarms on unfaithful models {validation_wording.share(whole.sensitivity)}",
            f"# alarms on faithful models {validation_wording.share(whole.false_alarms)}",
        ]
    for question in dict.fromkeys(gate.question for gate in gates):
        mine = [gate for gate in gates if gate.question == question]
        lines += ["", f"[policy.questions.{question}]", f"asks = {_text(validation_wording.QUESTIONS[question])}"]
        lines.append(f"checks = {_list([gate.check for gate in mine])}")
        helps = [*_remedies(mine, remedies), *(one.words for one in reproduced if one.question == question)]
        lines.append(f"remedies = {_list(helps)}")
    for gate in gates:
        lines += ["", *_why(found.get(gate.check)), *_table(known[gate.check], gate)]
    if evidence:
        lines += ["", EVIDENCE.rstrip()]
    for check in evidence:
        lines += ["", *_why(found.get(check)), *_table(known[check], None)]
    return "\n".join(lines) + "\n"


def _why(found: CheckFigures | None) -> list[str]:
    shown = validation_wording.shown(found) if found is not None else None
    if found is None or shown is None or shown.area is None:
        return ["# No figure: not measured on both faithful and unfaithful models."]
    half = "held out" if found.held_out else "tuning half"
    lines = [
        f"# {half}: area {validation_wording.area(shown.area)}"
        + ("" if found.discriminates else ", does not discriminate")
    ]
    if found.gated:
        lines.append(f"# alarms on unfaithful models {validation_wording.share(shown.sensitivity)}")
        lines.append(f"# alarms on faithful models {validation_wording.share(shown.false_alarms)}")
    return lines


def _table(candidate: Candidate, gate: Gate | None) -> list[str]:
    table = {key: value for key, value in to_table(candidate.check).items() if key not in _DEFAULTS}
    lines = ["[[check]]"]
    lines += [f"{key} = {_value(value)}" for key, value in table.items()]
    lines.append('severity = "report"' if gate is None else f"{gate.direction} = {_value(gate.threshold)}")
    return lines


def _remedies(gates: Sequence[Gate], measured: Sequence[Remedy]) -> list[str]:
    """Training options that moved every gate of a question to the right side, with the measured effect."""
    said = []
    for option in dict.fromkeys(one.option for one in measured):
        effects = []
        for gate in gates:
            one = next((r for r in measured if (r.option, r.check) == (option, gate.check)), None)
            moved = 0.0 if one is None else (one.treated - one.plain) * (1 if gate.direction == "at_least" else -1)
            if one is None or moved < LEAST_EFFECT:
                break
            over = f"medians of {one.plain_models} plain models → {one.treated_models} with it"
            effects.append(f"{one.check} {one.plain:.2f} → {one.treated:.2f} ({over})")
        else:
            said.append(f"{OPTIONS.get(option, option)}: {', '.join(effects)}")
    return said


def _list(values: Sequence[str]) -> str:
    if sum(map(len, values)) < 80:
        return f"[{', '.join(_text(one) for one in values)}]"
    return "[\n" + "".join(f"    {_text(one)},\n" for one in values) + "]"


_DEFAULTS = ("severity", "confidence", "inconclusive", "at_least", "at_most")


def _value(value: str | float | int | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else f"{value}"


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
