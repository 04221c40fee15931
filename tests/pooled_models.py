"""Small models with several heads, hops, levels or directions of pooled attention, and adapters for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters import (
    Attend,
    Encoding,
    HierarchicalAttentionAdapter,
    PairAttentionAdapter,
    PooledAttentionAdapter,
    SeveralAttentionsAdapter,
)
from attnaudit.instances import Instance

SIZE, CLASSES = 6, ("negative", "neutral", "positive")
TEXTS = (
    "a dull film. not good",
    "bright story",
    "a very good film. a bright story. good",
    "bad",
    "not a bad film. very good. dull",
    "a dull dull story",
)
WORDS = sorted({word.strip(".") for text in TEXTS for word in text.split()})
INSTANCES = [
    Instance(id=str(i), text=text, query=TEXTS[(i + 1) % len(TEXTS)], label=CLASSES[i % 3])
    for i, text in enumerate(TEXTS)
]
ALONE = [Instance(id=one.id, text=one.text, label=one.label) for one in INSTANCES]


def tokenize(text: str) -> Encoding:
    words = [word.strip(".") for word in text.split()]
    return Encoding([2 + WORDS.index(word) if word in WORDS else 1 for word in words], words)


def sentences(text: str) -> list[Encoding]:
    return [tokenize(sentence) for sentence in text.split(".") if sentence.strip()]


def softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


class Parts(nn.Module):
    """The layers of all models, with weights that make attention far from uniform."""

    def __init__(self, heads: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS) + 2, SIZE, padding_idx=0)
        self.gru = nn.GRU(SIZE, SIZE, batch_first=True)
        self.upper = nn.GRU(SIZE, SIZE, batch_first=True)
        self.score = nn.Linear(SIZE, heads)
        self.upper_score = nn.Linear(SIZE, 1)
        self.decoder = nn.Linear(SIZE * heads, len(CLASSES))
        self.branches = nn.ModuleList(nn.Linear(SIZE, 1) for _ in CLASSES)
        self.compare = nn.Linear(2 * SIZE, SIZE)
        self.aggregate = nn.Linear(2 * SIZE, len(CLASSES))
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator) * (0.8 if parameter.dim() > 1 else 0.1)
                )

    def encode(self, embedded: Tensor, _mask: Tensor) -> Tensor:
        states: Tensor = self.gru(embedded)[0]
        return states

    def attend(self, states: Tensor, allowed: Tensor) -> Tensor:
        return softmax(4 * self.score(states).transpose(1, 2), allowed[:, None])

    def attend_once(self, states: Tensor, allowed: Tensor) -> Tensor:
        return softmax(4 * self.upper_score(states)[..., 0], allowed)

    def by_branch(self, contexts: Tensor) -> Tensor:
        return torch.cat([branch(contexts[..., c, :]) for c, branch in enumerate(self.branches)], dim=-1)

    def hops(self, states: Tensor, allowed: Tensor, attend: Attend) -> Tensor:
        asked = states.new_ones(len(states), SIZE)
        for hop in ("hop 1", "hop 2"):
            weights = softmax((states @ asked[:, :, None])[..., 0], allowed)
            asked = asked + attend(hop, weights, states)
        logits: Tensor = self.decoder(asked)
        return logits

    def both_ways(self, first: Tensor, second: Tensor, of_first: Tensor, of_second: Tensor) -> tuple[Tensor, Tensor]:
        scores = 2 * first @ second.transpose(1, 2)
        return softmax(scores, of_second[:, None]), softmax(scores.transpose(1, 2), of_first[:, None])

    def aggregated(self, *given: Tensor) -> Tensor:
        first, second, to_first, to_second, of_first, of_second = given
        sums = [
            (torch.tanh(self.compare(torch.cat([own, other], -1))) * mask[..., None]).sum(1)
            for own, other, mask in ((first, to_first, of_first), (second, to_second, of_second))
        ]
        logits: Tensor = self.aggregate(torch.cat(sums, -1))
        return logits


def several_heads(**changes: Any) -> PooledAttentionAdapter:
    model = Parts(heads=3)
    given = {
        "embedding": model.embedding,
        "encoder": model.encode,
        "attention": model.attend,
        "decoder": model.decoder,
        "tokenize": tokenize,
        "classes": CLASSES,
        "modules": (model,),
        "mask_id": 1,
        "heads": 3,
        "reading": "own@heads=mean",
    }
    return PooledAttentionAdapter(**(given | changes))  # type: ignore[arg-type]


def one_branch_per_class(**changes: Any) -> PooledAttentionAdapter:
    model = Parts(heads=3)
    given = {"contexts": lambda c: c, "decoder": model.by_branch, "reading": "own@heads=predicted"}
    given |= {"embedding": model.embedding, "encoder": model.encode, "attention": model.attend, "modules": (model,)}
    return several_heads(**(given | changes))


def memory_network(**changes: Any) -> SeveralAttentionsAdapter:
    model = Parts()
    given = {
        "embedding": model.embedding,
        "encoder": model.encode,
        "pool": model.hops,
        "sites": {"hop 1": 1, "hop 2": 1},
        "reading": "own@site=hop 1",
        "tokenize": tokenize,
        "classes": CLASSES,
        "modules": (model,),
        "mask_id": 1,
    }
    return SeveralAttentionsAdapter(**(given | changes))  # type: ignore[arg-type]


def two_levels(**changes: Any) -> HierarchicalAttentionAdapter:
    model = Parts()
    given = {
        "embedding": model.embedding,
        "word_encoder": model.encode,
        "word_attention": lambda states, allowed: softmax(4 * model.score(states)[..., 0], allowed),
        "sentence_encoder": lambda vectors, _mask: model.upper(vectors)[0],
        "sentence_attention": model.attend_once,
        "decoder": model.decoder,
        "tokenize": sentences,
        "classes": CLASSES,
        "modules": (model,),
        "mask_id": 1,
    }
    return HierarchicalAttentionAdapter(**(given | changes))  # type: ignore[arg-type]


def pair(explained: str = "text", **changes: Any) -> PairAttentionAdapter:
    model = Parts()
    given = {
        "embedding": model.embedding,
        "encoder": model.encode,
        "attention": model.both_ways,
        "decoder": model.aggregated,
        "tokenize": tokenize,
        "classes": CLASSES,
        "modules": (model,),
        "mask_id": 1,
        "explained": explained,
    }
    return PairAttentionAdapter(**(given | changes))  # type: ignore[arg-type]


#: Name -> a function that builds the adapter, and the instances that it reads.
MODELS: dict[str, tuple[Callable[..., Any], list[Instance]]] = {
    "heads": (several_heads, ALONE),
    "branches": (one_branch_per_class, ALONE),
    "hops": (memory_network, ALONE),
    "levels": (two_levels, ALONE),
    "pair": (pair, INSTANCES),
    "pair, the query explained": (lambda **changes: pair("query", **changes), INSTANCES),
}
