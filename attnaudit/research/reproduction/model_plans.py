"""Plans of models. A plan determines everything that its model is made from, so that papers with equal plans share one
checkpoint."""

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

#: Part of the key of every model. Raise it when models are made differently, so that older ones are retrained.
BUILD = 1
PLAIN = "plain"
#: Models for bAbI ignore the question for tens of epochs before they learn to read it.
QUESTION_SIZES = {"embedding_size": 50, "hidden_size": 64}
QUESTION_SETTINGS = Settings(epochs=60, learning_rate=3e-3)
KL: Divergence = "kl"


class Plan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model.

    Attributes:
        corpus: name of the corpus.
        architecture: parts and sizes of the model.
        settings: how it is trained; they hold the seed.
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
        """A hash of everything that the model is made from."""
        parts = msgspec.to_builtins(self)
        if self.divergence == KL:
            del parts["divergence"]  # plans that are older than this field keep their digest
        if self.settings.vectors is None:
            del parts["settings"]["vectors"]  # the same for this one
        else:
            del parts["settings"]["vectors"]["path"]  # the content of the file counts, not its place
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
        """The plan of the model that this variant is made from; None where it is made from no other model."""
        name = variant(self.variant).base
        if name is None:
            return None
        return self.as_variant(name, self.value, self.divergence) if variant(name).has_value else self.as_variant(name)

    def as_variant(self, name: str, value: float | None = None, divergence: Divergence = KL) -> Plan:
        """The plan of another variant of the same model."""
        return msgspec.structs.replace(self, variant=name, value=value, divergence=divergence)

    def with_seed(self, seed: int) -> Plan:
        """The same plan with another seed."""
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, seed=seed))

    def with_settings(self, **changed: Any) -> Plan:
        """The same plan with some settings changed."""
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, **changed))

    def starting_from(self, vectors: Vectors) -> Plan:
        """The same plan with embeddings that start from word vectors, and as wide as these.

        Hidden states that are as wide as the embeddings stay so. Models that answer questions keep random embeddings,
        since their vocabulary is small.
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
                f"Variant '{self.variant}' has the divergence '{self.divergence}'. {nearest(self.divergence, known)}"
            )
        self.architecture.check()
        self.settings.check()


def architecture(of: Corpus, **parts: Any) -> Architecture:
    """An architecture for a corpus; it reads pairs or questions where the corpus has them.

    Raises:
        ModelError: this version's models do not have one of the parts.
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
    """What a variant is trained from.

    Attributes:
        job: the plain training of the plan.
        base: the model that the variant is made from; None where it is made from no other model.
    """

    job: TrainingJob
    base: PooledClassifier | None = None

    @property
    def guide(self) -> PooledClassifier:
        """The base of a variant that has one."""
        assert self.base is not None
        return self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way of making a model.

    Attributes:
        description: what the model is, for the card of the checkpoint.
        train: how it is trained; None for plain training.
        base: the variant of the same plan that it is made from; None for none.
        has_value: whether it has a parameter, the value of the plan.
        guided: whether the attention of its base replaces its own, text by text.
        build: raise it when this variant is made differently, as BUILD is raised for all of them.
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
    """Train with these modules of the base, frozen."""

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
    """The training of an MLP without context, and without the loss terms for hidden states that have a context."""
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
    """A variant by its name. Raises ModelError with the nearest known name."""
    if name not in VARIANTS:
        raise ModelError(f"Unknown variant '{name}'. {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def jain_wallace(of: str, *, encoder: str, alignment: str, projection: str = "softmax", **parts: Any) -> Plan:
    """A model as Jain & Wallace 2019 train it: random embeddings of 300, 128 hidden units (per direction), Adam
    (amsgrad, 1e-3), batches of 32, 8 epochs. Questions are read by smaller models that are trained for longer.

    Args:
        of: name of the corpus.
        encoder: name of the encoder.
        alignment: alignment of the attention.
        projection: projection of the attention's scores.
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
