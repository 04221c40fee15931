"""Remove the JUnit file of an earlier run, and add a failure to the one that pytest has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.errors import ReportError
from attnaudit.formatting import one_line


def junit_path(config: pytest.Config) -> Path | None:
    """Return the absolute path of the JUnit file that pytest will write; None if it writes none.

    pytest resolves the path before the first test, and forgets it at the end. A test may change the working folder
    meanwhile.
    """
    from _pytest.junitxml import xml_key

    written = config.stash.get(xml_key, None)
    return None if written is None else Path(written.logfile)


def remove_earlier(path: Path | None) -> None:
    """Remove the JUnit file of an earlier run.

    pytest replaces it only at its end. If the process is killed before, the file would still show the earlier results.

    Raises:
        ReportError: The file cannot be removed.
    """
    try:
        if path is not None and path.is_file():
            path.unlink()
    except OSError as error:
        raise ReportError(
            f"--junitxml {path}: the file of an earlier run cannot be removed ({error.strerror or error}). Remove it, "
            "or choose another path."
        ) from error


def add_failure(path: Path | None, name: str, message: str) -> None:
    """Add a failed test to a JUnit file.

    A file that does not exist, that is not JUnit or that contains a failure already is left as it is.

    Args:
        path: The file; None to do nothing.
        name: The name of the test.
        message: Why it failed.

    Raises:
        ReportError: The file cannot be read or written.
    """
    from xml.etree import ElementTree

    from attnaudit.processes import replace_file

    try:
        if path is None or not path.is_file():
            return
        root = ElementTree.fromstring(path.read_bytes())
        suite = root if root.tag == "testsuite" else root.find("testsuite")
        if suite is None or any(True for kind in ("failure", "error") for _ in root.iter(kind)):
            return
        case = ElementTree.SubElement(suite, "testcase", classname="attnaudit", name=name, time="0.000")
        failure = ElementTree.SubElement(case, "failure", message=one_line(message))
        failure.text = one_line(message)
        for count in ("tests", "failures"):
            suite.set(count, _one_more(suite.get(count, "0")))
            if root is not suite and count in root.attrib:
                root.set(count, _one_more(root.attrib[count]))
        replace_file(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))
    except ElementTree.ParseError:
        return  # Such a file does not say that any test passed.
    except (OSError, LookupError, ValueError) as error:  # LookupError and ValueError: an unknown encoding
        reason = getattr(error, "strerror", None) or error
        raise ReportError(
            f"{path}: the failure of the run cannot be added to this file ({reason}), which may say that all tests "
            "passed. Delete it."
        ) from error


def _one_more(count: str) -> str:
    """Return a count plus one. A count that is no whole number, as another plugin may write, is returned as it is."""
    return str(int(count) + 1) if count.isdecimal() else count
