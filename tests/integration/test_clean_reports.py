"""What pytest shows of a case is harmless: tracebacks, skip reasons, captured output, warnings and ids."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnaudit.errors import AuditError
from attnaudit.plugin.clean_reports import clean_output, failure_without_traceback
from tests.forking_interpreter import run_pytest

#: A conftest that calls the functions for every test, as the plugin does for the cases of an audit.
CONFTEST = """
import pytest
from attnaudit.errors import AuditError
from attnaudit.plugin import clean_reports

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, AuditError):
        report.longrepr = clean_reports.failure_without_traceback(call.excinfo)
    clean_reports.clean_report(report)
    return report

@pytest.hookimpl(tryfirst=True)
def pytest_warning_recorded(warning_message):
    clean_reports.clean_warning(warning_message)

def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        names = ("a\\n::error::id\\x1b[2J", "b]::c", "##vso[x]")
        ids = [clean_reports.clean_case_id(name, metafunc.config) for name in names]
        metafunc.parametrize("case", [pytest.param(one, id=one) for one in ids])
"""
TESTS = r"""
import pytest, sys, warnings
from attnaudit.errors import AuditError

BAD = "bad\x1b[31m\n::error::forged\n  ##[group]x ##vso[task.complete]\r::notice::cr\u202e\u2028::warning::ls"

class Custom(Exception):
    def __repr__(self):
        return BAD

def fail(value):
    local = value
    raise ValueError(BAD)

def test_foreign(case):
    fail(Custom())

def test_chained():
    try:
        fail(1)
    except ValueError as error:
        raise RuntimeError(BAD) from error

def test_audit_error():
    raise AuditError(f"model: {BAD}", lines=[f"  one: {BAD}", "two"])

def test_assertion():
    assert [BAD] == [1]

def test_output():
    print(BAD)
    print("\x1b[31m::error::colour\x1b[0m", file=sys.stderr)
    assert False

def test_skip():
    pytest.skip(BAD)

def test_xfail():
    pytest.xfail(BAD)

def test_warning(record_property):
    record_property("text", BAD)
    warnings.warn(BAD)

@pytest.fixture
def broken():
    raise OSError(BAD)

def test_setup(broken):
    pass
"""
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


def assert_clean(output: str) -> None:
    for line in output.split("\n"):
        assert not CONTROL.search(line), repr(line)
        assert not line.strip().startswith("::"), repr(line)
        assert not re.search(r"##[a-z]*\[", line), repr(line)


@pytest.fixture
def nasty(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("CI", "1")  # pytest then shows whole messages in the short summary
    pytester.makeconftest(CONFTEST)
    pytester.path.joinpath("test_nasty.py").write_text(TESTS, encoding="utf-8")
    return pytester


def test_the_tests_would_print_commands_without_cleaning(nasty: pytest.Pytester) -> None:
    nasty.makeconftest("")
    result = nasty.runpytest("-rA", "-k", "not case", "-p", "no:cacheprovider")
    with pytest.raises(AssertionError):
        assert_clean(result.stdout.str())


@pytest.mark.parametrize("style", ["auto", "long", "short", "line", "native", "no"])
def test_the_terminal_is_clean(nasty: pytest.Pytester, style: str) -> None:
    result = nasty.runpytest("-rA", "-v", "--showlocals", f"--tb={style}")
    result.assert_outcomes(failed=7, passed=1, skipped=1, xfailed=1, errors=1, warnings=1)
    assert_clean(result.stdout.str())
    assert_clean(result.stderr.str())
    if style in ("auto", "long", "short"):
        result.stdout.fnmatch_lines(
            ["E*ValueError: bad␛[[]31m", "*\\::error::forged", "*##\\[[]group[]]x ##vso\\[[]task*"]
        )


def test_the_terminal_is_clean_with_workers_and_with_groups(nasty: pytest.Pytester) -> None:
    result = run_pytest(nasty, "-rA", "-n2", "--dist=loadgroup")
    result.assert_outcomes(failed=7, passed=1, skipped=1, xfailed=1, errors=1, warnings=1)
    assert_clean(result.stdout.str())


def test_ids_are_clean_where_pytest_does_not_escape_them(nasty: pytest.Pytester) -> None:
    option = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support"
    nasty.makeini(f"[pytest]\n{option} = true\n")
    result = nasty.runpytest("--collect-only", "-q")
    ids = ["[a␊::error::id␛[2J]", "[b]::c]", "[##vso\\[x]]"]
    assert result.outlines[:3] == [f"test_nasty.py::test_foreign{one}" for one in ids]


def test_ids_are_clean_where_pytest_escapes_them(nasty: pytest.Pytester) -> None:
    result = nasty.runpytest("--collect-only", "-q")
    ids = [r"[a\n\\::error::id\x1b[2J]", "[b]::c]", r"[##vso\\[x]]"]
    assert result.outlines[:3] == [f"test_nasty.py::test_foreign{one}" for one in ids]


def test_a_case_with_brackets_and_colons_in_its_id_can_be_selected(nasty: pytest.Pytester) -> None:
    result = nasty.runpytest("test_nasty.py::test_foreign[b]::c]")
    result.assert_outcomes(failed=1)


def test_junit_is_clean_and_valid(nasty: pytest.Pytester) -> None:
    nasty.runpytest("--junitxml=junit.xml", "-o", "junit_logging=all", "-o", "junit_log_passing_tests=true")
    text = Path("junit.xml").read_text(encoding="utf-8")
    assert len(ElementTree.fromstring(text).findall(".//testcase")) == 11
    for element in ElementTree.fromstring(text).iter():
        if element.tag != "property":  # properties are values, not log: pytest escapes only what XML forbids
            assert_clean(element.text or "")
            assert_clean("\n".join(element.attrib.values()))
    assert "\x1b" not in text


def test_a_failure_without_traceback_is_the_message() -> None:
    with pytest.raises(AuditError) as excinfo:
        raise AuditError("a\n::error::b", lines=["::error::c"])
    representation = failure_without_traceback(excinfo)
    assert representation.reprcrash.message == "a ::error::b"
    assert str(representation) == "a ::error::b\n\\::error::c"


def test_captured_output_keeps_its_lines_and_loses_its_colours() -> None:
    assert clean_output(" 10%\r 20%\r\n\x1b[1;31mred\x1b[0m:\x1b[0m:\n:\x1b[0m:x") == " 10%\n 20%\nred::\n\\::x"
