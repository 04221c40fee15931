"""A failure of the run is added to a JUnit file, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnaudit.errors import ReportError
from attnaudit.plugin.junit_file import add_failure, remove_earlier


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "junit.xml"


@pytest.mark.parametrize(
    ("content", "counts"),
    [
        ('<testsuite tests="2" failures="0"/>', [("3", "1")]),
        ('<testsuites><testsuite tests="2" failures="0"/></testsuites>', [(None, None), ("3", "1")]),
        (
            '<testsuites tests="2" failures="0"><testsuite tests="2" failures="0"/></testsuites>',
            [("3", "1"), ("3", "1")],
        ),
        ('<testsuite tests="n/a" failures="0"/>', [("n/a", "1")]),
        ('<testsuite tests="1.0" failures=""/>', [("1.0", "")]),
        ("<testsuite/>", [("1", "1")]),
    ],
)
def test_a_failure_is_added_and_counted(file: Path, content: str, counts: list[tuple[str | None, str | None]]) -> None:
    file.write_text(content, encoding="utf-8")
    add_failure(file, "ended-early", "the disk\x00 is full")
    root = ElementTree.parse(file).getroot()
    suites = [root, *root.findall("testsuite")]
    assert [(suite.get("tests"), suite.get("failures")) for suite in suites] == counts
    (case,) = root.iter("testcase")
    (failure,) = case
    assert (case.get("classname"), case.get("name")) == ("attnaudit", "ended-early")
    assert "is full" in str(failure.get("message"))
    before = file.read_bytes()
    add_failure(file, "ended-early", "again")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "<testsuite><testcase><error/></testcase></testsuite>",
        "<testsuites/>",
        "<html/>",
        "<testsuite>",
        "",
    ],
)
def test_another_file_is_left_as_it_is(file: Path, content: str) -> None:
    add_failure(None, "ended-early", "why")
    add_failure(file, "ended-early", "why")
    assert not file.exists()
    file.write_text(content, encoding="utf-8")
    add_failure(file, "ended-early", "why")
    assert file.read_text(encoding="utf-8") == content


@pytest.mark.parametrize("encoding", ["foo", "gb2312"])
def test_a_file_in_an_unknown_encoding_may_say_that_all_tests_passed(file: Path, encoding: str) -> None:
    file.write_text(f"<?xml version='1.0' encoding='{encoding}'?><testsuite tests='1'/>", encoding="utf-8")
    with pytest.raises(ReportError, match=r"junit\.xml: the failure of the run cannot be added .* Delete it\."):
        add_failure(file, "ended-early", "why")


@pytest.mark.parametrize(
    "content", ["", "  \n", "<testsuites/>", "<?xml version='1.0'?>\n<testsuite tests='2'", "<testsuite"]
)
def test_the_junit_file_of_an_earlier_run_is_removed_even_if_it_is_cut_off(file: Path, content: str) -> None:
    file.write_text(content, encoding="utf-8")
    remove_earlier(file)
    assert not file.exists()
    remove_earlier(file)
    remove_earlier(None)


@pytest.mark.parametrize("content", ["[[check]]\n", '{"text": "<testsuite>"}', "<html></html>", "\0", "run-1\n"])
def test_a_file_that_is_no_junit_file_is_never_removed(file: Path, content: str) -> None:
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ReportError, match=r"--junitxml .*junit\.xml: this file exists and is no JUnit file, .* Choose"):
        remove_earlier(file)
    assert file.read_text(encoding="utf-8") == content
