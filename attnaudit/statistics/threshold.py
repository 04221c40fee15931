"""Thresholds that are relative to a check's references, such as "floor + 0.5 * (gradient_loo - floor)".

Python's parser reads the expression, but never runs it. Only numbers, references, parentheses, +, - and * are accepted.
The result is linear in the references, because a reference may only be multiplied by a number.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.errors import CheckError, nearest

#: The length limit in characters. It also limits the nesting, so parsing an expression cannot exhaust the stack.
MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Expression:
    """A threshold of the form constant + Σ weight · reference.

    Attributes:
        text: The expression as it was written.
        constant: The term without a reference; 0 if there is none.
        weights: Reference name -> its weight. References with the weight 0 are left out.
    """

    text: str
    constant: float
    weights: Mapping[str, float]

    def of(self, references: Mapping[str, Floats]) -> Floats:
        """Compute the threshold of each instance from the values of its references.

        Args:
            references: Reference name -> (n,) values, one per instance; NaN where undefined. Every reference in the
                expression must be included.

        Returns:
            (n,) thresholds, one per instance; NaN if a reference in the expression is NaN for this instance.
        """
        size = len(next(iter(references.values())))
        total = np.full(size, self.constant)
        for name, weight in self.weights.items():
            total = total + weight * references[name]
        return total

    def range(
        self, low: float, high: float, bounds: Mapping[str, tuple[float, float]] | None = None
    ) -> tuple[float, float]:
        """Return the lowest and the highest possible threshold.

        Args:
            low: The lowest possible value of the references that are not in `bounds`.
            high: The highest possible value of the references that are not in `bounds`.
            bounds: Reference name -> its lowest and highest possible value; None if `low` and `high` apply to all.
        """
        least = most = self.constant
        for name, weight in self.weights.items():
            ends = [weight * end for end in (bounds or {}).get(name, (low, high))]
            least, most = least + min(ends), most + max(ends)
        return least, most

    def minus(self, reference: str) -> Expression:
        """Return the difference of the expression and a reference, as an expression."""
        weights = {**self.weights, reference: self.weights.get(reference, 0.0) - 1.0}
        return Expression(
            f"{self.text} - {reference}", self.constant, {name: weight for name, weight in weights.items() if weight}
        )

    @property
    def canonical(self) -> str:
        """The expression in canonical form, such as "0.5 * floor + signed_loo - 0.1".

        Expressions with the same constant and the same weights have the same canonical form.
        """
        terms = [(weight, name) for name, weight in sorted(self.weights.items())]
        text = ""
        for weight, name in [*terms, (self.constant, "")]:
            if weight == 0:
                continue
            size = abs(weight)
            factors = [repr(size)] if not name or size != 1 else []
            sign = ("-" if weight < 0 else "") if not text else (" - " if weight < 0 else " + ")
            text += sign + " * ".join([*factors, *([name] if name else [])])
        return text


def parse(text: str, known: Sequence[str]) -> Expression:
    """Read a relative threshold.

    Examples:
        >>> parse("floor + 0.5 * (gradient_loo - floor)", ["floor", "gradient_loo"]).weights
        {'floor': 0.5, 'gradient_loo': 0.5}

    Args:
        text: The expression.
        known: The names of the references that the expression may use; at least one.

    Raises:
        CheckError: The expression has invalid syntax, is not linear in the references, contains a number that is too
            large, names an unknown reference, or names no reference. For invalid syntax, the message gives the
            position.
    """
    if len(text) > MAX_LENGTH:
        raise CheckError(f"the threshold has {len(text)} characters; expected at most {MAX_LENGTH}.")
    if "#" in text:  # Python would read the rest of the line as a comment
        raise _refusal(text, known, "'#' is not allowed", text.index("#") + 1)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        position = getattr(error, "offset", None) or 1
        reason = error.msg if isinstance(error, SyntaxError) else "it is not an expression"
        raise _refusal(text, known, reason, position) from None
    terms = _Reader(text, known).terms(tree.body)
    if not np.isfinite(list(terms.values())).all():
        raise CheckError(f"'{text}' contains a number that is too large.")
    weights = {name: weight for name, weight in terms.items() if name and weight != 0}
    if not weights:
        raise CheckError(
            f"'{text}' names no reference. Expected a number without quotes or an expression, such as "
            f"'{known[0]} + 0.2'."
        )
    return Expression(text.strip(), terms.get("", 0.0), weights)


#: Reference name -> its weight; the constant has the name "".
Terms = dict[str, float]


@dataclass(frozen=True, slots=True)
class _Reader:
    text: str
    known: Sequence[str]

    def terms(self, node: ast.expr) -> Terms:
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return {"": float(value)}  # the length limit keeps whole numbers in the range of floats
            case ast.Name(id=name) if name in self.known:
                return {name: 1.0}
            case ast.Name(id=name):
                raise CheckError(f"'{self.text}': unknown reference '{name}'. {nearest(name, self.known)}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return {name: -weight for name, weight in self.terms(operand).items()}
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._sum(self.terms(left), self.terms(right), 1.0)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return self._sum(self.terms(left), self.terms(right), -1.0)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self._product(self.terms(left), self.terms(right), node)
        raise self._refusal(f"'{ast.unparse(node)}' is not allowed", node)

    @staticmethod
    def _sum(left: Terms, right: Terms, sign: float) -> Terms:
        return {name: left.get(name, 0.0) + sign * right.get(name, 0.0) for name in {**left, **right}}

    def _product(self, left: Terms, right: Terms, node: ast.expr) -> Terms:
        if set(left) - {""} and set(right) - {""}:
            raise self._refusal("a product of two references is not allowed", node)
        scale, scaled = (right, left) if set(left) - {""} else (left, right)
        factor = scale.get("", 0.0)
        return {name: factor * weight for name, weight in scaled.items()}

    def _refusal(self, reason: str, node: ast.expr) -> CheckError:
        return _refusal(self.text, self.known, reason, node.col_offset + 1)


def _refusal(text: str, known: Sequence[str], reason: str, position: int) -> CheckError:
    return CheckError(
        f"'{text}': {reason} (character {position}). Expected numbers, +, -, *, parentheses and {', '.join(known)}."
    )
