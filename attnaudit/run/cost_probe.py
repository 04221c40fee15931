"""Estimate what an audit costs, by measuring some rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnaudit.checks.base import Check
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.records import MeasureCost
from attnaudit.report.check_costs import CostTable, cost_table

if TYPE_CHECKING:
    from attnaudit.adapters.protocol import ModelAdapter
    from attnaudit.engine.batches.clean_pass import Unit
    from attnaudit.engine.shard_measuring import Shard, ShardMeasurer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The memory that an audit needs in addition to the model, the data and the libraries.

    Attributes:
        rows: The number of rows of the measured batch.
        tokens: Its number of tokens, including padding.
        before: The memory of the process before this batch, in bytes. On a CUDA device, the memory of its tensors.
        checks: The id of each check -> the largest growth, in bytes, while only the measures of this check are
            computed; None if the check trains models, because they would have to be trained again.
        total: The largest growth while all measures are computed.
    """

    rows: int
    tokens: int
    before: int
    checks: dict[str, int | None]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The estimated cost of measuring all rows.

    Attributes:
        rows: The number of rows that the estimate is for.
        probed: The number of rows that were measured.
        costs: The estimated cost of each check, and of all measures together. The time does not include loading, the
            statistics of the checks and the report.
        processor_time: Whether the time is the processor time of the thread that measures, as on CPUs. On a CUDA
            device, it is the wall-clock time.
        memory: The memory of each check; None if it cannot be measured on this system.
        highest: The peak memory of the process, in bytes; None if this system does not report it. On a CUDA device, the
            peak memory of the device.
        unmeasurable: The ids of the checks that the model does not support.
        exact_passes: Whether all rows of the audit were measured, so that the passes are not estimated.
    """

    rows: int
    probed: int
    costs: CostTable
    processor_time: bool
    memory: MemoryEstimate | None
    highest: int | None
    unmeasurable: list[str]
    exact_passes: bool


def estimate_cost(
    adapter: ModelAdapter,
    data: Dataset,
    checks: Sequence[Check],
    *,
    probe: int,
    rows: int | None,
    device: str,
    unit: Unit = "tokens",
) -> CostEstimate:
    """Measure some rows, and estimate the cost of all rows.

    First, the longest row is measured, because the first use of a function takes longer and must not count. If a check
    trains models, they are trained now. Second, a random sample of the rows is measured. Its mean time and its mean
    number of passes are estimates of those of all rows. Third, the largest batch of a shard is measured once for each
    check, and once for all checks together, to find the memory.

    Args:
        adapter: The model.
        data: The data.
        checks: The checks of the policy.
        probe: The number of rows to measure.
        rows: The number of rows of the audit; None for the rows of the data.
        device: The device to measure on.
        unit: The units of the audit.

    Raises:
        DataError: The number of rows is unknown.
        AuditError: The rows cannot be measured.
    """
    import torch

    from attnaudit.data.sampling import sample
    from attnaudit.engine.measuring import in_order_of_ids
    from attnaudit.engine.memory_use import can_measure_memory
    from attnaudit.engine.planning import refusals
    from attnaudit.engine.shard_measuring import SHARD_ROWS, Shard, ShardMeasurer

    total = data.rows if rows is None else rows
    if total < 0:
        raise DataError(f"{data.name}: the number of rows of a stream is unknown. Give the number of rows: --rows N.")
    needs = {check.id: check.needs_under_reading() for check in checks}
    refused = set(refusals(adapter, sorted({need for named in needs.values() for need in named}), unit))
    measurable = {check: named for check, named in needs.items() if not refused & {*named}}
    wanted = sorted({need for named in measurable.values() for need in named})
    measurer = ShardMeasurer(adapter, wanted, seed=0, device=device, batch_tokens=None, unit=unit)
    longest = max(data.instances, key=lambda one: len(one.text))
    batches = batches_of(measurer, list(sample(data, max(1, min(SHARD_ROWS, total)), 0).instances), longest)
    chosen, _ = in_order_of_ids(sample(data, probe, 0).instances)
    shards, first = [], 0
    for index, part in enumerate(([longest], chosen, batches.largest)):
        shards.append(Shard(index=index, first=first, instances=part, alone=True))
        first += len(part)
    measurer.clock = clock_of(device)
    lengths = [len(units) for shard in shards for units in measurer.encode(shard, keep=True).units]
    measurer.start(lengths)
    # With as many batches as a shard, the sample has a similar share of padding.
    warm, probed = (_costs(measurer, wanted, shard, -(-len(chosen) // batches.number)) for shard in shards[:2])
    costs = [_estimated(*both, total / len(chosen)) for both in zip(probed, warm, strict=True)]
    table = cost_table(measurable, costs)
    highest, memory = _peak_memory(device), None
    if can_measure_memory(device):
        trained = {one.check for one in table.checks if one.models_trained}
        memory = _memory_of_checks(
            measurer,
            {check: None if check in trained else measurable[check] for check in measurable},
            shards[2],
            lengths,
            batches.tokens,
        )
        highest = max(highest or 0, memory.before + memory.total)
    return CostEstimate(
        rows=total,
        probed=len(chosen),
        costs=table,
        processor_time=torch.device(device).type == "cpu",
        memory=memory,
        highest=highest,
        unmeasurable=sorted({*needs} - {*measurable}),
        exact_passes=total == len(chosen) == len(data.instances),
    )


def clock_of(device: str) -> Callable[[], float]:
    """Return the clock that measures the time on a device.

    On a CPU, it is the processor time of the current thread, which does not include the time in which other programs
    have the CPU. The threads of torch share the work with this thread, so its processor time is close to the wall-clock
    time of a machine that does nothing else. On a CUDA device, it is the wall-clock time, after the device has finished
    its work.
    """
    import torch

    if torch.device(device).type == "cpu":
        return time.thread_time

    def finished() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return finished


def _costs(measurer: ShardMeasurer, needs: Sequence[str], shard: Shard, most: int) -> list[MeasureCost]:
    """Return the cost of each measure for the rows of a shard, if a batch has at most this number of rows.

    The batches of Transformers on CPUs are small and have little padding, so their number of rows is not limited.
    """
    import torch

    from attnaudit.engine.batches.batch_sizes import tokens_per_pass
    from attnaudit.engine.measure_costs import costs_of

    small = tokens_per_pass(measurer.adapter, torch.device(measurer.device).type) is not None
    found = measurer.measure(shard, most=None if small else most)
    return costs_of(
        measurer.plan,
        measurer.adapter,
        needs,
        seconds=found.measure_seconds,
        passes=found.measure_passes,
        uses=found.measure_uses,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The batches of a shard.

    Attributes:
        largest: The rows of the batch with the most tokens, including padding.
        tokens: Its number of tokens.
        number: The number of batches.
    """

    largest: list[Instance]
    tokens: int
    number: int


