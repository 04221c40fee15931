"""The attention, hidden states, gradients and input influence that one reading selects from one batch.

The clean pass is the forward pass in which neither the input nor the attention is changed (see `CleanPass`). The heads
in scope are the heads that the reading selects (see `Scope`).

Shapes: B instances, T tokens (padded), H heads, Q queries, K keys, C classes, d and m features.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from attnaudit.adapters import protocol
from attnaudit.adapters.optional_methods import SharingAdapter
from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.adapters.site_selection import at_query, run_for
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.batches.batched_influences import batched_influences, squared_norms
from attnaudit.engine.batches.clean_pass import NEEDS_GRADIENTS, differentiable
from attnaudit.engine.batches.explanations import explanation_scores, mean_over_queries
from attnaudit.engine.batches.failures import refuse_not_finite
from attnaudit.engine.batches.logits import equal_within_rounding, log_odds, probabilities, sizes_of_logits
from attnaudit.engine.batches.scopes import Scope, scope_of
from attnaudit.engine.batches.shared_work import SharesWork, shared_result
from attnaudit.errors import CheckError
from attnaudit.readings import PREDICTED, Reading, named

#: Largest number of influences (of a token on a hidden state) that are in memory at once, as a multiple of the token
#: budget.
INFLUENCES_PER_BUDGET_TOKEN = 64


class AttentionReading(SharesWork):
    """One batch under one reading of the model's attention.

    The attributes `adapter`, `instances`, `positions`, `seed`, `budget`, `pass_counts`, `inputs`, `device`, `real`,
    `lengths` and `embeddings` are those of the batch. The dictionary `memo` stores results that several measures share,
    such as the logits under permutations.

    Args:
        batch: The batch.
        reading: A single reading, as `scopes.expanded` returns it; None for a model with a single row of attention
            weights.
    """

    def __init__(self, batch: Batch, reading: Reading | None = None) -> None:
        self.batch, self.spent = batch, batch.spent
        self.adapter = batch.adapter
        self.instances, self.positions = batch.instances, batch.positions
        self.seed, self.budget, self.pass_counts = batch.seed, batch.budget, batch.pass_counts
        self.inputs = batch.inputs
        self.device = batch.device
        self.real, self.lengths = batch.real, batch.lengths
        self.embeddings = batch.embeddings
        self.reading = reading
        self.scope: Scope = scope_of(batch.adapter, reading)
        if reading is not None and reading.heads == PREDICTED:
            self.scope = replace(self.scope, head_of_row=batch.predicted)
        self.site: Site = self.scope.site
        self.memo: dict[str, Any] = {}
        self._influences = (0, torch.empty(0, 0))

    def shared_name(self, name: str) -> str:
        """Return the name under which the work for a result is counted. It contains the reading."""
        return named(name, self.reading.text if self.reading is not None else "")

    @property
    def logits(self) -> Tensor:
        """(B, C) logits of the clean pass, float64, detached."""
        return self.batch.logits

    @property
    def probabilities(self) -> Tensor:
        """(B, C) class probabilities of the clean pass, float64. A single sigmoid output gives two classes."""
        return self.batch.probabilities

    @property
    def open_classes(self) -> Tensor | None:
        """(B, C) True for the classes that are possible answers for the row. None if all classes are."""
        return self.batch.open_classes

    def equal_to_clean(self, variants: Tensor, to: Tensor | None = None) -> Tensor:
        """Return a (B, V) mask, True where variants differ from the clean pass by at most the rounding error.

        Args:
            variants: (B, V, C) logits of V variants per instance.
            to: (B, 1 or V, C) logits to compare them with; None for those of the clean pass.
        """
        clean = self.logits[:, None, :]
        compared = clean if to is None else to
        largest = sizes_of_logits(variants, compared).amax(1, keepdim=True)
        sizes = sizes_of_logits(clean, largest).expand_as(variants)
        open_classes = None if self.open_classes is None else self.open_classes[:, None].expand_as(variants)
        return equal_within_rounding(variants, compared, sizes, self.precision, open_classes)

    def equal_outputs(self, rows: Tensor, first: Tensor, second: Tensor, sizes: Tensor) -> Tensor:
        """Return a (V,) mask, True where two outputs of a row differ by at most the rounding error of its logits.

        Args:
            rows: (V,) the row of the batch that each pair of outputs belongs to.
            first: (V or 1, C) logits.
            second: (V, C) logits.
            sizes: (V, C) sizes of the logits (see `sizes_of_logits`).
        """
        open_classes = None if self.open_classes is None else self.open_classes[rows]
        return equal_within_rounding(first, second, sizes, self.precision, open_classes)

    @property
    def predicted(self) -> Tensor:
        """(B,) index of the predicted class."""
        return self.batch.predicted

    @property
    def precision(self) -> str:
        """The floating-point type in which the model computes (see `Capabilities.precision`)."""
        return self.adapter.capabilities.precision

    @property
    def hidden(self) -> Tensor:
        """(B, T, m) hidden states that the attention site reads, with their autograd graph if the batch keeps it."""
        return self.batch.trace.hidden[self.site.key].to(self.device)

    # -- what is shown --------------------------------------------------------------------------------------------

    @property
    def plain_attention(self) -> bool:
        """Whether the reading shows attention weights as they are, not scores computed from them."""
        return self.reading is None or self.reading.kind == "attention"

    @cached_property
    def head_patterns(self) -> Tensor:
        """(B, H, T) attention row of each head in scope, float64, detached. It includes special tokens.

        This is the row of the query that the reading selects, or the mean of its rows if the reading averages over
        several queries.
        """
        if self.scope.several_queries:
            return mean_over_queries(self.batch, self.scope, lambda weights: self.scope.select_heads(weights).double())
        weights = self.scope.select_heads(self.batch.trace.attention[self.site.key].detach())
        return self.at_query(weights).double()

    def at_query(self, values: Tensor) -> Tensor:
        """Return the values (B, H, K) of the reading's query, given the values (B, H, Q, K) of all queries."""
        return at_query(self.batch.trace, values, self.site.key, self.scope.query_positions(self.inputs))

    @cached_property
    def token_scores(self) -> Tensor:
        """(B, T) scores of the reading for all tokens, float64. They include special tokens and are not renormalised.

        For plain attention, the scores are the mean of `head_patterns` over the heads.
        """
        if self.reading is None or self.plain_attention:
            return self.head_patterns.mean(1)
        return explanation_scores(self.batch, self.scope, self.reading)

    @cached_property
    def head_real_mass(self) -> Tensor:
        """(B, H) total weight of each head on real tokens."""
        return (self.head_patterns * self.batch.real_tokens[:, None]).sum(-1)

    @cached_property
    def head_attention(self) -> Tensor:
        """(B, H, T) distribution of each head over real tokens.

        A head without weight on real tokens gets `token_attention` instead.
        """
        on_real, mass = self.head_patterns * self.batch.real_tokens[:, None], self.head_real_mass[..., None]
        return torch.where(mass > 0, on_real / mass, self.token_attention[:, None])

    @cached_property
    def token_attention(self) -> Tensor:
        """(B, T) weights on real tokens, summed over the heads and renormalised.

        They are NaN for instances without weight on real tokens. If the units are tokens and the reading is plain
        attention, they are equal to `attention`.
        """
        return _normalised(self.head_patterns.sum(1) * self.batch.real_tokens)

    @cached_property
    def special_mass(self) -> Tensor:
        """(B,) the share of the scores outside the real tokens; NaN if all scores are 0.

        For plain attention, it includes weight that a head gives to no token (an attention sink).
        """
        total = torch.ones_like(self.token_scores[:, 0]) if self.plain_attention else self.token_scores.sum(1)
        on_real = (self.token_scores * self.batch.real_tokens).sum(1)
        return torch.where(total > 0, (total - on_real) / total, torch.nan)

    @cached_property
    def attention(self) -> Tensor:
        """(B, T) the explanation: a distribution over the units, float64.

        The scores of the real tokens are summed by unit and renormalised. An instance whose scores are all 0 gets NaN.
        """
        return _normalised(self.batch.sum_by_unit(self.token_scores))

    def to_attention(self, head_patterns: Tensor) -> Tensor:
        """Convert attention rows (B, H, T) to the explanation that they give: a (B, T) distribution over the units."""
        return _normalised(self.batch.sum_by_unit(head_patterns.mean(1)))

    def to_head_patterns(self, distributions: Tensor) -> Tensor:
        """Return attention rows in which each head's weight on real tokens is redistributed as the distributions say.

        Args:
            distributions: (B, ..., H, T) distributions over real tokens, or (B, ..., 1, T) to use the same one for all
                heads.

        Returns:
            (B, ..., H, T) attention rows of the heads in scope. Special tokens keep their weights.
        """
        count = len(self.head_patterns)
        between = (1,) * (distributions.dim() - 3)
        heads = self.head_patterns.reshape(count, *between, *self.head_patterns.shape[1:])
        mass = self.head_real_mass.reshape(count, *between, -1, 1)
        real = self.batch.real_tokens.reshape(count, *between, 1, -1)
        return distributions * mass + heads * ~real

    # -- gradients ------------------------------------------------------------------------------------------------

    @property
    def gradient(self) -> tuple[Tensor, Tensor]:
        """Gradients of f, the probability of the predicted class.

        They are ∂f/∂E, (B, T, d), with respect to the embeddings, and ∂f/∂h, (B, T, m), with respect to the hidden
        states. Gradients also flow through the attention weights. Convert them to float64 before you compute with them,
        because they may be in the precision of the model.

        Raises:
            CheckError: The measure that is being computed does not declare gradients=True.
        """
        self._require_gradients("the prediction (view.gradient)")
        return self._gradient

    @cached_property
    def _gradient(self) -> tuple[Tensor, Tensor]:
        return self.batch.gradients[""], self.batch.gradients[self.site.key]

    @property
    def gradient_attention_detached(self) -> tuple[Tensor, Tensor]:
        """The same gradients as `gradient`, but with the attention weights treated as constants."""
        self._require_gradients("the prediction (view.gradient_attention_detached)")
        return self._gradient_attention_detached

    @shared_result
    def _gradient_attention_detached(self) -> tuple[Tensor, Tensor]:
        if not self.adapter.capabilities.decodes:
            gradients = self.batch.gradients_attention_detached
            return gradients[""], gradients[self.site.key]
        with differentiable(self.device):
            self.batch.count("decode", "reweighted_rows", len(self.instances))
            self.batch.count("backward", "backward_rows", len(self.instances))
            weights = self.batch.trace.attention[self.site.key].detach()[:, None, :, 0, :]
            condition = self.batch.trace.decoder_condition
            logits = protocol.decode_logits(self.adapter, self.hidden, weights, condition)[:, 0, :]
            leaves = (self.embeddings[TEXT], self.hidden)
            at_inputs, at_hidden = torch.autograd.grad(self.batch.target(logits), leaves, retain_graph=True)
        return self.batch.of_probability(at_inputs), self.batch.of_probability(at_hidden)

    def _require_gradients(self, what: str) -> None:
        if self.batch.without_gradients:
            raise CheckError(NEEDS_GRADIENTS.format(measure=self.batch.without_gradients, what=what))

    def logits_at_embeddings(self, embeddings: Tensor) -> Tensor:
        """Return the logits for other embeddings of the text, from one forward pass.

        The attention weights are computed from these embeddings. The same tokens as in the clean pass are padding, and
        the embeddings of other streams, such as a query, are those of the clean pass.

        Args:
            embeddings: (B, T, d) embeddings, in the form of `embeddings["text"]`.

        Returns:
            (B, C) logits, float64. They are differentiable with respect to `embeddings` if these require gradients and
            the measure that is being computed declares gradients=True.

        Raises:
            CheckError: The embeddings have another shape.
            AdapterError: The logits are not finite. The message names the row.
        """
        clean = {stream: embedded.detach() for stream, embedded in self.embeddings.items()}
        expected, given = tuple(clean[TEXT].shape), tuple(embeddings.shape)
        if given != expected:
            raise CheckError(
                f"view.logits_at_embeddings: the embeddings have shape {given}; expected {expected}, the shape of "
                'view.embeddings["text"].'
            )
        # `self.embeddings` require gradients if another measure declares them, which must not change this result.
        needs_graph = embeddings.requires_grad and not self.batch.without_gradients
        self.batch.count_forward(len(self.instances))
        with differentiable(self.device) if needs_graph else torch.no_grad():
            changed = {**clean, TEXT: embeddings.to(clean[TEXT])}
            logits = run_for(self.adapter, self.inputs, (), embeddings=changed).logits.double()
        refuse_not_finite(logits, self.instances, "at other embeddings", given=embeddings)
        if logits.requires_grad:
            logits.register_hook(  # type: ignore[no-untyped-call]
                lambda _: self.batch.count("backward", "backward_rows", len(self.instances))
            )
        return logits

    def to_probabilities(self, logits: Tensor) -> Tensor:
        """Convert logits to class probabilities, as in `probabilities`.

        Args:
            logits: (..., C) logits, such as the result of `logits_at_embeddings` or `logits_permuted`.

        Returns:
            (..., max(C, 2)) probabilities, float64. A single sigmoid output gives two classes.
        """
        return probabilities(logits)

    def predicted_log_odds(self, logits: Tensor) -> Tensor:
        """Return the log-odds log(p / (1 - p)) of the class that the clean pass predicts.

        Args:
            logits: (B, C) logits. A single sigmoid logit is the log-odds of class 1.

        Returns:
            (B,) log-odds, float64, differentiable with respect to the logits.
        """
        return log_odds(logits, self.predicted)

    def sum_by_unit(self, values: Tensor) -> Tensor:
        """Sum numbers of tokens over the tokens of each unit, such as a word.

        Args:
            values: (B, T) one number per token. Those of special tokens and padding are ignored.

        Returns:
            (B, T) sums at the first token of each unit, where `real` is True; 0 elsewhere.
        """
        return self.batch.sum_by_unit(values)

    def unit_norms(self, gradient: Tensor) -> Tensor:
        """Compute the Euclidean norm (B, T) of each unit's gradient from the gradients (B, T, d) of the tokens.

        The gradient of a word is the concatenation of its tokens' gradients.
        """
        return self.batch.sum_by_unit(squared_norms(gradient)).sqrt()

    @property
    def influenced_states(self) -> Tensor:
        """(B, T, m) states whose influences are measured.

        If the adapter gives the states before a final normalisation layer, these are measured instead of the final
        states.
        """
        return self._influenced_states(self.batch)

    def _influenced_states(self, batch: Batch) -> Tensor:
        """Return the states (B, T, m) of a batch whose influences are measured."""
        trace, key = batch.trace, self.site.key
        return trace.before_norm.get(key, trace.hidden[key]).to(self.device)

    def influence(self, position: int) -> Tensor:
        """Return the influence of every input unit on the hidden state at one position (Meister et al. 2021, eq. 5).

        Unless the adapter computes influences itself or `batches_gradients`, this takes one backward pass for all
        instances together.

        Args:
            position: Position p of the hidden state in the padded batch.

        Returns:
            (B, T) norms ‖∂‖h_p‖₂/∂E_i‖₂, where h_p is the hidden state and E_i the embeddings of unit i. If the trace
            has the states before a final normalisation layer (`Trace.before_norm`), h_p is such a state.
        """
        self._require_gradients("the hidden states (view.influence)")
        if self.adapter.capabilities.influences or self._batches_gradients:
            return self._influence_from_block(position)
        self.batch.count("backward", "backward_rows", len(self.instances))
        with differentiable(self.device):
            # norm() has gradient 0 at 0, where the square root of a sum of squares would give NaN.
            states = self.influenced_states[:, position, :]
            norms = states.to(torch.promote_types(states.dtype, torch.float32)).norm(dim=-1)
            (gradient,) = torch.autograd.grad(norms.sum(), self.embeddings[TEXT], retain_graph=True)
        return self.unit_norms(gradient)

    @property
    def _batches_gradients(self) -> bool:
        """Whether one backward pass computes the influences on several positions. It was measured only on CPUs."""
        return self.adapter.capabilities.batches_gradients and self.device.type == "cpu"

    def _influence_from_block(self, position: int) -> Tensor:
        """Return the same as `influence`, for an adapter with which many positions are computed together.

        The influences on one block of positions are cached. The token budget limits the size of the block.
        """
        start, block = self._influences
        self.use("influences")
        if not start <= position < start + block.shape[1]:
            with self.sharing("influences"):
                block = self._block_of_influences(position)
            start, self._influences = position, (position, block)
        return self.batch.sum_by_unit(block[:, position - start].double().square()).sqrt()

    def _block_of_influences(self, first: int) -> Tensor:
        """Return the influences (B, P, T) on the states of P positions from `first`."""
        rows, width = self.real.shape
        count = max(1, min(self.budget // rows, INFLUENCES_PER_BUDGET_TOKEN * self.budget // (rows * width)))
        positions = slice(first, min(width, first + count))
        if not self.adapter.capabilities.influences:
            return batched_influences(self.batch, self._influenced_states, positions)
        self.batch.count("influence", "backward_rows", rows * (positions.stop - positions.start))
        adapter = cast(SharingAdapter, self.adapter)
        with torch.no_grad():
            return adapter.influence(self.inputs, self.batch.shared_states, positions)


def _normalised(weights: Tensor) -> Tensor:
    """Divide each row by its sum. A row whose sum is 0 becomes NaN."""
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, torch.full_like(weights, torch.nan))
