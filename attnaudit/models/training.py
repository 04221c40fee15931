"""Training with the papers' settings. The epoch is chosen on dev; test, where there is one, is read once at the end."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.errors import AuditError, DataError, ModelError, require_seed
from attnaudit.instances import Dataset
from attnaudit.metrics import f1
from attnaudit.models.encoded_rows import Rows, classes_of
from attnaudit.models.length_batches import shuffled_batches, within_tokens
from attnaudit.models.pooled_classifier import Architecture, Pass, PooledClassifier
from attnaudit.models.regularisers import masked_words, require_equal_widths, tying
from attnaudit.models.training_state import Unfinished
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.models.word_vectors import Vectors, start_from
from attnaudit.progress import ProgressCallback

#: Tokens, padding included, of a batch outside training.
EVALUATED = 16384

#: (batches done, batches in all, what was last measured)

#: (model, pass, targets (B,), loss of the labels) -> the loss to minimise instead
Objective = Callable[[PooledClassifier, Pass, Tensor, Tensor], Tensor]

#: Called once on the new model, before training: to freeze or fix parameters.
Prepare = Callable[[PooledClassifier, Vocabulary], None]

#: A mean over dev that is to be small -> chooses the epoch in place of F1 and accuracy: (model, pass) -> (B,)
Distance = Callable[[PooledClassifier, Pass], Tensor]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is trained: Adam (amsgrad), no weight decay on the attention's parameters, positives weighted
    N / N_pos - 1 where there are two classes (Jain & Wallace 2019). min_count, max_words: which training
    words are known. tying: δ of Tutek & Šnajder 2020, which adds (δ / n) Σ_t ‖h_t - e_t‖² to an instance's loss.
    mlm: their η, which adds η times the loss of predicting masked words (see `attnaudit.models.regularisers`).
    vectors: word vectors that the embedding starts from, to be trained on; None starts at random."""

    seed: int = 0
    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    dropout: float = 0.0
    word_dropout: float = 0.0
    min_count: int = 2
    max_words: int | None = None
    tying: float = 0.0
    mlm: float = 0.0
    vectors: Vectors | None = None

    def check(self) -> None:
        """Raises AuditError naming the setting that cannot be meant."""
        require_seed("seed", self.seed)
        whole = {"epochs": self.epochs, "batch size": self.batch_size, "min count": self.min_count}
        if self.max_words is not None:
            whole["max words"] = self.max_words
        for name, value in whole.items():
            if value < 1:
                raise AuditError(f"{name} is {value}: expected a whole number of at least 1.")
        if not 0 < self.learning_rate < math.inf:
            raise AuditError(f"learning rate is {self.learning_rate}: expected a positive number such as 0.001.")
        for name, weight in (("weight decay", self.weight_decay), ("tying", self.tying), ("mlm", self.mlm)):
            if not 0 <= weight < math.inf:
                raise AuditError(f"{name} is {weight}: expected 0 or more.")
        for name, share in (("dropout", self.dropout), ("word dropout", self.word_dropout)):
            if not 0 <= share < 1:
                raise AuditError(f"{name} is {share}: expected at least 0 and less than 1.")


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """accuracy, and F1 of class 1 for two classes, macro otherwise (None where undefined); over n instances."""

    accuracy: float
    f1: float | None
    n: int


class Epoch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pass over the training data: mean loss, and the score on dev afterwards."""

    number: int
    loss: float
    dev: Score


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen model (evaluation mode, on the CPU) and how it came about. chosen: the number of its epoch.
    started: how many of the known words had a word vector to start from; None without word vectors."""

    model: PooledClassifier
    vocabulary: Vocabulary
    classes: tuple[str, ...]
    history: tuple[Epoch, ...]
    chosen: int
    dev: Score
    test: Score | None
    started: int | None = None


