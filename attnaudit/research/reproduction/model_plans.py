"""Plans of models. A plan determines how a model is trained. Papers with equal plans share one checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from attnaudit.errors import ModelError, nearest
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import Trained, train
from attnaudit.models.training_job import Settings, TrainingJob
from attnaudit.models.training_variants import (
    as_adversary,
    context_free,
    with_frozen_parts,
    with_imposed_attention,
    with_new_seed,
    with_uniform_attention,
    with_untrained_attention,
)
from attnaudit.models.word_vectors import Vectors
from attnaudit.records import Record
from attnaudit.research.reproduction.corpora import Corpus, corpus
from attnaudit.retraining import DIVERGENCES, LONGER, Divergence

#: A part of the hash of every plan. Increase it when the training code changes, so that all models are trained again.
BUILD = 1
PLAIN = "plain"
#: Models for bAbI are smaller and are trained for longer. They ignore the question for tens of epochs before they learn
#: to use it.
QUESTION_SIZES = {"embedding_size": 50, "hidden_size": 64}
QUESTION_SETTINGS = Settings(epochs=60, learning_rate=3e-3)
KL: Divergence = "kl"


class Plan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The specification of one model.

    Attributes:
        corpus: The name of the corpus.
        architecture: The parts of the model and their sizes.
        settings: The settings of training, including the seed.
        variant: The name of a variant in VARIANTS.
        value: The parameter of the variant, such as λ of an adversary. None for a variant without a parameter.
        divergence: The divergence that an adversary maximises. It is measured between the attention of the adversary
            and that of the model that it is made from.
    """

    corpus: str
    architecture: Architecture
    settings: Settings
    variant: str = PLAIN
    value: float | None = None
    divergence: Divergence = KL

    @property
    def seed(self) -> int:
        """The seed of training."""
        return self.settings.seed

    @property
    def digest(self) -> str:
        """A hash of the plan and of the build numbers. The path of the word vectors is not part of it."""
        parts = msgspec.to_builtins(self)
        if self.divergence == KL:
            del parts["divergence"]  # The digests of plans that are older than this field must not change.
        if self.settings.attention_rate == 1:
            del parts["settings"]["attention_rate"]  # The same holds for this field and the next ones.
        if self.settings.tying_norm == 0:
            del parts["settings"]["tying_norm"]
        if self.settings.vectors is None:
            del parts["settings"]["vectors"]
        else:
            del parts["settings"]["vectors"]["path"]  # Only the content of the file matters.
        build = BUILD + variant(self.variant).build
        return hashlib.sha256(msgspec.json.encode([build, parts], order="sorted")).hexdigest()

    @property
    def folder(self) -> str:
        """The name of the checkpoint folder. It describes the plan, and is different for every plan."""
        parts = (self.architecture.encoder, self.architecture.alignment, self.architecture.projection)
        variant = "" if self.variant == PLAIN else f"-{self.variant}"
        variant += "" if self.divergence == KL else f"-{self.divergence}"
        variant += "" if self.value is None else f"{self.value:g}"
        return f"{self.corpus}-{'-'.join(parts)}{variant}-seed{self.seed}-{self.digest[:8]}"

    @property
    def base(self) -> Plan | None:
        """The plan of the model that this model is made from. None if it is not made from another model."""
        name = variant(self.variant).base
        if name is None:
            return None
        return self.as_variant(name, self.value, self.divergence) if variant(name).has_value else self.as_variant(name)

    def as_variant(self, name: str, value: float | None = None, divergence: Divergence = KL) -> Plan:
        """Return the same plan with another variant.

        Args:
            name: The name of the variant in VARIANTS.
            value: The parameter of the variant. None for a variant without a parameter.
            divergence: The divergence that an adversary maximises.
        """
        return msgspec.structs.replace(self, variant=name, value=value, divergence=divergence)

    def with_seed(self, seed: int) -> Plan:
        """Return the same plan with another seed of training."""
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, seed=seed))

    def with_settings(self, **changed: Any) -> Plan:
        """Return the same plan with other values of some settings."""
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, **changed))

    @property
    def equal_widths(self) -> bool:
        """Whether the hidden states are as wide as the embeddings."""
        return self._directions * self.architecture.hidden_size == self.architecture.embedding_size

    @property
    def _directions(self) -> int:
        return 2 if self.architecture.encoder == "bilstm" else 1

    def starting_from(self, vectors: Vectors | None) -> Plan:
        """Return the same plan for the embeddings that a run starts from.

        With word vectors, the embeddings get the width of the vectors. If the hidden states are as wide as the
        embeddings, they get this width too. With random embeddings, some corpora need other
        settings (`Corpus.random_epochs`). A plan for questions is returned unchanged, because its vocabulary is small.

        Args:
            vectors: The word vectors. None for random embeddings.
        """
        parts = self.architecture
        if parts.form == "question":
            return self
        if vectors is None:
            of = corpus(self.corpus)
            settings = {"epochs": of.random_epochs, "word_dropout": of.random_word_dropout}
            return self.with_settings(**{name: value for name, value in settings.items() if value is not None})
        hidden = vectors.width // self._directions if self.equal_widths else parts.hidden_size
        sized = msgspec.structs.replace(parts, embedding_size=vectors.width, hidden_size=hidden)
        return msgspec.structs.replace(self, architecture=sized).with_settings(vectors=vectors)

    def check(self) -> None:
        """Validate the plan.

        Raises:
            ModelError: The variant, its value, its divergence or a part of the architecture is invalid.
            AuditError: A setting is invalid.
        """
        chosen = variant(self.variant)
        if chosen.has_value != (self.value is not None):
            expected = "a value (λ), such as 0.001" if chosen.has_value else "none"
            raise ModelError(f"Variant '{self.variant}' has the value {self.value}: expected {expected}.")
        known = DIVERGENCES if chosen.has_value else (KL,)
        if self.divergence not in known:
            raise ModelError(
                f"Variant '{self.variant}' has the unknown divergence '{self.divergence}'. "
                f"{nearest(self.divergence, known)}"
            )
        self.architecture.check()
        self.settings.check()


