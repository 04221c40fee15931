"""A reference model as an adapter: how it is retrained, and on which data."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from attnaudit.conformance import quick
from attnaudit.data import load
from attnaudit.engine.measuring import measure
from attnaudit.errors import DataError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.training import Trained
from attnaudit.models.training_job import Settings
from attnaudit.models.vocabulary import RESERVED, Vocabulary
from attnaudit.retraining import Retraining
from tests.small_checkpoints import save_trained
from tests.units.models.test_training_variants import PARTS, same_parameters

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


def test_a_copy_with_the_same_seed_is_the_model_and_another_seed_gives_another(adapter: ReferenceModel) -> None:
    copy = adapter.retrain(Retraining())
    for part in PARTS:
        assert same_parameters(copy.model, adapter.model, part)
    other = adapter.retrain(Retraining(seed=1))
    assert not same_parameters(other.model, adapter.model, "encoder")
    assert other.vocabulary is adapter.vocabulary
    assert adapter.retrain(Retraining(seed=1)) is other
    assert adapter.capabilities.retrains


def test_the_influence_on_states_of_a_transformer_is_taken_before_its_last_normalisation() -> None:
    torch.manual_seed(0)
    vocabulary = Vocabulary([*RESERVED, "a", "b", "c"])
    parts = Architecture(encoder="transformer", embedding_size=6, hidden_size=6, attention_size=6)
    model = PooledClassifier(parts, vocabulary_size=len(vocabulary), classes=2).eval()
    adapter = ReferenceModel(model, vocabulary, ("x", "y"))
    data = Dataset(name="d", source="d", description="", instances=(Instance(id="0", text="a b c", label="x"),))
    measurements = measure(adapter, data, ["influence.hidden"], model="m", seed=0)[0]
    found = measurements.scalar("influence.hidden.own_share")[0]
    ids = torch.tensor([vocabulary.encode("a b c").ids])
    embedded = model.embedding(ids).detach().requires_grad_()
    mask = torch.ones_like(ids, dtype=torch.bool)
    before = model.encoder.with_unnormalised(embedded, mask)[1]  # type: ignore[operator]
    shares = []
    for p in (1, 2, 3):
        (slope,) = torch.autograd.grad(before[0, p].norm(), embedded, retain_graph=True)
        norms = slope[0, 1:4].norm(dim=-1)
        shares.append(float(norms[p - 1] / norms.sum()))
    assert found == pytest.approx(sum(shares) / 3, abs=1e-5)


@pytest.mark.parametrize(
    "retraining",
    [
        Retraining(encoder="mlp", attention="base"),
        Retraining(attention="base"),
        pytest.param(Retraining(encoder="mlp", attention="adversary", weight=0.1), marks=pytest.mark.slow),
    ],
    ids=lambda retraining: retraining.text,
)
def test_a_guided_copy_uses_the_weights_of_its_guide(
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
    assert all(result.outcome != "fail" for result in quick(copy, dev))


def load_with_card(folder: Path, **changes: object) -> ReferenceModel:
    """Load the model with changes to the training record of its card, which is restored afterwards."""
    path = folder / "model" / "attnaudit.json"
    before = path.read_text(encoding="utf-8")
    card = json.loads(before)
    card["training"] |= changes
    path.write_text(json.dumps(card), encoding="utf-8")
    try:
        return checkpoint_folder.load(folder / "model")
    finally:
        path.write_text(before, encoding="utf-8")


def test_data_that_the_card_does_not_name_or_that_changed_are_refused(base: Base, folder: Path) -> None:
    with pytest.raises(DataError, match=r'does not name its train data.*train="..."'):
        load_with_card(folder, data={}).retrain(Retraining())
    data = json.loads((folder / "model" / "attnaudit.json").read_text(encoding="utf-8"))["training"]["data"]
    changed = {**data, "dev": {**data["dev"], "sha256": "0"}}
    with pytest.raises(DataError, match=r"no longer the dev rows.*dev="):
        load_with_card(folder, data=changed).retrain(Retraining())
    gone = {**data, "train": {**data["train"], "source": "gone.jsonl"}}
    with pytest.raises(DataError, match=r"gone.jsonl.*Pass train="):
        load_with_card(folder, data=gone).retrain(Retraining())
    with pytest.raises(ModelError, match="does not contain the settings"):
        load_with_card(folder, settings={"epochs": "many"}).retrain(Retraining())
    named = Retraining(train=str(folder / "train.jsonl"), dev=str(folder / "dev.jsonl"))
    copy = load_with_card(folder, data={}).retrain(named)
    assert same_parameters(copy.model, base[0].model, "encoder")


def test_data_of_other_classes_are_refused(adapter: ReferenceModel, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"text": "a", "label": "up"}\n{"text": "b", "label": "down"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="its labels are 'down', 'up'; expected all of the model's classes"):
        adapter.retrain(Retraining(train=str(path)))


def test_registered_data_are_loaded_by_name(base: Base, folder: Path) -> None:
    data = {
        part: {"name": f"planted-cue-{part}", "source": "elsewhere", "sha256": load(f"planted-cue-{part}").sha256()}
        for part in ("train", "dev")
    }
    model = load_with_card(folder, data=data, settings=msgspec.to_builtins(Settings(epochs=1, batch_size=256)))
    assert model.retrain(Retraining(encoder="mlp", attention="uniform")).model.architecture == Architecture(
        encoder="average", alignment="uniform", embedding_size=12, hidden_size=12, attention_size=8
    )
