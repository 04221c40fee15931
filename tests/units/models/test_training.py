"""Training learns, is deterministic, chooses the epoch on dev, and refuses data and settings that it cannot use."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.models import regularisers
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoded_rows import EncodedRows
from attnaudit.models.length_batches import shuffled_batches
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import Trained, _optimizer, _weighted_sigmoid_loss, train
from attnaudit.models.training_job import Settings, TrainingData, TrainingJob
from attnaudit.models.vocabulary import Vocabulary

TINY = Architecture(embedding_size=16, hidden_size=16, attention_size=8)
FAST = Settings(epochs=2, batch_size=16, learning_rate=1e-2, min_count=1)


def sentences(n: int, *, seed: int, names: tuple[str, ...] = ("bad", "good")) -> Dataset:
    """Sentences of filler words, each with one word that reveals the label."""
    draw = random.Random(seed)
    rows = []
    for index in range(n):
        label = names[index % len(names)]
        filler = [f"w{draw.randrange(20)}" for _ in range(draw.randint(1, 9))]
        filler.insert(draw.randint(0, len(filler)), f"{label}{draw.randrange(3)}")
        rows.append(Instance(id=f"{seed}-{index}", text=" ".join(filler), label=label, where=f"made.jsonl:{index + 1}"))
    return Dataset(name="made", source="made.jsonl", description="", instances=tuple(rows), classes=names)


TRAIN, DEV, TEST = sentences(320, seed=1), sentences(80, seed=2), sentences(80, seed=3)
JOB = TrainingJob(data=TrainingData(train=TRAIN, dev=DEV), architecture=TINY, settings=FAST)


def job(data: TrainingData = JOB.data, architecture: Architecture = TINY, **settings: Any) -> TrainingJob:
    """JOB with other data or another architecture, and with changed settings."""
    return TrainingJob(data=data, architecture=architecture, settings=msgspec.structs.replace(FAST, **settings))


def weights(trained: Trained) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in trained.model.state_dict().values())


def test_a_tiny_model_learns_and_is_evaluated_on_test() -> None:
    trained = train(job(TrainingData(train=TRAIN, dev=DEV, test=TEST)))
    assert trained.test is not None
    assert trained.test.accuracy >= 0.95
    assert trained.test.n == 80
    assert trained.classes == ("bad", "good")
    assert not trained.model.training


def test_a_model_with_three_classes_learns() -> None:
    names = ("a", "b", "c")
    data = TrainingData(train=sentences(330, seed=1, names=names), dev=sentences(90, seed=2, names=names))
    trained = train(job(data, msgspec.structs.replace(TINY, encoder="average", projection="sparsemax")))
    assert trained.dev.accuracy >= 0.95
    assert trained.test is None


def test_the_seed_decides_the_model() -> None:
    noisy = {"epochs": 1, "dropout": 0.2, "word_dropout": 0.2}
    first = train(job(**noisy))
    torch.rand(5)
    second = train(job(**noisy))
    other = train(job(**noisy, seed=1))
    assert weights(first) == weights(second)
    assert first.history == second.history
    assert weights(first) != weights(other)


def test_the_random_state_of_the_caller_does_not_change() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    train(job(TrainingData(train=sentences(32, seed=1), dev=DEV), epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_the_chosen_epoch_is_the_first_with_the_best_dev_score() -> None:
    trained = train(job(epochs=5))
    scores = [(epoch.dev.f1 or 0.0, epoch.dev.accuracy) for epoch in trained.history]
    assert [epoch.number for epoch in trained.history] == [1, 2, 3, 4, 5]
    assert trained.chosen_epoch == scores.index(max(scores)) + 1
    assert trained.dev == trained.history[trained.chosen_epoch - 1].dev


def test_test_data_do_not_change_the_chosen_epoch() -> None:
    flipped = dataclasses.replace(
        TEST,
        instances=tuple(dataclasses.replace(i, label="bad" if i.label == "good" else "good") for i in TEST.instances),
    )
    right, wrong = (train(job(TrainingData(train=TRAIN, dev=DEV, test=test), epochs=3)) for test in (TEST, flipped))
    assert weights(right) == weights(wrong)
    assert right.test is not None
    assert wrong.test is not None
    assert right.test.accuracy == pytest.approx(1 - wrong.test.accuracy)


def test_the_embedding_of_a_trained_model_fits_float16() -> None:
    weight = train(JOB).model.embedding.weight
    assert torch.equal(weight, weight.half().float())


def test_progress_counts_every_batch() -> None:
    seen: list[tuple[int, int, str]] = []
    train(dataclasses.replace(JOB, progress=lambda *step: seen.append(step)))
    assert [done for done, _, _ in seen] == [*range(1, 21), 20, *range(21, 41), 40]
    assert {total for _, total, _ in seen} == {40}
    assert seen[-1][2].startswith("epoch 2: loss ")


def test_an_epoch_has_every_row_once_in_batches_of_similar_length() -> None:
    trained = train(job(TrainingData(train=sentences(32, seed=1), dev=DEV), epochs=1))
    rows = EncodedRows(TRAIN, trained.vocabulary, trained.classes)
    batches = list(shuffled_batches(rows.lengths, 16, torch.Generator().manual_seed(0)))
    assert sorted(row for batch in batches for row in batch) == list(range(320))
    spread = [len({len(rows.encodings[row].ids) for row in batch}) for batch in batches]
    assert max(spread) <= 3
    assert batches != list(shuffled_batches(rows.lengths, 16, torch.Generator().manual_seed(1)))


def test_positives_are_weighted_by_the_negatives_per_positive() -> None:
    labels = [0, 0, 0, 1]
    logits = torch.tensor([[0.3], [-1.2]])
    loss = _weighted_sigmoid_loss(labels)(logits, torch.tensor([1, 0]))
    p = torch.sigmoid(logits[:, 0])
    assert loss.item() == pytest.approx((-(3 * p[0].log()) - (1 - p[1]).log()).item() / 2, rel=1e-5)


def test_attention_has_its_own_learning_rate() -> None:
    slow, fast = (train(job(epochs=1, attention_rate=rate)).model for rate in (1e-9, 100.0))
    torch.manual_seed(0)
    start = dict(PooledClassifier(TINY, vocabulary_size=len(slow.embedding.weight), classes=2).named_parameters())
    name = "attention.alignment.hidden.weight"
    torch.testing.assert_close(dict(slow.named_parameters())[name], start[name], rtol=0, atol=1e-6)
    assert (dict(fast.named_parameters())[name] - start[name]).abs().max() > 0.01


def test_attention_has_no_weight_decay() -> None:
    model = PooledClassifier(TINY, vocabulary_size=9, classes=2)
    optimizer = _optimizer(model, Settings(weight_decay=0.25))
    spared = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0 for p in group["params"]}
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] == 0.25 for p in group["params"]}
    assert spared == {id(p) for p in model.attention.parameters()}
    assert spared | decayed == {id(p) for p in model.parameters()}
    assert all(group["amsgrad"] for group in optimizer.param_groups)


def with_row(data: Dataset, **changes: object) -> Dataset:
    """The data set with its fifth row changed."""
    rows = list(data.instances)
    rows[4] = dataclasses.replace(rows[4], **changes)
    return dataclasses.replace(data, instances=tuple(rows))


@pytest.mark.parametrize(
    ("training", "dev", "message"),
    [
        (with_row(TRAIN, label=None), DEV, "made.jsonl:5: the label is missing.*'bad', 'good'"),
        (TRAIN, with_row(DEV, label="great"), "made.jsonl:5: the label is 'great'.*'bad', 'good'"),
        (with_row(TRAIN, text=" \t "), DEV, "made.jsonl:5: the text contains neither a word"),
        (sentences(9, seed=1, names=("good",)), DEV, "the labels name one class, 'good'; training needs at least two"),
        (TRAIN, sentences(9, seed=1, names=("good",)), "every label is 'good'.*several classes"),
        (TRAIN, dataclasses.replace(DEV, instances=()), "no row"),
        (dataclasses.replace(TRAIN, instances=()), DEV, "column 'label' is missing or empty"),
        (
            dataclasses.replace(
                TRAIN, instances=tuple(dataclasses.replace(one, label=None) for one in TRAIN.instances), classes=()
            ),
            DEV,
            r"^made\.jsonl: column 'label' is missing or empty\. Training needs a label in every row",
        ),
    ],
)
def test_unusable_data_are_refused_with_their_row(training: Dataset, dev: Dataset, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(job(TrainingData(train=training, dev=dev)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch size is 0"),
        ({"learning_rate": 0.0}, "learning rate is 0.0"),
        ({"learning_rate": float("nan")}, "learning rate is nan"),
        ({"weight_decay": -1.0}, "weight decay is -1.0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"word_dropout": -0.1}, "word dropout is -0.1"),
        ({"max_words": 0}, "max words is 0"),
    ],
)
def test_invalid_settings_are_refused_by_name(change: dict[str, float], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        train(job(**change))


def test_a_loss_that_is_not_finite_stops_training() -> None:
    with pytest.raises(AuditError, match=r"loss is (nan|inf).*lower learning rate"):
        train(job(learning_rate=1e30))


@pytest.mark.parametrize(("name", "power"), [("tying", 2), ("tying_norm", 1)])
def test_tying_reduces_the_distance_of_states_to_embeddings(name: str, power: int) -> None:
    architecture = msgspec.structs.replace(TINY, encoder="bilstm", embedding_size=16, hidden_size=8)

    def distance(weight: float) -> float:
        trained = train(job(architecture=architecture, **{name: weight}))
        batch = EncodedRows(DEV, trained.vocabulary, trained.classes).batch(range(40))
        with torch.no_grad():
            traced = trained.model.trace(*batch)
        rows = [
            ((hidden[mask] - embedded[mask]).square().sum(dim=1) ** (power / 2)).mean()
            for hidden, embedded, mask in zip(traced.hidden, traced.embedded, traced.mask, strict=True)
        ]
        mean = torch.stack(rows).mean()
        torch.testing.assert_close(getattr(regularisers, name)(traced), mean)
        return mean.item()

    assert distance(5.0) < 0.5 * distance(0.0)


def test_tying_needs_states_of_the_embedding_size() -> None:
    with pytest.raises(ModelError, match="--embedding-size 32"):
        train(job(architecture=msgspec.structs.replace(TINY, encoder="bilstm"), tying=1.0))
    with pytest.raises(AuditError, match="tying is -1"):
        msgspec.structs.replace(FAST, tying=-1.0).check()
    with pytest.raises(AuditError, match="tying norm is -1"):
        msgspec.structs.replace(FAST, tying_norm=-1.0).check()


def test_equal_states_and_embeddings_have_finite_gradients_of_the_tying_norm() -> None:
    hidden = torch.ones(1, 2, 3, requires_grad=True)
    traced = SimpleNamespace(hidden=hidden, embedded=torch.ones(1, 2, 3), mask=torch.ones(1, 2, dtype=torch.bool))
    regularisers.tying_norm(traced).backward()  # type: ignore[arg-type]
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_prepare_sees_the_new_model_and_objective_replaces_the_loss() -> None:
    seen: list[int] = []

    def prepare(model: PooledClassifier, vocabulary: Vocabulary) -> None:
        seen.append(len(vocabulary))
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        model.decoder.bias.requires_grad_(True)

    def objective(model: PooledClassifier, _traced: object, _targets: object, _loss: object) -> torch.Tensor:
        return (model.decoder.bias - 3.0).square().sum()

    trained = train(dataclasses.replace(JOB, prepare=prepare, objective=objective))
    assert seen == [len(trained.vocabulary)]
    assert trained.model.decoder.bias.item() > 0.1
