"""What compiled models are made of: texts, the words that decide their labels, and words that only look like it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.instances import Dataset
from attnaudit.models.architecture import PlantedTables
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.compiled_model import WordTables, proportional_scores
from attnaudit.research.planted.kinds import TrainingInputs, indicator
from attnaudit.research.planted.word_evidence import METHODS, evidence_of_words, random_numbers, vocabulary_of

#: Of the evidence that the bypass carries, attention carries this share in a model with a bypass.
_FAINT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The material of one compiled model.

    Attributes:
        vocabulary: The words.
        classes: Class names, in the order of the logits.
        evidence: (V, K) evidence of the words that decide.
        plausible: (V, K) evidence of words that do not decide. It is 0 where `evidence` is not.
        test: The texts that the model is audited on. None for the test set of the kind's data.
        scale: Factor of all logits.
    """

    vocabulary: Vocabulary
    classes: tuple[str, ...]
    evidence: Tensor
    plausible: Tensor
    test: Dataset | None = None
    scale: float = 3.0

    def tables(self, settings: PlantedTables | None = None) -> WordTables:
        """Return empty tables for the words, classes and texts."""
        return WordTables(
            vocabulary=self.vocabulary,
            classes=self.classes,
            settings=settings or PlantedTables(),
            scale=self.scale,
            test=self.test,
        )


def learned_material(inputs: TrainingInputs, *, halves: bool = False) -> Material:
    """Return material whose evidence is computed from the training set.

    Args:
        inputs: The inputs of the recipe. The seed selects how evidence is computed.
        halves: If True, a random half of the words decides, and the other half is only plausible. On synthetic data,
            the cue words decide. If False, all words decide.
    """
    data = inputs.train
    vocabulary = vocabulary_of(data)
    evidence = torch.from_numpy(evidence_of_words(data, METHODS[inputs.seed // 2 % 2])).float().unsqueeze(1)
    deciding = torch.ones(len(vocabulary), dtype=torch.bool)
    if halves and inputs.data == "synthetic":
        deciding = indicator(vocabulary, inputs.cues)
    elif halves:
        deciding = random_numbers(vocabulary, inputs.seed, "half") < 0.5
    chosen = deciding.unsqueeze(1)
    return Material(
        vocabulary=vocabulary, classes=data.classes, evidence=evidence * chosen, plausible=evidence * ~chosen
    )


def attended(material: Material, *, power: float = 1.0, idle: float = 0.02) -> WordTables:
    """Return a faithful model: attention is proportional to a power of the evidence that it weighs.

    Args:
        material: What the model is made of.
        power: The exponent.
        idle: Added to the magnitude of evidence, so that words without evidence get some weight.
    """
    tables = material.tables()
    tables.own = material.evidence.clone()
    tables.score = proportional_scores(material.evidence, power=power, idle=idle)
    return tables


def bypassed(material: Material, *, bypass: str = "sum", share: float = _FAINT, idle: float = 0.02) -> WordTables:
    """Return an unfaithful model: attention is on plausible words, and the words that decide take the bypass.

    Args:
        material: What the model is made of.
        bypass: How the evidence of several words is combined (see `PlantedTables`).
        share: Factor of the evidence of the plausible words, which attention weighs.
        idle: Added to the magnitude of the plausible evidence, so that other words get some weight.
    """
    tables = material.tables(PlantedTables(bypass=bypass))
    tables.own = share * material.plausible
    tables.bypass = material.evidence.clone()
    tables.score = proportional_scores(material.plausible, idle=idle)
    return tables
