"""The package entmax is optional: only the projections that use it need it, and they name the extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attnaudit.errors import ModelError
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.projections import PROJECTIONS, projection
from attnaudit.models.vocabulary import RESERVED, Vocabulary
from tests.forking_interpreter import run_module
from tests.units.models.test_train_command import write

NEED_ENTMAX = ("sparsemax", "sparsegen", "entmax")
EXTRA = r'needs the package entmax, which is not installed\. Install it: pip install "attnaudit\[entmax\]"'

#: Runs in a process of its own, so that nothing has imported entmax before.
SCRIPT = """
import argparse, json, sys
from pathlib import Path
sys.modules["entmax"] = None  # importing it now raises ModuleNotFoundError
from attnaudit.conformance import quick
from attnaudit.data import load, sample
from attnaudit.engine.measuring import measure
from attnaudit.models import demo_model, train_command

data = sample(load("movie-reviews"), 8, 0)
adapter = demo_model.model()
assert all(result.outcome != "fail" for result in quick(adapter, data.instances))
measured = measure(adapter, data, ["attention", "prediction", "uniform"], model="demo", seed=0)[0]
assert len(measured.scalar("uniform.tvd")) == 8

parser = argparse.ArgumentParser()
train_command.add_arguments(parser)
train_command.run(parser.parse_args(sys.argv[1:]))
card = json.loads((Path(sys.argv[-1]) / "attnaudit.json").read_text(encoding="utf-8"))
print(card["architecture"]["projection"])
"""


@pytest.fixture
def no_entmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "entmax", None)


@pytest.mark.usefixtures("no_entmax")
@pytest.mark.parametrize("name", NEED_ENTMAX)
def test_a_projection_that_needs_entmax_names_the_extra(name: str) -> None:
    with pytest.raises(ModelError, match=rf"The projection '{name}' {EXTRA}"):
        projection(name)
    with pytest.raises(ModelError, match=EXTRA):
        Architecture(projection=name).check()


@pytest.mark.usefixtures("no_entmax")
@pytest.mark.parametrize("name", sorted(set(PROJECTIONS) - set(NEED_ENTMAX)))
def test_the_other_projections_do_not_need_entmax(name: str) -> None:
    Architecture(projection=name).check()


def test_a_checkpoint_that_needs_entmax_names_its_card_and_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = Architecture(projection="sparsemax", embedding_size=4, hidden_size=4, attention_size=4)
    vocabulary = Vocabulary([*RESERVED, "a"])
    model = PooledClassifier(architecture, vocabulary_size=len(vocabulary), classes=2)
    checkpoint_folder.save(tmp_path, model, vocabulary, ("bad", "good"))
    monkeypatch.setitem(sys.modules, "entmax", None)
    with pytest.raises(ModelError, match=rf"attnaudit\.json: architecture: .*'sparsemax' {EXTRA}"):
        checkpoint_folder.load(tmp_path)


@pytest.mark.slow
def test_the_demo_is_measured_and_a_softmax_model_is_trained_without_entmax(tmp_path: Path) -> None:
    files = write(tmp_path / "train.jsonl", 40), write(tmp_path / "dev.jsonl", 20, 1000)
    options = ["--encoder", "average", "--epochs", "1", "--embedding-size", "4", "--hidden-size", "4"]
    data = ["--data", str(files[0]), "--dev", str(files[1])]
    (tmp_path / "without_entmax.py").write_text(SCRIPT, encoding="utf-8")
    done = run_module("without_entmax", *data, *options, "--out", str(tmp_path / "model"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "softmax"
