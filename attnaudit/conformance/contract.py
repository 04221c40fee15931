"""The class of a conformance check, its requirements, and the comparisons that all checks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from torch import Tensor

from attnaudit.adapters.optional_methods import ConvertedModelAdapter, HalfPrecisionAdapter, not_compared
from attnaudit.precision import FLOAT32, FLOAT32_TOLERANCE, counted_size

if TYPE_CHECKING:
    from attnaudit.adapters.protocol import ModelAdapter
    from attnaudit.conformance.sample_texts import Examples

#: The largest accepted difference between attention weights, or between logits whose absolute values are at most 1.
#: Rounding in float32 causes smaller differences.
TOLERANCE = FLOAT32_TOLERANCE


class BrokenContractError(Exception):
    """Raised if an adapter breaks the contract. The message gives the problem and the likely fix."""


Need = Literal[
    "batches_gradients",
    "decoding",
    "deletion",
    "differentiable",
    "half_precision",
    "influences",
    "left_padding",
    "mask",
    "many_sites",
    "query",
    "query_blocks",
    "replays",
    "selects_queries",
    "selects_sites",
    "shares_masked",
    "shares_states",
    "ships",
    "target",
    "value_vectors",
]

#: Requirement of a check -> a function that returns whether an adapter meets the requirement, and the reason that is
#: given if the check is skipped. A function of the adapter may return this reason.
NEEDS: dict[Need, tuple[Callable[[Examples], bool], str | Callable[[ModelAdapter], str]]] = {
    "batches_gradients": (
        lambda e: e.capabilities.batches_gradients,
        "the capabilities declare batches_gradients=False",
    ),
    "decoding": (
        lambda e: e.capabilities.decodes or e.capabilities.linear_decoder,
        "the capabilities declare neither decodes nor linear_decoder",
    ),
    "deletion": (lambda e: e.capabilities.deletion, "the capabilities declare deletion=False"),
    "differentiable": (lambda e: e.capabilities.differentiable, "the capabilities declare differentiable=False"),
    "half_precision": (lambda e: e.capabilities.precision != FLOAT32, "the model is audited in float32"),
    "influences": (lambda e: e.capabilities.influences, "the capabilities declare influences=False"),
    "left_padding": (
        lambda e: e.capabilities.left_padding or e.padded_left,
        "the capabilities declare left_padding=False",
    ),
    "mask": (lambda e: e.capabilities.mask, "the capabilities declare mask=False"),
    "many_sites": (lambda e: len(e.sites) > 1, "the model has one attention site"),
    "query": (lambda e: e.capabilities.query, "the capabilities declare query=False"),
    "query_blocks": (lambda e: e.capabilities.query_blocks, "the capabilities declare query_blocks=False"),
    "replays": (lambda e: e.capabilities.replays, "the capabilities declare replays=False"),
    "selects_queries": (
        lambda e: e.capabilities.selects_queries,
        "the capabilities declare selects_queries=False",
    ),
    "selects_sites": (lambda e: e.capabilities.selects_sites, "the capabilities declare selects_sites=False"),
    "shares_masked": (lambda e: e.capabilities.shares_masked, "the capabilities declare shares_masked=False"),
    "shares_states": (lambda e: e.capabilities.shares_states, "the capabilities declare shares_states=False"),
    "ships": (lambda e: isinstance(e.adapter, ConvertedModelAdapter), not_compared),
    "target": (lambda e: e.capabilities.target.kind != "class", "the target is the class"),
    "value_vectors": (lambda e: e.capabilities.value_vectors, "the capabilities declare value_vectors=False"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One conformance check.

    Attributes:
        run: The function that runs the check. It returns one sentence about the result, or raises BrokenContractError.
        quick: Whether the check belongs to the quick suite, which runs before every audit.
        basic: Whether the check is basic. Checks that are not basic run only if all basic checks pass.
        needs: The requirements. The check applies only to adapters that meet all of them.
        in_float32: Whether a model that is audited in half precision computes in float32 during the check.
    """

    run: Callable[[Examples], str]
    quick: bool
    basic: bool
    needs: tuple[Need, ...]
    in_float32: bool = True

    @property
    def name(self) -> str:
        """The name of the check, such as "padding"."""
        return self.run.__name__.removeprefix("check_")

    @property
    def question(self) -> str:
        """One line that says what the adapter must do: the first paragraph of the docstring of `run`."""
        return " ".join((self.run.__doc__ or "").partition("\n\n")[0].split())

    def __call__(self, examples: Examples) -> str:
        if self.in_float32 and examples.capabilities.precision != FLOAT32:
            with cast(HalfPrecisionAdapter, examples.adapter).in_float32():
                return self.run(examples)
        return self.run(examples)

    def skip_reason(self, examples: Examples) -> str:
        """Return why the check does not apply to the adapter, or "" if it applies."""
        for is_met, reason in (NEEDS[need] for need in self.needs):
            if not is_met(examples):
                return reason if isinstance(reason, str) else reason(examples.adapter)
        return ""


