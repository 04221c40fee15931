"""A small pooled-attention model, its adapter, and a few texts for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnaudit.adapters import Encoding, PooledAttentionAdapter
from attnaudit.instances import Dataset, Instance

TEXT = "pad the film is not good bad very a dull bright story and ends well badly"
WORDS = TEXT.split()


class Encoder(nn.Module):
    """A bidirectional LSTM over packed input."""

    def __init__(self, width: int = 6, hidden: int = 5) -> None:
        super().__init__()
        self.rnn = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            embeddings, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=mask.shape[1])[0]


class Attention(nn.Module):
    def __init__(self, size: int = 10) -> None:
        super().__init__()
        self.score = nn.Linear(size, 1)

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        return torch.softmax((3 * self.score(states)[..., 0]).masked_fill(~allowed, -torch.inf), -1)


def tokenize(text: str) -> Encoding:
    tokens = text.split()
    return Encoding([WORDS.index(t) if t in WORDS else 1 for t in tokens], tokens)


def tokenize_with_ends(text: str) -> Encoding:
    tokens = ["[start]", *text.split(), "[end]"]
    special = [t.startswith("[") for t in tokens]
    return Encoding([WORDS.index(t) if t in WORDS else 1 for t in tokens], tokens, special)


def parts(outputs: int = 1, seed: int = 0) -> dict[str, object]:
    torch.manual_seed(seed)
    return {
        "embedding": nn.Embedding(len(WORDS), 6),
        "encoder": Encoder(),
        "attention": Attention(),
        "decoder": nn.Linear(10, outputs),
        "tokenize": tokenize,
        "classes": ("negative", "positive") if outputs <= 2 else ("negative", "neutral", "positive"),
    }


def adapter(outputs: int = 1, seed: int = 0, **changes: object) -> PooledAttentionAdapter:
    return PooledAttentionAdapter(**{**parts(outputs, seed), **changes})  # type: ignore[arg-type]


TEXTS = [
    "the film is good",
    "bad",
    "a dull story and ends badly",
    "not very good and not bad is the story",
    "bright",
    "the story is very very dull and the film ends",
    "good bad",
    "a bright film and a dull story",
]


def dataset(texts: list[str] = TEXTS, name: str = "films") -> Dataset:
    rows = tuple(
        Instance(id=f"{i:03d}", text=t, label=("negative", "positive")[i % 2], where=f"films.csv:{i + 2}")
        for i, t in enumerate(texts)
    )
    return Dataset(name=name, source="films.csv", description="", instances=rows, classes=("negative", "positive"))
