"""Check the parts of a model that are given to an adapter, before the model runs, and what its tokenizer returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from torch import nn

from attnaudit.errors import AdapterError
from attnaudit.formatting import plural


def require_callable(name: str, part: object, arguments: Sequence[str]) -> None:
    """Check that a part of a model is a function or a module that takes the given arguments.

    Args:
        name: The name of the option.
        part: The given part.
        arguments: The names of the arguments that the adapter passes, for error messages.

    Raises:
        AdapterError: The part cannot be called, or not with this number of arguments.
    """
    call = f"{name}({', '.join(arguments)})"
    if not callable(part):
        is_weight = isinstance(part, nn.Parameter)
        hint = f" Give the module instead of its weight, such as {name}=model.{name}." if is_weight else ""
        raise AdapterError(
            f"{name} is a {type(part).__name__}, which cannot be called; expected a module or a function that is "
            f"called as {call}.{hint}"
        )
    try:
        signature = inspect.signature(part.forward if isinstance(part, nn.Module) else part)
    except (TypeError, ValueError):  # some functions that are written in C have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise AdapterError(
            f"{name} takes the arguments ({', '.join(signature.parameters)}); expected a function of "
            f"{plural(len(arguments), 'argument')}, called as {call} ({error}). "
            f"For example: {name}=lambda {', '.join(arguments)}: ..."
        ) from error


def require_modules(modules: Iterable[nn.Module]) -> tuple[nn.Module, ...]:
    """Check the option `modules`, and return the modules.

    Raises:
        AdapterError: It is a single module, it is empty, or an item is not a module.
    """
    if isinstance(modules, nn.Module):
        raise AdapterError(
            f"modules is a {type(modules).__name__}; expected a sequence of modules. Write a tuple with one item: "
            "modules=(model,)."
        )
    try:
        modules = tuple(modules)
    except TypeError as error:
        raise AdapterError(
            f"modules is a {type(modules).__name__}; expected a sequence of modules: modules=(model,)."
        ) from error
    if not modules:
        raise AdapterError(
            "None of the given parts of the model is an nn.Module. List the modules that hold the parameters, as in "
            "modules=(model,), so that they can be moved, hashed and put in evaluation mode."
        )
    for position, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise AdapterError(
                f"modules[{position}] is a {type(module).__name__}; expected an nn.Module. List the modules that hold "
                "the parameters, as in modules=(model,)."
            )
    return modules


def require_class_names(classes: object) -> None:
    """Check that the option `classes` is not a single string.

    Raises:
        AdapterError: It is a string, which would be read as a sequence of names with one letter.
    """
    if isinstance(classes, str):
        raise AdapterError(
            f"classes={classes!r} is a single string; expected a sequence of names in the order of the logits, such as "
            "classes=('negative', 'positive')."
        )


def require_equal_numbers(
    ids: Sequence[int], tokens: Sequence[str], special: Sequence[bool] | None, where: str
) -> None:
    """Check that a tokenizer returned one token per id, and one flag per id if it returned flags.

    Args:
        ids: The ids.
        tokens: The tokens.
        special: The flags; None if there are none.
        where: The row and the beginning of its text, for the error message.

    Raises:
        AdapterError: The numbers differ.
    """
    flags = special or None
    if len(ids) == len(tokens) and (flags is None or len(flags) == len(ids)):
        return
    if flags is None:
        found, expected = f"{plural(len(ids), 'id')} and {plural(len(tokens), 'token')}", "one token per id"
    else:
        found = f"{plural(len(ids), 'id')}, {plural(len(tokens), 'token')} and {plural(len(flags), 'special flag')}"
        expected = "one token and one special flag per id"
    raise AdapterError(f"{where}: tokenize returned {found}; expected {expected}.")


def require_known_ids(ids: Sequence[int], tokens: Sequence[str], rows: int, where: str) -> None:
    """Check that the embedding has a row for each id of a text.

    Args:
        ids: The ids.
        tokens: The tokens.
        rows: The number of rows of the embedding.
        where: The row of the data and the beginning of its text, for the error message.

    Raises:
        AdapterError: An id is negative or too large.
    """
    try:
        outside = len(ids) > 0 and (min(ids) < 0 or max(ids) >= rows)
    except TypeError:  # not numbers
        return
    if outside:
        token, number = next((token, one) for token, one in zip(tokens, ids, strict=True) if not 0 <= one < rows)
        raise AdapterError(
            f"{where}: tokenize gives the token {token!r} the id {int(number):,}, but the embedding has {rows:,} rows. "
            f"Give ids from 0 to {rows - 1:,}; the id of a word outside the vocabulary is that of the unknown word."
        )
