"""What a check of the contract is, and what selects it: the capabilities that an adapter declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from attnaudit.adapters.protocol import ConvertedModelAdapter

if TYPE_CHECKING:
    from attnaudit.conformance.sample_texts import Examples

#: Largest difference in weights, or in logits of size one, that rounding in float32 explains.
TOLERANCE = 1e-4
#: Logits smaller than this are held to the tolerance of this size.
SMALLEST_SIZE = 0.05


class BrokenContractError(Exception):
    """The contract is broken: what was found, and the likely mend."""


Need = Literal[
    "decoding",
    "deletion",
    "differentiable",
    "influences",
    "left_padding",
    "mask",
    "many_sites",
    "query",
    "replays",
    "shares_states",
    "ships",
    "value_vectors",
]

#: What a check may need -> whether the adapter has it, and the words where it has not.
NEEDS: dict[Need, tuple[Callable[[Examples], bool], str]] = {
    "decoding": (
        lambda e: e.capabilities.decodes or e.capabilities.linear_decoder,
        "the capabilities declare neither decodes nor linear_decoder",
    ),
    "deletion": (lambda e: e.capabilities.deletion, "the capabilities say deletion=False"),
    "differentiable": (lambda e: e.capabilities.differentiable, "the capabilities say differentiable=False"),
    "influences": (lambda e: e.capabilities.influences, "the capabilities say influences=False"),
    "left_padding": (
        lambda e: e.capabilities.left_padding or e.padded_left,
        "the capabilities say left_padding=False",
    ),
    "mask": (lambda e: e.capabilities.mask, "the capabilities say mask=False"),
    "many_sites": (lambda e: len(e.sites) > 1, "the model has one attention site"),
    "query": (lambda e: e.capabilities.query, "the capabilities say query=False"),
    "replays": (lambda e: e.capabilities.replays, "the capabilities say replays=False"),
    "shares_states": (lambda e: e.capabilities.shares_states, "the capabilities say shares_states=False"),
    "ships": (
        lambda e: isinstance(e.adapter, ConvertedModelAdapter),
        "the adapter has no compare_with_original(): the model runs as it ships",
    ),
    "value_vectors": (lambda e: e.capabilities.value_vectors, "the capabilities say value_vectors=False"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. run: returns a sentence about what was found, or raises BrokenContractError. quick: part of the quick
    form, which runs before every audit. basic: where it fails, no other check can be tried. needs: all must be met."""

    run: Callable[[Examples], str]
    quick: bool
    basic: bool
    needs: tuple[Need, ...]

    @property
    def name(self) -> str:
        return self.run.__name__.removeprefix("check_")

    @property
    def question(self) -> str:
        """What is checked: the first paragraph of its docstring, in one line."""
        return " ".join((self.run.__doc__ or "").partition("\n\n")[0].split())

    def __call__(self, examples: Examples) -> str:
        return self.run(examples)

    def left_out(self, examples: Examples) -> str:
        """Why the adapter is not checked in this way; "" where it is."""
        return next((why for has, why in (NEEDS[need] for need in self.needs) if not has(examples)), "")


def contract(*needs: Need, quick: bool = True, basic: bool = False) -> Callable[[Callable[[Examples], str]], Check]:
    """Makes a function of Examples a check. needs: what selects it."""

    def made(run: Callable[[Examples], str]) -> Check:
        return Check(run=run, quick=quick, basic=basic, needs=needs)

    return made


def gap(found: Tensor, expected: Tensor) -> float:
    """Largest difference; infinite for other shapes and for values that are not numbers."""
    if found.shape != expected.shape:
        return float("inf")
    difference = (found - expected).abs()
    if bool(difference.isnan().any()):
        return float("inf")
    return difference.max().item() if difference.numel() else 0.0


def require_close(
    found: Tensor, expected: Tensor, what: str, mend: str, *, tolerance: float = TOLERANCE, at: str = ""
) -> float:
    """The gap. Raises BrokenContractError: what differs, by how much, where, and the mend."""
    difference = gap(found, expected)
    if not difference <= tolerance:
        where = f" ({at})" if at else ""
        raise BrokenContractError(f"{what} by {difference:.2g}{where}, expected at most {tolerance:.2g}. {mend}")
    return difference


def require_same_logits(found: Tensor, expected: Tensor, what: str, mend: str, *, at: str = "") -> float:
    """As `require_close`, with the tolerance of the size of the logits: rounding grows with them."""
    size = expected.detach().abs().max().item() if expected.numel() else 1.0
    return require_close(found, expected, what, mend, tolerance=TOLERANCE * max(size, SMALLEST_SIZE), at=at)


def listed(names: list[str], most: int = 4) -> str:
    """'a', 'b' and 3 more."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
