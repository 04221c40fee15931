"""Fine-tuning a pretrained encoder. The epoch is chosen on dev; test, where there is one, is read once at the end."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import msgspec
import torch
from torch import nn

from attnaudit.adapters.huggingface.checkpoint_files import quiet
from attnaudit.data.labels import label_indices, require_two_classes
from attnaudit.data.row_parsing import ordered_classes
from attnaudit.errors import AuditError, DataError, ModelError, require_seed
from attnaudit.instances import Dataset
from attnaudit.models.base_encoders import Base
from attnaudit.models.length_batches import by_length, shuffled_batches
from attnaudit.models.pretrained import Pretrained, Rows, load
from attnaudit.models.training import Epoch, Score, score
from attnaudit.progress import ProgressCallback

_LARGEST_GRADIENT = 1.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an encoder is fine-tuned: AdamW, no weight decay on biases and normalisations; the learning rate rises over
    the first `warm_up` of the steps and falls to 0 over the rest. max_tokens: longer texts are cut."""

    seed: int = 0
    epochs: int = 2
    batch_size: int = 32
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    warm_up: float = 0.1
    max_tokens: int = 256

    def check(self) -> None:
        """Raises AuditError naming the setting that cannot be meant."""
        require_seed("seed", self.seed)
        for name, value in (("epochs", self.epochs), ("batch size", self.batch_size)):
            if value < 1:
                raise AuditError(f"{name} is {value}: expected a whole number of at least 1.")
        if not 0 < self.learning_rate < math.inf:
            raise AuditError(f"learning rate is {self.learning_rate}: expected a positive number such as 0.00005.")
        if not 0 <= self.weight_decay < math.inf:
            raise AuditError(f"weight decay is {self.weight_decay}: expected 0 or more.")
        if not 0 <= self.warm_up < 1:
            raise AuditError(f"warm-up is {self.warm_up}: expected a share of the steps, at least 0 and less than 1.")
        if self.max_tokens < 4:
            raise AuditError(f"max tokens is {self.max_tokens}: expected at least 4, special tokens included.")


class FineTuned(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen model (evaluation mode) and how it came about. chosen: the number of its epoch. max_tokens: that texts
    were cut to, which is less than the setting where the model reads less. truncated: part -> rows that were cut."""

    pretrained: Pretrained
    history: tuple[Epoch, ...]
    chosen: int
    dev: Score
    test: Score | None
    max_tokens: int
    truncated: dict[str, int]

    @property
    def classes(self) -> tuple[str, ...]:
        """In the order of the logits."""
        return self.pretrained.classes


def fine_tune(
    base: Base,
    training: Dataset,
    dev: Dataset,
    *,
    test: Dataset | None = None,
    settings: Settings | None = None,
    progress: ProgressCallback | None = None,
) -> FineTuned:
    """Train the encoder of `base` with a new head on `training`; keep the epoch with the best F1 on `dev` (then
    accuracy, then the earliest).

    The same arguments give the same model on the same machine with the same number of threads; the caller's random
    state is left as it was. Raises DataError for data that cannot be trained on, ModelError for a base that cannot be
    loaded or a loss that is not finite.
    """
    settings = settings or Settings()
    settings.check()
    parts = {"train": training, "dev": dev} | ({} if test is None else {"test": test})
    classes = ordered_classes(training.instances)
    labels = _labels(parts, classes)
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(settings.seed)
        pretrained = load(base, classes)
        longest = min(settings.max_tokens, pretrained.longest)
        rows = {part: Rows(data, labels[part], pretrained, max_tokens=longest) for part, data in parts.items()}
        history, chosen = _fit(pretrained, rows["train"], rows["dev"], settings, progress)
        return FineTuned(
            pretrained=pretrained,
            history=history,
            chosen=chosen,
            dev=history[chosen - 1].dev,
            test=evaluate(pretrained, rows["test"]) if "test" in rows else None,
            max_tokens=longest,
            truncated={part: one.truncated for part, one in rows.items()},
        )


def _labels(parts: dict[str, Dataset], classes: tuple[str, ...]) -> dict[str, list[int]]:
    """part -> class indices. Raises DataError for a part without labels, or with one class where it matters."""
    found: dict[str, list[int]] = {}
    for part, data in parts.items():
        if not data.instances:
            raise DataError(f"{data.source}: no row to train or evaluate on. Give a file with at least one row.")
        if part != "test":
            require_two_classes(dataclasses.replace(data, classes=()), labelled=True)  # what occurs, not what could
        found[part] = label_indices(data, classes)
        if -1 in found[part]:
            one = data.instances[found[part].index(-1)]
            raise DataError(
                f"{one.where or one.id}: column 'label' is empty. The {part} part needs a label in every row: add it."
            )
    return found


def rate(step: int, total: int, warm_up: float) -> float:
    """Share of the learning rate at a step counted from 0: a linear rise to 1, then a linear fall that would reach 0
    one step after the last."""
    rising = math.ceil(warm_up * total)
    if step < rising:
        return (step + 1) / rising
    return (total - step) / max(1, total - rising)


def _optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [one for one in parameters if one.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        fused=True,  # on a CPU a third of the time of the plain loop
    )


def _fit(
    pretrained: Pretrained, rows: Rows, dev: Rows, settings: Settings, progress: ProgressCallback | None
) -> tuple[tuple[Epoch, ...], int]:
    """Train in place and leave the best epoch's parameters in the model."""
    model: Any = pretrained.model
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = _optimizer(model, settings)
    targets = torch.tensor(rows.labels)
    total = settings.epochs * math.ceil(len(rows.labels) / settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, total, settings.warm_up))
    history: list[Epoch] = []
    best, best_state, chosen, done, note = (-1.0, -1.0), None, 0, 0, ""
    for number in range(1, settings.epochs + 1):
        model.train()
        summed = 0.0
        for batch in shuffled_batches(rows.lengths, settings.batch_size, generator):
            loss = nn.functional.cross_entropy(model(**rows.batch(batch)).logits, targets[batch])
            if not torch.isfinite(loss):
                raise ModelError(f"Epoch {number}: the loss is {loss.item()}. Train with a lower learning rate.")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_GRADIENT)
            optimizer.step()
            schedule.step()
            summed += loss.item() * len(batch)
            done += 1
            if progress is not None:
                progress(done, total, note)
        reached = evaluate(pretrained, dev)
        history.append(Epoch(number=number, loss=summed / len(rows.labels), dev=reached))
        ranked = (reached.f1 or 0.0, reached.accuracy)
        note = f"epoch {number}: loss {history[-1].loss:.3f}, dev F1 {ranked[0]:.3f}, accuracy {ranked[1]:.3f}"
        if ranked > best:
            best, chosen = ranked, number
            best_state = copy.deepcopy(model.state_dict()) if number < settings.epochs else None
        if progress is not None:
            progress(done, total, note)
    if best_state is not None:
        model.load_state_dict(best_state)
    model.eval()
    return tuple(history), chosen


@torch.no_grad()
def evaluate(pretrained: Pretrained, rows: Rows, *, batch_size: int = 64) -> Score:
    """Accuracy and F1, in evaluation mode."""
    pretrained.model.eval()
    order = by_length(rows.lengths, range(len(rows.labels)))
    predicted = [0] * len(order)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        for row, answer in zip(batch, pretrained.model(**rows.batch(batch)).logits.argmax(dim=1).tolist(), strict=True):
            predicted[row] = answer
    return score(rows.labels, predicted, len(pretrained.classes))
