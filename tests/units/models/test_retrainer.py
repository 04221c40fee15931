"""Copies that are trained anew: what is kept, what is imposed, what is learnt away from."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from attnaudit.conformance import quick
from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.instances import Dataset
from attnaudit.metrics import jensen_shannon, total_variation
from attnaudit.models import checkpoint_folder
from attnaudit.models.encoded_rows import Rows
from attnaudit.models.pooled_classifier import Architecture, Pass, Planted, PooledClassifier
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.retrainer import context_free, keep, train_imposed, train_twin, train_uniform, uniform
from attnaudit.models.training import Settings, Trained, train
from attnaudit.models.twin_adversary import probabilities, twin_loss
from attnaudit.retraining import LONGER, PATIENCE, Retraining
from tests.small_checkpoints import QUICK, SMALL, save_trained

Base = tuple[Trained, Dataset, Dataset]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def base(folder: Path) -> Base:
    return save_trained(folder)


@pytest.fixture
def adapter(base: Base, folder: Path) -> ReferenceModel:
    return checkpoint_folder.load(folder / "model")


def traced(model: PooledClassifier, base: Base) -> Pass:
    trained, _, dev = base
    with torch.no_grad():
        return model.trace(*Rows(dev, trained.vocabulary, trained.classes).batch(range(len(dev.instances))))


def distances(model: PooledClassifier, base: Base) -> tuple[float, float]:
    """Mean TVD of the outputs and mean JSD of the attentions to the base's, on dev."""
    ours, theirs = traced(model, base), traced(base[0].model, base)
    tvd = total_variation(probabilities(ours.logits), probabilities(theirs.logits))
    return tvd.mean().item(), jensen_shannon(ours.weights, theirs.weights, ours.real).mean().item()


def parameters(model: PooledClassifier, part: str) -> list[torch.Tensor]:
    return list(getattr(model, part).parameters())


