"""Remove the JUnit file of an earlier run, and add a failure to the one that pytest has written.

A file that is no JUnit file is never removed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attnaudit.errors import AuditError, ReportError
from attnaudit.formatting import one_line

if TYPE_CHECKING:
    from attnaudit.run import AuditOptions

#: Endings of policies, tests and configuration files. A log file never replaces such a file.
SOURCES = (".toml", ".py", ".ini", ".cfg")
#: The number of bytes that are read to find out whether a file is a JUnit file.
BEGINNING = 2**12


def junit_path(config: pytest.Config) -> Path | None:
    """Return the absolute path of the JUnit file that pytest will write; None if it writes none.

    pytest resolves the path before the first test, and forgets it at the end. A test may change the working folder
    meanwhile.
    """
    from _pytest.junitxml import xml_key

    written = config.stash.get(xml_key, None)
    return None if written is None else Path(written.logfile)


def refuse_inputs_as_outputs(config: pytest.Config, options: AuditOptions) -> None:
    """Refuse --junitxml and --log-file if they name a file that the audit reads, or the file that names the newest run.

    pytest empties the log file when it is configured, so this function must be called before.

    Args:
        config: pytest's configuration.
        options: The options of the audit.

    Raises:
        AuditError: An output file is also an input file, or both outputs are the same file.
    """
    from attnaudit.output_files import require_separate
    from attnaudit.run.run_choice import LATEST

    read = [("also given with --data", options.data_base / one) for one in options.data]
    read += [("also given with --model", options.models_base / one) for one in options.models]
    read += [("the policy", options.policy)] if options.policy is not None else []
    read += [("the configuration file of pytest", config.inipath)] if config.inipath is not None else []
    read.append(("the one that names the newest run", options.reports / LATEST))
    log_file = config.getoption("log_file", None)
    if not log_file and config.pluginmanager.hasplugin("logging"):
        log_file = config.getini("log_file")
    given = (("--junitxml", config.getoption("xmlpath", None)), ("--log-file", log_file))
    folder = config.invocation_params.dir
    outputs = [(name, (folder / os.path.expandvars(one)).expanduser()) for name, one in given if one]
    require_separate(outputs, read)
    for name, path in outputs:
        # No option names such a file. `remove_earlier` refuses --junitxml.
        if name == "--log-file" and path.suffix in SOURCES and path.is_file():
            raise AuditError(
                f"{name} {path}: this file exists and may be a policy or a test file. Choose another file."
            )


def remove_earlier(path: Path | None) -> None:
    """Remove the JUnit file of an earlier run.

    pytest replaces it only at its end. If the process is killed before, the file would still show the earlier results.

    Raises:
        ReportError: The file cannot be removed, or it is no JUnit file.
    """
    try:
        if path is not None and path.is_file():
            if not _is_junit(path):
                raise ReportError(
                    f"--junitxml {path}: this file exists and is no JUnit file, so it is not replaced. Choose another "
                    "path, or remove the file."
                )
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


def _is_junit(path: Path) -> bool:
    """Return whether a file is empty, or begins as a JUnit file does. It may be cut off."""
    with path.open("rb") as file:
        beginning = file.read(BEGINNING).lstrip()
    return not beginning or (beginning.startswith(b"<") and b"<testsuite" in beginning)


def _one_more(count: str) -> str:
    """Return a count plus one. A count that is no whole number, as another plugin may write, is returned as it is."""
    return str(int(count) + 1) if count.isdecimal() else count
