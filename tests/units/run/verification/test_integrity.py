"""Sealed runs: those that fit together are accepted, and an edit is found, also if the digest was computed again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnaudit.checks.policies.effective_policy import hash_of
from attnaudit.errors import ReportError
from attnaudit.records import GateRecord, PolicyException, RunRecord
from attnaudit.run.verification.consistency import contradictions
from attnaudit.run.verification.integrity import digest, file_sha256, mismatches, read_unedited, require_unedited, seal
from attnaudit.run.verification.stored_numbers import recomputable
from tests.consistent_runs import FAILING, INCONCLUSIVE, INFORMATIONAL, PASSING, RELATIVE, consistent_run, write_record

EXCEPTION = PolicyException(check=FAILING.id, reason="known, see the model card")
KINDS: dict[str, dict[str, Any]] = {
    "passed": {},
    "failed": {"checks": (PASSING, FAILING, INCONCLUSIVE, INFORMATIONAL)},
    "partial": {"without": {RELATIVE.id: "not selected"}},
    "without a file": {"files_left_out": {"test_other.py": "not collected"}},
    "open": {"without": {RELATIVE.id: "open"}},
    "excepted": {"checks": (PASSING, FAILING), "exceptions": [EXCEPTION]},
    "excepted without a verdict": {
        "checks": (PASSING, FAILING),
        "exceptions": [EXCEPTION],
        "without": {FAILING.id: "open"},
    },
    "informational": {"checks": (INFORMATIONAL,)},
    "several": {"models": {"old": "3f" * 32, "new": "4f" * 32}, "data": ("reviews", "news")},
}


STATUSES = {
    "several": "passed",
    "without a file": "partial",
    "open": "failed",
    "excepted": "passed",
    "excepted without a verdict": "passed",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("reports")
    return {kind: root / kind for kind in KINDS}


@pytest.fixture(scope="module")
def runs(folders: dict[str, Path]) -> dict[str, RunRecord]:
    for kind, arguments in KINDS.items():
        consistent_run(folders[kind], **arguments)
    return {kind: read_unedited(folder) for kind, folder in folders.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_as_it_was_written_is_accepted(runs: dict[str, RunRecord], folders: dict[str, Path], kind: str) -> None:
    run = runs[kind]
    assert mismatches(run, folders[kind]) == []
    assert run.status == STATUSES.get(kind, kind)
    assert {record.check for record, _ in recomputable(run)} == {record.check for record in run.checks}


def test_the_digest_is_that_of_what_is_read_back(runs: dict[str, RunRecord]) -> None:
    run = runs["passed"]
    data = [msgspec.structs.replace(run.data[0], rows=1)]
    whole = msgspec.structs.replace(run, data=data, measured=[])
    assert digest(whole) == digest(msgspec.json.decode(msgspec.json.encode(whole), type=RunRecord))
    changed = msgspec.structs.replace(run.checks[0], details={"b": 1, "a": 2.0})
    reordered = msgspec.structs.replace(run.checks[0], details={"a": 2.0, "b": 1})
    digests = {digest(msgspec.structs.replace(run, checks=[one])) for one in (changed, reordered)}
    assert len(digests) == 1
    assert seal(seal(whole)) == seal(whole)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in nested dicts and lists that is neither."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for i, inner in enumerate(value) for leaf in leaves(inner, (*path, i))]
    return [path]


def edited(run: RunRecord, path: tuple[Any, ...], change: Callable[[Any], Any]) -> RunRecord | None:
    """Return the record with another value at a path; None if that is no valid record."""
    content = msgspec.to_builtins(run)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = change(inner[path[-1]])
    try:
        return msgspec.convert(content, RunRecord)
    except msgspec.ValidationError:
        return None


def another(value: Any) -> Any:
    """Return a value of the same type that differs."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.0001 + 1e-6
        case None:
            return 7
        case _:
            return f"{value}x"


