"""What a kind of planted models is, and the recipes by which its models are made. The folder `kinds` has all kinds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import msgspec
import torch
from torch import Tensor

from attnaudit.instances import Dataset
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_job import InstanceLoss, Objective, Prepare, Settings
from attnaudit.models.vocabulary import Vocabulary, words

#: A function of (trained model, its vocabulary, a forward pass over a batch). It returns the contribution of each token
#: to the logit, of shape (B, T).
Contribution = Callable[[PooledClassifier, Vocabulary, ForwardPass], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """The inputs of a recipe: what one planted model is trained from.

    Attributes:
        data: The name of the data set in the population: "movie-reviews", "synthetic", or "made" for texts that the
            recipe makes from the movie reviews.
        alignment: The alignment function of attention: "additive", "dot" or "uniform".
        seed: The seed of training. It also determines which variant of a kind is built.
        train: The training set. For "made", it is that of the movie reviews.
        dev: The development set, on which the best epoch is chosen.
        cues: The words that decide the label. On real text, they are half of the words that are correlated with either
            of the two classes.
        decoys: Other words that are correlated with either class. The models of the kind "decoys" do not use them.
        texts: The test set of the same data, from which recipes make texts.
    """

    data: str
    alignment: str
    seed: int
    train: Dataset
    dev: Dataset
    cues: frozenset[str]
    decoys: frozenset[str]
    texts: Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled model, whose weights are computed directly instead of trained.

    Attributes:
        model: The model.
        vocabulary: The vocabulary of the model.
        classes: Class names, in the order of the logits.
        test: The texts that the model is verified and audited on. None for the test set of the kind's data.
    """

    model: PooledClassifier
    vocabulary: Vocabulary
    classes: tuple[str, ...]
    test: Dataset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """How the label of a model is verified by exchanging tokens (see `verify_exchange`).

    Attributes:
        kept: Words that stay in place, such as a marker that decides how the model works. A text with a kept word
            exchanges tokens only with another text that has one.
        absence: The class that the model predicts if a text has no evidence, such as the class of texts without cue
            words. Texts with this predicted class give tokens to other texts, but get none. None if every class has
            evidence.
        of_evidence: Whether the share of a graded model is a share of the evidence in each text, so that both exchanges
            change the logits in every text. If False, it is a share of the texts.
        rest_decides: Whether the decision of an unfaithful model must change if all tokens but the attended ones are
            exchanged. False if no token decides, for example because the length of the text does.
    """

    kept: frozenset[str] = frozenset()
    absence: str | None = None
    of_evidence: bool = False
    rest_decides: bool = True


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
        selection_loss: Returns a loss for a vocabulary. The epoch with the smallest loss is chosen. None to choose the
            epoch with the best F1.
        finish: Changes the trained model in place. None if nothing has to be changed.
        reference: The recipe of the same model without deceptive training. The accuracy of the deceptive model may be
            at most slightly lower than that of this reference. None for kinds without deception.
        exact: True if the contribution of a token equals, up to rounding, the decrease of the logit when the evidence
            of the token is removed. False if the contribution only marks the tokens that decide the label.
        compiled: Returns the finished model of a kind that is not trained. None to train the model.
        train: The training set, if it is not that of the kind's data.
        dev: The development set, if it is not that of the kind's data.
        test: The texts that the model is verified and audited on, if they are not the test set of the kind's data. They
            are stored with the population.
        share: The share on which attention is right by construction: of the texts, or of the evidence in each text. It
            is required for "graded" kinds only: it is 1 for "faithful" and 0 for "unfaithful" models.
        exchange: How the label is verified if the kind is verified by exchange.
        minimum_accuracy: The smallest accuracy of the model.
    """

    architecture: Architecture
    settings: Settings = field(default_factory=Settings)
    contribution: Contribution | None = None
    prepare: Prepare | None = None
    objective: Callable[[Vocabulary], Objective] | None = None
    selection_loss: Callable[[Vocabulary], InstanceLoss] | None = None
    finish: Callable[[PooledClassifier], None] | None = None
    reference: Recipe | None = None
    exact: bool = True
    compiled: Callable[[], Compiled] | None = None
    train: Dataset | None = None
    dev: Dataset | None = None
    test: Dataset | None = None
    share: float | None = None
    exchange: Exchange = field(default_factory=Exchange)
    minimum_accuracy: float = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of planted model.

    Attributes:
        name: The name of the kind.
        mechanism: The mechanism that the kind shares with other kinds, such as "needles". Kinds that share a mechanism
            are held out together.
        truth: The label of the models: "faithful", "unfaithful", "graded" if attention is right on a known share of the
            texts, or "trend" if the truth is not known. A model gets a label other than "trend" only if measurements
            confirm it.
        description: What is special about the kind. The checkpoints of its models contain this text.
        recipe: Returns the recipe of one model.
        half: "tuning" or "held_out" if all models belong to this half. "split" if models with even seeds belong to the
            tuning half and the others to the held-out half.
        level: The units whose contributions are known: "tokens".
        verified_by: How a label is verified. "ranks": by the rank agreement of attention with known contributions, and
            by neutral embeddings (see `verify_label`). "exchange": by exchanging tokens between texts (see
            `verify_exchange`). "context": by exchanging tokens and states (see `verify_context`).
        needs_bypass: Whether the evidence of the whole text must account for at least 95% of the logit's variance.
        fails: The questions that an unfaithful or graded kind fails by construction: "used" (does attention affect the
            output?) and "points" (does it point at the tokens that matter?). Other kinds do not use this attribute.
        compiled: Whether the weights of the models are computed directly instead of trained. Such models cost little,
            so more of them are built.
        data: The names of the data sets that the kind is built on. The model with seed s uses the data set with the
            index s modulo their number.
        alignments: The alignment functions that the kind is built with. The seeds use them in turn.
    """

    name: str
    mechanism: str
    truth: str
    description: str
    recipe: Callable[[TrainingInputs], Recipe]
    half: str = "tuning"
    level: str = "tokens"
    verified_by: str = "ranks"
    needs_bypass: bool = False
    fails: tuple[str, ...] = ("used", "points")
    compiled: bool = False
    data: tuple[str, ...] = ("movie-reviews", "synthetic")
    alignments: tuple[str, ...] = ("additive", "dot")


def compiled_kind(
    name: str,
    mechanism: str,
    truth: str,
    description: str,
    recipe: Callable[[TrainingInputs], Recipe],
    *,
    half: str = "tuning",
    fails: tuple[str, ...] = ("used", "points"),
    data: tuple[str, ...] = ("made",),
) -> Kind:
    """Return a kind of compiled models, which are not trained. Labels are verified by exchange (see `Kind`)."""
    return Kind(
        name=name,
        mechanism=mechanism,
        truth=truth,
        description=description,
        recipe=recipe,
        half=half,
        fails=fails,
        data=data,
        alignments=("dot",),
        verified_by="exchange",
        compiled=True,
    )


def truth_of_share(share: float) -> str:
    """Return the truth of a compiled kind whose attention is right on a share: "graded" unless it is 0 or 1."""
    return {0.0: "unfaithful", 1.0: "faithful"}.get(share, "graded")


@cache
def kinds() -> dict[str, Kind]:
    """Return the kinds of all modules in the folder `kinds` as a dictionary name -> kind, sorted by name."""
    package = importlib.import_module("attnaudit.research.planted.kinds")
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
