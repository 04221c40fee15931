"""Where a model's attentions are: found by one pass over made-up tokens, in the order of the calls.

Shapes: B rows, T tokens, H heads, Q queries, K keys, m features.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.recorder import FORBIDDEN, Eager, Place, observed
from attnaudit.adapters.protocol import TEXT, Site, SiteKind
from attnaudit.errors import AdapterError

#: The stream of tokens that an encoder–decoder model writes.
DECODER = "decoder"
#: Arguments that hold the states of another stream, in every architecture that has cross-attention.
CROSS = ("key_value_states", "encoder_hidden_states")


@dataclass(frozen=True, slots=True)
class Layout:
    """places: every attention, in call order. blocks: the layers around them, in call order. embedding: the module that
    turns the ids of the text into vectors, at its first call; embedding_time_first: its ids are (T, B). others: modules
    that do the same for the decoder. projections:
    site key -> the layer that the heads' outputs go through. causal: a query sees no later key."""

    places: tuple[Place, ...]
    blocks: tuple[nn.Module, ...]
    embedding: nn.Module
    embedding_time_first: bool
    others: tuple[nn.Module, ...]
    projections: Mapping[str, nn.Module]
    causal: bool

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(place.site for place in self.places)

    def number(self, site: Site) -> int:
        """The number of the site's place."""
        for number, place in enumerate(self.places):
            if place.site.key == site.key:
                return number
        raise AdapterError(
            f"The model has no attention site '{site.key}'; it has {', '.join(p.site.key for p in self.places)}."
        )


@dataclass(slots=True)
class Call:
    """One attention call as the finding pass saw it."""

    module: nn.Module
    shape: tuple[int, ...]
    sinks: bool
    causal: bool
    output: Tensor | None
    cross: bool = False
    block: int = -1
    time_first: bool = False


@dataclass(slots=True)
class Finder:
    """The observer of the finding pass."""

    calls: list[Call] = field(default_factory=list)
    states: dict[int, tuple[Tensor | None, bool]] = field(default_factory=dict)
    block: int = -1

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
        self._note(module, weights, output)
        return output, weights

    def soften(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        self._note(module, weights.masked_fill(scores <= FORBIDDEN, 0.0), None)
        return weights

    def mix(self, value: Tensor, output: Tensor) -> None:
        self.calls[-1].output = output.transpose(1, 2)

    def _note(self, module: nn.Module, weights: Tensor, output: Tensor | None) -> None:
        square = weights.dim() == 4 and weights.shape[2] == weights.shape[3]
        call = Call(
            module=module,
            shape=tuple(weights.shape),
            # Of the first row, which has no padding.
            sinks=bool((weights[0].sum(-1) < 1 - 1e-3).any()),
            causal=square and not bool(weights[0].triu(1).any()),
            output=output,
            block=self.block,
        )
        states, call.cross = self.states.get(id(module), (None, False))
        rows, width = (call.shape[0], call.shape[-1]) if len(call.shape) == 4 else (0, 0)
        call.time_first = states is not None and tuple(states.shape[:2]) == (width, rows) != (rows, width)
        self.calls.append(call)


def states_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor | None, bool]:
    """(the states that an attention's keys and values are made of, whether they are another stream's)."""
    given: dict[str, Any] = {}
    parameters = inspect.signature(module.forward).parameters
    names = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given.update(zip(names, args, strict=False))
    given.update(kwargs)
    for name in CROSS:
        if isinstance(given.get(name), Tensor):
            return given[name], True
    if isinstance(given.get("hidden_states"), Tensor):
        return given["hidden_states"], False
    return next((v for v in given.values() if isinstance(v, Tensor) and v.dim() == 3), None), False


