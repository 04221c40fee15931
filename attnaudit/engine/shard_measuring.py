"""Measure one shard: a block of consecutive rows, whose numbers do not depend on any other row.

Every process that measures rows of an audit has a `ShardMeasurer`. It runs the instances of a shard in batches of
similar length. Measures that need the same pass of the model share it.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.dispatched_models import place
from attnaudit.adapters.protocol import TEXT, ModelAdapter, Site
from attnaudit.engine.batch_loop import run_in_batches
from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.batches.batch_sizes import tokens_per_pass
from attnaudit.engine.batches.clean_pass import NEEDS_GRADIENTS, CleanPass, Unit
from attnaudit.engine.batches.scopes import scope_of
from attnaudit.engine.batches.shared_work import Spent
from attnaudit.engine.column_store import ColumnStore, require_columns
from attnaudit.engine.columns import Columns
from attnaudit.engine.declared_measures import Request, StatefulMeasure
from attnaudit.engine.encoding_ahead import EncodingAhead
from attnaudit.engine.memory_use import MemoryMeter
from attnaudit.engine.model_identity import identity_of, refuse_changed_model, refuse_changed_parameters
from attnaudit.engine.planning import PlannedMeasure, capabilities_for, refuse_unable, refuse_unauditable, resolve
from attnaudit.engine.repeated_pass import FEWEST_ROWS, FirstPass
from attnaudit.engine.shard_numbers import BOXES, TIMES, Rows, ShardNumbers
from attnaudit.engine.unit_strings import EncodedInstances, encode_instances, encodes_on_cpu
from attnaudit.errors import AdapterError, CheckError
from attnaudit.instances import Instance
from attnaudit.progress import ProgressCallback

#: Default number of tokens (rows × padded length) in one forward pass, by device type.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}
#: The default for models that declare a reading, such as Transformers. Their number of attention weights grows with the
#: square of the length, in every layer and head.
BATCH_TOKENS_OF_HEADS = {"cpu": 1024, "cuda": 32768}
#: Kinds of counts in `pass_counts` that are numbers of rows.
PASSES_BY_ROWS = ("forward_rows", "resumed_rows")
#: Largest accepted difference between 1 and the sum of an attention row.
SUM_TOLERANCE = 1e-3
#: Number of rows in a shard. It decides which rows share a batch. Another number would therefore change rounding
#: errors.
SHARD_ROWS = 256
#: Smallest number of rows of a shard that run a second time, if there are several shards. When all shards are measured,
#: some rows of the whole data set run again as well.
FEWEST_ROWS_OF_SHARD = 16
#: Largest number of tokens, including padding, of encoded shards that are kept until they are measured.
KEPT_TOKENS = 2**19


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A block of consecutive rows of a data set, in the order of their ids.

    Attributes:
        index: The number of the shard, counted from 0.
        first: The index of its first row in the whole data set.
        instances: Its instances.
        alone: Whether it is the only shard of the data set.
    """

    index: int
    first: int
    instances: Sequence[Instance]
    alone: bool = False


