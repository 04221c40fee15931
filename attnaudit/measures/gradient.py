"""Gradient importance, in the presets of two papers, and input × gradient.

`meister` (M eq. 4): norm of the gradient of the predicted class's probability, attention part of the graph.
`jain_wallace` (their code): abs of gradient · input, attention held constant.
All are normalised over the real tokens; an instance whose gradient is zero everywhere is undefined (NaN).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import CheckError, nearest
from attnaudit.registry import measures

PLACES = ("inputs", "hidden")
PRESETS = ("meister", "jain_wallace")


def normalised(scores: Tensor, real: Tensor) -> Tensor:
    """(B, T) non-negative scores -> shares of each row's sum over the real tokens; NaN where that sum is 0."""
    kept = scores.masked_fill(~real, 0.0)
    total = kept.sum(1, keepdim=True)
    return (kept / total).masked_fill(total <= 0, float("nan"))


@dataclass(frozen=True, kw_only=True)
class Gradient(PerBatch):
    """norm: ‖∂f/∂x‖₂, otherwise abs(x · ∂f/∂x). detached: attention held constant. place: x is E or h."""

    place: str
    norm: bool
    detached: bool
    gradients: bool = True

    @property
    def depends_on_reading(self) -> bool:
        return self.place == "hidden"

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        pair = view.gradient_detached if self.detached else view.gradient
        slope = pair[PLACES.index(self.place)]
        at = view.embeddings[TEXT] if self.place == "inputs" else view.hidden
        product = view.batch.together((slope * at.detach().double()).sum(-1)).abs()
        scores = view.norms_of(slope) if self.norm else product
        return Columns(tokens={self.name: normalised(scores, view.real)})


def _place(name: str, place: str) -> str:
    if place not in PLACES:
        raise CheckError(f"'{name}': expected it to end in .inputs or .hidden. {nearest(place, PLACES)}")
    return place


@measures.register("gradient")
def gradient(argument: str) -> Measure:
    """gradient.<preset>.<place>"""
    preset, _, place = argument.partition(".")
    if preset not in PRESETS:
        raise CheckError(f"'gradient.{argument}': unknown preset '{preset}'. {nearest(preset, PRESETS)}")
    meister = preset == "meister"
    return Gradient(
        name=f"gradient.{argument}", place=_place(f"gradient.{argument}", place), norm=meister, detached=not meister
    )


@measures.register("input_x_gradient")
def input_x_gradient(argument: str) -> Measure:
    """input_x_gradient.<place>"""
    name = f"input_x_gradient.{argument}"
    return Gradient(name=name, place=_place(name, argument), norm=False, detached=False)