@contextmanager
def hooks(handles: Sequence[Any]) -> Iterator[None]:
    """Take the hooks away at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find(model: nn.Module, ids: Tensor, forward: Callable[[], object], *, encoder_decoder: bool) -> Layout:
    """The layout, from passes over made-up tokens.

    ids: (B, T) of the text, B and T different, its first row without padding. forward: one pass, kernel in place.
    Raises AdapterError where an attention of the model is not seen, or is not of the expected shape.
    """
    finder, called, embedding = _first_pass(model, ids, forward)
    if not finder.calls:
        raise AdapterError(
            f"{type(model).__name__}: no attention weights were seen in a pass over made-up tokens. The architecture "
            "does not take its attention from Transformers' interface, nor from a softmax in its attention modules: "
            "it is not audited."
        )
    _refuse_unseen(model, finder.calls, called)
    names = {module: name for name, module in model.named_modules()}
    around = {id(c.module): _block(model, names[c.module]) for c in finder.calls}
    finder, blocks, projections = _second_pass(model, forward, around)
    if embedding is None:
        raise AdapterError(
            f"{type(model).__name__}: no embedding of the token ids was seen (an nn.Embedding called with them), so "
            "gradients have no inputs to be taken at. The architecture is not audited."
        )
    places = _places(model, finder.calls, ids, encoder_decoder)
    return Layout(
        places=places,
        blocks=tuple(blocks),
        embedding=embedding[0],
        embedding_time_first=embedding[1],
        others=tuple(m for m in model.modules() if _embeds_as(m, embedding[0])) if encoder_decoder else (),
        projections={places[n].site.key: module for n, module in projections.items()},
        causal=all(c.causal for c, p in zip(finder.calls, places, strict=True) if p.site.kind == "self")
        and not encoder_decoder,
    )


def _first_pass(
    model: nn.Module, ids: Tensor, forward: Callable[[], object]
) -> tuple[Finder, list[nn.Module], tuple[nn.Module, bool] | None]:
    """Which modules attend, which modules named attention are called at all, and which embeds the ids."""
    finder, called, embedding = Finder(), list[nn.Module](), list[tuple[nn.Module, bool]]()

    def note(module: nn.Module, _args: object) -> None:
        called.append(module)

    def note_embedding(module: nn.Module, args: tuple[Any, ...], _output: object) -> None:
        given = args[0] if args else None
        if embedding or not isinstance(given, Tensor) or given.dim() != 2:
            return
        for time_first, expected in ((False, ids), (True, ids.T)):
            if given.shape == expected.shape and torch.equal(given, expected):
                embedding.append((module, time_first))
                return

    handles = [m.register_forward_pre_hook(note) for m in model.modules() if _named_attention(m)]
    handles += [m.register_forward_hook(note_embedding) for m in model.modules() if isinstance(m, nn.Embedding)]
    with hooks(handles), observed(finder), torch.no_grad():
        forward()
    return finder, called, embedding[0] if embedding else None


def _embeds_as(module: nn.Module, embedding: nn.Module) -> bool:
    return (
        module is not embedding
        and isinstance(module, nn.Embedding)
        and isinstance(embedding, nn.Embedding)
        and module.weight.shape == embedding.weight.shape
    )


def _named_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower() or "attn" in type(module).__name__.lower()


def _refuse_unseen(model: nn.Module, calls: Sequence[Call], called: Sequence[nn.Module]) -> None:
    """Every module named attention that was called has seen attention in it or around it."""
    seen = {id(c.module) for c in calls}
    for c in calls:
        seen |= {id(m) for m in c.module.modules()}
    for module in called:
        if id(module) not in seen and not any(id(m) in seen for m in module.modules()):
            raise AdapterError(
                f"{type(model).__name__}: the weights of its {type(module).__name__} are not seen, while those of "
                f"{type(calls[0].module).__name__} are. A model that is seen in part is not audited."
            )


def _block(model: nn.Module, name: str) -> nn.Module | None:
    """The layer that a module is in: the child of the outermost list on the way to it."""
    here: nn.Module = model
    for part in name.split("."):
        inside, here = here, here.get_submodule(part)
        if isinstance(inside, nn.ModuleList):
            return here
    return None


def _second_pass(
    model: nn.Module, forward: Callable[[], object], around: Mapping[int, nn.Module | None]
) -> tuple[Finder, list[nn.Module], dict[int, nn.Module]]:
    """The calls again with the states they are made of, the layers in call order, and the projections by place."""
    finder = Finder()
    blocks: list[nn.Module] = []
    projections: dict[int, nn.Module] = {}

    def enter(module: nn.Module, _args: object) -> None:
        blocks.append(module)
        finder.block = len(blocks) - 1

    def leave(_module: nn.Module, _args: object, _output: object) -> None:
        finder.block = -1

    def states(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        finder.states[id(module)] = states_of(module, args, kwargs)

    def project(module: nn.Module, args: tuple[Any, ...]) -> None:
        number = len(finder.calls) - 1
        last = finder.calls[number].output if number >= 0 else None
        if last is None or number in projections or not args or not isinstance(args[0], Tensor):
            return
        flat = last.reshape(*last.shape[:2], -1)
        if args[0].shape == flat.shape and torch.equal(args[0], flat):
            projections[number] = module

    attending = [m for m in model.modules() if id(m) in around]
    layers = {id(b): b for b in around.values() if b is not None}
    handles = [m.register_forward_pre_hook(states, with_kwargs=True) for m in attending]
    handles += [b.register_forward_pre_hook(enter) for b in layers.values()]
    handles += [b.register_forward_hook(leave, always_call=True) for b in layers.values()]
    handles += [m.register_forward_pre_hook(project) for m in model.modules() if is_projection(m)]
    with hooks(handles), observed(finder), torch.no_grad():
        forward()
    return finder, blocks, projections


def is_projection(module: nn.Module) -> bool:
    """Whether it is a linear layer, of torch or of GPT-2's kind."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _places(model: Any, calls: Sequence[Call], ids: Tensor, encoder_decoder: bool) -> tuple[Place, ...]:
    inside: set[int] = set()
    if encoder_decoder:
        inside = {id(m) for m in model.get_encoder().modules()}
    counts: dict[str, int] = {}
    places = []
    for call in calls:
        if len(call.shape) != 4 or call.shape[0] != len(ids):
            raise AdapterError(
                f"{type(model).__name__}: the weights of its {type(call.module).__name__} have shape {call.shape}, "
                f"expected (B, H, Q, K) with B = {len(ids)}. Attention of another shape is not audited."
            )
        kind: SiteKind = "cross" if call.cross else "self"
        stack = "layer" if not encoder_decoder else "encoder" if id(call.module) in inside else DECODER
        query = keys = TEXT if stack != DECODER else DECODER
        if call.cross:
            stack, keys = "cross", TEXT
        if (keys == TEXT and call.shape[3] != ids.shape[1]) or (query == TEXT and call.shape[2] != ids.shape[1]):
            raise AdapterError(
                f"{type(model).__name__}: {type(call.module).__name__} has {call.shape[2]} queries and "
                f"{call.shape[3]} keys for {ids.shape[1]} tokens. Attention that is not over all tokens is not audited."
            )
        layer = counts.get(stack, 0)
        counts[stack] = layer + 1
        site = Site(
            key=f"{stack}.{layer}",
            layer=layer,
            kind=kind,
            heads=call.shape[1],
            query=query,
            keys=keys,
            sinks=call.sinks,
        )
        places.append(Place(site=site, module=call.module, block=call.block, time_first=call.time_first))
    return tuple(places)