def train(
    training: Dataset,
    dev: Dataset,
    *,
    test: Dataset | None = None,
    architecture: Architecture | None = None,
    settings: Settings | None = None,
    progress: ProgressCallback | None = None,
    prepare: Prepare | None = None,
    objective: Objective | None = None,
    nearest: Distance | None = None,
    patience: int | None = None,
    vocabulary: Vocabulary | None = None,
    unfinished: Unfinished | None = None,
) -> Trained:
    """Train on `training`; keep the epoch with the best F1 on `dev` (then accuracy, then the earliest).

    prepare sees the new model before training; objective replaces the loss; with nearest, the epoch is kept that has
    the smallest mean of it on `dev`. patience: stop after so many epochs without a better one. vocabulary: known words,
    in place of those of the training data. unfinished: where epochs are kept, so that a killed training goes on and
    ends with the same model; the caller removes the file. The same arguments give the same model on the same machine;
    the caller's random state is left as it was.
    Raises DataError for data that cannot be trained on, ModelError for an unknown part or a loss that is not finite.
    """
    architecture, settings = architecture or Architecture(), settings or Settings()
    architecture.check()
    settings.check()
    classes = classes_of(training)
    form = architecture.form
    if vocabulary is None:
        texts = (text for one in training.instances for text in (one.text, one.query) if text is not None)
        vocabulary = Vocabulary.build(texts, min_count=settings.min_count, limit=settings.max_words)
    rows = Rows(training, vocabulary, classes, form)
    dev_rows = Rows(dev, vocabulary, classes, form)
    if len(set(dev_rows.labels)) < 2:
        raise DataError(
            f"{dev.source}: every label is {dev.instances[0].label!r}; no epoch can be chosen on one class. "
            "Give dev data with rows of several classes."
        )
    test_rows = Rows(test, vocabulary, classes, form) if test is not None else None
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(settings.seed)
        model = PooledClassifier(
            architecture,
            vocabulary_size=len(vocabulary),
            classes=len(classes),
            dropout=settings.dropout,
            word_dropout=settings.word_dropout,
        )
        for name in ("tying", "mlm"):
            if getattr(settings, name) > 0:
                require_equal_widths(model, name)
        started = None if settings.vectors is None else start_from(settings.vectors, model, vocabulary)
        if prepare is not None:
            prepare(model, vocabulary)
        history, chosen = _fit(model, rows, dev_rows, settings, progress, objective, nearest, patience, unfinished)
        return Trained(
            model=model,
            vocabulary=vocabulary,
            classes=classes,
            history=history,
            chosen=chosen,
            dev=evaluate(model, dev_rows),
            test=evaluate(model, test_rows) if test_rows is not None else None,
            started=started,
        )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums then do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _loss(labels: Sequence[int]) -> Callable[[Tensor, Tensor], Tensor]:
    """Of the one logit of two classes."""
    weight = len(labels) / sum(labels) - 1
    positives = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(float(weight)))

    def of_one_logit(logits: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = positives(logits.squeeze(-1), target.to(logits.dtype))
        return loss

    return of_one_logit


def _optimizer(model: PooledClassifier, settings: Settings) -> torch.optim.Optimizer:
    attention = {id(parameter) for parameter in model.attention.parameters()}
    decayed = [parameter for parameter in model.parameters() if id(parameter) not in attention]
    return torch.optim.Adam(
        [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": list(model.attention.parameters()), "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        amsgrad=True,
        fused=True,  # the embedding is most of the parameters: a step takes a sixth of the time
    )


@dataclass(slots=True)
class _Epochs:
    """What the epochs so far have come to. number: of the best one, whose dev score is `reached`, and parameters are
    `best`."""

    history: list[Epoch]
    best: dict[str, Tensor]
    number: int = 0
    reached: tuple[float, float] = (-math.inf, -math.inf)

    @property
    def note(self) -> str:
        if not self.history:
            return ""
        last = self.history[-1]
        on_dev = f"dev F1 {last.dev.f1 or 0.0:.3f}, accuracy {last.dev.accuracy:.3f}"
        return f"epoch {last.number}: loss {last.loss:.3f}, {on_dev}"


def _fit(
    model: PooledClassifier,
    rows: Rows,
    dev: Rows,
    settings: Settings,
    progress: ProgressCallback | None,
    objective: Objective | None = None,
    nearest: Distance | None = None,
    patience: int | None = None,
    unfinished: Unfinished | None = None,
) -> tuple[tuple[Epoch, ...], int]:
    """Train in place and leave the best epoch's parameters in `model`."""
    generator = torch.Generator().manual_seed(settings.seed)
    one_logit = len(rows.classes) == 2 and rows.form != "question"
    loss_of: Callable[[Tensor, Tensor], Tensor] = _loss(rows.labels) if one_logit else nn.CrossEntropyLoss()
    optimizer = _optimizer(model, settings)
    targets = torch.tensor(rows.labels)

    def loss_on(chosen: list[int]) -> Tensor:
        batch = rows.batch(chosen)
        traced = model.trace(*batch)
        loss = loss_of(traced.logits, targets[chosen])
        if settings.tying > 0:
            loss = loss + settings.tying * tying(traced)
        if settings.mlm > 0:
            loss = loss + settings.mlm * masked_words(model, *batch[:3])
        return loss if objective is None else objective(model, traced, targets[chosen], loss)

    an_epoch = sum(1 for _ in shuffled_batches(rows.lengths, settings.batch_size, torch.Generator()))
    total = settings.epochs * an_epoch
    epochs = _Epochs(history=[], best=copy.deepcopy(model.state_dict()))
    kept = None if unfinished is None else unfinished.kept()
    if kept is not None:
        if objective is not None:
            _first_pass(model, loss_on, shuffled_batches(rows.lengths, settings.batch_size, generator))
        epochs = _go_on(kept, model, optimizer, generator)
    done = len(epochs.history) * an_epoch
    while len(epochs.history) < settings.epochs:
        number = len(epochs.history) + 1
        if patience is not None and number - 1 - epochs.number >= patience:
            break
        model.train()
        summed = 0.0
        for chosen in shuffled_batches(rows.lengths, settings.batch_size, generator):
            loss = loss_on(chosen)
            if not torch.isfinite(loss):
                raise ModelError(f"Epoch {number}: the loss is {loss.item()}. Train with a lower learning rate.")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            summed += loss.item() * len(chosen)
            done += 1
            if progress is not None:
                progress(done, total, epochs.note)
        exact = _as_stored(model)
        on_dev = evaluate(model, dev)
        epochs.history.append(Epoch(number=number, loss=summed / len(rows.labels), dev=on_dev))
        reached = (on_dev.f1 or 0.0, on_dev.accuracy) if nearest is None else (-_mean(nearest, model, dev), 0.0)
        if reached > epochs.reached:
            epochs.reached, epochs.best, epochs.number = reached, copy.deepcopy(model.state_dict()), number
        model.embedding.weight.data.copy_(exact)
        if unfinished is not None:
            unfinished.keep(_state(epochs, model, optimizer, generator))
        if progress is not None:
            progress(done, total, epochs.note)
    if progress is not None and done < total:
        progress(total, total, epochs.note)
    model.load_state_dict(epochs.best)
    model.eval()
    return tuple(epochs.history), epochs.number


def _state(
    epochs: _Epochs, model: PooledClassifier, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> dict[str, Any]:
    """All that the next epoch depends on."""
    return {
        "history": msgspec.to_builtins(epochs.history),
        "best": epochs.best,
        "number": epochs.number,
        "reached": epochs.reached,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "order": generator.get_state(),
        "dropped": torch.get_rng_state(),
    }


def _go_on(
    kept: dict[str, Any], model: PooledClassifier, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> _Epochs:
    """Put everything back to where `_state` was taken."""
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    generator.set_state(kept["order"])
    torch.set_rng_state(kept["dropped"])
    history = msgspec.convert(kept["history"], list[Epoch])
    return _Epochs(history=history, best=kept["best"], number=kept["number"], reached=kept["reached"])


@torch.no_grad()
def _first_pass(model: PooledClassifier, loss_on: Callable[[list[int]], Tensor], batches: Iterator[list[int]]) -> None:
    """An objective may keep what it sees first, which depends on the batch in its last digits: let it see the batches
    of the first epoch first, as it did."""
    model.eval()
    for chosen in batches:
        loss_on(chosen)


def _as_stored(model: PooledClassifier) -> Tensor:
    """Round the embedding to float16, as a checkpoint stores it, so that scores are those of the stored model.
    Returns the exact values, for training to go on from."""
    exact = model.embedding.weight.detach().clone()
    model.embedding.weight.data.copy_(exact.half().float())
    return exact


@torch.no_grad()
def evaluate(model: PooledClassifier, rows: Rows) -> Score:
    """Accuracy and F1, in evaluation mode."""
    model.eval()
    predicted = [0] * len(rows.labels)
    for chosen in within_tokens(rows.lengths, EVALUATED):
        logits = model(*rows.batch(chosen))
        answers = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)
        for row, answer in zip(chosen, answers.tolist(), strict=True):
            predicted[row] = answer
    return score(rows.labels, predicted, len(rows.classes))


@torch.no_grad()
def _mean(of: Distance, model: PooledClassifier, rows: Rows) -> float:
    """Mean over the rows, in evaluation mode."""
    model.eval()
    batches = within_tokens(rows.lengths, EVALUATED)
    return sum(of(model, model.trace(*rows.batch(part))).sum().item() for part in batches) / len(rows.labels)


def score(labels: Sequence[int], predicted: Sequence[int], classes: int) -> Score:
    """The score of predicted class indices against the labels'."""
    right = sum(a == b for a, b in zip(predicted, labels, strict=True))
    found = float(f1(labels, predicted, classes))
    return Score(accuracy=right / len(labels), f1=None if math.isnan(found) else found, n=len(labels))
