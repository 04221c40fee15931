"""The rest of a forward pass from one attention on, with other weights at one query.

Two forms, each used only where it has been found to give what the whole pass gives: the *narrow* one runs the last
layer at the position that the model reads and nowhere else; the *wide* one skips the layers before the attention's.
Shapes: B rows, V variants, T tokens, H heads, K keys, m features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from attnaudit.adapters.huggingface.recorder import Eager, Recorder, spread
from attnaudit.adapters.huggingface.site_discovery import Layout, hooks
from attnaudit.adapters.protocol import Intervention, Site


@dataclass(slots=True)
class Prefix:
    """What a pass left behind. entered and left: states that each layer call got, and all that it returned, without
    their graph. values: site key -> (B, G, K, d)."""

    entered: list[Tensor | None] = field(default_factory=list)
    left: list[Any] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)


def over(structure: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nesting of tuples and lists with every tensor changed."""
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, tuple) and type(structure) is not tuple:
        return structure
    if isinstance(structure, tuple | list):
        return type(structure)(over(one, change) for one in structure)
    return structure


def _states(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    given = kwargs.get("hidden_states", next((a for a in args if isinstance(a, Tensor)), None))
    return given if isinstance(given, Tensor) else None


@contextmanager
def kept(layout: Layout, prefix: Prefix) -> Iterator[None]:
    """Fill `prefix` with what goes into and comes out of every layer."""

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        states = _states(args, kwargs)
        prefix.entered.append(None if states is None else states.detach())

    def leave(_module: nn.Module, _args: object, output: Any) -> None:
        prefix.left.append(over(output, Tensor.detach))

    unique = {id(b): b for b in layout.blocks}.values()
    handles = [b.register_forward_pre_hook(enter, with_kwargs=True) for b in unique]
    handles += [b.register_forward_hook(leave) for b in unique]
    with hooks(handles):
        yield


@contextmanager
def skipped(layout: Layout, before: int, returns: Callable[[int], Any]) -> Iterator[None]:
    """The layer calls before number `before` are not computed: call n returns `returns(n)`."""
    calls = 0

    def instead(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            return returns(calls - 1) if calls <= before else forward(*args, **kwargs)

        return call

    unique = list({id(b): b for b in layout.blocks}.values())
    own = [b.__dict__.get("forward") for b in unique]
    try:
        for block in unique:
            block.__dict__["forward"] = instead(block.forward)
        yield
    finally:
        for block, forward in zip(unique, own, strict=True):
            del block.__dict__["forward"]
            if forward is not None:
                block.__dict__["forward"] = forward


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No graph through parameters."""
    tracked = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in tracked:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in tracked:
            parameter.requires_grad_(True)


def times(value: Tensor, rows: int, variants: int, *, time_first: bool = False) -> Tensor:
    """Each of the rows so many times, one after another; tensors that are shared by all rows stay as they are."""
    axis = 1 if time_first and value.dim() > 2 else 0
    return value.repeat_interleave(variants, dim=axis) if value.dim() and value.shape[axis] == rows else value


def put_in(site: Site, queries: Tensor, weights: Tensor) -> Intervention:
    """The intervention that puts weights (N, H, K) in the row of queries (N,) at a site."""

    def intervene(here: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        if here.key != site.key:
            return None
        index = queries[:, None, None, None].expand(-1, live.shape[1], 1, live.shape[3])
        return live.scatter(2, index, weights[:, :, None, :].to(live.dtype))

    return intervene


@contextmanager
def resumed(layout: Layout, site: Site, prefix: Prefix, rows: int, variants: int) -> Iterator[int]:
    """The wide form: layers before the site's hand on what they returned. Gives the number of the first attention that
    is met."""
    number = layout.number(site)
    block, time_first = layout.places[number].block, layout.places[number].time_first
    first = next(n for n, place in enumerate(layout.places) if place.block == block)

    def returns(call: int) -> Any:
        return over(prefix.left[call], lambda t: times(t, rows, variants, time_first=time_first))

    with skipped(layout, block, returns):
        yield first


class AtOnePosition:
    """The observer of the narrow form: a pass over one position, where every attention in the site's layer gives the
    mean of the values of the clean pass, under the clean weights of that position, or at the site under the new ones.

    layout, prefix: of the clean pass. queries (B,): the position. clean: site key -> (B, H, Q, K). weights
    (B, V, H, K): those at the site.
    """

    def __init__(
        self, layout: Layout, site: Site, prefix: Prefix, clean: Mapping[str, Tensor], queries: Tensor, weights: Tensor
    ) -> None:
        self.prefix, self.clean, self.queries, self.weights = prefix, clean, queries, weights
        self.site = site
        number = layout.number(site)
        first = next(n for n, place in enumerate(layout.places) if place.block == layout.places[number].block)
        self._order = Recorder(layout.places, {}, first=first)

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
        site = self._order.place(module).site
        variants = self.weights.shape[1]
        weights = self.weights
        if site.key != self.site.key:
            own = self.clean[site.key]
            index = self.queries[:, None, None, None].expand(-1, own.shape[1], 1, own.shape[3])
            weights = own.gather(2, index)[:, None, :, 0].expand(-1, variants, -1, -1)
        value = spread(self.prefix.values[site.key].detach(), weights.shape[2])
        output = (weights.transpose(1, 2).to(value.dtype) @ value).transpose(1, 2)
        return output.flatten(0, 1).unsqueeze(1), weights.flatten(0, 1).unsqueeze(2)

    def soften(self, module: nn.Module, scores: Tensor, weights: Tensor) -> Tensor:
        raise NotImplementedError("the narrow form needs the attention function")

    def mix(self, value: Tensor, output: Tensor) -> None:
        raise NotImplementedError("the narrow form needs the attention function")


@contextmanager
def narrowed(layout: Layout, site: Site, prefix: Prefix, queries: Tensor, variants: int) -> Iterator[None]:
    """The narrow form: the site's layer gets its states at one position only, others before it are skipped."""
    block = layout.places[layout.number(site)].block
    states = prefix.entered[block]
    assert states is not None
    index = queries[:, None, None].expand(-1, 1, states.shape[2])
    alone = states.gather(1, index).repeat_interleave(variants, dim=0)
    rows = len(states)

    def one(value: Tensor) -> Tensor:
        value = value[:, :1] if value.dim() == 3 else value
        return times(value, rows, variants)

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if isinstance(kwargs.get("hidden_states"), Tensor):
            return args, {**kwargs, "hidden_states": alone}
        return (alone, *args[1:]), kwargs

    def returns(call: int) -> Any:
        return over(prefix.left[call], one)

    with skipped(layout, block, returns), hooks([_at_last(layout.blocks, enter)]):
        yield


def _at_last(blocks: Sequence[nn.Module], enter: Callable[..., Any]) -> Any:
    """The hook at the last layer call, which may be of a module that has been called before."""
    calls = 0
    before = sum(b is blocks[-1] for b in blocks) - 1

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return enter(module, args, kwargs) if calls > before else None

    return blocks[-1].register_forward_pre_hook(hook, with_kwargs=True)