@contextmanager
def embedded(layout: Layout, embeddings: Tensor | None) -> Iterator[None]:
    """Put embeddings (B, T, d) in the place of those of the text: at the first call of the embedding module.

    What the decoder starts from becomes a leaf of its own then, so that every attention has a gradient.
    """
    if embeddings is None:
        yield
        return
    calls = 0

    def replace(_module: nn.Module, _args: object, output: Tensor) -> Tensor | None:
        nonlocal calls
        calls += 1
        if calls > 1:
            return leaf(_module, _args, output)
        # A copy, since some architectures scale it in place.
        return (embeddings.transpose(0, 1) if layout.embedding_time_first else embeddings).clone()

    def leaf(_module: nn.Module, _args: object, output: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled() or output.requires_grad:
            return None
        return output.detach().requires_grad_(True)

    handles = [layout.embedding.register_forward_hook(replace)]
    with hooks([*handles, *(module.register_forward_hook(leaf) for module in layout.others)]):
        yield


@contextmanager
def watched(layout: Layout, hidden: dict[str, Tensor]) -> Iterator[None]:
    """Fill `hidden` with the states that each site's values are made of: site key -> (B, K, m)."""
    number = 0

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        nonlocal number
        place = layout.places[number]
        states, _ = states_of(module, args, kwargs)
        number += 1
        if states is not None:
            hidden[place.site.key] = states.transpose(0, 1) if place.time_first else states

    unique = {id(p.module): p.module for p in layout.places}
    with hooks([m.register_forward_pre_hook(note, with_kwargs=True) for m in unique.values()]):
        yield
