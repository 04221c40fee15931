"""Plans of models, and training that resumes where it was stopped."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
import torch

from attnaudit.data import load
from attnaudit.errors import ModelError
from attnaudit.models import checkpoint_folder
from attnaudit.models.training_job import TrainingData, TrainingJob
from attnaudit.models.training_state import TrainingStateFile
from attnaudit.models.word_vectors import Vectors
from attnaudit.research.reproduction import train_models
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.model_plans import VARIANTS, Plan, architecture, jain_wallace
from attnaudit.research.reproduction.papers.tutek_snajder_models import plan as tutek_snajder
from attnaudit.research.reproduction.reproduce import QUICK_TRAINING, quick
from tests.units.research.reproduction.small_corpus import data, plan


def train(tmp_path: Path, *plans: Plan) -> tuple[dict[Plan, train_models.TrainedPlan], dict[Plan, str]]:
    prepared = {"movie-reviews": data(tmp_path / "data")}
    return train_models.train_all(plans, prepared, tmp_path / "models")


def test_equal_plans_share_a_folder_and_others_do_not() -> None:
    assert plan(0).folder == plan(0).folder
    others = {plan(1), plan(0, epochs=3), plan(0, variant="frozen_attention"), plan(0, variant="twin", value=0.1)}
    assert len({plan(0).folder, *(one.folder for one in others)}) == 5
    assert plan(0).with_seed(1) == plan(1)
    assert plan(0, variant="twin", value=0.1).base == plan(0)
    assert plan(0).base is None


def test_word_vectors_change_the_digest_but_their_path_does_not() -> None:
    here = Vectors(path="here.txt", width=50, sha256="1")
    one = plan().starting_from(here)
    assert one.architecture.embedding_size == 50
    assert one.digest != plan().digest
    assert plan().starting_from(msgspec.structs.replace(here, path="there.txt")).digest == one.digest
    assert plan().starting_from(msgspec.structs.replace(here, sha256="2")).digest != one.digest
    assert one.architecture.hidden_size == 50  # as wide as an embedding before, too
    assert one.equal_widths
    assert tutek_snajder("sst", "tying", "additive").equal_widths
    assert not jain_wallace("sst", encoder="bilstm", alignment="additive").equal_widths
    both = tutek_snajder("sst", "tying", "additive").starting_from(here).architecture
    assert (both.embedding_size, both.hidden_size) == (50, 25)
    other = jain_wallace("sst", encoder="bilstm", alignment="additive").starting_from(here).architecture
    assert (other.embedding_size, other.hidden_size) == (50, 128)
    asking = jain_wallace("babi-1", encoder="bilstm", alignment="additive")
    assert asking.starting_from(here) == asking


def test_only_models_with_random_embeddings_have_the_random_settings_of_their_corpus() -> None:
    here = Vectors(path="here.txt", width=50, sha256="1")
    of_news = jain_wallace("20news", encoder="bilstm", alignment="additive")
    assert of_news.starting_from(None) == of_news.with_settings(epochs=16, word_dropout=0.2)
    of_vectors = of_news.starting_from(here).settings
    assert (of_vectors.epochs, of_vectors.word_dropout) == (8, 0.0)
    adversary = of_news.as_variant("adversary", 0.001)
    assert adversary.starting_from(None).base == of_news.starting_from(None)
    assert quick(of_news).settings.epochs == quick(of_news, here).settings.epochs == QUICK_TRAINING["epochs"]
    assert quick(of_news, here).architecture.embedding_size == 50
    of_sentences = jain_wallace("sst", encoder="bilstm", alignment="additive")
    assert of_sentences.starting_from(None) == of_sentences


def test_later_fields_with_their_defaults_do_not_change_older_digests() -> None:
    parts = msgspec.to_builtins(plan())
    for later in ("vectors", "attention_rate", "tying_norm"):
        del parts["settings"][later]
    del parts["divergence"]
    before = hashlib.sha256(msgspec.json.encode([1, parts], order="sorted")).hexdigest()
    assert plan().digest == before
    assert plan().with_settings(attention_rate=10.0).digest != before


def test_an_unknown_variant_is_reported_with_the_nearest_name() -> None:
    with pytest.raises(ModelError, match="Did you mean 'frozen_attention'"):
        plan(0, variant="frozen_atention").check()


def test_an_unknown_part_of_a_model_is_reported() -> None:
    with pytest.raises(ModelError, match=r"hiden_size=3\. Did you mean 'hidden_size'"):
        architecture(corpus("sst"), hiden_size=3)
    with pytest.raises(ModelError, match="Unknown encoder 'bilstn'"):
        jain_wallace("sst", encoder="bilstn", alignment="additive")


def test_a_killed_run_resumes_without_training_a_finished_model_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, failed = train(tmp_path, plan(0), plan(1))
    assert failed == {}
    (tmp_path / "models" / plan(1).folder / train_models.RECORD).unlink()  # killed before the record, which comes last
    again = []
    real = train_models.train
    monkeypatch.setattr(train_models, "train", lambda *a, **k: again.append(1) or real(*a, **k))
    second, _ = train(tmp_path, plan(0), plan(1), plan(2))
    assert len(again) == 2
    assert second[plan(0)] == first[plan(0)]
    assert second[plan(1)].test == first[plan(1)].test


def test_finished_models_are_reported_at_once_so_that_they_do_not_count_for_the_time_left(tmp_path: Path) -> None:
    train(tmp_path, plan(0, variant="twin", value=0.1))
    reported: list[tuple[int, int | None]] = []
    plans = [plan(0, variant="twin", value=0.1), plan(1)]
    found, _ = train_models.train_all(
        plans,
        {"movie-reviews": data(tmp_path / "data")},
        tmp_path / "models",
        progress=lambda done, total, _folder: reported.append((done, total)),
    )
    assert reported == [(2, 3), (3, 3)]  # a twin and its base are finished
    assert len(found) == 3


def test_an_interrupted_model_resumes_from_its_last_epoch(tmp_path: Path) -> None:
    interrupted = plan(0, epochs=6)
    complete, _ = train(tmp_path / "complete", interrupted)
    task = train_models.Task(plan=interrupted, data=data(tmp_path / "data"), models=str(tmp_path / "models"))
    state_file = TrainingStateFile(
        path=tmp_path / "models" / interrupted.folder / train_models.STATE_FILE,
        key=train_models._key(task),
        save_interval=0,
    )

    def killed(_done: int, _total: int, note: str) -> None:
        if note.startswith("epoch 4"):
            raise KeyboardInterrupt

    job = TrainingJob(
        data=TrainingData(**{part: load(task.data.path(part)) for part in ("train", "dev")}),
        architecture=interrupted.architecture,
        settings=interrupted.settings,
        state_file=state_file,
        progress=killed,
    )
    with pytest.raises(KeyboardInterrupt):
        train_models.train(job)
    kept = state_file.load()
    assert kept is not None
    assert len(kept["history"]) == 4
    after, _ = train(tmp_path, interrupted)
    assert (after[interrupted].dev, after[interrupted].test) == (complete[interrupted].dev, complete[interrupted].test)
    ours, theirs = (
        folder / "models" / interrupted.folder / checkpoint_folder.WEIGHTS
        for folder in (tmp_path, tmp_path / "complete")
    )
    assert ours.read_bytes() == theirs.read_bytes()
    assert not state_file.path.exists()


def test_changed_data_trains_the_model_again(tmp_path: Path) -> None:
    train(tmp_path, plan(0))
    task = train_models.Task(plan=plan(0), data=data(tmp_path / "data"), models=str(tmp_path / "models"))
    assert train_models.finished(task) is not None
    changed = msgspec.structs.replace(task, data=msgspec.structs.replace(task.data, sha256="other"))
    assert train_models.finished(changed) is None


def test_a_model_that_cannot_be_trained_gives_its_reason_and_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = plan(0).with_settings(learning_rate=-1.0)
    found, failed = train(tmp_path, bad, plan(1))
    assert list(found) == [plan(1)]
    assert "learning rate" in failed[bad]


def test_variants_are_made_from_the_plain_model(tmp_path: Path) -> None:
    frozen, fixed = plan(0, variant="frozen_attention"), plan(0, variant="fixed_representation")
    twin = plan(0, variant="twin", value=0.05, epochs=2)
    found, failed = train(tmp_path, frozen, fixed, twin)
    assert failed == {}
    assert plan(0) in found

    def state(one: Plan) -> dict[str, torch.Tensor]:
        return checkpoint_folder.load_model(tmp_path / "models" / one.folder)[0].state_dict()

    base = state(plan(0))
    for one, kept, moved in ((frozen, "attention", "encoder"), (fixed, "encoder", "attention")):
        for name, tensor in state(one).items():
            if name.startswith(kept):
                assert torch.equal(tensor, base[name]), name
        assert any(not torch.equal(t, base[n]) for n, t in state(one).items() if n.startswith(moved))
    assert all(torch.isfinite(tensor).all() for tensor in state(twin).values())


def test_every_variant_is_described() -> None:
    assert all(one.description for one in VARIANTS.values())
