"""Checks of an adapter's declarations: its capabilities, its modules, its reading, and the original model."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from attnaudit.adapters.optional_methods import ConvertedModelAdapter
from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.conformance.contract import BrokenContractError, contract, listed
from attnaudit.conformance.sample_texts import Examples
from attnaudit.errors import AdapterError, CheckError
from attnaudit.readings import FORM, POOL_FORM, PREDICTED, Reading, parse

TASKS = ("classification", "multi_label", "regression")


@contract(quick=False)
def check_capabilities(e: Examples) -> str:
    """Classes, logits, modules and the longest input agree with the declared capabilities."""
    capabilities = e.capabilities
    if capabilities.task not in TASKS:
        raise BrokenContractError(f"the task is {capabilities.task!r}; expected one of {listed(list(TASKS))}.")
    if len(capabilities.classes) < 2 or len(set(capabilities.classes)) != len(capabilities.classes):
        raise BrokenContractError(f"classes are {list(capabilities.classes)}; expected at least two different names.")
    logits = e.trace.logits
    single = logits.shape[1] == 1 and len(capabilities.classes) == 2
    if logits.shape[1] != len(capabilities.classes) and not single:
        raise BrokenContractError(
            f"run() returns {logits.shape[1]} logits for {len(capabilities.classes)} classes; expected one logit per "
            "class" + (", or a single logit for a sigmoid." if len(capabilities.classes) == 2 else ".")
        )
    if not bool(logits.isfinite().all()):
        raise BrokenContractError(
            "the logits are not finite (NaN or infinite). Look for a division by zero, or damaged weights."
        )
    if not e.adapter.modules or not all(isinstance(module, nn.Module) for module in e.adapter.modules):
        raise BrokenContractError(
            "modules must contain at least one nn.Module, and nothing else. List the modules that own the parameters."
        )
    longest = int(e.inputs.mask[TEXT].sum(1).max())
    if capabilities.max_tokens is not None and longest > capabilities.max_tokens:
        raise BrokenContractError(
            f"collate() returns {longest} tokens, but the capabilities declare max_tokens={capabilities.max_tokens}. "
            'Truncate the text and mark the row in extra["truncated"], or raise DataError.'
        )
    plural = "s" * (logits.shape[1] > 1)
    return f"{capabilities.task}, {len(capabilities.classes)} classes, {logits.shape[1]} logit{plural}"


@contract()
def check_modules(e: Examples) -> str:
    """Every parameter from which the logits are computed belongs to one of the modules."""
    known = {id(parameter) for module in e.adapter.modules for parameter in module.parameters()}
    with torch.enable_grad():
        used = parameters_of(e.adapter.run(e.few.inputs).logits)
    unlisted = [parameter for parameter in used if id(parameter) not in known]
    if unlisted:
        shapes = listed(sorted({str(tuple(parameter.shape)) for parameter in unlisted})[:4])
        raise BrokenContractError(
            f"the logits depend on {len(unlisted)} parameters that belong to none of the listed modules; their shapes "
            f"are {shapes}. List the module that owns them, as in modules=(model,). The audit hashes, moves and "
            "randomises only listed modules, and switches only those to evaluation mode."
        )
    return "every parameter belongs to a listed module"


def parameters_of(values: Tensor) -> list[nn.Parameter]:
    """Return all parameters in the autograd graph of a tensor. If the tensor has no graph, return an empty list."""
    parameters: dict[int, nn.Parameter] = {}
    pending = [values.grad_fn]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            parameters[id(leaf)] = leaf
        fresh = {function for function, _ in node.next_functions} - seen
        seen |= fresh
        pending += fresh
    return list(parameters.values())


@contract()
def check_reading(e: Examples) -> str:
    """The declared reading is valid and names a layer, head and stack of the model."""
    text = e.capabilities.reading
    pooled = [site for site in e.sites if site.query is None]
    single = len(e.sites) == 1 and bool(pooled) and pooled[0].heads == 1
    if not text:
        if single:
            return "the pooled attention"
        raise BrokenContractError(
            f"the model has {len(e.sites)} attention sites with {sum(site.heads for site in e.sites)} heads in total, "
            "but its capabilities declare no reading. Declare which weights are the explanation, such as "
            f"reading={POOL_FORM if pooled else FORM!r}."
        )
    if single:
        raise BrokenContractError(
            f"reading {text!r}: the attention of the model has a single row of weights per text, so there is nothing "
            "to choose. Leave reading empty."
        )
    try:
        reading = parse(text)
    except CheckError as error:
        raise BrokenContractError(str(error)) from error
    if reading.many:
        raise BrokenContractError(
            f"reading {text!r} names several readings. Name one layer, and one head or the mean of the heads."
        )
    _require_capable(e, reading)
    stack = _stack(e, reading)
    layer = int(reading.layer)
    if reading.site:
        found = [site for site in stack if site.key == reading.site]
    else:
        found = stack[layer:][:1] if -len(stack) <= layer < 0 else [site for site in stack if site.layer == layer]
    if not found:
        kind = "sites" if reading.site else "layers"
        available = [site.key if reading.site else str(site.layer) for site in stack]
        raise BrokenContractError(f"reading {text!r}: the {kind} over the text are {listed(available)}.")
    (site,) = found
    heads = site.heads
    if isinstance(reading.heads, int) and reading.heads >= heads:
        raise BrokenContractError(f"reading {text!r}: the model has heads 0 to {heads - 1}.")
    if reading.heads == PREDICTED and (site.query is not None or heads != len(e.capabilities.classes)):
        of_target = e.capabilities.target.kind in ("label", "score")
        hint = " To explain a single label or score, name its head, such as own@heads=0." if of_target else ""
        raise BrokenContractError(
            f"reading {text!r}: the site has {heads} heads; expected pooled attention with one head for each of the "
            f"{len(e.capabilities.classes)} classes.{hint}"
        )
    return reading.text


def _require_capable(e: Examples, reading: Reading) -> None:
    if reading.kind == "norms" and not e.capabilities.value_vectors:
        raise BrokenContractError(
            f"reading {reading.text!r} needs value_vectors(). Implement it and declare value_vectors=True, or declare "
            "a reading of the attention weights."
        )
    if reading.kind == "gradients" and not e.capabilities.differentiable:
        raise BrokenContractError(
            f"reading {reading.text!r} needs gradients. Declare differentiable=True, or a reading of the attention "
            "weights."
        )


def _stack(e: Examples, reading: Reading) -> list[Site]:
    """Return the sites of the stack that a reading names, sorted by layer. Those over other streams are left out.

    If the reading names no stack, the model must have only one stack.

    Raises:
        BrokenContractError: The model does not have the named stack, or the reading names no stack although the model
            has several. Or the layers of the stack are not numbered from 0, or the stack does not attend to the text.
    """
    stacks = {
        "encoder": [s for s in e.sites if s.kind == "self" and s.query == TEXT and s.keys == TEXT],
        "decoder": [s for s in e.sites if s.kind == "self" and s.query != TEXT],
        "cross": [s for s in e.sites if s.kind == "cross"],
        "pool": [s for s in e.sites if s.query is None],
    }
    present = [name for name, sites in stacks.items() if sites]
    name = reading.stack or (present[0] if len(present) == 1 else "")
    if not stacks.get(name):
        raise BrokenContractError(
            f"reading {reading.text!r} names {'no stack' if not name else repr(name)}; the stacks of the model are "
            f"{listed(present) or 'unknown'}. Add stack=... to the reading, and check the kind, query and keys of "
            "every site."
        )
    if name == "pool" and (reading.query != "own" or reading.kind == "rollout"):
        raise BrokenContractError(
            f"reading {reading.text!r}: pooled attention has no query tokens. Begin the reading with 'own', such as "
            f"{POOL_FORM!r}."
        )
    sites = sorted(stacks[name], key=lambda site: site.layer)
    if [site.layer for site in sites] != list(range(len(sites))):
        raise BrokenContractError(
            f"the sites of the stack {name!r} have the layers {[site.layer for site in sites][:8]}; expected one site "
            "per layer, numbered from 0. Every stack has its own numbers."
        )
    over_text = [site for site in sites if site.keys == TEXT]
    if not over_text:
        raise BrokenContractError(
            f"reading {reading.text!r}: the stack {name!r} attends to '{sites[0].keys}', not to the text. Name another "
            "stack."
        )
    return over_text


@contract("ships")
def check_original_model(e: Examples) -> str:
    """The logits agree with those of the original model: its own forward pass, attention kernel and precision."""
    try:
        return cast(ConvertedModelAdapter, e.adapter).compare_with_original(e.inputs)
    except AdapterError as error:
        raise BrokenContractError(str(error)) from error
