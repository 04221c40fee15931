"""The kinds of planted models, and the recipes by which models are made.

To add a kind, add a module with a `KINDS` tuple to this folder. Nothing else has to change.
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

#: A function of (trained model, its vocabulary, a forward pass over a batch). It returns the contribution of each token
#: to the logit, of shape (B, T).
Contribution = Callable[[PooledClassifier, Vocabulary, ForwardPass], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """The inputs of a recipe: what one planted model is trained from.

    Attributes:
        data: The name of the data set in the population: "movie-reviews" or "synthetic".
        alignment: The alignment function of attention: "additive", "dot" or "uniform".
        seed: The seed of training. It also determines which variant of a kind is built.
        train: The training set.
        dev: The development set, on which the best epoch is chosen.
        cues: The words that decide the label. On real text, they are half of the words that are correlated with one
            class.
        decoys: Other words that are correlated with one class. The models of the kind "decoys" do not use them.
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
        contribution: Returns the contribution of each token, which is known by construction. None for kinds without a
            known truth.
        prepare: Changes the untrained model in place. None if nothing has to be changed.
        objective: Returns the training objective for a vocabulary. None to train with the usual loss alone.
        finish: Changes the trained model in place. None if nothing has to be changed.
        reference: The recipe of the same model without deception. The accuracy of the deceptive model may be at most
            slightly lower than that of the reference. None for kinds without deception.
        exact: True if the contribution of a token equals the decrease of the logit when its evidence is removed, up to
            rounding. False if the contribution only marks the tokens that decide the label.
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
        truth: The label of the models: "faithful" or "unfaithful", or "trend" if the truth is not known. A model is
            labelled "faithful" or "unfaithful" only if measurements confirm the label.
        description: What is special about the kind, for the checkpoints of its models.
        recipe: Returns the recipe of one model.
        half: "split" if models with even seeds belong to the tuning half and the others to the held-out half.
            "held_out" if all models belong to the held-out half.
        level: The units whose contributions are known: "tokens".
        needs_bypass: Whether the evidence of the whole text must account for at least 95% of the logit's variance.
        fails: The questions that an unfaithful kind fails by construction: "used" (does attention affect the output?)
            and "points" (does it point at the tokens that matter?). The value has no meaning for other kinds.
        data: The names of the data sets that the kind is built on.
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
    """Return the kinds of all modules in this folder as a dictionary name -> kind, sorted by name."""
    package = importlib.import_module("attnaudit.research.planted")
    registered: list[Kind] = []
    for module in pkgutil.iter_modules(package.__path__):
        registered += getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "KINDS", ())
    return {kind.name: kind for kind in sorted(registered, key=lambda kind: kind.name)}


#: The sizes of all planted models. Each kind changes only the other fields.
SMALL = Architecture(embedding_size=48, hidden_size=24, attention_size=24)


def quick_settings(seed: int, **changes: object) -> Settings:
    """Return settings for short training with a high learning rate.

    Planted models need a clear label, but not a high accuracy.

    Args:
        seed: The seed of training.
        changes: Other fields of the settings, with their values.
    """
    settings = Settings(seed=seed, epochs=4, batch_size=128, learning_rate=1e-2, weight_decay=0.0)
    return msgspec.structs.replace(settings, **changes)


def indicator(vocabulary: Vocabulary, chosen: frozenset[str]) -> Tensor:
    """Return a Boolean tensor of shape (V,) that is True at the ids of the chosen words."""
    return torch.tensor([word in chosen for word in vocabulary.entries])


def keep_zero(parameter: Tensor, places: Tensor) -> None:
    """Set some elements of a parameter to zero, and keep them zero during training.

    This only works without weight decay.

    Args:
        parameter: The parameter.
        places: True at the elements. It has the shape of the parameter.
    """
    with torch.no_grad():
        parameter.masked_fill_(places, 0.0)
    keep_fixed(parameter, places)


def keep_fixed(parameter: Tensor, places: Tensor) -> None:
    """Keep some elements of a parameter unchanged during training. This only works without weight decay.

    Args:
        parameter: The parameter.
        places: True at the elements. It must be broadcastable to the shape of the parameter.
    """
    parameter.register_hook(lambda gradient: gradient.masked_fill(places, 0.0))  # type: ignore[no-untyped-call]


def freeze(module: torch.nn.Module) -> None:
    """Exclude all parameters of a module from training."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)


def class_words(data: Dataset, *, at_least: int = 8) -> tuple[frozenset[str], frozenset[str]]:
    """Return two disjoint sets of words, cues and decoys. Each word is correlated with one of the two classes.

    A word is correlated with a class if its smoothed log odds between the classes are above 0.5 or below -0.5. These
    words are sorted by their log odds and assigned to the two sets alternately.

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
