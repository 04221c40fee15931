"""Arrays in temporary files: equal to arrays in memory, and unchanged after their memory was released."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from attnaudit.disk_arrays.filed_arrays import FiledArray, written
from attnaudit.disk_arrays.mapped_arrays import _unmodified, new_in_file, release_libraries, release_mapped
from attnaudit.errors import AuditError
from attnaudit.processes import return_free_memory


@pytest.mark.parametrize("array", [np.arange(10), np.zeros((0, 3)), np.eye(3)[:, ::2], np.array([b"ab"], dtype="V2")])
def test_an_array_in_a_file_equals_the_array(array: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[type-arg]
    monkeypatch.setattr("attnaudit.disk_arrays.filed_blocks.BLOCK", 0)
    mapped = written([array])
    assert isinstance(mapped, FiledArray) or not array.size
    release_mapped()
    assert (mapped.dtype, mapped.shape, mapped.tobytes()) == (array.dtype, array.shape, array.tobytes())


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

    array = written([np.arange(4_000_000)])
    assert not list(tmp_path.iterdir())
    assert int(np.asarray(array).view(np.ndarray).sum()) == 4_000_000 * 3_999_999 // 2
    before = mapped()
    release_mapped()
    assert before - mapped() > 25_000
    assert int(array.sum()) == 4_000_000 * 3_999_999 // 2  # block by block
    assert before - mapped() > 25_000
    assert int(array[-1]) == 3_999_999


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_released_code_of_torch_needs_less_memory_and_still_works() -> None:
    def resident() -> int:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssFile:"))

    array = new_in_file(1000, np.float64)
    array[:] = np.arange(1000.0)
    rows = torch.from_numpy(np.array(array)).reshape(10, 100)
    expected = torch.linalg.svdvals(rows)
    before = resident()
    release_libraries()
    assert resident() < before
    assert torch.equal(torch.linalg.svdvals(rows), expected)


def test_only_unmodified_mappings_of_torch_are_released() -> None:
    def mapping(number: int, permissions: str, path: str, *, modified: int = 0, swapped: int = 0) -> list[str]:
        header = f"{number:x}000-{number + 1:x}000 {permissions} 00000000 fe:00 77 {path}\n"
        counts = [f"Anonymous: {modified} kB\n", "AnonHugePages: 0 kB\n", f"Swap: {swapped} kB\n", "SwapPss: 0 kB\n"]
        return [header, "Rss: 4 kB\n", *counts]

    lines = [
        *mapping(1, "r-xp", "/a b/torch/lib/libtorch_cpu.so"),
        *mapping(2, "r--p", "/env/torch/lib/libtorch_python.so"),
        *mapping(
            3, "r--p", "/env/torch/lib/libtorch_cpu.so", modified=4
        ),  # its pointers were adjusted when it was loaded
        *mapping(4, "r--p", "/env/torch/lib/libtorch_cpu.so", swapped=4),  # the same, and the system needed the memory
        *mapping(5, "rw-p", "/env/torch/lib/libtorch_cpu.so"),
        *mapping(6, "r-xs", "/env/torch/lib/libtorch_cpu.so"),
        *mapping(7, "r-xp", "/lib/libc.so.6"),  # another library can be unloaded at any time
        *mapping(8, "r--p", "/data/numbers"),
        *mapping(9, "r-xp", "[vdso]"),
        *mapping(10, "r--p", ""),
    ]
    assert _unmodified(lines) == [(0x1000, 0x2000), (0x2000, 0x3000)]
    assert _unmodified(lines[:2]) == []  # without the counts, nothing is known


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the space for a file cannot be reserved here")
def test_an_array_that_does_not_fit_on_the_disk_is_an_error_at_once() -> None:
    with pytest.raises(AuditError, match=r"Temporary files cannot be written in /.*: .* set the environment variable"):
        new_in_file(1 << 55, np.float64)


@pytest.mark.parametrize("is_file", [False, True], ids=["missing", "a file"])
def test_a_folder_in_tmpdir_that_cannot_be_used_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_file: bool
) -> None:
    wrong = tmp_path / "nowhere"
    if is_file:
        wrong.write_text("")
    monkeypatch.setenv("TMPDIR", str(wrong))
    for use in (lambda: written([np.arange(3)]), lambda: new_in_file(3, np.float64)):
        with pytest.raises(AuditError, match=f"TMPDIR {wrong}: this is not a folder that can be written to"):
            use()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert written([np.arange(3)]).tolist() == [0, 1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_that_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Path("/dev/full").open("w+b"))  # noqa: SIM115
    with pytest.raises(AuditError, match=f"Temporary files cannot be written in {tmp_path}: No space left on device"):
        written([np.arange(100_000)])
