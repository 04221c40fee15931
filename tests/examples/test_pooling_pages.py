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

from attnaudit.adapters.loading import LoadedModel, load_model
from attnaudit.checks.policies.policy import load_policy
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
            path = tmp_path / page.removesuffix(".md") / name if name.startswith("audits/") else tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code, encoding="utf-8")
    yield tmp_path
    for name in ("parts", "digit_bags"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["heads.py", "hops.py", "levels.py", "pair.py"])
def test_each_adapter_conforms_and_is_measured(name: str, folder: Path) -> None:
    adapter = runpy.run_path(str(folder / name))["adapter"]
    chosen = [one for one in load("movie-reviews").instances if 3 <= len(one.text.split()) <= 8][:5]
    if name == "pair.py":
        chosen = [replace(one, query=other.text) for one, other in zip(chosen, chosen[::-1], strict=True)]
    quick(adapter, chosen)
    data = Dataset(name="reviews", source="reviews", description="", instances=tuple(chosen))
    measurements, _ = measure(adapter, data, ("pointing.held", "uniform"), model="m", seed=0)
    assert np.isfinite(measurements.scalar("pointing.held.cosine")).all()


@pytest.fixture
def digit_bags(folder: Path) -> Iterator[LoadedModel]:
    """The model of the page about bags, which is trained on fewer bags and for fewer steps."""
    made = runpy.run_path("digit_bags.py")
    made["make_bags"](folder / "train", 100, 1)
    made["make_bags"](folder / "test", 40, 2)
    made["train"](folder / "train", steps=100)
    before = set(models.names())
    runpy.run_path("bags/audits/conftest.py")
    (source,) = set(models.names()) - before
    yield load_model(source)
    models._known.pop(source)


def test_bags_of_digits(folder: Path, digit_bags: LoadedModel) -> None:
    data = load(folder / "test" / "bags.csv")
    quick(digit_bags.adapter, data.instances)
    measurements, _ = measure(digit_bags.adapter, data, ("pointing.held", "adversarial.0.05"), model="m", seed=0)
    assert [len(row) for row in measurements.tokens] == [12] * 40
    assert measurements.facts["adversarial.method"] == "exact"
    assert np.isfinite(measurements.scalar("pointing.held.cosine")).all()


def test_large_bags_of_digits(folder: Path, digit_bags: LoadedModel) -> None:
    code, sizes = Path("large_bags.py").read_text(encoding="utf-8"), "BAGS, UNITS = 30, 10_000\n"
    assert sizes in code
    Path("large_bags.py").write_text(code.replace(sizes, "BAGS, UNITS = 4, 1_000\n"), encoding="utf-8")
    runpy.run_path("large_bags.py", run_name="__main__")
    checks, data = tuple(load_policy("large_bags.toml")), load(folder / "large" / "bags.csv")
    needs = sorted({need for check in checks for need in check.needs_under_reading()})
    measurements, _ = measure(digit_bags.adapter, data, needs, model="m", seed=0)
    pointing, agreement = (check.judge(measurements) for check in checks)
    assert [len(row) for row in measurements.tokens] == [1000] * 4
    assert pointing.value is not None
    assert agreement.value is not None
    assert "512 of 1,000 units" in agreement.details.values()
