"""What the adapter declares: its capabilities, its reading, and the kernel that the model ships with."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from attnaudit.adapters.protocol import TEXT, ConvertedModelAdapter, Site
from attnaudit.conformance.contract import BrokenContractError, contract, listed
from attnaudit.conformance.sample_texts import Examples
from attnaudit.errors import AdapterError, CheckError
from attnaudit.readings import FORM, Reading, parse

TASKS = ("classification", "multi_label", "regression")


@contract(quick=False)
def check_capabilities(e: Examples) -> str:
    """Classes, logits, modules and the longest input agree with what the capabilities say."""
    said = e.capabilities
    if said.task not in TASKS:
        raise BrokenContractError(f"the task is {said.task!r}; expected one of {listed(list(TASKS))}.")
    if len(said.classes) < 2 or len(set(said.classes)) != len(said.classes):
        raise BrokenContractError(f"classes are {list(said.classes)}; expected at least two different names.")
    logits = e.trace.logits
    single = logits.shape[1] == 1 and len(said.classes) == 2
    if logits.shape[1] != len(said.classes) and not single:
        raise BrokenContractError(
            f"run() gives {logits.shape[1]} logits for {len(said.classes)} classes; expected one logit per class"
            + (", or a single one for a sigmoid." if len(said.classes) == 2 else ".")
        )
    if not bool(logits.isfinite().all()):
        raise BrokenContractError("the logits are not finite. Look for a division by zero, or damaged weights.")
    if not e.adapter.modules or not all(isinstance(module, nn.Module) for module in e.adapter.modules):
        raise BrokenContractError("modules does not hold nn.Modules. Name those that hold the parameters.")
    longest = int(e.inputs.mask[TEXT].sum(1).max())
    if said.max_tokens is not None and longest > said.max_tokens:
        raise BrokenContractError(
            f"collate() gives {longest} tokens, but the capabilities say max_tokens={said.max_tokens}. Cut the text "
            'there and mark the row in extra["truncated"], or refuse it.'
        )
    return f"{said.task}, {len(said.classes)} classes, {logits.shape[1]} logit{'s' * (logits.shape[1] > 1)}"


@contract()
def check_modules(e: Examples) -> str:
    """Every parameter that the logits are computed with is in one of the modules."""
    known = {id(one) for module in e.adapter.modules for one in module.parameters()}
    with torch.enable_grad():
        used = parameters_of(e.adapter.run(e.few.inputs).logits)
    strange = [one for one in used if id(one) not in known]
    if strange:
        shapes = listed(sorted({str(tuple(one.shape)) for one in strange})[:4])
        raise BrokenContractError(
            f"the logits are computed with {len(strange)} parameters that are in none of the modules, of shapes "
            f"{shapes}. List the module that holds them, modules=(model,), so that it is hashed, moved, put in "
            "evaluation mode and randomised with the rest."
        )
    return "no parameter from elsewhere"


def parameters_of(values: Tensor) -> list[nn.Parameter]:
    """The parameters that values with a graph were computed with: none where nothing is recorded."""
    found: dict[int, nn.Parameter] = {}
    left = [values.grad_fn]
    seen = set(left)
    while left:
        node = left.pop()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            found[id(leaf)] = leaf
        fresh = {one for one, _ in node.next_functions} - seen
        seen |= fresh
        left += fresh
    return list(found.values())


@contract()
def check_reading(e: Examples) -> str:
    """The declared reading can be parsed and names a layer, head and stack that the model has."""
    said = e.capabilities.reading
    pooled = [site for site in e.sites if site.query is None]
    if not said:
        if len(e.sites) == 1 and pooled and pooled[0].heads == 1:
            return "the one pooled attention"
        raise BrokenContractError(
            f"the model has {len(e.sites)} attention sites, and its capabilities name no reading. Say which part is "
            f"shown as the explanation, such as reading={FORM!r}."
        )
    if len(pooled) == len(e.sites):
        raise BrokenContractError(f"reading {said!r}: a pooled attention has no layers or heads. Leave reading empty.")
    try:
        reading = parse(said)
    except CheckError as error:
        raise BrokenContractError(str(error)) from error
    if reading.many:
        raise BrokenContractError(f"reading {said!r} stands for several. Name one layer, and one head or their mean.")
    _require_capable(e, reading)
    stack = _stack(e, reading)
    if isinstance(reading.layer, int) and not -len(stack) <= reading.layer < len(stack):
        raise BrokenContractError(f"reading {said!r}: the model has layers 0 to {len(stack) - 1}.")
    if isinstance(reading.heads, int) and reading.heads >= stack[0].heads:
        raise BrokenContractError(f"reading {said!r}: the model has heads 0 to {stack[0].heads - 1}.")
    return reading.text


def _require_capable(e: Examples, reading: Reading) -> None:
    if reading.kind == "norms" and not e.capabilities.value_vectors:
        raise BrokenContractError(
            f"reading {reading.text!r} needs value_vectors(). Declare value_vectors, or read weights."
        )
    if reading.kind == "gradients" and not e.capabilities.differentiable:
        raise BrokenContractError(f"reading {reading.text!r} needs gradients. Declare differentiable, or read weights.")


def _stack(e: Examples, reading: Reading) -> list[Site]:
    """The sites of the stack that is named, layer by layer."""
    stacks = {
        "encoder": [s for s in e.sites if s.kind == "self" and s.query == TEXT and s.keys == TEXT],
        "decoder": [s for s in e.sites if s.kind == "self" and s.query != TEXT],
        "cross": [s for s in e.sites if s.kind == "cross"],
    }
    filled = [name for name, found in stacks.items() if found]
    name = reading.stack or (filled[0] if len(filled) == 1 else "")
    if not stacks.get(name):
        raise BrokenContractError(
            f"reading {reading.text!r} names {'no stack' if not name else repr(name)}; the model has "
            f"{listed(filled) or 'none'}. Add stack=..., and give every site its kind, query and keys."
        )
    found = sorted(stacks[name], key=lambda site: site.layer)
    if [site.layer for site in found] != list(range(len(found))):
        raise BrokenContractError(
            f"the layers of the {name} are {[site.layer for site in found][:8]}; expected them counted from 0, one "
            "site each."
        )
    if found[0].keys != TEXT:
        raise BrokenContractError(
            f"reading {reading.text!r}: the {name} attends to '{found[0].keys}', not to the text. Read another stack."
        )
    return found


@contract("ships")
def check_shipped(e: Examples) -> str:
    """The logits agree with those of the attention kernel that the model ships with."""
    try:
        return cast(ConvertedModelAdapter, e.adapter).compare_with_original(e.inputs)
    except AdapterError as error:
        raise BrokenContractError(str(error)) from error
