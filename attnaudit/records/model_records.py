"""The record of an audited model."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnaudit.records.check_records import Record


class ConformanceResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one check of the adapter contract.

    Attributes:
        check: The name of the conformance check.
        outcome: "pass", "fail" or "skip".
        detail: What was checked, why it failed, or why it was skipped.
    """

    check: str
    outcome: Literal["pass", "fail", "skip"]
    detail: str


class TargetRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which output of a model was explained (see `attnaudit.targets`).

    Attributes:
        kind: "label", "score", "tag", "span" or "string".
        name: The name of the label or the score, or the string itself; "" if it differs by row or has no name.
        threshold: The smallest score that counts as a positive decision; None if the target has no threshold.
        scale: The difference in scores that counts as one logit; None if it was not declared.
        text: What was explained, in words, such as "the label 'toxic'".
    """

    kind: str
    name: str = ""
    threshold: float | None = None
    scale: float | None = None
    text: str = ""


class ModelRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An audited model.

    Attributes:
        name: The name of the model in this run.
        source: Where the model was loaded from.
        description: The description of the model by its adapter; "" if there is none.
        classes: The class names, in the order of the logits.
        parameters: The number of parameters.
        sha256: The SHA-256 hash of the model: of the names, types, shapes and values of all parameters and persistent
            buffers, and of its configuration (see `attnaudit.adapters.model_configuration`).
        linear_decoder: Whether the logits are a linear function of the attention-weighted sum of the hidden states.
        conformance: The results of the checks of the adapter contract.
        family: The family of the model, which `PolicyRecord.validated_on` refers to (see
            `attnaudit.model_families.audited_family`). "pooled attention" if the adapter has a single row of attention
            weights and names no family; "" if the family is unknown.
        unseen_mixers: The modules that carry information between tokens without visible weights, which every reading
            leaves out, such as "model.layers.0.mixer (MambaMixer)".
        target: The output that the audit explained; None if this is the predicted class.
        no_decision: The reason why values that need decisions are undefined, as a clause; "" if there is none.
        precision: The type in which the model was audited: "float32", "float16" or "bfloat16".
    """

    name: str
    source: str
    description: str
    classes: list[str]
    parameters: int
    sha256: str
    linear_decoder: bool
    conformance: list[ConformanceResult]
    family: str = ""
    unseen_mixers: list[str] = msgspec.field(default_factory=list)
    target: TargetRecord | None = None
    no_decision: str = ""
    precision: str = "float32"
