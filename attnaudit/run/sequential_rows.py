"""Measure rows in a random order, block by block, until there are enough of them."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnaudit.checks.sequential import is_settled, why_fixed
from attnaudit.engine.joined_measurements import joined
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError, DataError
from attnaudit.instances import Dataset

if TYPE_CHECKING:
    from attnaudit.data.draws import Draws

#: The number of rows in a block is at least this.
BLOCK = 250
#: The number of rows in a block, relative to the rows before it. Judging all rows after each block then costs little.
GROWTH = 0.1


class SequentialGates:
    """The gates of a sequential audit. They determine after how many rows measuring stops.

    Args:
        gates: All gates that apply to the model. If there are none, all rows are measured.
        gated: The number of gates of the policy.
    """

    def __init__(self, gates: Sequence[Any], gated: int) -> None:
        self.gates = gates
        self._gated = gated

    def are_settled(self, measurements: Measurements) -> bool:
        """Return whether the confidence sequences of all gates have reached a verdict."""
        try:
            return all(is_settled(gate.judge(measurements, gated=self._gated)) for gate in self.gates)
        except AuditError:  # the gate never settles, and judging its case raises the error again
            return False

    def fixed(self, measurements: Measurements) -> dict[str, str]:
        """Return the id of each gate that needs a fixed number of rows -> the reason."""
        found: dict[str, str] = {}
        for gate in self.gates:
            try:
                found[gate.id] = why_fixed(gate, measurements)
            except AuditError as error:
                found[gate.id] = f"it cannot be judged: {error}"
        return {gate: reason for gate, reason in found.items() if reason}


def usable(draws: Draws, count: int | None, refuse: Callable[[Dataset], object]) -> tuple[Dataset, DataError | None]:
    """Return the first `count` rows and None; or, if a row is invalid, the rows before it and the error.

    Args:
        draws: The rows in random order.
        count: The number of rows; None for all.
        refuse: Raises DataError if a row has a label that the model does not know.

    Raises:
        DataError: There are no rows, or the first row is invalid.
    """
    failure: DataError | None = None
    try:
        rows = draws.first(count)
    except DataError as error:
        if not draws.read:
            raise
        failure, rows = error, draws.first(draws.read)

    def error_among(number: int) -> DataError | None:
        whole = number == len(rows.instances)  # which may not fit in memory
        try:
            refuse(rows if whole else dataclasses.replace(rows, instances=rows.instances[:number]))
        except DataError as error:
            return error
        return None

    unknown = error_among(len(rows.instances))
    if unknown is None:
        return rows, failure
    known = bisect_left(range(1, len(rows.instances)), True, key=lambda number: error_among(number) is not None)
    if not known:
        raise unknown
    return draws.first(known), unknown


def candidate_samples(
    draws: Draws,
    limit: int | None,
    gates: SequentialGates,
    *,
    measure: Callable[[Dataset, int], Measurements],
    refuse: Callable[[Dataset], object],
) -> Iterator[tuple[Dataset, DataError | None]]:
    """Yield samples of increasing size, each of which seems large enough for the gates, and finally all rows.

    If a row is invalid, the last sample contains the rows before this row, and is yielded with the error. The error is
    raised if the caller asks for another sample. A gate that needs a fixed number of rows cannot be judged on fewer. If
    there is such a gate, the last sample contains only the rows that were measured before the error was found.

    Args:
        draws: The rows in random order.
        limit: The largest number of rows to measure; None for all.
        gates: The gates.
        measure: Takes a block of rows and the number of rows before it, and measures the block.
        refuse: Raises DataError if a row has a label that the model does not know.

    Raises:
        DataError: The data set has no rows, or a row is invalid. A stream of unknown length is an error if its rows
            only repeat earlier ones, or if a gate needs a fixed number of rows and there is no limit.
    """
    measured: Measurements | None = None
    done, is_fixed = 0, not gates.gates
    while not is_fixed:
        end = done + max(BLOCK, int(GROWTH * done))
        end = end if limit is None else min(end, limit)
        rows, error = usable(draws, end, refuse)
        if error is not None:
            if len(rows.instances) > done:
                yield rows, error
            raise error
        if end == limit or (draws.size is not None and len(rows.instances) >= draws.size):
            yield rows, None
            return
        part = measure(dataclasses.replace(rows, instances=rows.instances[done:]), done)
        distinct = 0 if measured is None else len(set(measured.sources))
        measured = part if measured is None else joined(measured, part)
        if gates.are_settled(measured):
            yield rows, None
        if draws.size is None and limit is None and len(set(measured.sources)) == distinct:
            raise _only_repeats(measured.data, len(part), len(rows.instances))
        done = len(rows.instances)
        is_fixed = _is_fixed(gates, measured, draws, limit)
    rows, error = usable(draws, limit, refuse)
    if error is not None:
        if done:
            yield draws.first(done), error
        raise error
    yield rows, None


def _only_repeats(data: str, repeats: int, count: int) -> DataError:
    """Return the error for an endless stream without new rows, which would be read forever."""
    return DataError(
        f"data set '{data}': none of rows {count - repeats + 1:,} to {count:,} of the stream is new: each has the same "
        "tokens as an earlier row, so they cannot decide the gates. Make the function that yields the rows end after "
        "the last row instead of starting again, or add --audit-max-instances N."
    )


def _is_fixed(gates: SequentialGates, measured: Measurements, draws: Draws, limit: int | None) -> bool:
    """Return whether a gate needs a fixed number of rows.

    Raises:
        DataError: The rows are a stream whose length is unknown, and there is no limit.
    """
    fixed = gates.fixed(measured)
    if fixed and limit is None and draws.size is None:
        reasons = "; ".join(f"{gate}: {reason}" for gate, reason in fixed.items())
        raise DataError(
            f"data set '{measured.data}': its rows are a stream whose length is unknown, but some gates need a fixed "
            f"number of rows ({reasons}). Add --audit-max-instances N: these gates are then judged on the first N "
            "rows. Or remove the gates."
        )
    return bool(fixed)
