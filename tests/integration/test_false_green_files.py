"""A run whose files cannot be written, and the files of an older run, are not green."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audited_project import LENGTH, PEAK, AuditedProject
from tests.conftest import newest_run

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

#: Writing the file NAME fails at the NUMBER-th time, and from then on.
FULL_DISK = """
import errno
import attnaudit.engine.measurements
import attnaudit.run.run_folder, attnaudit.report.render, attnaudit.run.measurements_file

seen = []

def failing(original, position):
    def write(*arguments):
        path = arguments[position]
        if NAME in path.name:
            seen.append(path)
            if len(seen) >= NUMBER:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return original(*arguments)

    return write

for module in (attnaudit.run.run_folder, attnaudit.report.render):
    module.replace_file = failing(module.replace_file, 0)
files = attnaudit.run.measurements_file
files.write_measurements = failing(files.write_measurements, 1)
files.merge_measurements = failing(files.merge_measurements, 1)
"""


def fill_disk(audited: AuditedProject, name: str, number: int) -> None:
    audited.extend(f"NAME, NUMBER = {name!r}, {number}\n{FULL_DISK}")


@pytest.mark.parametrize(("name", "number"), [("audit.json", 1), ("latest.txt", 1)])
def test_a_disk_that_is_full_at_the_start_is_a_usage_error(audited: AuditedProject, name: str, number: int) -> None:
    fill_disk(audited, name, number)
    run = audited.pytest()
    assert run.status == 4
    assert f"{name}: cannot be written (No space left on device)" in run.text
    assert audited.verify().status == 1


@pytest.mark.parametrize(
    ("name", "number", "status"),
    [
        ("main.plan.json", 1, 3),
        ("audit.json", 2, 3),
        (".part.json", 1, 1),
        (".parquet", 1, 1),
        ("audit.json", 3, 1),
        ("measurements.parquet", 1, 1),
        ("report.html", 1, 1),
        ("summary.md", 1, 1),
        ("audit.json", 4, 1),
    ],
)
def test_a_disk_that_becomes_full_is_red(audited: AuditedProject, name: str, number: int, status: int) -> None:
    fill_disk(audited, name, number)
    run = audited.pytest()
    assert run.status == status, run.text
    assert "No space left on device" in run.text
    assert any("No space left on device" in failure for failure in run.junit_failures())
    assert run.audit["status"] in ("running", "failed")
    if run.audit["status"] == "running":  # Neither page is left from before the disk was full.
        assert not {"report.html", "summary.md"} & {file.name for file in newest_run(audited.root).iterdir()}
    audited.assert_not_verified()


@pytest.fixture
def tiny_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 64 KiB, which is smaller than the report of a run."""
    folder = tmp_path_factory.mktemp("tiny-disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = os.name == "posix" and subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this user cannot mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_becomes_full_is_red(audited: AuditedProject, tiny_disk: Path) -> None:
    run = audited.pytest(f"--audit-reports={tiny_disk}")
    assert run.status == 1, run.text
    assert "cannot be written (No space left on device)" in run.text
    assert any("cannot be written" in failure for failure in run.junit_failures())
    assert audited.verify(str(tiny_disk)).status == 1


def test_a_folder_that_cannot_be_created_is_a_usage_error(audited: AuditedProject) -> None:
    audited.write("reports", "a file")
    run = audited.pytest()
    assert run.status == 4
    assert "reports" in run.text
    assert audited.verify().status == 1


def test_the_newest_run_is_named_from_the_start(audited: AuditedProject) -> None:
    assert audited.pytest().status == 0
    older = audited.verify().out
    audited.extend("import os\n\ndef pytest_collection(session):\n    os._exit(0)\n")
    assert audited.pytest().status == 0
    assert "verified" in older
    assert "status is 'running'" in audited.assert_not_verified().out


def test_a_run_that_is_removed_leaves_no_older_one(audited: AuditedProject) -> None:
    assert audited.pytest().status == 0
    audited.extend(
        """
import shutil

def pytest_unconfigure(config):
    shutil.rmtree("reports/" + open("reports/latest.txt").read().strip())
"""
    )
    audited.pytest()
    audited.assert_not_verified()


def test_a_run_without_its_own_latest_txt_is_found(audited: AuditedProject) -> None:
    assert audited.pytest().status == 0
    older = (audited.root / "reports" / "latest.txt").read_text(encoding="utf-8")
    audited.write("test_audit.py", (audited.root / "test_audit.py").read_text().replace("at_least=1)", "at_least=50)"))
    run = audited.pytest()
    audited.assert_red(run, {LENGTH: "failed: fail"})
    (audited.root / "reports" / "latest.txt").write_text(older, encoding="utf-8")
    assert "newer" in audited.assert_not_verified().out
    assert run.gates()[PEAK][0] == "passed"
