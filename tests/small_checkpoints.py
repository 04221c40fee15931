"""A small classifier, trained on synthetic sentences with cue words, as a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from attnaudit.data import load, sample
from attnaudit.data.planted_cue import split
from attnaudit.instances import Dataset
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import Architecture
from attnaudit.models.training import Trained, train
from attnaudit.models.training_job import Settings, TrainingData, TrainingJob

SMALL = Architecture(encoder="average", embedding_size=12, hidden_size=12, attention_size=8)
QUICK = Settings(epochs=3, batch_size=32, learning_rate=1e-2, weight_decay=0.0)


def write_rows(path: Path, part: str, count: int) -> Dataset:
    """Write some rows of planted-cue to a file and load them from it."""
    rows = [{"id": one.id, "text": one.text, "label": one.label} for one in sample(split(part), count, 0).instances]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load(path)


def save_trained(
    folder: Path, *, architecture: Architecture = SMALL, settings: Settings = QUICK, **card: Any
) -> tuple[Trained, Dataset, Dataset]:
    """Train on folder/train.jsonl (500 rows), choose the epoch on folder/dev.jsonl (120 rows), and write folder/model.

    Returns:
        The trained model, the training data and the dev data.
    """
    training, dev = write_rows(folder / "train.jsonl", "train", 500), write_rows(folder / "dev.jsonl", "dev", 120)
    data = TrainingData(train=training, dev=dev)
    trained = train(TrainingJob(data=data, architecture=architecture, settings=settings))
    data = {
        part: {"name": one.name, "source": one.source, "rows": len(one.instances), "sha256": one.sha256()}
        for part, one in (("train", training), ("dev", dev))
    }
    account = {"settings": msgspec.to_builtins(settings), "data": data} | card
    checkpoint_folder.save(folder / "model", trained.model, trained.vocabulary, trained.classes, training=account)
    return trained, training, dev
