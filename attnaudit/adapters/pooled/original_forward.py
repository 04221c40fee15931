"""Compare the logits of an adapter with those of the model's own forward pass.

An adapter is built from the parts of a model. If the forward pass of the model also computes something else, such as a
second path to the logits, the adapter describes another model. Only this comparison can find such a mistake.

Shapes: B texts, C logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnaudit.errors import AdapterError, raised_at
from attnaudit.formatting import plural
from attnaudit.precision import FLOAT32_TOLERANCE, counted_size

#: How error messages say what the function must return.
EXPECTED = "expected the logits of one text, a tensor (1, C)"


def compare_logits(
    original: Callable[..., Tensor],
    arguments: Sequence[tuple[Tensor, ...]],
    audited: Tensor,
    texts: Sequence[str],
    *,
    gets: str,
    of_target: Callable[[Tensor], Tensor],
    is_open: Tensor | None = None,
) -> str:
    """Compare the logits of an adapter with those of the original model, and return one sentence about the result.

    Args:
        original: The forward pass of the model. It is called once per text.
        arguments: The arguments of `original` for each of the B texts.
        audited: (B, C) logits that the adapter computes.
        texts: (B,) the texts, for error messages.
        gets: What `original` gets in one call, for error messages.
        of_target: Function from the outputs of the model to the logits of the target.
        is_open: (B, C) False for classes that are not possible answers. They are not compared. None if all are.

    Raises:
        AdapterError: The logits differ by more than rounding explains, or `original` returned something else.
    """

    def outputs(row: int) -> Tensor:
        return of_target(_outputs(original, arguments[row], texts[row], gets))

    expected = torch.cat([outputs(row) for row in range(len(texts))])
    if expected.shape != audited.shape:
        raise AdapterError(
            f"original returned {plural(expected.shape[1], 'logit')} for a text, but the decoder returns "
            f"{audited.shape[1]}. Return the logits of your model's forward(), in the order of `classes`."
        )
    sizes = _per_text(expected, is_open)
    if not bool(sizes.isfinite().all()):
        raise AdapterError(
            f"original returned logits that are not finite for the text {texts[int(sizes.argmax())][:40]!r}. Look for "
            "a division by zero, or a softmax without any token."
        )
    again = outputs(0)
    limit = FLOAT32_TOLERANCE * counted_size(sizes.max().item(), FLOAT32_TOLERANCE)
    if not _per_text(again - expected[:1], None if is_open is None else is_open[:1]).item() <= limit:
        raise AdapterError(
            f"two calls of original with the same text, {texts[0][:40]!r}, return different logits. Put your "
            "model in evaluation mode by listing it in modules, as in modules=(model,)."
        )
    differences = _per_text(expected - audited, is_open)
    difference = differences.max().item()
    if difference <= limit:
        return f"the logits equal those of your model's own forward(), on {plural(len(texts), 'text')}"
    worst = texts[int(differences.argmax())]
    raise AdapterError(
        f"the logits of the adapter differ by {difference:.2g} from those of your model's own forward() (original), "
        f"most for the text {worst[:40]!r}; expected at most {limit:.2g}. {_advice(expected)}"
    )


def _advice(expected: Tensor) -> str:
    """Return what to change, given the logits (B, C) of the original model."""
    sums = expected.sum(1)
    if expected.shape[1] > 1 and bool((expected >= 0).all()) and bool(((sums - 1).abs() < FLOAT32_TOLERANCE).all()):
        return (
            "Those of original are at least 0 and sum to 1, as probabilities do. Return the values before the softmax."
        )
    return (
        "The audit would measure a different model from the one in use. Add to the adapter what forward() computes in "
        "addition to the given parts, such as a layer between them. If a path to the logits does not pass through the "
        "attention, or another part has no place, write an adapter class (docs/adapters.md)."
    )


def _outputs(original: Callable[..., Tensor], arguments: tuple[Tensor, ...], text: str, gets: str) -> Tensor:
    """Return the outputs (1, C) of the original model for one text.

    `gets` says, for error messages, what `original` gets in one call.

    Raises:
        AdapterError: `original` raised an exception, or returned something else.
    """
    shapes = ", ".join(str(tuple(one.shape)) for one in arguments)
    given = f"original is called for {gets}, here with the shape {shapes}"
    try:
        outputs: Any = original(*arguments)
    except AdapterError:
        raise
    except Exception as error:
        raise AdapterError(
            f"original raised {type(error).__name__}{raised_at(error)} for the text {text[:40]!r}: {error}. "
            f"{given}. Give a function that calls your model, such as original=lambda ids: model(ids, ids != 0)."
        ) from error
    if not isinstance(outputs, Tensor):
        hint = ": original=lambda ids: model(ids)[0]" if isinstance(outputs, (tuple, list)) else ""
        raise AdapterError(
            f"original returned a {type(outputs).__name__}; {EXPECTED}. Return only the logits of your model{hint}."
        )
    if outputs.dim() != 2 or len(outputs) != 1:
        raise AdapterError(
            f"original returned the shape {tuple(outputs.shape)}; {EXPECTED}, with C = 1 for a sigmoid output. "
            f"{given[0].upper()}{given[1:]}."
        )
    return outputs


def _per_text(values: Tensor, is_open: Tensor | None) -> Tensor:
    """Return the largest absolute value (B,) of each row of (B, C) values; infinity if one of them is not finite."""
    sizes = values.abs().nan_to_num(nan=torch.inf)
    return (sizes if is_open is None else sizes.masked_fill(~is_open, 0.0)).amax(1)
