"""Find the modules that carry information between tokens without weights that can be recorded.

The model runs on a synthetic text, and on copies of the text in which one token is changed. In all of these runs, the
attention weights that can be recorded are replaced by weights that carry nothing from one token to another. A module
should then return the same values for unchanged tokens in all runs, if it gets the same inputs for these tokens. A
module that returns different values mixes tokens in a way that no attention weights show. The names of classes are not
used.

Shapes: T tokens of the text, D tokens of the decoder. All runs have a batch of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.huggingface.input_builder import single_row
from attnaudit.adapters.huggingface.layout import DECODER
from attnaudit.adapters.huggingface.runner import Runner
from attnaudit.adapters.protocol import TEXT, Inputs, Site

#: Differences up to this share of the largest value of a tensor count as rounding.
ROUNDING = 1e-5
#: Smallest number of real tokens in the synthetic text. With fewer, no token would be between the two tokens that are
#: changed: the first token and the token in the middle.
FEWEST = 4
#: If tokens contribute separately to a pooled state, the effect of changing two tokens is the sum of the two single
#: effects. The deviation from this sum may be at most this share of one effect.
INTERACTION = 1e-3


def unseen_mixers(runner: Runner) -> tuple[str, ...]:
    """Return the modules that carry information between tokens without weights that can be recorded.

    A module is returned only if its own code mixes tokens, not if only the modules inside it do.

    Returns:
        The modules in the order of the model, such as "model.layers.0.mixer (MambaMixer)".
    """
    inputs = _single_text(runner)
    clean = _observed(runner, inputs, Observation())
    variants = [runner.builder.perturbed(inputs, {position}) for position in _positions(inputs)]
    found: dict[nn.Module, None] = {}
    while True:
        # Each round looks inside the modules that the previous round found. The modules inside them get the inputs of
        # the clean run at unchanged tokens, as if the outer module did not mix tokens.
        runs = [_observed(runner, one, Observation(clean, _changed(inputs, one), dict(found))) for one in variants]
        unknown = [module for run in runs for module in run.found if module not in found]
        found |= dict.fromkeys(unknown)
        if not unknown:
            break
    both = runner.builder.perturbed(inputs, set(_positions(inputs)))
    runs.append(_observed(runner, both, Observation(clean, _changed(inputs, both), dict(found))))
    found |= dict.fromkeys(_selective_pooling(runner, clean, runs))
    return tuple(
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in runner.model.named_modules()
        if module in found
    )


# -- synthetic texts -----------------------------------------------------------------------------------------------


def _single_text(runner: Runner) -> Inputs:
    """Return a synthetic text without padding.

    If possible, its number of tokens differs from the size of every axis of every parameter.
    """
    inputs = single_row(runner.builder.synthetic(), 0)
    sizes = {size for parameter in runner.model.parameters() for size in parameter.shape}
    while runner.builder.deletes and inputs.mask[TEXT].shape[1] in sizes and int(inputs.real().sum()) > FEWEST:
        drop = int(inputs.real().nonzero()[-1, 1])
        inputs = runner.builder.delete(inputs, TEXT, [(0, drop)])
    return inputs


def _positions(inputs: Inputs) -> tuple[int, int]:
    """Return the positions of the tokens to change: the first real token, and the real token in the middle."""
    real = inputs.real()[0].nonzero()[:, 0].tolist()
    return real[0], real[len(real) // 2]


def _changed(inputs: Inputs, variant: Inputs) -> dict[int, Tensor]:
    """Return a dict, length of a stream -> mask of the positions at which the tokens of two texts differ.

    If the text and the decoder's tokens have the same length, a position counts as changed if it differs in either.
    """
    changed: dict[int, Tensor] = {}
    for stream in (TEXT, DECODER):
        if stream in inputs.ids:
            differs = inputs.ids[stream][0] != variant.ids[stream][0]
            changed[len(differs)] = changed.get(len(differs), torch.zeros_like(differs)) | differs
    return changed


# -- observed runs -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Observation:
    """The inputs and outputs of all modules in one run of a model, compared with those of a clean run.

    Attributes:
        clean: The clean run, on the unchanged text; None if this is the clean run.
        changed: Length of a stream -> mask of the positions whose tokens differ from those of the clean run.
        found: The modules that mix tokens. The run adds the modules that it finds. At unchanged tokens, the outputs of
            these modules, and the inputs of the modules inside them, are replaced by those of the clean run.
        inputs: (module, index of its call) -> the tensors that the module was called with.
        outputs: (module, index of its call) -> the tensors that the module returned.
        events: All of these tensors in the order of the run, each with the module whose code computed it.
        calls: The number of calls of each module.
    """

    clean: Observation | None = None
    changed: Mapping[int, Tensor] = field(default_factory=dict)
    found: dict[nn.Module, None] = field(default_factory=dict)
    inputs: dict[tuple[nn.Module, int], list[Tensor]] = field(default_factory=dict)
    outputs: dict[tuple[nn.Module, int], list[Tensor]] = field(default_factory=dict)
    events: list[tuple[nn.Module, Tensor]] = field(default_factory=list)
    calls: Counter[nn.Module] = field(default_factory=Counter)
    _running: list[tuple[nn.Module, int, bool]] = field(default_factory=list)

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Record the tensors that a module is called with. This is a forward pre-hook."""
        key = (module, self.calls[module])
        self.calls[module] += 1
        if self.clean is not None and any(outer in self.found for outer, _, _ in self._running):
            args, kwargs = self._restored((args, kwargs), self.clean.inputs.get(key, []))
        self.inputs[key] = _copies((args, kwargs))
        self.events += [(self._running[-1][0], one) for one in self.inputs[key] if self._running]
        self._running.append((*key, self._is_same_elsewhere(self.inputs[key], key)))
        return args, kwargs

    def leave(self, module: nn.Module, _args: Any, output: Any) -> Any:
        """Record the output of a module, and compare it with that of the clean run. This is a forward hook."""
        _, call, comparable = self._running.pop()
        self.outputs[module, call] = _copies(output)
        self.events += [(module, one) for one in self.outputs[module, call]]
        if self.clean is None or not comparable:
            return output
        before = self.clean.outputs.get((module, call), [])
        if _alike(self.outputs[module, call], before) and any(
            self._differs_elsewhere(one, other) for one, other in zip(self.outputs[module, call], before, strict=True)
        ):
            self.found[module] = None
            return self._restored(output, before)
        return output

    def elsewhere(self, shape: torch.Size) -> Tensor | None:
        """Return a mask of the entries of a tensor that belong only to unchanged tokens.

        An axis is over tokens if its size is the length of a stream, and the tensor also has other axes.

        Args:
            shape: The shape of the tensor.

        Returns:
            A mask that broadcasts to the shape; None if no axis of the tensor is over tokens.
        """
        mask: Tensor | None = None
        for axis, size in enumerate(shape):
            if size in self.changed and len(shape) > 1:
                same = ~self.changed[size].reshape(-1, *(1,) * (len(shape) - axis - 1))
                mask = same if mask is None else mask & same
        return mask

    def _is_same_elsewhere(self, given: Sequence[Tensor], key: tuple[nn.Module, int]) -> bool:
        """Return whether the inputs of a call are the same as in the clean run, except at changed tokens.

        At least one input must have an axis over tokens. An input without such an axis must not differ at all, because
        it may depend on all tokens.
        """
        before = [] if self.clean is None else self.clean.inputs.get(key, [])
        masks = [self.elsewhere(one.shape) for one in given]
        if not _alike(given, before) or all(mask is None for mask in masks):
            return False
        differences = [_differs(one, other) for one, other in zip(given, before, strict=True)]
        return not any(
            bool((differs if mask is None else differs & mask).any())
            for differs, mask in zip(differences, masks, strict=True)
        )

    def _differs_elsewhere(self, value: Tensor, clean: Tensor) -> bool:
        """Return whether a tensor differs from that of the clean run at an unchanged token."""
        mask = self.elsewhere(value.shape)
        return mask is not None and bool((_differs(value, clean) & mask).any())

    def _restored(self, structure: Any, clean: Sequence[Tensor]) -> Any:
        """Replace the tensors in a nested structure by those of the clean run, except at changed tokens."""
        remaining = iter(clean if _alike(_copies(structure), clean) else ())

        def restore(value: Tensor) -> Tensor:
            other = next(remaining, None)
            mask = None if other is None else self.elsewhere(value.shape)
            return value if other is None or mask is None else torch.where(mask, other, value)

        return pytree.tree_map_only(Tensor, restore, structure)


