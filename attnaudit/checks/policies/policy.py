"""Policies: files that declare checks as tables, with the same names and arguments as in Python.

A policy file is a TOML file such as

    [policy]                  # arguments of every check that does not set them itself
    confidence = 0.95
    inconclusive = "fail"

    [[check]]
    name = "Agreement"
    at_least = "floor + 0.5 * (gradient_loo - floor)"
    not_worse_than_baseline_by = 0.05

    [baseline]                # the accepted runs that models are compared with
    path = "baseline"
    compare_with = ["last", "pinned"]

    [[exception]]             # a gate that may be skipped or expected to fail
    check = "agreement.gradient.meister.inputs"
    reason = "The model is retrained in the next release."
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from attnaudit.checks.base import Check
from attnaudit.checks.check_arguments import MARGIN, SAMPLED_UNITS, CheckArguments, Parameter
from attnaudit.checks.paired_gate import PairedGate
from attnaudit.checks.policies.policy_baseline import BaselineSettings, baseline_settings, paired_gates
from attnaudit.checks.policies.policy_exceptions import (
    exceptions_from_tables,
    require_families,
    require_family_names,
    require_gates,
)
from attnaudit.errors import AuditError, CheckError, UnknownCheckError, nearest, require_regular_file
from attnaudit.records import PolicyQuestion, PolicyRecord
from attnaudit.registry import checks

TABLES = ("baseline", "check", "exception", "policy")
#: The keys of [policy] that set an argument of all checks.
SHARED_ARGUMENTS = ("confidence", "inconclusive", "reading", "sampling", "unseen_mixers")
#: The keys of [policy] that describe the policy itself.
DESCRIPTION_KEYS = ("name", "applies_to", "validated_on", "unvalidated", "questions", "informational")
QUESTION_KEYS = ("asks", "checks", "remedies", "remedy")


class Policy(list[Check]):
    """The list of the checks in a policy file.

    Attributes:
        record: Everything else in the file, such as the name of the policy and its exceptions.
    """

    def __init__(self, checks: Sequence[Check], record: PolicyRecord) -> None:
        super().__init__(checks)
        self.record = record


def from_tables(
    tables: Sequence[Mapping[str, Any]],
    *,
    where: str,
    defaults: Mapping[str, Any] | None = None,
    baseline: BaselineSettings | None = None,
) -> list[Check]:
    """Make checks from tables such as {"name": "Agreement", "importance": "gradient", "at_least": 0.3}.

    Args:
        tables: One table per check.
        where: The beginning of every error message, such as the path of the file.
        defaults: Arguments that apply to every table that does not set them; None for no such arguments.
        baseline: The baselines that checks with the key `not_worse_than_baseline_by` are compared with; None for no
            baselines.

    Returns:
        The checks. Each check that is compared with baselines is followed by its paired gates.

    Raises:
        CheckError: A name, a key or a value is invalid, or two tables have the same id. The message names the table.
            For an unknown name, it suggests similar names.
    """
    if isinstance(tables, (str, Mapping)) or not isinstance(tables, Sequence):
        raise CheckError(f"{where}: expected a list of [[check]] tables, but got {type(tables).__name__}.")
    declared: list[Check] = []
    paired: list[list[Check]] = []
    for number, table in enumerate(tables, 1):
        place = f"{where}: [[check]] number {number}"
        if not isinstance(table, Mapping):
            raise CheckError(f"{place}: expected a table, but got {type(table).__name__}.")
        if "name" not in table:
            raise CheckError(
                f"{place}: the key 'name' is missing. Set it to the name of a check: {', '.join(checks.names())}."
            )
        name = table["name"]
        if not isinstance(name, str) or name not in checks:
            raise UnknownCheckError(f"{place}: unknown check name {name!r}. {checks.suggestion(str(name))}")
        own = {key: value for key, value in table.items() if key not in ("name", MARGIN)}
        check = _declare(name, {**(defaults or {}), **own}, f"{place} ({name})")
        declared.append(check)
        paired.append(_paired(check, table[MARGIN], baseline, f"{place} ({name})") if MARGIN in table else [])
    duplicate = first_duplicate(declared)
    if duplicate:
        first, second = duplicate
        raise CheckError(
            f"{where}: [[check]] number {first + 1} and number {second + 1} are the same check "
            f"'{declared[first].id}': keep one."
        )
    return [each for check, gates in zip(declared, paired, strict=True) for each in (check, *gates)]


def to_table(check: Check) -> dict[str, Parameter]:
    """Return the table of a check, without arguments that are None. `from_tables` makes an equal check from it."""
    name = check.subject if check.family == "custom" else type(check).__name__
    return {"name": name, **{key: value for key, value in check.parameters.items() if value is not None}}


def load_policy(path: str | Path) -> Policy:
    """Read a policy file.

    The file contains [[check]] tables, and optionally [[exception]] tables, one [baseline] table and one [policy]
    table. The [policy] table may set arguments for all checks. It may also give the name of the policy, the families of
    models on which the policy was validated, what happens to models of other families, and the questions that its
    checks answer. A policy without a gate must set `informational = true` under [policy].

    Args:
        path: The path of a TOML file.

    Raises:
        CheckError: The file cannot be read or is invalid, for example because it has no gate and is not declared
            informational. The message names the file, the table and the key. For an unknown key, it suggests similar
            keys.
    """
    path = Path(path)
    require_regular_file(path, "the policy", CheckError)
    try:
        raw = path.read_bytes()
        content = tomllib.loads(raw.decode("utf-8-sig"))
    except FileNotFoundError:
        raise CheckError(f"{path}: there is no such policy file. Give the path of a TOML file.") from None
    except UnicodeDecodeError as error:
        raise CheckError(f"{path}: the file is not UTF-8 (byte {error.start}). Save the policy as UTF-8.") from error
    except OSError as error:
        raise CheckError(f"{path}: the policy cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # ValueError: also for a number with thousands of digits
        raise CheckError(f"{path}: the file is not valid TOML: {error}.") from error
    for key in content:
        if key not in TABLES:
            raise CheckError(
                f"{path}: unknown key '{key}'. {nearest(key, TABLES)} A policy contains [[check]] tables, "
                "[[exception]] tables, one [baseline] table and one [policy] table."
            )
    if not content.get("check"):
        raise CheckError(
            f'{path}: the policy has no [[check]] table. Write at least one, with a name such as "TotalEffect" and a '
            "threshold such as at_least = 0.092."
        )
    table = content.get("policy", {})
    declared = from_tables(
        content["check"],
        where=str(path),
        defaults=_shared_arguments(table, path),
        baseline=baseline_settings(content, path),
    )
    record = _policy_record(table, declared, path, sha256=hashlib.sha256(raw).hexdigest())
    require_gates(
        declared,
        informational=record.informational,
        where=str(path),
        declaration="informational = true under [policy]",
    )
    exceptions = exceptions_from_tables(content.get("exception", []), checks=declared, where=str(path))
    record = msgspec.structs.replace(record, exceptions=exceptions)
    for check in declared:
        object.__setattr__(check, "source_policy", record)  # the checks are frozen
    return Policy(declared, record)


def sequential_checks(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return copies of the checks, as if the file had `sampling = "sequential"` under [policy].

    A paired gate always compares all rows (instances) of two runs, so only the check that it compares becomes
    sequential.
    """
    return tuple(
        replace(check, base=replace(check.base, sampling="sequential"))
        if isinstance(check, PairedGate)
        else replace(check, sampling="sequential")
        for check in checks
    )


