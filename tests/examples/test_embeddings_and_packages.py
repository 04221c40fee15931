"""The example of docs/custom_checks.md that measures other embeddings, and the one that provides it in a package."""

from __future__ import annotations

import itertools
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnaudit import registry
from attnaudit.adapters.loading import load_model
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import TEXT
from attnaudit.arrays import Floats
from attnaudit.engine.batches.clean_pass import Unit
from attnaudit.engine.batches.logits import log_odds
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from attnaudit.records import MeasureRecord
from tests.architectures import SENTENCES, save
from tests.forking_interpreter import run_module
from tests.slow_cases import slow_except
from tests.small_models import adapter, dataset
from tests.units.conformance.conformance_models import INSTANCES, PLAIN, SmallTransformer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "custom_checks.md").read_text(encoding="utf-8")
DATA_PAGE = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
STEPS = 32


def example(page: str, name: str) -> str:
    (found,) = re.findall(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", page, re.DOTALL)
    return str(found)


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the measure and the check of the page, and forget them after the test."""
    for one in (registry.measures, registry.checks):
        one.names()  # the built-in objects must be registered before the copy is made
        for attribute in ("_known", "_origin", "_decorated", "_file"):
            monkeypatch.setattr(one, attribute, getattr(one, attribute).copy())
    exec(compile(example(PAGE, "integrated_gradients.py"), "integrated_gradients.py", "exec"), {"__name__": "page"})


def measured(model: Any, data: Dataset, unit: Unit = "tokens") -> tuple[Measurements, MeasureRecord]:
    # Few tokens per batch, so that there are several batches, with padding.
    return measure(model, data, ["integrated_gradients"], model="small", seed=0, unit=unit, batch_tokens=40)


def of_captum(model: Any, instance: Instance) -> Floats:
    """Return the integrated gradients of all tokens of a text, which Captum computes without padding."""
    captum = pytest.importorskip("captum.attr", reason="captum is not installed")
    inputs = model.collate([instance])
    embedded = {name: value.detach() for name, value in model.embed(inputs).items()}
    logits = model.run(inputs).logits
    predicted = int((logits[0, 0] > 0) if logits.shape[1] == 1 else logits[0].argmax())

    def odds(embeddings: Tensor) -> Tensor:
        n = len(embeddings)
        others = {name: value.expand(n, -1, -1) for name, value in embedded.items()}
        found = model.run(repeated(inputs, n), embeddings={**others, TEXT: embeddings}).logits
        return log_odds(found, torch.full((n,), predicted))

    method = captum.IntegratedGradients(odds)
    values = method.attribute(embedded[TEXT], n_steps=STEPS, method="riemann_middle", internal_batch_size=8)
    return np.asarray(values[0].double().sum(-1))


def by_unit(values: Floats, model: Any, instance: Instance, unit: Unit) -> Floats:
    inputs = model.collate([instance])
    real = inputs.real()[0].numpy()
    if unit == "tokens":
        return values[real]
    words = inputs.words[TEXT][0].numpy()
    return np.array([values[words == word].sum() for word in sorted(set(words[real]))])


def small(instances: list[Instance]) -> Dataset:
    return Dataset(
        name="small", source="", description="", instances=tuple(instances), classes=("negative", "positive")
    )


@pytest.mark.usefixtures("examples")
@pytest.mark.parametrize(
    ("model", "unit"),
    slow_except(
        itertools.product(["sigmoid", "three classes", "transformer", "query", "bert"], ["tokens", "words"]),
        [("sigmoid", "words"), ("query", "tokens"), ("bert", "words")],
    ),
)
def test_integrated_gradients_are_those_of_captum(model: str, unit: Unit, tmp_path: Path) -> None:
    made: Any
    data = small([Instance(id=f"{i}", text=text) for i, text in enumerate(SENTENCES)])
    if model == "bert":
        pytest.importorskip("transformers", reason="Transformers is not installed")
        made = load_model(str(save("bert", tmp_path / "bert"))).adapter
    elif model in ("transformer", "query"):
        made, data = SmallTransformer(cross=model == "query"), small(INSTANCES if model == "query" else PLAIN)
    else:
        made, data = adapter(outputs=1 if model == "sigmoid" else 3), dataset()
        if unit == "words":
            pytest.skip("every token of this model is a word")
    measurements, record = measured(made, data, unit)
    assert record.batch_size < len(data.instances)
    found = measurements.vector("integrated_gradients")
    for instance, values in zip(measurements.instances, found, strict=True):
        expected = by_unit(of_captum(made, instance), made, instance, unit)
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-5, err_msg=instance.text)
    batches = record.passes["backward"] // STEPS
    assert record.passes["backward"] == STEPS * batches
    assert record.passes["backward_rows"] == STEPS * len(data.instances)


@pytest.mark.usefixtures("examples")
def test_the_integrated_gradients_add_up() -> None:
    """Their sum is the difference of the log-odds at the text and at embeddings of zero, without Captum."""
    model = adapter()
    measurements = measured(model, dataset())[0]
    for instance, values in zip(measurements.instances, measurements.vector("integrated_gradients"), strict=True):
        inputs = model.collate([instance])
        zero = {TEXT: torch.zeros_like(model.embed(inputs)[TEXT])}
        logit, baseline = (float(model.run(inputs, embeddings=one).logits) for one in (None, zero))
        sign = 1 if logit > 0 else -1
        assert values.sum() == pytest.approx(sign * (logit - baseline), rel=1e-2, abs=1e-3)


def test_the_package_of_the_page_provides_its_checks(tmp_path: Path) -> None:
    code = example(PAGE, "integrated_gradients.py") + "\n" + example(DATA_PAGE, "conftest.py")
    site = tmp_path / "site"
    site.mkdir()
    (site / "our_checks.py").write_text(code, encoding="utf-8")
    project = tomllib.loads(example(PAGE, "pyproject.toml"))["project"]
    info = site / "our_checks-1.0.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    points = {group: "\n".join(f"{k} = {v}" for k, v in one.items()) for group, one in project["entry-points"].items()}
    text = "".join(f"[{group}]\n{lines}\n" for group, lines in points.items())
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    (tmp_path / "policy.toml").write_text(
        '[[check]]\nname = "integrated_gradients_agree"\nat_least = -0.9\n', encoding="utf-8"
    )
    (tmp_path / "test_it.py").write_text(
        "from attnaudit import audit, checks\n\n"
        "@audit(*checks.load_policy('policy.toml'))\ndef test_it(check):\n    check.enforce()\n",
        encoding="utf-8",
    )
    environment = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(site)))}
    options = ("-p", "no:cacheprovider", "--model", "demo", "--audit-max-instances", "40")
    done = run_module("pytest", *options, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    newest = (tmp_path / "reports" / "latest.txt").read_text(encoding="utf-8").strip()
    run = json.loads((tmp_path / "reports" / newest / "audit.json").read_text(encoding="utf-8"))
    (record,) = run["checks"]
    assert (record["check"], record["verdict"]) == ("integrated_gradients_agree", "pass")
    listed = run_module("attnaudit", "list", cwd=tmp_path, env=environment)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    for name in ("integrated_gradients_agree", "integrated_gradients", "complaints"):
        assert re.search(rf"^  {name}\b", listed.stdout, re.MULTILINE)
