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
    Interval,
    MeasureRecord,
    MissingCase,
    ModelRecord,
    RankedInstance,
    Reference,
    Requirement,
    RunRecord,
    Series,
)
from attnaudit.report.charts import Drawing
from attnaudit.run.gates import run_status

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


def check_record(**changes: Any) -> CheckRecord:
    """Return a failed agreement check; `changes` replace its fields."""
    values = 0.21 + 0.3 * np.random.default_rng(0).standard_normal(1981)
    counts, edges = np.histogram(np.clip(values, -1, 1), bins=24, range=(-1, 1))
    fields: dict[str, Any] = {
        "check": "agreement.gradient.meister.inputs",
        "family": "agreement",
        "model": "demo",
        "data": "movie-reviews",
        "seed": 0,
        "title": "Attention agrees with the gradient",
        "question": "Does attention order the tokens as the gradient of the predicted probability orders them?",
        "why": "A reader takes the heaviest token for the most important one. If a one-step change of other tokens "
        "moves the output more, that reading misleads.",
        "how_to_read": "1 is the same order, 0 no relation, and −1 the opposite order.",
        "parameters": {"importance": "gradient", "preset": "meister", "at": "inputs"},
        "needs": ["attention", "agreement.gradient.meister.inputs"],
        "verdict": "fail",
        "reason": "the whole 95% interval is below the required value",
        "severity": "gate",
        "inconclusive": "fail",
        "statistic": "mean",
        "unit": "Kendall's τ-b",
        "value_name": "mean Kendall's τ-b",
        "value": 0.213,
        "requirement": Requirement(direction="at_least", value=0.3),
        "interval": Interval(low=0.199, high=0.226, confidence=0.95, method="bootstrap of sources, 2,000 resamples"),
        "n": 2026,
        "n_defined": 1981,
        "undefined": {"fewer than two tokens": 31, "all weights tied": 14},
        "references": [
            Reference(name="floor", value=0.001, meaning="τ of the same attention, shuffled", n=1981),
            Reference(name="gradient_loo", value=0.61, meaning="τ between gradient and leave-one-out", n=1981),
        ],
        "details": {
            "significant at p ≤ .05": 0.274,
            "largest change of an output that was run through the model again": 0.012,
            "method": "exact",
            "standard deviation": 0.301,
        },
        "distribution": Histogram(edges=edges.tolist(), counts=counts.tolist(), label="Kendall's τ-b"),
        "charts": [],
        "worst": [RankedInstance(instance=f"r{i}", value=-0.81 + i / 20) for i in range(5)],
        "worst_first": "lowest",
        "token_columns": ["attention", "gradient.meister.inputs"],
        "note": "",
        "blocks": True,
    }
    return CheckRecord(**{**fields, **changes})


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, confidence=0.95, method="bootstrap of sources, 2,000 resamples")


def histogram(centre: float, spread: float, low: float, high: float, label: str) -> Histogram:
    values = np.clip(centre + spread * np.random.default_rng(1).standard_normal(2000), low, high)
    counts, edges = np.histogram(values, bins=20, range=(low, high))
    return Histogram(edges=edges.tolist(), counts=counts.tolist(), label=label)


def rects(drawing: Drawing | None, css: str) -> list[tuple[float, float]]:
    """Return (width, height) of the rectangles with this CSS class."""
    assert drawing is not None
    return [(shape.width, shape.height) for shape in drawing.shapes if shape.kind == "rect" and shape.css == css]