@settings(max_examples=150)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_every_changed_field_is_found_by_the_digest(runs: dict[str, RunRecord], data: st.DataObject, kind: str) -> None:
    run = runs[kind]
    path = data.draw(st.sampled_from(leaves(msgspec.to_builtins(run))))
    changed = edited(run, path, another)
    assume(changed is not None and changed != run)
    assert changed is not None
    assert changed.digest != digest(changed)


def found_in(run: RunRecord, folder: Path) -> list[str]:
    """Return what does not match in an edited record whose digest was computed again. The fast checks come first."""
    return contradictions(run) or mismatches(seal(run), folder)


STATES = ("passed", "failed", "open", "excepted", "not selected")
#: The field of a check -> the values that an editor may give it.
OF_CHECK: dict[str, st.SearchStrategy[Any]] = {
    "verdict": st.sampled_from(("pass", "fail", "inconclusive", "undefined")),
    "blocks": st.booleans(),
    "value": st.floats(0, 1) | st.none(),
    "severity": st.sampled_from(("gate", "report")),
    "inconclusive": st.sampled_from(("fail", "warn", "pass")),
    "n": st.integers(0, 100),
    "n_defined": st.integers(0, 100),
    "gated": st.integers(0, 9),
    "seed": st.integers(0, 9),
    "requirement": st.none(),
    "interval": st.none(),
    "fail_interval": st.none(),
    "model": st.just("another"),
    "data": st.just("another"),
    "check": st.just("another"),
}


@settings(max_examples=100)
@given(data=st.data(), kind=st.sampled_from(sorted(set(KINDS) - {"informational"})))
def test_a_changed_verdict_is_found_although_the_digest_is_computed_again(
    runs: dict[str, RunRecord], folders: dict[str, Path], data: st.DataObject, kind: str
) -> None:
    run = runs[kind]
    gates = [i for i, record in enumerate(run.checks) if record.severity == "gate"]
    position = data.draw(st.sampled_from(gates))
    field = data.draw(st.sampled_from(sorted(OF_CHECK)))
    value = data.draw(OF_CHECK[field])
    old = getattr(run.checks[position], field)
    assume(old != value)
    if isinstance(old, float) and value is not None:
        assume(abs(old - value) > 1e-6)
    records = list(run.checks)
    records[position] = msgspec.structs.replace(records[position], **{field: value})
    assert found_in(msgspec.structs.replace(run, checks=records), folders[kind])


@given(data=st.data(), kind=st.sampled_from(("passed", "partial", "excepted", "several")))
def test_a_changed_state_is_found_although_the_digest_is_computed_again(
    runs: dict[str, RunRecord], folders: dict[str, Path], data: st.DataObject, kind: str
) -> None:
    run = runs[kind]
    position = data.draw(st.integers(0, len(run.gates) - 1))
    changes = data.draw(
        st.fixed_dictionaries({"state": st.sampled_from(STATES)})
        | st.fixed_dictionaries({"model": st.just("another")})
        | st.fixed_dictionaries({"data": st.just("another")})
        | st.fixed_dictionaries({"check": st.just("another")})
    )
    gate = msgspec.structs.replace(run.gates[position], **changes)
    assume(gate != run.gates[position])
    gates = [*run.gates[:position], gate, *run.gates[position + 1 :]]
    assert found_in(msgspec.structs.replace(run, gates=gates), folders[kind])


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"informational"}))
@pytest.mark.parametrize("status", ["passed", "failed", "partial", "informational"])
def test_a_changed_status_is_found_although_the_digest_is_computed_again(
    runs: dict[str, RunRecord], folders: dict[str, Path], kind: str, status: str
) -> None:
    run = runs[kind]
    changed = [msgspec.structs.replace(run, exit_status=0 if run.exit_status else 1)]
    if status != run.status:
        changed.append(msgspec.structs.replace(run, status=status))
    if run.files_left_out:
        changed.append(msgspec.structs.replace(run, files_left_out={}))
    for one in changed:
        assert found_in(one, folders[kind])


