"""Build a planted model from tables with the score and the evidence of each word, without training it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from attnaudit.instances import Dataset
from attnaudit.models.architecture import Architecture, Planted, PlantedTables
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import RESERVED, Vocabulary
from attnaudit.research.planted.kind import Compiled, Exchange, Recipe

#: The architecture of compiled models. "dot" stands for the product of the state with a vector that selects the score.
COMPILED = Architecture(encoder="average", alignment="dot", hidden_size=1, attention_size=1)


@dataclass(slots=True, kw_only=True)
class WordTables:
    """What each word of a compiled model does. All values start at 0.

    Attributes:
        vocabulary: The words.
        classes: Class names, in the order of the logits.
        settings: How the tables are used.
        score: (V,) attention scores.
        own: (V, K) evidence that attention weighs. The number of outputs K is 1 for two classes, and otherwise the
            number of classes.
        bypass: (V, K) evidence that reaches the decoder whatever the attention weights are.
        marker: (V,) 1 at the words that switch from attention to the bypass.
        scale: Factor of all logits.
        bias: (K,) bias of the logits, which is not multiplied by the scale.
        test: The texts that the model is audited on. None for the test set of the kind's data.
    """

    vocabulary: Vocabulary
    classes: tuple[str, ...]
    settings: PlantedTables = field(default_factory=PlantedTables)
    score: Tensor = field(init=False)
    own: Tensor = field(init=False)
    bypass: Tensor = field(init=False)
    marker: Tensor = field(init=False)
    scale: float = 1.0
    bias: Tensor = field(init=False)
    test: Dataset | None = None

    def __post_init__(self) -> None:
        outputs = outputs_for(self.classes)
        self.settings = msgspec.structs.replace(self.settings, outputs=outputs)
        size = len(self.vocabulary)
        self.score, self.marker, self.bias = torch.zeros(size), torch.zeros(size), torch.zeros(outputs)
        self.own, self.bypass = torch.zeros(size, outputs), torch.zeros(size, outputs)

    @property
    def architecture(self) -> Architecture:
        return msgspec.structs.replace(
            COMPILED,
            embedding_size=self.settings.columns,
            planted=Planted(tables=self.settings),
        )

    def compiled(self) -> Compiled:
        """Return the model with its vocabulary, its classes and its texts."""
        return Compiled(model=self._model(), vocabulary=self.vocabulary, classes=self.classes, test=self.test)

    def _model(self) -> PooledClassifier:
        """Return the model. The padding, start and end tokens get no evidence, whatever the tables contain."""
        model = PooledClassifier(self.architecture, vocabulary_size=len(self.vocabulary), classes=len(self.classes))
        outputs = self.settings.outputs
        table = torch.cat([self.score[:, None], self.own, self.bypass, self.marker[:, None]], dim=1)
        with torch.no_grad():
            model.embedding.weight.copy_(table)
            model.embedding.weight[[RESERVED.index(name) for name in ("<pad>", "<sos>", "<eos>")]] = 0.0
            model.decoder.weight.zero_()
            for part in (1, 1 + outputs):
                model.decoder.weight[:, part : part + outputs] = self.scale * torch.eye(outputs)
            model.decoder.bias.copy_(self.bias)
        return model.eval()


def compiled_recipe(
    write: Callable[[], WordTables],
    *,
    exchange: Exchange | None = None,
    share: float | None = None,
    minimum_accuracy: float = 0.6,
) -> Recipe:
    """Return the recipe of a compiled model.

    Args:
        write: Returns the tables of the model. It is called only if the model is built.
        exchange: How the label is verified. None for the default values of `Exchange`.
        share: The share of texts on which attention is right. None unless the label of the model is "graded".
        minimum_accuracy: The smallest accuracy of the model.
    """
    return Recipe(
        architecture=COMPILED,
        compiled=lambda: write().compiled(),
        exchange=exchange or Exchange(),
        share=share,
        minimum_accuracy=minimum_accuracy,
    )


def outputs_for(classes: tuple[str, ...]) -> int:
    """Return the number of logits of a classifier: 1 for two classes, otherwise one per class."""
    return 1 if len(classes) == 2 else len(classes)


def proportional_scores(evidence: Tensor, *, power: float = 1.0, idle: float = 0.01) -> Tensor:
    """Return scores whose softmax is proportional to (|evidence| + idle) ** power.

    Args:
        evidence: (V, K) evidence, or (V,) magnitudes.
        power: The exponent.
        idle: Added to every magnitude, so that words without evidence also get some weight.

    Returns:
        (V,) scores.
    """
    magnitude = evidence.abs() if evidence.dim() == 1 else evidence.norm(dim=1)
    return power * torch.log(magnitude + idle)
