"""Find the measures that an audit computes, and refuse those that need a capability which the model lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnaudit.adapters.protocol import Capabilities, ModelAdapter
from attnaudit.engine.batches.clean_pass import Unit
from attnaudit.engine.batches.scopes import expanded, own_reading
from attnaudit.engine.declared_measures import Measure
from attnaudit.errors import AdapterError, AuditError, CheckError
from attnaudit.readings import FORM, Reading, named, split
from attnaudit.registry import measures

#: Capability -> what it provides, and what the author of an adapter can do to have it.
REMEDIES = {
    "differentiable": ("gradients", "Let gradients reach the embeddings and the replaced weights"),
    "deletion": ("token deletion", "Implement delete() and keep(), or use checks with at='hidden'"),
    "mask": (
        "token masking",
        "Implement substitute(), pass mask_id to PooledAttentionAdapter, or, for a Transformers model, set mask_token "
        "in tokenizer_config.json",
    ),
    "retrains": ("retraining", "Implement retrain()"),
    "decides": ("decisions", "If the target is a score, declare the threshold from which a decision is positive"),
}


@dataclass(frozen=True, slots=True)
class PlannedMeasure:
    """A measure under a single reading.

    Attributes:
        measure: The measure.
        reading: The text form of the reading; "" for the model's own reading, and for a measure that does not depend on
            the reading.
    """

    measure: Measure
    reading: str

    @property
    def name(self) -> str:
        """The name of the measure, with its reading."""
        return named(self.measure.name, self.reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The measures of an audit.

    Attributes:
        measures: Every needed measure, once for each reading under which it is needed. A measure comes after the
            measures that it requires. Early measures, which require no others, come first.
        readings: Each reading that a need names -> the texts of the single readings that it stands for in the model.
            "" is the model's own reading.
        own_reading: The model's own reading; None for a model with a single row of attention weights.
        parsed: Text form -> reading, for every single reading that is measured. "" is the model's own reading.
    """

    measures: list[PlannedMeasure]
    readings: dict[str, list[str]]
    own_reading: Reading | None
    parsed: dict[str, Reading | None]

    @property
    def keep_graph(self) -> bool:
        """Whether a measure or a reading differentiates through the clean pass."""
        return any(planned.measure.gradients for planned in self.measures) or any(
            reading is not None and reading.differentiates for reading in self.parsed.values()
        )


