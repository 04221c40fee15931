"""Retrained copies: columns against a plain loop, and the error where there is no copy."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from attnaudit import checks
from attnaudit.adapters.loading import fingerprint
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, CheckError
from attnaudit.instances import Dataset, Instance
from attnaudit.models import checkpoint_folder
from attnaudit.models.encoded_rows import EncodedRows
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.training import train
from attnaudit.models.training_job import TrainingData, TrainingJob
from attnaudit.models.training_variants import context_free, uniform_attention
from attnaudit.models.twin_adversary import probabilities
from attnaudit.retraining import Retraining
from tests.small_checkpoints import QUICK, SMALL, save_trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Dataset, Dataset, Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    return (*save_trained(folder), folder / "model")


def audited(adapter: ReferenceModel, data: Dataset, *run_checks: checks.Check, **options: Any) -> Measurements:
    needs = [need for check in run_checks for need in check.needs_under_reading()]
    labels = [data.classes.index(one.label or "") for one in data.instances]
    measurements, record = measure(adapter, data, needs, model="small", seed=0, labels=labels, **options)
    measurements.facts["trained"] = str(record.passes.get("models_trained", 0))
    return measurements


def test_seed_variance_is_the_mean_over_models_of_other_seeds(trained: Any) -> None:
    base, training, dev, folder = trained
    check = checks.SeedVariance(seeds=2)
    measurements = audited(checkpoint_folder.load(folder), dev, check)
    expected = []
    order = {one.id: row for row, one in enumerate(dev.instances)}
    rows = [order[name] for name in measurements.ids]
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
        np.testing.assert_allclose(measurements.scalars[f"retrained.seed={seed}.jsd"], jsd, atol=1e-6)
        tvd = (probabilities(own.logits) - probabilities(copy.logits)).abs().sum(1) / 2
        np.testing.assert_allclose(measurements.scalars[f"retrained.seed={seed}.tvd"], tvd.numpy(), atol=1e-6)
        np.testing.assert_array_equal(
            measurements.scalars[f"retrained.seed={seed}.predicted"], (copy.logits[:, 0] > 0).double().numpy()
        )
        shown = measurements.vectors[f"retrained.seed={seed}.attention"]
        np.testing.assert_allclose(shown[3], copy.weights[3][copy.real[3]].numpy(), atol=1e-6)
        expected.append(jsd)
    record = check.judge(measurements)
    assert record.value == pytest.approx(np.mean(expected), abs=1e-7)
    assert not record.blocks


def test_numbers_do_not_depend_on_the_batch_and_copies_are_trained_once(trained: Any) -> None:
    _, _, dev, folder = trained
    adapter = checkpoint_folder.load(folder)
    both = (checks.SeedVariance(seeds=1), checks.TrainedAdversary(weight=0.1, compare_seeds=1))
    measurements = audited(adapter, dev, *both)
    small = audited(adapter, dev, *both, batch_tokens=64)
    assert measurements.facts["trained"] == "2"
    for name, column in measurements.scalars.items():
        np.testing.assert_allclose(column, small.scalars[name], atol=1e-5, err_msg=name)


def test_one_token_has_no_divergence(trained: Any) -> None:
    _, _, dev, folder = trained
    word = dev.instances[0].text.split()[0]
    single = dataclasses.replace(dev, instances=(Instance(id="1", text=word, label="positive"),))
    measurements = audited(checkpoint_folder.load(folder), single, checks.SeedVariance(seeds=1))
    assert np.isnan(measurements.scalars["retrained.seed=1.jsd"]).all()
    record = checks.SeedVariance(seeds=1).judge(measurements)
    assert record.undefined == {"a single token": 1}


class Unable(ReferenceModel):
    """A model whose adapter cannot retrain."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._capabilities = dataclasses.replace(self._capabilities, retrains=False)


def test_a_model_that_cannot_be_retrained_is_refused_only_these_checks(trained: Any) -> None:
    base, _, dev, _ = trained
    uniform, fragility = checks.RetrainedUniform(), checks.UniformFragility(at_least=0.01)
    measurements = audited(Unable(base.model, base.vocabulary, base.classes), dev, uniform, fragility)
    assert fragility.judge(measurements).value is not None
    with pytest.raises(CheckError, match=r"^RetrainedUniform on small: .*Implement retrain.*declare retrains=True"):
        uniform.judge(measurements)


def test_the_adapters_error_is_the_reason(trained: Any) -> None:
    base, _, dev, _ = trained
    check = checks.GuidedMLP(seeds=1)
    measurements = audited(ReferenceModel(base.model, base.vocabulary, base.classes), dev, check)
    with pytest.raises(CheckError, match=r'GuidedMLP on small: The model\'s attnaudit.json .* Pass train="..."'):
        check.judge(measurements)


def another(model: ReferenceModel) -> ReferenceModel:
    """Return a model with parameters that do not depend on a seed."""
    changed = deepcopy(model.model)
    with torch.no_grad():
        changed.decoder.bias.fill_(0.25)
    return ReferenceModel(changed, model.vocabulary, model.capabilities.classes)


def equal(model: ReferenceModel) -> ReferenceModel:
    return ReferenceModel(deepcopy(model.model), model.vocabulary, model.capabilities.classes)


class Renamed(ReferenceModel):
    """A model whose copy has its classes in reverse order."""

    def retrain(self, retraining: Retraining, progress: Any = None) -> ReferenceModel:
        return ReferenceModel(self.model, self.vocabulary, self.capabilities.classes[::-1])


