"""The engine, which computes the measures that the checks need.

The rows are divided into shards, which may be measured in several processes. The numbers of a shard do not depend on
any other shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from attnaudit.adapters.protocol import Capabilities, ModelAdapter
from attnaudit.arrays import Floats, Integers
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.disk_arrays.mapped_arrays import ROWS_IN_MEMORY
from attnaudit.engine.assembled_shards import AssembledShards
from attnaudit.engine.batches.clean_pass import Unit
from attnaudit.engine.declared_measures import StatefulMeasure
from attnaudit.engine.encoding_ahead import with_following
from attnaudit.engine.measure_costs import costs_of
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.merged_groups import merged_groups
from attnaudit.engine.merged_sources import merged_rows, merged_sources
from attnaudit.engine.repeated_pass import FEWEST_ROWS, FirstPass, RepeatedPass, rows_to_repeat
from attnaudit.engine.row_lengths import RowLengths
from attnaudit.engine.shard_measuring import SHARD_ROWS, Shard, ShardMeasurer
from attnaudit.engine.shard_numbers import BOXES, TIMES, ShardNumbers
from attnaudit.engine.unit_strings import encode_instances
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance, by_id, consecutive, have_sources, ids_of, sources_of
from attnaudit.progress import ProgressCallback, counted_from
from attnaudit.readings import named
from attnaudit.records import MeasureRecord, UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, recorded

#: Measures the shards of a data set, and yields their numbers in the order of the shards. It has four arguments: the
#: object that can measure them in this process; the shards; the lengths of all instances, empty if no measure uses
#: them; and a function to call with the number of finished rows.
ShardRunner = Callable[[ShardMeasurer, Sequence[Shard], Sequence[int], Callable[[int], None]], Iterable[ShardNumbers]]

#: A smaller share of the weight outside the real tokens is a rounding error.
ROUNDING_OF_MASS = 1e-6


def measure(
    adapter: ModelAdapter,
    dataset: Dataset,
    needs: Sequence[str],
    *,
    model: str,
    seed: int,
    labels: Sequence[int] | Integers | None = None,
    device: str = "cpu",
    batch_tokens: int | None = None,
    unit: Unit = "tokens",
    progress: ProgressCallback | None = None,
    worker: str = "main",
    sha256: str | None = None,
    rows_before: int | None = None,
    run_shards: ShardRunner | None = None,
) -> tuple[Measurements, MeasureRecord]:
    """Compute every needed measure for every instance.

    Up to rounding errors, the results do not depend on the batch size. If memory runs out, the batches become smaller.
    After measuring, the parameters are hashed again, and some rows run a second time (see
    `attnaudit.engine.repeated_pass`).

    Args:
        adapter: The model.
        dataset: The instances.
        needs: The needs of the checks: names of measures with their arguments, with or without a reading.
        model: Name of the model, for messages and records.
        seed: Seed of all random numbers.
        labels: (n,) class indices in the order of `dataset.instances`, -1 for instances without a label; None if no
            instance has a label.
        device: The device to measure on.
        batch_tokens: Largest number of tokens in one forward pass; None for the default of the device.
        unit: "tokens", "words" or "sources". With "words", the tokens of a word are one unit; with "sources", those of
            a passage.
        progress: Called before the first batch, after every batch, and during batches that take long; None to report no
            progress.
        worker: Name of the process, for the record.
        sha256: The hash that the parameters must have before measuring, such as `LoadedModel.sha256`; None to accept
            any parameters. In both cases, the hash must be the same after measuring.
        rows_before: Number of rows that earlier calls measured, if later calls may measure more; progress then has no
            total. None if this call measures all rows.
        run_shards: Measures the shards, for example in other processes; None to measure them in this process.

    Returns:
        The measurements, with the instances sorted by id; and a record of the time and the passes that measuring took.

    Raises:
        CheckError: A need is invalid.
        DataError: The data set is empty, or a row cannot be measured. The message names the row.
        AdapterError: The model cannot be audited, lacks a capability, or gives invalid logits or attention.
        ChangedModelError: The parameters or the mode of the model changed, or the model gives other results when the
            same rows run again.
        AuditError: The model or a measure raised an error, or there is not enough memory for a single instance. The
            message names the row.
    """
    started = time.perf_counter()
    if not dataset.instances:
        raise DataError(f"Data set '{dataset.name}' has no instances, so there is nothing to audit.")
    instances, order = in_order_of_ids(dataset.instances)
    measurer = ShardMeasurer(
        adapter, needs, seed=seed, device=device, batch_tokens=batch_tokens, unit=unit, sha256=sha256
    )
    lengths = lengths_for(measurer, instances)

    def report_progress(done: int) -> None:
        if progress is not None:
            done, total = (done, len(instances)) if rows_before is None else (done + rows_before, None)
            progress(done, total, f"measuring {model} on {dataset.name}")

    measurer.start(lengths)
    report_progress(0)
    shards = Shards(instances)
    assembled = AssembledShards(len(instances))
    for numbers in (run_shards or in_this_process(progress))(measurer, shards, lengths, report_progress):
        assembled.add(numbers)
    vectors = assembled.vectors()
    assembled.release_memory()
    measured_elsewhere = len(measurer.measured) < len(shards)
    repeated = (
        _repeat_over_shards(measurer, instances, assembled, vectors["logits"])
        if len(shards) > 1 or measured_elsewhere
        else None
    )

    plan = measurer.plan
    labels_in_order: Integers = filled(len(instances), -1, np.int64)
    if labels is not None:
        labels_in_order[:] = np.asanyarray(labels, dtype=np.int64)[order]
    assembled.release_memory()
    distinct, sources = _sources(instances, assembled)
    assembled.release_memory()
    measurements = Measurements(
        model=model,
        data=dataset.name,
        seed=seed,
        classes=adapter.capabilities.classes,
        instances=instances,
        sources=sources,
        tokens=assembled.tokens,
        labels=labels_in_order,
        predicted=assembled.predicted,
        scalars=assembled.scalars,
        vectors={name: column for name, column in vectors.items() if name not in (BOXES, TIMES)},
        per_token=assembled.per_token,
        facts=assembled.facts,
        states=assembled.states(),
        shared=assembled.shared,
        readings=plan.readings,
        own_reading=plan.own_reading.text if plan.own_reading else "",
        unseen_mixers=adapter.capabilities.unseen_mixers,
        no_decision=adapter.capabilities.no_decision,
        keep_alive=[assembled.folder],
        boxes=_places(vectors.get(BOXES, ()), 4),
        times=_places(vectors.get(TIMES, ()), 2),
        unit_names=unit_names(adapter.capabilities, unit),
    )
    for planned, state in zip(plan.measures, measurer.states, strict=True):
        _finish(state, measurements, planned.reading)
    measurements.states = {}
    measurements.freeze()
    return measurements, MeasureRecord(
        model=model,
        data=dataset.name,
        needs=sorted(needs),
        seconds=time.perf_counter() - started,
        instances=len(instances),
        tokens=int(measurements.lengths.sum()),
        passes=dict(assembled.passes),
        batch_size=assembled.batch_size,
        device=str(device),
        worker=worker,
        notes=_notes(measurements, unit, adapter.capabilities, repeated=len(instances) - distinct),
        repeated_rows=assembled.repeated_rows + (repeated.rows if repeated else 0),
        repeated_difference=max(assembled.repeated_difference, repeated.largest_difference if repeated else 0.0),
        **_scores(measurements),
        own_reading=measurements.own_reading,
        costs=costs_of(
            plan,
            adapter,
            needs,
            seconds=assembled.measure_seconds,
            passes=assembled.measure_passes,
            uses=assembled.measure_uses,
        ),
        unit_names=recorded(measurements.unit_names),
    )


def lengths_for(measurer: ShardMeasurer, instances: Sequence[Instance]) -> Sequence[int]:
    """Encode all instances, and return their numbers of real units.

    If no measure uses the lengths, return an empty list if there are many instances, or if the measurer encodes them
    while the model runs. In all other cases, an instance that cannot be encoded causes an error before the first pass.
    If there are not many instances, the measurer keeps the encoded instances until it measures the shards.

    Raises:
        DataError: An instance cannot be encoded. The message names the row.
    """
    if not measurer.uses_lengths and (len(instances) > ROWS_IN_MEMORY or measurer.encodes_ahead):
        return []
    keep = len(instances) <= ROWS_IN_MEMORY
    lengths = (len(row) for shard in Shards(instances) for row in measurer.encode(shard, keep=keep).units)
    return list(lengths) if keep else RowLengths(lengths)


class Shards(Sequence[Shard]):
    """The shards of a data set. They depend on its rows only, and never on the processes that measure them.

    Args:
        instances: The instances, sorted by id.
    """

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances

    def __len__(self) -> int:
        return -(-len(self._instances) // SHARD_ROWS)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> list[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | list[Shard]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"shard {index} of {len(self)}")
        first = index * SHARD_ROWS
        rows = consecutive(self._instances, first, first + SHARD_ROWS)
        return Shard(index=index, first=first, instances=rows, alone=len(self) == 1)


def in_this_process(progress: ProgressCallback | None) -> ShardRunner:
    """Return a runner that measures one shard after the other in this process.

    Args:
        progress: Called during batches that take long; None to report no progress.
    """

    def run(
        measurer: ShardMeasurer, shards: Sequence[Shard], lengths: Sequence[int], report: Callable[[int], None]
    ) -> Iterator[ShardNumbers]:
        for shard, following in with_following(shards):
            yield measurer.measure(
                shard, following=following, progress=progress, report=counted_from(shard.first, report)
            )

    return run


def _places(rows: Sequence[Floats], width: int) -> Sequence[Floats]:
    """Return the (units, width) boxes or times of each instance; nothing if no instance has any."""
    return [row.reshape(-1, width) for row in rows] if any(len(row) for row in rows) else ()


def in_order_of_ids(instances: Sequence[Instance]) -> tuple[Sequence[Instance], list[int] | slice]:
    """Return the instances sorted by id, and the position of each of them in the original order."""
    if by_id(instances) is instances:
        return instances, slice(None)
    order = sorted(range(len(instances)), key=lambda i: instances[i].id)
    return [instances[i] for i in order], order


def _sources(instances: Sequence[Instance], assembled: AssembledShards) -> tuple[int, Sequence[str]]:
    """Return the number of distinct token sequences, and the group to which each instance belongs."""
    stored, many = sources_of(instances), len(instances) > ROWS_IN_MEMORY
    if not have_sources(instances) or (many and stored is not None):
        rows = merged_rows(ids_of(instances), assembled.sequences())
        names = rows if stored is None else merged_groups(ids_of(instances), stored, rows.codes)
        return rows.distinct(), names if many else list(names)
    sequences = [one.tobytes() for one in assembled.sequences()]
    return len(set(sequences)), merged_sources(instances, sequences)


def _repeat_over_shards(
    measurer: ShardMeasurer, instances: Sequence[Instance], assembled: AssembledShards, logits: Sequence[Any]
) -> RepeatedPass:
    """Run rows of all shards again in this process, and compare the results with those of the shards.

    This detects a model that changes slowly. It also detects shards that another process, or an interrupted run,
    measured with another model.

    Raises:
        ChangedModelError: The results of a row differ.
    """
    chosen = sorted(rows_to_repeat(ids_of(instances), 0, measurer.seed))
    rows = [instances[i] for i in chosen]
    first_pass = FirstPass(len(rows))
    summaries = assembled.summaries
    first_pass.summaries = np.stack([summaries[i] for i in chosen])
    encoded = encode_instances(measurer.adapter, rows, measurer.unit)
    return first_pass.repeat(
        measurer.adapter,
        rows,
        encoded.widths,
        [logits[i] for i in chosen],
        rows_of_passes=0,
        fewest=FEWEST_ROWS,
        seed=measurer.seed,
        device=measurer.device,
        budget=measurer.budget,
        scopes=measurer.scopes,
        encoded=encoded,
    )


def _scores(measurements: Measurements) -> dict[str, Any]:
    """Return the number of labelled instances, and the accuracy and macro F1 on them, as fields of the record."""
    labelled = measurements.labels >= 0
    if not labelled.any():
        return {}
    labels, predicted = measurements.labels[labelled], measurements.predicted[labelled]
    return {
        "labelled": int(labelled.sum()),
        "accuracy": float((labels == predicted).mean()),
        "macro_f1": _macro_f1(labels, predicted),
    }


def _macro_f1(labels: Integers, predicted: Integers) -> float:
    """Return the mean of F1 over the classes that occur, as scikit-learn does. Importing it would need 75 MiB."""
    number = 1 + max(int(labels.max()), int(predicted.max()))
    occurrences = np.bincount(labels, minlength=number) + np.bincount(predicted, minlength=number)
    hits = np.bincount(labels[labels == predicted], minlength=number)
    known = occurrences > 0
    return float((2 * hits[known] / occurrences[known]).mean())


def _finish(state: StatefulMeasure, measurements: Measurements, reading: str) -> None:
    """Call `finish` of a measure, which may add tables and facts.

    If `reading` is not "", it is appended to the names of the new tables and facts.
    """
    if type(state).finish is StatefulMeasure.finish:
        return  # It does nothing, and selecting the columns of a reading takes time.
    view = measurements.under(reading)
    tables_before, facts_before = set(view.tables), set(view.facts)
    state.finish(view)
    if reading:
        new_tables = {named(name, reading): view.tables[name] for name in view.tables if name not in tables_before}
        new_facts = {named(name, reading): view.facts[name] for name in view.facts if name not in facts_before}
        measurements.tables.update(new_tables)
        measurements.facts.update(new_facts)


def unit_names(capabilities: Capabilities, unit: Unit) -> UnitNames:
    """Return the names of the units and rows of an audit.

    Args:
        capabilities: The capabilities of the adapter.
        unit: "tokens", "words" or "sources".
    """
    if unit == "sources":
        return UnitNames(unit="passage", row="prompt", parts="token")
    return UnitNames(unit=capabilities.unit_name, row=capabilities.row_name)


def _notes(measurements: Measurements, unit: Unit, capabilities: Capabilities, *, repeated: int) -> list[str]:
    """Return sentences for the report that say how the numbers were computed.

    Args:
        measurements: The measurements.
        unit: "tokens", "words" or "sources".
        capabilities: The capabilities of the adapter.
        repeated: Number of texts whose tokens are the same as those of an earlier text.
    """
    names, notes = measurements.unit_names, []
    units, rows = unit if names == TOKENS_OF_TEXTS else names.units, names.rows
    if measurements.own_reading:
        share = float(np.nanmean(measurements.scalar("attention.special_mass")))
        left = "tokens of the template and special tokens" if capabilities.target.kind == "string" else "special tokens"
        left = f"tokens that belong to no {names.unit}" if names.parts else left
        note = f"The attention shown is the reading {measurements.own_reading}"
        if share > ROUNDING_OF_MASS:
            amount = f"{share:.0%}" if share >= 0.005 else "less than 1%"
            note += (
                f", renormalised over the {units} of the {names.row}; on average, {amount} of its weight is on {left} "
                "and is left out"
            )
        notes.append(f"{note}.")
    if capabilities.erasure:
        notes.append(capabilities.erasure)
    if unit == "words":
        notes.append(
            "Statistics are computed over words: the attention on the tokens of a word is summed, their gradients are "
            "combined, and all tokens of a word are deleted together."
        )
    if unit == "sources":
        notes.append(
            "Statistics are computed over passages: the attention on the tokens of a passage is summed, their "
            "gradients are combined, and a passage is erased by deleting it from the prompt. Attention is then "
            "computed again. The exception is the value of Pointing: there, the tokens that are left keep the weights "
            "that are shown."
        )
    truncated = int(np.nansum(measurements.scalars.get("truncated", np.zeros(1))))
    if truncated:
        notes.append(
            f"{truncated:,} of {len(measurements):,} {rows} were longer than the model's limit and were truncated."
        )
    if repeated:
        notes.append(
            f"{repeated:,} of {len(measurements):,} {rows} {'has' if repeated == 1 else 'have'} the same {names.units} "
            "as an earlier one. A source that only repeats another one is merged into it and does not narrow an "
            "interval."
        )
    return notes
