"""Find models and data sets that were not the same in all processes of a run.

Each worker of pytest-xdist loads the models and the data that it needs. The verdicts of a run belong together only if
all workers loaded the same models and data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnaudit.formatting import listed
from attnaudit.run.run_folder import MeasuredPart, RunFolder


def conflicts(folder: RunFolder) -> list[str]:
    """Return a sentence for each model and data set that differs between the parts of a run. It also says what to do.

    Args:
        folder: The folder of the run, before the parts are merged.
    """
    parts, found = folder.read_parts(), []
    for name in dict.fromkeys(part.model.name for part in parts):
        hashes = {part.model.sha256: part.measured.worker for part in parts if part.model.name == name}
        if len(hashes) > 1:
            found.append(
                f"The model {name} was not the same in all processes ({_shown(hashes)}), so the verdicts belong to "
                "different models. Load the weights from a file, or set the seed before they are drawn. Give the "
                "modules of the model the same attributes in every process."
            )
    for name in dict.fromkeys(part.data.name for part in parts):
        same_data = [part for part in parts if part.data.name == name]
        hashes = dict(_hashes(same_data, folder))
        if len(hashes) > 1:
            found.append(
                f"The rows of the data set {name} were not the same in all processes ({_shown(hashes)}), so the "
                "verdicts belong to different rows. Make the function that loads the data return the same rows each "
                "time, or run the audit in one process."
            )
    return found


def _hashes(parts: Sequence[MeasuredPart], folder: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield the hash of a data set in each part, and the worker that read it.

    The hash of a stream covers the audited rows only. The hash of a smaller part is left out if the largest part
    contains all of its rows.
    """
    largest = max(parts, key=lambda part: part.data.audited)
    for part in parts:
        fewer = part.data.hashed == "audited rows" and part.data.audited < largest.data.audited
        if not fewer or not _instances(part, folder) <= _instances(largest, folder):
            yield part.data.sha256, part.measured.worker


def _instances(part: MeasuredPart, folder: RunFolder) -> set[str]:
    """Return the ids of the instances of a part. If the data give no ids, an id depends on the content of its row."""
    import pyarrow.parquet as pq

    return set(pq.read_table(folder.numbers_of(part), columns=["instance"])["instance"].to_pylist())


def _shown(hashes: dict[str, str]) -> str:
    return listed([f"sha256 {sha256[:12]} in {worker}" for sha256, worker in hashes.items()])
