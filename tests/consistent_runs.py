"""Runs whose records and measurements agree with each other, as an audit writes them.

The records come from real checks on made-up numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnaudit.checks import AdversarialDivergence, Agreement, Conicity, UniformFragility
from attnaudit.checks.base import Check
from attnaudit.checks.policies.effective_policy import effective_policy
from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance
from attnaudit.records import (
    SCHEMA_VERSION,
    CheckRecord,
    DataRecord,
    GateRecord,
    GateState,
    ModelRecord,
    PolicyException,
    RunRecord,
)
from attnaudit.run.measurements_file import merge_measurements, write_measurements
from attnaudit.run.verification.integrity import file_sha256, seal

CLASSES = ("negative", "positive")
ROWS = 60
PASSING = Conicity(at_most=0.9)
RELATIVE = Agreement(at_least="floor + 0.1")
FAILING = AdversarialDivergence(at_most=0.2)
INCONCLUSIVE = UniformFragility(at_least=0.3)
INFORMATIONAL = Agreement(importance="leave_one_out", severity="report")
NAME = "20260131-140502-1f3a"


def made_up_measurements(model: str = "release", data: str = "reviews", *, rows: int = ROWS) -> Measurements:
    """Return made-up numbers for the checks above. Two instances have a single token."""
    generator = np.random.default_rng(rows)
    lengths = [1 if i < 2 else 3 + i % 5 for i in range(rows)]
    attention = [generator.dirichlet(np.ones(length)) for length in lengths]
    defined = np.array(lengths) > 1

    def around(mean: float, spread: float) -> Any:
        return np.where(defined, np.clip(mean + spread * generator.standard_normal(rows), 0, 0.68), np.nan)

    scalars = {
        "attention.max": np.array([row.max() for row in attention]),
        "conicity": around(0.5, 0.1),
        "conicity.orthogonal": around(0.2, 0.1),
        "uniform.tvd": around(0.3, 0.2),
        "uniform.predicted": generator.integers(0, 2, rows).astype(float),
    }
    for name in ("agreement.gradient.meister.inputs", "agreement.leave_one_out.inputs"):
        means = {"tau": 0.5, "floor": 0.1, "p_value": 0.1, "gradient_loo": 0.6, "near_ties": 0.1}
        scalars |= {f"{name}.{column}": around(mean, 0.05) for column, mean in means.items()}
    for tvd in ("0.01", "0.02", "0.05", "0.1", "0.2"):
        columns = ("jsd", "most", "share", "tvd", "upper")
        scalars |= {f"adversarial.{tvd}.{column}": around(0.5, 0.05) for column in columns}
    return Measurements(
        model=model,
        data=data,
        seed=0,
        classes=CLASSES,
        instances=[Instance(id=f"r{i:03}", text=f"text {i}", label=CLASSES[i % 2]) for i in range(rows)],
        sources=[f"row r{i:03}" for i in range(rows)],
        tokens=[["word"] * length for length in lengths],
        labels=np.arange(rows) % 2,
        predicted=generator.integers(0, 2, rows),
        scalars=scalars,
        vectors={"attention": attention},
        per_token={"attention"},
    )


def consistent_run(
    folder: Path,
    checks: Sequence[Check] = (PASSING, RELATIVE, INFORMATIONAL),
    *,
    models: Mapping[str, str] | None = None,
    data: Sequence[str] = ("reviews",),
    without: Mapping[str, GateState] | None = None,
    exceptions: Sequence[PolicyException] = (),
    measure: Callable[[str, str], Measurements] = made_up_measurements,
    **changes: Any,
) -> RunRecord:
    """Write the folder of a run that has ended, and return its record.

    Args:
        folder: The folder of the run.
        checks: The checks of the policy.
        models: Name -> hash of each model; one model by default.
        data: The names of the data sets.
        without: The id of each gate without a verdict -> its state.
        exceptions: The exceptions of the policy. A gate with one that does not pass is excepted.
        measure: Returns the numbers of a model on a data set.
        changes: Fields of the record to replace, before it is sealed.
    """
    models = models or {"release": "3f" * 32}
    numbers = [measure(model, name) for model in models for name in data]
    gated = sum(check.severity == "gate" for check in checks)
    absent = without or {}
    records = [
        msgspec.structs.replace(check.judge(one, gated=gated), test=f"test_audit.py::test[{one.model}-{check.id}]")
        for one in numbers
        for check in checks
        if check.id not in absent
    ]
    excepted = {one.check: one.reason for one in exceptions}
    by_key = {record.key[:3]: record for record in records}
    gates = [
        _gate(check.id, one, by_key.get((one.model, one.data, check.id)), absent, excepted)
        for one in numbers
        for check in checks
        if check.severity == "gate"
    ]
    states = {gate.state for gate in gates}
    left_out = "not selected" in states or changes.get("files_left_out")
    status = "failed" if states & {"failed", "open"} else "partial" if left_out else "passed"
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run": folder.name,
        "created": "2026-01-31T14:05:02+00:00",
        "finished": "2026-01-31T14:06:00+00:00",
        "command": ["pytest", "audits/"],
        "seed": 0,
        "exit_status": int(status == "failed"),
        "attnaudit": "0.1.0",
        "policy": "declared in Python",
        "environment": None,
        "models": [_model(name, sha256) for name, sha256 in models.items()],
        "data": [_data(name) for name in data],
        "measured": [],
        "checks": records,
        "missing": [],
        "status": status if gates or left_out else "informational",
        "gates": gates,
        "effective_policy": effective_policy(checks, exceptions, not gates),
        "measurements_sha256": _write_numbers(folder, numbers),
    }
    return write_record(folder, RunRecord(**{**fields, **changes}))


def write_record(folder: Path, run: RunRecord) -> RunRecord:
    """Seal a record, write it to audit.json, and return it."""
    run = seal(run)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=2))
    (folder.parent / "latest.txt").write_text(f"{folder.name}\n", encoding="utf-8")
    return run


def _write_numbers(folder: Path, numbers: Sequence[Measurements]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    parts = [folder / f"part{i}.parquet" for i in range(len(numbers))]
    for one, part in zip(numbers, parts, strict=True):
        write_measurements(one, part)
    merge_measurements(parts, folder / "measurements.parquet")
    for part in parts:
        part.unlink(missing_ok=True)
    return file_sha256(folder / "measurements.parquet")


def _gate(
    check: str,
    numbers: Measurements,
    record: CheckRecord | None,
    without: Mapping[str, GateState],
    excepted: Mapping[str, str],
) -> GateRecord:
    state: GateState = without.get(check, "open") if record is None else "failed" if record.blocks else "passed"
    reason = "" if state == "passed" else f"it is {state}"
    if state != "passed" and check in excepted:
        state, reason = "excepted", excepted[check]
    return GateRecord(model=numbers.model, data=numbers.data, check=check, state=state, reason=reason)


def _model(name: str, sha256: str) -> ModelRecord:
    return ModelRecord(
        name=name,
        source=f"folder {name}",
        description="",
        classes=list(CLASSES),
        parameters=10,
        sha256=sha256,
        linear_decoder=True,
        conformance=[],
    )


def _data(name: str) -> DataRecord:
    return DataRecord(
        name=name,
        source=name,
        description="",
        rows=ROWS,
        audited=ROWS,
        labelled=ROWS,
        classes=list(CLASSES),
        sha256="a1" * 32,
        sample_seed=None,
        sample_sha256=None,
    )
