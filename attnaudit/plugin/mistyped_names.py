"""Refuse mistyped options of the audit, on the command line and in the configuration file, and suggest the right name.

pytest's own message about an unknown option suggests no alternative. About an unknown key in the configuration file,
pytest only warns, and warnings may be ignored. If `audit_policy` were mistyped, the audit would then use the default
policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attnaudit.errors import did_you_mean
from attnaudit.formatting import one_line
from attnaudit.plugin.command_line import place_of_key

#: How similar an unknown option must be to an option of the audit to count as mistyped: 1 for equal names. Options of
#: plugins that are not installed are less similar.
SIMILAR = 0.7


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


def mistyped_keys(config: pytest.Config, keys: Sequence[str]) -> list[str]:
    """Return a message for each unknown key of the configuration that resembles a key of the audit.

    Upper and lower case make no difference. A key that pytest or a plugin has registered is not unknown.

    Args:
        config: pytest's configuration, after the collection: until then, a conftest.py in a subfolder can add keys.
        keys: The keys of the audit, such as "audit_model".
    """
    # This private method is what pytest's warning relies on. There is no public one: pytest 10 removes `inicfg`.
    unknown = sorted(config._get_unknown_ini_keys())
    questions = [(key, did_you_mean(key.lower(), keys, cutoff=SIMILAR)) for key in unknown]
    return [one_line(f"{place_of_key(config, key, key)}: unknown key. {asked}") for key, asked in questions if asked]
