"""Find policies, models and data sets that were not the same in all processes of a run.

Each worker of pytest-xdist reads the policy, and loads the models and the data that it needs. The verdicts of a run
belong together only if all workers read the same policy, and loaded the same models and data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path

from attnaudit.formatting import listed
from attnaudit.precision import tolerance
from attnaudit.run.run_folder import MeasuredPart, RunFolder


def conflicts(folder: RunFolder) -> list[str]:
    """Return sentences that say what differs between the processes of a run, and what to do.

    Args:
        folder: The folder of the run, before the parts are merged.
    """
    parts, found = folder.read_parts(), []
    policies = {
        plan.effective_policy.sha256: worker for worker, plan in folder.read_plans().items() if plan.effective_policy
    }
    if len(policies) > 1:
        found.append(
            f"The policy was not the same in all processes ({_shown(policies)}), so the verdicts belong to different "
            "policies. Do not change the policy, or the code of its checks, while a run reads them."
        )
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
    return found or list(_different_numbers(parts, folder))


def _different_numbers(parts: Sequence[MeasuredPart], folder: RunFolder) -> Iterator[str]:
    """Yield a sentence for each model and data set that several processes measured, with different numbers.

    The hash of a model does not cover tensors that are neither parameters nor buffers, and files that its code reads.
    """
    for model, data in dict.fromkeys(part.pair for part in parts):
        same = [part for part in parts if part.pair == (model, data)]
        for one, other in pairwise(same):
            files = [folder.numbers_of(part) for part in (one, other)]
            if not _agree(*files, allowed=tolerance(one.model.precision)):
                yield (
                    f"The model {model} gave different numbers on {data} in {one.measured.worker} and "
                    f"{other.measured.worker}, so the verdicts belong to different models. Load everything that the "
                    "model computes with from files, or set the seed before it is drawn."
                )
                break


def _agree(one: Path, other: Path, *, allowed: float) -> bool:
    """Return whether two files of measurements have the same rows, and the same numbers up to rounding.

    Args:
        one: The first file.
        other: The second file.
        allowed: The largest mean difference of the numbers of a measure, relative to their mean absolute value or to 1,
            whichever is larger. A single number can differ by more, because rounding can break a tie.
    """
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    sums: dict[str, list[float]] = {}  # measure -> the sum of the differences, that of the values, and their number
    with pq.ParquetFile(one) as first, pq.ParquetFile(other) as second:
        columns = ["instance", "measure", "value", "values"]
        for pair in zip_longest(*(file.iter_batches(columns=columns) for file in (first, second))):
            if None in pair or not all(pair[0][name].equals(pair[1][name]) for name in ("instance", "measure")):
                return False
            for name in pc.unique(pair[0]["measure"]).to_pylist():
                rows = pc.equal(pair[0]["measure"], name)
                numbers = []
                for batch in pair:
                    values, lists = (batch[column].filter(rows) for column in ("value", "values"))
                    flat = [array.to_numpy(zero_copy_only=False) for array in (values, lists.flatten())]
                    numbers.append(np.nan_to_num(np.concatenate(flat), nan=-1.0))
                if len(numbers[0]) != len(numbers[1]):
                    return False
                added = (np.abs(numbers[0] - numbers[1]).sum(), np.abs(numbers[0]).sum(), len(numbers[0]))
                sums[name] = [known + float(new) for known, new in zip(sums.get(name, [0.0] * 3), added, strict=True)]
    return all(changed <= allowed * max(values, number) for changed, values, number in sums.values())


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