def _observed(runner: Runner, inputs: Inputs, observation: Observation) -> Observation:
    """Run the model with attention weights that mix no tokens. Fill the observation, and return it."""
    unchanged = _positions(inputs)[0] + 1

    def keep_apart(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
        """Let each token attend only to itself, or, in cross-attention, only to one unchanged token of the text."""
        apart = torch.zeros_like(weights)
        if site.kind == "self":
            apart.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        else:
            apart[..., unchanged] = 1.0
        return apart

    with _observing(runner.model, observation), torch.no_grad():
        runner.run(inputs, intervene=keep_apart)
    return observation


@contextmanager
def _observing(model: nn.Module, observation: Observation) -> Iterator[None]:
    modules = list(model.modules())
    handles = [module.register_forward_pre_hook(observation.enter, with_kwargs=True) for module in modules]
    handles += [module.register_forward_hook(observation.leave) for module in modules]
    with temporary_hooks(handles):
        yield


def _copies(structure: Any) -> list[Tensor]:
    """Return copies of the tensors in a nested structure."""
    return [one.detach().clone() for one in pytree.tree_leaves(structure) if isinstance(one, Tensor)]


def _alike(given: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors have the same shapes and are not empty."""
    return bool(given) and [one.shape for one in given] == [one.shape for one in before]


def _differs(value: Tensor, clean: Tensor) -> Tensor:
    """Return a mask, True where a tensor differs from that of the clean run by more than rounding explains."""
    if not value.is_floating_point():
        return value != clean
    return (value - clean).abs() > ROUNDING * _largest(clean)


def _largest(value: Tensor) -> float:
    """Return the largest finite absolute value in a tensor; 0 if there is none."""
    return float(value.nan_to_num(0.0, 0.0, 0.0).abs().max()) if value.numel() else 0.0


# -- pooling -------------------------------------------------------------------------------------------------------


def _selective_pooling(runner: Runner, clean: Observation, runs: Sequence[Observation]) -> list[nn.Module]:
    """Find a module that pools the tokens after the last layer with weights that depend on the tokens.

    The mean of all tokens, or the state of a single token, is a sum of separate contributions of the tokens. The effect
    of changing two tokens is then the sum of the effects of changing each. With weights that depend on the tokens, the
    effects interact.

    Args:
        runner: Runs the model.
        clean: The run of the unchanged text.
        runs: Three runs, in which one token, another token, and both tokens are changed.

    Returns:
        A list with the module; an empty list if there is no such module.
    """
    layers = runner.layout.layers
    origins = [module for module, _ in clean.events]
    if not layers or any([module for module, _ in run.events] != origins for run in runs):
        return []
    start = len(origins) - origins[::-1].index(layers[-1])
    for number, (module, value) in enumerate(clean.events[start:], start):
        others = [run.events[number][1] for run in runs]
        over_tokens = runs[-1].elsewhere(value.shape) is not None
        if over_tokens or not value.is_floating_point() or any(one.shape != value.shape for one in others):
            continue
        one, two, both = others
        if not _differs(one, value).any() or not _differs(two, value).any():
            continue
        interaction = (both - one) - (two - value)
        allowed = INTERACTION * _largest(two - value) + ROUNDING * _largest(value)
        # Only the first pooled state is tested, because later modules may change it in any way.
        return [module] if _largest(interaction) > allowed else []
    return []
