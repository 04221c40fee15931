"""Errors that measuring a batch may raise: too little memory, or a row that the model cannot process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from attnaudit.errors import AuditError
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
