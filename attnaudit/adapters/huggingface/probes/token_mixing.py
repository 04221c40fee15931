"""Find the modules that carry information between tokens without weights that can be recorded.

The model runs on a synthetic text, and on copies of the text in which one token is changed. In all of these runs, the
attention weights that can be recorded are replaced by weights that carry nothing from one token to another. A module
should then return the same values for unchanged tokens in all runs, if it gets the same inputs for these tokens. A
module that returns different values mixes tokens in a way that no attention weights show. The names of classes are not
used.

Shapes: T tokens of the text, D tokens of the decoder. All runs have a batch of one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.layout import DECODER
from attnaudit.adapters.huggingface.outputs.read_tokens import ReadTokens, read_positions
from attnaudit.adapters.huggingface.passes.runner import Runner
from attnaudit.adapters.huggingface.probes.observed_modules import (
    ROUNDING,
    Event,
    Observation,
    Place,
    differs,
    largest,
    observing,
)
from attnaudit.adapters.huggingface.texts.input_builder import single_row
from attnaudit.adapters.protocol import TEXT, Inputs, Site

#: Smallest number of real tokens in the synthetic text. With fewer, no token would be between the two tokens that are
#: changed: the first token and the token in the middle.
FEWEST = 4
#: If tokens contribute separately to a pooled state, the effect of changing two tokens is the sum of the two single
#: effects. The deviation from this sum may be at most this share of one effect.
INTERACTION = 1e-3
#: Number of texts on which this is tested. On a single text, the largest values of a few features may all come from one
#: of the two groups of tokens, or from special tokens, so that a maximum of these features would not be noticed.
POOLED_TEXTS = 2


def unseen_mixers(runner: Runner, read_tokens: ReadTokens) -> tuple[str, ...]:
    """Return the modules that carry information between tokens without weights that can be recorded.

    A module is returned only if its own code mixes tokens, not if only the modules inside it do.

    Args:
        runner: Runs the model.
        read_tokens: The tokens that the logits are read from.

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
    found |= dict.fromkeys(_around_attention(runner, read_tokens, inputs, clean, runs))
    # If modules mix tokens, or a decoder attends to one token, only two tokens may be changed.
    parts = [{one} for one in _positions(inputs)] if found or runner.builder.decoder is not None else _halves(inputs)
    for _ in range(POOLED_TEXTS):
        variants = [runner.builder.perturbed(inputs, part) for part in (*parts, parts[0] | parts[1])]
        found |= dict.fromkeys(_selective_pooling(runner, clean, inputs, variants, found))
        inputs = runner.builder.perturbed(inputs, inputs.real()[0].nonzero()[:, 0].tolist())
        clean = _observed(runner, inputs, Observation())
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


def _halves(inputs: Inputs) -> list[set[int]]:
    """Return two sets with the positions of every second real token, which have no token in common.

    If many tokens are changed, the largest values of the states come from changed tokens, so that a maximum is noticed.
    """
    real = inputs.real()[0].nonzero()[:, 0].tolist()
    return [set(real[::2]), set(real[1::2])]


def _changed(inputs: Inputs, variant: Inputs) -> dict[int, Tensor]:
    """Return a dict, length of a stream -> mask of the positions at which the tokens of two texts differ.

    If the text and the decoder's tokens have the same length, a position counts as changed if it differs in either.
    """
    changed: dict[int, Tensor] = {}
    for stream in (TEXT, DECODER):
        if stream in inputs.ids:
            here = inputs.ids[stream][0] != variant.ids[stream][0]
            changed[len(here)] = changed.get(len(here), torch.zeros_like(here)) | here
    return changed


# -- observed runs -------------------------------------------------------------------------------------------------


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

    with observing(runner.model, observation), torch.no_grad():
        observation.logits = runner.run(inputs, intervene=keep_apart).logits
    return observation


# -- ways around attention -----------------------------------------------------------------------------------------


def _around_attention(
    runner: Runner, read_tokens: ReadTokens, inputs: Inputs, clean: Observation, runs: Sequence[Observation]
) -> list[nn.Module]:
    """Find a module that carries tokens to the logits without the token that the logits are read from.

    If no attention carries information between tokens, another token can change the logits only in this way. An example
    is a sum of all embeddings that a head adds to the state of the first token. After the last layer, the gradients
    show only the first token.

    Args:
        runner: Runs the model.
        read_tokens: The tokens that the logits are read from.
        inputs: The unchanged text.
        clean: The run of the unchanged text.
        runs: Runs in which one token is changed.

    Returns:
        A list with the module; an empty list if there is no such module, or if the logits are read from all tokens or
        in a decoder.
    """
    if read_tokens not in ("first", "last") or runner.builder.decoder is not None:
        return []
    mask = runner.builder.output_mask(inputs)
    read = int(read_positions(mask, read_tokens)[0])
    assert clean.logits is not None
    for run in runs:
        changed = run.changed.get(mask.shape[1])
        if changed is None or bool(changed[read]) or run.logits is None:
            continue
        if not bool(differs(run.logits, clean.logits).any()):
            continue
        for event, other in zip(clean.events, run.events, strict=False):
            same = event.origin is other.origin and event.value.shape == other.value.shape
            if not same or (run.elsewhere(event.value.shape) is None and bool(differs(other.value, event.value).any())):
                return [event.origin]
        return [clean.events[-1].origin]
    return []


