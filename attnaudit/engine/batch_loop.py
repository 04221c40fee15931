"""Run instances in batches of similar length, with smaller batches if memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from attnaudit.devices import full_precision
from attnaudit.engine.batches.batch_sizes import sizes_of_batches
from attnaudit.engine.batches.failures import out_of_memory, with_its_row
from attnaudit.errors import AuditError
from attnaudit.instances import Instance


def run_in_batches(
    run: Callable[[list[int], int], None],
    instances: Sequence[Instance],
    positions: Sequence[int],
    widths: Sequence[int],
    *,
    device: str,
    budget: int,
    most: int | None = None,
    per_pass: int | None = None,
    report: Callable[[int], None] | None = None,
) -> int:
    """Run some instances in batches. The instances with the most tokens run first.

    If memory runs out, the batch is run again with a smaller token budget.

    Args:
        run: (indices of instances, token budget) -> None. It runs these instances as one batch.
        instances: All instances of the data set.
        positions: Indices of the instances to run.
        widths: (n,) number of tokens of every instance.
        device: The device of the model.
        budget: Largest number of tokens (rows × padded length) in one batch. A batch always has at least one row.
        most: Largest number of rows in one batch; None for no limit.
        per_pass: As in `sizes_of_batches`.
        report: Called after every batch with the number of finished instances; None to report no progress.

    Returns:
        The largest number of rows in one batch.

    Raises:
        AuditError: The model or a measure raised an error, or there is not enough memory for a single instance. The
            message names the row.
    """
    remaining = sorted(positions, key=lambda i: (-widths[i], instances[i].id))
    total, largest = len(remaining), 0

    def sizes() -> list[int]:
        return sizes_of_batches([widths[i] for i in remaining], budget, per_pass=per_pass, most=most)

    planned = sizes()
    while remaining:
        batch = remaining[: planned[0]]
        try:
            with full_precision():
                run(batch, budget)
        except AuditError:
            raise
        except Exception as error:
            if not out_of_memory(error):
                raise with_its_row(error, [(instances[i], partial(run, [i], budget)) for i in batch]) from error
            width = widths[batch[0]]
            if len(batch) == 1 and budget <= width:
                alone = instances[batch[0]]
                raise AuditError(
                    f"{alone.where or alone.id}: there is not enough memory on {device}, even for this instance alone "
                    f"({width} tokens). Shorten the text, or audit on another device (--audit-device cpu)."
                ) from error
            budget = max(1, min(budget, len(batch) * width) // 2)
            planned = sizes()
        else:
            remaining, planned = remaining[len(batch) :], planned[1:]
            largest = max(largest, len(batch))
            if report is not None:
                report(total - len(remaining))
            continue
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()  # only here: the traceback of the error above kept the tensors alive
    return largest
