"""One batch under one reading, as measures see it, including the output under changed attention weights.

A reading selects which attention of the model is the explanation (see `attnaudit.readings`). The heads in scope are the
heads that it selects. The clean pass is the forward pass in which neither the input nor the attention is changed.

Shapes: B instances, T tokens (padded), V variants of the attention, H heads, Q queries, K keys, C classes, m features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor

from attnaudit.adapters import protocol
from attnaudit.adapters.optional_methods import TransformerAdapter
from attnaudit.adapters.protocol import Site
from attnaudit.adapters.query_blocks import BlockIntervention
from attnaudit.adapters.site_selection import run_for
from attnaudit.engine.batches import interventions
from attnaudit.engine.batches.attention_reading import AttentionReading
from attnaudit.engine.batches.batch import REPLACED
from attnaudit.engine.batches.clean_pass import differentiable
from attnaudit.engine.batches.failures import refuse_not_finite
from attnaudit.engine.batches.held_attention import masked_with_attention_held
from attnaudit.engine.batches.logits import probabilities
from attnaudit.engine.batches.scopes import Scope
from attnaudit.engine.batches.shared_work import shared_result
from attnaudit.errors import AdapterError
from attnaudit.metrics.edge_adversary import Candidates, vertices_and_edges

#: Largest difference in probability that float32 rounding may cause between a pass of the model and a faster
#: computation of the same output.
TOLERANCE = 1e-4
#: Largest number of attention weights in one pass of variants, for each token of the budget.
WEIGHTS_PER_BUDGET_TOKEN = 1024

#: The rows of attention weights that an intervention changes:
#:
#: - "reading": the rows that the reading selects.
#: - "layer": all rows of the reading's layer.
#: - "everywhere.live": all rows of every layer of the reading's stack. Each layer computes its weights from the states
#:   that result from the changes in earlier layers. These weights are then changed.
#: - "everywhere.frozen": the same rows, but the weights of the clean pass are changed and used.
Extent = Literal["reading", "layer", "everywhere.live", "everywhere.frozen"]

#: A function that changes rows of weights. Its arguments are the rows (N, H, Q, K), the mask of the attendable keys
#: (N, 1 or H, Q, K), and the slice of the variants that run together. It returns the rows to use instead.
RowChange = Callable[[Tensor, Tensor, slice], Tensor]


class AttentionView(AttentionReading):
    """One batch under one reading: its attention, and the model's output when attention weights are changed.

    `logits_with_changed_layers` changes rows of whole layers. All other methods change only the rows that the reading
    selects, with the fastest computation that the adapter offers.
    """

    # -- other weights in the rows that the reading shows -----------------------------------------------------------

    @cached_property
    def attendable(self) -> Tensor:
        """(B, 1, T) True at the real tokens to which the reading's query may attend."""
        queries = self.batch.trace.attention[self.site.key].shape[2]
        allowed = self.batch.trace.allowed[self.site.key][:, :1].expand(-1, -1, queries, -1)
        return self.at_query(allowed) & self.batch.real_tokens[:, None]

    def logits_permuted(self, order: Tensor) -> Tensor:
        """Return the logits with every head's weights permuted.

        Args:
            order: (B, V, T) V permutations of the positions of each instance. Special tokens and padding must stay in
                place.

        Returns:
            (B, V, C) logits, float64.
        """
        if self.scope.single_row and bool((self.attendable == self.batch.real_tokens[:, None]).all()):
            shape = (*order.shape[:2], self.head_patterns.shape[1], order.shape[2])
            return self.decode(self.head_patterns[:, None].expand(shape).gather(-1, order[:, :, None].expand(shape)))
        return self._logits_with(
            order,
            lambda weights, attendable, positions: interventions.permuted(
                weights, positions[:, None, None, :], attendable
            ),
        )

    def logits_with_unit_shares(self, shares: Tensor) -> Tensor:
        """Return the logits with every head's weight on real tokens redistributed over the units.

        The share of a unit is divided equally among its tokens. Special tokens keep their weights.

        Args:
            shares: (B, V, T) distributions over the units.

        Returns:
            (B, V, C) logits, float64.
        """
        return self.logits_with_token_shares(self._token_shares(shares))

    def logits_with_token_shares(self, shares: Tensor) -> Tensor:
        """Return the logits with every head's weight on real tokens redistributed over the tokens.

        Special tokens keep their weights.

        Args:
            shares: (B, V, T) non-negative numbers to which the new weights are proportional. They need not sum to 1.

        Returns:
            (B, V, C) logits, float64.
        """
        return self._logits_with(shares, _with_shares)

    def logits_with_token_shares_by_view(self, views: Sequence[AttentionView], shares: Tensor) -> list[Tensor]:
        """Return the result of `logits_with_token_shares` for each of several views, from the same passes.

        `reads_same_row` must be true for each view.
        """
        rows = [view._all_heads(view._changed_rows(shares, _with_shares)) for view in views]
        return list(torch.split(self.decode(torch.cat(rows, dim=1)), shares.shape[1], dim=1))

    def reads_same_row(self, other: AttentionView) -> bool:
        """Return whether both readings select heads of the same token at the same site, and the adapter can replay its
        weights."""
        capabilities, scopes = self.adapter.capabilities, (self.scope, other.scope)
        single = all(scope.single_row and scope.head_of_row is None for scope in scopes)
        same = self.site.key == other.site.key and self.scope.query == other.scope.query
        replays = capabilities.replays and not capabilities.decodes and self.site.query is not None
        return single and same and replays

    def logits_without_special_weights(self, shares: Tensor) -> Tensor:
        """Return the logits with all weight of every head distributed over the units.

        Special tokens get no weight. However, if the reading selects several rows per head, special tokens keep their
        weights, as in `logits_with_unit_shares`.

        Args:
            shares: (B, V, T) distributions over the units.

        Returns:
            (B, V, C) logits, float64.
        """
        if not self.scope.single_row:
            return self.logits_with_unit_shares(shares)
        return self.decode(self._token_shares(shares)[:, :, None].expand(-1, -1, self.head_patterns.shape[1], -1))

    def logits_without_weights(self, removed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits with the weights of some units set to 0.

        The other weights of each row are scaled up, so that the row keeps its sum.

        Args:
            removed: (B, V, T) True at the units whose weights are removed.

        Returns:
            (B, V, C) logits, float64; and a mask (B, V), True where at least one head has weight left. A head without
            any weight left contributes nothing to the output.
        """
        tokens = self._tokens_of(removed)
        logits = self._logits_with(
            tokens, lambda weights, _attendable, gone: interventions.without(weights, gone[:, None, None, :])
        )
        return logits, self.has_weight_left(removed)

    def has_weight_left(self, removed: Tensor) -> Tensor:
        """Return a mask (B, V), True where some head has weight outside the removed units.

        Args:
            removed: (B, V, T) True at the units whose weights are removed.
        """
        return self.head_patterns.sum(1)[:, None, :].masked_fill(self._tokens_of(removed), 0.0).sum(-1) > 0

    def _tokens_of(self, units: Tensor) -> Tensor:
        """Return a mask (B, V, T) of all tokens of the units that are marked in `units` (B, V, T)."""
        positions = self.batch.unit_positions[:, None].expand_as(units)
        return units.gather(2, positions) & self.batch.real_tokens[:, None]

    def _token_shares(self, shares: Tensor) -> Tensor:
        """Divide the share of each unit (B, V, T) equally among its tokens."""
        positions = self.batch.unit_positions[:, None].expand_as(shares)
        size = self.batch.sum_by_unit(torch.ones_like(self.token_scores))[:, None].expand_as(shares)
        return (shares / size.clamp_min(1)).gather(2, positions) * self.batch.real_tokens[:, None]

    def _logits_with(self, values: Tensor, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Make V different changes to the rows that the reading selects, and return the resulting logits.

        Args:
            values: (B, V, T) numbers that define the changes, such as permutations or shares.
            change: (rows (N, H, Q, T), attendable keys (N, 1 or H, Q, T), values (N, T)) -> rows to use instead. It is
                called with the values of N changes.

        Returns:
            (B, V, C) logits, float64.
        """
        variants, width = values.shape[1:]
        if self.scope.single_row:
            return self.decode(self._changed_rows(values, change))

        def intervention(part: slice) -> BlockIntervention:
            flat = values[:, part].reshape(-1, width)
            return self._intervention(
                lambda weights, attendable, _p: change(weights.double(), attendable, flat), self.scope, part
            )

        sites = [site.key for site in self.scope.sites]
        return self.batch.run_variants(variants, intervention, given=values, sites=sites)

    def _changed_rows(self, values: Tensor, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """Return the changed rows (B, V, H, T) of a reading with a single row per head.

        The arguments are those of `_logits_with`.
        """
        count, variants, width = values.shape
        own = self.head_patterns.repeat_interleave(variants, dim=0)[:, :, None, :]
        attendable = self.attendable.repeat_interleave(variants, dim=0)[:, :, None, :]
        flat = values.reshape(count * variants, width)
        return change(own, attendable, flat)[:, :, 0, :].reshape(count, variants, -1, width)

    # -- decoding attention rows ------------------------------------------------------------------------------------

    def decode(self, weights: Tensor) -> Tensor:
        """Return the logits that result from other attention rows, with fixed hidden states.

        The logits are computed from the linear decoder's weight and bias if possible, which is fastest. The reading
        must select a single row per head.

        Args:
            weights: (B, V, H, T) rows of the heads in scope.

        Returns:
            (B, V, C) logits, float64.
        """
        if self.token_logits is not None:
            token_logits, bias = self.token_logits
            self._count_decoded("decode", weights)
            return self._finite(weights[:, :, 0] @ token_logits + bias[:, None], weights)
        return self.decode_by_model(weights)

    def decode_by_model(self, weights: Tensor) -> Tensor:
        """Return the logits of `decode`, but always compute them with the model's own layers."""
        with torch.no_grad():
            logits = torch.cat([self._decode(chunk) for chunk in self._variant_chunks(weights)], dim=1)
        return self._finite(logits, weights)

    def decode_differentiably(self, weights: Tensor) -> Tensor:
        """Return the same logits as `decode`, differentiable with respect to the attention rows."""
        if self.token_logits is not None:
            return self.decode(weights)
        with differentiable(self.device):
            return self._finite(self._decode(weights), weights)

    def _finite(self, logits: Tensor, weights: Tensor) -> Tensor:
        """Return the logits (B, V, C) unchanged if they are finite.

        Args:
            logits: (B, V, C) logits.
            weights: (B, V, H, T) attention rows that the logits were computed with. Where they are NaN, the logits may
                be NaN as well.

        Raises:
            AdapterError: Some logits are not finite although the attention rows are.
        """
        refuse_not_finite(logits, self.instances, REPLACED, given=weights)
        return logits

    @cached_property
    def variants_per_pass(self) -> int:
        """The number of variants per instance that fit into one pass under the token budget; at least 1.

        The number of attention weights in a pass is limited as well.
        """
        rows, width = self.real.shape
        tokens, heads = width, 1
        if self.scope.single_row and not self.adapter.capabilities.decodes and self.adapter.capabilities.replays:
            adapter = cast(TransformerAdapter, self.adapter)
            tokens = adapter.replay_cost(self.inputs, self.site, self.scope.query_positions(self.inputs))
            heads = self.site.heads
        by_tokens = self.budget // (rows * tokens)
        by_weights = WEIGHTS_PER_BUDGET_TOKEN * self.budget // (rows * width * heads)
        return max(1, min(by_tokens, by_weights))

    def _variant_chunks(self, weights: Tensor) -> Iterator[Tensor]:
        """Split weights (B, V, H, T) along V into chunks that fit into one pass.

        An adapter with the capability `decodes` gets all of them in one chunk.
        """
        if self.adapter.capabilities.decodes:
            yield weights
            return
        for start in range(0, weights.shape[1], self.variants_per_pass):
            yield weights[:, start : start + self.variants_per_pass]

    def _decode(self, weights: Tensor) -> Tensor:
        """Return the logits (B, V, C) under attention rows (B, V, H, T).

        The adapter's `decode` or `replay` computes them. If the adapter has neither, the model runs one whole pass per
        variant.
        """
        narrow = weights.to(torch.promote_types(self.hidden.dtype, torch.float32))
        capabilities = self.adapter.capabilities
        if capabilities.decodes:
            self._count_decoded("decode", weights)
            hidden, condition = self.hidden.detach(), self.batch.decoder_condition
            return protocol.decode_logits(self.adapter, hidden, self._all_heads(narrow), condition).double()
        if capabilities.replays:
            self._count_decoded("replay", weights)
            adapter, queries = cast(TransformerAdapter, self.adapter), self.scope.query_positions(self.inputs)
            return adapter.replay(self.inputs, self.batch.trace, self.site, queries, self._all_heads(narrow)).double()
        embeddings = {name: value.detach() for name, value in self.embeddings.items()}

        selected = {self.site.key: self.scope.query_positions(self.inputs)[:, None]}

        def run(rows: Tensor) -> Tensor:
            self.batch.count_forward(len(self.instances))

            def replace_row(site: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
                return rows[:, :, None, :].to(live.dtype) if site.key in selected else None

            trace = run_for(
                self.adapter, self.inputs, selected, queries=selected, embeddings=embeddings, intervene=replace_row
            )
            return trace.logits.double()

        all_heads = self._all_heads(narrow)
        return torch.stack([run(all_heads[:, v]) for v in range(all_heads.shape[1])], dim=1)

    def _count_decoded(self, call: str, weights: Tensor) -> None:
        self.batch.count(call, "reweighted_rows", weights.shape[0] * weights.shape[1])

    def _all_heads(self, weights: Tensor) -> Tensor:
        """Return the rows (B, V, H, T) of all heads, given rows (B, V, H', T) of the H' heads in scope.

        The other heads have the rows of the clean pass.
        """
        if weights.shape[2] == self.site.heads:
            return weights
        return self.scope.replace_heads(self.at_query(self.batch.trace.attention[self.site.key].detach()), weights)

    @shared_result
    def edge_candidates(self) -> Candidates:
        """Candidate adversarial attentions on the vertices and edges of the simplex. See `vertices_and_edges`.

        All heads have the same attention. The candidates do not depend on the limit ε of the total variation. The model
        must have two classes.
        """

        def decode(distributions: Tensor) -> Tensor:
            return probabilities(self.decode_by_model(self.to_head_patterns(distributions[:, :, None])))

        return vertices_and_edges(self.token_attention, self.probabilities, decode, self.attendable[:, 0])

    @cached_property
    def token_logits(self) -> tuple[Tensor, Tensor] | None:
        """The logits (B, T, C) of each hidden state without the bias, and the bias (B, C), in float64.

        None if the adapter does not declare `linear_decoder`.

        Raises:
            AdapterError: The probabilities computed from these logits differ from those of the model.
        """
        if not self.adapter.capabilities.linear_decoder:
            return None
        hidden = self.hidden.detach()
        weight, bias = (t.double() for t in protocol.linear_decoder(self.adapter, hidden, self.batch.decoder_condition))
        token_logits = hidden.double() @ weight.T
        logits = (self.token_scores[:, None, :] @ token_logits)[:, 0, :] + bias
        gap = (probabilities(logits) - self.probabilities).abs().max().item()
        if not gap <= TOLERANCE:
            raise AdapterError(
                "decoder_weights(): the probabilities computed from the weight and bias that it returns differ from "
                f"those of the model by {gap:.2g}; expected at most {TOLERANCE:g}. Return the decoder's own weight and "
                "bias, or declare linear_decoder=False."
            )
        return token_logits, bias

    # -- the same weights for other tokens ---------------------------------------------------------------------------

    def masked_with_attention_held(self, rows: Tensor, keep: Tensor) -> Tensor:
        """Return the logits of texts with masked units, while the attention of the reading stays fixed.

        The heads and queries of the reading keep the weights of the clean pass. Everything else is computed from the
        masked text. The arguments and the result are those of `Batch.masked`.
        """
        return masked_with_attention_held(self, rows, keep, WEIGHTS_PER_BUDGET_TOKEN * self.budget)

    # -- other weights in a whole layer or in every layer -------------------------------------------------------------

    def logits_with_changed_layers(self, extent: Extent, variants: int, change: RowChange) -> Tensor:
        """Return the logits with all rows changed, in the reading's layer or in all layers of its stack.

        Rows of padding queries are not changed.

        Args:
            extent: The rows that are changed (see `Extent`); any value except "reading".
            variants: V, the number of variants.
            change: The function that changes the rows (see `RowChange`).

        Returns:
            (B, V, C) logits, float64.
        """
        where, _, replacement = extent.partition(".")
        scope = self.scope.widened(where, self.adapter.sites())
        frozen = replacement == "frozen"
        return self.batch.run_variants(
            variants,
            lambda part: self._intervention(change, scope, part, frozen=frozen),
            sites=[site.key for site in scope.sites],
        )

    def _intervention(self, change: RowChange, scope: Scope, part: slice, *, frozen: bool = False) -> BlockIntervention:
        """Return an intervention that changes rows of attention weights, for a slice of the variants.

        Args:
            change: The function that changes the rows (see `RowChange`).
            scope: The rows to change.
            part: The slice of the variants that run together.
            frozen: Whether to change the weights of the clean pass, instead of those that the current pass computes.
        """
        keys = {site.key for site in scope.sites}
        count = part.stop - part.start
        real = self.batch.real_tokens.repeat_interleave(count, dim=0)[:, None, None, :]

        def intervene(site: Site, live: Tensor, allowed: Tensor, first: int = 0) -> Tensor | None:
            if site.key not in keys:
                return None
            weights, queries = live, live.shape[2]
            if frozen:
                weights = self.batch.clean_weights(site, first, first + queries)[0].repeat_interleave(count, dim=0)
            changed = change(weights, allowed.expand(-1, -1, queries, -1) & real, part).to(live.dtype)
            return torch.where(scope.row_mask(site, self.inputs, queries, count, first), changed, weights)

        return intervene


def _with_shares(weights: Tensor, attendable: Tensor, shares: Tensor) -> Tensor:
    """Redistribute rows of weights (N, H, Q, T) in proportion to shares (N, T) (see `interventions.redistributed`)."""
    return interventions.redistributed(weights, shares[:, None, None, :], attendable)
