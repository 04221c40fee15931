"""The clean forward pass of a batch: its tokens, units, outputs and gradients. Each is computed at most once.

A pass is clean if neither its input nor its attention is changed. A unit is a token or a word (see `Unit`). A site is
one place in the model where attention weights are computed (see `Site`). A stream is one sequence of tokens, such as
the text or the query.

Shapes: B instances, T tokens (padded), H heads, Q queries, K keys, C classes, d and m features.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.adapters.joined_rows import gradients
from attnaudit.adapters.protocol import OPEN_CLASSES, TEXT, Inputs, ModelAdapter, Site, Trace
from attnaudit.adapters.query_blocks import BlockAdapter, block_starts, queries_per_block, too_large_to_hold
from attnaudit.adapters.site_selection import run_for
from attnaudit.adapters.sums_by_index import added_at
from attnaudit.arrays import Integers
from attnaudit.engine.batches.logits import log_odds, probabilities
from attnaudit.engine.batches.scopes import Scope, selected_queries, sites_in_blocks
from attnaudit.engine.batches.shared_work import SharesWork, shared_result
from attnaudit.instances import Instance
from attnaudit.precision import HALF
from attnaudit.progress import ProgressCallback
from attnaudit.records import RowKind

#: The unit that attention and all statistics refer to. With "words", the tokens of a word are one unit. With "sources",
#: the tokens of a passage are one unit, and units are erased by deletion only.
Unit = Literal["tokens", "words", "sources"]
#: Progress within a batch is reported only if the batch takes longer than this.
PROGRESS_AFTER_SECONDS = 5.0
#: The smallest derivative of a probability with respect to its log-odds. Importance is normalised over the tokens, so a
#: larger derivative changes nothing, but a gradient that rounds to 0 would be undefined.
LEAST_SLOPE = 1e-20
#: The error of a measure that differentiates without declaring it.
NEEDS_GRADIENTS = "measure '{measure}' computes gradients of {what}; add gradients=True to @measure."


@contextmanager
def differentiable(device: torch.device) -> Iterator[None]:
    """Enable gradients inside the context. On a GPU, also disable cuDNN.

    cuDNN cannot compute the backward pass of an RNN in evaluation mode.
    """
    if device.type == "cuda":
        with torch.backends.cudnn.flags(enabled=False, allow_tf32=False), torch.enable_grad():
            yield
    else:
        with torch.enable_grad():
            yield


class CleanPass(SharesWork):
    """One batch, its clean pass, and the values computed from this pass.

    Args:
        adapter: The model.
        instances: The B instances of the batch.
        positions: Index of each instance in the whole data set.
        seed: Seed of the audit.
        keep_graph: Whether to keep the autograd graph of the clean pass. Measures that differentiate through the pass
            need it.
        budget: Largest number of tokens (rows × length) in one forward pass of variants.
        pass_counts: Name of a call -> how often it was made, and kind of rows (see `RowKind`) -> number of rows. The
            batch adds its passes to this dictionary, which all batches of an audit share.
        unit: "tokens", "words" or "sources". The values of a word or a passage are stored at the position of its first
            token.
        progress: Called during batches that take long. Measures that do other long work, such as training a copy of
            the model, call it as well. None to report no progress.
        scopes: The scopes whose attention the clean pass needs; None for all sites and queries.
        inputs: The result of `collate` for the instances; None to call it.

    Attributes:
        without_gradients: The name of the measure that is being computed, if it may not use gradients; otherwise "".
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        instances: Sequence[Instance],
        positions: Sequence[int],
        *,
        seed: int,
        keep_graph: bool,
        budget: int,
        pass_counts: Counter[str],
        unit: Unit = "tokens",
        progress: ProgressCallback | None = None,
        scopes: Sequence[Scope] | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        self.adapter = adapter
        self.instances = instances
        self.positions = positions
        self.seed = seed
        self.keep_graph = keep_graph
        self.budget = budget
        self.pass_counts = pass_counts
        self.unit: Unit = unit
        self.progress = progress
        self.scopes = scopes
        self.started = time.monotonic()
        self.without_gradients = ""
        self.inputs: Inputs = adapter.collate(instances) if inputs is None else inputs

    def report_progress(self, done: int, total: int, note: str) -> None:
        """Report the progress of work within the batch, if the batch has taken longer than `PROGRESS_AFTER_SECONDS`.

        Args:
            done: Number of finished steps.
            total: Number of all steps.
            note: Name of the steps, such as "texts with tokens erased".
        """
        if self.progress is not None and time.monotonic() - self.started > PROGRESS_AFTER_SECONDS:
            self.progress(done, total, note)

    # -- tokens and units -----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device that the inputs are on."""
        return self.inputs.ids[TEXT].device

    @cached_property
    def real_tokens(self) -> Tensor:
        """(B, T) True on tokens that are neither padding nor special."""
        return self.inputs.real()

    @cached_property
    def real(self) -> Tensor:
        """(B, T) True at the first token of each unit. If the units are tokens, True at every real token."""
        numbers = self.inputs.passages if self.unit == "sources" else self.inputs.words
        if self.unit == "tokens" or TEXT not in numbers:
            return self.real_tokens
        words = numbers[TEXT]
        before = torch.cat([torch.full_like(words[:, :1], -2), words[:, :-1]], dim=1)
        return self.real_tokens & (words != before)

    @cached_property
    def unit_positions(self) -> Tensor:
        """(B, T) for each real token, the position of the first token of its unit.

        For special tokens and padding, it is their own position.
        """
        position = torch.arange(self.real.shape[1], device=self.device).expand_as(self.real)
        first = torch.where(self.real, position, -1).cummax(1).values
        return torch.where(self.real_tokens, first, position)

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) number of units."""
        return self.real.sum(1)

    def sum_by_unit(self, values: Tensor) -> Tensor:
        """Sum the values of the tokens (B, T) of each unit.

        Returns:
            (B, T) sums at the first token of each unit; 0 elsewhere.
        """
        if self.real is self.real_tokens:
            return values * self.real
        sums, index, entries = torch.zeros_like(values), self.unit_positions, values * self.real_tokens
        if not values.is_cuda:
            return sums.scatter_add(1, index, entries) * self.real
        first = torch.arange(len(sums), device=sums.device)[:, None] * sums.shape[1]
        return added_at(sums.flatten(), (index + first).flatten(), entries.flatten()).view_as(sums) * self.real

    def tokens_of_units(self, units: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return a mask of all tokens of some units.

        Args:
            units: (V, T) True at the first tokens of these units.
            rows: (V,) index of the batch row that each variant is made from. If None, variant v is made from row v.

        Returns:
            (V, T) True at every token of these units.
        """
        if rows is None:
            return units.gather(1, self.unit_positions) & self.real_tokens
        return units.gather(1, self.unit_positions[rows]) & self.real_tokens[rows]

    # -- the clean pass -------------------------------------------------------------------------------------------

    @cached_property
    def embeddings(self) -> dict[str, Tensor]:
        """Stream -> (B, T, d) embeddings. They are the leaves of the autograd graph if `keep_graph` is set."""
        with torch.no_grad():
            embedded = self.adapter.embed(self.inputs)
        return {name: value.detach().requires_grad_(self.keep_graph) for name, value in embedded.items()}

    def count(self, call: str, kind: RowKind, rows: int) -> None:
        """Add one call with this number of rows to `pass_counts`."""
        self.pass_counts[call] += 1
        self.pass_counts[kind] += rows

    def count_forward(self, rows: int) -> None:
        """Add one forward pass with this number of rows to `pass_counts`."""
        self.count("forward", "forward_rows", rows)

    def _fast_passes(self) -> AbstractContextManager[None]:
        """Return the context in which the clean pass runs."""
        return nullcontext()

    @cached_property
    def trace(self) -> Trace:
        """The clean pass, with its autograd graph if `keep_graph` is set. It has the attention of `scopes`."""
        self.count_forward(len(self.instances))
        sites, queries, blocks = None, None, frozenset[str]()
        if self.scopes is not None:
            sites = {site.key for scope in self.scopes for site in scope.sites}
            blocks = sites_in_blocks(self.scopes, self.adapter, self.inputs)
            queries = selected_queries(self.scopes, self.inputs, blocks)
        with self._fast_passes(), differentiable(self.device) if self.keep_graph else torch.no_grad():
            return run_for(
                self.adapter,
                self.inputs,
                sites,
                queries=queries,
                embeddings=self.embeddings,
                hidden=True,
                blocks=blocks,
            )

    @shared_result
    def _trace_of_all_sites(self) -> Trace:
        self.count_forward(len(self.instances))
        keys = [site.key for site in self.adapter.sites()]
        blocks = too_large_to_hold(self.adapter, self.inputs, len(self.instances), keys)
        with torch.no_grad():
            return run_for(self.adapter, self.inputs, None, embeddings=self.embeddings, blocks=blocks)

    @property
    def recorded_sites(self) -> list[Site]:
        """The sites whose attention the clean pass has, in the order of the adapter."""
        return [
            site for site in self.adapter.sites() if site.key in self.trace.attention or site.key in self.trace.blocks
        ]

    def recorded_blocks(self, site: Site) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the weights of one of the `recorded_sites` as `clean_blocks` does.

        If the clean pass has only some queries of the site, and does not compute them in blocks, there is a single
        block of these queries.
        """
        if site.key in self.trace.blocks:
            yield from self.clean_blocks(site)
        else:
            yield 0, self.trace.attention[site.key].detach(), self.trace.allowed[site.key]

    def clean_weights(self, site: Site, first: int = 0, stop: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the weights (B, H, R, K) of the clean pass at a site, detached, and the mask of the allowed keys.

        If the clean pass lacks the site or some of its queries, the model runs again, once for all sites.

        Args:
            site: The site.
            first: Position of the first query.
            stop: Position after the last query; None for all queries from `first`.
        """
        trace = self.trace
        if site.key not in trace.blocks and (site.key not in trace.attention or site.key in trace.queries):
            trace = self._trace_of_all_sites
        if site.key in trace.blocks:
            last = self.inputs.mask[str(site.query)].shape[1] if stop is None else stop
            return cast(BlockAdapter, self.adapter).attention_rows(trace, site, first, last)
        allowed = trace.allowed[site.key]
        if allowed.shape[2] > 1:  # an adapter may return one row for all queries
            allowed = allowed[:, :, first:stop]
        return trace.attention[site.key].detach()[:, :, first:stop], allowed

    def clean_blocks(self, site: Site) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the weights of the clean pass at a site in blocks of queries.

        If the weights fit into memory, there is a single block.

        Yields:
            The position of the first of R queries; their weights (B, H, R, K), detached; and the mask of the allowed
            keys (B, 1 or H, 1 or R, K).
        """
        if site.key not in too_large_to_hold(self.adapter, self.inputs, len(self.instances), (site.key,)):
            yield 0, *self.clean_weights(site)
            return
        queries, keys = (self.inputs.mask[stream].shape[1] for stream in (str(site.query), site.keys))
        size = queries_per_block(len(self.instances), site.heads, keys)
        for first in block_starts(queries, size):
            yield first, *self.clean_weights(site, first, first + size)

    @property
    def decoder_condition(self) -> Tensor | None:
        """(B, q) second input of a pooled model's decoder, detached. None if the decoder reads only the context."""
        return None if self.trace.decoder_condition is None else self.trace.decoder_condition.detach()

    @cached_property
    def logits(self) -> Tensor:
        """(B, C) logits, float64, detached."""
        return self.trace.logits.detach().double()

    @cached_property
    def probabilities(self) -> Tensor:
        """(B, C) class probabilities, float64. A model with a single sigmoid output has C = 2."""
        return probabilities(self.logits)

    @property
    def open_classes(self) -> Tensor | None:
        """(B, C) True for the classes that are possible answers for the row. None if all classes are."""
        flags = self.inputs.extra.get(OPEN_CLASSES)
        return None if flags is None else flags[:, 0].bool().to(self.device)

    @cached_property
    def predicted(self) -> Tensor:
        """(B,) index of the predicted class. If the output is not a decision, the index is 1, that of the target."""
        if not self.adapter.capabilities.decides:
            return torch.ones_like(self.logits[:, 0], dtype=torch.long)
        return self.probabilities.argmax(-1)

    @cached_property
    def real_on_cpu(self) -> NDArray[np.bool_]:
        """(B, T) the same flags as `real`."""
        flags: NDArray[np.bool_] = self.real.cpu().numpy()
        return flags

    @cached_property
    def predicted_on_cpu(self) -> Integers:
        """(B,) the same numbers as `predicted`."""
        numbers: Integers = self.predicted.cpu().numpy()
        return numbers

    # -- gradients of f, the probability of the predicted class -----------------------------------------------------

    def target(self, logits: Tensor) -> Tensor:
        """Return the log-odds of f summed over the batch, where f is the probability of the predicted class.

        The gradient of f is that of its log-odds times f (1 - f) (see `of_probability`). Computed directly, it would
        be 0 where f rounds to 1.

        Args:
            logits: (B, C) logits of the pass in which f is computed.
        """
        total: Tensor = log_odds(logits, self.predicted).sum()
        return total

    def of_probability(self, gradient: Tensor) -> Tensor:
        """Return the gradient of f (B, ...), given that of its log-odds. In half precision, it becomes float64.

        The slope f (1 - f) counts as at least `LEAST_SLOPE`.
        """
        wide = gradient.double() if self.adapter.capabilities.precision in HALF else gradient
        return wide * self._slope.to(wide).view(-1, *[1] * (wide.dim() - 1))

    @cached_property
    def _slope(self) -> Tensor:
        """(B,) the derivative of f with respect to its log-odds; 0 for rows with a single possible answer."""
        odds = log_odds(self.logits, self.predicted)
        slope = (torch.sigmoid(odds) * torch.sigmoid(-odds)).clamp(min=LEAST_SLOPE)
        return slope if self.open_classes is None else slope.masked_fill(self.open_classes.sum(1) < 2, 0.0)

    def gradients_of(self, trace: Trace) -> dict[str, Tensor]:
        """Return the gradients ∂f/∂x of a pass, where f is the probability of the predicted class.

        They are in float32, or in float64 if the model computes in half precision.

        Returns:
            "" -> (B, T, d) gradients with respect to the embeddings of the text; site key -> (B, K, m) gradients with
            respect to the hidden states of the site. A gradient is 0 where f does not depend on x.
        """
        return self._gradients(trace, {"": self.embeddings[TEXT], **trace.hidden})

    def _gradients(self, trace: Trace, at: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return name -> ∂f/∂x for each named tensor x of a pass in `at`, in the precision of `gradients_of`.

        A gradient is 0 where f does not depend on x.
        """
        self.count("backward", "backward_rows", len(self.instances))
        found = gradients(self.target(trace.logits), list(at.values()), trace.joined, retain_graph=True)
        return {
            name: self.of_probability((torch.zeros_like(x) if gradient is None else gradient).to(self.device))
            for (name, x), gradient in zip(at.items(), found, strict=True)
        }

    @shared_result
    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the clean pass, in the form that `gradients_of` returns.

        Gradients flow through the attention weights.
        """
        with differentiable(self.device):
            return self.gradients_of(self.trace)

    @shared_result
    def gradients_attention_detached(self) -> dict[str, Tensor]:
        """The gradients of a second pass over the same inputs, in the form that `gradients_of` returns.

        In this pass, the attention weights are treated as constants, so that no gradients flow through them.
        """
        keys = [site.key for site in self.adapter.sites()]
        with differentiable(self.device):
            self.count_forward(len(self.instances))
            if too_large_to_hold(self.adapter, self.inputs, len(self.instances), keys):
                adapter = cast(BlockAdapter, self.adapter)
                trace = adapter.run(self.inputs, embeddings=self.embeddings, hidden=True, sites=(), detached=True)
            else:
                trace = self.adapter.run(
                    self.inputs,
                    embeddings=self.embeddings,
                    intervene=lambda _site, weights, _allowed: weights.detach(),
                    hidden=True,
                )
            return self.gradients_of(trace)

    @shared_result
    def attention_gradients(self) -> dict[str, Tensor]:
        """Site key -> gradients ∂f/∂α with the shape of the weights in the clean pass.

        They are in the precision of `gradients_of`. Here f is the probability of the predicted class, and α are the
        attention weights of the clean pass.
        """
        with differentiable(self.device):
            return self._gradients(self.trace, dict(self.trace.attention))
