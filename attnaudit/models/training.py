"""Training of the reference models.

The best epoch is chosen on the development data. The test data are evaluated only once, at the end.
"""

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

from attnaudit.errors import DataError, ModelError
from attnaudit.instances import Dataset
from attnaudit.metrics import f1
from attnaudit.models.encoded_rows import EncodedRows, training_classes
from attnaudit.models.length_batches import shuffled_batches, within_tokens
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.regularisers import masked_words, require_equal_widths, tying, tying_norm
from attnaudit.models.training_job import InstanceLoss, Settings, TrainingJob
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.models.word_vectors import start_from
from attnaudit.processes import keep_freed_memory

#: Largest number of tokens in a batch for evaluation, including padding.
EVALUATION_TOKENS = 16384


class Score(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scores of a model on a data set.

    Attributes:
        accuracy: Share of correct predictions.
        f1: F1 of the second class if there are two classes, macro F1 if there are more. With two classes, it is None if
            the second class occurs neither among the labels nor among the predictions.
        n: Number of instances.
    """

    accuracy: float
    f1: float | None
    n: int


class Epoch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pass over the training data.

    Attributes:
        number: Number of the epoch, from 1.
        loss: Mean loss over the training instances.
        dev: Scores on the development data after the epoch.
    """

    number: int
    loss: float
    dev: Score


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained model.

    Attributes:
        model: The model of the best epoch, in evaluation mode on the CPU.
        vocabulary: The vocabulary of the model.
        classes: Class names, in the order of the logits.
        history: All epochs, in order.
        chosen_epoch: Number of the best epoch, from 1.
        dev: Scores of the model on the development data.
        test: Scores of the model on the test data; None without test data.
        words_with_vectors: Number of words whose embedding was initialised with a word vector; None without vectors.
    """

    model: PooledClassifier
    vocabulary: Vocabulary
    classes: tuple[str, ...]
    history: tuple[Epoch, ...]
    chosen_epoch: int
    dev: Score
    test: Score | None
    words_with_vectors: int | None = None


def train(job: TrainingJob) -> Trained:
    """Train a reference model and return the model of the best epoch.

    The best epoch has the highest F1 on the development data. Ties are broken by the higher accuracy, then by the
    earlier epoch. If the job has a `selection_loss`, the best epoch is instead the one with the smallest mean of this
    loss on the development data.

    The same job gives the same model on the same machine, even if training was stopped and resumed from its state file.
    The caller must delete this file afterwards. The random state of the caller does not change.

    Args:
        job: The data, the architecture and the settings of the training.

    Raises:
        DataError: The data are not suitable for training.
        ModelError: The architecture is invalid or does not fit the settings, or the loss becomes infinite or NaN.
        AuditError: A setting is invalid.
    """
    job.architecture.check()
    job.settings.check()
    keep_freed_memory()
    data, settings, form = job.data, job.settings, job.architecture.form
    classes = training_classes(data.train)
    vocabulary = _training_vocabulary(data.train, settings) if job.vocabulary is None else job.vocabulary
    rows = EncodedRows(data.train, vocabulary, classes, form)
    dev_rows = EncodedRows(data.dev, vocabulary, classes, form)
    if len(set(dev_rows.labels)) < 2:
        raise DataError(
            f"{data.dev.source}: every label is {data.dev.instances[0].label!r}, so the best epoch cannot be chosen. "
            "Give dev data with rows of several classes."
        )
    test_rows = EncodedRows(data.test, vocabulary, classes, form) if data.test is not None else None
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(settings.seed)
        model = PooledClassifier(
            job.architecture,
            vocabulary_size=len(vocabulary),
            classes=len(classes),
            dropout=settings.dropout,
            word_dropout=settings.word_dropout,
        )
        for name in ("tying", "tying_norm", "mlm"):
            if getattr(settings, name) > 0:
                require_equal_widths(model, name.replace("_", " "))
        words_with_vectors = None if settings.vectors is None else start_from(settings.vectors, model, vocabulary)
        if job.prepare is not None:
            job.prepare(model, vocabulary)
        history, chosen_epoch = _fit(job, model, rows, dev_rows)
        return Trained(
            model=model,
            vocabulary=vocabulary,
            classes=classes,
            history=history,
            chosen_epoch=chosen_epoch,
            dev=evaluate(model, dev_rows),
            test=evaluate(model, test_rows) if test_rows is not None else None,
            words_with_vectors=words_with_vectors,
        )


def _training_vocabulary(training: Dataset, settings: Settings) -> Vocabulary:
    """Build a vocabulary from the texts and queries of the training data."""
    parts = (part for instance in training.instances for part in (instance.text, instance.query))
    texts = (part for part in parts if part is not None)
    return Vocabulary.build(texts, min_count=settings.min_count, limit=settings.max_words)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Return a context in which torch uses one thread, so that results do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _weighted_sigmoid_loss(labels: Sequence[int]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a binary cross-entropy of one logit, in which positive instances have the weight N / N_pos - 1.

    N is the number of labels, and N_pos is the number of labels that are 1.
    """
    weight = len(labels) / sum(labels) - 1
    weighted_loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(float(weight)))

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = weighted_loss(logits.squeeze(-1), targets.to(logits.dtype))
        return loss

    return loss_of


