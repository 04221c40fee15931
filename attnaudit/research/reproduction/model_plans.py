"""Plans of models. A plan determines how its model is trained, so that papers with equal plans share one checkpoint."""

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
)
from attnaudit.models.word_vectors import Vectors
from attnaudit.records import Record
from attnaudit.research.reproduction.corpora import Corpus, corpus
from attnaudit.retraining import DIVERGENCES, LONGER, Divergence

#: Part of the hash of every plan. Increase it when models are made differently, so that older ones are retrained.
BUILD = 1
PLAIN = "plain"
#: Smaller and trained for longer: models for bAbI ignore the question for tens of epochs before they learn to use it.
QUESTION_SIZES = {"embedding_size": 50, "hidden_size": 64}
QUESTION_SETTINGS = Settings(epochs=60, learning_rate=3e-3)
KL: Divergence = "kl"


class Plan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The specification of one model.

    Attributes:
        corpus: name of the corpus.
        architecture: parts and sizes of the model.
        settings: training settings, with the seed.
        variant: a name in VARIANTS.
        value: the parameter of the variant (λ of an adversary); None for a variant without one.
        divergence: the divergence of attention that an adversary maximises.
    """

    corpus: str
    architecture: Architecture
    settings: Settings
    variant: str = PLAIN
    value: float | None = None
    divergence: Divergence = KL

    @property
    def seed(self) -> int:
        """The seed of the training."""
        return self.settings.seed

    @property
    def digest(self) -> str:
        """A hash of the plan and of the build numbers, without the location of the word vectors."""
        parts = msgspec.to_builtins(self)
        if self.divergence == KL:
            del parts["divergence"]  # plans from before this field existed keep their digest
        if self.settings.vectors is None:
            del parts["settings"]["vectors"]  # likewise
        else:
            del parts["settings"]["vectors"]["path"]  # the content of the file matters, not its path
        build = BUILD + variant(self.variant).build
        return hashlib.sha256(msgspec.json.encode([build, parts], order="sorted")).hexdigest()

    @property
    def folder(self) -> str:
        """The name of the checkpoint folder: readable, and different for every plan."""
        parts = (self.architecture.encoder, self.architecture.alignment, self.architecture.projection)
        variant = "" if self.variant == PLAIN else f"-{self.variant}"
        variant += "" if self.divergence == KL else f"-{self.divergence}"
        variant += "" if self.value is None else f"{self.value:g}"
        return f"{self.corpus}-{'-'.join(parts)}{variant}-seed{self.seed}-{self.digest[:8]}"

    @property
    def base(self) -> Plan | None:
        """The plan of the model that this variant is made from; None if it is not made from another model."""
        name = variant(self.variant).base
        if name is None:
            return None
        return self.as_variant(name, self.value, self.divergence) if variant(name).has_value else self.as_variant(name)

    def as_variant(self, name: str, value: float | None = None, divergence: Divergence = KL) -> Plan:
        """Return the plan of another variant of the same model."""
        return msgspec.structs.replace(self, variant=name, value=value, divergence=divergence)

    def with_seed(self, seed: int) -> Plan:
        """Return the same plan with another seed."""
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, seed=seed))

    def with_settings(self, **changed: Any) -> Plan:
        """Return the same plan with some settings changed."""
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, **changed))

    def starting_from(self, vectors: Vectors) -> Plan:
        """Return the same plan with embeddings that start from word vectors and have their width.

        If the hidden states are as wide as the embeddings, their width changes too. Plans of the form "question" are
        returned unchanged, with random embeddings, because their vocabulary is small.
        """
        parts = self.architecture
        if parts.form == "question":
            return self
        directions = 2 if parts.encoder == "bilstm" else 1
        equal_widths = directions * parts.hidden_size == parts.embedding_size
        hidden = vectors.width // directions if equal_widths else parts.hidden_size
        sized = msgspec.structs.replace(parts, embedding_size=vectors.width, hidden_size=hidden)
        return msgspec.structs.replace(self, architecture=sized).with_settings(vectors=vectors)

    def check(self) -> None:
        """Raise ModelError or AuditError for an invalid part, variant, value or setting."""
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
    """Return an architecture for a corpus, with the form of the corpus (pairs or questions) unless that is "text".

    Raises:
        ModelError: this version's models do not have one of the parts, or its value is invalid.
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
        job: the training job of the plan without changes for the variant.
        base: the model that the variant is made from; None if it is not made from another model.
    """

    job: TrainingJob
    base: PooledClassifier | None = None

    @property
    def guide(self) -> PooledClassifier:
        """The base, which must not be None."""
        assert self.base is not None
        return self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way of making a model.

    Attributes:
        description: description of the model in the card of the checkpoint.
        train: function that trains it; None for plain training.
        base: the variant that it is made from, with otherwise the same plan; None for no other model.
        has_value: whether the plan needs a `value`.
        guided: whether an audit replaces its attention weights by those of its base, for each text.
        build: increase this number when this variant is made differently; BUILD does the same for all variants.
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
    """Return a function that trains a model with these modules of the base, frozen."""

    def train_variant(_plan: Plan, inputs: TrainingInputs) -> Trained:
        return train(with_frozen_parts(inputs.job, inputs.guide, *parts))

    return train_variant


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
    """Return the training job of an MLP without context, and without the tying and mlm losses, which need context."""
    settings = msgspec.structs.replace(job.settings, tying=0.0, mlm=0.0)
    return replace(job, architecture=context_free(job.architecture), settings=settings)


def _learnt_mlp(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(_mlp(inputs.job))


def _uniform_mlp(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_uniform_attention(_mlp(inputs.job)))


def _imposed_mlp(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_imposed_attention(_mlp(inputs.job), inputs.guide))


def _imposed_attention(_plan: Plan, inputs: TrainingInputs) -> Trained:
    return train(with_imposed_attention(with_new_seed(inputs.job), inputs.guide))


#: name -> variant. A new variant is an entry here.
VARIANTS: dict[str, Variant] = {
    PLAIN: Variant(description="trained without changes"),
    "uniform": Variant(description="trained with uniform attention", train=_uniform),
    "imposed_attention": Variant(
        description="with the plain model's attention, text by text; the rest retrained",
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
    """Return a variant by its name. Raises ModelError with the nearest known name if there is none."""
    if name not in VARIANTS:
        raise ModelError(f"Unknown variant '{name}'. {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def jain_wallace(of: str, *, encoder: str, alignment: str, projection: str = "softmax", **parts: Any) -> Plan:
    """Return the plan of a model as Jain & Wallace 2019 train it.

    It has random embeddings of width 300 and 128 hidden units (per direction), and is trained for 8 epochs with Adam
    (amsgrad, learning rate 1e-3) and batches of 32. Models for questions are smaller and are trained for longer.

    Args:
        of: name of the corpus.
        encoder: name of the encoder.
        alignment: name of the alignment function of the attention.
        projection: name of the projection that turns scores into weights.
        parts: further parts of the architecture.

    Raises:
        ModelError: this version's models do not have one of the parts.
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
