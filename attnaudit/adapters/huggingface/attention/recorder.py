"""Observers of the attention in one forward pass. They record the attention weights, and can replace them.

Shapes: B rows, H heads, G groups of heads that share their values, Q queries, K keys, d features of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.blockwise_attention import FORBIDDEN, BlockwiseAttention, allowed_pairs
from attnaudit.adapters.huggingface.attention.function_call import FunctionCall, fused_attention
from attnaudit.adapters.huggingface.attention.weighted_values import apply_weights
from attnaudit.adapters.protocol import Intervention, Site
from attnaudit.adapters.query_blocks import BlockIntervention, block_starts, queries_per_block
from attnaudit.errors import AdapterError


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of an attention module in a forward pass.

    Attributes:
        site: The attention site that the call computes.
        module: The attention module.
        layer_call: Index of the surrounding layer call in `Layout.layers`; -1 if no surrounding layer was found.
        time_first: Whether the module takes states of shape (T, B, m) rather than (B, T, m).
        features_first: Whether the module takes states of shape (B, m, T), as a convolution over the tokens does.
    """

    site: Site
    module: nn.Module
    layer_call: int = -1
    time_first: bool = False
    features_first: bool = False

    def token_states(self, states: Tensor) -> Tensor:
        """Return states that the module takes, in the shape (B, T, m)."""
        if self.features_first:
            return states.transpose(1, 2)
        return states.transpose(0, 1) if self.time_first else states


