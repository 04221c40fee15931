"""Add a failure to a JUnit file that pytest has already written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnaudit.errors import ReportError
from attnaudit.formatting import one_line


def junit_path(config: pytest.Config) -> Path | None:
    """Return the path of the JUnit file that pytest writes; None if it writes none."""
    given = getattr(config.option, "xmlpath", None)  # missing with -p no:junitxml
    return Path(os.path.expandvars(given)).expanduser() if given else None


def add_failure(path: Path | None, name: str, message: str) -> None:
    """Add a failed test to a JUnit file. A file that does not exist, or that is no JUnit file, is left as it is.

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
        if suite is None:
            return
        case = ElementTree.SubElement(suite, "testcase", classname="attnaudit", name=name, time="0.000")
        failure = ElementTree.SubElement(case, "failure", message=one_line(message))
        failure.text = one_line(message)
        for count in ("tests", "failures"):
            suite.set(count, str(int(suite.get(count, "0")) + 1))
        replace_file(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))
    except ElementTree.ParseError:
        return  # Such a file does not say that any test passed.
    except OSError as error:
        raise ReportError(
            f"{path}: the failure of the run cannot be added to this file ({error.strerror or error}), which may say "
            "that all tests passed. Delete it."
        ) from error
