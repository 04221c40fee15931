"""Detection of the modules that carry information between tokens without visible weights.

A model is run on a synthetic text and on copies of it in which one token differs. In all of these runs, every attention
whose weights can be recorded is replaced by weights that carry nothing from one token to another. If a module then
returns something else for the tokens that did not change, although it was given the same for them, it mixes tokens in a
way that no attention weights show. Names of classes play no part.

Shapes: T tokens of the text, D tokens of the decoder. All runs have a batch of one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
#: A text with fewer real tokens would have none between the first one and the one in the middle.
FEWEST = 4
#: A pooled state to which tokens contribute separately may deviate from their sum by this share of a contribution.
INTERACTION = 1e-3


def unseen_mixers(runner: Runner) -> tuple[str, ...]:
    """Return the modules that carry information between tokens without weights that can be recorded.

    Only the code of the module itself counts, not that of modules inside it.

    Returns:
        The modules in the order of the model, such as "model.layers.0.mixer (MambaMixer)".
    """
    inputs = _single_text(runner)
    clean = _observed(runner, inputs, Observation())
    variants = [_perturbed(runner, inputs, {position}) for position in _positions(inputs)]
    found: dict[nn.Module, None] = {}
    while True:
        # Each turn looks inside the modules that the last one has found, with inputs that their own code did not mix.
        runs = [_observed(runner, one, Observation(clean, _changed(inputs, one), dict(found))) for one in variants]
        unknown = [module for run in runs for module in run.found if module not in found]
        found |= dict.fromkeys(unknown)
        if not unknown:
            break
    both = _perturbed(runner, inputs, set(_positions(inputs)))
    runs.append(_observed(runner, both, Observation(clean, _changed(inputs, both), dict(found))))
    found |= dict.fromkeys(_selective_pooling(runner, clean, runs))
    return tuple(
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in runner.model.named_modules()
        if module in found
    )


# -- synthetic texts -----------------------------------------------------------------------------------------------


def _single_text(runner: Runner) -> Inputs:
    """Return a text without padding, whose number of tokens differs from every size of a parameter if possible."""
    inputs = single_row(runner.builder.synthetic(), 0)
    sizes = {size for parameter in runner.model.parameters() for size in parameter.shape}
    while inputs.mask[TEXT].shape[1] in sizes and int(inputs.real().sum()) > FEWEST:
        drop = int(inputs.real().nonzero()[-1, 1])
        inputs = runner.builder.delete(inputs, TEXT, [(0, drop)])
    return inputs


def _positions(inputs: Inputs) -> tuple[int, int]:
    """Return the positions to perturb: the first real token, and one in the middle."""
    real = inputs.real()[0].nonzero()[:, 0].tolist()
    return real[0], real[len(real) // 2]


def _perturbed(runner: Runner, inputs: Inputs, positions: set[int]) -> Inputs:
    """Return a copy of the text with other tokens at some positions."""
    ids, builder = inputs.ids[TEXT].clone(), runner.builder
    reserved = {*builder.tokenizer.all_special_ids, builder.pad_id, *ids[0].tolist()}
    size = min(int(builder.model.config.get_text_config().vocab_size), len(builder.tokenizer))
    others = [token for token in range(size) if token not in reserved]
    for position in positions:
        ids[0, position] = others[position % len(others)]
    return builder.with_decoder(replace(inputs, ids={**inputs.ids, TEXT: ids}))


def _changed(inputs: Inputs, variant: Inputs) -> dict[int, Tensor]:
    """Return a number of tokens -> mask of the positions whose tokens differ in the streams of that length."""
    changed: dict[int, Tensor] = {}
    for stream in (TEXT, DECODER):
        if stream in inputs.ids:
            differs = inputs.ids[stream][0] != variant.ids[stream][0]
            changed[len(differs)] = changed.get(len(differs), torch.zeros_like(differs)) | differs
    return changed


# -- observed runs -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Observation:
    """What the modules of a model were given and returned in one run, compared with an earlier run.

    Attributes:
        clean: The run to compare with; None for the first run.
        changed: A number of tokens -> mask of the positions whose tokens differ from those of the clean run.
        found: The modules that mix tokens. New ones are added. What they return for unchanged tokens is replaced by
            what they returned in the clean run, and so is what the modules inside them are given.
        inputs: Module and number of its call -> the tensors that it was given.
        outputs: The same for the tensors that it returned.
        events: All tensors in the order of the run, each with the module whose code made it.
        calls: How often each module was called.
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
        """Record the tensors that a module is given. This is a forward pre-hook."""
        key = (module, self.calls[module])
        self.calls[module] += 1
        if self.clean is not None and any(outer in self.found for outer, _, _ in self._running):
            args, kwargs = self._restored((args, kwargs), self.clean.inputs.get(key, []))
        self.inputs[key] = _copies((args, kwargs))
        self.events += [(self._running[-1][0], one) for one in self.inputs[key] if self._running]
        self._running.append((*key, self._is_same_elsewhere(self.inputs[key], key)))
        return args, kwargs

    def leave(self, module: nn.Module, _args: Any, output: Any) -> Any:
        """Compare what a module returns with what it returned in the clean run. This is a forward hook."""
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
        """Return a mask that broadcasts to a shape, True where no axis over tokens is at a changed position.

        It is None if the tensor has no axis over tokens.
        """
        mask: Tensor | None = None
        for axis, size in enumerate(shape):
            if size in self.changed and len(shape) > 1:
                same = ~self.changed[size].reshape(-1, *(1,) * (len(shape) - axis - 1))
                mask = same if mask is None else mask & same
        return mask

    def _is_same_elsewhere(self, given: Sequence[Tensor], key: tuple[nn.Module, int]) -> bool:
        """Tell whether a module is given some tokens, and the same as in the clean run except for changed tokens.

        A tensor without an axis over tokens must not differ at all, because it may depend on all tokens.
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
        """Tell whether a tensor over tokens differs from another one at a token that did not change."""
        mask = self.elsewhere(value.shape)
        return mask is not None and bool((_differs(value, clean) & mask).any())

    def _restored(self, structure: Any, clean: Sequence[Tensor]) -> Any:
        """Replace the tensors in nested structures by those of the clean run, except at positions of changed tokens."""
        remaining = iter(clean if _alike(_copies(structure), clean) else ())

        def restore(value: Tensor) -> Tensor:
            other = next(remaining, None)
            mask = None if other is None else self.elsewhere(value.shape)
            return value if other is None or mask is None else torch.where(mask, other, value)

        return pytree.tree_map_only(Tensor, restore, structure)


def _observed(runner: Runner, inputs: Inputs, observation: Observation) -> Observation:
    """Run the model without mixing by recorded attention, and return the observation that the run has filled."""
    unchanged = _positions(inputs)[0] + 1

    def keep_apart(site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
        """Let each token attend to itself, and all tokens of another stream to one token that does not change."""
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
    """Return copies of the tensors in nested structures."""
    return [one.detach().clone() for one in pytree.tree_leaves(structure) if isinstance(one, Tensor)]


def _alike(given: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Tell whether two lists have tensors of the same shapes, and at least one."""
    return bool(given) and [one.shape for one in given] == [one.shape for one in before]


def _differs(value: Tensor, clean: Tensor) -> Tensor:
    """Return a mask of the numbers in a tensor that differ from those of another one by more than rounding."""
    if not value.is_floating_point():
        return value != clean
    return (value - clean).abs() > ROUNDING * _largest(clean)


def _largest(value: Tensor) -> float:
    """Return the largest absolute value of a tensor, 0 if none is finite."""
    return float(value.nan_to_num(0.0, 0.0, 0.0).abs().max()) if value.numel() else 0.0


# -- heads ---------------------------------------------------------------------------------------------------------


def _selective_pooling(runner: Runner, clean: Observation, runs: Sequence[Observation]) -> list[nn.Module]:
    """Return the module that pools the tokens after the last layer with weights that depend on the tokens, if any.

    The mean of all tokens, or the state of a single one, is the sum of what each token contributes. Two changed tokens
    therefore change it by the sum of what each of them changes.

    Args:
        runner: Runs the model.
        clean: The run of the unchanged text.
        runs: The runs in which one token, another token, and both of them are changed.
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
        # Later modules may do anything with the pooled state.
        return [module] if _largest(interaction) > allowed else []
    return []
