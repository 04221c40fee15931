"""The description of one training run: its data, architecture and settings, and functions that customise it."""

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

#: Computes the loss to minimise on a batch: (model, forward pass, targets (B,), loss on the labels) -> scalar.
Objective = Callable[[PooledClassifier, ForwardPass, Tensor, Tensor], Tensor]

#: Changes the new model once, before training. For example, it copies or freezes parameters.
Prepare = Callable[[PooledClassifier, Vocabulary], None]

#: Computes the loss of each instance of a batch: (model, forward pass) -> (B,).
InstanceLoss = Callable[[PooledClassifier, ForwardPass], Tensor]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a reference model is trained.

    The optimizer is Adam (amsgrad), without weight decay on the attention's parameters. With two classes, positive
    instances have the weight N / N_pos - 1, where N_pos of N training instances are positive (Jain & Wallace 2019).

    Attributes:
        seed: Seed of all random choices.
        epochs: Number of passes over the training data.
        batch_size: Number of instances per step.
        learning_rate: Learning rate of Adam.
        attention_rate: Factor by which the learning rate is multiplied for the parameters of the attention (Meister et
            al. 2021, appendix B: 1 or 10).
        weight_decay: Weight decay of all parameters except those of the attention.
        dropout: Dropout rate on the embeddings and the context vector.
        word_dropout: Probability that a token is replaced by the unknown word in training.
        min_count: Words that occur less often than this in the training data become the unknown word.
        max_words: Number of words in the vocabulary. Only the most frequent words are kept. None for no limit.
        tying: δ of Tutek & Šnajder 2020. It adds (δ / n) Σ_t ‖h_t - e_t‖² to the loss of an instance with n tokens,
            hidden states h_t and embeddings e_t.
        tying_norm: The same with the distance itself instead of its square: it adds (δ / n) Σ_t ‖h_t - e_t‖. The paper
            has the square (eq. 4). Later code of its first author has the distance (mttk/unity-in-xai-court on GitHub).
        mlm: η of Tutek & Šnajder 2020. It adds η times the loss of predicting masked words to the loss of an instance.
        vectors: Word vectors with which the embedding is initialised; None for random values.
    """

    seed: int = 0
    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-3
    attention_rate: float = 1.0
    weight_decay: float = 1e-5
    dropout: float = 0.0
    word_dropout: float = 0.0
    min_count: int = 2
    max_words: int | None = None
    tying: float = 0.0
    tying_norm: float = 0.0
    mlm: float = 0.0
    vectors: Vectors | None = None

    @property
    def without_context_losses(self) -> Settings:
        """The same settings without the losses on hidden states that depend on the context, for a model without any."""
        return msgspec.structs.replace(self, tying=0.0, tying_norm=0.0, mlm=0.0)

    def check(self) -> None:
        """Raise AuditError if a setting has an invalid value. The message names the setting."""
        require_seed("seed", self.seed)
        counts = {"epochs": self.epochs, "batch size": self.batch_size, "min count": self.min_count}
        if self.max_words is not None:
            counts["max words"] = self.max_words
        for name, count in counts.items():
            if count < 1:
                raise AuditError(f"{name} is {count}: expected a whole number of at least 1.")
        if not 0 < self.learning_rate < math.inf:
            raise AuditError(f"learning rate is {self.learning_rate}: expected a positive number such as 0.001.")
        if not 0 < self.attention_rate < math.inf:
            raise AuditError(f"attention rate is {self.attention_rate}: expected a positive number such as 10.")
        weights = {name: getattr(self, name) for name in ("weight_decay", "tying", "tying_norm", "mlm")}
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise AuditError(f"{name.replace('_', ' ')} is {weight}: expected 0 or more.")
        for name, rate in (("dropout", self.dropout), ("word dropout", self.word_dropout)):
            if not 0 <= rate < 1:
                raise AuditError(f"{name} is {rate}: expected at least 0 and less than 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The data sets of one training run.

    Attributes:
        train: The data on which the model is trained.
        dev: The development data, on which the best epoch is chosen.
        test: The data on which the trained model is evaluated, once; None for no evaluation.
    """

    train: Dataset
    dev: Dataset
    test: Dataset | None = None

    @property
    def parts(self) -> dict[str, Dataset]:
        """The data sets by name: "train", "dev" and, if there are test data, "test"."""
        parts = {"train": self.train, "dev": self.dev}
        return parts if self.test is None else parts | {"test": self.test}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """The description of one training run of a reference model.

    Pass it to `attnaudit.models.training.train`. The functions in `attnaudit.models.training_variants` turn a job into
    a variant, such as training with uniform attention.

    Attributes:
        data: The data for training, for choosing the best epoch, and for evaluation.
        architecture: The architecture of the model.
        settings: The settings of the training.
        vocabulary: The vocabulary of the model; None to build it from the training data.
        prepare: A function that changes the new model before training; None for no change.
        objective: A function that computes the loss to minimise; None to minimise the loss on the labels.
        selection_loss: The loss that selects the best epoch: the epoch with the smallest mean loss on the development
            data. If None, the epoch with the highest F1 is selected, and accuracy breaks ties.
        patience: Training stops after this number of epochs without a new best epoch; None to train all epochs.
        state_file: The file in which the state is saved, and from which training resumes; None to save no state.
        progress: Called after each batch and each epoch; None for no calls.
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