def same(one: PooledClassifier, other: PooledClassifier, part: str) -> bool:
    pairs = zip(parameters(one, part), parameters(other, part), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("projection", ["softmax", "sparsemax"])
def test_uniform_attention_is_one_in_n_after_training(base: Base, projection: str) -> None:
    _, training, dev = base
    architecture = msgspec.structs.replace(SMALL, projection=projection)
    made = train_uniform(training, dev, architecture=architecture, settings=QUICK)
    found = traced(made.model, base)
    torch.testing.assert_close(found.weights, found.real / found.real.sum(1, keepdim=True))
    assert made.dev.accuracy > 0.7


def test_imposed_weights_are_the_guides_and_their_own_attention_is_not_trained(base: Base) -> None:
    trained, training, dev = base
    made = train_imposed(
        trained.model,
        training,
        dev,
        architecture=context_free(SMALL),
        settings=QUICK,
        vocabulary=trained.vocabulary,
    )
    found = traced(made.model, base)
    assert torch.equal(found.weights, traced(trained.model, base).weights)
    context = torch.einsum("bt,btm->bm", found.weights, found.hidden)
    torch.testing.assert_close(found.logits, made.model.decoder(context))
    assert made.dev.accuracy > 0.7
    torch.manual_seed(QUICK.seed)
    fresh = PooledClassifier(context_free(SMALL), vocabulary_size=len(trained.vocabulary), classes=2)
    assert same(made.model, fresh, "attention")
    assert not same(made.model, fresh, "encoder")
    assert not any("guide" in name or "imposed" in name for name in made.model.state_dict())


def test_words_that_are_dropped_in_training_do_not_change_what_is_imposed(base: Base) -> None:
    trained, _, dev = base
    seen = []

    def guide(ids: torch.Tensor, mask: torch.Tensor, special: torch.Tensor, _query: object) -> torch.Tensor:
        seen.append((ids == 1).float().mean().item())
        return trained.model.trace(ids, mask, special).weights

    model = PooledClassifier(SMALL, vocabulary_size=len(trained.vocabulary), classes=2, word_dropout=0.9).train()
    model.imposed = guide
    found = model.trace(*Rows(dev, trained.vocabulary, trained.classes).batch(range(8)))
    assert (found.ids == 1).float().mean().item() > 0.5
    assert seen[0] < 0.2


@pytest.mark.parametrize("divergence", ["kl", "jsd"])
def test_an_adversary_answers_alike_without_a_divergence_and_attends_elsewhere_with_one(
    base: Base, divergence: str
) -> None:
    trained, training, dev = base

    def found(weight: float) -> tuple[float, float]:
        made = train_twin(
            trained.model,
            training,
            dev,
            weight=weight,
            divergence=divergence,
            settings=msgspec.structs.replace(QUICK, epochs=6),
            vocabulary=trained.vocabulary,
        )
        return distances(made.model, base)

    alike, plain = found(0.0)
    _, some = found(0.03)
    _, more = found(0.3)
    assert alike < 0.1
    assert plain < some < more
    assert more > 0.2


def test_a_frozen_adversary_trains_attention_alone(base: Base) -> None:
    trained, training, dev = base

    def found(weight: float) -> Trained:
        return train_twin(
            trained.model,
            training,
            dev,
            weight=weight,
            frozen=True,
            settings=QUICK,
            vocabulary=trained.vocabulary,
        )

    plain, moved = found(0.0).model, found(3.0).model
    for part in ("embedding", "encoder", "decoder"):
        assert same(moved, trained.model, part)
    assert not same(moved, trained.model, "attention")
    assert distances(plain, base)[0] < 0.1
    assert distances(moved, base)[1] > distances(plain, base)[1] + 0.05


def test_the_epoch_of_an_adversary_is_that_with_the_smallest_loss_on_dev(base: Base) -> None:
    trained, training, dev = base
    losses = []
    for epochs in (1, 2, 3):
        settings = msgspec.structs.replace(QUICK, epochs=epochs)
        made = train_twin(
            trained.model, training, dev, weight=0.05, longer=1, settings=settings, vocabulary=trained.vocabulary
        )
        losses.append(twin_loss(trained.model, weight=0.05)(made.model, traced(made.model, base)).mean().item())
    assert losses == sorted(losses, reverse=True)
    assert made.chosen == 1 + losses.index(min(losses))


def test_an_adversary_is_trained_for_longer_until_it_gains_no_more(base: Base) -> None:
    trained, training, dev = base
    seen: list[tuple[int, int]] = []
    made = train_twin(
        trained.model,
        training,
        dev,
        weight=0.05,
        settings=QUICK,
        vocabulary=trained.vocabulary,
        progress=lambda done, total, _note: seen.append((done, total)),
    )
    epochs = LONGER * QUICK.epochs
    assert QUICK.epochs < len(made.history) == min(made.chosen + PATIENCE, epochs)
    assert seen[-1][0] == seen[-1][1]
    assert {total for _, total in seen} == {epochs * -(-len(training.instances) // QUICK.batch_size)}


def test_attention_without_parameters_has_no_frozen_adversary(base: Base) -> None:
    trained, training, dev = base
    plain = train_uniform(training, dev, architecture=SMALL, settings=msgspec.structs.replace(QUICK, epochs=1))
    with pytest.raises(ModelError, match="no parameters"):
        train_twin(plain.model, training, dev, weight=0.1, frozen=True, settings=QUICK, vocabulary=trained.vocabulary)
    with pytest.raises(AuditError, match="Did you mean 'kl'"):
        twin_loss(trained.model, weight=0.1, divergence="kk")


@pytest.mark.parametrize("parts", [("attention",), ("embedding", "encoder"), ("embedding", "encoder", "decoder")])
def test_kept_parts_are_the_bases_and_the_others_are_new(base: Base, parts: tuple[str, ...]) -> None:
    trained, training, dev = base
    settings = msgspec.structs.replace(QUICK, seed=5, epochs=1)
    made = train(training, dev, architecture=SMALL, settings=settings, prepare=keep(trained.model, *parts))
    for part in ("embedding", "encoder", "attention", "decoder"):
        assert same(made.model, trained.model, part) == (part in parts)


def test_parts_of_another_size_are_refused(base: Base) -> None:
    trained, training, dev = base
    larger = msgspec.structs.replace(SMALL, hidden_size=13)
    with pytest.raises(ModelError, match="encoder does not fit"):
        train(training, dev, architecture=larger, settings=QUICK, prepare=keep(trained.model, "encoder"))


def test_planted_states_are_not_trained_anew() -> None:
    planted = msgspec.structs.replace(SMALL, planted=Planted())
    for change in (uniform, context_free):
        with pytest.raises(ModelError, match="planted"):
            change(planted)


def test_a_copy_with_the_same_seed_is_the_model_and_another_seed_gives_another(
    base: Base, adapter: ReferenceModel
) -> None:
    copy = adapter.retrain(Retraining())
    for part in ("embedding", "encoder", "attention", "decoder"):
        assert same(copy.model, adapter.model, part)
    other = adapter.retrain(Retraining(seed=1))
    assert not same(other.model, adapter.model, "encoder")
    assert other.vocabulary is adapter.vocabulary
    assert adapter.retrain(Retraining(seed=1)) is other
    assert adapter.capabilities.retrains


@pytest.mark.parametrize(
    "retraining",
    [
        Retraining(encoder="mlp", attention="base"),
        Retraining(attention="base"),
        Retraining(encoder="mlp", attention="adversary", weight=0.1),
    ],
    ids=lambda one: one.text,
)
def test_a_guided_copy_shows_and_uses_its_guides_weights(
    base: Base, adapter: ReferenceModel, retraining: Retraining
) -> None:
    dev = base[2].instances[:12]
    copy = adapter.retrain(retraining)
    guide = (
        adapter if retraining.attention == "base" else adapter.retrain(Retraining(attention="adversary", weight=0.1))
    )
    with torch.no_grad():
        inputs = copy.collate(dev)
        ours, theirs = copy.run(inputs, hidden=True), guide.run(inputs)
    weights = ours.attention["attention"]
    assert torch.equal(weights, theirs.attention["attention"])
    context = (weights[:, 0] @ ours.hidden["attention"])[:, 0]
    torch.testing.assert_close(ours.logits, copy.decoder(context))
    assert all(one.outcome != "failed" for one in quick(copy, dev))


def write_card(folder: Path, **changes: object) -> ReferenceModel:
    path = folder / "model" / "attnaudit.json"
    before = path.read_text(encoding="utf-8")
    card = json.loads(before)
    card["training"] |= changes
    path.write_text(json.dumps(card), encoding="utf-8")
    try:
        return checkpoint_folder.load(folder / "model")
    finally:
        path.write_text(before, encoding="utf-8")


def test_data_that_the_card_does_not_name_or_that_changed_are_asked_for(base: Base, folder: Path) -> None:
    with pytest.raises(DataError, match=r'does not name the data.*\(train\).*train="..."'):
        write_card(folder, data={}).retrain(Retraining())
    data = json.loads((folder / "model" / "attnaudit.json").read_text(encoding="utf-8"))["training"]["data"]
    changed = {**data, "dev": {**data["dev"], "sha256": "0"}}
    with pytest.raises(DataError, match=r"no longer the rows.*dev="):
        write_card(folder, data=changed).retrain(Retraining())
    gone = {**data, "train": {**data["train"], "source": "gone.jsonl"}}
    with pytest.raises(DataError, match=r"gone.jsonl.*Give the check train="):
        write_card(folder, data=gone).retrain(Retraining())
    with pytest.raises(ModelError, match="settings"):
        write_card(folder, settings={"epochs": "many"}).retrain(Retraining())
    named = Retraining(train=str(folder / "train.jsonl"), dev=str(folder / "dev.jsonl"))
    assert same(write_card(folder, data={}).retrain(named).model, base[0].model, "encoder")


def test_data_of_other_classes_are_refused(adapter: ReferenceModel, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"text": "a", "label": "up"}\n{"text": "b", "label": "down"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="its labels are 'down', 'up'; expected the model's classes"):
        adapter.retrain(Retraining(train=str(path)))


def test_a_registered_name_is_loaded_by_name(base: Base, folder: Path) -> None:
    from attnaudit.data import load

    data = {
        part: {"name": f"planted-cue-{part}", "source": "elsewhere", "sha256": load(f"planted-cue-{part}").sha256()}
        for part in ("train", "dev")
    }
    one = write_card(folder, data=data, settings=msgspec.to_builtins(Settings(epochs=1, batch_size=256)))
    assert one.retrain(Retraining(encoder="mlp", attention="uniform")).model.architecture == Architecture(
        encoder="average", alignment="uniform", embedding_size=12, hidden_size=12, attention_size=8
    )
