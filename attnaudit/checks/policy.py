"""Checks written as tables: a policy is a file that can be reviewed, with the same names and arguments as in Python.

[policy]                  # for every check that does not say otherwise
confidence = 0.95
inconclusive = "fail"

[[check]]
name = "Agreement"
at_least = "floor + 0.5 * (ceiling - floor)"
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attnaudit.checks.base import Check, Parameter
from attnaudit.checks.decorator import same_ids
from attnaudit.errors import AuditError, CheckError, nearest
from attnaudit.records import PolicyQuestion, PolicyRecord
from attnaudit.registry import checks

TABLES = ("check", "policy")
#: What [policy] may say for all checks.
FOR_ALL = ("confidence", "inconclusive", "reading")
#: What else it may say, about itself.
ABOUT = ("name", "validated_on", "questions")
ABOUT_A_QUESTION = ("asks", "checks", "remedies")


class Policy(list[Check]):
    """The checks of a policy file, and what the file says of itself."""

    def __init__(self, checks: Sequence[Check], record: PolicyRecord) -> None:
        super().__init__(checks)
        self.record = record


def from_tables(
    tables: Sequence[Mapping[str, Any]], *, where: str, defaults: Mapping[str, Any] | None = None
) -> list[Check]:
    """Checks from tables such as {"name": "Agreement", "importance": "gradient", "at_least": 0.3}.

    Strict: an unknown name or key raises CheckError with the nearest known one. where: begins every message, such as
    the path of the file. defaults: arguments of every table that does not give them.
    """
    if isinstance(tables, (str, Mapping)) or not isinstance(tables, Sequence):
        raise CheckError(f"{where}: expected a list of [[check]] tables, but got {type(tables).__name__}.")
    found: list[Check] = []
    for number, table in enumerate(tables, 1):
        place = f"{where}: [[check]] number {number}"
        if not isinstance(table, Mapping):
            raise CheckError(f"{place}: expected a table, but got {type(table).__name__}.")
        if "name" not in table:
            raise CheckError(f"{place}: no key 'name'. It names the check, one of: {', '.join(_known())}.")
        name = table["name"]
        if not isinstance(name, str) or name not in checks:
            raise CheckError(f"{place}: unknown check name {name!r}. {nearest(str(name), _known())}")
        arguments = {**(defaults or {}), **{key: value for key, value in table.items() if key != "name"}}
        found.append(_one(name, arguments, f"{place} ({name})"))
    twice = same_ids(found)
    if twice:
        first, second = twice
        raise CheckError(
            f"{where}: [[check]] number {first + 1} and number {second + 1} are the same check "
            f"'{found[first].id}': keep one."
        )
    return found


def to_table(check: Check) -> dict[str, Parameter]:
    """The table that `from_tables` reads back as the same check; arguments that are not set are left out."""
    name = check.subject if check.family == "custom" else type(check).__name__
    return {"name": name, **{key: value for key, value in check.parameters.items() if value is not None}}


def load_policy(path: Path) -> Policy:
    """The checks of a TOML file: [[check]] tables, and [policy] with what holds for all of them, the families of models
    that it was validated on, and the questions that its checks answer.

    Raises CheckError naming the file, the table and the key, and the nearest key to an unknown one.
    """
    try:
        raw = path.read_bytes()
        content = tomllib.loads(raw.decode("utf-8-sig"))
    except FileNotFoundError:
        raise CheckError(f"{path}: there is no such policy file. Give the path of a TOML file.") from None
    except UnicodeDecodeError as error:
        raise CheckError(f"{path}: not UTF-8 (byte {error.start}). Save the policy as UTF-8.") from error
    except OSError as error:
        raise CheckError(f"{path}: the policy cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise CheckError(f"{path}: not valid TOML: {error}.") from error
    for key in content:
        if key not in TABLES:
            raise CheckError(
                f"{path}: unknown key '{key}'. {nearest(key, TABLES)} A policy holds [[check]] tables and one [policy]."
            )
    if not content.get("check"):
        raise CheckError(f'{path}: no [[check]] table. Write at least one, with name = "Agreement" and a threshold.')
    table = content.get("policy", {})
    found = from_tables(content["check"], where=str(path), defaults=_for_all(table, path))
    sha256 = hashlib.sha256(raw).hexdigest()
    return Policy(found, _about(table, found, path, sha256=sha256))


def _about(table: Mapping[str, Any], found: Sequence[Check], path: Path, *, sha256: str) -> PolicyRecord:
    """What the checked [policy] table says of itself."""
    ids = [one.id for one in found]
    gates = {one.id for one in found if one.severity == "gate"}
    given = table.get("questions", {})
    if not isinstance(given, dict):
        raise CheckError(f"{path}: [policy.questions]: expected tables, but got {type(given).__name__}.")
    questions = []
    for name, one in given.items():
        place = f"{path}: [policy.questions.{name}]"
        if not isinstance(one, dict):
            raise CheckError(f"{place}: expected a table, but got {type(one).__name__}.")
        for key in one:
            if key not in ABOUT_A_QUESTION:
                raise CheckError(f"{place}: unknown key '{key}'. {nearest(key, ABOUT_A_QUESTION)}")
        try:
            question = msgspec.convert({"name": name, **one}, PolicyQuestion)
        except msgspec.ValidationError as error:
            raise CheckError(f"{place}: {error}.") from None
        for check in question.checks:
            if check not in ids:
                raise CheckError(f"{place}: no [[check]] of this policy is '{check}'. {nearest(check, ids)}")
        if not gates & set(question.checks):
            raise CheckError(
                f"{place}: none of its checks is a gate, so that nothing could answer it with no. Name a [[check]] "
                "with a threshold, or leave the question out."
            )
        questions.append(question)
    about = {key: table[key] for key in ("name", "validated_on") if key in table}
    try:
        record = msgspec.convert({"file": path.name, "sha256": sha256, **about}, PolicyRecord)
    except msgspec.ValidationError as error:
        raise CheckError(f"{path}: [policy]: {error}.") from None
    return msgspec.structs.replace(record, questions=questions)


def _for_all(table: Any, path: Path) -> dict[str, Any]:
    """What the checked [policy] table says for all checks."""
    if not isinstance(table, dict):
        raise CheckError(f"{path}: [policy]: expected one table, but got {type(table).__name__}.")
    for key in table:
        if key not in (*FOR_ALL, *ABOUT):
            raise CheckError(f"{path}: [policy]: unknown key '{key}'. {nearest(key, (*FOR_ALL, *ABOUT))}")
    shared = {key: value for key, value in table.items() if key in FOR_ALL}
    try:
        Check(severity="report", **shared)  # what any check refuses
    except CheckError as error:
        raise CheckError(f"{path}: [policy]: {str(error).removeprefix('Check: ')}") from None
    return shared


def _known() -> list[str]:
    return checks.names()


def _one(name: str, arguments: dict[str, Any], place: str) -> Check:
    factory = checks.get(name)
    known = tuple(factory.argument_names())
    for key in arguments:
        if key not in known:
            raise CheckError(f"{place}: unknown key '{key}'. {nearest(key, known)}")
    try:
        made = factory(**arguments)
    except AuditError as error:
        raise CheckError(f"{place}: {error}") from error
    if not isinstance(made, Check):
        raise CheckError(f"{place}: the registered check made a {type(made).__name__}, expected a Check.")
    return made
