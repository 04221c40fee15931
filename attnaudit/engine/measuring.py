"""The engine, which computes the measures that the checks need.

It runs the instances in batches of similar length. Measures that need the same pass of the model share it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import Batch
from attnaudit.engine.batch_loop import run_in_batches
from attnaudit.engine.clean_pass import Unit
from attnaudit.engine.column_store import ColumnStore
from attnaudit.engine.columns import Columns
from attnaudit.engine.declared_measures import StatefulMeasure
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.merged_sources import merged_sources
from attnaudit.engine.model_identity import identity_of, refuse_changed_model, refuse_changed_parameters
from attnaudit.engine.planning import refuse_unable, refuse_unauditable, resolve
from attnaudit.engine.repeated_pass import FirstPass
from attnaudit.engine.scopes import scope_of
from attnaudit.engine.unit_strings import encode_instances
from attnaudit.errors import AdapterError, DataError
from attnaudit.instances import Dataset
from attnaudit.progress import ProgressCallback
from attnaudit.readings import named
from attnaudit.records import MeasureRecord

#: Default number of tokens (rows × padded length) in one forward pass, by device type.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}
#: The default for models that declare a reading, such as Transformers. Their number of attention weights grows with the
#: square of the length, in every layer and head.
BATCH_TOKENS_OF_HEADS = {"cpu": 1024, "cuda": 32768}
#: Kinds of counts in `pass_counts` that are numbers of rows.
PASSES_BY_ROWS = ("forward_rows", "resumed_rows")
#: Largest accepted difference between 1 and the sum of an attention row.
SUM_TOLERANCE = 1e-3


def measure(
    adapter: ModelAdapter,
    dataset: Dataset,
    needs: Sequence[str],
    *,
    model: str,
    seed: int,
    labels: Sequence[int] | None = None,
    device: str = "cpu",
    batch_tokens: int | None = None,
    unit: Unit = "tokens",
    progress: ProgressCallback | None = None,
    worker: str = "main",
    sha256: str | None = None,
    rows_before: int | None = None,
) -> tuple[Measurements, MeasureRecord]:
    """Compute every needed measure for every instance.

    Up to rounding errors, the results do not depend on the batch size. If memory runs out, the batches become smaller.
    After measuring, the parameters are hashed again, and some rows run a second time (see
    `attnaudit.engine.repeated_pass`).

    Args:
        adapter: the model.
        dataset: the instances.
        needs: the needs of the checks: names of measures with their arguments, with or without a reading.
        model: name of the model, for messages and records.
        seed: seed of all random numbers.
        labels: (n,) class indices in the order of `dataset.instances`, -1 for instances without a label; None if no
            instance has a label.
        device: the device to measure on.
        batch_tokens: largest number of tokens in one forward pass; None for the default of the device.
        unit: "tokens" or "words". With "words", the tokens of a word are one unit.
        progress: called before the first batch, after every batch, and during batches that take long; None to report no
            progress.
        worker: name of the process, for the record.
        sha256: the hash that the parameters must have before measuring, such as `LoadedModel.sha256`; None to accept
            any parameters. In both cases, the hash must be the same after measuring.
        rows_before: number of rows that earlier calls measured, if later calls may measure more; progress then has no
            total. None if this call measures all rows.

    Returns:
        The measurements, with the instances sorted by id; and a record of the time and the passes that measuring took.

    Raises:
        CheckError: a need is invalid.
        DataError: the data set is empty, or a row cannot be measured. The message names the row.
        AdapterError: the model cannot be audited, lacks a capability, or gives invalid logits or attention.
        ChangedModelError: the parameters or the mode of the model changed, or the model gives other results when the
            same rows run again.
        AuditError: the model or a measure raised an error, or there is not enough memory for a single instance. The
            message names the row.
    """
    started = time.perf_counter()
    refuse_unauditable(adapter)
    if not dataset.instances:
        raise DataError(f"Data set '{dataset.name}' has no instances, so there is nothing to audit.")
    plan = resolve(needs, adapter)
    order = sorted(range(len(dataset.instances)), key=lambda i: dataset.instances[i].id)
    instances = [dataset.instances[i] for i in order]
    ordered_labels = [-1] * len(instances) if labels is None else [labels[i] for i in order]
    for module in adapter.modules:
        module.eval().to(device).requires_grad_(False)
    identity = identity_of(adapter)
    refuse_changed_parameters(sha256 or identity.sha256, identity.sha256)
    tokens, widths, sequences = encode_instances(adapter, instances, unit)
    refuse_unable(adapter, plan)
    lengths = [len(row) for row in tokens]
    states = [planned.measure.start(lengths) for planned in plan.measures]

    pass_counts: Counter[str] = Counter()
    store = ColumnStore(len(instances))
    default_budget = BATCH_TOKENS_OF_HEADS if plan.own_reading else BATCH_TOKENS
    budget = batch_tokens or default_budget.get(torch.device(device).type, default_budget["cpu"])
    first_pass = FirstPass(len(instances))
    scopes = [scope_of(adapter, reading) for reading in plan.parsed.values()]

    def run(positions: list[int], budget: int) -> None:
        """Compute all measures for the instances at these positions, as one batch."""
        batch = Batch(
            adapter,
            [instances[i] for i in positions],
            positions,
            seed=seed,
            keep_graph=plan.keep_graph,
            budget=budget,
            pass_counts=pass_counts,
            unit=unit,
            progress=progress,
            scopes=scopes,
        )
        views = {name: AttentionView(batch, reading) for name, reading in plan.parsed.items()}
        _refuse_invalid_output(batch)
        first_pass.add(batch)
        # A measure under a reading may also require columns that do not depend on the reading.
        shared, by_reading = Columns(), {name: Columns() for name in views}
        for planned, state in zip(plan.measures, states, strict=True):
            depends = planned.measure.depends_on_reading
            required = by_reading[planned.reading] if depends else shared
            request = planned.measure.request(required, adapter.capabilities)
            columns = state.compute(views[planned.reading], request)
            for known in (by_reading[planned.reading],) if depends else (shared, *by_reading.values()):
                known.update(columns)
            store.add(batch, columns, planned)

    def report_progress(done: int) -> None:
        if progress is not None:
            done, total = (done, len(instances)) if rows_before is None else (done + rows_before, None)
            progress(done, total, f"measuring {model} on {dataset.name}")

    report_progress(0)
    everything = range(len(instances))
    largest = run_in_batches(run, instances, everything, widths, device=device, budget=budget, report=report_progress)
    refuse_changed_model(identity, identity_of(adapter))
    repeated = first_pass.repeat(
        adapter,
        instances,
        widths,
        store.vectors["logits"],
        rows_of_passes=sum(pass_counts[kind] for kind in PASSES_BY_ROWS),
        seed=seed,
        device=device,
        budget=budget,
        scopes=scopes,
    )

    measurements = Measurements(
        model=model,
        data=dataset.name,
        seed=seed,
        classes=adapter.capabilities.classes,
        instances=instances,
        sources=merged_sources(instances, sequences),
        tokens=tokens,
        labels=np.array(ordered_labels, dtype=np.int64),
        predicted=store.predicted,
        scalars=store.scalars,
        vectors=store.vectors,
        per_token=store.per_token,
        facts=store.facts,
        shared=store.shared,
        readings=plan.readings,
        own_reading=plan.own_reading.text if plan.own_reading else "",
        unseen_mixers=adapter.capabilities.unseen_mixers,
        no_decision=adapter.capabilities.no_decision,
    )
    for planned, state in zip(plan.measures, states, strict=True):
        _finish(state, measurements, planned.reading)
    measurements.freeze()
    return measurements, MeasureRecord(
        model=model,
        data=dataset.name,
        needs=sorted(needs),
        seconds=time.perf_counter() - started,
        instances=len(instances),
        tokens=sum(lengths),
        passes=dict(pass_counts),
        batch_size=largest,
        device=str(device),
        worker=worker,
        notes=_notes(measurements, unit, repeated=len(sequences) - len(set(sequences))),
        repeated_rows=repeated.rows,
        repeated_difference=repeated.largest_difference,
        **_scores(measurements),
        own_reading=measurements.own_reading,
    )


def _scores(measurements: Measurements) -> dict[str, Any]:
    """Return the number of labelled instances, and the accuracy and macro F1 on them, as fields of the record."""
    from sklearn.metrics import accuracy_score, f1_score

    labelled = measurements.labels >= 0
    if not labelled.any():
        return {}
    labels, predicted = measurements.labels[labelled], measurements.predicted[labelled]
    return {
        "labelled": int(labelled.sum()),
        "accuracy": float(accuracy_score(labels, predicted)),
        "macro_f1": float(f1_score(labels, predicted, average="macro")),
    }


def _finish(state: StatefulMeasure, measurements: Measurements, reading: str) -> None:
    """Call `finish` of a measure, which may add tables and facts.

    If `reading` is not "", it is appended to the names of the new tables and facts.
    """
    view = measurements.under(reading)
    tables_before, facts_before = set(view.tables), set(view.facts)
    state.finish(view)
    if reading:
        new_tables = {named(name, reading): view.tables[name] for name in view.tables if name not in tables_before}
        new_facts = {named(name, reading): view.facts[name] for name in view.facts if name not in facts_before}
        measurements.tables.update(new_tables)
        measurements.facts.update(new_facts)


def _notes(measurements: Measurements, unit: Unit, *, repeated: int) -> list[str]:
    """Return sentences for the report that say how the numbers were computed.

    Args:
        measurements: the measurements.
        unit: "tokens" or "words".
        repeated: number of texts whose tokens are the same as those of an earlier text.
    """
    notes = []
    if measurements.own_reading:
        share = float(np.nanmean(measurements.scalar("attention.special_mass")))
        notes.append(
            f"The attention shown is the reading {measurements.own_reading}, renormalised over the {unit} of the text; "
            f"on average, {share:.0%} of its weight is on special tokens and is left out."
        )
    if unit == "words":
        notes.append(
            "Statistics are computed over words: the attention on the tokens of a word is summed, their gradients are "
            "combined, and all tokens of a word are deleted together."
        )
    truncated = int(np.nansum(measurements.scalars.get("truncated", np.zeros(1))))
    if truncated:
        notes.append(
            f"{truncated:,} of {len(measurements):,} texts were longer than the model's limit and were truncated."
        )
    if repeated:
        notes.append(
            f"{repeated:,} of {len(measurements):,} texts {'has' if repeated == 1 else 'have'} the same tokens as an "
            "earlier one. A source that only repeats another one is merged into it and does not narrow an interval."
        )
    return notes


def _refuse_invalid_output(batch: Batch) -> None:
    """Check the logits and the attention of a batch's clean pass.

    Raises:
        AdapterError: the number of logits does not fit the classes, logits are not finite, or the attention weights of
            a query are not a distribution. In the last two cases, the message names the row.
    """
    classes = batch.adapter.capabilities.classes
    if batch.probabilities.shape[-1] != len(classes):
        raise AdapterError(
            f"The model gives {batch.logits.shape[-1]} logits for {len(classes)} classes "
            f"({', '.join(classes)}). Expected {len(classes)} logits"
            + (", or one for a sigmoid output." if len(classes) == 2 else ".")
        )
    finite = batch.logits.isfinite().all(-1)
    if not bool(finite.all()):
        instance = batch.instances[int((~finite).int().argmax())]
        raise AdapterError(
            f"{instance.where or instance.id}: the model's logits are not finite (NaN or infinite) for "
            f"{instance.text[:40]!r}. Look for a division by zero, an overflow in half precision, or damaged weights."
        )
    for site in batch.recorded_sites:
        weights, allowed = batch.trace.attention[site.key].detach(), batch.trace.allowed[site.key]
        total = weights.sum(-1)
        deviation = (total - 1).clamp_min(0.0) if site.sinks else (total - 1).abs()
        attends = allowed.any(-1).expand_as(deviation)
        invalid = (deviation > SUM_TOLERANCE) & attends
        invalid = invalid | (weights < -SUM_TOLERANCE).any(-1) | weights.isnan().any(-1)
        if bool(invalid.any()):
            row, head, query = (int(i) for i in invalid.nonzero()[0])
            instance, attention_row = batch.instances[row], weights[row, head, query]
            raise AdapterError(
                f"{instance.where or instance.id}: attention at site '{site.key}' sums to "
                f"{attention_row.sum().item():.4g} with smallest weight {attention_row.min().item():.4g}. Expected "
                "non-negative weights that sum to 1 over the tokens. Normalise after masking, and do not apply "
                "dropout to the weights in the trace."
            )