class ShardMeasurer:
    """Measures the shards of one audit of a model.

    Args:
        adapter: The model.
        needs: The needs of the checks.
        seed: Seed of all random numbers.
        device: The device to measure on.
        batch_tokens: Largest number of tokens in one forward pass; None for the default of the device.
        unit: "tokens", "words" or "sources".
        sha256: The hash that the parameters must have; None to accept any parameters.

    Attributes:
        measured: The numbers of the shards that this object has measured.
        clock: Returns the time in seconds for the costs of the measures. By default, it is the wall-clock time.

    Raises:
        CheckError: A need is invalid.
        AdapterError: The model cannot be audited, or lacks a capability.
        ChangedModelError: The parameters have another hash.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        needs: Sequence[str],
        *,
        seed: int,
        device: str,
        batch_tokens: int | None,
        unit: Unit,
        sha256: str | None = None,
    ) -> None:
        refuse_unauditable(adapter)
        self.adapter = adapter
        self.plan = resolve(needs, adapter)
        self.seed = seed
        self.device = device
        self.unit: Unit = unit
        capabilities_for(adapter, unit)  # refuses sources that the model does not read
        place(adapter.modules, device, "--audit-device")
        for module in adapter.modules:
            module.requires_grad_(False)
        self._identity = identity_of(adapter)
        refuse_changed_parameters(sha256 or self._identity.sha256, self._identity.sha256)
        default_budget = BATCH_TOKENS_OF_HEADS if self.plan.own_reading else BATCH_TOKENS
        self.budget = batch_tokens or default_budget.get(torch.device(device).type, default_budget["cpu"])
        self.scopes = [scope_of(adapter, reading) for reading in self.plan.parsed.values()]
        self.started = False
        self.measured: set[int] = set()
        self.clock: Callable[[], float] = time.perf_counter
        self._encoded: dict[int, EncodedInstances] = {}
        self._kept_tokens = 0
        self._strings: dict[str, str] = {}  # one string object per distinct token
        self._ahead = EncodingAhead()

    def restricted_to(self, needs: Sequence[str]) -> ShardMeasurer:
        """Return an object that measures only some of the needs, with the same model. Call `start` of the result.

        Raises:
            CheckError: A need is invalid.
        """
        other = copy.copy(self)
        other.plan = resolve(needs, self.adapter)
        other.scopes = [scope_of(self.adapter, reading) for reading in other.plan.parsed.values()]
        other.started, other.measured = False, set()
        other._encoded, other._kept_tokens, other._ahead = {}, 0, EncodingAhead()
        return other

    @property
    def encodes_ahead(self) -> bool:
        """Whether each shard is encoded while the model measures the one before it. On a CPU, both would compete."""
        return torch.device(self.device).type != "cpu" and encodes_on_cpu(self.adapter)

    @property
    def uses_lengths(self) -> bool:
        """Whether a measure needs the lengths of all instances of the data set before the first shard."""
        return any(planned.measure.uses_lengths for planned in self.plan.measures)

    @property
    def keeps_rows(self) -> list[str]:
        """The measures whose objects keep numbers of the rows, so that all shards must be measured in this process."""
        return [planned.measure.name for planned in self.plan.measures if planned.measure.keeps_rows]

    def start(self, lengths: Sequence[int]) -> None:
        """Create the objects that compute the measures.

        Args:
            lengths: (n,) number of real units of every instance of the whole data set; empty if no measure needs them.

        Raises:
            AdapterError: The model lacks a capability that a measure needs.
        """
        refuse_unable(self.adapter, self.plan, self.unit)
        self.states = [planned.measure.start(lengths) for planned in self.plan.measures]
        self.started = True

    def encode(self, shard: Shard, *, keep: bool = False) -> EncodedInstances:
        """Encode the instances of a shard, unless an earlier call has kept the result.

        Args:
            shard: The shard.
            keep: Whether to keep the result for the next call.

        Raises:
            DataError: An instance cannot be encoded. The message names the row.
            AuditError: The adapter raised an error for an instance. The message names the row.
        """
        encoded = self._encoded.pop(shard.index, None) or self._ahead.take(shard.index)
        if encoded is None:
            encoded = self._new_encoding(shard)
        if keep:
            if encoded.inputs is not None:
                self._kept_tokens += encoded.inputs.ids[TEXT].numel()
                if self._kept_tokens > KEPT_TOKENS:  # the texts of this shard are tokenised again
                    encoded.inputs = None
            self._encoded[shard.index] = encoded
        return encoded

    def _new_encoding(self, shard: Shard) -> EncodedInstances:
        return encode_instances(self.adapter, shard.instances, self.unit, strings=self._strings)

    def measure(
        self,
        shard: Shard,
        *,
        following: Shard | None = None,
        progress: ProgressCallback | None = None,
        report: Callable[[int], None] | None = None,
        memory: MemoryMeter | None = None,
        most: int | None = None,
    ) -> ShardNumbers:
        """Compute every needed measure for every instance of a shard. Call `start` first.

        Args:
            shard: The shard.
            following: The shard that will be measured next; None if it is unknown. It may be encoded in the meantime.
            progress: Called during batches that take long; None to report no progress.
            report: Called after every batch with the number of finished instances; None to report no progress.
            memory: Measures the memory of the measures; None to leave it out.
            most: Largest number of rows in one batch; None for no limit. All processes that measure shards of an audit
                must use the same limit.

        Raises:
            DataError: A row cannot be measured. The message names the row.
            AdapterError: The model gives invalid logits or attention.
            ChangedModelError: The parameters or the mode of the model changed, or the model gives other results when
                the same rows run again.
            AuditError: The model or a measure raised an error, or there is not enough memory for a single instance. The
                message names the row.
        """
        began = time.perf_counter()
        instances = shard.instances
        encoded = self.encode(shard)
        # Without `inputs`, every batch is encoded when it runs, which another thread must not disturb.
        if following and encoded.inputs is not None and following.index not in self._encoded and self.encodes_ahead:
            self._ahead.start(following.index, partial(self._new_encoding, following))
        widths = encoded.widths
        pass_counts: Counter[str] = Counter()
        spent = Spent(pass_counts, self.clock)
        store = ColumnStore(len(instances), shard.first)
        first_pass = FirstPass(len(instances), shard.first)

        def run(positions: list[int], budget: int) -> None:
            """Compute all measures for the instances at these positions of the shard, as one batch."""
            batch = Batch(
                self.adapter,
                [instances[i] for i in positions],
                [shard.first + i for i in positions],
                seed=self.seed,
                keep_graph=self.plan.keep_graph,
                budget=budget,
                pass_counts=pass_counts,
                unit=self.unit,
                progress=progress,
                scopes=self.scopes,
                # Texts are tokenised a second time only when rows run again (see `FirstPass.repeat`).
                inputs=encoded.selected(self.adapter, positions),
            )
            batch.spent = spent
            with memory or nullcontext():
                self._run_batch(batch, store, first_pass, spent)

        largest = run_in_batches(
            run,
            instances,
            range(len(instances)),
            widths,
            device=self.device,
            budget=self.budget,
            most=most,
            per_pass=tokens_per_pass(self.adapter, torch.device(self.device).type),
            report=report,
        )
        vectors = store.vectors()
        refuse_changed_model(self._identity, identity_of(self.adapter))
        self._ahead.wait()  # the second pass uses the tokenizer
        repeated = first_pass.repeat(
            self.adapter,
            instances,
            widths,
            list(vectors["logits"].values.reshape(len(instances), -1)),
            rows_of_passes=sum(pass_counts[kind] for kind in PASSES_BY_ROWS),
            fewest=FEWEST_ROWS if shard.alone else FEWEST_ROWS_OF_SHARD,
            seed=self.seed,
            device=self.device,
            budget=self.budget,
            scopes=self.scopes,
        )
        self.measured.add(shard.index)
        for name, places in ((BOXES, encoded.boxes), (TIMES, encoded.times)):
            if places:
                vectors[name] = Rows.of([np.array(row, dtype=np.float64).reshape(-1) for row in places])
        return ShardNumbers(
            ids=[instance.id for instance in instances],
            tokens=encoded.units,
            sequences=encoded.sequences,
            predicted=store.predicted,
            summaries=first_pass.summaries,
            scalars=store.scalars,
            vectors=vectors,
            states={name: Rows.of(rows) for name, rows in store.states.items()},
            per_token=store.per_token,
            facts=store.facts,
            shared=store.shared,
            passes=dict(pass_counts),
            batch_size=largest,
            repeated_rows=repeated.rows,
            repeated_difference=repeated.largest_difference,
            seconds=time.perf_counter() - began,
            measure_seconds={name: work.seconds for name, work in spent.work.items()},
            measure_passes={name: dict(work.passes) for name, work in spent.work.items()},
            measure_uses={name: sorted(work.uses) for name, work in spent.work.items() if work.uses},
        )

    def _run_batch(self, batch: Batch, store: ColumnStore, first_pass: FirstPass, spent: Spent) -> None:
        """Compute all measures for one batch, and store their columns."""
        spent.begin()
        views = {name: AttentionView(batch, reading) for name, reading in self.plan.parsed.items()}
        _refuse_invalid_logits(batch)
        spent.add("prediction")
        first_pass.add(batch, _refuse_invalid_weights)
        spent.add("attention")
        # A measure under a reading may also require columns that do not depend on the reading.
        shared, by_reading = Columns(), {name: Columns() for name in views}
        views_of: dict[str, list[AttentionView]] = {}
        for planned in self.plan.measures:
            views_of.setdefault(planned.measure.name, []).append(views[planned.reading])
        for planned, state in zip(self.plan.measures, self.states, strict=True):
            depends = planned.measure.depends_on_reading
            required = by_reading[planned.reading] if depends else shared
            capabilities = capabilities_for(self.adapter, self.unit)
            request = planned.measure.request(required, capabilities, views_of[planned.measure.name])
            columns = _computed(state, views[planned.reading], request, planned)
            for known in (by_reading[planned.reading],) if depends else (shared, *by_reading.values()):
                known.update(columns)
            store.add(batch, columns, planned)
            spent.add(planned.name)


def _computed(state: StatefulMeasure, view: AttentionView, request: Request, planned: PlannedMeasure) -> Columns:
    """Return the columns that a measure computes for one batch.

    Raises:
        CheckError: The measure did not return such columns, or it uses gradients without declaring it.
    """
    measure = planned.measure
    view.batch.without_gradients = "" if measure.gradients else measure.name
    try:
        columns = state.compute(view, request)
    except RuntimeError as error:
        if measure.gradients or "does not require grad" not in str(error):
            raise
        raise CheckError(NEEDS_GRADIENTS.format(measure=measure.name, what="the model's output")) from error
    finally:
        view.batch.without_gradients = ""
    require_columns(columns, planned)
    return columns


def _refuse_invalid_logits(batch: Batch) -> None:
    """Check the logits of a batch's clean pass.

    Raises:
        AdapterError: The number of logits does not fit the classes, or logits are not finite. In the last case, the
            message names the row.
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


def _refuse_invalid_weights(batch: CleanPass, site: Site, weights: Tensor, allowed: Tensor) -> None:
    """Check that the attention weights of each query are a distribution.

    Args:
        batch: The batch of the clean pass that computed the weights.
        site: The site of the weights.
        weights: (B, H, R, K) weights of R queries.
        allowed: (B, 1 or H, 1 or R, K) True where a query may attend to a key.

    Raises:
        AdapterError: The weights of a query are not a distribution. The message names the row.
    """
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
