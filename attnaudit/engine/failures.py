"""What may go wrong in a batch: no memory for it, or something that one of its rows makes the model raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from attnaudit.errors import AuditError
from attnaudit.instances import Instance


def with_its_row(error: Exception, rows: Sequence[tuple[Instance, Callable[[], object]]]) -> AuditError:
    """What the model, its adapter or a measure raised, with the row: the first that raises it alone, or all of them.

    rows: each with what measures it alone."""
    culprit, more = rows[0][0], f" and {len(rows) - 1} rows beside it, though none of them alone"
    if len(rows) == 1:
        more = ""
    for one, alone in rows if more else ():
        try:
            alone()
        except Exception as own:
            error, culprit, more = own, one, ""
            break
    return AuditError(
        f"{culprit.where or culprit.id}{more}: {type(error).__name__} while it was measured: {error}. Mend what raises "
        "it (pytest --full-trace shows where), or remove the row."
    )


def out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return "can't allocate memory" in text or "not enough memory" in text or "out of memory" in text
