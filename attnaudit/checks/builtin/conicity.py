"""Do the hidden states point in different directions? (Mohankumar et al. 2020)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Mask, ReferenceValues, number_defined, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference


@registered
@dataclass(frozen=True, kw_only=True)
class Conicity(PerInstanceCheck):
    """Mean over instances of the conicity of the hidden states.

    The conicity of an instance is the mean cosine similarity between the hidden states of its real tokens and the mean
    of these states. A low conicity is good. Conicity depends mostly on the type of encoder, so read it together with
    `PermutationFragility`. An instance has no value if it has a single token or if its mean hidden state is zero.
    """

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    family = "states"
    title = "Hidden states differ in direction"
    question = "Do the hidden states point in different directions, so that it matters which ones get weight?"
    why = (
        "If all states point in nearly the same direction, any weights give nearly the same context vector. High "
        "conicity alone can explain why the output does not change when attention is permuted."
    )
    how_to_read = (
        "Conicity is a mean cosine similarity. At 1, all hidden states point in the same direction, and the weights "
        "on them make no difference. Compare the value with the floor, the conicity of the same number of "
        "orthogonal states."
    )
    unit = "cosine"
    value_name = "mean conicity"
    values_label = "conicity per instance"
    bounds = (-1.0, 1.0)
    worst = "highest"
    threshold_references = ("floor",)
    reference_bounds: ClassVar[Mapping[str, tuple[float, float]]] = MappingProxyType({"floor": (0.0, 0.5**0.5)})
    subject = "conicity"

    def needs(self) -> tuple[str, ...]:
        return ("conicity",)

    def values(self, measurements: Measurements) -> Floats:
        return measurements.scalar("conicity")

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues | Reference]:
        orthogonal = measurements.scalar("conicity.orthogonal")
        return (
            ReferenceValues("floor", orthogonal, "mean of 1/√n, the conicity of n orthogonal states of equal length"),
            Reference(name="maximum", value=1.0, meaning="all states in one direction", n=number_defined(values)),
        )

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (single_token(measurements), ("the mean hidden state is zero", undefined))
