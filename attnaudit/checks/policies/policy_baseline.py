"""The [baseline] table of a policy, and the paired gates of its checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import MARGIN
from attnaudit.checks.custom_check import CustomCheck
from attnaudit.checks.paired_gate import PairedGate, paired_gate
from attnaudit.errors import CheckError, nearest, require_reachable
from attnaudit.records import BASELINE_NAMES, BaselineName

KEYS = ("path", "compare_with")
EXAMPLE = '[baseline] with path = "baseline" and compare_with = ["last"]'


@dataclass(frozen=True, slots=True)
class BaselineSettings:
    """The [baseline] table of a policy.

    Attributes:
        folder: The folder of the baseline files.
        compare_with: The names of the baselines that models are compared with.
    """

    folder: Path
    compare_with: tuple[BaselineName, ...]


def baseline_settings(content: Mapping[str, Any], path: Path) -> BaselineSettings | None:
    """Return the [baseline] table of a policy file; None if there is none.

    Args:
        content: The content of the file.
        path: The path of the file. Relative paths in the table start from its folder.

    Raises:
        CheckError: A key or a value of the table is invalid, or no [[check]] uses it.
    """
    table, place = content.get("baseline"), f"{path}: [baseline]"
    if table is None:
        return None
    if not isinstance(table, dict):
        raise CheckError(f"{place}: expected one table, but got {type(table).__name__}.")
    for key in table:
        if key not in KEYS:
            raise CheckError(f"{place}: unknown key '{key}'. {nearest(key, KEYS)}")
    folder, names = table.get("path"), table.get("compare_with", ["last"])
    if not isinstance(folder, str) or not folder:
        raise CheckError(
            f"{place}: path is {folder!r}; expected the folder of the baseline files, relative to this file, such as "
            '"baseline".'
        )
    resolved = path.parent / folder
    require_reachable(f"{place}: path", resolved)
    if resolved.exists() and not resolved.is_dir():
        raise CheckError(f"{place}: path is '{folder}', which is a file. Expected a folder, such as \"baseline\".")
    known = list(BASELINE_NAMES)
    if not isinstance(names, list) or not names or any(one not in known for one in names):
        raise CheckError(f'{place}: compare_with is {names!r}; expected a list of "last" and "pinned".')
    if len(set(names)) < len(names):
        raise CheckError(f"{place}: compare_with names '{names[0]}' twice. Name it once.")
    checks = content.get("check")
    tables = [one for one in checks if isinstance(one, dict)] if isinstance(checks, list) else []
    if not any(MARGIN in one for one in tables):
        raise CheckError(
            f"{place}: no [[check]] is compared with the baseline. Add {MARGIN} = 0.05 to a [[check]], or remove "
            "[baseline]."
        )
    return BaselineSettings(resolved, tuple(names))


def paired_gates(check: Check, margin: Any, settings: BaselineSettings | None) -> list[PairedGate]:
    """Return the paired gates of a check, one for each baseline that it is compared with.

    Args:
        check: The check.
        margin: The value of `not_worse_than_baseline_by`.
        settings: The [baseline] table; None if the policy has none.

    Raises:
        CheckError: There is no [baseline] table, the margin is invalid, or the values of the check cannot be compared.
    """
    if settings is None:
        raise CheckError(f"{MARGIN} needs to know the baseline: add {EXAMPLE} to the policy file, or remove the key.")
    if isinstance(check, CustomCheck) or not type(check).__module__.startswith("attnaudit."):
        raise CheckError(
            f"{MARGIN} is available only for the checks of attnaudit, because the values of other checks cannot be "
            "computed again from a finished run. Remove the key."
        )
    return [
        paired_gate(check, margin=margin, baseline_name=name, folder=str(settings.folder))
        for name in settings.compare_with
    ]
