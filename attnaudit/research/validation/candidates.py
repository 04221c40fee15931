"""The checks to validate, with the question and the direction of each.

The questions are whether attention is used, and whether it points at what matters. Some checks answer neither of them.
An example is conicity, which describes the states of the model. Such a check is validated too, because only planted
models can show whether it separates faithful attention from unfaithful attention.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import Parameter
from attnaudit.checks.policies.policy import from_tables
from attnaudit.records import Direction
from attnaudit.research.validation.figures_schema import Question
from attnaudit.research.validation.population_schema import FAMILIES, Family

#: Why --quick leaves a check out.
NOT_QUICK = "left out by --quick, which measures only the checks that may become gates and the cheapest of the others"
#: How two limits are averaged to a threshold: "linear" averages the limits, and "square root", for ratios of variances,
#: averages their square roots.
Scale = Literal["linear", "square root"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A check to validate.

    Attributes:
        check: The check. It has no threshold, so that its record can be compared with any threshold. Only a threshold
            that is relative to a reference is kept.
        question: The question that the check answers.
        direction: "at_least" if faithful models are expected to have high values, "at_most" if low values.
        may_gate: Whether the rule (`threshold_rule`) may use the check as a gate. The value of such a check must not
            depend on properties other than attention, such as the scale of the logits, a bias per class or the label
            shares.
        scale: "linear" or "square root": the scale on which the rule places the threshold halfway between two limits.
        quick: Whether --quick measures the check.
        reported: Whether the chosen policy includes the check as evidence if the check does not become a gate.
    """

    check: Check
    question: Question
    direction: Direction
    may_gate: bool = False
    scale: Scale = "linear"
    quick: bool = True
    reported: bool = False

    @property
    def title(self) -> str:
        return self.check.title


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSpec:
    """A built-in candidate check. Fields with the same name mean the same as in `Candidate`.

    Attributes:
        name: The class name of the check.
        arguments: The arguments of the check, as in a [[check]] table of a policy file.
        question: The question that the check answers.
        direction: "at_least" if faithful models are expected to have high values, "at_most" if low values.
        gates: The families for which the rule (`threshold_rule`) may use the check as a gate.
        scale: The scale on which the rule (`threshold_rule`) places the threshold halfway between two limits.
        quick: Whether --quick measures the check.
        reported: Whether the chosen policy includes the check as evidence.
        transformers: Whether the check is also measured on readings of Transformers.
    """

    name: str
    arguments: dict[str, Parameter]
    question: Question
    direction: Direction
    gates: tuple[Family, ...]
    scale: Scale
    quick: bool
    reported: bool
    transformers: bool

    @property
    def table(self) -> dict[str, Parameter]:
        return {"name": self.name, **self.arguments, "severity": "report"}


def _gate(
    name: str,
    question: Question,
    *,
    scale: Scale = "linear",
    **arguments: Parameter,
) -> CandidateSpec:
    return CandidateSpec(
        name=name, arguments=arguments, question=question, direction="at_least", gates=FAMILIES, scale=scale,
        quick=True, reported=False, transformers=True,
    )  # fmt: skip


def _other(
    name: str,
    question: Question,
    direction: Direction = "at_least",
    *,
    quick: bool = False,
    reported: bool = False,
    transformers: bool = False,
    **arguments: Parameter,
) -> CandidateSpec:
    return CandidateSpec(
        name=name, arguments=arguments, question=question, direction=direction, gates=(), scale="linear",
        quick=quick, reported=reported, transformers=transformers,
    )  # fmt: skip


