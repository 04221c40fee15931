"""Gradient importance with the settings of two papers, and input × gradient.

All of these use gradients of f, the probability of the predicted class. They are computed from its log-odds, so they
exist even if f rounds to 1. The importance is normalised over the real tokens. It is undefined (NaN) for texts in which
it is zero at all real tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnaudit.adapters.protocol import TEXT
from attnaudit.errors import CheckError, nearest
from attnaudit.measures import AttentionView, Columns, Request, measure, one_of

#: Where gradients are taken: at the embeddings or at the hidden states.
PLACES = ("inputs", "hidden")
PRESETS = ("meister", "jain_wallace")


@dataclass(frozen=True)
class GradientArgument:
    """The argument of `gradient`.

    Attributes:
        preset: "meister" or "jain_wallace".
        place: "inputs" or "hidden".
    """

    preset: str
    place: str


def preset_and_place(text: str) -> GradientArgument:
    """Parse "<preset>.<place>", such as "meister.inputs".

    Raises:
        CheckError: The preset or the place is unknown.
    """
    preset, _, place = text.partition(".")
    if preset not in PRESETS:
        raise CheckError(f"unknown preset '{preset}'. {nearest(preset, PRESETS)}")
    return GradientArgument(preset, one_of(*PLACES)(place))


def normalised(scores: Tensor, real: Tensor) -> Tensor:
    """Divide each row of scores by its sum over the real tokens.

    Args:
        scores: (B, T) non-negative scores.
        real: (B, T) True at real tokens.

    Returns:
        (B, T) shares, 0 outside the real tokens; NaN in rows whose sum is 0.
    """
    real_scores = scores.masked_fill(~real, 0.0)
    total = real_scores.sum(1, keepdim=True)
    return (real_scores / total).masked_fill(total <= 0, float("nan"))


@measure(
    "gradient",
    argument=preset_and_place,
    gradients=True,
    depends_on_reading=lambda argument: argument.place == "hidden",
)
def gradient(view: AttentionView, request: Request) -> Columns:
    """Return the gradient importance of every token. Let x be its embedding or hidden state.

    With the preset "meister", the importance is the norm of the gradient, ‖∂f/∂x‖₂ (Meister et al. 2021, eq. 4).
    Gradients flow through the attention weights. With the preset "jain_wallace", it is |x · ∂f/∂x|, and the attention
    weights are treated as constants (published code of Jain & Wallace 2019).
    """
    argument: GradientArgument = request.argument
    if argument.preset == "meister":
        scores = view.unit_norms(view.gradient[PLACES.index(argument.place)])
    else:
        scores = _input_times_gradient(view, view.gradient_attention_detached, argument.place)
    return Columns(tokens={request.name: normalised(scores, view.real)})


@measure(
    "input_x_gradient",
    argument=one_of(*PLACES),
    gradients=True,
    depends_on_reading=lambda place: bool(place == "hidden"),
)
def input_x_gradient(view: AttentionView, request: Request) -> Columns:
    """Return |x · ∂f/∂x| of every token, where x is its embedding or hidden state.

    Gradients flow through the attention weights.
    """
    scores = _input_times_gradient(view, view.gradient, request.argument)
    return Columns(tokens={request.name: normalised(scores, view.real)})


def _input_times_gradient(view: AttentionView, gradients: tuple[Tensor, Tensor], place: str) -> Tensor:
    """Return |x · ∂f/∂x| (B, T) of each unit (a token or word), where x is the embedding or the hidden state.

    Args:
        view: B instances.
        gradients: (B, T, d) gradients with respect to the embeddings, and (B, T, m) gradients with respect to the
            hidden states.
        place: "inputs" for the embeddings, "hidden" for the hidden states.
    """
    x = view.embeddings[TEXT] if place == "inputs" else view.hidden
    product = (gradients[PLACES.index(place)] * x.detach().double()).sum(-1)
    return view.batch.sum_by_unit(product).abs()
