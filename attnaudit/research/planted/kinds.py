"""What a kind of planted model is, and how the modules of this folder register their kinds.

A new kind is a module of this folder with a `KINDS` tuple; nothing else has to change.
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

#: (trained model, its vocabulary, a pass over a batch) -> the contribution of each token to the logit, (B, T).
Contribution = Callable[[PooledClassifier, Vocabulary, ForwardPass], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """What one planted model is trained from.

    Attributes:
        data: The name of the data in the population: "movie-reviews" or "synthetic".
        alignment: The alignment function of attention: "additive", "dot" or "uniform".
        seed: The seed of training, which also selects among the variants of a kind.
        train: The training set.
        dev: The set that the best epoch is chosen on.
        cues: Words that decide the label; on real text, half of the words that are correlated with one class.
        decoys: Other words that are correlated with one class; the models of the kind "decoys" do not use them.
    """

    data: str
    alignment: str
    seed: int
    train: Dataset
    dev: Dataset
    cues: frozenset[str]
    decoys: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one model is made.

    Attributes:
        architecture: The architecture of the model.
        settings: The settings of training.
        contribution: The contribution of each token, known by construction; None for kinds without a known truth.
        prepare: Changes the untrained model in place.
        objective: Vocabulary -> the training objective; None for the loss alone.
        finish: Changes the trained model in place.
        reference: The same model trained without deception, whose accuracy the model must nearly reach.
        exact: Whether the contribution is, up to rounding, the amount by which the logit falls without the token's
            evidence. Otherwise it only marks the tokens that decide.
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
    """A kind of planted model.

    Attributes:
        name: The name of the kind.
        truth: "faithful", "unfaithful" or, without a known truth, "trend". A model gets the label "faithful" or
            "unfaithful" only if measurements confirm it.
        description: What is special about the kind, for checkpoints.
        recipe: How to make one model.
        half: "split" to use models with even seeds for tuning and those with odd seeds for held-out tests; "held_out"
            to use all of them for held-out tests.
        level: The units whose contributions are known: "tokens".
        needs_bypass: Whether the evidence of the whole text must account for at least 95% of the logit's variance.
        fails: What is not true of attention in an unfaithful kind, by construction: "used" (attention affects the
            output), "points" (attention points at the tokens that matter).
        data: The data sets that the kind is built on.
        alignments: The alignment functions that the kind is built with.
    """

    name: str
    truth: str
    description: str
    recipe: Callable[[TrainingInputs], Recipe]
    half: str = "split"
    level: str = "tokens"
    needs_bypass: bool = False
    fails: tuple[str, ...] = ("used", "points")
    data: tuple[str, ...] = ("movie-reviews", "synthetic")
    alignments: tuple[str, ...] = ("additive", "dot")


@cache
def kinds() -> dict[str, Kind]:
    """Return name -> kind for every module of this folder, in alphabetical order."""
    package = importlib.import_module("attnaudit.research.planted")
    registered: list[Kind] = []
    for module in pkgutil.iter_modules(package.__path__):
        registered += getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "KINDS", ())
    return {kind.name: kind for kind in sorted(registered, key=lambda kind: kind.name)}


#: The sizes of every planted model; kinds change the other fields.
SMALL = Architecture(embedding_size=48, hidden_size=24, attention_size=24)


def quick_settings(seed: int, **changes: object) -> Settings:
    """Return settings for a short training with large steps: planted models need a clear label, not a high accuracy."""
    settings = Settings(seed=seed, epochs=4, batch_size=128, learning_rate=1e-2, weight_decay=0.0)
    return msgspec.structs.replace(settings, **changes)


def indicator(vocabulary: Vocabulary, chosen: frozenset[str]) -> Tensor:
    """Return (V,), True at the ids of the chosen words."""
    return torch.tensor([word in chosen for word in vocabulary.entries])


def keep_zero(parameter: Tensor, places: Tensor) -> None:
    """Set the parameter to zero at these places, and keep it there during training."""
    with torch.no_grad():
        parameter.masked_fill_(places, 0.0)
    keep_fixed(parameter, places)


def keep_fixed(parameter: Tensor, places: Tensor) -> None:
    """Keep the parameter unchanged at these places during training. This only works without weight decay."""
    parameter.register_hook(lambda gradient: gradient.masked_fill(places, 0.0))  # type: ignore[no-untyped-call]


def freeze(module: torch.nn.Module) -> None:
    """Exclude all parameters of a module from training."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def class_words(data: Dataset, *, at_least: int = 8) -> tuple[frozenset[str], frozenset[str]]:
    """Return two sets of words (cues, decoys), each correlated with one of the two classes.

    These are the words whose smoothed log odds between the classes are above 0.5 or below -0.5. Sorted by log odds,
    they are assigned to the two sets alternately.

    Args:
        data: Labelled texts of two classes.
        at_least: Words that occur in fewer texts than this are left out.
    """
    counts: dict[str, list[int]] = {}
    for instance in data.instances:
        for word in set(words(instance.text)):
            counts.setdefault(word, [0, 0])[data.classes.index(instance.label or data.classes[0])] += 1
    totals = [sum(pair[c] for pair in counts.values()) for c in (0, 1)]
    odds = {
        word: torch.log(torch.tensor((pos + 1) / (neg + 1) * totals[0] / totals[1])).item()
        for word, (neg, pos) in counts.items()
        if neg + pos >= at_least
    }
    ranked = sorted((word for word in odds if abs(odds[word]) > 0.5), key=lambda word: (odds[word], word))
    return frozenset(ranked[::2]), frozenset(ranked[1::2])
