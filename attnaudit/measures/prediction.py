"""What the model predicts, and the attention shown for it. Every audit measures both."""

from __future__ import annotations

from attnaudit.measures import AttentionView, Columns, Request, measure


@measure("prediction", depends_on_reading=False)
def prediction(view: AttentionView, request: Request) -> Columns:
    """Return the columns of every run that do not depend on the reading.

    Columns: `probabilities` and `logits`, C numbers per instance; `truncated`, 1 where the text was truncated, if the
    adapter reports it.
    """
    truncated = view.inputs.extra.get("truncated")
    return Columns(
        vectors={"probabilities": view.probabilities, "logits": view.logits},
        scalars={} if truncated is None else {"truncated": truncated.double()},
    )


@measure("attention")
def attention(view: AttentionView, request: Request) -> Columns:
    """Return the attention that is shown.

    Columns: `attention` per token, renormalised over real tokens; `attention.max`, its largest weight;
    `attention.special_mass`, the share of the weight that is on special tokens.
    """
    return Columns(
        tokens={"attention": view.attention},
        scalars={"attention.max": view.attention.amax(1), "attention.special_mass": view.special_mass},
    )
