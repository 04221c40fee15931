"""What one training needs: data, architecture and settings, and what its variants change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from attnaudit.errors import AuditError, require_seed
from attnaudit.instances import Dataset
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.training_state import TrainingStateFile
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.models.word_vectors import Vectors
from attnaudit.progress import ProgressCallback

#: Replaces the loss of a batch: (model, forward pass, targets (B,), loss of the labels) -> the loss to minimise.
Objective = Callable[[PooledClassifier, ForwardPass, Tensor, Tensor], Tensor]

#: Changes the new model once, before training: to freeze, copy or fix parameters.
Prepare = Callable[[PooledClassifier, Vocabulary], None]

#: Loss of each instance: (model, forward pass) -> (B,)
InstanceLoss = Callable[[PooledClassifier, ForwardPass], Tensor]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a reference model is trained.

    The optimizer is Adam (amsgrad), without weight decay on the attention's parameters. With two classes, positive
    instances have the weight N / N_pos - 1, where N_pos of N training instances are positive (Jain & Wallace 2019).

    Attributes:
        seed: Seed of everything random.
        epochs: Passes over the training data.
        batch_size: Instances per step.
        learning_rate: Step size of Adam.
        weight_decay: Weight decay of all parameters except the attention's.
        dropout: Dropout rate on embeddings and context.
        word_dropout: Probability that a training token is read as the unknown word.
        min_count: Words that occur less often than this in the training data are unknown words.
        max_words: Only this many words, the most frequent ones, are known; None for no limit.
        tying: δ of Tutek & Šnajder 2020: adds (δ / n) Σ_t ‖h_t - e_t‖² to the loss of an instance with n tokens, whose
            hidden states are h_t and whose embeddings are e_t.
        mlm: η of Tutek & Šnajder 2020: adds η times the loss of predicting masked words to an instance's loss.
        vectors: Word vectors to initialise the embedding with; None for random values.
    """

    seed: int = 0
    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    dropout: float = 0.0
    word_dropout: float = 0.0
    min_count: int = 2
    max_words: int | None = None
    tying: float = 0.0
    mlm: float = 0.0
    vectors: Vectors | None = None

    def check(self) -> None:
        """Raise AuditError, naming the setting, if one has an invalid value."""
        require_seed("seed", self.seed)
        counts = {"epochs": self.epochs, "batch size": self.batch_size, "min count": self.min_count}
        if self.max_words is not None:
            counts["max words"] = self.max_words
        for name, count in counts.items():
            if count < 1:
                raise AuditError(f"{name} is {count}: expected a whole number of at least 1.")
        if not 0 < self.learning_rate < math.inf:
            raise AuditError(f"learning rate is {self.learning_rate}: expected a positive number such as 0.001.")
        for name, weight in (("weight decay", self.weight_decay), ("tying", self.tying), ("mlm", self.mlm)):
            if not 0 <= weight < math.inf:
                raise AuditError(f"{name} is {weight}: expected 0 or more.")
        for name, rate in (("dropout", self.dropout), ("word dropout", self.word_dropout)):
            if not 0 <= rate < 1:
                raise AuditError(f"{name} is {rate}: expected at least 0 and less than 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The data sets of one training.

    Attributes:
        train: What the model learns from.
        dev: What the best epoch is chosen on.
        test: What the trained model is evaluated on, once; None to skip this.
    """

    train: Dataset
    dev: Dataset
    test: Dataset | None = None

    @property
    def parts(self) -> dict[str, Dataset]:
        """The data sets by name ("train", "dev" and, if there is one, "test")."""
        parts = {"train": self.train, "dev": self.dev}
        return parts if self.test is None else parts | {"test": self.test}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One training of a reference model: the argument of `attnaudit.models.training.train`.

    `attnaudit.models.training_variants` turns a job into one with, for example, uniform attention.

    Attributes:
        data: The data to train, choose the epoch and evaluate on.
        architecture: The model to build.
        settings: How to train it.
        vocabulary: Known words; None takes them from the training data.
        prepare: Changes the new model before training; None for no change.
        objective: Computes the loss to minimise, given the loss of the labels; None for the latter.
        selection_loss: Chooses the epoch with the smallest mean of this loss on dev; None chooses the epoch with the
            best F1 on dev, then the best accuracy.
        patience: Stop after this number of epochs without a better one; None trains all epochs.
        state_file: Where the training state is saved, and from which training resumes; None saves nothing.
        progress: Called after each batch and each epoch.
    """

    data: TrainingData
    architecture: Architecture = field(default_factory=Architecture)
    settings: Settings = field(default_factory=Settings)
    vocabulary: Vocabulary | None = None
    prepare: Prepare | None = None
    objective: Objective | None = None
    selection_loss: InstanceLoss | None = None
    patience: int | None = None
    state_file: TrainingStateFile | None = None
    progress: ProgressCallback | None = None