CANDIDATE_SPECS = (
    _gate("TotalEffect", "used", on="standardised", scale="square root"),
    _gate("Pointing", "points", on="logits"),
    _gate("Pointing", "points", on="logits", measure="plain"),
    _gate("HeldSufficiency", "enough"),
    # Single texts with extreme logits decide the index of the logits, so it does not gate.
    _other("TotalEffect", "used", on="logits", quick=True, transformers=True),
    _other("TotalEffect", "used", on="probabilities", quick=True, transformers=True),
    _other("Pointing", "points", on="logits", measure="share", quick=True, transformers=True),
    _other("Pointing", "points", on="probabilities", quick=True, transformers=True),
    _other("UniformFragility", "used", measure="tvd"),
    _other("UniformFragility", "used", measure="f1_drop", quick=True, reported=True, transformers=True),
    _other("PermutationFragility", "used", measure="tvd", quick=True, reported=True, transformers=True),
    _other("PermutationFragility", "used", measure="f1_drop"),
    _other("DecisionFlip", "used"),
    _other("TopTokenErasure", "used"),
    _other("Agreement", "points", importance="gradient", at="inputs", reported=True),
    _other("Agreement", "points", importance="gradient", at="inputs", preset="jain_wallace"),
    _other("Agreement", "points", importance="input_x_gradient", at="inputs"),
    _other("Agreement", "points", importance="leave_one_out", at="inputs", reported=True, transformers=True),
    _other("Agreement", "points", importance="gradient", at="hidden"),
    _other("Agreement", "points", importance="leave_one_out", at="hidden"),
    _other("Comprehensiveness", "points", operator="deletion", against="random"),
    _other("Comprehensiveness", "points", operator="deletion", against="random", measure="decision"),
    _other("Comprehensiveness", "points", operator="mask", against="random"),
    _other("Comprehensiveness", "points", operator="mask", against="random", measure="decision"),
    _other("Comprehensiveness", "points", operator="deletion", against="signed_loo", reported=True, transformers=True),
    _other("Sufficiency", "points", operator="deletion", against="random"),
    _other("Sufficiency", "points", operator="deletion", against="random", measure="decision"),
    _other("Sufficiency", "points", operator="mask", against="random"),
    _other("Sufficiency", "points", operator="mask", against="random", measure="decision"),
    _other("Sufficiency", "points", operator="deletion", against="signed_loo"),
    _other("InformationRanking", "evidence", reported=True),
    _other("InfluenceEntropy", "evidence", "at_most", reported=True, of="hidden"),
    _other("AdversarialDivergence", "evidence", "at_most", reported=True, tvd=0.01),
    _other("TokenProbability", "evidence", "at_most", reported=True),
    _other("Conicity", "evidence", "at_most", reported=True),
    _other("InformationRetained", "evidence"),
    _other("ParameterRandomisation", "evidence", "at_most", of="attention"),
)


def candidates(policy: Sequence[Check] = (), *, family: Family = "pooled attention") -> list[Candidate]:
    """Return every check to validate: the built-in candidates and the checks of a policy.

    A check of the policy replaces the built-in candidate with the same id, so that the confidence level of the policy
    is used. The severity of each check becomes "report". A threshold that is a number is removed. A threshold that is
    relative to a reference is kept, because the check then computes the interval of the difference from the reference.

    Args:
        policy: The checks of the policy.
        family: The family of the models. Fewer checks are measured on Transformers: a check of the policy is measured
            only if it is a gate, may become one, or is a built-in candidate for Transformers.

    Returns:
        The candidates, sorted by check id.
    """
    specs = [spec for spec in CANDIDATE_SPECS if family == "pooled attention" or spec.transformers]
    built_in = from_tables([spec.table for spec in specs], where="the built-in candidates")
    by_id: dict[str, Candidate] = {}
    for check, spec in zip(built_in, specs, strict=True):
        by_id[check.id] = Candidate(
            check=check,
            question=spec.question,
            direction=spec.direction,
            may_gate=family in spec.gates,
            scale=spec.scale,
            quick=spec.quick,
            reported=spec.reported,
        )
    for check in policy:
        replaced = by_id.get(check.id)
        if replaced is None and family != "pooled attention" and check.severity != "gate":
            continue
        relative = isinstance(check.at_least, str) or isinstance(check.at_most, str)
        ungated = dataclasses.replace(check, severity="report")
        if not relative:
            ungated = dataclasses.replace(ungated, at_least=None, at_most=None)
        direction = direction_of(check) or (replaced.direction if replaced else check.directions[0])
        if replaced is None:
            by_id[check.id] = Candidate(check=ungated, question="evidence", direction=direction)
        else:
            by_id[check.id] = dataclasses.replace(replaced, check=ungated, direction=direction)
    return [by_id[id_] for id_ in sorted(by_id)]


def direction_of(check: Check) -> Direction | None:
    """Return the direction of a check's threshold, "at_least" or "at_most". Return None if it has no threshold."""
    if check.at_least is not None:
        return "at_least"
    return None if check.at_most is None else "at_most"
