"""Checks of single cells, and the errors about them."""

from __future__ import annotations

from attnaudit.errors import DataError


def shorten(text: str, limit: int = 40) -> str:
    """Truncate a text to at most `limit` characters, for a message."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def invalid(where: str, column: str, found: str, expected: str, fix: str) -> DataError:
    """Return the error for an invalid cell.

    Args:
        where: The file and the row.
        column: The column.
        found: The content of the cell in words.
        expected: What was expected.
        fix: A sentence that says how to fix it.
    """
    return DataError(f"{where}: column '{column}': found {found}, expected {expected}. {fix}")


def describe_value(value: object) -> str:
    """Describe a value of an unexpected type, for a message."""
    names = {"NoneType": "null", "str": "text", "list": "a list", "dict": "an object", "bool": "a Boolean"}
    name = names.get(type(value).__name__, type(value).__name__)
    return name if value is None or isinstance(value, str) else f"{name} ({shorten(repr(value))})"


def encodable(value: str, where: str, column: str) -> str:
    """Return the text as a plain str. Raise DataError if it cannot be encoded as UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid(
            where,
            column,
            f"half of a surrogate pair ({value[error.start]!r}) at character {error.start + 1}",
            "characters that UTF-8 can encode",
            "Write the complete character, or remove it.",
        ) from error
    return str(value)  # JSON writers do not accept NumPy's str type
