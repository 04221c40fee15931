"""A run that another plugin makes fail after it was written is red everywhere, even if its files cannot be changed."""

from __future__ import annotations

import pytest

from tests.audited_project import GREEN, AuditedProject, Run
from tests.conftest import newest_run

#: A plugin that changes the exit status after the report was written: in the last hook of the session, or after it.
AT_THE_END = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    {first}
    session.exitstatus = {status}
"""
AFTER_THE_END = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config):
    yield
    {first}
    return {status}
"""
SPOILERS = """
import errno
from pathlib import Path

write = Path.write_bytes

def fill_the_disk():
    def full(path, content):
        if "reports" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, content)

    Path.write_bytes = full

def block_the_report():
    (report,) = Path("reports").glob("*/report.html")
    report.unlink()
    report.mkdir()

def replace_junit_file():
    Path("junit.xml").write_text("<?xml version='1.0' encoding='foo'?><testsuite tests='2' failures='0'/>")
"""
CHANGED = "another plugin made the run fail after the last test"
hooks = pytest.mark.parametrize("hook", [AT_THE_END, AFTER_THE_END], ids=["at the end", "after the end"])


def spoiled(audited: AuditedProject, hook: str, first: str, *, status: int = 1) -> Run:
    """Run the audit with a plugin that does something and then changes the exit status."""
    audited.extend(SPOILERS + hook.format(first=first, status=status))
    run = audited.pytest()
    assert run.status == status, run.text
    assert "Traceback" not in run.text
    assert audited.verify().status == 1
    return run


@hooks
def test_the_reason_is_shown_after_the_counts_of_gates(audited: AuditedProject, hook: str) -> None:
    run = spoiled(audited, hook, "pass", status=3)
    assert run.process.out.count("gates: 2 passed") == 1
    assert run.process.err.count(CHANGED) == 1
    assert (run.audit["status"], run.audit["exit_status"], run.audit["problem"]) == ("failed", 3, CHANGED)
    (failure,) = run.junit_failures()
    assert CHANGED in failure


@hooks
def test_a_full_disk_is_the_reason_once_in_every_output(audited: AuditedProject, hook: str) -> None:
    run = spoiled(audited, hook, "fill_the_disk()")
    (failure,) = run.junit_failures()
    for text in (failure.partition(" None")[0], run.process.err):
        assert "No space left on device" in text
        assert CHANGED in text
    assert run.process.err.count("No space left on device") == 1
    assert {file.name for file in newest_run(audited.root).iterdir()} == {"measurements.parquet"}


def test_the_summary_is_removed_even_if_the_report_cannot_be(audited: AuditedProject) -> None:
    run = spoiled(audited, AT_THE_END, "block_the_report()")
    (failure,) = run.junit_failures()
    for text in (failure, run.process.err):
        assert "report.html: cannot be written" in text
        assert "report.html: cannot be removed" in text
    assert {file.name for file in newest_run(audited.root).iterdir()} == {"measurements.parquet", "report.html"}


@pytest.mark.slow
def test_a_junit_file_that_cannot_be_changed_is_named(audited: AuditedProject) -> None:
    run = spoiled(audited, AFTER_THE_END, "replace_junit_file()")
    assert f"{CHANGED}. {audited.root.resolve()}/junit.xml: the failure of the run cannot be added" in run.process.err
    assert (run.audit["status"], run.audit["exit_status"]) == ("failed", 1)


def test_a_failure_is_added_to_the_file_that_pytest_writes_if_a_conftest_changes_the_working_folder(
    audited: AuditedProject,
) -> None:
    (audited.root / "other").mkdir()
    audited.extend("import os, sys\n\nif 'pytest' in sys.modules:\n    os.chdir('other')\n")
    run = spoiled(audited, AT_THE_END, "pass")
    assert not (audited.root / "junit.xml").exists()
    (audited.root / "other" / "junit.xml").rename(audited.root / "junit.xml")
    (failure,) = run.junit_failures()
    assert CHANGED in failure


def test_an_open_gate_is_red_in_junit_even_if_a_plugin_fails_when_it_is_reported(audited: AuditedProject) -> None:
    audited.write("test_audit.py", GREEN.replace("check.enforce()", "pass"))
    audited.extend(
        "class Late:\n"
        "    def pytest_runtest_logreport(self, report):\n"
        "        if report.nodeid.startswith('attnaudit::'):\n"
        "            raise LookupError('unknown test')\n\n"
        "def pytest_sessionstart(session):\n"
        "    session.config.pluginmanager.register(Late())\n"
    )
    run = audited.pytest()
    assert run.status == 1, run.text
    assert run.process.err.count("LookupError: unknown test") == 1
    (failure,) = run.junit_failures()
    assert "Another plugin raised LookupError: unknown test" in failure
    assert (run.audit["status"], run.audit["exit_status"]) == ("failed", 1)


def test_no_failure_is_added_to_a_junit_file_that_has_one(audited: AuditedProject) -> None:
    audited.write("test_audit.py", GREEN.replace("at_least=1)", "at_least=50)"))
    run = spoiled(audited, AT_THE_END, "pass", status=3)
    (failure,) = run.junit_failures()
    assert "token_count" in failure
    assert run.audit["exit_status"] == 3
