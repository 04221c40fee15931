"""The inputs and outputs of all modules in a run of a model, compared with those of a run on another text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks

#: Differences up to this share of the largest value of a tensor count as rounding.
ROUNDING = 1e-5
#: A tensor of a call of a module: the module, the number of its earlier calls, whether the tensor is an argument or a
#: result of the call, and its index among the tensors of this kind.
Place = tuple[nn.Module, int, Literal["argument", "result"], int]


@dataclass(frozen=True, slots=True)
class Event:
    """A tensor that a module was called with, or that it returned.

    Attributes:
        origin: The module whose code computed the tensor.
        place: The call that the tensor was given to, or that returned it.
        value: The tensor.
        within: The calls that were running around this call, each as a module and the number of its earlier calls.
    """

    origin: nn.Module
    place: Place
    value: Tensor
    within: tuple[tuple[nn.Module, int], ...]


@dataclass(slots=True)
class Observation:
    """The inputs and outputs of all modules in one run of a model, compared with those of a clean run.

    Attributes:
        clean: The clean run, on the unchanged text; None if this is the clean run.
        changed: Length of a stream -> mask of the positions whose tokens differ from those of the clean run.
        found: The modules that mix tokens. The run adds the modules that it finds. At unchanged tokens, the outputs of
            these modules, and the inputs of the modules inside them, are replaced by those of the clean run.
        frozen: The tensors that are replaced by those of the clean run.
        inputs: (module, index of its call) -> the tensors that the module was called with.
        outputs: (module, index of its call) -> the tensors that the module returned.
        events: All of these tensors in the order of the run.
        calls: The number of calls of each module.
        logits: The logits of the run.
    """

    clean: Observation | None = None
    changed: Mapping[int, Tensor] = field(default_factory=dict)
    found: dict[nn.Module, None] = field(default_factory=dict)
    frozen: Set[Place] = frozenset()
    inputs: dict[tuple[nn.Module, int], list[Tensor]] = field(default_factory=dict)
    outputs: dict[tuple[nn.Module, int], list[Tensor]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    calls: Counter[nn.Module] = field(default_factory=Counter)
    logits: Tensor | None = None
    _running: list[tuple[nn.Module, int, bool]] = field(default_factory=list)
    _masks: dict[torch.Size, Tensor | None] = field(default_factory=dict)

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Record the tensors that a module is called with. This is a forward pre-hook."""
        key = (module, self.calls[module])
        self.calls[module] += 1
        if self.clean is not None:
            before = self.clean.inputs.get(key, [])
            if self._running and self._mixes_before(_tensors((args, kwargs)), before):
                self.found[self._running[-1][0]] = None
            if any(outer in self.found for outer, _, _ in self._running):
                args, kwargs = self._restored((args, kwargs), before)
            args, kwargs = self._with_frozen((args, kwargs), before, (*key, "argument"))
        self.inputs[key] = _copies((args, kwargs))
        if self._running:
            self._record(self._running[-1][0], (*key, "argument"), self.inputs[key])
        self._running.append((*key, self._is_same_elsewhere(self.inputs[key], key)))
        return args, kwargs

    def leave(self, module: nn.Module, _args: Any, output: Any) -> Any:
        """Record the output of a module, and compare it with that of the clean run. This is a forward hook."""
        _, call, comparable = self._running.pop()
        before = [] if self.clean is None else self.clean.outputs.get((module, call), [])
        output = self._with_frozen(output, before, (module, call, "result"))
        self.outputs[module, call] = _copies(output)
        self._record(module, (module, call, "result"), self.outputs[module, call])
        if self.clean is None or not comparable:
            return output
        if self._any_differs_elsewhere(self.outputs[module, call], before):
            self.found[module] = None
            return self._restored(output, before)
        return output

    def _record(
        self, origin: nn.Module, of: tuple[nn.Module, int, Literal["argument", "result"]], values: Sequence[Tensor]
    ) -> None:
        """Add the arguments or the results of a call to the events."""
        within = tuple((module, call) for module, call, _ in self._running)
        self.events += [Event(origin, (*of, index), value, within) for index, value in enumerate(values)]

    def elsewhere(self, shape: torch.Size) -> Tensor | None:
        """Return a mask of the entries of a tensor that belong only to unchanged tokens.

        An axis is over tokens if its size is the length of a stream, and the tensor also has other axes.

        Args:
            shape: The shape of the tensor.

        Returns:
            A mask that broadcasts to the shape; None if no axis of the tensor is over tokens.
        """
        if shape not in self._masks:
            mask: Tensor | None = None
            for axis, size in enumerate(shape):
                if size in self.changed and len(shape) > 1:
                    same = ~self.changed[size].reshape(-1, *(1,) * (len(shape) - axis - 1))
                    mask = same if mask is None else mask & same
            self._masks[shape] = mask
        return self._masks[shape]

    def _mixes_before(self, given: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
        """Return whether the code of the running module has mixed tokens before it calls a module inside it.

        This is asked only of modules whose outputs have no axis over tokens, such as a whole classifier. The outputs of
        all others are compared when they return, which also allows tokens to be sorted and put back, as experts do.

        Args:
            given: The tensors that the inner module is called with.
            before: The same tensors in the clean run.
        """
        module, call, comparable = self._running[-1]
        if not comparable or self.clean is None:
            return False
        outputs = self.clean.outputs.get((module, call), [])
        without_tokens = all(self.elsewhere(one.shape) is None for one in outputs)
        return without_tokens and self._any_differs_elsewhere(given, before)

    def _any_differs_elsewhere(self, values: Sequence[Tensor], clean: Sequence[Tensor]) -> bool:
        """Return whether one of the tensors differs from that of the clean run at an unchanged token."""
        return _alike(values, clean) and any(
            self._differs_elsewhere(one, other) for one, other in zip(values, clean, strict=True)
        )

    def _is_same_elsewhere(self, given: Sequence[Tensor], key: tuple[nn.Module, int]) -> bool:
        """Return whether the inputs of a call are the same as in the clean run, except at changed tokens.

        At least one input must have an axis over tokens. An input without such an axis must not differ at all, because
        it may depend on all tokens.
        """
        before = [] if self.clean is None else self.clean.inputs.get(key, [])
        if not _alike(given, before) or all(self.elsewhere(one.shape) is None for one in given):
            return False
        return not any(
            _any_differs(one, other, self.elsewhere(one.shape)) for one, other in zip(given, before, strict=True)
        )

    def _differs_elsewhere(self, value: Tensor, clean: Tensor) -> bool:
        """Return whether a tensor differs from that of the clean run at an unchanged token."""
        mask = self.elsewhere(value.shape)
        return mask is not None and _any_differs(value, clean, mask)

    def _restored(self, structure: Any, clean: Sequence[Tensor]) -> Any:
        """Replace the tensors in a nested structure by those of the clean run, except at changed tokens."""
        remaining = iter(clean if _alike(_tensors(structure), clean) else ())

        def restore(value: Tensor) -> Tensor:
            other = next(remaining, None)
            mask = None if other is None else self.elsewhere(value.shape)
            return value if other is None or mask is None else torch.where(mask, other, value)

        return pytree.tree_map_only(Tensor, restore, structure)

    def _with_frozen(
        self, structure: Any, clean: Sequence[Tensor], of: tuple[nn.Module, int, Literal["argument", "result"]]
    ) -> Any:
        """Replace the frozen tensors among the arguments or the results of a call by those of the clean run."""
        if not any((*of, index) in self.frozen for index in range(len(clean))):
            return structure
        numbers = count()

        def freeze(value: Tensor) -> Tensor:
            index = next(numbers)
            return clean[index] if (*of, index) in self.frozen else value

        return pytree.tree_map_only(Tensor, freeze, structure)


@contextmanager
def observing(model: nn.Module, observation: Observation) -> Iterator[None]:
    # The fast path of nn.TransformerEncoder passes nested tensors between its layers, whose tokens cannot be compared.
    fast = torch.backends.mha.get_fastpath_enabled()
    modules = list(model.modules())
    handles = [module.register_forward_pre_hook(observation.enter, with_kwargs=True) for module in modules]
    handles += [module.register_forward_hook(observation.leave) for module in modules]
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with temporary_hooks(handles):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _tensors(structure: Any) -> list[Tensor]:
    """Return the tensors in a nested structure."""
    return [one for one in pytree.tree_leaves(structure) if isinstance(one, Tensor)]


def _copies(structure: Any) -> list[Tensor]:
    """Return copies of the tensors in a nested structure. Later code may change the tensors themselves in place."""
    return [one.detach().clone() for one in _tensors(structure)]


def _alike(given: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors have the same shapes and are not empty."""
    return bool(given) and [one.shape for one in given] == [one.shape for one in before]


def _any_differs(value: Tensor, clean: Tensor, mask: Tensor | None) -> bool:
    """Return whether a tensor differs from that of the clean run at an entry of the mask, or anywhere without a mask.

    Most tensors are equal to the last bit, which is tested first because it takes the fewest operations.
    """
    unequal = value != clean if mask is None else (value != clean) & mask
    if not bool(unequal.any()):
        return False
    differences = differs(value, clean)
    return bool((differences if mask is None else differences & mask).any())


def differs(value: Tensor, clean: Tensor) -> Tensor:
    """Return a mask, True where a tensor differs from that of the clean run by more than rounding explains."""
    if not value.is_floating_point():
        return value != clean
    return (value - clean).abs() > ROUNDING * largest(clean)


def largest(value: Tensor) -> float:
    """Return the largest finite absolute value in a tensor; 0 if there is none."""
    return float(value.nan_to_num(0.0, 0.0, 0.0).abs().max()) if value.numel() else 0.0