def batches_of(measurer: ShardMeasurer, rows: list[Instance], longest: Instance) -> Batches:
    """Return the batches of a shard with the given rows and the longest row.

    Args:
        measurer: Measures the shard.
        rows: The rows of the shard. If the longest row is not among them, it replaces the last one.
        longest: The longest row of the data.
    """
    import torch

    from attnaudit.engine.batches.batch_sizes import sizes_of_batches, tokens_per_pass
    from attnaudit.engine.unit_strings import encode_instances

    if longest.id not in {one.id for one in rows}:
        rows = [*rows[:-1], longest]
    widths = encode_instances(measurer.adapter, rows, measurer.unit).widths
    order = sorted(range(len(rows)), key=lambda i: (-widths[i], rows[i].id))
    per_pass = tokens_per_pass(measurer.adapter, torch.device(measurer.device).type)
    batches, start = [], 0
    for size in sizes_of_batches([widths[i] for i in order], measurer.budget, per_pass=per_pass):
        batches.append((size * widths[order[start]], order[start : start + size]))
        start += size
    tokens, positions = max(batches, key=lambda one: one[0])
    return Batches(largest=[rows[i] for i in positions], tokens=tokens, number=len(batches))


def _memory_of_checks(
    measurer: ShardMeasurer,
    needs: Mapping[str, Sequence[str] | None],
    shard: Shard,
    lengths: Sequence[int],
    tokens: int,
) -> MemoryEstimate:
    """Measure the memory of each check.

    Args:
        measurer: Measures all checks. It has started.
        needs: The id of each check -> its needs; None to leave out the check.
        shard: A shard with a single batch.
        lengths: The lengths with which the measurer was started.
        tokens: The number of tokens of the batch, including padding.
    """
    from attnaudit.engine.memory_use import MemoryMeter

    known: dict[tuple[str, ...], int] = {}
    checks: dict[str, int | None] = {}
    for check, named in needs.items():
        if named is None:
            checks[check] = None
            continue
        key = tuple(sorted(named))
        if key not in known:
            alone, meter = measurer.restricted_to(key), MemoryMeter(measurer.device)
            alone.start(lengths)
            alone.measure(shard, memory=meter)
            known[key] = meter.growth
        checks[check] = known[key]
    meter = MemoryMeter(measurer.device)
    measurer.measure(shard, memory=meter)
    return MemoryEstimate(
        rows=len(shard.instances), tokens=tokens, before=meter.before, checks=checks, total=meter.growth
    )


def _estimated(probed: MeasureCost, first: MeasureCost, factor: float) -> MeasureCost:
    """Return the cost of a measure for all rows.

    Args:
        probed: Its cost for the sample.
        first: Its cost for the first row. If models were trained then, its time is that of the training.
        factor: The number of all rows, relative to the sample.
    """
    trained = first.passes.get("models_trained", 0)
    passes = {kind: round(count * factor) for kind, count in probed.passes.items()}
    return MeasureCost(
        measure=probed.measure,
        needs=probed.needs,
        seconds=probed.seconds * factor + (first.seconds if trained else 0.0),
        passes=passes | ({"models_trained": trained} if trained else {}),
    )


def _peak_memory(device: str) -> int | None:
    """Return the largest memory that this process has used so far, in bytes, on the device or the CPU.

    The result is None on systems that do not report it, such as Windows.
    """
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
