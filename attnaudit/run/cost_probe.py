"""Estimate what an audit costs, by measuring some rows."""

from __future__ import annotations

import dataclasses
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnaudit.checks.base import Check
from attnaudit.errors import DataError
from attnaudit.instances import Dataset
from attnaudit.records import MeasureCost
from attnaudit.report.check_costs import CheckCost, check_costs

if TYPE_CHECKING:
    from attnaudit.adapters.protocol import ModelAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The estimated cost of measuring all rows.

    Attributes:
        rows: The number of rows that the estimate is for.
        probed: The number of rows that were measured.
        seconds: The estimated wall-clock time of all measures, in seconds. Loading, the statistics of the checks and
            the report are not included.
        checks: The estimated cost of each check, the most expensive one first.
        memory: The peak memory of the process, in bytes, after the longest row was measured. On a CUDA device, the peak
            memory of the device.
        unmeasurable: The ids of the checks that the model does not support.
    """

    rows: int
    probed: int
    seconds: float
    checks: list[CheckCost]
    memory: int
    unmeasurable: list[str]


def estimate_cost(
    adapter: ModelAdapter, data: Dataset, checks: Sequence[Check], *, probe: int, rows: int | None, device: str
) -> CostEstimate:
    """Measure some rows, and estimate the cost of all rows.

    The rows are a random sample, so their mean time is an estimate of the mean time of all rows. The longest row is
    measured before them, because the first use of a function takes longer and must not count.

    Args:
        adapter: The model.
        data: The data.
        checks: The checks of the policy.
        probe: The number of rows to measure.
        rows: The number of rows of the audit; None for the rows of the data.
        device: The device to measure on.

    Raises:
        DataError: The number of rows is unknown.
        AuditError: The rows cannot be measured.
    """
    from attnaudit.data.sampling import sample
    from attnaudit.engine.measuring import measure
    from attnaudit.engine.planning import refusals

    total = data.rows if rows is None else rows
    if total < 0:
        raise DataError(f"{data.name}: the number of rows of a stream is unknown. Give the number of rows: --rows N.")
    needs = {check.id: check.needs_under_reading() for check in checks}
    refused = set(refusals(adapter, sorted({need for named in needs.values() for need in named})))
    measurable = {check: named for check, named in needs.items() if not refused & {*named}}
    wanted = sorted({need for named in measurable.values() for need in named})
    longest = dataclasses.replace(data, instances=(max(data.instances, key=lambda one: len(one.text)),))
    chosen = sample(data, probe, 0)
    for some in (longest, chosen):
        _, record = measure(adapter, some, wanted, model="the model", seed=0, device=device)
    factor = total / record.instances
    costs = [_scaled(cost, factor) for cost in record.costs]
    return CostEstimate(
        rows=total,
        probed=record.instances,
        seconds=sum(cost.seconds for cost in costs),
        checks=check_costs(measurable, costs),
        memory=_peak_memory(device),
        unmeasurable=sorted({*needs} - {*measurable}),
    )


def _scaled(cost: MeasureCost, factor: float) -> MeasureCost:
    return MeasureCost(
        measure=cost.measure,
        needs=cost.needs,
        seconds=cost.seconds * factor,
        passes={kind: round(count * factor) for kind, count in cost.passes.items()},
    )


def _peak_memory(device: str) -> int:
    """Return the largest memory that this process has used so far, in bytes, on the device or the CPU."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
