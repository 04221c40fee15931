"""Checks of the methods that remove or replace tokens: `delete`, `keep` and `substitute`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from attnaudit.adapters.optional_methods import DrawingAdapter
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.conformance.contract import BrokenContractError, contract, require_close, require_same_logits
from attnaudit.conformance.sample_texts import Examples, per_token


def _row(values: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """Select one row of every tensor, and return it as a batch of one row."""
    return {name: value[row][None] for name, value in values.items()}


def _unpadded(inputs: Inputs, values: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """Select the unpadded positions of one row of every tensor, and return them as a batch of one row."""
    return {name: value[row][inputs.mask[name][row]][None] for name, value in values.items()}


def _candidates(e: Examples) -> list[tuple[int, list[int]]]:
    """Return one pair for every instance with at least two real tokens, from the longest instance to the shortest.

    Returns:
        Pairs of a row and the positions of its real tokens.
    """
    real = e.inputs.real()
    rows = [(row, real[row].nonzero()[:, 0].tolist()) for row in real.sum(1).argsort(descending=True).tolist()]
    return [(row, places) for row, places in rows if len(places) >= 2]


@contract("deletion")
def check_deletion(e: Examples) -> str:
    """delete() gives the same inputs and logits as encoding the shorter input. keep() of all other positions gives the
    same result as delete()."""
    rows = _candidates(e)[: 4 if e.thorough else 1]
    if not rows:
        return "no instance has two tokens, so nothing was deleted"
    count = 0
    for row, places in rows:
        chosen = sorted({places[0], places[len(places) // 2], places[-1]})
        _require_deleted(e, row, chosen)
        count += len(chosen)
    return f"deletion gives the logits of the shorter input ({count} positions)"


def _require_deleted(e: Examples, row: int, chosen: list[int]) -> None:
    variants = e.adapter.delete(e.inputs, TEXT, [(row, place) for place in chosen])
    if set(variants.extra) != set(e.inputs.extra):
        raise BrokenContractError(
            f"delete() returns Inputs.extra with the entries {sorted(variants.extra)}, but its input has "
            f"{sorted(e.inputs.extra)}. Copy all entries of each row."
        )
    logits = e.run(variants).logits
    for v, place in enumerate(chosen):
        remaining = [t for t in e.inputs.mask[TEXT][row].nonzero()[:, 0].tolist() if t != place]
        expected = e.inputs.ids[TEXT][row, remaining].tolist()
        ids = variants.ids[TEXT][v][variants.mask[TEXT][v]].tolist()
        if ids != expected:
            raise BrokenContractError(
                f"delete() of position {place} returns the ids {ids[:8]}...; expected {expected[:8]}.... Remove only "
                "the id at that position; do not decode the ids and tokenise the text again."
            )
        special = e.inputs.special[TEXT][row, remaining]
        if variants.special[TEXT][v][variants.mask[TEXT][v]].tolist() != special.tolist():
            raise BrokenContractError(
                "delete() returns special flags that differ from those of the remaining tokens. Move each flag "
                "together with its token."
            )
        # The other streams are taken from the variant, because they may depend on the text, as a decoder's inputs do.
        shorter = Inputs(
            tables=e.inputs.tables,
            ids={**_unpadded(variants, variants.ids, v), TEXT: e.inputs.ids[TEXT][row, remaining][None]},
            mask={**_unpadded(variants, variants.mask, v), TEXT: e.inputs.mask[TEXT][row, remaining][None]},
            special={**_unpadded(variants, variants.special, v), TEXT: special[None]},
            extra={
                **_row(variants.extra, v),
                **{n: e.inputs.extra[n][row, remaining][None] for n in per_token(e.inputs)},
            },
        )
        require_same_logits(
            logits[v],
            e.run(shorter).logits[0],
            "the logits of a variant from delete() and of the shorter input differ",
            "Pad variants as collate() does, and move special flags and masks together with their tokens.",
        )
    kept = torch.ones((len(chosen), e.inputs.ids[TEXT].shape[1]), dtype=torch.bool, device=e.device)
    kept[range(len(chosen)), chosen] = False
    kept_rows = torch.full((len(chosen),), row, device=e.device)
    require_same_logits(
        e.run(e.adapter.keep(e.inputs, TEXT, kept_rows, kept)).logits,
        logits,
        "the logits after delete() of a position and after keep() of all other positions differ",
        "keep() must return the marked positions in their original order, as delete() does.",
    )
    if bool((variants.special[TEXT] & ~variants.mask[TEXT]).any()):
        raise BrokenContractError(
            "delete() flags padding as special. Move the special flags together with their tokens."
        )


@contract("deletion", quick=False)
def check_repeated_deletion(e: Examples) -> str:
    """keep() gives the same inputs and logits as deleting all other positions one after another."""
    rows = [(row, places) for row, places in _candidates(e) if len(places) >= 3][:2]
    if not rows:
        return "no instance has three tokens, so nothing was deleted"
    for row, places in rows:
        deleted = sorted({places[0], places[len(places) // 2], places[-1]} - {places[1]}, reverse=True)[:3]
        tokens = e.inputs.mask[TEXT][row].nonzero()[:, 0].tolist()
        remaining, at = e.inputs, row
        for place in deleted:  # From the last to the first, so that the ranks of the remaining tokens do not change.
            position = int(remaining.mask[TEXT][at].nonzero()[tokens.index(place), 0])
            remaining, at = e.adapter.delete(remaining, TEXT, [(at, position)]), 0
        keep = e.inputs.mask[TEXT][row].clone()
        keep[deleted] = False
        rows_ = torch.tensor([row], device=e.device)
        together = e.adapter.keep(e.inputs, TEXT, rows_, keep[None])
        advice = "keep() must return the marked positions in their original order, as repeated calls of delete() do."
        ids = together.ids[TEXT][0][together.mask[TEXT][0]].tolist()
        expected = remaining.ids[TEXT][0][remaining.mask[TEXT][0]].tolist()
        if ids != expected:
            raise BrokenContractError(
                f"keep() without the positions {deleted} returns {len(ids)} ids, {ids[:8]}...; deleting them one after "
                f"another returns {len(expected)}, {expected[:8]}.... {advice}"
            )
        require_same_logits(
            e.run(together).logits,
            e.run(remaining).logits,
            "the logits of keep() and of repeated delete() differ",
            advice,
        )
    return "keeping some tokens gives the same result as deleting the others one after another"


@contract("mask")
def check_substitution(e: Examples) -> str:
    """substitute() replaces the ids at the marked positions with the mask id, and changes nothing else."""
    real = e.inputs.real()
    rows = torch.arange(len(real), device=e.device)
    first = torch.zeros_like(real)
    first[rows, real.int().argmax(1)] = True
    masked = e.adapter.substitute(e.inputs, TEXT, rows, first)
    before, after = e.inputs.ids[TEXT], masked.ids[TEXT]
    if before.shape != after.shape or not torch.equal(masked.mask[TEXT], e.inputs.mask[TEXT]):
        raise BrokenContractError(
            "substitute() changes the length or the padding. Replace only the id at each marked position, and leave "
            "every token in its place."
        )
    if bool((before != after)[~first].any()):
        raise BrokenContractError(
            "substitute() changes ids at unmarked positions. Replace only the ids at the marked positions."
        )
    if bool((after[first] != after[first][0]).any()):
        raise BrokenContractError(
            "substitute() writes different ids to the marked positions. Write the mask id to all of them."
        )
    if not bool(e.run(masked).logits.isfinite().all()):
        raise BrokenContractError(
            "the logits of a variant from substitute() are not finite. Check that the mask id has an embedding."
        )
    if e.capabilities.unitwise:
        _require_unitwise(e, first, masked)
    if e.capabilities.draws > 1:
        _require_keyed_draws(e, first)
    return f"marked positions contain id {int(after[first][0])}, and the others are unchanged"


def _require_keyed_draws(e: Examples, replaced: Tensor) -> None:
    """Require that the replacements of a row do not depend on its batch, and that the draws differ.

    Args:
        e: The examples.
        replaced: (B, T) True at one token of each row.
    """
    adapter, rows, alone = cast(DrawingAdapter, e.adapter), torch.arange(len(replaced), device=e.device), []
    real = e.inputs.real()
    draws = [e.run(adapter.substitute_draw(e.inputs, TEXT, rows, replaced, draw)).logits for draw in (0, 1)]
    for instance in e.instances:
        inputs = e.adapter.collate([instance])
        one = torch.zeros_like(inputs.real())
        one[0, inputs.real()[0].int().argmax()] = True
        row = torch.zeros(1, dtype=torch.long, device=e.device)
        alone.append(e.run(adapter.substitute_draw(inputs, TEXT, row, one, 1)).logits)
    require_same_logits(
        draws[1],
        torch.cat(alone),
        "the replacements of substitute_draw() differ between a row alone and the same row in a batch",
        "Derive the replacement of a unit from the row, the unit and the draw alone.",
    )
    everything = [e.run(adapter.substitute_draw(e.inputs, TEXT, rows, real, draw)).logits for draw in (0, 1)]
    if torch.equal(everything[0], everything[1]):
        raise BrokenContractError(
            "the capabilities declare several draws, but substitute_draw() replaces all units in the same way in "
            "draws 0 and 1. Use the number of the draw as a part of the seed."
        )


def _require_unitwise(e: Examples, replaced: Tensor, masked: Inputs) -> None:
    """Require that all replaced tokens get the same hidden state, and that no other hidden state changes.

    Args:
        e: The examples.
        replaced: (B, T) True at some of the tokens.
        masked: The batch with these tokens replaced by the mask token.
    """
    if not e.capabilities.decodes:
        raise BrokenContractError("the capabilities declare unitwise, which requires decodes. Implement decode().")
    real = e.inputs.real()
    rows = torch.arange(len(real), device=e.device)
    key = e.sites[0].key
    all_masked = e.run(e.adapter.substitute(e.inputs, TEXT, rows, real)).hidden[key]
    expected = torch.where(replaced[..., None], all_masked, e.trace.hidden[key])
    require_close(
        e.run(masked).hidden[key][real],
        expected[real],
        "the capabilities declare unitwise, but replacing a token changes the hidden states of other tokens by up to",
        "Declare unitwise=False if the encoder mixes tokens or reads their positions.",
    )
