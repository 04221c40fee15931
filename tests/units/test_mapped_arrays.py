"""Arrays in temporary files: equal to arrays in memory, and unchanged after their memory was released."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from attnaudit.mapped_arrays import _unmodified, in_file, new_in_file, release_libraries, release_mapped
from attnaudit.processes import return_free_memory


@pytest.mark.parametrize("array", [np.arange(10), np.zeros((0, 3)), np.eye(3)[:, ::2], np.array([b"ab"], dtype="V2")])
def test_an_array_in_a_file_equals_the_array(array: np.ndarray) -> None:  # type: ignore[type-arg]
    mapped = in_file(array)
    release_mapped()
    assert type(mapped) is np.ndarray
    assert (mapped.dtype, mapped.shape, mapped.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_an_array_in_a_file_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        in_file(np.arange(3))[0] = 1


def test_what_is_written_remains_after_memory_is_released() -> None:
    array = new_in_file(5, np.float64)
    array[2:] = 7.0
    return_free_memory()
    array[0] = 3.0
    return_free_memory()
    assert array.tolist() == [3.0, 0.0, 7.0, 7.0, 7.0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_arrays_need_no_memory_and_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def mapped() -> int:
        """Return the resident memory, in KiB, that is backed by files."""
        status = Path(f"/proc/{os.getpid()}/status").read_text()
        return int(status.partition("RssFile:")[2].split()[0])

    array = in_file(np.arange(4_000_000))
    assert not list(tmp_path.iterdir())
    assert int(array.sum()) == 4_000_000 * 3_999_999 // 2
    before = mapped()
    release_mapped()
    assert before - mapped() > 25_000
    assert int(array[-1]) == 3_999_999


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_released_libraries_need_less_memory_and_still_work() -> None:
    def resident() -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssFile:"))

    array = in_file(np.arange(1000.0))
    expected = np.linalg.inv(np.diag(array[1:50]))
    before = resident()
    release_libraries()
    assert resident() < before
    assert np.array_equal(np.linalg.inv(np.diag(array[1:50])), expected)


def test_only_unmodified_mappings_of_libraries_are_released() -> None:
    def mapping(number: int, permissions: str, path: str, modified: int) -> list[str]:
        header = f"{number:x}000-{number + 1:x}000 {permissions} 00000000 fe:00 77 {path}\n"
        return [header, "Rss: 4 kB\n", f"Anonymous: {modified} kB\n", "AnonHugePages: 0 kB\n"]

    lines = [
        *mapping(1, "r-xp", "/lib/a b/libtorch_cpu.so", 0),
        *mapping(2, "r--p", "/lib/libc.so.6", 0),
        *mapping(3, "r--p", "/lib/libc.so.6", 4),  # its pointers were adjusted when the library was loaded
        *mapping(4, "rw-p", "/lib/libc.so.6", 0),
        *mapping(5, "r--p", "/data/numbers", 0),
        *mapping(6, "r-xp", "[vdso]", 0),
        *mapping(7, "r--p", "", 0),
    ]
    assert _unmodified(lines) == [(0x1000, 0x2000), (0x2000, 0x3000)]