def seven_checks(model: str = "demo", data: str = "movie-reviews", shift: float = 0.0) -> list[CheckRecord]:
    """Return one record per family of checks, with every verdict among them."""
    tokens = ["attention"]
    same = {"model": model, "data": data}
    passing = {"verdict": "pass", "blocks": False}
    return [
        check_record(**same),
        check_record(
            **same,
            check="agreement.leave_one_out.inputs",
            title="Attention agrees with leave-one-out",
            question="Does attention order the tokens as their deletion does?",
            verdict="inconclusive",
            value=0.204 + shift,
            interval=interval(0.191 + shift, 0.218 + shift),
            requirement=Requirement(direction="at_least", value=0.2),
            distribution=histogram(0.2, 0.3, -1, 1, "Kendall's τ-b"),
            token_columns=["attention", "leave_one_out.inputs"],
        ),
        check_record(
            **same,
            **passing,
            check="influence_entropy.hidden",
            family="influence",
            title="Hidden states stay with their token",
            question="How widely is each hidden state's dependence spread over the input tokens?",
            why="Attention weighs hidden states, and is shown over tokens.",
            unit="normalised entropy",
            value=0.71 - shift,
            interval=interval(0.704 - shift, 0.717 - shift),
            requirement=Requirement(direction="at_most", value=0.8),
            references=[],
            distribution=histogram(0.71, 0.08, 0, 1, "normalised entropy of the input influence"),
            token_columns=[],
        ),
        check_record(
            **same,
            **passing,
            check="permutation.tvd",
            family="fragility",
            title="Shuffled attention changes the output",
            question="How far does the output move when the same weights sit on other tokens?",
            why="If shuffling changes nothing, the model does not use which tokens it attends to.",
            statistic="median",
            unit="total variation distance",
            value=0.134 + shift,
            interval=interval(0.127 + shift, 0.141 + shift),
            requirement=Requirement(direction="at_least", value=0.05),
            references=[],
            distribution=histogram(0.13, 0.1, 0, 0.6, "median TVD over 100 permutations"),
            charts=[
                Chart(
                    title="Median TVD by the largest weight",
                    x_label="largest attention weight",
                    y_label="median TVD",
                    kind="bar",
                    series=[
                        Series(name="negative", x=[0.125, 0.375, 0.625, 0.875], y=[0.06, 0.1, 0.19, 0.31]),
                        Series(name="positive", x=[0.125, 0.375, 0.625, 0.875], y=[0.04, 0.12, None, 0.36]),
                    ],
                )
            ],
            token_columns=tokens,
        ),
        check_record(
            **same,
            check="uniform.f1_drop",
            family="fragility",
            title="Uniform attention costs accuracy",
            verdict="undefined",
            value=None,
            interval=None,
            n_defined=0,
            undefined={"no labels": 2026},
            unit="drop in F1",
            references=[],
            distribution=None,
            worst=[],
            token_columns=[],
        ),
        check_record(
            **same,
            severity="report",
            verdict="inconclusive",
            blocks=False,
            check="adversarial.0.01",
            family="adversarial",
            title="Other attention gives the same output",
            question="How different can attention be while the output stays within TVD 0.01?",
            why="If quite another picture explains the same output, the picture shown is one among many.",
            unit="Jensen–Shannon divergence, nats",
            value=0.628,
            interval=interval(0.622, 0.633),
            requirement=None,
            references=[Reference(name="largest possible", value=0.688, meaning="without the constraint", n=1981)],
            distribution=histogram(0.63, 0.05, 0, 0.7, "JSD in nats"),
            charts=[
                Chart(
                    title="JSD against the allowed change",
                    x_label="TVD allowed",
                    y_label="mean JSD, nats",
                    kind="line",
                    series=[Series(name="exact", x=[0.005, 0.01, 0.02, 0.05, 0.1], y=[0.61, 0.628, 0.64, 0.655, 0.66])],
                )
            ],
            token_columns=["attention", "adversarial.0.01.attention"],
        ),
        check_record(
            **same,
            **passing,
            check="information_ranking",
            family="information",
            title="Attention ranks by information",
            statistic="Shieh's weighted τ",
            unit="weighted τ",
            value=0.83,
            interval=interval(0.55, 0.97),
            requirement=Requirement(direction="at_least", value=0.5),
            distribution=None,
            charts=[
                Chart(
                    title="Mutual information by rank",
                    x_label="rank of the attention weight",
                    y_label="nats",
                    kind="line",
                    series=[
                        Series(name="corrected", x=[1, 2, 3, 4, 5], y=[0.31, 0.22, None, 0.14, 0.12]),
                        Series(name="label shuffle", x=[1, 2, 3, 4, 5], y=[0.02, 0.01, 0.01, 0.02, 0.01]),
                    ],
                )
            ],
            worst=[],
            token_columns=[],
        ),
    ]


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
