"""What a planted kind is, and how the files of this folder make themselves known.

A new kind is a file in this folder with a `KINDS` tuple. Nothing else need change.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import msgspec
import torch
from torch import Tensor

from attnaudit.instances import Dataset
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import Objective, Prepare, Settings
from attnaudit.models.vocabulary import Vocabulary, words

#: A trained model, its vocabulary and a pass over a batch -> contribution of each token (B, T)
Contribution = Callable[[PooledClassifier, Vocabulary, ForwardPass], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One model to plant: the data it learns from and the choices that vary within a kind."""

    data: str
    alignment: str
    seed: int
    train: Dataset
    dev: Dataset
    #: words that decide the label, or go with it most
    cues: frozenset[str]
    #: words that look like cues, but shall not be used by models with decoys
    decoys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one model is made. contribution: per token, known from construction; None for kinds without truth.

    finish: changes the trained model, once. reference: an honest model of the same making that the accuracy is
    compared with. exact: the contribution is what removing a token's evidence takes from the logit, to rounding;
    otherwise it only says which tokens decide.
    """

    architecture: Architecture
    settings: Settings
    contribution: Contribution | None = None
    prepare: Prepare | None = None
    objective: Callable[[Vocabulary], Objective] | None = None
    finish: Callable[[PooledClassifier], None] | None = None
    reference: Recipe | None = None
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """truth: "faithful", "unfaithful" or "trend" is what the construction claims; only measuring grants it.

    half: "split" (by seed) or "held_out" (the kind is in no tuning half). level: where contributions are known.
    needs_share: the label's channel must carry at least 95% of the logit's variance. fails: which questions an
    unfaithful kind answers with no by construction: attention is not "used", or does not "point" at what matters.
    """

    name: str
    truth: str
    words: str
    recipe: Callable[[Task], Recipe]
    half: str = "split"
    level: str = "tokens"
    needs_share: bool = False
    fails: tuple[str, ...] = ("used", "points")
    data: tuple[str, ...] = ("movie-reviews", "synthetic")
    alignments: tuple[str, ...] = ("additive", "dot")


@cache
def kinds() -> dict[str, Kind]:
    """name -> kind, in alphabetical order, from every file of this folder."""
    package = importlib.import_module("attnaudit.research.planted")
    found: list[Kind] = []
    for module in pkgutil.iter_modules(package.__path__):
        found += getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "KINDS", ())
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.name)}


#: The sizes of every planted model.
SMALL = Architecture(embedding_size=48, hidden_size=24, attention_size=24)


def quick_settings(seed: int, **changes: object) -> Settings:
    """Few, large steps: these models need to be clear, not good."""
    chosen = Settings(seed=seed, epochs=4, batch_size=128, learning_rate=1e-2, weight_decay=0.0)
    return msgspec.structs.replace(chosen, **changes)


def indicator(vocabulary: Vocabulary, chosen: frozenset[str]) -> Tensor:
    """(V,) True on the ids of these words."""
    return torch.tensor([word in chosen for word in vocabulary.entries])


def keep_zero(parameter: Tensor, places: Tensor) -> None:
    """Set these places to zero and hold them there in training."""
    with torch.no_grad():
        parameter.masked_fill_(places, 0.0)
    hold(parameter, places)


def hold(parameter: Tensor, places: Tensor) -> None:
    """Keep these places as they are in training (without weight decay)."""
    parameter.register_hook(lambda gradient: gradient.masked_fill(places, 0.0))  # type: ignore[no-untyped-call]


def freeze(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def opposed_words(data: Dataset, *, at_least: int = 8) -> tuple[frozenset[str], frozenset[str]]:
    """The words that go with one class most, dealt out in turn to two sets (cues, decoys).

    By smoothed log odds over the classes, of words seen in at least `at_least` texts, those beyond ±0.5.
    """
    counts: dict[str, list[int]] = {}
    for one in data.instances:
        for word in set(words(one.text)):
            counts.setdefault(word, [0, 0])[data.classes.index(one.label or data.classes[0])] += 1
    totals = [sum(pair[c] for pair in counts.values()) for c in (0, 1)]
    odds = {
        word: torch.log(torch.tensor((pos + 1) / (neg + 1) * totals[0] / totals[1])).item()
        for word, (neg, pos) in counts.items()
        if neg + pos >= at_least
    }
    ranked = sorted((word for word in odds if abs(odds[word]) > 0.5), key=lambda word: (odds[word], word))
    return frozenset(ranked[::2]), frozenset(ranked[1::2])
