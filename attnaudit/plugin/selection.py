"""Find out which tests the user selected on purpose, and whether this pytest command runs tests at all."""

from __future__ import annotations

import os
import shlex
import sys
from types import FrameType

import pytest

from attnaudit.plugin.command_line import names_a_model
from attnaudit.plugin.workers import is_worker

#: Destinations of options with which pytest reads no other options.
ALONE = ("help", "version")
#: Destination of any other option that makes pytest show something and run no test -> how it is written.
SHOWING = {
    "showfixtures": "--fixtures",
    "show_fixtures_per_test": "--fixtures-per-test",
    "markers": "--markers",
    "cacheshow": "--cache-show",
}
#: The environment variables by which CI is recognised: that of most services, that of Jenkins and TeamCity (as pytest
#: recognises them), that of Azure Pipelines, and the one in which tox keeps CI, which it does not pass on.
CI_VARIABLES = ("CI", "BUILD_NUMBER", "TF_BUILD", "__TOX_ENVIRONMENT_VARIABLE_ORIGINAL_CI")
#: Destination of an option that selects tests -> how it is written.
SELECTING = {
    "keyword": "-k",
    "markexpr": "-m",
    "deselect": "--deselect",
    "lf": "--last-failed",
    "stepwise": "--stepwise",
    "splits": "--splits",
}


def is_audit_run(config: pytest.Config) -> bool:
    """Return whether this process runs an audit: a model is named, and pytest has no option such as --help."""
    shows = any(getattr(config.option, name, None) for name in (*ALONE, *SHOWING))
    return names_a_model(config) and not shows and not is_worker(config)


def showing_option(config: pytest.Config) -> str:
    """Return the option of SHOWING that makes pytest show something although a model is named; "" for none."""
    shown = [written for name, written in SHOWING.items() if getattr(config.option, name, None)]
    return shown[0] if shown and names_a_model(config) else ""


def selecting_options(config: pytest.Config) -> list[str]:
    """Return the options with which the user selects tests, such as "-k 'agreement'"."""
    chosen = []
    for name, written in SELECTING.items():
        value = getattr(config.option, name, None)
        if value:
            chosen.append(f"{written} {shlex.quote(value)}" if isinstance(value, str) else written)
    if any("::" in argument for argument in config.args):
        chosen.append("the test ids on the command line")
    return chosen


def is_called_by_user() -> bool:
    """Return whether code of the user, such as a conftest.py, has called the present hook of the plugin.

    pytest and installed plugins call `pytest_deselected` for an option. A conftest.py can call it for any reason.
    """
    from attnaudit.code_identity.code_hash import is_of_the_user

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("attnaudit", "pluggy"):
            return is_of_the_user(module)
        frame = frame.f_back
    return False


def collects_only_some(config: pytest.Config) -> bool:
    """Return whether pytest may not even collect what an option leaves out. Only some selecting options do this."""
    return bool(config.getoption("lf", False)) or any("::" in argument for argument in config.args)


def stopping_option(session: pytest.Session) -> str:
    """Return the option that ended the session after a failure, such as "-x"; "" if it ran to its end."""
    most = session.config.getoption("maxfail", 0) or 0
    if most and session.testsfailed >= most:
        return "-x" if most == 1 else f"--maxfail={most}"
    return ""


def added_options(config: pytest.Config) -> dict[str, list[str]]:
    """Return the options that pytest did not read from the command line. Keys are the sources, such as "addopts"."""
    sources = {
        "addopts": [str(word) for word in config.getini("addopts")],
        "PYTEST_ADDOPTS": shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
    }
    return {source: words for source, words in sources.items() if words}


def ci_variable() -> str:
    """Return the name of an environment variable that shows that pytest runs in CI; "" if none is set."""
    return next((name for name in CI_VARIABLES if os.environ.get(name)), "")
