"""Runs for the tests of the report: a realistic one, one with hostile text, and functions that make others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from attnaudit.records import (
    SCHEMA_VERSION,
    Chart,
    CheckRecord,
    ConformanceResult,
    DataRecord,
    Environment,
    GateRecord,
    Histogram,
    MeasureRecord,
    MissingCase,
    ModelRecord,
    RankedInstance,
    Reference,
    RunRecord,
    Series,
)
from attnaudit.run.gates import run_status
from tests.units.report.example_checks import check_record, seven_checks

COLUMNS = ("attention", "gradient.meister.inputs", "leave_one_out.inputs", "adversarial.0.01.attention")
SENTENCES = (
    "a quiet , moving film that never once begs for the tears it earns",
    "the jokes arrive late and leave early",
    "not without charm , but the script is a mess of borrowed parts and half finished thoughts about fathers and sons",
    "it is a shame that such a fine cast was given so little to do",
    "brilliant",
)

HOSTILE_TOKENS = (
    "<script>window.marker=1;alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "{{7*7}}",
    "{% include 'x' %}",
    "</style><style>body{display:none}",
    "</title></svg><svg onload=alert(3)>",
    "' onmouseover='alert(4)",
    "<iframe src=https://evil.example/a></iframe>",
    "javascript:alert(5)",
    "שלום",
    "مرحبا",
    "\u202egnp.exe",
    "👩‍👩‍👧‍👦🔥",
    "x" * 4000,
    "\x00\x07\x1b[31m",
    "\n",
    "",
    "| pipe ` tick ]( [link](https://evil.example) **bold**",
)
HOSTILE = " ".join(HOSTILE_TOKENS[:6]) + "\n\n# heading\n| a | b |"


def run_record(checks: Sequence[CheckRecord], **changes: Any) -> RunRecord:
    """Return a run with these checks; `changes` replace its fields."""
    models = list(dict.fromkeys(c.model for c in checks)) or ["demo"]
    data = list(dict.fromkeys(c.data for c in checks)) or ["movie-reviews"]
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run": "2026-01-05T10-30-00",
        "created": "2026-01-05T10:30:00+00:00",
        "finished": "2026-01-05T10:31:12+00:00",
        "command": ["pytest", "audits/", *(part for m in models for part in ("--model", m))],
        "seed": 0,
        "exit_status": 1,
        "attnaudit": "0.1.0",
        "policy": "",
        "environment": Environment(
            python="3.12.4",
            platform="Linux x86_64",
            processor="two cores",
            packages={"torch": "2.13.0", "numpy": "2.3.1", "pytest": "9.2.0"},
            device="cpu",
            threads=2,
        ),
        "models": [
            ModelRecord(
                name=name,
                source="attnaudit.models.demo:demo",
                description="BiLSTM with additive attention, trained on movie sentences",
                classes=["negative", "positive"],
                parameters=1_204_353,
                sha256="3f" * 32,
                linear_decoder=True,
                conformance=[
                    ConformanceResult(check="attention sums to one", outcome="pass", detail="largest error 1.2e-7"),
                    ConformanceResult(check="padding changes nothing", outcome="pass", detail="largest change 3e-8"),
                    ConformanceResult(check="special tokens", outcome="skip", detail="the model has none"),
                ],
            )
            for name in models
        ],
        "data": [
            DataRecord(
                name=name,
                source="attnaudit.data.movie_reviews",
                description="Human-rated movie sentences, test split",
                rows=2026,
                audited=2026,
                labelled=2026,
                classes=["negative", "positive"],
                sha256="a1" * 32,
                sample_seed=None,
                sample_sha256=None,
            )
            for name in data
        ],
        "measured": [
            MeasureRecord(
                model=model,
                data=name,
                needs=list(COLUMNS),
                seconds=71.4,
                instances=2026,
                tokens=39_412,
                passes={"forward": 412, "backward": 64},
                batch_size=256,
                device="cpu",
                worker="",
            )
            for model in models
            for name in data
        ],
        "checks": list(checks),
        "missing": [],
    }
    fields |= changes
    gates = [_gate(check) for check in fields["checks"] if check.severity == "gate"]
    gates += [
        GateRecord(model=case.model, data=case.data, check=case.check, state="open", reason=case.reason, test=case.test)
        for case in fields["missing"]
    ]
    fields.setdefault("gates", gates)
    if "exit_status" not in changes:
        fields["exit_status"] = int(any(gate.state in ("failed", "open") for gate in fields["gates"]))
    fields.setdefault("status", run_status(fields["gates"], exit_status=fields["exit_status"]))
    return RunRecord(**fields)


def _gate(check: CheckRecord) -> GateRecord:
    """Return the gate that a check was judged for."""
    return GateRecord(
        model=check.model,
        data=check.data,
        check=check.check,
        state="failed" if check.blocks else "passed",
        reason=check.reason if check.blocks else "",
        test=check.test,
    )


def token_rows(
    case: CheckRecord, instance: str, tokens: Sequence[str], columns: Sequence[str] = COLUMNS
) -> list[dict[str, Any]]:
    """Return the parquet rows of one instance: a random distribution over its tokens for each column.

    Leave-one-out is undefined on an instance of one token.
    """
    generator = np.random.default_rng(len(tokens))
    rows = []
    for name in columns:
        values: list[float] | None = generator.dirichlet(np.full(len(tokens), 0.4)).tolist()
        if name.startswith("leave_one_out") and len(tokens) == 1:
            values = None
        same = {"model": case.model, "data": case.data, "seed": case.seed, "instance": instance}
        rows.append(
            {
                **same,
                "label": "positive",
                "predicted": "negative",
                "measure": name,
                "value": None,
                "values": values,
                "tokens": list(tokens),
            }
        )
    return rows


def write_run(folder: Path, run: RunRecord, rows: Sequence[dict[str, Any]]) -> Path:
    """Write audit.json and measurements.parquet as an audit does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    text = pa.string()
    types = {"seed": pa.int64(), "value": pa.float64(), "values": pa.list_(pa.float64()), "tokens": pa.list_(text)}
    names = ("model", "data", "seed", "instance", "label", "predicted", "measure", "value", "values", "tokens")
    table = pa.Table.from_pylist(list(rows), schema=pa.schema([(name, types.get(name, text)) for name in names]))
    pq.write_table(table, folder / "measurements.parquet")
    return folder


