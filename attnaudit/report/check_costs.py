"""The cost of each check, computed from the costs of the measures that it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from attnaudit.formatting import plural
from attnaudit.records import CheckCost, CheckRecord, MeasureCost, MeasureRecord, Passes

#: What a pass is, for the readers of a table of costs.
PASS_UNIT = (
    "A pass is one row, or one changed copy of a row: a forward pass runs it through the whole model, a partial pass "
    "through a part of the model (with other attention weights, or starting from known states), and a backward pass "
    "computes the gradient of one number of it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """The cost of several measures.

    Attributes:
        measures: The number of measures.
        seconds: Their wall-clock time in seconds.
        passes: Their passes.
    """

    measures: int
    seconds: float
    passes: Passes


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """The cost of the checks of one model on one data set.

    The costs that are a check's own, the shared costs and the remaining costs add up to those of all measures.

    Attributes:
        checks: The cost of each check, the most expensive one first.
        shared: The measures that several checks need. Each of them is counted once.
        remaining: The measures that no check needs, such as those that a test requests.
        total: All measures. Each of them is counted once.
        counted: Whether all passes were counted. Earlier versions counted only some of them.
    """

    checks: list[CheckCost]
    shared: CostLine
    remaining: CostLine
    total: CostLine
    counted: bool = True

    @property
    def explanation(self) -> str:
        """Sentences that say what the numbers mean."""
        what = "its passes and its time count" if self.counted else "its time counts"
        sentences = [
            f"If several checks need the same measure, it is computed once, but {what} for each of them, so the lines "
            "of the checks do not add up. “Saved without it” is the time of the measures that no other check needs."
        ]
        if self.counted:
            sentences = [PASS_UNIT, *sentences, "The rows that ran again at the end are not included."]
        sentences += [
            f"{one.check} trained {plural(one.models_trained, 'model')}; the passes of training are not counted."
            for one in self.checks
            if one.models_trained
        ]
        return " ".join(sentences)

    @property
    def sums(self) -> list[tuple[str, CostLine]]:
        """The lines below those of the checks: their names and their costs."""
        return [
            (name, line)
            for name, line in (
                ("shared by several checks", self.shared),
                ("needed by no check", self.remaining),
                ("all together", self.total),
            )
            if line.measures
        ]


def measures_of_checks(needs: Mapping[str, Sequence[str]], costs: Sequence[MeasureCost]) -> dict[str, set[str]]:
    """Return the id of each check -> the names of the measures that it needs, directly or for another measure.

    Args:
        needs: The id of each check -> the needs of the check.
        costs: The costs of the measures.
    """
    return {check: {cost.measure for cost in costs if {*cost.needs} & {*named}} for check, named in needs.items()}


def cost_table(needs: Mapping[str, Sequence[str]], costs: Sequence[MeasureCost], *, counted: bool = True) -> CostTable:
    """Return the cost of each check.

    Args:
        needs: The id of each check -> the needs of the check.
        costs: The costs of the measures.
        counted: Whether all passes were counted.
    """
    measures = measures_of_checks(needs, costs)
    users = Counter(name for names in measures.values() for name in names)

    def total(chosen: Callable[[MeasureCost], bool]) -> CostLine:
        used = [cost for cost in costs if chosen(cost)]
        return CostLine(measures=len(used), seconds=sum(cost.seconds for cost in used), passes=Passes.of(_counts(used)))

    def cost_of(check: str, names: Collection[str]) -> CheckCost:
        every = total(lambda cost: cost.measure in names)
        own = total(lambda cost: cost.measure in names and users[cost.measure] == 1)
        return CheckCost(
            check=check,
            seconds=every.seconds,
            own_seconds=own.seconds,
            passes=every.passes,
            own_passes=own.passes,
            models_trained=_counts([cost for cost in costs if cost.measure in names])["models_trained"],
        )

    return CostTable(
        checks=sorted((cost_of(*item) for item in measures.items()), key=lambda one: (-one.seconds, one.check)),
        shared=total(lambda cost: users[cost.measure] > 1),
        remaining=total(lambda cost: users[cost.measure] == 0),
        total=total(lambda _cost: True),
        counted=counted,
    )


def _counts(costs: Sequence[MeasureCost]) -> Counter[str]:
    """Return the sum of the counts of some measures."""
    counts: Counter[str] = Counter()
    for cost in costs:
        counts.update(cost.passes)
    return counts


def table_of(measured: MeasureRecord, checks: Sequence[CheckRecord]) -> CostTable:
    """Return the costs of the checks of a run that were judged on the same model and data as these measures."""
    of_subject = [one for one in checks if (one.model, one.data) == (measured.model, measured.data)]
    needs = {one.check: one.needs for one in of_subject}
    return cost_table(needs, measured.costs, counted=measured.check_costs is not msgspec.UNSET)


def with_check_costs(measured: MeasureRecord, checks: Sequence[CheckRecord]) -> MeasureRecord:
    """Return a record of measures with the costs of the checks that need them."""
    return msgspec.structs.replace(measured, check_costs=table_of(measured, checks).checks)