class Retokenized(ReferenceModel):
    """A model whose copy reads different tokens."""

    def retrain(self, retraining: Retraining, progress: Any = None) -> ReferenceModel:
        copy = another(self)
        copy.tokenize = lambda text: self.vocabulary.encode(text + " .")
        return copy


def test_copies_that_do_not_match_the_model_are_refused(trained: Any) -> None:
    base, _, dev, _ = trained
    check = checks.RetrainedUniform(seeds=1)
    renamed = audited(Renamed(base.model, base.vocabulary, base.classes), dev, check)
    with pytest.raises(CheckError, match="the copy has the classes"):
        check.judge(renamed)
    with pytest.raises(AdapterError, match="does not tokenise the texts as the model does"):
        audited(Retokenized(base.model, base.vocabulary, base.classes), dev, check)


class Untrained(ReferenceModel):
    """A model that does not retrain, but returns itself, or a copy of itself, or a single other model."""

    copies: Any = None

    def retrain(self, retraining: Retraining, progress: Any = None) -> ReferenceModel:
        return self.copies(self)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("copies", "check", "message"),
    [
        (
            lambda model: model,
            checks.SeedVariance(seeds=1),
            r"retrain\(\): a copy \(seed \+1\) has the same",
        ),
        (equal, checks.SeedVariance(seeds=1), "has the same parameters as the audited model, so it was not retrained"),
        (equal, checks.TrainedAdversary(), r"an adversary \(λ 0.01, seed \+0\) has the same parameters as the audited"),
        (
            equal,
            checks.RetrainedUniform(seeds=1),
            r"a copy with uniform attention \(seed \+0\) has the same",
        ),
        (another, checks.SeedVariance(seeds=2), r"the copies with the seeds \+1 and \+2 have the same parameters"),
        (another, checks.RetrainedUniform(seeds=2), r"the copies with the seeds \+0 and \+1 have the same parameters"),
        (another, checks.TrainedAdversary(seeds=2), r"the copies with the seeds \+0 and \+1 .* use seeds = 1"),
    ],
)
def test_copies_that_were_not_retrained_are_refused(trained: Any, copies: Any, check: Any, message: str) -> None:
    base, _, dev, _ = trained
    model = Untrained(base.model, base.vocabulary, base.classes)
    model.copies = lambda adapter: copies(adapter)
    measurements = audited(model, dev, check)
    with pytest.raises(CheckError, match=message):
        check.judge(measurements)


class WithData(ReferenceModel):
    """A model whose card names no data, because the data are given."""

    data: Any = None

    def _load_data(self, part: str, name: str) -> Dataset:
        return self.data[part]  # type: ignore[no-any-return]


def test_a_copy_may_equal_a_model_that_was_trained_in_the_same_way(trained: Any) -> None:
    """A uniform copy of a uniform model, and an MLP that is a copy of an MLP."""
    base, training, dev, _ = trained
    settings = {"settings": msgspec.to_builtins(QUICK)}
    data = TrainingData(train=training, dev=dev)
    for change, check in (
        (uniform_attention, checks.RetrainedUniform(seeds=1)),
        (context_free, checks.GuidedMLP(seeds=1)),
    ):
        job = TrainingJob(data=data, architecture=change(SMALL), settings=QUICK, vocabulary=base.vocabulary)
        model = WithData(train(job).model, base.vocabulary, base.classes, training=settings)
        model.data = {"train": training, "dev": dev}
        measurements = audited(model, dev, check)
        assert fingerprint(model)[0] in measurements.facts.values()
        assert check.judge(measurements).verdict != "pass"


class Broken(ReferenceModel):
    """A model whose copy gives NaN."""

    def retrain(self, retraining: Retraining, progress: Any = None) -> ReferenceModel:
        model = deepcopy(self.model)
        with torch.no_grad():
            model.decoder.bias.fill_(torch.nan)
        return ReferenceModel(model, self.vocabulary, self.capabilities.classes)


class TrainsItself(ReferenceModel):
    """A model that changes when it is retrained."""

    def retrain(self, retraining: Retraining, progress: Any = None) -> ReferenceModel:
        audited_copy = deepcopy(self.model)
        with torch.no_grad():
            self.model.decoder.bias.add_(1e-3)
        return ReferenceModel(audited_copy, self.vocabulary, self.capabilities.classes)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Broken, "the model's logits are not finite .* in the retrained copy"),
        (TrainsItself, "parameters or buffers changed while it ran"),
    ],
)
def test_a_copy_that_spoils_the_audit_is_an_error(trained: Any, kind: Any, message: str) -> None:
    base, _, dev, _ = trained
    model = kind(deepcopy(base.model), base.vocabulary, base.classes)
    with pytest.raises(AdapterError, match=message):
        audited(model, dev, checks.SeedVariance(seeds=1))


@pytest.mark.slow
def test_training_reports_its_progress(trained: Any) -> None:
    _, _, dev, folder = trained
    reported: list[str] = []
    check = checks.TrainedAdversary(weight=0.1)

    def progress(done: int, total: int, what: str) -> None:
        reported.append(f"{what} {done}/{total}")

    audited(checkpoint_folder.load(folder), dev, check, progress=progress)
    assert reported[:2] == ["measuring small on dev 0/120", "training an adversary (λ 0.1, seed +0) 1/480"]
    assert reported[-1] == "measuring small on dev 120/120"
