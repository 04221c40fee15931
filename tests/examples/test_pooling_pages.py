"""The examples of docs/bags.md and docs/pooling.md, run as they stand there."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.conformance import quick
from attnaudit.data import load
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset
from attnaudit.registry import models

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(page: str) -> dict[str, str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the examples, from which their modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for page in ("bags.md", "pooling.md"):
        for name, code in examples(page).items():
            (tmp_path / name).write_text(code, encoding="utf-8")
    yield tmp_path
    for name in ("parts", "digit_bags"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", sorted(set(examples("pooling.md")) - {"parts.py"}))
def test_each_adapter_conforms_and_is_measured(name: str, folder: Path) -> None:
    adapter = runpy.run_path(str(folder / name))["adapter"]
    chosen = [one for one in load("movie-reviews").instances if 3 <= len(one.text.split()) <= 8][:5]
    if name == "pair.py":
        chosen = [replace(one, query=other.text) for one, other in zip(chosen, chosen[::-1], strict=True)]
    quick(adapter, chosen)
    data = Dataset(name="reviews", source="reviews", description="", instances=tuple(chosen))
    measurements, _ = measure(adapter, data, ("pointing.held", "uniform"), model="m", seed=0)
    assert np.isfinite(measurements.scalar("pointing.held.cosine")).all()


def test_bags_of_digits(folder: Path) -> None:
    made = runpy.run_path("digit_bags.py")
    made["make_bags"](folder / "train", 100, 1)
    made["make_bags"](folder / "test", 40, 2)
    made["train"](folder / "train", steps=100)
    before = set(models.names())
    runpy.run_path("conftest.py")
    (source,) = set(models.names()) - before
    try:
        adapter = load_model(source).adapter
        data = load(folder / "test" / "bags.csv")
        quick(adapter, data.instances)
        measurements, _ = measure(adapter, data, ("pointing.held", "adversarial.0.05"), model="m", seed=0)
    finally:
        models._known.pop(source)
    assert [len(row) for row in measurements.tokens] == [12] * 40
    assert measurements.facts["adversarial.method"] == "exact"
    assert np.isfinite(measurements.scalar("pointing.held.cosine")).all()
