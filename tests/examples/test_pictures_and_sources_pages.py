"""The examples of the pages about pictures, recordings and sources, run as they stand there, with less training."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.loading import load_model
from attnaudit.checks.policies.policy import load_policy
from attnaudit.checks.policies.policy_choice import choose_policy
from attnaudit.data import label_indices, load, sample
from attnaudit.engine.measuring import measure
from attnaudit.records import CheckRecord
from attnaudit.verdict_text import failure_message

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def examples(page: str) -> dict[str, str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- example: (\S+) -->\n```\w*\n(.*?)```", text, re.DOTALL))


def names_in_messages(records: list[CheckRecord]) -> set[str]:
    """Return the names of units and rows in the failure messages of checks."""
    text = " ".join(failure_message(msgspec.structs.replace(record, worst=record.worst[:0])) for record in records)
    marks = " ".join(
        failure_message(record).partition("marks the most attended")[2].partition(":")[0] for record in records
    )
    words = r"tokens of the passages|tokens?|texts?|patch(?:es)?|pictures?|recordings?|passages?|prompts?"
    return set(re.findall(rf"\b(?:{words})\b", f"{text} {marks}"))


def test_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples("pictures.md")
    assert set(found) == {"digits.py"}
    monkeypatch.chdir(tmp_path)
    assert "EPOCHS = 12\n" in found["digits.py"]
    Path("digits.py").write_text(found["digits.py"].replace("EPOCHS = 12\n", "EPOCHS = 1\n"), encoding="utf-8")
    runpy.run_path("digits.py")
    loaded, data = load_model("model"), sample(load(Path("digits.jsonl")), 8, 0)
    assert loaded.family == "transformer, vit, pictures"
    policy = load_policy(ROOT / "audits" / "pictures.toml")
    assert (
        choose_policy([policy, load_policy(ROOT / "audits" / "transformer.toml")], {"model": loaded.family}) == policy
    )
    checks = tuple(check for check in policy if check.severity == "gate")
    needs = sorted({need for check in checks for need in check.needs_under_reading()})
    labels = label_indices(data, loaded.adapter.capabilities.classes)
    measured, cost = measure(loaded.adapter, data, needs, model="model", seed=0, labels=labels)
    records = [check.judge(measured) for check in checks]
    assert [record.value is not None for record in records] == [True, True, True]
    assert names_in_messages(records) == {"patch", "patches", "picture", "pictures"}
    assert {len(row) for row in measured.boxes} == {64}
    assert any("typical patch of its picture" in note for note in cost.notes)


def test_tones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples("recordings.md")
    assert set(found) == {"tones.py", "recordings.toml"}
    monkeypatch.chdir(tmp_path)
    sizes = "TRAIN, TEST, EPOCHS = 400, 60, 8\n"
    assert sizes in found["tones.py"]
    Path("tones.py").write_text(found["tones.py"].replace(sizes, "TRAIN, TEST, EPOCHS = 32, 6, 1\n"), encoding="utf-8")
    Path("recordings.toml").write_text(found["recordings.toml"], encoding="utf-8")
    runpy.run_path("tones.py")
    loaded, data = load_model("model"), load(Path("tones.jsonl"))
    assert loaded.family == "transformer, audio-spectrogram-transformer, recordings"
    checks = tuple(load_policy("recordings.toml"))
    needs = sorted({need for check in checks for need in check.needs_under_reading()})
    labels = label_indices(data, loaded.adapter.capabilities.classes)
    measured, cost = measure(loaded.adapter, data, needs, model="model", seed=0, labels=labels)
    records = [check.judge(measured) for check in checks]
    assert [record.value is not None for record in records] == [True, True]
    assert names_in_messages(records) == {"patch", "patches", "recording", "recordings"}
    assert {len(row) for row in measured.times} == {24}
    assert any("mean patch of its recording" in note for note in cost.notes)


def test_reviews_as_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples("sources.md")
    assert set(found) == {"questions.jsonl", "attnaudit.toml", "citations.toml", "reviews.py"}
    assert found["attnaudit.toml"].splitlines()[0].removeprefix("template = ").strip('"') in found["reviews.py"]
    monkeypatch.chdir(tmp_path)
    for name, content in found.items():
        if name != "attnaudit.toml":
            Path(name).write_text(content, encoding="utf-8")
    assert load(Path("questions.jsonl")).instances[0].passages == ("The grass is green.", "The sky is blue.")
    runpy.run_path("reviews.py")
    Path("checkpoint/attnaudit.toml").write_text(found["attnaudit.toml"], encoding="utf-8")
    loaded, data = load_model("checkpoint"), load(Path("questions.jsonl"))
    assert loaded.family == "transformer, llama, sources"
    checks = tuple(load_policy(Path("citations.toml")))
    needs = sorted({need for check in checks for need in check.needs_under_reading()})
    measured, _ = measure(loaded.adapter, data, needs, model="checkpoint", seed=0, unit="sources")
    assert all(len(row) == 4 for row in measured.tokens)
    records = [check.judge(measured) for check in checks]
    verdicts = {record.check: record.verdict for record in records}
    assert names_in_messages(records) == {"passage", "passages", "prompt", "prompts", "tokens of the passages"}
    used = "total_effect.standardised"
    assert set(verdicts) == {"top_k_drop.1", "linear_datamodelling_score.32", "pointing.logits", used}
    assert "pass" not in [verdict for name, verdict in verdicts.items() if name != used]
    assert np.isfinite(measured.scalar("top_k_drop.1")).all()
