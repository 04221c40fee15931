"""While a check is judged, the memory does not grow with the number of rows, and the result is as in memory."""

from __future__ import annotations

import functools
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from attnaudit.checks.base import Check
from attnaudit.disk_arrays import filed_blocks
from attnaudit.disk_arrays.filed_arrays import FiledArray, filled, from_numbers, written
from attnaudit.disk_arrays.mapped_arrays import release_mapped
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.ragged_columns import RaggedBuilder
from attnaudit.instances import Instance
from attnaudit.statistics import bootstrap_samples, groups
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.group_names import GroupNames
from attnaudit.statistics.groups import Groups
from tests.units.checks.synthetic_measurements import measured
from tests.units.checks.test_custom_check import median_peak_for_tests, peaked_for_tests
from tests.units.checks.test_records import EVERY

#: The numbers of rows that are compared.
FEW, MANY = 2_048, 12_288
#: The largest growth, in bytes per further row. An array of numbers for all rows would need 8.
MOST = 5.0
#: The check that is always tested. The others, which take longer together, are tested with the slow tests.
ALWAYS = ("peaked_for_tests",)
CASES = [
    pytest.param(one, id=one.id, marks=() if one.id in ALWAYS else pytest.mark.slow)
    for one in (*EVERY, median_peak_for_tests(severity="report"), peaked_for_tests(at_least=0.1))
]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all blocks so small that both numbers of rows have several."""
    monkeypatch.setattr(filed_blocks, "BLOCK", 256)
    monkeypatch.setattr(filed_blocks, "NUMBERS", 2_048)
    monkeypatch.setattr("attnaudit.disk_arrays.filed_functions.SAMPLED", 16)
    monkeypatch.setattr(groups, "ROWS_AT_ONCE", 256)
    monkeypatch.setattr(groups, "NUMBERS_AT_ONCE", 2_048)
    monkeypatch.setattr(groups, "GROUPS_AT_ONCE", 8)
    monkeypatch.setattr(bootstrap_samples, "MOST_GROUPS", 256)
    monkeypatch.setattr(bootstrap_samples, "RESAMPLES", 200)  # saves time
    for module in ("statistics.standardised_logits", "checks.builtin.permutation_fragility", "checks.builtin.erasure"):
        monkeypatch.setattr(f"attnaudit.{module}.ROWS_AT_ONCE", 16)
    monkeypatch.setattr("attnaudit.engine.ragged_columns.ROWS_AT_ONCE", 16)
    for module in ("balanced_rows", "cohens_kappa"):
        monkeypatch.setattr(f"attnaudit.statistics.{module}.ROWS_AT_ONCE", 256)


class Rows(list[Instance]):
    """Instances whose ids are known, as those of large data sets are."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        super().__init__(instances)
        self.ids = [one.id for one in instances]


@functools.cache
def in_files(n: int) -> Measurements:
    """Return the same measurements with all columns in temporary files, as an audit of many rows has them."""
    m = measured(n)
    folder = tempfile.TemporaryDirectory()
    m.keep_alive.append(folder)
    m.instances = Rows(m.instances)
    m.labels, m.predicted = written([m.labels]), written([m.predicted])
    m.scalars = {name: written([column]) for name, column in m.scalars.items()}
    for number, (name, rows) in enumerate(m.vectors.items()):
        builder = RaggedBuilder(Path(folder.name) / str(number))
        builder.add(np.concatenate(rows), np.array([len(row) for row in rows]))
        m.vectors[name] = builder.column()
    names = [str(source) for source in m.sources]
    m.sources = GroupNames(written([np.arange(n)[::-1].copy()]), lambda code: names[n - 1 - code])
    m.freeze()
    return m


def peak(check: Check, m: Measurements) -> int:
    """Return the memory that judging needs at most, in bytes. Files that are mapped into memory are not included."""
    tracemalloc.start()
    try:
        check.judge(m)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("check", CASES)
def test_the_memory_does_not_grow_with_the_rows(check: Check) -> None:
    assert isinstance(in_files(FEW).scalars["attention.max"], FiledArray)
    check.judge(in_files(FEW))  # what is kept after the first call, such as imported modules, does not count
    peaked_for_tests(at_least=0.1).judge(in_files(MANY))  # nor does what all checks share, such as groups of rows
    few, many = peak(check, in_files(FEW)), peak(check, in_files(MANY))
    assert (many - few) / (MANY - FEW) < MOST, f"{few} and {many} bytes"


def test_an_array_of_all_rows_would_be_noticed(small_blocks: None) -> None:
    tracemalloc.start()
    few = [np.ones(FEW), tracemalloc.get_traced_memory()[1]]
    many = [np.ones(MANY), tracemalloc.get_traced_memory()[1]]
    tracemalloc.stop()
    assert (many[1] - few[1]) / (MANY - FEW) > MOST


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("work", ["join groups", "sum over groups", "balance classes"])
def test_mapped_files_do_not_stay_in_memory(work: str) -> None:
    n = 1_000_000
    sums, places = filled((n, 4), 1.0), from_numbers(range(n), np.int64)
    everything = Groups(places, places)

    def mapped() -> int:
        """Return the resident memory, in MiB, that is backed by files."""
        return int(Path("/proc/self/status").read_text().partition("RssFile:")[2].split()[0]) // 1024

    release_mapped()
    before = mapped()
    if work == "join groups":
        joined = bootstrap_samples._joined(sums, np.random.default_rng(0))
        np.testing.assert_allclose(joined.sum(0), n)
        assert set(joined[:, 0]) == {7.0, 8.0}
    elif work == "sum over groups":
        assert everything.sums(sums)[-1].tolist() == [1.0] * 4
    else:
        assert WeightedRows.balanced(places % 2, everything).mean(sums).tolist() == [1.0] * 4
    assert mapped() - before < 8  # the arrays take 8 and 31 MiB
