"""Checks that a model's parameters and modes do not change while it is measured."""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.adapters.loading import fingerprint
from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.errors import ChangedModelError

#: Largest number of modules that a message names.
MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """The properties of a model that must not change while it is measured.

    Attributes:
        sha256: The SHA-256 hash of all parameters and persistent buffers. See `attnaudit.adapters.loading.fingerprint`.
        training: The names of the modules that are in training mode.
    """

    sha256: str
    training: frozenset[str]


def identity_of(adapter: ModelAdapter) -> ModelIdentity:
    """Return the identity of a model in its current state.

    Raises:
        AdapterError: A tensor is on the meta device.
    """
    training = {
        f"{type(owner).__name__}{'.' if name else ''}{name} ({type(module).__name__})"
        for owner in adapter.modules
        for name, module in owner.named_modules()
        if module.training
    }
    return ModelIdentity(sha256=fingerprint(adapter)[0], training=frozenset(training))


def refuse_changed_model(before: ModelIdentity, after: ModelIdentity) -> None:
    """Compare the identity of a model at two times in an audit.

    Raises:
        ChangedModelError: A module switched between training and evaluation mode, or a parameter or persistent buffer
            changed its value.
    """
    switched = sorted(before.training ^ after.training)
    if switched:
        more = f" and {len(switched) - MOST_NAMED} more" if len(switched) > MOST_NAMED else ""
        into = "training" if switched[0] in after.training else "evaluation"
        raise ChangedModelError(
            f"{', '.join(switched[:MOST_NAMED])}{more}: the model switched to {into} mode while it was measured. "
            "Expected evaluation mode throughout. Remove calls of train() and eval() from forward() and from the "
            "adapter."
        )
    refuse_changed_parameters(before.sha256, after.sha256)


def refuse_changed_parameters(before: str, after: str) -> None:
    """Compare the hashes of a model's parameters and persistent buffers at two times.

    Raises:
        ChangedModelError: The hashes differ.
    """
    if before != after:
        raise ChangedModelError(
            "The model's parameters or buffers changed while it ran: their SHA-256 hash was "
            f"{before[:12]}... before and is {after[:12]}... now. Expected a model that only reads them. Look for an "
            "optimizer step, a running mean, a cache or a counter in forward() or in the adapter, and keep such values "
            "out of parameters and buffers."
        )
