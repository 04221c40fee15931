"""Numbers that a check returned, as built-in types. Records, and reports of pytest-xdist, accept no NumPy types."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec
import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.evidence import Detail, Evidence
from attnaudit.errors import CheckError

T = TypeVar("T", bound=msgspec.Struct)


def number(returned: object, what: str) -> float | None:
    """Return a number as a float; None for None.

    Args:
        returned: What a method of a check returned.
        what: The check and its method, for error messages.

    Raises:
        CheckError: It is not a real number.
    """
    if returned is None:
        return None
    try:
        if isinstance(returned, str):
            raise TypeError
        return float(returned)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise CheckError(f"{what} returned {_type(returned)}; expected a number or None.") from None


def numbers(returned: object, what: str) -> Floats:
    """Return numbers per instance as an array of floats, NaN where they are masked.

    An array of floats is returned unchanged.

    Args:
        returned: What a method of a check returned.
        what: The check and its method, for error messages.

    Raises:
        CheckError: They are not real numbers.
    """
    masked = isinstance(returned, np.ma.MaskedArray)
    if isinstance(returned, np.ndarray) and returned.dtype == np.float64 and not masked:
        return returned
    try:
        if masked:
            returned = np.ma.filled(returned.astype(np.float64), np.nan)  # type: ignore[attr-defined]
        found: Any = np.asarray(returned)
        if found.dtype.kind not in "biufO":  # objects may be numbers or None, which is undefined
            raise TypeError
        return np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):  # the last one is raised for a tensor with an autograd graph
        raise CheckError(
            f"{what} returned {_type(returned)}; expected an array with one number per instance."
        ) from None


def in_builtin_types(evidence: Evidence, name_in_errors: str) -> Evidence:
    """Return the evidence with built-in numbers and texts instead of NumPy's.

    Raises:
        CheckError: A detail is neither a number nor a text, or a reference, chart or breakdown has invalid numbers.
    """

    def plain(items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(msgspec.convert(msgspec.to_builtins(one, enc_hook=_item), type(one)) for one in items)

    details = {
        str(name): _detail(one, f"{name_in_errors}: the detail '{name}'") for name, one in evidence.details.items()
    }
    try:
        return dataclasses.replace(
            evidence,
            value=number(evidence.value, f"{name_in_errors}: evidence()"),
            details=details,
            undefined={str(reason): int(count) for reason, count in evidence.undefined.items()},
            references=plain(evidence.references),
            charts=plain(evidence.charts),
            breakdowns=plain(evidence.breakdowns),
        )
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise CheckError(f"{name_in_errors}: a reference, chart or breakdown is invalid: {error}.") from error


def _detail(value: object, what: str) -> Detail:
    """Return a detail as a text, an integer or a float; None for None.

    Raises:
        CheckError: It is none of these.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bool, np.bool_, int, np.integer)):
        return int(value)
    try:
        return number(value, what)
    except CheckError:
        raise CheckError(f"{what} is {_type(value)}; expected a number, a text or None.") from None


def _item(value: object) -> object:
    """Return a NumPy scalar as a built-in object, for msgspec."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"expected numbers and texts, but got {_type(value)}")


def _type(value: object) -> str:
    """Return the type of an object with an article. An array has its shape and the type of its elements."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