@pytest.mark.parametrize("kind", ["failed", "open", "partial"])
def test_no_status_makes_a_failed_run_pass(runs: dict[str, RunRecord], folders: dict[str, Path], kind: str) -> None:
    run = runs[kind]
    assert mismatches(seal(msgspec.structs.replace(run, status="passed", exit_status=0)), folders[kind])
    gates = [msgspec.structs.replace(gate, state="passed", reason="") for gate in run.gates]
    green = msgspec.structs.replace(run, status="passed", exit_status=0, gates=gates)
    assert mismatches(seal(green), folders[kind])


def refused(run: RunRecord, folder: Path) -> str:
    with pytest.raises(ReportError) as raised:
        require_unedited(seal(run), folder)
    return str(raised.value)


def test_a_removed_gate_is_found(runs: dict[str, RunRecord], folders: dict[str, Path]) -> None:
    run, folder = runs["several"], folders["several"]
    key = (run.gates[0].model, run.gates[0].data, run.gates[0].check)
    records = [record for record in run.checks if record.key[:3] != key]
    message = refused(msgspec.structs.replace(run, gates=run.gates[1:], checks=records), folder)
    assert f"{key[2]} for {key[0]} on {key[1]}: the gate is listed 0 times, expected once" in message
    assert str(folder / "audit.json") in message


def test_a_gate_that_is_listed_twice_is_found(runs: dict[str, RunRecord], folders: dict[str, Path]) -> None:
    run = runs["passed"]
    message = refused(msgspec.structs.replace(run, gates=[*run.gates, run.gates[0]]), folders["passed"])
    assert "the gate is listed 2 times" in message


def test_an_invented_gate_is_found(runs: dict[str, RunRecord], folders: dict[str, Path]) -> None:
    run = runs["informational"]
    gate = GateRecord(model="release", data="reviews", check=INFORMATIONAL.id, state="passed")
    changed = msgspec.structs.replace(run, gates=[gate], status="passed")
    assert "the effective policy has no such gate" in refused(changed, folders["informational"])


def test_a_check_that_is_removed_from_the_policy_is_found(runs: dict[str, RunRecord], folders: dict[str, Path]) -> None:
    run = runs["failed"]
    assert run.effective_policy is not None
    keep = [record for record in run.checks if record.check == PASSING.id]
    gates = [gate for gate in run.gates if gate.check == PASSING.id]
    tables = [table for table in run.effective_policy.checks if table["name"] == "Conicity"]
    policy = msgspec.structs.replace(run.effective_policy, checks=tables)
    changed = msgspec.structs.replace(
        run, checks=keep, gates=gates, effective_policy=policy, status="passed", exit_status=0
    )
    message = refused(changed, folders["failed"])
    assert "the hash of the effective policy does not match its content" in message
    policy = msgspec.structs.replace(policy, sha256=hash_of(policy))
    message = refused(msgspec.structs.replace(changed, effective_policy=policy), folders["failed"])
    assert "its confidence is corrected for 3 gates, but the policy has 1" in message


def test_a_lowered_threshold_is_found(runs: dict[str, RunRecord], folders: dict[str, Path]) -> None:
    run = runs["failed"]
    position = next(i for i, record in enumerate(run.checks) if record.check == FAILING.id)
    record = run.checks[position]
    assert record.requirement is not None
    easier = msgspec.structs.replace(
        record,
        requirement=msgspec.structs.replace(record.requirement, value=0.69),
        verdict="pass",
        blocks=False,
    )
    records = [*run.checks[:position], easier, *run.checks[position + 1 :]]
    assert "its threshold is at_most 0.69" in refused(msgspec.structs.replace(run, checks=records), folders["failed"])
    easier = msgspec.structs.replace(easier, parameters={**easier.parameters, "at_most": 0.69})
    records[position] = easier
    message = refused(msgspec.structs.replace(run, checks=records), folders["failed"])
    assert "its arguments differ from those in the effective policy" in message


