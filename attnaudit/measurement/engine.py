"""The engine: unions what the checks need and measures it in length-sorted batches, each pass once per batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from attnaudit.adapters.protocol import TEXT, ModelAdapter
from attnaudit.errors import AdapterError, AuditError, CheckError, DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.measurement.columns import Columns, Measure
from attnaudit.measurement.measurements import Measurements
from attnaudit.measurement.passes import Passes
from attnaudit.records import MeasureRecord
from attnaudit.registry import measures

#: Tokens (rows × padded length) in one forward pass, by device type.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}
#: Instances encoded at once when lengths are read.
ENCODE_AT_ONCE = 512
#: Largest distance of a row of attention from summing to one.
SUM_TOLERANCE = 1e-3

Progress = Callable[[int, int, str], None]


def resolve(needs: Sequence[str]) -> list[Measure]:
    """The measures behind `needs` and what those require, each once, requirements first.

    Raises CheckError for a need that no measure answers."""
    ordered: dict[str, Measure] = {}

    def add(name: str, path: tuple[str, ...]) -> None:
        if name in ordered:
            return
        if name in path:
            raise CheckError(f"Measure '{name}' requires itself through {' -> '.join(path)}.")
        family, _, argument = name.partition(".")
        try:
            measure: Measure = measures.get(family)(argument)
        except AuditError as error:
            raise CheckError(f"Need '{name}': {error}") from error
        for required in measure.requires:
            add(required, (*path, name))
        ordered[name] = measure

    for need in ("prediction", "attention", *needs):
        add(need, ())
    return list(ordered.values())


def refuse_unauditable(adapter: ModelAdapter) -> None:
    """Raises AdapterError for a model this version cannot audit, saying why and what can be done."""
    capabilities = adapter.capabilities
    if capabilities.task != "classification":
        raise AdapterError(
            f"The model's task is '{capabilities.task}'; expected 'classification' with one label per input. "
            "Multi-label and regression models are not audited by this version: wrap one output as a two-class model."
        )
    sites = adapter.sites()
    if len(sites) != 1 or sites[0].kind != "pool" or sites[0].heads != 1:
        raise AdapterError(
            f"The model has {len(sites)} attention sites ({', '.join(s.kind for s in sites) or 'none'}); this version "
            "audits models with one pooled attention. Expose the pooling site alone in sites()."
        )


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
    progress: Progress | None = None,
    worker: str = "main",
) -> tuple[Measurements, MeasureRecord]:
    """Measure every need of every instance. The numbers are the same for any batch size, to float tolerance.

    labels: (n,) class indices in the order of the data set, -1 where unlabelled. Raises DataError or AdapterError
    naming the row for text without real tokens, logits that are not finite, or attention that does not sum to one.
    """
    started = time.perf_counter()
    refuse_unauditable(adapter)
    if not dataset.instances:
        raise DataError(f"Data set '{dataset.name}' has no instances: nothing to audit.")
    ordered = resolve(needs)
    order = sorted(range(len(dataset.instances)), key=lambda i: dataset.instances[i].id)
    instances = [dataset.instances[i] for i in order]
    given = [-1] * len(instances) if labels is None else [labels[i] for i in order]
    for module in adapter.modules:
        module.eval().to(device).requires_grad_(False)
    tokens, widths = _tokens(adapter, instances)
    lengths = [len(t) for t in tokens]
    for one in ordered:
        one.start(lengths)

    counts: Counter[str] = Counter()
    store = _Store(len(instances))
    gradients = any(one.gradients for one in ordered)
    _refuse_unable(adapter, ordered)
    budget = batch_tokens or BATCH_TOKENS.get(torch.device(device).type, BATCH_TOKENS["cpu"])
    waiting = sorted(range(len(instances)), key=lambda i: (-widths[i], instances[i].id))
    done, largest = 0, 0

    def run(positions: list[int], budget: int) -> None:
        passes = Passes(
            adapter,
            [instances[i] for i in positions],
            positions,
            seed=seed,
            gradients=gradients,
            budget=budget,
            counts=counts,
        )
        _refuse_bad(passes)
        columns = Columns()
        for one in ordered:
            columns.update(one.compute(passes, columns))
        store.keep(positions, passes, columns)

    while waiting:
        take = max(1, budget // widths[waiting[0]])
        positions = waiting[:take]
        try:
            run(positions, budget)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            if len(positions) == 1 and budget <= widths[positions[0]]:
                alone = instances[positions[0]]
                raise AuditError(
                    f"{alone.where or alone.id}: not enough memory on {device} for this instance alone "
                    f"({widths[positions[0]]} tokens). Shorten it, or audit on another device (--audit-device cpu)."
                ) from error
            if torch.device(device).type == "cuda":
                torch.cuda.empty_cache()
            budget = max(1, min(budget, len(positions) * widths[positions[0]]) // 2)
            continue
        waiting = waiting[take:]
        done += len(positions)
        largest = max(largest, len(positions))
        if progress is not None:
            progress(done, len(instances), f"{model} on {dataset.name}")

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
    )
    for one in ordered:
        one.finish(found)
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
    )


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
            "leave_one_out.inputs deletes tokens, but the adapter declares deletion=False. Implement delete(), or use "
            "checks at='hidden'."
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

    def keep(self, positions: Sequence[int], passes: Passes, columns: Columns) -> None:
        self.predicted[list(positions)] = passes.predicted.cpu().numpy()
        for name, scalar in columns.scalars.items():
            self.scalars.setdefault(name, np.full(self.n, np.nan))[list(positions)] = scalar.double().cpu().numpy()
        real = passes.real.cpu().numpy()
        for name, per_token in columns.tokens.items():
            self.per_token.add(name)
            self._put(name, positions, [row[r] for row, r in zip(per_token.double().cpu().numpy(), real, strict=True)])
        for name, vector in columns.vectors.items():
            self._put(name, positions, list(vector.double().cpu().numpy()))
        self.facts.update(columns.facts)

    def _put(self, name: str, positions: Sequence[int], rows: list[NDArray[np.float64]]) -> None:
        column = self.vectors.setdefault(name, [np.empty(0)] * self.n)
        for position, row in zip(positions, rows, strict=True):
            column[position] = row


def _chunks(items: Sequence[Instance], size: int) -> Iterator[Sequence[Instance]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _tokens(adapter: ModelAdapter, instances: Sequence[Instance]) -> tuple[list[list[str]], list[int]]:
    """Real tokens of each instance as strings, and its encoded length with special tokens."""
    tokens: list[list[str]] = []
    widths: list[int] = []
    takes_query = adapter.capabilities.query
    for part in _chunks(instances, ENCODE_AT_ONCE):
        for one in part:
            if one.query is not None and not takes_query:
                raise DataError(
                    f"{one.where or one.id}: the row has a query, but the model reads a single text. "
                    "Remove the query column, or audit a model whose capabilities say query=True."
                )
        inputs = adapter.collate(part)
        real = inputs.real().cpu()
        for b, one in enumerate(part):
            strings = inputs.tokens[TEXT][b]
            offset = int(inputs.mask[TEXT][b].int().argmax())
            kept = [s for t, s in enumerate(strings) if bool(real[b, offset + t])]
            if not kept:
                raise DataError(
                    f"{one.where or one.id}: the text {one.text[:40]!r} has no real tokens after tokenisation, so "
                    "there is nothing to attend to. Remove the row or give it text."
                )
            tokens.append(kept)
            widths.append(int(inputs.mask[TEXT][b].sum()))
    return tokens, widths


def _refuse_bad(passes: Passes) -> None:
    """Raises DataError or AdapterError that names the row when the clean pass cannot be measured."""
    finite = passes.logits.isfinite().all(-1)
    classes = len(passes.adapter.capabilities.classes)
    if passes.probabilities.shape[-1] != classes:
        raise AdapterError(
            f"The model gives {passes.logits.shape[-1]} logits for {classes} classes "
            f"({', '.join(passes.adapter.capabilities.classes)}); expected {classes} logits"
            + (", or one for a sigmoid output." if classes == 2 else ".")
        )
    if not bool(finite.all()):
        one = passes.instances[int((~finite).int().argmax())]
        raise AdapterError(
            f"{one.where or one.id}: the model's logits are not finite (NaN or infinite) for {one.text[:40]!r}. "
            "Look for a division by zero, an overflow in half precision, or damaged weights."
        )
    weights = passes.weights
    off = ((weights.sum(1) - 1).abs() > SUM_TOLERANCE) | (weights < -SUM_TOLERANCE).any(1) | weights.isnan().any(1)
    if bool(off.any()):
        row = int(off.int().argmax())
        one = passes.instances[row]
        raise AdapterError(
            f"{one.where or one.id}: attention at site '{passes.site.key}' sums to {weights[row].sum().item():.4g} "
            f"with smallest weight {weights[row].min().item():.4g}; expected non-negative weights that sum to 1 over "
            "the tokens. Normalise after masking, and put dropout after the reading, not before."
        )


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return "can't allocate memory" in text or "not enough memory" in text or "out of memory" in text
