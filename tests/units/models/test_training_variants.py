"""Variants of a training job: which parts are copied, which attention is imposed, and what an adversary reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch

from attnaudit.errors import AuditError, ModelError
from attnaudit.metrics import jensen_shannon, total_variation
from attnaudit.models.architecture import Planted
from attnaudit.models.encoded_rows import EncodedRows
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training import Trained, train
from attnaudit.models.training_job import TrainingData, TrainingJob
from attnaudit.models.training_variants import (
    as_adversary,
    context_free,
    copy_and_freeze,
    uniform_attention,
    with_frozen_parts,
    with_imposed_attention,
    with_uniform_attention,
    with_untrained_attention,
)
from attnaudit.models.twin_adversary import probabilities, twin_loss
from attnaudit.retraining import LONGER, PATIENCE
from tests.small_checkpoints import QUICK, SMALL, save_trained

PARTS = ("embedding", "encoder", "attention", "decoder")


class Base(NamedTuple):
    """A trained model, and the job that trains a plain copy of it."""

    trained: Trained
    job: TrainingJob

    @property
    def model(self) -> PooledClassifier:
        return self.trained.model

    def settings(self, **changes: object) -> TrainingJob:
        """The job with changed settings."""
        return replace(self.job, settings=msgspec.structs.replace(self.job.settings, **changes))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("trained")
    trained, training, dev = save_trained(folder)
    data = TrainingData(train=training, dev=dev)
    return Base(trained, TrainingJob(data=data, architecture=SMALL, settings=QUICK, vocabulary=trained.vocabulary))


def test_untrained_attention_keeps_its_initial_values(base: Base) -> None:
    trained = train(with_untrained_attention(base.job))
    torch.manual_seed(base.job.settings.seed)
    start = PooledClassifier(base.job.architecture, vocabulary_size=len(trained.vocabulary), classes=2)
    assert same_parameters(trained.model, start, "attention")
    assert not same_parameters(trained.model, start, "decoder")


def trace_dev(model: PooledClassifier, base: Base) -> ForwardPass:
    dev = base.job.data.dev
    rows = EncodedRows(dev, base.trained.vocabulary, base.trained.classes)
    with torch.no_grad():
        return model.trace(*rows.batch(range(len(dev.instances))))


def distances(model: PooledClassifier, base: Base) -> tuple[float, float]:
    """Mean TVD of the outputs, and mean JSD of the attention, from those of the base model on dev."""
    ours, theirs = trace_dev(model, base), trace_dev(base.model, base)
    tvd = total_variation(probabilities(ours.logits), probabilities(theirs.logits))
    return tvd.mean().item(), jensen_shannon(ours.weights, theirs.weights, ours.real).mean().item()


def same_parameters(first: PooledClassifier, second: PooledClassifier, part: str) -> bool:
    pairs = zip(getattr(first, part).parameters(), getattr(second, part).parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("projection", ["softmax", "sparsemax"])
def test_uniform_attention_is_one_in_n_after_training(base: Base, projection: str) -> None:
    job = replace(base.job, architecture=msgspec.structs.replace(SMALL, projection=projection))
    copy = train(with_uniform_attention(job))
    traced = trace_dev(copy.model, base)
    torch.testing.assert_close(traced.weights, traced.real / traced.real.sum(1, keepdim=True))
    assert copy.dev.accuracy > 0.7


def test_imposed_weights_are_the_guides_and_the_models_own_attention_is_not_trained(base: Base) -> None:
    copy = train(with_imposed_attention(replace(base.job, architecture=context_free(SMALL)), base.model))
    traced = trace_dev(copy.model, base)
    assert torch.equal(traced.weights, trace_dev(base.model, base).weights)
    context = torch.einsum("bt,btm->bm", traced.weights, traced.hidden)
    torch.testing.assert_close(traced.logits, copy.model.decoder(context))
    assert copy.dev.accuracy > 0.7
    torch.manual_seed(QUICK.seed)
    untrained = PooledClassifier(context_free(SMALL), vocabulary_size=len(base.trained.vocabulary), classes=2)
    assert same_parameters(copy.model, untrained, "attention")
    assert not same_parameters(copy.model, untrained, "encoder")
    assert not any("guide" in name or "imposed" in name for name in copy.model.state_dict())


def test_the_guide_reads_the_text_without_word_dropout(base: Base) -> None:
    unknown_shares = []

    def guide(ids: torch.Tensor, mask: torch.Tensor, special: torch.Tensor, _query: object) -> torch.Tensor:
        unknown_shares.append((ids == 1).float().mean().item())
        return base.model.trace(ids, mask, special).weights

    vocabulary = base.trained.vocabulary
    model = PooledClassifier(SMALL, vocabulary_size=len(vocabulary), classes=2, word_dropout=0.9).train()
    model.imposed_attention = guide
    traced = model.trace(*EncodedRows(base.job.data.dev, vocabulary, base.trained.classes).batch(range(8)))
    assert (traced.ids == 1).float().mean().item() > 0.5
    assert unknown_shares[0] < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("divergence", ["kl", "jsd"])
def test_an_adversary_gives_the_same_outputs_and_attends_elsewhere(base: Base, divergence: str) -> None:
    def adversary_distances(weight: float) -> tuple[float, float]:
        job = as_adversary(base.settings(epochs=6), base.model, weight=weight, divergence=divergence)
        return distances(train(job).model, base)

    tvd, jsd_without = adversary_distances(0.0)
    _, jsd_small = adversary_distances(0.03)
    _, jsd_large = adversary_distances(0.3)
    assert tvd < 0.1
    assert jsd_without < jsd_small < jsd_large
    assert jsd_large > 0.2


@pytest.mark.slow
def test_a_frozen_adversary_trains_attention_alone(base: Base) -> None:
    plain, moved = (
        train(as_adversary(base.job, base.model, weight=weight, frozen=True)).model for weight in (0.0, 3.0)
    )
    for part in ("embedding", "encoder", "decoder"):
        assert same_parameters(moved, base.model, part)
    assert not same_parameters(moved, base.model, "attention")
    assert distances(plain, base)[0] < 0.1
    assert distances(moved, base)[1] > distances(plain, base)[1] + 0.05


def test_the_epoch_of_an_adversary_has_the_smallest_loss_on_dev(base: Base) -> None:
    losses = []
    for epochs in (1, 2, 3):
        copy = train(as_adversary(base.settings(epochs=epochs), base.model, weight=0.05, longer=1))
        losses.append(twin_loss(base.model, weight=0.05)(copy.model, trace_dev(copy.model, base)).mean().item())
    assert losses == sorted(losses, reverse=True)
    assert copy.chosen_epoch == 1 + losses.index(min(losses))


@pytest.mark.slow
def test_an_adversary_is_trained_for_longer_until_its_loss_stops_falling(base: Base) -> None:
    steps: list[tuple[int, int]] = []
    job = replace(base.job, progress=lambda done, total, _note: steps.append((done, total)))
    copy = train(as_adversary(job, base.model, weight=0.05))
    epochs = LONGER * QUICK.epochs
    assert QUICK.epochs < len(copy.history) == min(copy.chosen_epoch + PATIENCE, epochs)
    assert steps[-1][0] == steps[-1][1]
    rows = len(base.job.data.train.instances)
    assert {total for _, total in steps} == {epochs * -(-rows // QUICK.batch_size)}


def test_attention_without_parameters_has_no_frozen_adversary(base: Base) -> None:
    uniform = train(with_uniform_attention(base.settings(epochs=1)))
    with pytest.raises(ModelError, match="no parameters"):
        as_adversary(base.job, uniform.model, weight=0.1, frozen=True)
    with pytest.raises(AuditError, match="Did you mean 'kl'"):
        twin_loss(base.model, weight=0.1, divergence="kk")


@pytest.mark.parametrize("parts", [("attention",), ("embedding", "encoder"), ("embedding", "encoder", "decoder")])
def test_frozen_parts_are_those_of_the_base_and_the_others_are_new(base: Base, parts: tuple[str, ...]) -> None:
    for job in (
        replace(base.settings(seed=5, epochs=1), prepare=copy_and_freeze(base.model, *parts)),
        with_frozen_parts(base.settings(epochs=1), base.model, *parts),
    ):
        copy = train(job)
        for part in PARTS:
            assert same_parameters(copy.model, base.model, part) == (part in parts)


def test_parts_of_another_size_are_refused(base: Base) -> None:
    larger = msgspec.structs.replace(SMALL, hidden_size=13)
    with pytest.raises(ModelError, match="encoder does not fit"):
        train(replace(base.job, architecture=larger, prepare=copy_and_freeze(base.model, "encoder")))


def test_a_model_with_planted_states_cannot_be_retrained() -> None:
    planted = msgspec.structs.replace(SMALL, planted=Planted())
    for change in (uniform_attention, context_free):
        with pytest.raises(ModelError, match="planted"):
            change(planted)
