"""The adapter for attention over a bag of feature vectors, such as the patches of a slide (Ilse et al. 2018).

A bag is an array file with one vector per unit (see `attnaudit.input_files`). The id of a unit is a hash of its vector,
so equal vectors have equal ids. The vectors of a batch are in its table (`Inputs.tables`).

Shapes: B bags, T units (padded), N different vectors in a batch, V variants, C logits, d features of a vector, m
features of a state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from attnaudit.adapters.donors import REPLACED_BY, ROW, Donors, InDistribution, reading_donors
from attnaudit.adapters.padding import pad
from attnaudit.adapters.pooled.masked_bags import (
    BagWithBaseline,
    contexts_with_single_masks,
    contexts_without,
    masked_contexts,
    weighted_states,
)
from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter, SharedStates
from attnaudit.adapters.pooled.token_streams import Encoding
from attnaudit.adapters.protocol import TEXT, Inputs, VectorTable, decode_logits
from attnaudit.errors import AdapterError, DataError
from attnaudit.input_files import UnitArray, read_array
from attnaudit.instances import Instance
from attnaudit.records.unit_names import article_of
from attnaudit.targets import CLASS, Target

#: The family of these models, unless the adapter names another one.
BAG = "bag of vectors"
#: Ids of padding and of the baseline vector. The ids of units are larger.
PADDING, BASELINE, FIRST = 0, 1, 2
#: Number of weights that are computed at the cost of encoding one unit.
WEIGHTS_PER_UNIT = 64
#: Number of variants whose contexts are computed again at once, because their rounding errors would be too large.
UNCERTAIN_AT_ONCE = 256


@dataclass(slots=True)
class _SharedWeights:
    """The states (B, T, m) and the weights (B, H, T) of whole bags.

    `products` (see `weighted_states`) is computed when units are deleted for the first time, and `with_baseline` when
    units are masked for the first time.
    """

    states: Tensor
    weights: Tensor
    products: Tensor | None = None
    with_baseline: BagWithBaseline | None = None


class BagAdapter(PooledAttentionAdapter):
    """A model adapter for a classifier that attends to the units of a bag."""

    original_gets: ClassVar[str] = "one bag at a time, without padding"

    def __init__(
        self,
        *,
        encoder: Callable[[Tensor, Tensor], Tensor],
        attention: Callable[..., Tensor],
        decoder: Callable[..., Tensor],
        classes: Sequence[str],
        features: int,
        baseline: Tensor | InDistribution | None = None,
        independent: bool = True,
        read: Callable[[Instance], UnitArray] = read_array,
        modules: Sequence[nn.Module] | None = None,
        heads: int = 1,
        reading: str = "",
        contexts: Callable[[Tensor], Tensor] | None = None,
        max_tokens: int | None = None,
        description: str = "",
        family: str = BAG,
        configuration: str = "",
        target: Target = CLASS,
        unit_name: str = "vector",
        row_name: str = "bag",
        original: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Build an adapter from the parts of a model.

        Args:
            encoder: (vectors (B, T, d), mask (B, T)) -> states (B, T, m).
            attention: (states (B, T, m), allowed (B, T)) -> weights (B, T) that sum to one over the allowed units.
            decoder: Context (..., m) -> logits (..., C).
            classes: Class names in the order of the logits.
            features: d, the number of features of a vector.
            baseline: (d,) vector that replaces a masked unit, such as the mean vector of the training data. Or an
                `InDistribution`, which replaces it by units of other bags. None for zeros.
            independent: Whether units are processed independently of each other. The state of a unit must then depend
                on its own vector alone. Its weight must be proportional to a number that depends on this vector alone,
                as in a softmax over scores of the units. Erasing units is then computed from the states and weights of
                the whole bag, without running the model again. False for models whose encoder or attention mixes units.
            read: Function that reads the units of an instance. By default, they are read from the file of the instance.
            modules: As for `PooledAttentionAdapter`.
            heads: As for `PooledAttentionAdapter`.
            reading: As for `PooledAttentionAdapter`.
            contexts: As for `PooledAttentionAdapter`.
            max_tokens: The largest number of units; None if it is unlimited.
            description: As for `PooledAttentionAdapter`.
            family: The family of the model.
            configuration: As for `PooledAttentionAdapter`. The hash of the baseline is appended.
            target: As for `PooledAttentionAdapter`.
            unit_name: What a unit is, in the singular, for reports, such as "patch".
            row_name: What a bag is, for the same purpose, such as "slide".
            original: Your model's own forward pass: vectors (1, T, d) -> logits (1, C). It is called for one bag at a
                time. Otherwise as for `PooledAttentionAdapter`.

        Raises:
            AdapterError: The baseline is not a vector of finite numbers with d features, or another option is invalid.
        """
        vector = baseline.detach().float().cpu() if isinstance(baseline, Tensor) else torch.zeros(features)
        if tuple(vector.shape) != (features,) or not bool(vector.isfinite().all()):
            raise AdapterError(
                f"baseline has the shape {tuple(vector.shape)}; expected one vector of {features} finite numbers."
            )
        self.features, self.baseline, self.independent, self.read = features, vector, independent, read
        replaced_by = f"baseline {hashlib.sha256(vector.numpy().tobytes()).hexdigest()}"
        self.donors: Donors | None = None
        if isinstance(baseline, InDistribution):
            with reading_donors():
                vectors = [self._vectors(one, read(one)) for one in baseline.donors]
            self.donors = Donors(baseline, vectors)
            replaced_by = json.dumps(self.donors.configuration, sort_keys=True)
        super().__init__(
            embedding=_no_embedding,
            encoder=encoder,
            attention=attention,
            decoder=decoder,
            tokenize=_no_tokens,
            classes=classes,
            modules=modules,
            pad_id=PADDING,
            mask_id=BASELINE,
            max_tokens=max_tokens,
            description=description,
            family=family,
            configuration=f"{configuration} {replaced_by}".strip(),
            heads=heads,
            reading=reading,
            contexts=contexts,
            target=target,
            original=original,
        )
        replacement = "a vector of zeros" if baseline is None else "the baseline vector"
        masked = f"A masked {unit_name} is replaced by {replacement}."
        if self.donors is not None:
            masked = self.donors.description(unit_name, f"{article_of(unit_name)} {unit_name}")
        self._capabilities = replace(
            self._capabilities,
            shares_states=independent,
            shares_masked=independent and self.donors is None,
            single_masks=independent and self.donors is None,
            unitwise=independent,
            erasure=f"{masked} A deleted {unit_name} is left out of the {row_name}.",
            unit_name=unit_name,
            row_name=row_name,
            draws=1 if self.donors is None else self.donors.draws,
        )

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        device = self._device
        arrays = [self._units(instance) for instance in instances]
        extra: dict[str, Tensor] = {}
        if self.donors is not None:
            extra[ROW] = self.donors.row_entry(instances, [one.features for one in arrays], device)
        ids_of = [_ids(array.features) for array in arrays]
        vectors = torch.cat([torch.zeros(1, self.features), self.baseline[None], *(one.features for one in arrays)])
        all_ids = np.concatenate([[PADDING, BASELINE], *ids_of])
        unique, first = np.unique(all_ids, return_index=True)
        table = VectorTable(
            ids=torch.from_numpy(unique).to(device), vectors=vectors[torch.from_numpy(first)].to(device)
        )
        ids, mask = pad([one.tolist() for one in ids_of], value=PADDING, device=device)
        boxes, times = [one.boxes for one in arrays], [one.times for one in arrays]
        return Inputs(
            ids={TEXT: ids},
            mask={TEXT: mask},
            special={TEXT: torch.zeros_like(mask)},
            tokens={TEXT: [_names(one) for one in arrays]},
            boxes={TEXT: [[] if one is None else [_box(row) for row in one.tolist()] for one in boxes]}
            if any(one is not None for one in boxes)
            else {},
            times={TEXT: [[] if one is None else [(start, end) for start, end in one.tolist()] for one in times]}
            if any(one is not None for one in times)
            else {},
            tables={TEXT: table},
            extra=extra,
        )

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return self.substitute_draw(inputs, stream, rows, replaced, 0)

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        variants = super().substitute(inputs, stream, rows, replaced)
        if self.donors is None:
            return variants
        units = self.donors.drawn_units(inputs, draw)[rows] * replaced
        return replace(variants, extra={**variants.extra, REPLACED_BY: units})

    def _units(self, instance: Instance) -> UnitArray:
        array = self.read(instance)
        limit, where = self._capabilities.max_tokens, instance.where or instance.id
        if limit is not None and len(array.features) > limit:
            raise DataError(
                f"{where}: the bag has {len(array.features):,} units, but the model takes at most {limit:,}. Split it."
            )
        return replace(array, features=self._vectors(instance, array))

    def _vectors(self, instance: Instance, array: UnitArray) -> Tensor:
        """Return the vectors (n, d) of the units of an instance.

        Raises:
            DataError: They have another number of features than the model reads.
        """
        where = instance.where or instance.id
        if array.features.dim() < 2 or array.features[0].numel() != self.features:
            raise DataError(
                f"{where}: the units of {instance.text!r} have the shape {tuple(array.features.shape[1:])}, but the "
                f"model reads {self.features} features. Use the features that the model was trained with."
            )
        return array.features.flatten(1)

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        table, ids = inputs.tables[TEXT], inputs.ids[TEXT]
        vectors = table.vectors[torch.searchsorted(table.ids, ids)]
        if self.donors is not None and REPLACED_BY in inputs.extra:
            drawn = torch.cat(self.donors.values).to(vectors)[inputs.extra[REPLACED_BY]]
            vectors = torch.where((ids == BASELINE)[..., None], drawn, vectors)
        return {TEXT: vectors}

    def _original_arguments(self, inputs: Inputs, row: int) -> tuple[Tensor, ...]:
        return (self.embed(inputs)[TEXT][row : row + 1, inputs.mask[TEXT][row]],)

    def share(self, inputs: Inputs) -> SharedStates:
        trace = self.run(inputs, hidden=True)
        site = self._site.key
        return _SharedWeights(trace.hidden[site], trace.attention[site][:, :, 0])  # type: ignore[return-value]

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        return torch.full_like(rows, -(-keep.shape[1] // WEIGHTS_PER_UNIT))

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        if not isinstance(shared, _SharedWeights):
            raise AdapterError("logits_without(): expected the result of share().")
        if not len(rows):
            raise AdapterError("logits_without(): got no variants; expected at least one.")
        if shared.products is None:
            shared.products = weighted_states(shared.states, shared.weights)
        deleted = inputs.mask[TEXT][rows] & ~keep
        contexts, vanished = contexts_without(shared.products, rows, keep, deleted, shared.weights.dtype)
        logits = self._decode_contexts(contexts)
        some = vanished.nonzero()[:, 0]
        if len(some):  # the remaining weights may have been rounded to 0, so the model computes them again
            logits[some] = self.run(self.keep(inputs, TEXT, rows[some], keep[some])).logits
        return logits

    def logits_masked(
        self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        if weights is not None:
            replaced = self.substitute(inputs, TEXT, rows, inputs.mask[TEXT][rows] & ~keep)
            return self.run(replaced, intervene=lambda _site, _live, _allowed: weights[:, :, None]).logits
        bags = self._bags_with_baseline(inputs, shared)
        masked = inputs.mask[TEXT][rows] & ~keep
        contexts, vanished = masked_contexts(bags, rows, keep & inputs.mask[TEXT][rows], masked)
        logits = self._decode_contexts(contexts)
        some = vanished.nonzero()[:, 0]
        if len(some):
            logits[some] = self.run(self.substitute(inputs, TEXT, rows[some], masked[some])).logits
        return logits

    def logits_with_single_masks(
        self, inputs: Inputs, shared: object, row: int, units: Tensor, *, alone: bool, held: bool
    ) -> Tensor:
        bags = self._bags_with_baseline(inputs, shared)
        assert isinstance(shared, _SharedWeights)
        weights = shared.weights[row] if held else None
        contexts, uncertain = contexts_with_single_masks(bags, row, units, alone=alone, held=weights)
        logits = self._decode_contexts(contexts)
        some = uncertain.nonzero()[:, 0]
        for chunk in torch.split(some, UNCERTAIN_AT_ONCE) if len(some) else ():
            this = torch.arange(inputs.mask[TEXT].shape[1], device=units.device) == units[chunk, None]
            keep = (this if alone else ~this) & inputs.mask[TEXT][row]
            logits[chunk] = self.logits_masked(inputs, shared, torch.full_like(chunk, row), keep)
        return logits

    def _decode_contexts(self, contexts: Tensor) -> Tensor:
        """Return the logits (V, C) of contexts (V, H, m)."""
        heads = torch.eye(contexts.shape[1], dtype=contexts.dtype, device=contexts.device)
        # With one weight of 1 per head, `decode` returns the logits of these contexts.
        return decode_logits(self, contexts, heads.expand(len(contexts), 1, -1, -1), None)[:, 0].clone()

    def _bags_with_baseline(self, inputs: Inputs, shared: object) -> BagWithBaseline:
        if not isinstance(shared, _SharedWeights):
            raise AdapterError("expected the result of share().")
        if shared.with_baseline is None:
            shared.with_baseline = self._with_baseline(inputs)
        return shared.with_baseline

    def _with_baseline(self, inputs: Inputs) -> BagWithBaseline:
        """Run each bag with the baseline vector as an additional unit."""
        last = torch.full_like(inputs.ids[TEXT][:, :1], BASELINE)
        everywhere = torch.ones_like(last, dtype=torch.bool)
        longer = Inputs(
            ids={TEXT: torch.cat([inputs.ids[TEXT], last], dim=1)},
            mask={TEXT: torch.cat([inputs.mask[TEXT], everywhere], dim=1)},
            special={TEXT: torch.cat([inputs.special[TEXT], ~everywhere], dim=1)},
            tables=inputs.tables,
        )
        trace = self.run(longer, hidden=True)
        site = self._site.key
        return BagWithBaseline(trace.hidden[site], trace.attention[site][:, :, 0], inputs.mask[TEXT])


def _ids(features: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return an id (n,) for each vector (n, d). Equal vectors have equal ids."""
    rows = features.contiguous().numpy()
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return (np.frombuffer(digests, dtype="<u8") >> np.uint64(2)).astype(np.int64) + FIRST


def _names(array: UnitArray) -> list[str]:
    """Return the names of the units in a file. If it has no names, return their time spans, or else their numbers."""
    if array.names is None and array.times is not None:
        return [f"{start:.2f} to {end:.2f} s" for start, end in array.times.tolist()]
    return list(array.names or map(str, range(len(array.features))))


def _box(row: Sequence[float]) -> tuple[float, float, float, float]:
    x, y, width, height = row
    return x, y, width, height


def _no_embedding(ids: Tensor) -> Tensor:
    raise AdapterError("A bag has no token ids. Call embed(inputs), which looks up the vectors in the table.")


def _no_tokens(text: str) -> Encoding:
    raise AdapterError("A bag has no text. Call collate(instances), which reads the files of the instances.")