def first_duplicate(checks: Sequence[Check]) -> tuple[int, int] | None:
    """Return the positions, from 0, of the first two checks with the same id; None if all ids differ."""
    positions: dict[str, int] = {}
    for position, check in enumerate(checks):
        if check.id in positions:
            return positions[check.id], position
        positions[check.id] = position
    return None


def _paired(check: Check, margin: Any, baseline: BaselineSettings | None, place: str) -> list[Check]:
    """Return the paired gates of a check. Errors begin with `place`."""
    try:
        return [*paired_gates(check, margin, baseline)]
    except CheckError as error:
        raise CheckError(f"{place}: {error}") from error


def _declare(name: str, arguments: dict[str, Any], place: str) -> Check:
    """Declare the check that is registered under a name. Errors begin with `place`."""
    try:
        factory = checks.get(name)
    except AuditError as error:
        raise CheckError(f"{place}: {error}") from error
    known = tuple(factory.argument_names())
    for key in arguments:
        if key not in known and key != SAMPLED_UNITS:  # the check says why it does not support samples
            raise CheckError(f"{place}: unknown key '{key}'. {nearest(key, (*known, MARGIN))}")
    try:
        check = factory(**arguments)
    except AuditError as error:
        raise CheckError(f"{place}: {error}") from error
    if not isinstance(check, Check):
        raise CheckError(f"{place}: the registered check returned a {type(check).__name__}; expected a Check.")
    return check


