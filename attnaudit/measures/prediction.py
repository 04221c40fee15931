"""The model's prediction, and the attention that is shown as its explanation. Every audit measures both."""

from __future__ import annotations

from attnaudit.measures import AttentionView, Columns, Request, measure


@measure("prediction", depends_on_reading=False)
def prediction(view: AttentionView, request: Request) -> Columns:
    """Return the columns that every run has and that do not depend on the reading (the attention shown to people).

    The columns are:

    * `probabilities`, `logits`: one number per class. A model with a single sigmoid output has two probabilities.
    * `open_classes`: 1 for each class that is a possible answer for the row, otherwise 0. It exists only if the adapter
      closes classes.
    * `truncated`: 1 if the text was truncated, otherwise 0. It exists only if the adapter reports truncation.
    """
    truncated = view.inputs.extra.get("truncated")
    vectors = {"probabilities": view.probabilities, "logits": view.logits}
    if view.open_classes is not None:
        vectors["open_classes"] = view.open_classes.double()
    return Columns(
        vectors=vectors,
        scalars={} if truncated is None else {"truncated": truncated.double()},
    )


@measure("attention")
def attention(view: AttentionView, request: Request) -> Columns:
    """Return the attention that is shown as the explanation, also called the reading.

    The columns are:

    * `attention`: one weight per unit (token or word), normalised over the units of the text.
    * `attention.max`: the largest of these weights.
    * `attention.special_mass`: before normalisation, the share of the weight that is not on real tokens.
    """
    return Columns(
        tokens={"attention": view.attention},
        scalars={"attention.max": view.attention.amax(1), "attention.special_mass": view.special_mass},
    )
