"""One batch under one reading: the weights that are shown, the states behind them, and the output under other weights.

Shapes: B instances, T tokens (padded), V alternative attentions, H heads, C classes, d and m features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, cast

import torch
from torch import Tensor

from attnaudit.adapters import protocol
from attnaudit.adapters.protocol import TEXT, Intervention, SharingAdapter, Site, TransformerAdapter
from attnaudit.engine import interventions
from attnaudit.engine.batch import Batch, differentiable, probabilities
from attnaudit.engine.explanations import explained
from attnaudit.engine.scopes import Scope, scope_of
from attnaudit.errors import AdapterError
from attnaudit.metrics.edge_adversary import Candidates, vertices_and_edges
from attnaudit.readings import Reading, parse

#: Largest difference between a pass and its faster form that rounding in float32 explains.
TOLERANCE = 1e-4
#: Influences of tokens on states that are held at once, for each token of the budget.
INFLUENCES = 64

#: Where weights are replaced: the rows that the reading shows, all rows of its layer, or those of every layer of its
#: stack, there either as they come out of the changed states ("live") or as in the clean pass ("frozen").
Where = Literal["reading", "layer", "everywhere.live", "everywhere.frozen"]

#: (rows of weights (N, H, Q, K), free keys (N, 1 or H, Q, K), variants) -> rows to use instead.
RowChange = Callable[[Tensor, Tensor, slice], Tensor]


class AttentionView:
    """What measures see. reading: as `scopes.expanded` gives it; "" is that of a pooled model."""

    def __init__(self, batch: Batch, reading: str = "") -> None:
        self.batch = batch
        self.adapter = batch.adapter
        self.instances, self.positions = batch.instances, batch.positions
        self.seed, self.budget, self.counts = batch.seed, batch.budget, batch.counts
        self.inputs = batch.inputs
        self.device = batch.device
        self.real, self.lengths = batch.real, batch.lengths
        self.embeddings = batch.embeddings
        self.reading_text = reading
        self.named: Reading | None = parse(reading) if reading else None
        self.scope: Scope = scope_of(batch.adapter, reading)
        self.site: Site = self.scope.site
        self._influences = (0, torch.empty(0, 0))

    @property
    def logits(self) -> Tensor:
        """(B, C) float64, detached."""
        return self.batch.logits

    @property
    def probabilities(self) -> Tensor:
        """(B, C) float64; a sigmoid output is expanded to two classes."""
        return self.batch.probabilities

    @property
    def predicted(self) -> Tensor:
        """(B,) index of the predicted class."""
        return self.batch.predicted

    @property
    def hidden(self) -> Tensor:
        """(B, T, m) states that the site's values are made of, with their graph when a measure differentiates."""
        return self.batch.trace.hidden[self.site.key]

    # -- what is shown --------------------------------------------------------------------------------------------

    @cached_property
    def head_patterns(self) -> Tensor:
        """(B, H, T) float64 rows of the reading's heads at its query, special tokens included, detached. Of a mean over
        queries, that mean."""
        weights = self.batch.trace.attention[self.site.key].detach()[:, self.scope.head_numbers(self.site)].double()
        if self.scope.query == "mean":
            chosen = self.scope.chosen(self.site, self.inputs, weights.shape[2])[:, :1]
            return (weights * chosen).sum(2) / chosen.sum(2).clamp_min(1)
        return weights.gather(2, self._at(weights.shape))[:, :, 0]

    def _at(self, shape: torch.Size) -> Tensor:
        index = self.scope.queries(self.inputs)[:, None, None, None]
        return index.expand(shape[0], shape[1], 1, shape[3])

    @cached_property
    def token_scores(self) -> Tensor:
        """(B, T) float64 scores over all tokens that the reading gives, special ones included, before anything is left
        out: for plain attention the mean over the heads."""
        if self.named is None or self.named.kind == "attention":
            return self.head_patterns.mean(1)
        return explained(self.batch, self.scope, self.named)

    @cached_property
    def head_mass(self) -> Tensor:
        """(B, H) weight of each of the reading's heads on real tokens."""
        return (self.head_patterns * self.batch.real_tokens[:, None]).sum(-1)

    @cached_property
    def head_attention(self) -> Tensor:
        """(B, H, T) each head's distribution over real tokens; their mean's where a head has nothing on them."""
        kept, mass = self.head_patterns * self.batch.real_tokens[:, None], self.head_mass[..., None]
        return torch.where(mass > 0, kept / mass, self.token_attention[:, None])

    @cached_property
    def token_attention(self) -> Tensor:
        """(B, T) the heads' weights on real tokens, renormalised; `reading` where units are tokens."""
        kept = self.head_patterns.sum(1) * self.batch.real_tokens
        total = kept.sum(-1, keepdim=True)
        return torch.where(total > 0, kept / total, torch.full_like(kept, torch.nan))

    def rows_of(self, readings: Tensor) -> Tensor:
        """(..., H, T) or, for all heads alike, (..., 1, T) distributions over real tokens, behind the B of the batch ->
        rows (..., H, T) in which special tokens keep their weight."""
        between = (1,) * (readings.dim() - 3)
        heads = self.head_patterns.reshape(len(self.head_patterns), *between, *self.head_patterns.shape[1:])
        mass = self.head_mass.reshape(len(self.head_patterns), *between, -1, 1)
        real = self.batch.real_tokens.reshape(len(self.head_patterns), *between, 1, -1)
        return readings * mass + heads * ~real

    def shown(self, heads: Tensor) -> Tensor:
        """(B, H, T) rows of the heads -> (B, T) what would be shown of them."""
        return self._shown(heads.mean(1))

    @cached_property
    def special_mass(self) -> Tensor:
        """(B,) share of the scores on special tokens and sinks."""
        plain = self.named is None or self.named.kind == "attention"
        total = torch.ones_like(self.token_scores[:, 0]) if plain else self.token_scores.sum(1)
        kept = (self.token_scores * self.batch.real_tokens).sum(1)
        return torch.where(total > 0, (total - kept) / total, torch.nan)

    @cached_property
    def attention(self) -> Tensor:
        """(B, T) float64 distribution over the units, renormalised: what is shown as the explanation. NaN where nothing
        is on them."""
        return self._shown(self.token_scores)

    def _shown(self, weights: Tensor) -> Tensor:
        kept = self.batch.together(weights)
        total = kept.sum(-1, keepdim=True)
        return torch.where(total > 0, kept / total, torch.full_like(kept, torch.nan))

    # -- gradients ------------------------------------------------------------------------------------------------

    @cached_property
    def gradient(self) -> tuple[Tensor, Tensor]:
        """∂f/∂E (B, T, d) and ∂f/∂h (B, T, m), attention part of the graph; float64."""
        return self.batch.slopes[""], self.batch.slopes[self.site.key]

    @cached_property
    def gradient_detached(self) -> tuple[Tensor, Tensor]:
        """The same with attention held constant."""
        if not self.adapter.capabilities.decodes:
            return self.batch.slopes_detached[""], self.batch.slopes_detached[self.site.key]
        with differentiable(self.device):
            self.counts["decode"] += 1
            self.counts["backward"] += 1
            held = self.batch.trace.attention[self.site.key].detach()[:, 0, 0, :]
            logits = protocol.decode_logits(
                self.adapter, self.hidden, held[:, None, :], self.batch.trace.decoder_condition
            )[:, 0, :]
            at = (self.embeddings[TEXT], self.hidden)
            at_inputs, at_hidden = torch.autograd.grad(self.batch.target(logits), at, retain_graph=True)
        return at_inputs.double(), at_hidden.double()

    def influence(self, position: int) -> Tensor:
        """(B, T) ‖∂‖h_p‖₂/∂E_i‖₂ by unit for the state at one padded position p, all instances in one backward pass (M
        eq. 5).

        `.norm()` has gradient 0 at 0, where the root of a sum of squares has NaN."""
        if self.adapter.capabilities.influences:
            return self._influence_at_once(position)
        self.counts["backward"] += 1
        with differentiable(self.device):
            norms = self.hidden[:, position, :].norm(dim=-1)
            (gradient,) = torch.autograd.grad(norms.sum(), self.embeddings[TEXT], retain_graph=True)
        return self.norms_of(gradient)

    def _influence_at_once(self, position: int) -> Tensor:
        """As `influence`, by an adapter that has it for many positions together: they are kept until another position
        is asked for. They are as many as bound both states and influences by a multiple of the budget."""
        start, block = self._influences
        if not start <= position < start + block.shape[1]:
            interventions, width = self.real.shape
            count = max(1, min(self.budget // interventions, INFLUENCES * self.budget // (interventions * width)))
            self.counts["influence"] += 1
            adapter = cast(SharingAdapter, self.adapter)
            with torch.no_grad():
                block = adapter.influence(self.inputs, self.batch.shared, slice(position, min(width, position + count)))
            start, self._influences = position, (position, block)
        return self.batch.together(block[:, position - start].double().square()).sqrt()

    def norms_of(self, gradient: Tensor) -> Tensor:
        """(B, T, d) gradients of tokens -> (B, T) their Euclidean norms by unit, over all of its tokens."""
        return self.batch.together(gradient.double().square().sum(-1)).sqrt()

    # -- other attentions: rows that the reading shows, states fixed ----------------------------------------------

    @cached_property
    def free(self) -> Tensor:
        """(B, 1, T) real tokens that the reading's query may attend to."""
        allowed = self.batch.trace.allowed[self.site.key][:, :1].expand(-1, -1, self._queries, -1)
        return allowed.gather(2, self._at(allowed.shape))[:, :, 0] & self.batch.real_tokens[:, None]

    @property
    def _queries(self) -> int:
        return self.batch.trace.attention[self.site.key].shape[2]

    def permuted(self, order: Tensor) -> Tensor:
        """order (B, V, T): positions, those that are not real tokens in place -> (B, V, C) logits with every head's
        weights in that order."""
        if self.scope.single and bool((self.free == self.batch.real_tokens[:, None]).all()):
            shape = (*order.shape[:2], self.head_patterns.shape[1], order.shape[2])
            return self.decode(self.head_patterns[:, None].expand(shape).gather(-1, order[:, :, None].expand(shape)))
        return self._with(order, lambda weights, free, o: interventions.permuted(weights, o[:, None, None, :], free))

    def put(self, shares: Tensor) -> Tensor:
        """shares (B, V, T): distributions over the units -> (B, V, C) logits with every head's weights on real tokens
        so shared; those of one unit evenly, special tokens keep theirs."""
        return self.put_on_tokens(self._spread(shares))

    def alone(self, shares: Tensor) -> Tensor:
        """As `put`, with nothing left on special tokens: all of every head's weight is so shared."""
        if not self.scope.single:
            return self.put(shares)
        return self.decode(self._spread(shares)[:, :, None].expand(-1, -1, self.head_patterns.shape[1], -1))

    def put_on_tokens(self, shares: Tensor) -> Tensor:
        """As `put`, of shares (B, V, T) that need not sum to one, over real tokens."""
        return self._with(shares, lambda weights, free, s: interventions.put(weights, s[:, None, None, :], free))

    def without(self, gone: Tensor) -> tuple[Tensor, Tensor]:
        """gone (B, V, T): units to take the weight from -> (B, V, C) logits with the other weights of every head scaled
        up, and (B, V) whether any weight is left at all. A head with none left gives nothing."""
        spread = gone.gather(2, self.batch.members[:, None].expand_as(gone)) & self.batch.real_tokens[:, None]
        logits = self._with(spread, lambda weights, _free, g: interventions.without(weights, g[:, None, None, :]))
        return logits, self.weight_left(gone)

    def weight_left(self, gone: Tensor) -> Tensor:
        """gone (B, V, T): units -> (B, V) whether any weight is on the other tokens."""
        spread = gone.gather(2, self.batch.members[:, None].expand_as(gone)) & self.batch.real_tokens[:, None]
        return self.head_patterns.sum(1)[:, None, :].masked_fill(spread, 0.0).sum(-1) > 0

    def _spread(self, shares: Tensor) -> Tensor:
        members = self.batch.members[:, None].expand_as(shares)
        size = self.batch.together(torch.ones_like(self.token_scores))[:, None].expand_as(shares)
        return (shares / size.clamp_min(1)).gather(2, members) * self.batch.real_tokens[:, None]

    def _with(self, values: Tensor, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """values (B, V, T), change (rows (N, H, 1, T), free, values (N, T)) -> (B, V, C) logits."""
        count, variants, width = values.shape
        if self.scope.single:
            flat = values.reshape(count * variants, width)
            own = self.head_patterns.repeat_interleave(variants, dim=0)[:, :, None, :]
            free = self.free.repeat_interleave(variants, dim=0)[:, :, None, :]
            changed = change(own, free, flat)[:, :, 0, :].reshape(count, variants, -1, width)
            return self.decode(changed)

        def intervention(part: slice) -> Intervention:
            flat = values[:, part].reshape(-1, width)
            return self._intervention(lambda weights, free, _p: change(weights, free, flat), self.scope, part)

        return self.batch.run_variants(variants, intervention)

    def decode(self, weights: Tensor) -> Tensor:
        """(B, V, H, T) rows of the reading's heads -> (B, V, C) logits in float64, states fixed, by the fastest form
        that the adapter has."""
        if self.token_logits is not None:
            token_logits, bias = self.token_logits
            return weights[:, :, 0] @ token_logits + bias[:, None]
        return self.decode_by_model(weights)

    def decode_by_model(self, weights: Tensor) -> Tensor:
        """(B, V, H, T) rows -> (B, V, C) logits in float64, by the model's own layers."""
        with torch.no_grad():
            return torch.cat([self._decode(part) for part in self._parts(weights)], dim=1)

    @cached_property
    def at_once(self) -> int:
        """How many variants of every row fit into one pass: at most the budget's tokens, with 1024 weights for each."""
        interventions, width = self.real.shape
        tokens, held = width, 1
        if self.scope.single and not self.adapter.capabilities.decodes and self.adapter.capabilities.replays:
            adapter = cast(TransformerAdapter, self.adapter)
            tokens = adapter.replay_cost(self.inputs, self.site, self.scope.queries(self.inputs))
            held = self.site.heads
        return max(
            1, min(self.budget // (interventions * tokens), 1024 * self.budget // (interventions * width * held))
        )

    def _parts(self, weights: Tensor) -> Iterator[Tensor]:
        if self.adapter.capabilities.decodes:
            yield weights
            return
        for start in range(0, weights.shape[1], self.at_once):
            yield weights[:, start : start + self.at_once]

    def decode_differentiably(self, weights: Tensor) -> Tensor:
        """(B, V, H, T) rows that require a gradient -> (B, V, C) logits in float64, states fixed."""
        if self.token_logits is not None:
            return self.decode(weights)
        with differentiable(self.device):
            return self._decode(weights)

    def _decode(self, weights: Tensor) -> Tensor:
        narrow = weights.to(self.hidden.dtype)
        capabilities = self.adapter.capabilities
        if capabilities.decodes:
            self.counts["decode"] += 1
            return protocol.decode_logits(
                self.adapter, self.hidden.detach(), narrow[:, :, 0], self.batch.decoder_condition
            ).double()
        if capabilities.replays:
            self.counts["replay"] += 1
            adapter, queries = cast(TransformerAdapter, self.adapter), self.scope.queries(self.inputs)
            return adapter.replay(self.inputs, self.batch.trace, self.site, queries, self._all_heads(narrow)).double()
        embeddings = {name: value.detach() for name, value in self.embeddings.items()}

        def run(one: Tensor) -> Tensor:
            self.counts["forward"] += 1
            self.counts["forward_rows"] += len(self.instances)

            def put_in(site: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
                if site.key != self.site.key:
                    return None
                return live.scatter(2, self._at(live.shape), one[:, :, None, :].to(live.dtype))

            return self.adapter.run(self.inputs, embeddings=embeddings, intervene=put_in).logits.double()

        every = self._all_heads(narrow)
        return torch.stack([run(every[:, v]) for v in range(every.shape[1])], dim=1)

    def _all_heads(self, weights: Tensor) -> Tensor:
        """Rows of the reading's heads (B, V, H', T) -> of all heads (B, V, H, T), the others as they are."""
        if self.scope.heads is None:
            return weights
        own = self.batch.trace.attention[self.site.key].detach()
        own = own.gather(2, self._at(own.shape))[:, :, 0].to(weights.dtype)
        index = torch.tensor(self.scope.head_numbers(self.site), device=weights.device)
        return own[:, None].expand(-1, weights.shape[1], -1, -1).index_copy(2, index, weights)

    @cached_property
    def edges(self) -> Candidates:
        """Distributions on the vertices and edges of the simplex, put in all heads, with their JSD and TVD: the same
        for every ε. Two classes only."""

        def decode(shares: Tensor) -> Tensor:
            return probabilities(self.decode_by_model(self.rows_of(shares[:, :, None])))

        return vertices_and_edges(self.token_attention, self.probabilities, decode, self.free[:, 0])

    @cached_property
    def token_logits(self) -> tuple[Tensor, Tensor] | None:
        """For a linear decoder: (B, T, C) logits of each state alone without bias, and the bias (B, C), in float64.

        Raises AdapterError when Σ α·w + b is not the model's own logit: the decoder is not what it was said to be."""
        if not self.adapter.capabilities.linear_decoder:
            return None
        hidden = self.hidden.detach()
        weight, bias = (t.double() for t in protocol.linear_decoder(self.adapter, hidden, self.batch.decoder_condition))
        token_logits = hidden.double() @ weight.T
        again = (self.token_scores[:, None, :] @ token_logits)[:, 0, :] + bias
        gap = (probabilities(again) - self.probabilities).abs().max().item()
        if not gap <= TOLERANCE:
            raise AdapterError(
                f"decoder_weights: weights·states through (W, b) differ from the model's own output by {gap:.2g} in "
                f"probability, expected at most {TOLERANCE:g}. Declare linear_decoder=False, or return the "
                "decoder's own weight and bias."
            )
        return token_logits, bias

    # -- other attentions: a whole layer or every layer -----------------------------------------------------------

    def changed(self, where: Where, variants: int, change: RowChange) -> Tensor:
        """(B, V, C) logits with every real row of the layer, or of all layers of the stack, changed."""
        place, _, replacement = where.partition(".")
        scope = self.scope.widened(place, self.adapter.sites())
        frozen = replacement == "frozen"
        return self.batch.run_variants(variants, lambda part: self._intervention(change, scope, part, frozen=frozen))

    def _intervention(self, change: RowChange, scope: Scope, part: slice, *, frozen: bool = False) -> Intervention:
        keys = {site.key for site in scope.sites}
        count = part.stop - part.start
        real = self.batch.real_tokens.repeat_interleave(count, dim=0)[:, None, None, :]

        def intervene(site: Site, live: Tensor, allowed: Tensor) -> Tensor | None:
            if site.key not in keys:
                return None
            weights = live
            if frozen:
                weights = self.batch.trace.attention[site.key].detach().repeat_interleave(count, dim=0)
            free = allowed.expand(-1, -1, live.shape[2], -1) & real
            changed = change(weights.double(), free, part).to(live.dtype)
            return torch.where(scope.chosen(site, self.inputs, live.shape[2], count), changed, weights)

        return intervene