def contract(
    *needs: Need, quick: bool = True, basic: bool = False, in_float32: bool = True
) -> Callable[[Callable[[Examples], str]], Check]:
    """Return a decorator that turns a function of `Examples` into a check.

    Args:
        needs: The requirements of the check.
        quick: Whether the check belongs to the quick suite.
        basic: Whether the check is basic. Checks that are not basic run only if all basic checks pass.
        in_float32: Whether a model that is audited in half precision computes in float32 during the check.
    """

    def decorate(run: Callable[[Examples], str]) -> Check:
        return Check(run=run, quick=quick, basic=basic, needs=needs, in_float32=in_float32)

    return decorate


def gap(actual: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference of two tensors; infinity if their shapes differ or a difference is NaN."""
    if actual.shape != expected.shape:
        return float("inf")
    difference = (actual - expected).abs()
    if bool(difference.isnan().any()):
        return float("inf")
    return difference.max().item() if difference.numel() else 0.0


def require_close(
    actual: Tensor, expected: Tensor, what: str, advice: str, *, tolerance: float = TOLERANCE, at: str = ""
) -> float:
    """Check that two tensors agree within a tolerance, and return their largest absolute difference.

    Args:
        actual: The tensor to compare.
        expected: The tensor to compare with.
        what: The beginning of the error message. The message continues with "by <difference>".
        advice: The end of the error message: sentences that say how to fix the adapter.
        tolerance: The largest accepted difference.
        at: Where the tensors differ, such as "at 'layer.0' alone", for the error message; "" to name no place.

    Raises:
        BrokenContractError: The difference is above the tolerance, the shapes differ, or a difference is NaN.
    """
    difference = gap(actual, expected)
    if not difference <= tolerance:
        where = f" ({at})" if at else ""
        raise BrokenContractError(f"{what} by {difference:.2g}{where}; expected at most {tolerance:.2g}. {advice}")
    return difference


def require_same_logits(
    actual: Tensor, expected: Tensor, what: str, advice: str, *, at: str = "", whole: Tensor | None = None
) -> float:
    """Check that two tensors of logits agree, and return their largest absolute difference.

    The tolerance is `TOLERANCE` times the size of the expected logits: their largest absolute value, or a larger number
    if it is small (see `counted_size`). If the expected logits belong to texts with masked tokens, `whole` has the
    logits of the texts without masks, whose size counts, too: small logits can be sums of large terms, whose rounding
    errors are larger. The other arguments and the error are the same as for `require_close`.
    """
    sizes = [one.detach().abs().max().item() for one in (expected, whole) if one is not None and one.numel()]
    size = max(sizes, default=1.0)
    return require_close(actual, expected, what, advice, tolerance=TOLERANCE * counted_size(size, TOLERANCE), at=at)


def listed(names: list[str], most: int = 4) -> str:
    """Join names for a message, as in "'a', 'b' and 3 more".

    Args:
        names: The names.
        most: The largest number of names in the result.
    """
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