def architecture(of: Corpus, **parts: Any) -> Architecture:
    """Return an architecture for a corpus. Its form (text, pair or question) is that of the corpus.

    Args:
        of: The corpus.
        parts: Fields of the architecture, with their values.

    Raises:
        ModelError: The architecture has no such field, or a value is invalid.
    """
    if of.form != "text":
        parts["form"] = of.form
    known = {field.name for field in msgspec.structs.fields(Architecture)}
    for name in parts:
        if name not in known:
            raise ModelError(f"Unknown part of a model: {name}={parts[name]!r}. {nearest(name, known)}")
    built = Architecture(**parts)
    built.check()
    return built


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """The inputs for training a variant.

    Attributes:
        job: The training job of the plan, without the changes for the variant.
        base: The model that the variant is made from. None if it is not made from another model.
    """

    job: TrainingJob
    base: PooledClassifier | None = None

    @property
    def guide(self) -> PooledClassifier:
        """The model in `base`. Use it only for variants that are made from another model."""
        assert self.base is not None
        return self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way of training a model.

    Attributes:
        description: The description of the model in its checkpoint.
        train: Trains the model. None for training without changes.
        base: The name of the variant that the model is made from. The rest of the plan is the same. None if the model
            is not made from another model.
        has_value: Whether the plan must have a `value`.
        guided: Whether an audit uses, for each text, the attention weights of the model that this model is made from.
        build: Increase this number when the training of this variant changes, so that its models are trained again.
            BUILD does the same for all variants.
    """

    description: str
    train: Callable[[Plan, TrainingInputs], Trained] | None = None
    base: str | None = None
    has_value: bool = False
    guided: bool = False
    build: int = 0


def _uniform(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_uniform_attention(inputs.job))


def _keeping(*parts: str) -> Callable[[Plan, TrainingInputs], Trained]:
    """Return a function that trains a model with some frozen modules of the model that it is made from."""

    def train_variant(_plan: Plan, inputs: TrainingInputs) -> Trained:
        return train(with_frozen_parts(inputs.job, inputs.guide, *parts))

    return train_variant


def _untrained_attention(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_untrained_attention(inputs.job))


def _twin(*, frozen: bool = False, longer: int = 1) -> Callable[[Plan, TrainingInputs], Trained]:
    def train_variant(plan: Plan, inputs: TrainingInputs) -> Trained:
        adversary = as_adversary(
            inputs.job,
            inputs.guide,
            weight=plan.value or 0.0,
            divergence=plan.divergence,
            frozen=frozen,
            longer=longer,
        )
        return train(adversary)

    return train_variant


def _mlp(job: TrainingJob) -> TrainingJob:
    """Return the training job of an MLP without context.

    The job has no tying loss and no masked-language-model loss, because these losses need context.
    """
    return replace(job, architecture=context_free(job.architecture), settings=job.settings.without_context_losses)


def _learnt_mlp(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(_mlp(inputs.job))


def _uniform_mlp(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_uniform_attention(_mlp(inputs.job)))


def _imposed_mlp(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_imposed_attention(_mlp(inputs.job), inputs.guide))


def _imposed_attention(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_imposed_attention(with_new_seed(inputs.job), inputs.guide))


#: Name -> variant. To add a variant, add an entry here.
VARIANTS: dict[str, Variant] = {
    PLAIN: Variant(description="trained without changes"),
    "uniform": Variant(description="trained with uniform attention", train=_uniform),
    "imposed_attention": Variant(
        description="with the weights that the plain model gives each text; the rest retrained",
        base=PLAIN,
        train=_imposed_attention,
        guided=True,
    ),
    "frozen_attention": Variant(
        description="with the frozen parameters of the plain model's attention; the rest retrained",
        base=PLAIN,
        train=_keeping("attention"),
        build=1,
    ),
    "random_attention": Variant(
        description="with the frozen parameters of an attention that is not trained; the rest trained",
        train=_untrained_attention,
    ),
    "fixed_representation": Variant(
        description="with the frozen embedding and encoder of the plain model; attention and decoder retrained",
        base=PLAIN,
        train=_keeping("embedding", "encoder", "query_encoder"),
        build=1,
    ),
    "twin": Variant(
        description="trained to give the plain model's outputs with different attention",
        base=PLAIN,
        has_value=True,
        train=_twin(),
    ),
    "adversary": Variant(
        description=f"trained for up to {LONGER} times the epochs to give the plain model's outputs with different "
        "attention",
        base=PLAIN,
        has_value=True,
        train=_twin(longer=LONGER),
    ),
    "twin_frozen": Variant(
        description="the plain model with its attention retrained to give the same outputs with different attention",
        base=PLAIN,
        has_value=True,
        train=_twin(frozen=True),
        build=1,
    ),
    "mlp": Variant(description="an MLP without context, with its own attention", train=_learnt_mlp, build=1),
    "imposed_mlp_uniform": Variant(
        description="an MLP without context, with uniform attention", train=_uniform_mlp, build=1
    ),
    "imposed_mlp": Variant(
        description="an MLP without context, with the plain model's attention",
        base=PLAIN,
        train=_imposed_mlp,
        guided=True,
        build=1,
    ),
    "imposed_mlp_adversary": Variant(
        description="an MLP without context, with the attention of the plain model's adversary",
        base="adversary",
        has_value=True,
        train=_imposed_mlp,
        guided=True,
    ),
}


def variant(name: str) -> Variant:
    """Return the variant with the given name.

    Raises:
        ModelError: No variant has this name. The message gives the nearest known name.
    """
    if name not in VARIANTS:
        raise ModelError(f"Unknown variant '{name}'. {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def jain_wallace(of: str, *, encoder: str, alignment: str, projection: str = "softmax", **parts: Any) -> Plan:
    """Return the plan of a model that is trained as in Jain & Wallace 2019.

    The model has random embeddings of width 300 and 128 hidden units (per direction). It is trained for 8 epochs with
    Adam (amsgrad, learning rate 1e-3) and batches of 32. Models for questions are smaller and are trained for longer.

    Args:
        of: The name of the corpus.
        encoder: The name of the encoder.
        alignment: The name of the alignment function of attention.
        projection: The name of the projection that turns scores into weights.
        parts: Other fields of the architecture, with their values.

    Raises:
        DataError: No corpus has this name.
        ModelError: The architecture has no such field, or a value is invalid.
    """
    chosen = corpus(of)
    sizes = QUESTION_SIZES if chosen.form == "question" else {"embedding_size": 300, "hidden_size": 128}
    built = architecture(
        chosen,
        encoder=encoder,
        alignment=alignment,
        projection=projection,
        **{**sizes, "attention_size": sizes["hidden_size"], **parts},
    )
    return Plan(corpus=of, architecture=built, settings=QUESTION_SETTINGS if chosen.form == "question" else Settings())