def _optimizer(model: PooledClassifier, settings: Settings) -> torch.optim.Optimizer:
    attention = {id(parameter) for parameter in model.attention.parameters()}
    decayed = [parameter for parameter in model.parameters() if id(parameter) not in attention]
    return torch.optim.Adam(
        [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {
                "params": list(model.attention.parameters()),
                "weight_decay": 0.0,
                "lr": settings.learning_rate * settings.attention_rate,
            },
        ],
        lr=settings.learning_rate,
        amsgrad=True,
        fused=True,  # six times faster: the embedding holds most of the parameters
    )


def _batch_loss(job: TrainingJob, model: PooledClassifier, rows: EncodedRows) -> Callable[[list[int]], Tensor]:
    """Return a function that computes the training loss of a batch of rows."""
    settings = job.settings
    one_logit = len(rows.classes) == 2 and rows.form != "question"
    label_loss: Callable[[Tensor, Tensor], Tensor]
    label_loss = _weighted_sigmoid_loss(rows.labels) if one_logit else nn.CrossEntropyLoss()
    targets = torch.tensor(rows.labels)

    def loss_of(batch_rows: list[int]) -> Tensor:
        batch = rows.batch(batch_rows)
        traced = model.trace(*batch)
        loss = label_loss(traced.logits, targets[batch_rows])
        if settings.tying > 0:
            loss = loss + settings.tying * tying(traced)
        if settings.tying_norm > 0:
            loss = loss + settings.tying_norm * tying_norm(traced)
        if settings.mlm > 0:
            loss = loss + settings.mlm * masked_words(model, *batch[:3])
        return loss if job.objective is None else job.objective(model, traced, targets[batch_rows], loss)

    return loss_of


@dataclass(slots=True)
class _Epochs:
    """The epochs so far, and the best of them.

    Attributes:
        history: All epochs, in order.
        best_parameters: State dict of the model after the best epoch. Before the first epoch, it is the state dict of
            the untrained model.
        best_number: Number of the best epoch; 0 before the first epoch.
        best_rank: F1 and accuracy of the best epoch on the development data; (-loss, 0) if there is a selection loss.
            Larger pairs are better.
    """

    history: list[Epoch]
    best_parameters: dict[str, Tensor]
    best_number: int = 0
    best_rank: tuple[float, float] = (-math.inf, -math.inf)

    @property
    def note(self) -> str:
        """The scores of the last epoch in words, for progress callbacks; "" before the first epoch."""
        if not self.history:
            return ""
        last = self.history[-1]
        on_dev = f"dev F1 {last.dev.f1 or 0.0:.3f}, accuracy {last.dev.accuracy:.3f}"
        return f"epoch {last.number}: loss {last.loss:.3f}, {on_dev}"


