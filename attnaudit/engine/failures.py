"""Errors that measuring a batch may raise: too little memory, a row that the model cannot process, or NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnaudit.errors import AdapterError, AuditError
from attnaudit.instances import Instance


def with_its_row(error: Exception, rows: Sequence[tuple[Instance, Callable[[], object]]]) -> AuditError:
    """Return an error that names the row at fault.

    Args:
        error: the error that the model, its adapter or a measure raised for a batch.
        rows: each instance of the batch with a function that measures it alone.

    Returns:
        An error about the first row that raises when it is measured alone, or about the whole batch if none does.
    """
    culprit, others = rows[0][0], f" and the {len(rows) - 1} other rows of its batch"
    if len(rows) == 1:
        others = ""
    for instance, measure_alone in rows if others else ():
        try:
            measure_alone()
        except Exception as own_error:
            error, culprit, others = own_error, instance, ""
            break
    alone = " Measuring each of these rows alone raised no error." if others else ""
    return AuditError(
        f"{culprit.where or culprit.id}{others}: measuring raised {type(error).__name__}: {error}.{alone} Fix the "
        "cause (pytest --full-trace shows where it was raised), or remove the row."
    )


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
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
    """Refuse logits that are not finite in a pass whose input or attention was changed.

    Without this error, they would become a missing value or a changed decision.

    Args:
        logits: (R, ..., C) logits.
        instances: the instances of the batch.
        condition: what was changed, such as "under replaced attention".
        rows: (R,) instance that each entry belongs to; entry r belongs to instance r if None.
        given: (R, ..., ...) numbers from which the pass was computed, such as the replaced weights. Where they are NaN,
            as for an instance whose attention is undefined, the logits may be NaN too.

    Raises:
        AdapterError: some logits are NaN or infinite; the message names the row.
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
