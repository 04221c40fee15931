"""What the model decided, and the attention shown for it: measured in every audit."""

from __future__ import annotations

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import CheckError
from attnaudit.registry import measures


class Prediction(PerBatch):
    """probabilities (C,) and logits of each instance; truncated: 1 where its text was cut, if the adapter says so."""

    @property
    def depends_on_reading(self) -> bool:
        return False

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        truncated = view.inputs.extra.get("truncated")
        return Columns(
            vectors={"probabilities": view.probabilities, "logits": view.logits},
            scalars={} if truncated is None else {"truncated": truncated.double()},
        )


class Attention(PerBatch):
    """The reading: attention renormalised over real tokens, its largest weight, and the mass on special tokens."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        return Columns(
            tokens={"attention": view.attention},
            scalars={"attention.max": view.attention.amax(1), "attention.special_mass": view.special_mass},
        )


@measures.register("prediction")
def prediction(argument: str) -> Measure:
    return Prediction(name=no_argument("prediction", argument))


@measures.register("attention")
def attention(argument: str) -> Measure:
    return Attention(name=no_argument("attention", argument))


def no_argument(name: str, argument: str) -> str:
    if argument:
        raise CheckError(f"'{name}' takes no argument, but got '.{argument}'.")
    return name
