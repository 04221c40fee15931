"""Build the command that runs one case again."""

from __future__ import annotations

import os
import re
import shlex

import pytest

from attnaudit.plugin.command_line import FLAGS, REPEATED, SINGLE
from attnaudit.plugin.displayed_paths import displayed_path

#: Matches the text that pytest's -k reads as one word.
KEYWORD = re.compile(r"[\w:+.\[\]\\/][\w:+.\[\]\\/-]*")


def rerun_command(config: pytest.Config, nodeid: str, *, several_files: bool) -> str:
    """Return the command that runs one case again from the folder in which this run was started.

    Args:
        config: pytest's configuration.
        nodeid: The node id of the case.
        several_files: Whether the checks of the policy are declared in several files. The command then collects all of
            them and selects the case with -k, because the confidence of a failure depends on the total number of gates.
    """
    path, separator, name = _without_group(nodeid).partition("::")
    words = ["pytest", f"{displayed_path(config.rootpath / path, config)}{separator}{name}"]
    if several_files:
        keywords = [word for word in dict.fromkeys(KEYWORD.findall(name)) if word not in ("and", "or", "not")]
        words = ["pytest", *config.args, "-k", " and ".join(keywords)]
    for option in REPEATED:
        words += [word for value in config.getoption(option) or () for word in (option, value)]
    for option in SINGLE:
        value = config.getoption(option)
        words += [] if value is None else [option, str(value)]
    words += [option for option in FLAGS if config.getoption(option)]
    return " ".join(_quoted(word) for word in words)


def _without_group(nodeid: str) -> str:
    """Remove the "@group" that xdist's `--dist loadgroup` adds."""
    return nodeid.rpartition("@")[0] if "]@" in nodeid else nodeid


def _quoted(word: str) -> str:
    """Quote a word for the shell."""
    if os.name == "nt":
        return f'"{word}"' if " " in word else word
    return shlex.quote(word)
