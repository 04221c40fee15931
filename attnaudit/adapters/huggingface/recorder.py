"""What happens at each attention of one forward pass: the weights are noted, and replaced where that is asked for.

Shapes: B rows, H heads, Q queries, K keys, d features of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnaudit.adapters.protocol import Intervention, Site
from attnaudit.errors import AdapterError

#: Scores or mask entries at or below this take a key away: every masking constant in use is (-10,000 or lower).
FORBIDDEN = -9e3

#: (module, query, key, value, mask, ...) -> (output (B, Q, H, d), weights (B, H, Q, K)), an architecture's own.
Eager = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Place:
    """One call of an attention module in a forward pass. block: number of the layer call around it, -1 where no layer
    was found. time_first: its states are (T, B, m)."""

    site: Site
    module: nn.Module
    block: int = -1
    time_first: bool = False


class Observer(Protocol):
    """Stands in a forward pass and is shown every attention in it."""

    def attend(
        self,
        eager: Eager,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor]:
        """The interface form: what the attention function returns in place of the architecture's own."""
        ...

    def soften(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        """The fallback form: scores and their softmax, both (B, H, Q, K) -> the weights to use."""
        ...

    def mix(self, value: Tensor, output: Tensor) -> None:
        """The fallback form, after `soften`: what the weights were applied to, (B, G, K, d), and the result
        (B, H, Q, d)."""
        ...


#: The observer of the pass that this thread or task is in.
observer: ContextVar[Observer | None] = ContextVar("attnaudit_observer", default=None)


@contextmanager
def observed(by: Observer) -> Iterator[None]:
    """Show every attention within to `by`."""
    token = observer.set(by)
    try:
        yield
    finally:
        observer.reset(token)


def mixed(weights: Tensor, value: Tensor) -> Tensor:
    """weights (B, H, Q, K), value (B, G, K, d) with H a multiple of G -> (B, Q, H, d)."""
    return (weights @ spread(value, weights.shape[1])).transpose(1, 2).contiguous()


def spread(value: Tensor, heads: int) -> Tensor:
    """(B, G, K, d) -> (B, H, K, d): the value vectors that each head reads (grouped heads share them)."""
    groups = value.shape[1]
    return value if groups == heads else value.repeat_interleave(heads // groups, dim=1)


class Recorder:
    """Notes attention, allowed keys and, when asked, what `replay` and `transformed` need.

    places: the attentions that the pass will meet, in order, from number `first` on. masks: stream -> (B, T) True on
    tokens. intervene: as in ModelAdapter.run.
    """

    def __init__(
        self,
        places: Sequence[Place],
        masks: Mapping[str, Tensor],
        *,
        intervene: Intervention | None = None,
        first: int = 0,
    ) -> None:
        self.places = places
        self.masks = masks
        self.intervene = intervene
        self.attention: dict[str, Tensor] = {}
        self.allowed: dict[str, Tensor] = {}
        self.values: dict[str, Tensor] = {}
        self._next = first
        self._permitted: dict[tuple[int, str, str], tuple[Tensor | None, Tensor]] = {}
        self._padded = {stream: not bool(mask.all()) for stream, mask in masks.items()}

    def place(self, module: nn.Module) -> Place:
        """The place that is met now. Raises AdapterError where the model takes another way than when it was loaded."""
        if self._next >= len(self.places) or self.places[self._next].module is not module:
            expected = self.places[self._next].site.key if self._next < len(self.places) else "the end of the pass"
            raise AdapterError(
                f"The model's attentions are not met in the order that was found when it was loaded: "
                f"{type(module).__name__} came where {expected} was expected. A model whose layers depend on its input "
                "is not audited."
            )
        self._next += 1
        return self.places[self._next - 1]

    def finish(self) -> None:
        """Raises AdapterError where the pass has met fewer attentions than when the model was loaded."""
        if self._next != len(self.places):
            raise AdapterError(
                f"The pass met {self._next} of the model's {len(self.places)} attentions. A model whose layers depend "
                "on its input is not audited."
            )

    def attend(
        self,
        eager: Eager,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **rest: Any,
    ) -> tuple[Tensor, Tensor]:
        output, weights = eager(module, query, key, value, mask, **rest)
        place = self._fitting(module, weights)
        self.values[place.site.key] = value
        used = self._use(place, weights, self._allowed(place, mask, weights))
        return (output if used is weights else mixed(used, value)), used

    def soften(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        place = self._fitting(module, weights)
        structure = scores > FORBIDDEN
        # Architectures reshape their weights with view().
        return self._use(place, weights, structure.all(1, keepdim=True) & self._tokens(place.site)).contiguous()

    def mix(self, value: Tensor, output: Tensor) -> None:
        self.values[self.places[self._next - 1].site.key] = value

    def _fitting(self, module: nn.Module, weights: Tensor) -> Place:
        place = self.place(module)
        queries, keys = self.masks[str(place.site.query)], self.masks[place.site.keys]
        expected = (len(queries), place.site.heads, queries.shape[1], keys.shape[1])
        if tuple(weights.shape) != expected:
            raise AdapterError(
                f"attention at '{place.site.key}' has shape {tuple(weights.shape)}, expected {expected} for the "
                "lengths of its streams. The architecture is not audited."
            )
        return place

    def _allowed(self, place: Place, mask: Tensor | None, weights: Tensor) -> Tensor:
        """(B, 1 or H, Q, K) from the mask as the attention function gets it: additive, boolean, or None for all."""
        name = (id(mask), str(place.site.query), place.site.keys)
        if name not in self._permitted:
            tokens = self._tokens(place.site)
            if mask is None:
                allowed = tokens
            else:
                mask = mask[..., : weights.shape[-1]]
                structure = mask if mask.dtype == torch.bool else mask > FORBIDDEN
                allowed = structure.expand(len(weights), structure.shape[1], *weights.shape[2:]) & tokens
            # The mask is kept with the entry: another could get its id.
            self._permitted[name] = (mask, allowed)
        return self._permitted[name][1]

    def _tokens(self, site: Site) -> Tensor:
        return self.masks[str(site.query)][:, None, :, None] & self.masks[site.keys][:, None, None, :]

    def _use(self, place: Place, weights: Tensor, allowed: Tensor) -> Tensor:
        site = place.site
        clean = weights
        if self._padded[str(site.query)] or self._padded[site.keys]:
            # Rows of padding queries are uniform over forbidden keys in the architectures' own code.
            clean = weights.masked_fill(~allowed, 0.0)
        replaced = None if self.intervene is None else self.intervene(site, clean, allowed)
        shown = clean if replaced is None else replaced
        self.attention[site.key] = shown
        self.allowed[site.key] = allowed
        # With gradients the weights that are shown must be those that the output is made of.
        return shown if replaced is not None or torch.is_grad_enabled() else weights