# -- pooling -------------------------------------------------------------------------------------------------------


def _selective_pooling(
    runner: Runner,
    clean: Observation,
    inputs: Inputs,
    variants: Sequence[Inputs],
    found: Mapping[nn.Module, None],
) -> list[nn.Module]:
    """Find a module that pools the tokens after the last layer with weights that depend on the tokens.

    The mean of all tokens, or the state of a single token, is a sum of separate contributions of the tokens. The effect
    of changing two groups of tokens is then the sum of the effects of changing each. With weights that depend on the
    tokens, or with a maximum, the effects interact.

    A head can pool the tokens several times. A module that gets a pooled state may change it in any way, so the effects
    on its output may interact. Once a pooled state has passed the test, it is therefore replaced by that of the clean
    run, and the runs are repeated until no state after the last layer depends on both groups.

    Args:
        runner: Runs the model.
        clean: The run of the unchanged text.
        inputs: The unchanged text.
        variants: Three texts, in which one group of tokens, another group, and both groups are changed.
        found: The modules that are known to mix tokens.

    Returns:
        The module, after other modules that are found to mix tokens in these texts; an empty list if there are none.
    """
    if not runner.layout.layers:
        return []
    frozen: set[Place] = set()
    while True:
        runs = [
            _observed(runner, one, Observation(clean, _changed(inputs, one), dict(found), frozenset(frozen)))
            for one in variants
        ]
        more = [module for run in runs for module in run.found if module not in found]
        pooled = _first_pooled(runner.layout.layers[-1], clean, runs)
        if pooled is None:
            return more
        event, is_sum = pooled
        if not is_sum:
            return [*more, event.origin]
        frozen.add(event.place)


def _first_pooled(last: nn.Module, clean: Observation, runs: Sequence[Observation]) -> tuple[Event, bool] | None:
    """Return the first tensor after the last layer that depends on both groups of tokens, and has no axis over tokens.

    Args:
        last: The last layer.
        clean: The run of the unchanged text.
        runs: Three runs, in which one group of tokens, another group, and both groups are changed.

    Returns:
        The tensor in the clean run, and whether the effects of the two groups add up; None if there is no such tensor.
        If the code after the last layer calls other modules for other tokens, its tensors cannot be compared. Then its
        last tensor of the run is returned, and the flag is False.
    """
    tails = [_after(last, run, runs[-1].changed.keys()) for run in (clean, *runs)]
    calls = [[(one.origin, one.place, one.value.shape) for one in tail] for tail in tails]
    if any(other != calls[0] for other in calls):
        return clean.events[-1], False
    for event, *others in zip(*tails, strict=True):
        value = event.value
        if runs[-1].elsewhere(value.shape) is not None or not value.is_floating_point():
            continue
        one, two, both = (other.value for other in others)
        # A maximum can depend on a group only where the other group is changed, too.
        first_has_effect = differs(one, value).any() or differs(both, two).any()
        second_has_effect = differs(two, value).any() or differs(both, one).any()
        if not first_has_effect or not second_has_effect:
            continue
        interaction = (both - one) - (two - value)
        allowed = INTERACTION * largest(two - value) + ROUNDING * largest(value)
        return event, largest(interaction) <= allowed
    return None


def _after(last: nn.Module, run: Observation, lengths: Set[int]) -> list[Event]:
    """Return the events after the last one whose tensor the code of a layer computed.

    Events inside modules that return only tensors over tokens are left out. What these modules return for unchanged
    tokens is compared with the clean run. Inside them, tokens can be sorted and put back, as experts do.

    Args:
        last: The layer.
        run: The run.
        lengths: The lengths of the streams.
    """
    start = max(number for number, event in enumerate(run.events) if event.origin is last)

    def returns_tokens(call: tuple[nn.Module, int]) -> bool:
        shapes = [one.shape for one in run.outputs.get(call, [])]
        return bool(shapes) and all(len(shape) > 1 and not lengths.isdisjoint(shape) for shape in shapes)

    return [event for event in run.events[start + 1 :] if not any(map(returns_tokens, event.within))]