def resolve(needs: Sequence[str], adapter: ModelAdapter | None = None) -> Plan:
    """Find the measures that the given needs name, and the measures that they require in turn.

    Args:
        needs: The names of measures, with or without a reading, such as "uniform/cls@layer=0,heads=mean".
        adapter: The model; None if no need names a reading.

    Raises:
        CheckError: A need has an unknown name or an invalid argument, or it names a reading although `adapter` is None.
            Or a measure requires itself.
        AdapterError: The model does not have the reading. Or it has several attention sites and declares no reading.
    """
    ordered: dict[str, PlannedMeasure] = {}
    own = own_reading(adapter) if adapter else None
    own_text = own.text if own else ""
    readings: dict[str, list[str]] = {}
    parsed: dict[str, Reading | None] = {"": own}

    def add(name: str, reading: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise CheckError(f"Measure '{name}' requires itself through {' -> '.join(path)}.")
        family, _, argument = name.partition(".")
        try:
            measure: Measure = measures.get(family)(argument)
        except AuditError as error:
            raise CheckError(f"Required measure '{name}': {error}") from error
        planned = PlannedMeasure(measure, reading if measure.depends_on_reading else "")
        if planned.name in ordered:
            return
        for required in measure.requires:
            add(required, planned.reading, (*path, name))
        ordered[planned.name] = planned

    for need in ("prediction", "attention", *needs):
        name, reading_text = split(need)
        if reading_text and reading_text not in readings:
            if adapter is None:
                raise CheckError(f"Measure '{need}': its reading can be resolved only with a model. Pass an adapter.")
            single = {reading.text: reading for reading in expanded(adapter, reading_text)}
            readings[reading_text] = ["" if text == own_text else text for text in single]
            parsed |= {text: reading for text, reading in single.items() if text != own_text}
        for reading in readings[reading_text] if reading_text else [""]:
            for each in ("attention", name) if reading_text else (name,):
                add(each, reading, ())
    in_order = sorted(ordered.values(), key=lambda planned: not planned.measure.early)
    return Plan(measures=in_order, readings=readings, own_reading=own, parsed=parsed)


def refuse_unauditable(adapter: ModelAdapter) -> None:
    """Refuse a model that this version cannot audit.

    Raises:
        AdapterError: The model is not a classifier with one label per input. Or it has several attention sites and
            declares no reading.
    """
    capabilities = adapter.capabilities
    if capabilities.task != "classification":
        raise AdapterError(
            f"The model's task is '{capabilities.task}'. Expected 'classification' with one label per input. This "
            "version cannot audit multi-label or regression models. To audit a single output, wrap it as a two-class "
            "model."
        )
    own_reading(adapter)


def capabilities_for(adapter: ModelAdapter, unit: Unit) -> Capabilities:
    """Return the capabilities of an adapter in an audit over some units.

    Sources are never masked, only deleted. An adapter that can delete sources can therefore run all measures that
    otherwise mask units.

    Raises:
        AdapterError: The units are sources, but the model reads no passages.
    """
    capabilities = adapter.capabilities
    if unit != "sources":
        return capabilities
    if not capabilities.passages:
        raise AdapterError(
            "The units of this audit are sources, but the model reads no passages. Write {passages} into the template "
            "of a language model (docs/sources.md), or choose tokens or words as units."
        )
    return replace(capabilities, mask=capabilities.deletion)


def refuse_unable(adapter: ModelAdapter, plan: Plan, unit: Unit = "tokens") -> None:
    """Refuse measures that need a capability which the adapter lacks, or that do not support their reading.

    Args:
        adapter: The model.
        plan: The measures.
        unit: The units of the audit.

    Raises:
        AdapterError: The adapter lacks a capability, or a measure that needs a reading of a single attention site has
            another reading. The message names the capability or the reading, the measures, and the remedy.
    """
    for planned in plan.measures:
        reading = plan.parsed[planned.reading]
        if planned.measure.one_site and reading is not None and reading.kind == "rollout":
            raise AdapterError(
                f"The measure {planned.measure.name} holds the attention of one layer fixed, but the reading "
                f"'{reading.text}' combines all layers. Give the check a reading of one layer, such as '{FORM}'; or "
                "remove the check."
            )
    refused: dict[str, list[str]] = {}
    capabilities = capabilities_for(adapter, unit)
    for planned in plan.measures:
        for capability in planned.measure.lacking(capabilities):
            refused.setdefault(capability, []).append(planned.measure.name)
    for capability in (name for name in (*REMEDIES, *refused) if name in refused):
        names = list(dict.fromkeys(refused[capability]))
        provided, remedy = REMEDIES.get(capability, (f"the capability '{capability}'", "Implement it"))
        if capability == "deletion" and adapter.capabilities.target.at_tokens:
            remedy = (
                f"The target, {adapter.capabilities.target.text}, is computed from tokens that cannot be deleted. Use "
                'checks that mask tokens, such as those with operator = "mask"'
            )
        raise AdapterError(
            f"{'The measure' if len(names) == 1 else 'The measures'} {', '.join(names)} "
            f"{'needs' if len(names) == 1 else 'need'} {provided}, but the adapter declares {capability}=False. "
            f"{remedy}; or leave out the checks that use {'it' if len(names) == 1 else 'them'}."
        )


def refusals(adapter: ModelAdapter, needs: Sequence[str], unit: Unit = "tokens") -> dict[str, AuditError]:
    """Return need -> error, for the needs that are invalid or that need a capability which the adapter lacks."""
    errors: dict[str, AuditError] = {}
    for need in needs:
        try:
            refuse_unable(adapter, resolve([need], adapter), unit)
        except AuditError as error:
            errors[need] = error
    return errors
