"""Forward passes without padding, for models whose logits depend on padding.

The rows of a batch are divided into groups of equal length, and each group runs in a pass of its own. The results are
put back into the padded shapes of the batch.

Shapes: B rows, n rows of a group, T tokens, C classes, H heads, G groups of heads that share their values, Q queries, K
keys, d and m features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.recorder import Observer
from attnaudit.adapters.huggingface.passes.layer_states import LayerStates
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.joined_rows import JoinedRows, joined
from attnaudit.adapters.protocol import TEXT, Inputs, Intervention, Site, Trace
from attnaudit.adapters.query_blocks import BlockIntervention
from attnaudit.adapters.site_selection import at_queries
from attnaudit.errors import AdapterError


@dataclass(frozen=True, slots=True, eq=False)
class LengthGroup:
    """The rows of a batch that have the same number of tokens in every stream.

    Attributes:
        rows: (n,) their indices in the batch.
        inputs: The rows as a batch of their own, without padding.
    """

    rows: Tensor
    inputs: Inputs

    def embeddings(self, whole: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
        """Return the embeddings (n, T, d) of the rows, given those (B, T, d) of the batch."""
        if whole is None:
            return None
        return {stream: one[self.rows, : self.inputs.ids[stream].shape[1]] for stream, one in whole.items()}


@dataclass(frozen=True, kw_only=True)
class UnpaddedRunner(Runner):
    """Runs one model without padding. Use `without_padding` to build one.

    Each pass computes all attention with the model's own attention functions.
    """

    def logits(
        self, inputs: Inputs, observer: Observer | None = None, embeddings: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Run the model on a batch and return its logits (B, C).

        Args:
            inputs: The batch, with padding on the right.
            observer: As in `Runner.call`. All rows must then have the same length.
            embeddings: As in `ModelAdapter.run`.

        Raises:
            AdapterError: As in `groups`.
            ValueError: There is an observer, but the rows have different lengths.
        """
        groups = self.groups(inputs)
        if observer is not None and len(groups) > 1:
            raise ValueError("an observer receives the attention of one pass, but the rows have different lengths")
        parts = [super(UnpaddedRunner, self).logits(g.inputs, observer, g.embeddings(embeddings)) for g in groups]
        return torch.cat(parts)[_order(groups)]

    def logits_of_model(self, model: Any, inputs: Inputs) -> Tensor:
        groups = self.groups(inputs)
        return torch.cat([super(UnpaddedRunner, self).logits_of_model(model, g.inputs) for g in groups])[_order(groups)]

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | BlockIntervention | None = None,
        hidden: bool = False,
        sites: Collection[str] | None = None,
        queries: Mapping[str, Tensor] | None = None,
        blocks: Collection[str] = (),
        detached: bool = False,
    ) -> Trace:
        """Run the model on a batch and record its attention at all sites (see `BlockAdapter.run`).

        `intervene` is called once for every site and group, with the weights and the mask of the whole batch. The
        weights are zero, and the mask is False, in rows of groups that have not run yet. Of the weights that
        `intervene` returns, only those of the group are used.

        Raises:
            AdapterError: As in `groups`, or the model made other attention calls than when it was loaded.
        """
        if queries and intervene is not None:
            intervene = at_queries(intervene, queries)
        groups = self.groups(inputs)
        widths = {stream: mask.shape[1] for stream, mask in self.builder.token_masks(inputs).items()}
        whole = None if intervene is None else _WholeBatch(intervene, len(inputs.ids[TEXT]), widths)
        traces = []
        for group in groups:
            traces.append(
                super().run(
                    group.inputs,
                    embeddings=group.embeddings(embeddings),
                    intervene=None if whole is None else whole.for_rows(group.rows),
                    hidden=hidden,
                    detached=detached,
                )
            )
        return self._joined(traces, _order(groups), widths)

    def groups(self, inputs: Inputs) -> list[LengthGroup]:
        """Divide the rows of a batch into groups with the same number of tokens in every stream.

        A row without tokens keeps one position of padding, because a batch has at least one position.

        Raises:
            AdapterError: A row has padding before or between its tokens.
        """
        masks = self.builder.token_masks(inputs)
        lengths = torch.stack([mask.sum(1) for mask in masks.values()], dim=1)
        for stream, mask in masks.items():
            at_start = torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
            if not torch.equal(mask, at_start):
                raise AdapterError(
                    f"{self.name}: the stream '{stream}' has padding before or between tokens. The model runs without "
                    "padding, which is removed only at the end of a row. Put the padding there."
                )
        rows_by_length: dict[tuple[int, ...], list[int]] = {}
        for row, its_lengths in enumerate(lengths.tolist()):
            rows_by_length.setdefault(tuple(its_lengths), []).append(row)
        found = []
        for its_lengths, rows in rows_by_length.items():
            index = torch.tensor(rows, dtype=torch.long, device=lengths.device)
            padded = any(mask.shape[1] > max(1, n) for mask, n in zip(masks.values(), its_lengths, strict=True))
            whole = len(rows_by_length) == 1 and not padded
            found.append(LengthGroup(index, inputs if whole else self.builder.select_rows(inputs, rows)))
        return found

    def _joined(self, traces: Sequence[Trace], order: Tensor, widths: Mapping[str, int]) -> Trace:
        """Join the traces of all groups.

        Args:
            traces: One trace per group.
            order: (B,) for each row of the batch, its index among the rows of all traces.
            widths: Stream -> T, its number of tokens in the batch.
        """
        rows: list[JoinedRows] = []

        def join(parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
            rows.append(joined(parts, order, shape))
            return rows[-1].whole

        attention, allowed, states, values = {}, {}, {}, {}
        for site in self.layout.sites:
            key, width = site.key, widths[site.keys]
            pairs = (widths[str(site.query)], width)
            weights = [trace.attention[key] for trace in traces]
            attention[key] = join(weights, (weights[0].shape[1], *pairs))
            masks = [trace.allowed[key] for trace in traces]
            allowed[key] = joined(masks, order, (masks[0].shape[1], *pairs)).whole
            found = [trace.hidden[key] for trace in traces if key in trace.hidden]
            one_per_key = [(state.shape[0], state.shape[1]) for state in found]
            if one_per_key == [(len(one), one.shape[3]) for one in weights]:
                states[key] = join(found, (width, *found[0].shape[2:]))
            caches = [trace.cache for trace in traces]
            read = [cache.values[key] for cache in caches if isinstance(cache, LayerStates) and key in cache.values]
            if read and len(read) == len(traces):
                values[key] = joined(read, order, (read[0].shape[1], width, read[0].shape[3])).whole
        return Trace(
            logits=torch.cat([trace.logits for trace in traces])[order],
            attention=attention,
            allowed=allowed,
            hidden=states,
            cache=LayerStates(values=values) if values else None,
            joined=tuple(one for one in rows if one.whole.requires_grad),
        )


def without_padding(runner: Runner) -> UnpaddedRunner:
    """Return a runner that runs the same model without padding."""
    parts = {one.name: getattr(runner, one.name) for one in fields(Runner)}
    return UnpaddedRunner(**parts | {"builder": replace(runner.builder, unpadded=True, pads_left=False)})


def _order(groups: Sequence[LengthGroup]) -> Tensor:
    """Return, for each row of the batch, its index (B,) among the rows of all groups."""
    return torch.cat([group.rows for group in groups]).argsort()


class _WholeBatch:
    """An intervention on a batch whose rows run in groups.

    Args:
        intervene: The intervention.
        rows: B, the number of rows of the batch.
        widths: Stream -> T, its number of tokens in the batch.
    """

    def __init__(self, intervene: Intervention | BlockIntervention, rows: int, widths: Mapping[str, int]) -> None:
        self._intervene = intervene
        self._rows = rows
        self._widths = widths
        #: Site key -> the weights (B, H, Q, K) and the mask (B, 1 or H, Q, K) of the groups that have run.
        self._known: dict[str, tuple[Tensor, Tensor]] = {}

    def for_rows(self, rows: Tensor) -> Intervention:
        """Return the intervention for the group with the rows (n,)."""

        def intervene(site: Site, weights: Tensor, allowed: Tensor) -> Tensor | None:
            all_weights, all_allowed = self._placed(site, rows, weights, allowed)
            self._known[site.key] = (all_weights.detach(), all_allowed)
            changed = self._intervene(site, all_weights, all_allowed)
            return None if changed is None else changed[rows, :, : weights.shape[2], : weights.shape[3]]

        return intervene

    def _placed(self, site: Site, rows: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the mask of the batch, given those of a group, without padding."""
        pairs = (self._widths[str(site.query)], self._widths[site.keys])
        known = self._known.get(site.key) or tuple(part.new_zeros(self._rows, part.shape[1], *pairs) for part in parts)
        placed = []
        for whole, part in zip(known, parts, strict=True):
            missing = (0, pairs[1] - part.shape[3], 0, pairs[0] - part.shape[2])
            placed.append(whole.index_copy(0, rows, nn.functional.pad(part, missing)))
        return placed[0], placed[1]
