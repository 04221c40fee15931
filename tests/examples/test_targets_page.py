"""The examples of docs/targets.md, run as they stand there on small untrained models."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.loading import load_model
from attnaudit.checks.policies.policy import load_policy
from attnaudit.data import label_indices, load
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset
from attnaudit.registry import models
from attnaudit.run.audit_items import resolve_models
from tests import architectures

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "targets.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
LABELS = {"problem_type": "multi_label_classification", "id2label": {0: "toxic", 1: "insult"}, "label2id": {}}
TAGS = {"id2label": {0: "O", 1: "PER"}, "label2id": {}}
SCORE = {"id2label": {0: "score"}, "label2id": {}}
#: Example -> the architecture, the ending of the class name, settings of the configuration, and fields of the rows.
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "label.toml": ("bert", "", LABELS, {"labels": ("toxic",)}),
    "label.py": ("bert", "", LABELS, {"labels": ()}),
    "score.toml": ("bert", "", SCORE, {"query": "a good film"}),
    "tag.py": ("bert", "ForTokenClassification", TAGS, {"label": "PER"}),
    "span.py": ("bert", "ForQuestionAnswering", {}, {"query": "what is it"}),
    "string.toml": ("gpt2-lm", "", {}, {"answer": "good"}),
}


def rows(**fields: Any) -> Dataset:
    texts = [one for one in load("movie-reviews").instances if 3 <= len(one.text.split()) <= 8][:6]
    instances = tuple(replace(one, **{"label": None, **fields}) for one in texts)
    return Dataset(name="reviews", source="reviews", description="", instances=instances)


def test_every_example_is_run() -> None:
    followed = {"ratings.py", "audits/conftest.py", "ratings.toml", "checkpoints.py"}  # by test_whole_pages.py
    assert set(EXAMPLES) == {*MODELS, "masked.toml", *followed}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_an_example_can_be_audited(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, ending, settings, fields = MODELS[name]
    model, tokenizer = architectures.build(kind, task=ending, **settings)
    model.save_pretrained(tmp_path / "checkpoint")
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    monkeypatch.chdir(tmp_path)
    source = "checkpoint"
    if name.endswith(".toml"):
        (tmp_path / "checkpoint" / "attnaudit.toml").write_text(EXAMPLES[name], encoding="utf-8")
        items = resolve_models([source], base=tmp_path)
        assert [item.id for item in items] == (
            ["checkpoint[toxic]", "checkpoint[insult]"] if name == "label.toml" else ["checkpoint"]
        )
        loaded = load_model(items[-1].source)
    else:
        (tmp_path / name).write_text(EXAMPLES[name], encoding="utf-8")
        before = set(models.names())
        runpy.run_path(name)
        (source,) = set(models.names()) - before
        try:
            loaded = load_model(source)
        finally:
            models._known.pop(source)
    capabilities, data = loaded.adapter.capabilities, rows(**fields)
    labels = label_indices(data, capabilities.classes, capabilities.target, capabilities.labels)
    masked = tmp_path / "masked.toml"
    masked.write_text(EXAMPLES["masked.toml"], encoding="utf-8")
    checks = tuple(load_policy(masked))
    needs = sorted({need for check in checks for need in check.needs()})
    measurements, _ = measure(loaded.adapter, data, needs, model="m", seed=0, labels=labels)
    assert [check.judge(measurements).value is not None for check in checks] == [True] * len(checks)
    assert loaded.family.endswith(capabilities.target.family)


def test_the_messages_point_to_sections_of_the_page() -> None:
    headings = {line.removeprefix("## ").lower().replace(" ", "-") for line in PAGE.splitlines() if line[:3] == "## "}
    assert {"a-label", "a-score", "a-string"} <= headings
