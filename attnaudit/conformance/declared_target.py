"""Checks that the capabilities fit the target, and that the logits follow from the raw output of the model."""

from __future__ import annotations

from typing import cast

from attnaudit.adapters.optional_methods import TargetAdapter
from attnaudit.adapters.protocol import TARGET_QUERIES, TEXT
from attnaudit.conformance.contract import BrokenContractError, contract, require_same_logits
from attnaudit.conformance.sample_texts import Examples


@contract("target")
def check_target(e: Examples) -> str:
    """The capabilities fit the target, and the logits of run() follow from the raw output of the model."""
    capabilities, target = e.capabilities, e.capabilities.target
    if capabilities.decides and not target.decides:
        raise BrokenContractError(
            f"the target, {target.text}, is not a decision, but the capabilities declare decides=True. Declare "
            "decides=target.decides."
        )
    if capabilities.deletion and target.at_tokens:
        raise BrokenContractError(
            f"the target, {target.text}, is computed from tokens of the text, but the capabilities declare "
            "deletion=True. Declare deletion=False: if these tokens are deleted, the target is undefined."
        )
    if target.kind != "tag":
        if e.trace.logits.shape[1] != 1:
            raise BrokenContractError(
                f"run() returns {e.trace.logits.shape[1]} logits; expected one, the logit of {target.text}."
            )
        if capabilities.classes != target.classes:
            raise BrokenContractError(
                f"classes are {list(capabilities.classes)}; expected {list(target.classes)}, as in "
                "classes=target.classes."
            )
    if target.kind == "label" and target.name not in capabilities.labels:
        raise BrokenContractError(
            f"the capabilities declare the labels {list(capabilities.labels)}, which lack {target.name!r}. List all "
            "labels of the model, so that unknown labels in the data are found."
        )
    queries = e.inputs.extra.get(TARGET_QUERIES)
    if queries is not None and (queries.shape != e.inputs.ids[TEXT].shape or not bool(queries.any(1).all())):
        raise BrokenContractError(
            f"Inputs.extra['{TARGET_QUERIES}'] has shape {tuple(queries.shape)} and marks a token in "
            f"{int(queries.flatten(1).any(1).sum())} of {len(queries)} rows; expected flags of the same shape as the "
            "ids, with at least one marked token in every row."
        )
    if not isinstance(e.adapter, TargetAdapter):
        return f"{target.text}; its logits were not compared, because the adapter has no target_logits()"
    few = e.few
    require_same_logits(
        few.run(few.inputs).logits,
        cast(TargetAdapter, few.adapter).target_logits(few.instances),
        "the logits of run() and those computed from the raw output of the model differ",
        "Compute the logit from the output and the tokens that the target names, in float64.",
    )
    return f"{target.text}; its logits follow from the raw output of the model ({len(few.instances)} texts)"