def test_a_value_that_was_moved_with_its_interval_is_found(
    runs: dict[str, RunRecord], folders: dict[str, Path]
) -> None:
    run = runs["passed"]
    position = next(i for i, record in enumerate(run.checks) if record.check == RELATIVE.id)
    record = run.checks[position]
    assert record.interval is not None
    assert record.fail_interval is not None
    assert record.value is not None
    moved = {
        name: msgspec.structs.replace(one, low=one.low + 0.05, high=one.high + 0.05)
        for name, one in (("interval", record.interval), ("fail_interval", record.fail_interval))
    }
    changed = msgspec.structs.replace(record, value=record.value + 0.05, **moved)
    records = [*run.checks[:position], changed, *run.checks[position + 1 :]]
    message = refused(msgspec.structs.replace(run, checks=records), folders["passed"])
    assert re.search(r"its value is 0\.\d+, but measurements\.parquet gives 0\.\d+", message)


def test_a_moved_relative_threshold_is_found(runs: dict[str, RunRecord], folders: dict[str, Path]) -> None:
    run = runs["passed"]
    position = next(i for i, record in enumerate(run.checks) if record.check == RELATIVE.id)
    requirement = run.checks[position].requirement
    assert requirement is not None
    easier = msgspec.structs.replace(requirement, value=requirement.value - 0.1)
    records = list(run.checks)
    records[position] = msgspec.structs.replace(records[position], requirement=easier)
    message = refused(msgspec.structs.replace(run, checks=records), folders["passed"])
    assert re.search(r"its threshold is 0\.\d+, but measurements\.parquet gives 0\.\d+", message)


def test_changed_measurements_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = consistent_run(folder)
    path = folder / "measurements.parquet"
    table = pq.read_table(path)
    higher = pc.add(table.column("value"), 0.1)
    pq.write_table(table.set_column(table.schema.get_field_index("value"), "value", higher), path)
    with pytest.raises(ReportError, match=r"measurements\.parquet: its SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"):
        require_unedited(run, folder)
    write_record(folder, msgspec.structs.replace(run, measurements_sha256=file_sha256(path)))
    with pytest.raises(ReportError, match=r"its value is 0\.\d+, but measurements\.parquet gives 0\.\d+"):
        read_unedited(folder)


def test_absent_or_emptied_measurements_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = consistent_run(folder)
    path = folder / "measurements.parquet"
    empty = pq.read_table(path).slice(0, 0)
    path.unlink()
    with pytest.raises(ReportError, match="the file is missing, expected the one with the SHA-256"):
        require_unedited(run, folder)
    with pytest.raises(ReportError, match="there are no measurements"):
        require_unedited(seal(msgspec.structs.replace(run, measurements_sha256="")), folder)
    pq.write_table(empty, path)
    with pytest.raises(ReportError, match=r"measurements\.parquet has no numbers for this check"):
        require_unedited(seal(msgspec.structs.replace(run, measurements_sha256=file_sha256(path))), folder)


def test_measurements_that_are_no_parquet_file_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = consistent_run(folder)
    (folder / "measurements.parquet").write_bytes(b"PAR1")
    changed = msgspec.structs.replace(run, measurements_sha256=file_sha256(folder / "measurements.parquet"))
    with pytest.raises(ReportError, match="cannot be read as measurements"):
        require_unedited(seal(changed), folder)


def test_a_column_that_is_removed_from_the_measurements_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = consistent_run(folder)
    path = folder / "measurements.parquet"
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.not_equal(table.column("measure"), pa.scalar("conicity"))), path)
    changed = msgspec.structs.replace(run, measurements_sha256=file_sha256(path))
    with pytest.raises(ReportError, match=r"cannot be computed from measurements\.parquet: No number 'conicity'"):
        require_unedited(seal(changed), folder)


def test_a_run_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    consistent_run(folder, status="running", exit_status=None)
    with pytest.raises(ReportError, match="its status is 'running'"):
        read_unedited(folder)


def test_a_long_list_of_mismatches_is_shortened(runs: dict[str, RunRecord], folders: dict[str, Path]) -> None:
    run = runs["several"]
    message = refused(msgspec.structs.replace(run, seed=5), folders["several"])
    assert message.count("\n") == 11
    assert re.search(r"and \d+ more$", message)
