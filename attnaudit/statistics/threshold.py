"""Thresholds relative to references, such as "floor + 0.5 * (ceiling - floor)": read by a grammar, never evaluated.

    expression = term (("+" | "-") term)*        term = factor ("*" factor)*
    factor = number | name | "-" factor | "(" expression ")"

What comes out is linear in the references: a product has a reference on one side at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.errors import CheckError, nearest

LONGEST = 200
TOKEN = re.compile(r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[-+*()]))")


@dataclass(frozen=True, slots=True)
class Expression:
    """constant + Σ weight · reference. text: as it was written."""

    text: str
    constant: float
    weights: Mapping[str, float]

    def of(self, references: Mapping[str, Floats]) -> Floats:
        """(n,) the threshold per instance; NaN where a reference that counts is undefined."""
        size = len(next(iter(references.values())))
        total = np.full(size, self.constant)
        for name, weight in self.weights.items():
            total = total + weight * references[name]
        return total

    def range(self, low: float, high: float) -> tuple[float, float]:
        """What it can come to while every reference lies between low and high."""
        ends = [(w * low, w * high) if w > 0 else (w * high, w * low) for w in self.weights.values()]
        return self.constant + sum(a for a, _ in ends), self.constant + sum(b for _, b in ends)


def parse(text: str, known: Sequence[str]) -> Expression:
    """Reads a threshold. known: the references that it may name. Raises CheckError that names the place and the mend.

    >>> parse("floor + 0.5 * (ceiling - floor)", ["floor", "ceiling"]).weights
    {'floor': 0.5, 'ceiling': 0.5}
    """
    if len(text) > LONGEST:
        raise CheckError(f"a threshold of {len(text)} characters; expected at most {LONGEST}.")
    linear = _Reader(text, known).read()
    if not np.isfinite(list(linear.values())).all():
        raise CheckError(f"'{text}' holds a number that is too large.")
    weights = {name: weight for name, weight in linear.items() if name and weight != 0}
    if not weights:
        raise CheckError(f"'{text}' names no reference, expected a number or, say, '{known[0]} + 0.2'.")
    return Expression(text.strip(), linear.get("", 0.0), weights)


#: Weight by name; the constant has the name "".
Linear = dict[str, float]


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, known: Sequence[str]) -> None:
        self.text, self.known = text, known
        self.tokens: list[tuple[str, str, int]] = []
        end, place = len(text.rstrip()), 0
        while place < end:
            found = TOKEN.match(text, place)
            if found is None:
                raise self._error(place, f"cannot read '{text[place:].strip()[:10]}'")
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind], found.start(kind)))
            place = found.end()
        self.next = 0

    def read(self) -> Linear:
        found = self._expression()
        if self.next < len(self.tokens):
            _, word, place = self.tokens[self.next]
            raise self._error(place, f"'{word}' is not expected here")
        return found

    def _error(self, place: int, what: str) -> CheckError:
        return CheckError(
            f"'{self.text}': {what} (character {place + 1}). Expected numbers, +, -, *, brackets and "
            f"{', '.join(self.known)}."
        )

    def _take(self, *signs: str) -> str:
        if self.next < len(self.tokens) and self.tokens[self.next][:1] == ("sign",):
            sign = self.tokens[self.next][1]
            if sign in signs:
                self.next += 1
                return sign
        return ""

    def _expression(self) -> Linear:
        found = self._term()
        while sign := self._take("+", "-"):
            for name, weight in self._term().items():
                found[name] = found.get(name, 0.0) + (weight if sign == "+" else -weight)
        return found

    def _term(self) -> Linear:
        found = self._factor()
        while self._take("*"):
            place = self.tokens[self.next - 1][2]
            other = self._factor()
            if set(found) - {""} and set(other) - {""}:
                raise self._error(place, "a product of two references")
            scale, rest = (other, found) if set(found) - {""} else (found, other)
            factor = scale.get("", 0.0)
            found = {name: factor * weight for name, weight in rest.items()}
        return found

    def _factor(self) -> Linear:
        if self._take("-"):
            return {name: -weight for name, weight in self._factor().items()}
        if self._take("("):
            found = self._expression()
            if not self._take(")"):
                raise self._error(len(self.text), "a bracket is not closed")
            return found
        if self.next >= len(self.tokens):
            raise self._error(len(self.text), "ends too soon")
        kind, word, place = self.tokens[self.next]
        if kind == "sign":
            raise self._error(place, f"'{word}' is not expected here")
        self.next += 1
        if kind == "number":
            return {"": float(word)}
        if word not in self.known:
            raise CheckError(f"'{self.text}': unknown reference '{word}'. {nearest(word, self.known)}")
        return {word: 1.0}
