"""What compiled models are made of: texts, the words that decide their labels, and words that only seem to decide."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.instances import Dataset
from attnaudit.models.architecture import PlantedTables
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.compiled_model import WordTables, outputs_for, proportional_scores
from attnaudit.research.planted.kind import TrainingInputs, indicator
from attnaudit.research.planted.made_texts import TextPlan, cue_words, made_texts
from attnaudit.research.planted.word_evidence import METHODS, evidence_of_words, random_numbers, vocabulary_of

#: In a model with a bypass, the evidence that attention carries, as a share of the evidence that the bypass carries.
_FAINT = 0.05
#: Added to the magnitudes to which attention is proportional, so that words without evidence get some weight.
_IDLE = 0.02
#: Subtracted from the attention scores of words that get no attention.
UNATTENDED = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The material of one compiled model.

    Attributes:
        vocabulary: The words.
        classes: Class names, in the order of the logits.
        evidence: (V, K) evidence of the words that decide.
        plausible: (V, K) evidence of words that do not decide. It is 0 where `evidence` is not 0.
        cues: (V,) True at the words that decide. None if all words decide to some degree.
        test: The texts that the model is audited on. None for the test set of the kind's data.
        scale: Factor of all logits.
    """

    vocabulary: Vocabulary
    classes: tuple[str, ...]
    evidence: Tensor
    plausible: Tensor
    cues: Tensor | None = None
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
        halves: If True, a random half of the words decides, and the other half only seems to decide. On synthetic data,
            the cue words decide instead of a random half. If False, all words decide.
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


def cue_material(inputs: TrainingInputs, plan: TextPlan, *, noise: float = 0.03) -> Material:
    """Return material in which inserted cue words decide, and words with sentiment only seem to decide.

    Args:
        inputs: The inputs of the recipe. The texts are made from its test set.
        plan: How the texts are made.
        noise: Largest magnitude of the random evidence that all other words get. The evidence of cue words has
            magnitude 1.
    """
    texts = made_texts(plan, inputs.texts, inputs.seed)
    vocabulary = Vocabulary.build(instance.text for instance in texts.instances)
    outputs = outputs_for(plan.classes)
    amount = noise * (2 * random_numbers(vocabulary, inputs.seed, "noise") - 1)
    evidence = _on_outputs(amount, random_numbers(vocabulary, inputs.seed, "class"), outputs)
    is_cue = torch.zeros(len(vocabulary), dtype=torch.bool)
    for index, (name, cues) in enumerate(cue_words(plan, inputs.texts).items()):
        chosen = indicator(vocabulary, frozenset(cues))
        is_cue |= chosen
        one = torch.eye(len(plan.classes))[index] - 1 / len(plan.classes)
        evidence[chosen] = one if outputs > 1 else torch.tensor([1.0 if name == plan.classes[1] else -1.0])
    learned = dict(zip(vocabulary_of(inputs.train).entries, evidence_of_words(inputs.train, METHODS[0]), strict=True))
    sentiment = torch.tensor([float(learned.get(word, 0.0)) for word in vocabulary.entries]) * ~is_cue
    plausible = _on_outputs(sentiment, random_numbers(vocabulary, inputs.seed, "class"), outputs)
    return Material(
        vocabulary=vocabulary, classes=plan.classes, evidence=evidence, plausible=plausible, test=texts, cues=is_cue
    )


def _on_outputs(amounts: Tensor, chosen: Tensor, outputs: int) -> Tensor:
    """Return evidence of shape (V, K). Each word is evidence for one of the K outputs, with the given amount.

    Args:
        amounts: (V,) The evidence of each word.
        chosen: (V,) Numbers from 0 to 1 that choose the output of each word.
        outputs: The number K of outputs.
    """
    one = torch.nn.functional.one_hot((chosen * outputs).long().clamp(max=outputs - 1), outputs)
    return amounts.unsqueeze(1) * (one if outputs == 1 else one - 1 / outputs)


def attended(material: Material, *, power: float = 1.0, idle: float = _IDLE) -> WordTables:
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


def bypassed(material: Material, *, bypass: str = "sum") -> WordTables:
    """Return an unfaithful model: attention is on plausible words, and the words that decide act through a bypass.

    Args:
        material: What the model is made of.
        bypass: How the evidence of several words is combined (see `PlantedTables`).
    """
    tables = material.tables(PlantedTables(bypass=bypass))
    tables.own = _FAINT * material.plausible
    tables.bypass = material.evidence.clone()
    tables.score = proportional_scores(material.plausible, idle=_IDLE)
    if material.cues is not None:
        # Without this, the cues would share the attention in a text without plausible words.
        tables.score = tables.score - UNATTENDED * material.cues
    return tables