def realistic(folder: Path, *, second_model: bool = False, **changes: Any) -> Path:
    """Write a run of the demo with seven checks, among them a failed, an inconclusive and an undefined one."""
    checks = seven_checks()
    if second_model:
        checks += [
            msgspec.structs.replace(c, verdict="pass", blocks=False) if c.verdict == "fail" else c
            for c in seven_checks("sparse-demo", shift=0.06)
        ]
    texts = [*SENTENCES[:4], " ".join(f"word{i}" for i in range(2000))]
    rows = []
    for case in {(c.model, c.data): c for c in checks}.values():
        for i, text in enumerate(texts):
            rows += token_rows(case, f"r{i}", text.split())
    return write_run(folder, run_record(checks, **changes), rows)


def hostile(folder: Path) -> Path:
    """Write a run in which every text of data, model or plugin holds markup, scripts or control characters."""
    check = check_record(
        check=f"custom.{HOSTILE}",
        family=HOSTILE,
        model=f"m{HOSTILE}",
        data=f"d{HOSTILE}",
        title=HOSTILE,
        question=HOSTILE,
        why=HOSTILE,
        statistic=HOSTILE,
        unit=HOSTILE,
        note=HOSTILE,
        reason=HOSTILE,
        how_to_read=HOSTILE,
        value_name=HOSTILE,
        parameters={HOSTILE: HOSTILE},
        details={HOSTILE: HOSTILE},
        undefined={HOSTILE: 3},
        references=[Reference(name=HOSTILE, value=0.4, meaning=HOSTILE)],
        distribution=Histogram(edges=[0, 1, 2], counts=[3, 4], label=HOSTILE),
        charts=[
            Chart(
                title=HOSTILE,
                x_label=HOSTILE,
                y_label=HOSTILE,
                kind="line",
                series=[Series(name=HOSTILE, x=[0, 1], y=[0, 1]), Series(name=HOSTILE, x=[0, 1], y=[1, None])],
            )
        ],
        worst=[RankedInstance(instance=HOSTILE, value=-1.0)],
        token_columns=["attention", HOSTILE],
    )
    missing = [MissingCase(test=HOSTILE, model=HOSTILE, data=HOSTILE, check=HOSTILE, reason=HOSTILE)]
    rows = token_rows(check, HOSTILE, HOSTILE_TOKENS, [*COLUMNS, HOSTILE])
    for row in rows:
        row["label"], row["predicted"] = HOSTILE, HOSTILE + "!"
    second = msgspec.structs.replace(check, model="plain")
    run = run_record([check, second], missing=missing, command=["pytest", HOSTILE], policy=HOSTILE)
    return write_run(folder, run, rows)
