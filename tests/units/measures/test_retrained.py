"""What is measured of a copy, against a loop by hand, and what is said where there is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from attnaudit import checks
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, CheckError
from attnaudit.instances import Dataset, Instance
from attnaudit.models import checkpoint_folder
from attnaudit.models.encoded_rows import EncodedRows
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.training import train
from attnaudit.models.training_job import TrainingData, TrainingJob
from attnaudit.models.twin_adversary import probabilities
from attnaudit.retraining import Retraining
from tests.small_checkpoints import QUICK, SMALL, save_trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Dataset, Dataset, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    return (*save_trained(folder), folder / "model")


def audited(adapter: ReferenceModel, data: Dataset, *asked: checks.Check, **options: Any) -> Measurements:
    needs = [need for check in asked for need in check.needs_under_reading()]
    labels = [data.classes.index(one.label or "") for one in data.instances]
    found, record = measure(adapter, data, needs, model="small", seed=0, labels=labels, **options)
    found.facts["trained"] = str(record.passes.get("models_trained", 0))
    return found


def test_seed_variance_is_the_mean_over_models_of_other_seeds(trained: Any) -> None:
    base, training, dev, folder = trained
    check = checks.SeedVariance(seeds=2)
    found = audited(checkpoint_folder.load(folder), dev, check)
    expected = []
    order = {one.id: row for row, one in enumerate(dev.instances)}
    rows = [order[name] for name in found.ids]
    batch = EncodedRows(dev, base.vocabulary, base.classes).batch(rows)
    with torch.no_grad():
        own = base.model.trace(*batch)
    for seed in (1, 2):
        settings = msgspec.structs.replace(QUICK, seed=seed)
        data = TrainingData(train=training, dev=dev)
        other = train(TrainingJob(data=data, architecture=SMALL, settings=settings)).model
        with torch.no_grad():
            copy = other.trace(*batch)
        jsd = [
            jensenshannon(a[real].double().numpy(), b[real].double().numpy()) ** 2
            for a, b, real in zip(own.weights, copy.weights, own.real, strict=True)
        ]
        np.testing.assert_allclose(found.scalars[f"retrained.seed={seed}.jsd"], jsd, atol=1e-6)
        tvd = (probabilities(own.logits) - probabilities(copy.logits)).abs().sum(1) / 2
        np.testing.assert_allclose(found.scalars[f"retrained.seed={seed}.tvd"], tvd.numpy(), atol=1e-6)
        np.testing.assert_array_equal(
            found.scalars[f"retrained.seed={seed}.predicted"], (copy.logits[:, 0] > 0).double().numpy()
        )
        shown = found.vectors[f"retrained.seed={seed}.attention"]
        np.testing.assert_allclose(shown[3], copy.weights[3][copy.real[3]].numpy(), atol=1e-6)
        expected.append(jsd)
    record = check.judge(found)
    assert record.value == pytest.approx(np.mean(expected), abs=1e-7)
    assert not record.blocks


def test_numbers_do_not_depend_on_the_batch_and_copies_are_trained_once(trained: Any) -> None:
    _, _, dev, folder = trained
    adapter = checkpoint_folder.load(folder)
    asked = (checks.SeedVariance(seeds=1), checks.TrainedAdversary(weight=0.1, compare_seeds=1))
    found = audited(adapter, dev, *asked)
    small = audited(adapter, dev, *asked, batch_tokens=64)
    assert found.facts["trained"] == "2"
    for name, column in found.scalars.items():
        np.testing.assert_allclose(column, small.scalars[name], atol=1e-5, err_msg=name)


def test_one_token_has_no_divergence(trained: Any) -> None:
    _, _, dev, folder = trained
    word = dev.instances[0].text.split()[0]
    single = dataclasses.replace(dev, instances=(Instance(id="1", text=word, label="positive"),))
    found = audited(checkpoint_folder.load(folder), single, checks.SeedVariance(seeds=1))
    assert np.isnan(found.scalars["retrained.seed=1.jsd"]).all()
    record = checks.SeedVariance(seeds=1).judge(found)
    assert record.undefined == {"a single token": 1}


class Unable(ReferenceModel):
    """A model that does not say how it is trained."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._capabilities = dataclasses.replace(self._capabilities, retrains=False)


def test_a_model_that_cannot_be_trained_anew_is_refused_these_checks_and_no_others(trained: Any) -> None:
    base, _, dev, _ = trained
    uniform, fragility = checks.RetrainedUniform(), checks.UniformFragility(at_least=0.0)
    found = audited(Unable(base.model, base.vocabulary, base.classes), dev, uniform, fragility)
    assert fragility.judge(found).value is not None
    with pytest.raises(CheckError, match=r"^RetrainedUniform on small: .*retrains=True and a method retrain"):
        uniform.judge(found)


def test_what_the_adapter_says_is_the_reason(trained: Any) -> None:
    base, _, dev, _ = trained
    check = checks.GuidedMLP(seeds=1)
    found = audited(ReferenceModel(base.model, base.vocabulary, base.classes), dev, check)
    with pytest.raises(CheckError, match=r'GuidedMLP on small: The model\'s card .* Give the check train="..."'):
        check.judge(found)


class Renamed(ReferenceModel):
    """Whose copy has the classes the other way round."""

    def retrain(self, retraining: Retraining, progress: Any = None) -> ReferenceModel:
        return ReferenceModel(self.model, self.vocabulary, self.capabilities.classes[::-1])


class Retokenized(ReferenceModel):
    """Whose copy reads other tokens."""

    def retrain(self, retraining: Retraining, progress: Any = None) -> ReferenceModel:
        copy = ReferenceModel(self.model, self.vocabulary, self.capabilities.classes)
        copy.tokenize = lambda text: self.vocabulary.encode(text + " .")
        return copy


def test_copies_that_are_not_of_the_model_are_refused(trained: Any) -> None:
    base, _, dev, _ = trained
    check = checks.RetrainedUniform(seeds=1)
    renamed = audited(Renamed(base.model, base.vocabulary, base.classes), dev, check)
    with pytest.raises(CheckError, match="the copy has the classes"):
        check.judge(renamed)
    with pytest.raises(AdapterError, match="reads other tokens"):
        audited(Retokenized(base.model, base.vocabulary, base.classes), dev, check)


def test_training_tells_its_progress(trained: Any) -> None:
    _, _, dev, folder = trained
    said: list[str] = []
    check = checks.TrainedAdversary(weight=0.1)

    def progress(done: int, total: int, what: str) -> None:
        said.append(f"{what} {done}/{total}")

    audited(checkpoint_folder.load(folder), dev, check, progress=progress)
    assert said[:2] == ["measuring small on dev 0/120", "training an adversary (λ 0.1, seed +0) 1/480"]
    assert said[-1] == "measuring small on dev 120/120"
