"""The names of what a model reads and attends to, such as a picture and its patches, in the texts of a run.

The texts of checks are written for texts and their tokens. `UnitNames.named` replaces these words by the names that the
adapter declares. Texts about models that read texts stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

import msgspec

#: Quoted text is never changed, because it contains names of classes or modules. Neither are tokens that are no units,
#: such as a mask token. A word after "." or "_" is part of an identifier.
_WORDS = re.compile(
    r"(?P<kept>(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|“[^”]*”|`[^`]*`"
    r"|\b(?:special|mask|end-of-text|separator|query) tokens?\b)"
    r"|(?<![\w.])(?:(?P<article>an?) )?(?P<word>tokens?|words?|texts?)(?![\w]|\.\w|-\w)",
    re.IGNORECASE,
)


#: Units that consist of parts are removed, not replaced.
_REPLACED = re.compile(
    r"\b(replac)(ing(?= (?:the attended |other )?(?:words|tokens)\b)|ement(?= changes))", re.IGNORECASE
)


class Measured(Protocol):
    """A record of a measured model that may contain names."""

    @property
    def unit_names(self) -> UnitNames | msgspec.UnsetType: ...


class UnitNames(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names of a unit and of a row.

    Attributes:
        unit: What attention has a weight for, such as "patch".
        row: What a row of the data is, such as "picture".
        parts: What a unit consists of if attention has a weight for each of its parts, such as "token" for the passages
            of a prompt; "" if a unit has a single weight.
    """

    unit: str = "token"
    row: str = "text"
    parts: str = ""

    @property
    def units(self) -> str:
        """The name of several units."""
        return plural_of(self.unit)

    @property
    def rows(self) -> str:
        """The name of several rows."""
        return plural_of(self.row)

    def count_of_rows(self, count: int, *, which: str = "") -> str:
        """Return a number of rows in words, such as "300 pictures". `which` is an adjective."""
        return f"{count:,} {which and which + ' '}{self.row if count == 1 else self.rows}"

    def count_of_units(self, count: int) -> str:
        """Return a number of units in words, such as "64 patches"."""
        return f"{count:,} {self.unit if count == 1 else self.units}"

    def named(self, text: str, *, of_weights: bool = False) -> str:
        """Return a text about texts and tokens with the names of these rows and units.

        Args:
            text: The text. It was not written by a user.
            of_weights: Whether the text is about single attention weights. If a unit consists of several parts, its
                tokens are then these parts, not units.

        Examples:
            >>> UnitNames(unit="patch", row="picture").named("The tokens of a text, without special tokens.")
            'The patches of a picture, without special tokens.'
            >>> UnitNames(unit="passage", row="prompt", parts="token").named("Shuffle them over the tokens of a text.")
            'Shuffle them over the passages of a prompt.'
        """
        if self == TOKENS_OF_TEXTS:
            return text
        if self.parts:
            text = _REPLACED.sub(lambda match: "removing" if match[2] == "ing" else "removal", text)
        unit = f"{self.parts} of the {self.units}" if of_weights and self.parts else self.unit
        units = f"{plural_of(self.parts)} of the {self.units}" if of_weights and self.parts else self.units
        names = {"token": unit, "word": unit, "text": self.row, "tokens": units, "words": units, "texts": self.rows}

        def replaced(match: re.Match[str]) -> str:
            if match["kept"]:
                return match["kept"]
            name = names[match["word"].lower()]
            if match["article"]:
                article = "an" if name[0].lower() in "aeiou" else "a"
                return f"{article.capitalize() if match['article'][0] == 'A' else article} {name}"
            return name.capitalize() if match["word"][0].isupper() else name

        return _WORDS.sub(replaced, text)


#: The names for models that read texts.
TOKENS_OF_TEXTS = UnitNames()


def names_of(found: UnitNames | msgspec.UnsetType) -> UnitNames:
    """Return the names that a record contains. Records of models that read texts contain none."""
    return TOKENS_OF_TEXTS if isinstance(found, msgspec.UnsetType) else found


def common_names(measured: Iterable[Measured]) -> UnitNames:
    """Return the names that all measured models have in common; those of texts if they differ, or if there are none."""
    found = {names_of(one.unit_names) for one in measured}
    return found.pop() if len(found) == 1 else TOKENS_OF_TEXTS


def recorded(names: UnitNames) -> UnitNames | msgspec.UnsetType:
    """Return the names as records contain them (see `names_of`)."""
    return msgspec.UNSET if names == TOKENS_OF_TEXTS else names


def plural_of(noun: str) -> str:
    """Return the plural of a noun.

    Examples:
        >>> plural_of("patch"), plural_of("frame")
        ('patches', 'frames')
    """
    return f"{noun}es" if noun.endswith(("ch", "sh", "s", "x", "z")) else f"{noun}s"
