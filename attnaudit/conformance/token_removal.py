"""Tokens taken away: by deletion on ids, or by the mask id put in their place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.conformance.contract import BrokenContractError, contract, require_same_logits
from attnaudit.conformance.sample_texts import Examples, per_token


def _row(values: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: value[row][None] for name, value in values.items()}


def _unpadded(inputs: Inputs, values: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    return {name: value[row][inputs.mask[name][row]][None] for name, value in values.items()}


def _candidates(e: Examples) -> list[tuple[int, list[int]]]:
    """(row, real positions) of instances with two tokens or more, longest first."""
    real = e.inputs.real()
    rows = [(row, real[row].nonzero()[:, 0].tolist()) for row in real.sum(1).argsort(descending=True).tolist()]
    return [(row, places) for row, places in rows if len(places) >= 2]


@contract("deletion")
def check_deletion(e: Examples) -> str:
    """delete() leaves what encoding the shorter input gives, and keep() of all but one position leaves the same."""
    rows = _candidates(e)[: 4 if e.thorough else 1]
    if not rows:
        return "no instance with two tokens to try on"
    tried = 0
    for row, places in rows:
        chosen = sorted({places[0], places[len(places) // 2], places[-1]})
        _require_deleted(e, row, chosen)
        tried += len(chosen)
    return f"deletion equals encoding the shorter input ({tried} positions)"


def _require_deleted(e: Examples, row: int, chosen: list[int]) -> None:
    variants = e.adapter.delete(e.inputs, TEXT, [(row, place) for place in chosen])
    if set(variants.extra) != set(e.inputs.extra):
        raise BrokenContractError(
            f"delete() leaves extra entries {sorted(variants.extra)}, but its input has {sorted(e.inputs.extra)}. Let "
            "every entry travel with its row."
        )
    logits = e.run(variants).logits
    for v, place in enumerate(chosen):
        kept = [t for t in e.inputs.mask[TEXT][row].nonzero()[:, 0].tolist() if t != place]
        expected = e.inputs.ids[TEXT][row, kept].tolist()
        found = variants.ids[TEXT][v][variants.mask[TEXT][v]].tolist()
        if found != expected:
            raise BrokenContractError(
                f"delete() of position {place} leaves ids {found[:8]}..., expected {expected[:8]}.... "
                "Remove that id alone, never by decoding and tokenising again."
            )
        special = e.inputs.special[TEXT][row, kept]
        if variants.special[TEXT][v][variants.mask[TEXT][v]].tolist() != special.tolist():
            raise BrokenContractError("delete() loses which tokens are special. Move the flags with their tokens.")
        # Other streams as the variant has them: they may be made of this one, as a decoder's inputs are.
        shorter = Inputs(
            ids={**_unpadded(variants, variants.ids, v), TEXT: e.inputs.ids[TEXT][row, kept][None]},
            mask={**_unpadded(variants, variants.mask, v), TEXT: e.inputs.mask[TEXT][row, kept][None]},
            special={**_unpadded(variants, variants.special, v), TEXT: special[None]},
            extra={**_row(variants.extra, v), **{n: e.inputs.extra[n][row, kept][None] for n in per_token(e.inputs)}},
        )
        require_same_logits(
            logits[v],
            e.run(shorter).logits[0],
            "a variant from delete() and the shorter input differ",
            "Pad variants as collate does, and let special flags and masks move with their tokens.",
        )
    wanted = torch.ones((len(chosen), e.inputs.ids[TEXT].shape[1]), dtype=torch.bool, device=e.device)
    wanted[range(len(chosen)), chosen] = False
    kept_rows = torch.full((len(chosen),), row, device=e.device)
    require_same_logits(
        e.run(e.adapter.keep(e.inputs, TEXT, kept_rows, wanted)).logits,
        logits,
        "keep() of all positions but one and delete() of that one differ",
        "Leave in keep() what delete() leaves: the marked positions in their order.",
    )
    if bool((variants.special[TEXT] & ~variants.mask[TEXT]).any()):
        raise BrokenContractError("delete() marks padding as special. Move the special flags with their tokens.")


@contract("deletion", quick=False)
def check_repeated_deletion(e: Examples) -> str:
    """keep() leaves what delete() leaves after taking all other positions away, one after another."""
    rows = [(row, places) for row, places in _candidates(e) if len(places) >= 3][:2]
    if not rows:
        return "no instance with three tokens to try on"
    for row, places in rows:
        gone = sorted({places[0], places[len(places) // 2], places[-1]} - {places[1]}, reverse=True)[:3]
        tokens = e.inputs.mask[TEXT][row].nonzero()[:, 0].tolist()
        left, at = e.inputs, row
        for place in gone:  # from the last to the first, so that the rank of those that follow stays
            position = int(left.mask[TEXT][at].nonzero()[tokens.index(place), 0])
            left, at = e.adapter.delete(left, TEXT, [(at, position)]), 0
        keep = e.inputs.mask[TEXT][row].clone()
        keep[gone] = False
        rows_ = torch.tensor([row], device=e.device)
        together = e.adapter.keep(e.inputs, TEXT, rows_, keep[None])
        advice = "Leave in keep() the marked positions in their order, as delete() leaves them after one another."
        found = together.ids[TEXT][0][together.mask[TEXT][0]].tolist()
        expected = left.ids[TEXT][0][left.mask[TEXT][0]].tolist()
        if found != expected:
            raise BrokenContractError(
                f"keep() without positions {gone} leaves {len(found)} ids {found[:8]}..., but deleting them one after "
                f"another leaves {len(expected)}, {expected[:8]}.... {advice}"
            )
        require_same_logits(
            e.run(together).logits, e.run(left).logits, "keep() and delete() one after another differ", advice
        )
    return "keeping some tokens equals deleting the others one after another"


@contract("mask")
def check_substitution(e: Examples) -> str:
    """substitute() puts the mask id at the marked positions, and moves and changes nothing else."""
    real = e.inputs.real()
    rows = torch.arange(len(real), device=e.device)
    first = torch.zeros_like(real)
    first[rows, real.int().argmax(1)] = True
    masked = e.adapter.substitute(e.inputs, TEXT, rows, first)
    before, after = e.inputs.ids[TEXT], masked.ids[TEXT]
    if before.shape != after.shape or not torch.equal(masked.mask[TEXT], e.inputs.mask[TEXT]):
        raise BrokenContractError(
            "substitute() changes length or padding. Put the mask id in place of the token and move nothing."
        )
    if bool((before != after)[~first].any()):
        raise BrokenContractError("substitute() changes ids at other positions than those marked.")
    if bool((after[first] != after[first][0]).any()):
        raise BrokenContractError("substitute() puts different ids at marked positions. Put one id, that of the mask.")
    if not bool(e.run(masked).logits.isfinite().all()):
        raise BrokenContractError("a variant from substitute() has logits that are not finite.")
    return f"marked positions hold id {int(after[first][0])}, others are untouched"
