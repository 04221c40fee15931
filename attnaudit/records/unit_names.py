"""The names of what a model reads and attends to, such as a picture and its patches, in the texts of a run.

The texts of checks are written for texts and their tokens. `UnitNames.named` replaces these words by the names that the
adapter declares. Texts about models that read texts stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from attnaudit.errors import AdapterError

#: Quoted text is never changed, because it contains names of classes or modules. Neither are tokens that are no units,
#: such as a mask token. A word after "." or "_" is part of an identifier.
_WORDS = re.compile(
    r"(?P<kept>(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|“[^”]*”|`[^`]*`"
    r"|\b(?:special|mask|end-of-text|separator|query) tokens?\b)"
    r"|(?<![\w.])(?:(?P<article>an?) )?(?P<word>tokens?|words?|texts?)(?![\w]|\.\w|-\w)",
    re.IGNORECASE,
)


#: The beginnings of words that are pronounced with a vowel, and of words that are not, although the letter is one.
_VOWEL_SOUNDS = re.compile(r"(?!(?:eu|one|u[bknst]i|use|ufo\b))[aeiou]|hour|heir|honest", re.IGNORECASE)
#: An abbreviation whose first letter has a name that begins with a vowel, such as "MRI" or "X-ray".
_SPELLED = re.compile(r"[AEFHILMNORSX](?![a-z])")
#: The largest number of characters of a name.
LONGEST_NAME = 40

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

    def named(self, text: str, *, of_weights: bool = False, kept: Sequence[str] = ()) -> str:
        """Return a text about texts and tokens with the names of these rows and units.

        Args:
            text: The text. Apart from `kept`, it was not written by a user.
            of_weights: Whether the text is about single attention weights. If a unit consists of several parts, its
                tokens are then these parts, not units.
            kept: Parts of the text that stay unchanged, such as quoted names of classes.

        Examples:
            >>> UnitNames(unit="patch", row="picture").named("The tokens of a text, without special tokens.")
            'The patches of a picture, without special tokens.'
            >>> UnitNames(unit="passage", row="prompt", parts="token").named("Shuffle them over the tokens of a text.")
            'Shuffle them over the passages of a prompt.'
        """
        if self == TOKENS_OF_TEXTS:
            return text
        if kept:
            pieces = re.split(f"({'|'.join(map(re.escape, sorted(kept, key=len, reverse=True)))})", text)
            return "".join(
                piece if i % 2 else self.named(piece, of_weights=of_weights) for i, piece in enumerate(pieces)
            )
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
                article = article_of(name)
                return f"{article.capitalize() if match['article'][0] == 'A' else article} {name}"
            return name[0].upper() + name[1:] if match["word"][0].isupper() else name

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
        >>> plural_of("patch"), plural_of("frame"), plural_of("biopsy"), plural_of("CT series")
        ('patches', 'frames', 'biopsies', 'CT series')
    """
    if noun.endswith(("series", "species")):
        return noun
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "sh", "s", "x", "z")) else f"{noun}s"


def article_of(noun: str) -> str:
    """Return the indefinite article of a noun.

    Examples:
        >>> [article_of(noun) for noun in ("patch", "image", "MRI slice", "X-ray", "user", "hour")]
        ['a', 'an', 'an', 'an', 'a', 'an']
    """
    if re.match(r"[A-Z](?![a-z])", noun):
        return "an" if _SPELLED.match(noun) else "a"
    return "an" if _VOWEL_SOUNDS.match(noun) else "a"


def require_name(argument: str, name: object) -> None:
    """Check the name of a unit or a row.

    Raises:
        AdapterError: The name is not a printable text of 1 to `LONGEST_NAME` characters without spaces at its ends.
    """
    usable = isinstance(name, str) and name.isprintable() and name == name.strip() and 0 < len(name) <= LONGEST_NAME
    if not usable:
        raise AdapterError(
            f"{argument} is {ascii(name)[:60]}; expected a noun in the singular, such as 'patch' or 'slide', with at "
            f"most {LONGEST_NAME} printable characters and no spaces around it."
        )
