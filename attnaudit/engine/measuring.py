"""The engine: unions what the checks need and measures it in length-sorted batches, each pass once per batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray

from attnaudit.adapters.protocol import TEXT, ModelAdapter
from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import Batch, Unit, full_precision
from attnaudit.engine.columns import Columns, Measure
from attnaudit.engine.failures import out_of_memory, with_its_row
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.scopes import expanded, own_reading
from attnaudit.errors import AdapterError, AuditError, CheckError, DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.progress import ProgressCallback
from attnaudit.readings import named, split
from attnaudit.records import MeasureRecord
from attnaudit.registry import measures

#: Tokens (rows × padded length) in one forward pass, by device type.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}
#: The same for models with more than one head: weights grow with the square of the length, in every layer and head.
BATCH_TOKENS_OF_HEADS = {"cpu": 1024, "cuda": 32768}
#: Instances encoded at once when lengths are read.
ENCODE_AT_ONCE = 512
#: Largest distance of a row of attention from summing to one.
SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Planned:
    """A measure under a reading, "" for the model's own."""

    measure: Measure
    reading: str

    @property
    def name(self) -> str:
        return named(self.measure.name, self.reading)


def resolve(needs: Sequence[str], adapter: ModelAdapter | None = None) -> tuple[list[Planned], dict[str, list[str]]]:
    """The measures behind `needs` and what those require, each once under each reading, requirements first; and what
    each reading that is named stands for in the model.

    Raises CheckError for a need that no measure answers, AdapterError for a reading that the model does not have."""
    ordered: dict[str, Planned] = {}
    own = own_reading(adapter) if adapter else ""
    readings: dict[str, list[str]] = {}

    def add(name: str, reading: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise CheckError(f"Measure '{name}' requires itself through {' -> '.join(path)}.")
        family, _, argument = name.partition(".")
        try:
            measure: Measure = measures.get(family)(argument)
        except AuditError as error:
            raise CheckError(f"Need '{name}': {error}") from error
        planned = Planned(measure, reading if measure.depends_on_reading else "")
        if planned.name in ordered:
            return
        for required in measure.requires:
            add(required, planned.reading, (*path, name))
        ordered[planned.name] = planned

    for need in ("prediction", "attention", *needs):
        name, asked = split(need)
        if asked and asked not in readings:
            if adapter is None:
                raise CheckError(f"Need '{need}': readings are resolved with a model.")
            found = [one.text for one in expanded(adapter, asked)]
            readings[asked] = ["" if text == own else text for text in found]
        for reading in readings[asked] if asked else [""]:
            for each in ("attention", name) if asked else (name,):
                add(each, reading, ())
    return list(ordered.values()), readings


def refuse_unauditable(adapter: ModelAdapter) -> None:
    """Raises AdapterError for a model this version cannot audit, saying why and what can be done."""
    capabilities = adapter.capabilities
    if capabilities.task != "classification":
        raise AdapterError(
            f"The model's task is '{capabilities.task}'; expected 'classification' with one label per input. "
            "Multi-label and regression models are not audited by this version: wrap one output as a two-class model."
        )
    own_reading(adapter)


def refusals(adapter: ModelAdapter, needs: Sequence[str]) -> dict[str, AuditError]:
    """need -> why this model cannot serve it, of those that it cannot: a reading that it lacks, or an ability."""
    found: dict[str, AuditError] = {}
    for need in needs:
        try:
            _refuse_unable(adapter, [planned.measure for planned in resolve([need], adapter)[0]])
        except AuditError as error:
            found[need] = error
    return found


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
) -> tuple[Measurements, MeasureRecord]:
    """Measure every need of every instance. The numbers are the same for any batch size, to float tolerance.

    labels: (n,) class indices in the order of the data set, -1 where unlabelled. unit: "words" puts the tokens of a
    word together. Raises DataError or AdapterError naming the row for text without real tokens, logits that are not
    finite, or attention that does not sum to one.
    """
    started = time.perf_counter()
    refuse_unauditable(adapter)
    if not dataset.instances:
        raise DataError(f"Data set '{dataset.name}' has no instances: nothing to audit.")
    ordered, readings = resolve(needs, adapter)
    own = own_reading(adapter)
    order = sorted(range(len(dataset.instances)), key=lambda i: dataset.instances[i].id)
    instances = [dataset.instances[i] for i in order]
    given = [-1] * len(instances) if labels is None else [labels[i] for i in order]
    for module in adapter.modules:
        module.eval().to(device).requires_grad_(False)
    tokens, widths = _tokens(adapter, instances, unit)
    lengths = [len(t) for t in tokens]
    for planned in ordered:
        planned.measure.start(lengths)

    counts: Counter[str] = Counter()
    store = _Store(len(instances))
    gradients = any(planned.measure.gradients or planned.reading.startswith("gradients@") for planned in ordered)
    gradients = gradients or own.startswith("gradients@")
    _refuse_unable(adapter, [planned.measure for planned in ordered])
    usual = BATCH_TOKENS_OF_HEADS if own else BATCH_TOKENS
    budget = batch_tokens or usual.get(torch.device(device).type, usual["cpu"])
    waiting = sorted(range(len(instances)), key=lambda i: (-widths[i], instances[i].id))
    done, largest = 0, 0

    def run(positions: list[int], budget: int) -> None:
        batch = Batch(
            adapter,
            [instances[i] for i in positions],
            positions,
            seed=seed,
            gradients=gradients,
            budget=budget,
            counts=counts,
            unit=unit,
            progress=progress,
        )
        views = {reading: AttentionView(batch, reading or own) for reading in {"", *(p.reading for p in ordered)}}
        _refuse_bad(batch)
        shared, found = Columns(), {reading: Columns() for reading in views}
        for planned in ordered:
            known = found[planned.reading]
            columns = planned.measure.compute(
                views[planned.reading], known if planned.measure.depends_on_reading else shared
            )
            if not planned.measure.depends_on_reading:
                shared.update(columns)
            for reading in found if not planned.measure.depends_on_reading else (planned.reading,):
                found[reading].update(columns)
            store.keep(positions, batch, columns, planned)

    def tell() -> None:
        if progress is not None:
            progress(done, len(instances), f"measuring {model} on {dataset.name}")

    tell()
    while waiting:
        take = max(1, budget // widths[waiting[0]])
        positions = waiting[:take]
        try:
            with full_precision(torch.device(device)):
                run(positions, budget)
        except AuditError:
            raise
        except Exception as error:
            if not out_of_memory(error):
                raise with_its_row(error, [(instances[i], partial(run, [i], budget)) for i in positions]) from error
            if len(positions) == 1 and budget <= widths[positions[0]]:
                alone = instances[positions[0]]
                raise AuditError(
                    f"{alone.where or alone.id}: not enough memory on {device} for this instance alone "
                    f"({widths[positions[0]]} tokens). Shorten it, or audit on another device (--audit-device cpu)."
                ) from error
            budget = max(1, min(budget, len(positions) * widths[positions[0]]) // 2)
        else:
            waiting = waiting[take:]
            done += len(positions)
            largest = max(largest, len(positions))
            tell()
            continue
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()  # not before: the error's traceback held the tensors

    found = Measurements(
        model=model,
        data=dataset.name,
        seed=seed,
        classes=adapter.capabilities.classes,
        instances=instances,
        tokens=tokens,
        labels=np.array(given, dtype=np.int64),
        predicted=store.predicted,
        scalars=store.scalars,
        vectors=store.vectors,
        per_token=store.per_token,
        facts=store.facts,
        shared=store.shared,
        readings=readings,
        own_reading=own,
    )
    for planned in ordered:
        under = found.under(planned.reading)
        before = {*under.tables}, {*under.facts}
        planned.measure.finish(under)
        if planned.reading:
            found.tables.update({named(n, planned.reading): t for n, t in under.tables.items() if n not in before[0]})
            found.facts.update({named(n, planned.reading): f for n, f in under.facts.items() if n not in before[1]})
    found.freeze()
    return found, MeasureRecord(
        model=model,
        data=dataset.name,
        needs=sorted(needs),
        seconds=time.perf_counter() - started,
        instances=len(instances),
        tokens=sum(lengths),
        passes=dict(counts),
        batch_size=largest,
        device=str(device),
        worker=worker,
        notes=_notes(found, own, unit),
    )


def _notes(found: Measurements, own: str, unit: Unit) -> list[str]:
    """What a reader of the numbers should know about how they came about."""
    notes = []
    if own:
        left_out = float(np.nanmean(found.scalar("attention.special_mass")))
        notes.append(
            f"The attention shown is the reading {own}, renormalised over the {unit} of the text; on average "
            f"{left_out:.0%} of its weight is on special tokens and left out."
        )
    if unit == "words":
        notes.append("Statistics are over words: attention is summed, gradients are joined, words are deleted whole.")
    cut = int(np.nansum(found.scalars.get("truncated", np.zeros(1))))
    if cut:
        notes.append(f"{cut:,} of {len(found):,} texts were longer than the model takes and were cut at its limit.")
    return notes


def _refuse_unable(adapter: ModelAdapter, ordered: Sequence[Measure]) -> None:
    capabilities = adapter.capabilities
    lacking = [one.name for one in ordered if one.gradients and not capabilities.differentiable]
    if lacking:
        raise AdapterError(
            f"{', '.join(lacking)} need gradients, but the adapter declares differentiable=False. "
            "Leave these checks out, or let gradients reach the embeddings."
        )
    if not capabilities.deletion and any(one.name == "leave_one_out.inputs" for one in ordered):
        raise AdapterError(
            "leave_one_out.inputs deletes tokens, but the adapter declares deletion=False. Implement delete() and "
            "keep(), or use checks at='hidden'."
        )


class _Store:
    """Per-instance numbers on the CPU, filled batch by batch."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.predicted: NDArray[np.int64] = np.zeros(n, dtype=np.int64)
        self.scalars: dict[str, NDArray[np.float64]] = {}
        self.vectors: dict[str, list[NDArray[np.float64]]] = {}
        self.per_token: set[str] = set()
        self.facts: dict[str, str] = {}
        self.shared: set[str] = set()

    def keep(self, positions: Sequence[int], batch: Batch, columns: Columns, planned: Planned) -> None:
        self.predicted[list(positions)] = batch.predicted.cpu().numpy()
        plain = (*columns.scalars, *columns.tokens, *columns.vectors, *columns.facts)
        if not planned.measure.depends_on_reading:
            self.shared.update(plain)
        names = {name: named(name, planned.reading) for name in plain}
        for name, scalar in columns.scalars.items():
            column = self.scalars.setdefault(names[name], np.full(self.n, np.nan))
            column[list(positions)] = scalar.double().cpu().numpy()
        real = batch.real.cpu().numpy()
        ends = real.sum(1).cumsum()[:-1]
        for name, per_token in columns.tokens.items():
            self.per_token.add(names[name])
            # One array for the batch: thousands of small ones would lie scattered in memory.
            self._put(names[name], positions, np.split(per_token.double().cpu().numpy()[real], ends))
        for name, vector in columns.vectors.items():
            self._put(names[name], positions, list(vector.double().cpu().numpy()))
        self.facts.update({names[name]: fact for name, fact in columns.facts.items()})

    def _put(self, name: str, positions: Sequence[int], rows: list[NDArray[np.float64]]) -> None:
        column = self.vectors.setdefault(name, [np.empty(0)] * self.n)
        for position, row in zip(positions, rows, strict=True):
            column[position] = row


def _chunks(items: Sequence[Instance], size: int) -> Iterator[Sequence[Instance]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _tokens(adapter: ModelAdapter, instances: Sequence[Instance], unit: Unit) -> tuple[list[list[str]], list[int]]:
    """Units of each instance as strings, and its encoded length with special tokens."""
    tokens: list[list[str]] = []
    widths: list[int] = []
    takes_query = adapter.capabilities.query
    known: dict[str, str] = {}  # each string once, however often it occurs
    for part in _chunks(instances, ENCODE_AT_ONCE):
        for one in part:
            if one.query is not None and not takes_query:
                raise DataError(
                    f"{one.where or one.id}: the row has a query, but the model reads a single text. "
                    "Remove the query column, or audit a model whose capabilities say query=True."
                )
        try:
            inputs = adapter.collate(part)
        except AuditError:
            raise
        except Exception as error:
            raise with_its_row(error, [(one, partial(adapter.collate, [one])) for one in part]) from error
        real = inputs.real().cpu()
        words = inputs.words[TEXT].cpu() if TEXT in inputs.words else None
        for b, one in enumerate(part):
            strings = inputs.tokens[TEXT][b]
            offset = int(inputs.mask[TEXT][b].int().argmax())
            places = [t for t, counts in enumerate(real[b, offset : offset + len(strings)].tolist()) if counts]
            kept = [known.setdefault(strings[t], strings[t]) for t in places]
            if not kept:
                raise DataError(
                    f"{one.where or one.id}: the text {one.text[:40]!r} has no real tokens after tokenisation, so "
                    "there is nothing to attend to. Remove the row or give it text."
                )
            if unit == "words" and words is not None:
                of = [int(words[b, offset + t]) for t in places]
                kept = ["".join(s for _, s in part) for _, part in groupby(zip(of, kept), key=itemgetter(0))]
            tokens.append(kept)
            widths.append(int(inputs.mask[TEXT][b].sum()))
    return tokens, widths


def _refuse_bad(batch: Batch) -> None:
    """Raises DataError or AdapterError that names the row when the clean pass cannot be measured."""
    finite = batch.logits.isfinite().all(-1)
    classes = len(batch.adapter.capabilities.classes)
    if batch.probabilities.shape[-1] != classes:
        raise AdapterError(
            f"The model gives {batch.logits.shape[-1]} logits for {classes} classes "
            f"({', '.join(batch.adapter.capabilities.classes)}); expected {classes} logits"
            + (", or one for a sigmoid output." if classes == 2 else ".")
        )
    if not bool(finite.all()):
        one = batch.instances[int((~finite).int().argmax())]
        raise AdapterError(
            f"{one.where or one.id}: the model's logits are not finite (NaN or infinite) for {one.text[:40]!r}. "
            "Look for a division by zero, an overflow in half precision, or damaged weights."
        )
    for site in batch.adapter.sites():
        weights, allowed = batch.trace.attention[site.key].detach(), batch.trace.allowed[site.key]
        total = weights.sum(-1)
        off = (total - 1).clamp_min(0.0) if site.sinks else (total - 1).abs()
        asked = allowed.any(-1).expand_as(off)
        bad = ((off > SUM_TOLERANCE) & asked) | (weights < -SUM_TOLERANCE).any(-1) | weights.isnan().any(-1)
        if bool(bad.any()):
            row, head, query = (int(i) for i in bad.nonzero()[0])
            one, found = batch.instances[row], weights[row, head, query]
            raise AdapterError(
                f"{one.where or one.id}: attention at site '{site.key}' sums to {found.sum().item():.4g} "
                f"with smallest weight {found.min().item():.4g}; expected non-negative weights that sum to 1 over "
                "the tokens. Normalise after masking, and put dropout after the reading, not before."
            )
