"""A small corpus and small plans for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path

from attnaudit.models.architecture import Architecture
from attnaudit.models.training_job import Settings
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.prepare_corpora import Prepared

WORDS = {"positive": ("good", "fine", "great"), "negative": ("bad", "poor", "awful")}


def data(folder: Path) -> Prepared:
    """Sentences with one word that determines the label."""
    rows = {}
    for part, count in (("train", 40), ("dev", 16), ("test", 40)):
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for i in range(count):
            label = ("negative", "positive")[i % 2]
            words = ["the", "film", "was", WORDS[label][i % 3], *(["indeed"] * (i % 4))]
            lines.append({"id": f"{part}-{i}", "text": " ".join(words), "label": label})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{part}.jsonl").write_text(text, encoding="utf-8")
        rows[part] = count
    return Prepared(corpus="movie-reviews", folder=str(folder), rows=rows, sha256="synthetic", made_from="")


def plan(seed: int = 0, *, variant: str = "plain", value: float | None = None, epochs: int = 2) -> Plan:
    return Plan(
        corpus="movie-reviews",
        architecture=Architecture(encoder="average", embedding_size=6, hidden_size=6, attention_size=6),
        settings=Settings(seed=seed, epochs=epochs, learning_rate=0.05, min_count=1),
        variant=variant,
        value=value,
    )
