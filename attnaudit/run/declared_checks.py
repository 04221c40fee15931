"""The checks that an effective policy declares, made again from their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnaudit.errors import AuditError
from attnaudit.readings import named
from attnaudit.records import CheckRecord, EffectivePolicy

if TYPE_CHECKING:
    from attnaudit.checks.base import Check

Table = Mapping[str, str | float | int | bool | None]
#: The keys of a table that are no arguments of its check.
NO_ARGUMENTS = ("name", "id")
#: The modules of the checks that attnaudit provides begin with this.
BUILT_IN = "attnaudit.checks."


def built_in_check(table: Table) -> Check | None:
    """Return the check that a table declares; None if attnaudit does not provide it, or if an argument is invalid."""
    from attnaudit.registry import checks

    name = table.get("name")
    if not isinstance(name, str) or name not in checks:
        return None
    factory = checks.get(name)
    if not getattr(factory, "__module__", "").startswith(BUILT_IN):
        return None
    try:
        check: Check = factory(**arguments(table))
    except (AuditError, TypeError):  # a TypeError for an unknown argument
        return None
    return check


def arguments(table: Table) -> dict[str, str | float | int | bool | None]:
    """Return the arguments in a table, without those that are None."""
    return {key: value for key, value in table.items() if key not in NO_ARGUMENTS and value is not None}


def tables_by_id(policy: EffectivePolicy | None, records: Sequence[CheckRecord]) -> dict[str, Table]:
    """Return the table of each check of a policy, by the id of the check.

    The id of a check that attnaudit does not provide is that of the record with the same arguments. Without such a
    record, it is the name of the check, with its reading.

    Args:
        policy: The effective policy of a run.
        records: The checks of the run.
    """
    ids: dict[str, Table] = {}
    for table in policy.checks if policy else ():
        ids[_id_of(table, records)] = table
    return ids


def _id_of(table: Table, records: Sequence[CheckRecord]) -> str:
    if isinstance(table.get("id"), str):
        return str(table["id"])
    check = built_in_check(table)
    if check is not None:
        return check.id
    by_name = named(str(table.get("name", "")), str(table.get("reading") or ""))
    if any(record.check == by_name for record in records):
        return by_name
    given = arguments(table)
    same = {r.check for r in records if arguments(r.parameters) == given and r.family != "custom"}
    return same.pop() if len(same) == 1 else by_name


def is_gate(table: Table) -> bool:
    """Return whether a table declares a gate, which is the default."""
    return table.get("severity", "gate") == "gate"
