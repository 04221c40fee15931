"""The checks that an effective policy declares, built from their tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnaudit.checks.paired_gate import BASELINE_NAME
from attnaudit.errors import AuditError, CheckError
from attnaudit.model_families import informational_gates
from attnaudit.readings import named
from attnaudit.records import BASELINE_NAMES, CheckRecord, EffectivePolicy, RunRecord
from attnaudit.statistics.threshold import parse

if TYPE_CHECKING:
    from attnaudit.checks.base import Check

Argument = str | float | int | bool | None
Table = Mapping[str, Argument]
#: The keys of a table that state facts about its check. All other keys are arguments of the check.
FACTS = ("id", "name", "code", "needs", "statistic", "low", "high")
LIMITS = ("at_least", "at_most")
NAME = re.compile(r"[A-Za-z_]\w*")
#: The modules of the checks that attnaudit provides begin with this.
BUILT_IN = "attnaudit.checks."


def built_in_check(table: Table) -> Check | None:
    """Return the check that a table declares; None if attnaudit does not provide it, or if an argument is invalid."""
    from attnaudit.registry import checks

    name = table.get("name")
    if not isinstance(name, str) or name not in checks:
        return None
    try:
        factory = checks.get(name)
    except AuditError:  # an installed package provides a check that cannot be used
        return None
    if not getattr(factory, "__module__", "").startswith(BUILT_IN):
        return None
    given = arguments(table)
    baseline_name = given.pop(BASELINE_NAME, None)
    try:
        if baseline_name is None:
            check: Check = factory(**given)
            return check
        return _paired_gate(factory, given, baseline_name)
    except (AuditError, TypeError):  # a TypeError for an unknown argument
        return None


def _paired_gate(factory: Callable[..., Check], given: Mapping[str, Argument], baseline_name: Argument) -> Check | None:
    """Return the paired gate that a table with the name of a baseline declares; None if there is no such name."""
    from attnaudit.checks.check_arguments import CheckArguments
    from attnaudit.checks.paired_gate import PairedGate

    known = next((one for one in BASELINE_NAMES if one == baseline_name), None)
    shared = set(CheckArguments.argument_names())
    base = factory(**{key: value for key, value in given.items() if key not in shared}, severity="report")
    own: dict[str, Any] = {key: value for key, value in given.items() if key in shared}
    return None if known is None else PairedGate(base=base, baseline_name=known, **own)


def arguments(table: Table) -> dict[str, Argument]:
    """Return the arguments in a table, without those that are None."""
    return {key: value for key, value in table.items() if key not in FACTS and value is not None}


def same_arguments(first: Table, second: Table) -> bool:
    """Return whether two tables have the same arguments. Relative thresholds may be written differently."""
    one, other = arguments(first), arguments(second)
    return one.keys() == other.keys() and all(
        value == other[key] or (key in LIMITS and same_limit(value, other[key])) for key, value in one.items()
    )


def same_limit(first: Argument, second: Argument) -> bool:
    """Return whether two thresholds mean the same, such as "floor + 0.2" and "0.2+floor"."""
    if not isinstance(first, str) or not isinstance(second, str):
        return first == second
    try:
        one, other = (parse(text, sorted(set(NAME.findall(text)))) for text in (first, second))
    except CheckError:
        return False
    terms = [{"": expression.constant, **expression.weights} for expression in (one, other)]
    return terms[0].keys() == terms[1].keys() and all(
        math.isclose(weight, terms[1][name], rel_tol=1e-12, abs_tol=1e-12) for name, weight in terms[0].items()
    )


def tables_by_id(policy: EffectivePolicy | None, records: Sequence[CheckRecord]) -> dict[str, list[Table]]:
    """Return the tables of a policy by check: id of the check -> tables.

    If different checks have the same id, the id has several tables.

    A table without an id belongs to the record with the same arguments, and gets its id. If there is no such record,
    the id is the name of the check, with its reading.

    Args:
        policy: The effective policy of a run.
        records: The checks of the run.
    """
    ids: dict[str, list[Table]] = {}
    for table in policy.checks if policy else ():
        ids.setdefault(_id_of(table, records), []).append(table)
    return ids


def tables_of(record: CheckRecord, tables: Mapping[str, list[Table]], run: RunRecord) -> list[Table]:
    """Return the policy tables that have the same id as a record.

    The severity in these tables is the one that applies to the family of the record's model.

    Args:
        record: A check of the run.
        tables: The tables of the effective policy, as `tables_by_id` returns them.
        run: The record of the run.
    """
    declared = tables.get(record.check, [])
    if (record.model, record.check) not in informational_gates(run.effective_policy, run.models):
        return declared
    return [{**table, "severity": "report"} for table in declared]


def _id_of(table: Table, records: Sequence[CheckRecord]) -> str:
    if isinstance(table.get("id"), str):
        return str(table["id"])
    check = built_in_check(table)
    if check is not None:
        return check.id
    by_name = named(str(table.get("name", "")), str(table.get("reading") or ""))
    if any(record.check == by_name for record in records):
        return by_name
    same = {r.check for r in records if r.family != "custom" and same_arguments(table, r.parameters)}
    return same.pop() if len(same) == 1 else by_name


def is_gate(table: Table) -> bool:
    """Return whether a table declares a gate. A table without a severity declares one."""
    return table.get("severity", "gate") == "gate"
