"""Refuse mistyped options of the audit, on the command line and in the configuration file, and suggest the right name.

pytest's own message about an unknown option suggests no alternative, and pytest only warns of an unknown key in the
configuration file. If `audit_policy` were mistyped, the audit would then use the default policy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from attnaudit.errors import did_you_mean
from attnaudit.formatting import one_line

#: How similar an unknown option must be to an option of the audit to count as mistyped: 1 for equal names. Options of
#: plugins that are not installed are less similar.
SIMILAR = 0.7
UNKNOWN_KEY = re.compile(r"Unknown config option: (\S+)")


def refuse_mistyped_options(parser: pytest.Parser, arguments: Sequence[str], options: Sequence[str]) -> None:
    """Refuse an unknown option that resembles an option of the audit. pytest itself refuses all other unknown options.

    Args:
        parser: pytest's parser, after every plugin has added its options.
        arguments: The command line.
        options: The options of the audit, such as "--model".

    Raises:
        pytest.UsageError: An unknown option resembles an option of the audit.
    """
    _, unknown = parser.parse_known_and_unknown_args(list(arguments))
    for word in unknown:
        name = word.partition("=")[0]
        question = did_you_mean(name, options, cutoff=SIMILAR) if name.startswith("--") else ""
        if question:
            raise pytest.UsageError(one_line(f"unknown option {name}. {question} `pytest --help` lists all options."))


def mistyped_key(warning: Warning | str, keys: Sequence[str]) -> str:
    """Return a message about an unknown key of the configuration file that resembles a key of the audit.

    Args:
        warning: A warning that pytest issued. It warns of every unknown key after the collection.
        keys: The keys of the audit, such as "audit_model".

    Returns:
        The message; "" if the warning is about something else, or if the key resembles no key of the audit.
    """
    unknown = UNKNOWN_KEY.fullmatch(str(warning).strip()) if isinstance(warning, pytest.PytestConfigWarning) else None
    question = did_you_mean(unknown[1], keys, cutoff=SIMILAR) if unknown else ""
    return one_line(f"unknown key '{unknown[1]}' in the configuration file. {question}") if unknown and question else ""
