"""Handling of errors in a batch: too little memory, a row that the model cannot process, or logits that are NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnaudit.errors import AdapterError, AuditError, raised_at
from attnaudit.instances import Instance


def with_its_row(error: Exception, rows: Sequence[tuple[Instance, Callable[[], object]]]) -> AuditError:
    """Return an error that names the row which caused it.

    Args:
        error: The error that the model, its adapter or a measure raised for a batch.
        rows: One pair for each row of the batch: the instance, and a function that measures this instance alone.

    Returns:
        An error that names the first row that raises an error when it is measured alone. If no row or every row does
        so, the error names the whole batch. The error also names the line of the user's code that raised it.
    """
    culprit, others, finding, remove = rows[0][0], "", "", ", or remove the row"
    if len(rows) > 1:
        own_errors = enumerate(_error_of(measure_alone) for _, measure_alone in rows)
        position, own_error = next(((i, one) for i, one in own_errors if one is not None), (0, None))
        culprit, error = rows[position][0], own_error or error
        if own_error is None:
            finding = " Measuring each of these rows alone raised no error."
        elif position == 0 and all(one is not None for _, one in own_errors):
            finding = " Measuring each of these rows alone raised an error, too."
        if finding:
            others, remove = f" and the {len(rows) - 1} other rows of its batch", ""
    return AuditError(
        f"{culprit.where or culprit.id}{others}: measuring raised {type(error).__name__}{raised_at(error)}: {error}."
        f"{finding} Fix the cause (without --audit-workers, pytest --full-trace shows the traceback){remove}."
    )


def _error_of(function: Callable[[], object]) -> Exception | None:
    """Call a function, and return the error that it raises; None if it raises no error."""
    try:
        function()
    except Exception as error:
        return error
    return None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error was raised because memory ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return "can't allocate memory" in text or "not enough memory" in text or "out of memory" in text


def refuse_not_finite(
    logits: Tensor,
    instances: Sequence[Instance],
    condition: str,
    *,
    rows: Tensor | None = None,
    given: Tensor | None = None,
) -> None:
    """Check that the logits of a pass with a changed input or changed attention are finite.

    Without this check, a measure would report a missing value or a changed decision instead of an error.

    Args:
        logits: (R, ..., C) logits.
        instances: The instances of the batch.
        condition: What was changed, such as "under replaced attention".
        rows: (R,) index of the instance that each entry belongs to. If None, entry r belongs to instance r.
        given: (R, ..., ...) numbers from which the pass was computed, such as the replaced weights. Where they are not
            finite, as for an instance whose attention is undefined, the logits need not be finite either.

    Raises:
        AdapterError: Some logits are NaN or infinite. The message names the row.
    """
    acceptable = logits.detach().isfinite().all(-1)
    if bool(acceptable.all()):
        return
    if given is not None:
        acceptable = acceptable | ~given.detach().isfinite().flatten(acceptable.dim()).all(-1)
        if bool(acceptable.all()):
            return
    entry = int((~acceptable).nonzero()[0, 0])
    instance = instances[entry if rows is None else int(rows[entry])]
    raise AdapterError(
        f"{instance.where or instance.id}: the model's logits are not finite (NaN or infinite) {condition} for "
        f"{instance.text[:40]!r}, although they are finite without that change. Look for the logarithm of a weight, a "
        "division by a sum that may be 0, an overflow, or scores that are all -inf."
    )
