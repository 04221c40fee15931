"""Write a policy as TOML. Comments above each threshold give the figures that justify it.

The gates and the figures come from a validation. The parts that a validation does not measure are copied from an
existing policy: the first comment, the remedies of each question, and the informational checks.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnaudit.checks.base import Check
from attnaudit.checks.policies.policy import from_tables, load_policy, to_table
from attnaudit.records import PolicyRemedy
from attnaudit.research.reproduction.remedies_file import Remedy as ReproducedRemedy
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.candidates import Candidate, candidates
from attnaudit.research.validation.figures_schema import CheckFigures, Figures
from attnaudit.research.validation.scoring import Gate
from attnaudit.research.validation.validation_schema import FamilyFigures

COMMENT_WIDTH = 118
#: The comment with which the list of informational checks begins.
EVIDENCE = "# Evidence: "


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBase:
    """What a written policy copies from an existing one.

    Attributes:
        head: The comment at the beginning, up to its first empty line.
        name: The name of the policy.
        remedies: Name of a question -> its remedies.
        evidence: The informational checks: all text from the comment that begins with `EVIDENCE` to the end of the
            file. If there is no such comment, the tables of these checks.
        units: What attention is over, as a plural noun.
    """

    head: str = ""
    name: str = ""
    remedies: Mapping[str, Sequence[PolicyRemedy]] = field(default_factory=dict)
    evidence: str = ""
    units: str = "tokens"

    @classmethod
    def of(cls, path: Path) -> PolicyBase:
        """Read what to copy from the file of a policy.

        Raises:
            CheckError: The file cannot be read, or is not a policy.
        """
        policy = load_policy(path)
        text = path.read_text(encoding="utf-8")
        head, _, _ = text.partition("\n#\n")
        _, marker, evidence = text.partition(f"\n{EVIDENCE}")
        return cls(
            head=head if head.startswith("# ") and head != text else "",
            name=policy.record.name,
            remedies={question.name: question.remedy for question in policy.record.questions},
            evidence=f"{marker.lstrip()}{evidence}".rstrip() if marker else _informational(policy),
        )

    def evidence_without(self, checks: set[str]) -> str:
        """Return the informational checks without those that have one of these ids."""
        return "\n\n".join(block for block in self.evidence.split("\n\n") if not checks & _ids(block))


def _informational(policy: Sequence[Check]) -> str:
    tables = [_table(check, 'severity = "report"') for check in policy if check.severity == "report"]
    return "\n\n".join("\n".join(table) for table in tables)


def _ids(block: str) -> set[str]:
    return {check.id for check in from_tables(tomllib.loads(block).get("check", []), where="the informational checks")}


def written_policy(figures: FamilyFigures, path: Path) -> str:
    """Return a policy with its gates and figures replaced by those of a validation, as TOML.

    Args:
        figures: The figures of a family. Their policy must have at least one gate.
        path: The policy.

    Raises:
        CheckError: The file cannot be read, or is not a policy.
    """
    gates = [
        Gate(check=check.check, question=check.question, direction=check.direction, threshold=float(check.threshold))
        for check in figures.checks
        if check.gated and check.threshold is not None
    ]
    return policy_text(
        sorted(gates, key=lambda gate: figures.gates.index(gate.text)),
        candidates(load_policy(path), family=figures.family),
        figures.checks,
        figures.held_out,
        validated_on=figures.validated_on,
        basis=figures.basis,
        base=PolicyBase.of(path),
    )


def policy_text(
    gates: Sequence[Gate],
    candidates: Sequence[Candidate],
    figures: Sequence[CheckFigures],
    policy_figures: Figures | None,
    *,
    validated_on: Sequence[str],
    basis: Sequence[str] = (),
    base: PolicyBase = PolicyBase(name="default"),
    reproduced: Sequence[ReproducedRemedy] = (),
) -> str:
    """Return a policy as TOML, which `load_policy` reads.

    Args:
        gates: The gates of the policy, at least one.
        candidates: The checks. They must include every check that `gates` names.
        figures: The figures of the checks. A gate without figures gets a comment that says so.
        policy_figures: The held-out figures of all gates together, or None.
        validated_on: The families of models that the policy was validated on.
        basis: What the policy was validated on and how often it was wrong. Each text becomes a comment at the top.
        base: What to copy from an existing policy.
        reproduced: Remedies from reproductions of papers. Each question lists them in addition to those of `base`.
    """
    gates = sorted(gates, key=lambda gate: list(figure_text.QUESTIONS).index(gate.question))
    candidate_by_id = {candidate.check.id: candidate for candidate in candidates}
    figures_by_id = {check.check: check for check in figures}
    lines = [base.head, "#", *(line for text in basis for line in _comment(text)), ""] if base.head else []
    lines += ["[policy]", *([f"name = {_quoted(base.name)}"] if base.name else [])]
    lines.append(f"validated_on = {_array(validated_on)}")
    if policy_figures is not None and policy_figures.area is not None:
        lines += [
            "",
            f"# All gates together, held out: area {figure_text.area(policy_figures.area)}",
            *_alarm_comments(policy_figures),
        ]
    for question in dict.fromkeys(gate.question for gate in gates if gate.question != "evidence"):
        from_papers = [remedy.words for remedy in reproduced if remedy.question == question]
        lines += [
            "",
            f"[policy.questions.{question}]",
            f"asks = {_quoted(figure_text.QUESTIONS[question].replace('tokens', base.units))}",
            f"checks = {_array([gate.check for gate in gates if gate.question == question])}",
            *([f"remedies = {_array(from_papers)}"] if from_papers else []),
        ]
        for remedy in base.remedies.get(question, ()):
            lines += ["", *_remedy_table(question, remedy)]
    for gate in gates:
        lines += ["", *_figure_comments(figures_by_id.get(gate.check))]
        lines += _table(candidate_by_id[gate.check].check, f"{gate.direction} = {_value(gate.threshold)}")
    evidence = base.evidence_without({gate.check for gate in gates})
    return "\n".join([*lines, *(["", evidence] if evidence else [])]) + "\n"


def _remedy_table(question: str, remedy: PolicyRemedy) -> list[str]:
    default = PolicyRemedy(text=remedy.text)
    return [
        f"[[policy.questions.{question}.remedy]]",
        f"text = {_quoted(remedy.text)}",
        *([f"when = {_array(remedy.when)}"] if remedy.when != default.when else []),
        *([f"families = {_array(remedy.families)}"] if remedy.families else []),
        *([f"accuracy = {_quoted(remedy.accuracy)}"] if remedy.accuracy else []),
    ]


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


def _table(check: Check, last: str) -> list[str]:
    table = {key: value for key, value in to_table(check).items() if key not in _GATE_KEYS}
    return ["[[check]]", *(f"{key} = {_value(value)}" for key, value in table.items()), last]


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