class Observer(Protocol):
    """Interface of an observer, which receives all attention of a forward pass and returns the weights to use.

    Models that use Transformers' attention interface call `attend`. For other models, the softmax in their attention
    modules is intercepted, and `on_softmax` and `on_values` are called instead.

    Attributes:
        skips_masks: Whether Transformers may leave out the mask of a causal model if the batch has no padding. The
            function call then has `causal` set.
    """

    @property
    def skips_masks(self) -> bool: ...

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the result of a call of the model's attention function.

        Returns:
            (B, Q, H, d) output and (B, H, Q, K) weights. The weights are None if they are not computed.
        """
        ...

    def on_softmax(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        """Return the weights (B, H, Q, K) that the model continues with.

        Args:
            module: The attention module.
            scores: (B, H, Q, K) attention scores.
            weights: (B, H, Q, K) softmax of the scores.
        """
        ...

    def on_values(self, value: Tensor, output: Tensor) -> None:
        """Receive the values that the latest weights were applied to, and the result.

        Args:
            value: (B, G, K, d) values.
            output: (B, H, Q, d) weighted sums of the values.
        """
        ...


class FunctionObserver(ABC):
    """Base class of observers that work only with models that use Transformers' attention interface."""

    skips_masks: bool = False

    @abstractmethod
    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor | None]:
        """Compute the result of a call of the model's attention function, as in `Observer`."""

    def on_softmax(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        """Raise TypeError: a softmax alone is not a call of an attention function."""
        raise self._not_a_call(f"the softmax of {type(module).__name__}")

    def on_values(self, value: Tensor, output: Tensor) -> None:
        """Raise TypeError: values alone are not a call of an attention function."""
        raise self._not_a_call("the values of a softmax")

    def _not_a_call(self, received: str) -> TypeError:
        return TypeError(
            f"{type(self).__name__} received {received}, but it handles only calls of an attention function. Use it "
            "with a model that uses Transformers' attention interface."
        )


#: The observer of the forward pass that the current thread or task is running.
current_observer: ContextVar[Observer | None] = ContextVar("attnaudit_observer", default=None)


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Make `observer` the current observer inside the context."""
    token = current_observer.set(observer)
    try:
        yield
    finally:
        current_observer.reset(token)


class Recorder:
    """Records the attention of one forward pass, and replaces it if an intervention is given.

    Attributes:
        attention: Site key -> (B, H, Q, K) weights that the pass used; (B, H, R, K) at sites in `queries`.
        allowed: Site key -> (B, 1 or H, Q or R, K) mask, True where a query may attend to a key.
        values: Site key -> (B, G, K, d) values that the weights were applied to. Sites in `fused` are missing, and
            those whose weights are applied to several tensors of values.
        calls_in_blocks: Site key -> the call at a site in `blocks`. It is empty if an intervention is given.
    """

    def __init__(
        self,
        calls: Sequence[AttentionCall],
        masks: Mapping[str, Tensor],
        *,
        intervene: Intervention | BlockIntervention | None = None,
        first: int = 0,
        fused: Collection[str] = (),
        queries: Mapping[str, Tensor] | None = None,
        blocks: Collection[str] = (),
        fuses_blocks: bool = False,
        detached: bool = False,
        skips_masks: bool = False,
    ) -> None:
        """Create a recorder for one pass.

        Args:
            calls: The attention calls of a full pass, in order.
            masks: Stream -> (B, T) mask, True on tokens.
            intervene: As in `BlockAdapter.run`.
            first: Index of the first attention call of this pass, if it skips earlier calls.
            fused: The keys of the sites whose weights are not needed. The fused kernel computes their output.
            queries: Site key -> (B, R) positions of the queries whose weights are needed. At these sites, the fused
                kernel computes the output, and the weights of only these queries are computed and may be replaced.
            blocks: The keys of the sites whose weights are computed in blocks of queries.
            fuses_blocks: Whether the fused kernel computes the output at the sites in `blocks`. Otherwise, the output
                is computed in blocks as well.
            detached: Whether gradients treat the weights as constants. All sites must then be in `fused`.
            skips_masks: As in `Observer`.
        """
        self.calls = calls
        self.masks = masks
        self.intervene = intervene
        self.fused = fused
        self.queries = {} if queries is None else queries
        self.blocks = blocks
        self.fuses_blocks = fuses_blocks
        self.detached = detached
        self.skips_masks = skips_masks
        self.attention: dict[str, Tensor] = {}
        self.allowed: dict[str, Tensor] = {}
        self.values: dict[str, Tensor] = {}
        self.calls_in_blocks: dict[str, BlockwiseAttention] = {}
        self._next = first
        self._latest: FunctionCall | None = None
        self._allowed_by_mask: dict[tuple[int, str, str, str], tuple[Tensor | None, Tensor]] = {}
        self._has_padding = {stream: not bool(mask.all()) for stream, mask in masks.items()}

    @property
    def next_site(self) -> str:
        """The key of the site that the next attention call is expected to compute; "" at the end of the pass."""
        return self.calls[self._next].site.key if self._next < len(self.calls) else ""

    def next_call(self, module: nn.Module) -> AttentionCall:
        """Return the attention call that the pass is making now, and advance to the next call.

        Raises:
            AdapterError: The order of the model's attention calls has changed since the model was loaded.
        """
        if self._next >= len(self.calls) or self.calls[self._next].module is not module:
            expected = (
                self.calls[self._next].site.key if self._next < len(self.calls) else "the end of the forward pass"
            )
            raise AdapterError(
                f"The model called {type(module).__name__} where {expected} was expected: its attention modules ran "
                "in a different order than when the model was loaded. A model in which the input decides which "
                "layers run cannot be audited."
            )
        self._next += 1
        return self.calls[self._next - 1]

    def require_complete(self) -> None:
        """Raise AdapterError if the pass made fewer attention calls than when the model was loaded."""
        if self._next != len(self.calls):
            raise AdapterError(
                f"The forward pass made only {self._next} of the model's {len(self.calls)} attention calls. A model in "
                "which the input decides which layers run cannot be audited."
            )

    def uses_one_query(self, key: str, positions: Tensor) -> bool:
        """Return whether the fused kernel computes the output at a site, and no weights of further queries are needed.

        Args:
            key: The key of the site.
            positions: (B,) positions of the only query.
        """
        if key in self.blocks:
            return False
        if key not in self.queries:
            return key in self.fused
        return bool((self.queries[key] == positions[:, None]).all())

    def attend(self, call: FunctionCall) -> tuple[Tensor, Tensor | None]:
        """Compute a call with the architecture's own function and record its attention.

        At a site in `fused`, nothing is recorded, and the fused kernel computes the output. At other sites, the output
        is computed again from the recorded weights in two cases: if the weights are replaced, or if gradients are
        enabled and there is padding.

        Returns:
            (B, Q, H, d) output and (B, H, Q, K) weights. The weights are None at a site in `fused`, `queries` or
            `blocks`.
        """
        if call.continues(self._latest):
            return self._attend_again(call)
        self._latest = call
        if self.next_site in self.queries:
            return self._attend_at_queries(call, self.queries[self.next_site]), None
        if self.next_site in self.blocks:
            return self._attend_in_blocks(call), None
        if self.next_site in self.fused:
            self.next_call(call.module)
            return fused_attention(call.with_constant_weights() if self.detached else call), None
        output, weights = call.eager()
        current = self._matching_call(call.module, weights)
        self.values[current.site.key] = call.value
        used = self._record(current, weights, self._allowed(current, call.mask, weights))
        return (output if used is weights else apply_weights(used, call.value)), used

    def _attend_at_queries(self, call: FunctionCall, queries: Tensor) -> Tensor:
        """Compute a call with the fused kernel, and record the weights of some queries (B, R).

        The weights are computed by the architecture's own function. If they are replaced, or if gradients are enabled,
        the output at these queries is computed again from the recorded weights.

        Returns:
            (B, Q, H, d) output.
        """
        if self.next_site in self.blocks and self.intervene is None:
            self.calls_in_blocks[self.next_site] = self._blockwise(call, self.calls[self._next].site).detached()
        output, selected = fused_attention(call), call.at(queries)
        _, weights = selected.eager()
        current = self._matching_call(call.module, weights)
        self.values[current.site.key] = call.value
        used = self._record(current, weights, self._allowed(current, selected.mask, weights))
        if used is weights and not torch.is_grad_enabled():
            return output
        return self._replaced_at_queries(output, queries, apply_weights(used, call.value))

    def _replaced_at_queries(self, output: Tensor, queries: Tensor, changed: Tensor) -> Tensor:
        """Return an output (B, Q, H, d), in which the values `changed` (B, R, H, d) replace those at some queries."""
        # If a position is listed twice, its first entry is written last. `at_query` reads this entry.
        for r in reversed(range(queries.shape[1])):
            index = queries[:, r, None, None, None].to(output.device).expand(-1, 1, *output.shape[2:])
            output = output.scatter(1, index, changed[:, r, None])
        return output

    def _attend_in_blocks(self, call: FunctionCall) -> Tensor:
        """Compute a call at a site in `blocks`, and return its output (B, Q, H, d).

        Without an intervention, the call is recorded, so that its weights can be computed when they are read.
        """
        site = self.next_call(call.module).site
        self.values[site.key] = call.value
        if self.intervene is None:
            self.calls_in_blocks[site.key] = self._blockwise(call, site).detached()
        return self._output_in_blocks(call, site)

    def _output_in_blocks(self, call: FunctionCall, site: Site) -> Tensor:
        """Return the output (B, Q, H, d) of a call at a site in `blocks`."""
        if self.intervene is None and self.fuses_blocks:
            return fused_attention(call)
        blockwise = self._blockwise(call, site)
        intervene = None if self.intervene is None else cast(BlockIntervention, self.intervene)
        outputs = []
        size = queries_per_block(len(call.query), site.heads, call.key.shape[2])
        for first in block_starts(call.query.shape[2], size):
            output, weights, allowed = blockwise.rows(first, first + size)
            replaced = None if intervene is None else intervene(site, weights, allowed, first)
            outputs.append(output if replaced is None else apply_weights(replaced, call.value))
        return torch.cat(outputs, dim=1)

    def _attend_again(self, call: FunctionCall) -> tuple[Tensor, Tensor | None]:
        """Compute a call that applies the weights of the latest one to other values. They are not recorded again.

        Returns:
            As `attend`.
        """
        site = self.calls[self._next - 1].site
        self.values.pop(site.key, None)
        if site.key in self.queries:
            output, used = fused_attention(call), self.attention[site.key]
            return self._replaced_at_queries(output, self.queries[site.key], apply_weights(used, call.value)), None
        if site.key in self.blocks:
            return self._output_in_blocks(call, site), None
        if site.key in self.fused:
            return fused_attention(call.with_constant_weights() if self.detached else call), None
        used = self.attention[site.key]
        return apply_weights(used, call.value), used

    def _blockwise(self, call: FunctionCall, site: Site) -> BlockwiseAttention:
        """Return the call at a site, prepared for blocks of queries."""
        queries, keys = self.masks[str(site.query)], self.masks[site.keys]
        found, expected = (call.query.shape[2], call.key.shape[2]), (queries.shape[1], keys.shape[1])
        if found != expected:
            raise _unexpected_shape(site, found, expected)
        return BlockwiseAttention(call, queries, keys)

    def on_softmax(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        """Record the softmax of an attention module and return the weights to use in its place."""
        call = self._matching_call(module, weights)
        allowed = (scores > FORBIDDEN).all(1, keepdim=True) & self._token_pairs(call.site)
        # Architectures reshape their weights with view(), which needs contiguous memory.
        return self._record(call, weights, allowed).contiguous()

    def on_values(self, value: Tensor, output: Tensor) -> None:
        """Record the values of the latest attention call."""
        self.values[self.calls[self._next - 1].site.key] = value

    def _matching_call(self, module: nn.Module, weights: Tensor) -> AttentionCall:
        call = self.next_call(module)
        queries, keys = self.masks[str(call.site.query)], self.masks[call.site.keys]
        selected = self.queries.get(call.site.key, queries)
        expected = (len(queries), call.site.heads, selected.shape[1], keys.shape[1])
        if tuple(weights.shape) != expected:
            raise _unexpected_shape(call.site, tuple(weights.shape), expected)
        return call

    def _allowed(self, call: AttentionCall, mask: Tensor | None, weights: Tensor) -> Tensor:
        """Return the mask (B, 1 or H, Q, K) of the allowed keys.

        Args:
            call: The attention call.
            mask: The additive or boolean mask that was passed to the attention function; None if it forbids nothing.
            weights: (B, H, Q, K) attention weights.
        """
        selected = call.site.key if call.site.key in self.queries else ""
        cache_key = (id(mask), str(call.site.query), call.site.keys, selected)
        if cache_key not in self._allowed_by_mask:
            allowed = allowed_pairs(mask, self._token_pairs(call.site))
            # Storing the mask keeps it alive, so that no other mask can get the same id during the pass.
            self._allowed_by_mask[cache_key] = (mask, allowed)
        return self._allowed_by_mask[cache_key][1]

    def _token_pairs(self, site: Site) -> Tensor:
        """Return a mask (B, 1, Q or R, K), True where neither the query nor the key is padding."""
        asked = self.masks[str(site.query)]
        if site.key in self.queries:
            asked = asked.gather(1, self.queries[site.key])
        return asked[:, None, :, None] & self.masks[site.keys][:, None, None, :]

    def _record(self, call: AttentionCall, weights: Tensor, allowed: Tensor) -> Tensor:
        """Apply the intervention, record the resulting weights, and return the weights that the pass continues with."""
        site = call.site
        clean = weights.to(allowed.device)  # Other layers may be on other devices.
        if self._has_padding[str(site.query)] or self._has_padding[site.keys]:
            # For queries that are padding, the architectures' own code returns uniform weights over forbidden keys.
            clean = clean.masked_fill(~allowed, 0.0)
        replaced = None if self.intervene is None else self.intervene(site, clean, allowed)
        recorded = clean if replaced is None else replaced
        self.attention[site.key] = recorded
        self.allowed[site.key] = allowed
        # With gradients enabled, the output must be computed from the recorded tensor, so that it has a gradient.
        return recorded if replaced is not None or torch.is_grad_enabled() else weights


def _unexpected_shape(site: Site, found: tuple[int, ...], expected: tuple[int, ...]) -> AdapterError:
    """Return the error for a site whose attention has a shape that does not fit the lengths of its inputs.

    Both shapes end in the numbers of queries and keys.
    """
    if found[-2:] == expected[-2:]:
        return AdapterError(
            f"The attention at '{site.key}' has shape {found}; expected {expected}, which follows from its inputs. "
            "This architecture cannot be audited."
        )
    cut = found[-2] == found[-1] < expected[-1]
    return AdapterError(
        f"The attention at '{site.key}' has {found[-2]} × {found[-1]} weights (queries × keys), but its inputs have "
        f"{expected[-2]} and {expected[-1]} tokens. An audit needs one query and one key per token, so a model that "
        "reads further streams of states, or that joins or drops tokens, cannot be audited."
        + (f" If forward() truncates its input, pass max_tokens={found[-1]} to transformer()." if cut else "")
    )