def _shared_arguments(table: Any, path: Path) -> dict[str, Any]:
    """Return the arguments that the [policy] table sets for all checks, after validating them and all of its keys."""
    if not isinstance(table, dict):
        raise CheckError(f"{path}: [policy]: expected one table, but got {type(table).__name__}.")
    known = (*SHARED_ARGUMENTS, *DESCRIPTION_KEYS)
    for key in table:
        if key not in known:
            raise CheckError(f"{path}: [policy]: unknown key '{key}'. {nearest(key, known)}")
    shared = {key: value for key, value in table.items() if key in SHARED_ARGUMENTS}
    try:
        CheckArguments(severity="report", **shared)
    except CheckError as error:
        raise CheckError(f"{path}: [policy]: {str(error).removeprefix('CheckArguments: ')}") from None
    return shared


def _policy_record(table: Mapping[str, Any], declared: Sequence[Check], path: Path, *, sha256: str) -> PolicyRecord:
    """Return the description of the policy in its [policy] table."""
    questions = table.get("questions", {})
    if not isinstance(questions, dict):
        raise CheckError(f"{path}: [policy.questions]: expected tables, but got {type(questions).__name__}.")
    keys = ("name", "applies_to", "validated_on", "unvalidated", "informational")
    stated = {key: table[key] for key in keys if key in table}
    try:
        record = msgspec.convert({"file": path.name, "sha256": sha256, **stated}, PolicyRecord)
    except msgspec.ValidationError as error:
        known = ("block", "gate", "report")
        hint = "" if table.get("unvalidated", "block") in known else ' Expected "block", "gate" or "report".'
        raise CheckError(f"{path}: [policy]: {error}.{hint}") from None
    require_family_names(table.get("applies_to"), key="applies_to", where=f"{path}: [policy]")
    require_families(table.get("validated_on"), table.get("unvalidated"), where=f"{path}: [policy]")
    return msgspec.structs.replace(
        record,
        questions=[
            _question(name, question, declared, f"{path}: [policy.questions.{name}]")
            for name, question in questions.items()
        ],
    )


def _question(name: str, table: Any, declared: Sequence[Check], place: str) -> PolicyQuestion:
    """Return the question in a [policy.questions.<name>] table."""
    if not isinstance(table, dict):
        raise CheckError(f"{place}: expected a table, but got {type(table).__name__}.")
    for key in table:
        if key not in QUESTION_KEYS:
            raise CheckError(f"{place}: unknown key '{key}'. {nearest(key, QUESTION_KEYS)}")
    try:
        question = msgspec.convert({"name": name, **table}, PolicyQuestion)
    except msgspec.ValidationError as error:
        raise CheckError(f"{place}: {error}.") from None
    for number, remedy in enumerate(question.remedy, 1):
        where = f"{place.removesuffix(']')}.remedy] number {number}"
        require_family_names(remedy.families, key="families", where=where)
        if not remedy.text.strip() or not remedy.when:
            raise CheckError(f"{where}: 'text' or 'when' is empty. Fill it in, or remove the remedy.")
        if remedy.families and not remedy.accuracy.strip():
            raise CheckError(
                f"{where}: accuracy is missing. A remedy for some families must state what it costs: write, for "
                'example, accuracy = "0.88 → 0.83", or accuracy = "unchanged".'
            )
    ids = [check.id for check in declared]
    for check in question.checks:
        if check not in ids:
            raise CheckError(f"{place}: no [[check]] of this policy is '{check}'. {nearest(check, ids)}")
    gates = {check.id for check in declared if check.severity == "gate"}
    if not gates & set(question.checks):
        raise CheckError(
            f"{place}: none of its checks is a gate, so the answer can never be “no”. Name a [[check]] with a "
            "threshold, or leave the question out."
        )
    return question
