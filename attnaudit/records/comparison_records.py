"""The comparison of two runs: paired differences, changed verdicts and the instances that changed most."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnaudit.records.check_records import CheckRecord, Direction, Interval, Record
from attnaudit.records.run_records import RunRecord

#: What a difference means. "better" and "worse" need a direction; without one, the value is "higher" or "lower".
#: "unclear": the interval contains 0. "same": no instance differs.
Meaning = Literal["better", "worse", "higher", "lower", "unclear", "same"]


class PairedValue(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number in two runs, computed from the same instances, and its paired difference.

    Attributes:
        name: The name of the number.
        base: The number in the base run; None if it is undefined.
        candidate: The number in the candidate run; None if it is undefined.
        difference: `candidate` - `base`; None if one of them is undefined.
        interval: The interval of the difference, over sources; None if there is none.
        detectable: The smallest true difference, in either direction, that is detected in 80% of samples. It is
            detected if its interval excludes 0. None without an interval, or if there is no such difference.
        n: The number of instances that have a value in both runs.
        changed: The number of instances whose values differ, or that have a value in only one of the runs.
        direction: "at_least" if higher numbers are better, "at_most" if lower numbers are better; None if neither is
            better.
    """

    name: str
    base: float | None
    candidate: float | None
    difference: float | None
    interval: Interval | None
    detectable: float | None
    n: int
    changed: int
    direction: Direction | None

    @property
    def meaning(self) -> Meaning:
        """What the difference means: "better", "worse", "higher", "lower", "same" or "unclear"."""
        if not self.changed:
            return "same"
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "unclear"
        higher = self.interval.low > 0
        if self.direction is None:
            return "higher" if higher else "lower"
        return "better" if higher == (self.direction == "at_least") else "worse"


class MovedInstance(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance whose value of a check differs between two runs.

    Attributes:
        instance: The id of the instance.
        base: The value of the check on the instance in the base run.
        candidate: The value of the check on the instance in the candidate run.
    """

    instance: str
    base: float
    candidate: float


class MovedAttention(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An instance on which two models have different attention weights over the same tokens.

    Attributes:
        instance: The id of the instance.
        distance: The total variation distance between the weights, from 0 to 1.
    """

    instance: str
    distance: float


class ComparedCheck(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check that was judged in both runs.

    Attributes:
        base: The record of the check in the base run.
        candidate: The record of the check in the candidate run.
        paired: The paired difference; None if the check is not comparable.
        reason: Why there is no paired difference, or no interval, as a clause; "" if there are both.
        warning: Why the interval may be too narrow, as a clause; "" if nothing suggests that.
        moved: The instances whose values differ most, the largest difference first.
    """

    base: CheckRecord
    candidate: CheckRecord
    paired: PairedValue | None
    reason: str = ""
    warning: str = ""
    moved: list[MovedInstance] = msgspec.field(default_factory=list)

    @property
    def is_gate(self) -> bool:
        """Whether the check is a gate in at least one of the runs."""
        return "gate" in (self.base.severity, self.candidate.severity)


class ComparedSubject(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model on a data set in the base run, and its counterpart in the candidate run.

    Attributes:
        base_model: The name of the model in the base run.
        candidate_model: The name of the model in the candidate run.
        base_data: The name of the data set in the base run.
        candidate_data: The name of the data set in the candidate run.
        paired: The number of instances that both runs measured.
        unpaired: The number of instances that only one of the runs measured.
        sources: The number of groups of instances that the bootstrap resamples.
        task: The accuracy and F1 of both models on their task; empty if there are no labels.
        predictions_changed: The number of instances whose predicted class differs.
        attention_distance: The mean total variation distance between the attention weights of both models on the same
            tokens; None if no text has the same tokens in both runs.
        attention_compared: The number of instances over which `attention_distance` is averaged.
        attention_moved: The instances with the largest distances, the largest first.
        checks: The checks that were judged in both runs, gates first.
        only_base: The ids of the checks that only the base run judged.
        only_candidate: The ids of the checks that only the candidate run judged.
    """

    base_model: str
    candidate_model: str
    base_data: str
    candidate_data: str
    paired: int
    unpaired: int
    sources: int
    task: list[PairedValue]
    predictions_changed: int
    attention_distance: float | None
    attention_compared: int
    attention_moved: list[MovedAttention]
    checks: list[ComparedCheck]
    only_base: list[str]
    only_candidate: list[str]


class PolicyChange(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A difference between the policies of two runs (see `attnaudit.checks.policies.policy_diff.Change`).

    Attributes:
        kind: The effect of the difference, such as "laxer".
        subject: The id of the check, or "policy" for the policy as a whole.
        text: What differs, as a clause.
    """

    kind: str
    subject: str
    text: str


class Comparison(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The comparison of a candidate run with a base run.

    Attributes:
        base: The record of the base run.
        candidate: The record of the candidate run.
        subjects: The models and data sets that both runs audited.
        left_out: Why models and data sets were not compared, one sentence each.
        notes: What else differs between the runs and may explain a difference, one sentence each.
        policy_changes: The differences between the policies; None if one of the runs records no policy.
    """

    base: RunRecord
    candidate: RunRecord
    subjects: list[ComparedSubject]
    left_out: list[str]
    notes: list[str]
    policy_changes: list[PolicyChange] | None