def _fit(
    job: TrainingJob, model: PooledClassifier, rows: EncodedRows, dev_rows: EncodedRows
) -> tuple[tuple[Epoch, ...], int]:
    """Train the model in place. In the end, it has the parameters of the best epoch.

    Returns:
        All epochs, and the number of the best one.
    """
    settings, progress = job.settings, job.progress
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = _optimizer(model, settings)
    loss_of = _batch_loss(job, model, rows)
    batches_per_epoch = sum(1 for _ in shuffled_batches(rows.lengths, settings.batch_size, torch.Generator()))
    total = settings.epochs * batches_per_epoch
    epochs = _Epochs(history=[], best_parameters=copy.deepcopy(model.state_dict()))
    state = None if job.state_file is None else job.state_file.load()
    if state is not None:
        if job.objective is not None:
            _show_first_epoch(model, loss_of, shuffled_batches(rows.lengths, settings.batch_size, generator))
        epochs = _resume(state, model, optimizer, generator)
    done = len(epochs.history) * batches_per_epoch
    while len(epochs.history) < settings.epochs:
        number = len(epochs.history) + 1
        if job.patience is not None and number - 1 - epochs.best_number >= job.patience:
            break
        model.train()
        summed_loss = 0.0
        for batch_rows in shuffled_batches(rows.lengths, settings.batch_size, generator):
            loss = loss_of(batch_rows)
            if not torch.isfinite(loss):
                raise ModelError(f"Epoch {number}: the loss is {loss.item()}. Train with a lower learning rate.")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            summed_loss += loss.item() * len(batch_rows)
            done += 1
            if progress is not None:
                progress(done, total, epochs.note)
        exact = _round_embedding(model)
        on_dev = evaluate(model, dev_rows)
        epochs.history.append(Epoch(number=number, loss=summed_loss / len(rows.labels), dev=on_dev))
        if job.selection_loss is None:
            rank = (on_dev.f1 or 0.0, on_dev.accuracy)
        else:
            rank = (-_mean_loss(job.selection_loss, model, dev_rows), 0.0)
        if rank > epochs.best_rank:
            epochs.best_rank, epochs.best_number = rank, number
            epochs.best_parameters = copy.deepcopy(model.state_dict())
        model.embedding.weight.data.copy_(exact)
        if job.state_file is not None:
            job.state_file.save(_state(epochs, model, optimizer, generator))
        if progress is not None:
            progress(done, total, epochs.note)
    if progress is not None and done < total:
        progress(total, total, epochs.note)
    model.load_state_dict(epochs.best_parameters)
    model.eval()
    return tuple(epochs.history), epochs.best_number


def _state(
    epochs: _Epochs, model: PooledClassifier, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> dict[str, Any]:
    """Return everything that the next epoch depends on, as tensors and plain values."""
    return {
        "history": msgspec.to_builtins(epochs.history),
        "best_parameters": epochs.best_parameters,
        "best_number": epochs.best_number,
        "best_rank": epochs.best_rank,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "batch_order": generator.get_state(),
        "random_state": torch.get_rng_state(),
    }


def _resume(
    state: dict[str, Any], model: PooledClassifier, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> _Epochs:
    """Restore the model, the optimizer and the random generators from a result of `_state`, and return its epochs."""
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    generator.set_state(state["batch_order"])
    torch.set_rng_state(state["random_state"])
    return _Epochs(
        history=msgspec.convert(state["history"], list[Epoch]),
        best_parameters=state["best_parameters"],
        best_number=state["best_number"],
        best_rank=state["best_rank"],
    )


@torch.no_grad()
def _show_first_epoch(
    model: PooledClassifier, loss_of: Callable[[list[int]], Tensor], batches: Iterator[list[int]]
) -> None:
    """Call the objective on the batches of the first epoch, and discard the losses.

    An objective may cache a result for each text in the first epoch, as `twin_objective` does. The last digits of this
    result depend on the other texts of the batch. Before training resumes, the objective must therefore see the same
    batches as in the first epoch.
    """
    model.eval()
    for batch_rows in batches:
        loss_of(batch_rows)


def _round_embedding(model: PooledClassifier) -> Tensor:
    """Round the embedding to float16, as checkpoints store it, so that scores are computed with the stored values.

    Returns:
        The embedding before rounding, with which training continues.
    """
    exact = model.embedding.weight.detach().clone()
    model.embedding.weight.data.copy_(exact.half().float())
    return exact


@torch.no_grad()
def evaluate(model: PooledClassifier, rows: EncodedRows) -> Score:
    """Switch the model to evaluation mode and return its scores on the rows."""
    model.eval()
    predicted = [0] * len(rows.labels)
    for batch_rows in within_tokens(rows.lengths, EVALUATION_TOKENS):
        logits = model(*rows.batch(batch_rows))
        classes = (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(dim=1)
        for row, predicted_class in zip(batch_rows, classes.tolist(), strict=True):
            predicted[row] = predicted_class
    return score(rows.labels, predicted, len(rows.classes))


@torch.no_grad()
def _mean_loss(loss: InstanceLoss, model: PooledClassifier, rows: EncodedRows) -> float:
    """Switch the model to evaluation mode and return the mean loss over the rows."""
    model.eval()
    batches = within_tokens(rows.lengths, EVALUATION_TOKENS)
    return sum(loss(model, model.trace(*rows.batch(part))).sum().item() for part in batches) / len(rows.labels)


def score(labels: Sequence[int], predicted: Sequence[int], classes: int) -> Score:
    """Compute accuracy and F1 of predictions.

    Args:
        labels: Correct class index of each instance. There is at least one instance.
        predicted: Predicted class index of each instance.
        classes: Number of classes.
    """
    correct = sum(a == b for a, b in zip(predicted, labels, strict=True))
    f1_score = float(f1(labels, predicted, classes))
    return Score(accuracy=correct / len(labels), f1=None if math.isnan(f1_score) else f1_score, n=len(labels))
