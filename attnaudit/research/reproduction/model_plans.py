"""Which model: one record says all it is made from, so that equal plans of different papers share one checkpoint."""

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

#: Part of every model's key: raise it when models are made differently, and older ones are trained anew.
BUILD = 1
PLAIN = "plain"
#: bAbI's models answer without the question for tens of epochs, and learn to read it then.
QUESTION_SIZES = {"embedding_size": 50, "hidden_size": 64}
QUESTION_SETTINGS = Settings(epochs=60, learning_rate=3e-3)
KL: Divergence = "kl"


class Plan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. variant: a name in VARIANTS; value: its parameter, where it has one (λ of a twin). divergence: what a
    twin maximises. The seed is in the settings."""

    corpus: str
    architecture: Architecture
    settings: Settings
    variant: str = PLAIN
    value: float | None = None
    divergence: Divergence = KL

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def digest(self) -> str:
        told = msgspec.to_builtins(self)
        if self.divergence == KL:
            del told["divergence"]  # as in plans of before there was a choice
        if self.settings.vectors is None:
            del told["settings"]["vectors"]  # as before
        else:
            del told["settings"]["vectors"]["path"]  # wherever the file is
        build = BUILD + variant(self.variant).build
        return hashlib.sha256(msgspec.json.encode([build, told], order="sorted")).hexdigest()

    @property
    def folder(self) -> str:
        """A name that people can read and that no other plan has."""
        parts = (self.architecture.encoder, self.architecture.alignment, self.architecture.projection)
        variant = "" if self.variant == PLAIN else f"-{self.variant}"
        variant += "" if self.divergence == KL else f"-{self.divergence}"
        variant += "" if self.value is None else f"{self.value:g}"
        return f"{self.corpus}-{'-'.join(parts)}{variant}-seed{self.seed}-{self.digest[:8]}"

    @property
    def base(self) -> Plan | None:
        """The model that this variant is made from, trained before it."""
        name = variant(self.variant).base
        if name is None:
            return None
        return self.made(name, self.value, self.divergence) if variant(name).valued else self.made(name)

    def made(self, name: str, value: float | None = None, divergence: Divergence = KL) -> Plan:
        """The same model as another variant."""
        return msgspec.structs.replace(self, variant=name, value=value, divergence=divergence)

    def with_seed(self, seed: int) -> Plan:
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, seed=seed))

    def with_settings(self, **changed: Any) -> Plan:
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, **changed))

    def starting_from(self, vectors: Vectors) -> Plan:
        """The same model with these word vectors; hidden states that are as wide as embeddings stay so. A model that
        answers questions stays random: its words are few."""
        parts = self.architecture
        if parts.form == "question":
            return self
        directions = 2 if parts.encoder == "bilstm" else 1
        alike = directions * parts.hidden_size == parts.embedding_size
        hidden = vectors.width // directions if alike else parts.hidden_size
        sized = msgspec.structs.replace(parts, embedding_size=vectors.width, hidden_size=hidden)
        return msgspec.structs.replace(self, architecture=sized).with_settings(vectors=vectors)

    def check(self) -> None:
        """Raises ModelError or AuditError for a part, a variant, its value or a setting that cannot be meant."""
        made = variant(self.variant)
        if made.valued != (self.value is not None):
            expected = "a value (λ), such as 0.001" if made.valued else "none"
            raise ModelError(f"Variant '{self.variant}' has the value {self.value}: expected {expected}.")
        known = DIVERGENCES if made.valued else (KL,)
        if self.divergence not in known:
            raise ModelError(
                f"Variant '{self.variant}' has the divergence '{self.divergence}'. {nearest(self.divergence, known)}"
            )
        self.architecture.check()
        self.settings.check()


def architecture(of: Corpus, **parts: Any) -> Architecture:
    """An architecture for the corpus: reading pairs or questions where it holds such.

    Raises ModelError for a part that this version's models do not have."""
    if of.form != "text":
        parts["form"] = of.form
    known = {field.name for field in msgspec.structs.fields(Architecture)}
    for name in parts:
        if name not in known:
            raise ModelError(f"No model of this version has '{name}' ({name}={parts[name]!r}). {nearest(name, known)}")
    made = Architecture(**parts)
    made.check()
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a variant is trained with. job: plain training of the plan. base: the model that the variant is made from;
    None without one."""

    job: TrainingJob
    base: PooledClassifier | None = None

    @property
    def guide(self) -> PooledClassifier:
        assert self.base is not None
        return self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """train: how it is trained, where not as plain models are. base: the variant of the same plan that it is made from.
    valued: whether it has a value. guided: whether its base's weights stand in place of its own, text by text. build:
    raise it when this variant is made differently, as BUILD for all."""

    words: str
    train: Callable[[Plan, Given], Trained] | None = None
    base: str | None = None
    valued: bool = False
    guided: bool = False
    build: int = 0


def _uniform(_plan: Plan, given: Given) -> Trained:
    return train(with_uniform_attention(given.job))


def _keeping(*parts: str) -> Callable[[Plan, Given], Trained]:
    """Take over these modules of the base and train them no further."""

    def made(_plan: Plan, given: Given) -> Trained:
        return train(with_frozen_parts(given.job, given.guide, *parts))

    return made


def _twin(*, frozen: bool = False, longer: int = 1) -> Callable[[Plan, Given], Trained]:
    def made(plan: Plan, given: Given) -> Trained:
        adversary = as_adversary(
            given.job,
            given.guide,
            weight=plan.value or 0.0,
            divergence=plan.divergence,
            frozen=frozen,
            longer=longer,
        )
        return train(adversary)

    return made


def _mlp(job: TrainingJob) -> TrainingJob:
    """Without context, and without what is added to the loss for the sake of states that have one."""
    settings = msgspec.structs.replace(job.settings, tying=0.0, mlm=0.0)
    return replace(job, architecture=context_free(job.architecture), settings=settings)


def _learnt_mlp(_plan: Plan, given: Given) -> Trained:
    return train(_mlp(given.job))


def _uniform_mlp(_plan: Plan, given: Given) -> Trained:
    return train(with_uniform_attention(_mlp(given.job)))


def _imposed_mlp(_plan: Plan, given: Given) -> Trained:
    return train(with_imposed_attention(_mlp(given.job), given.guide))


def _imposed_attention(_plan: Plan, given: Given) -> Trained:
    return train(with_imposed_attention(with_new_seed(given.job), given.guide))


#: name -> how it comes about. A new variant is an entry here.
VARIANTS: dict[str, Variant] = {
    PLAIN: Variant(words="trained as it is"),
    "uniform": Variant(words="trained with uniform attention", train=_uniform),
    "imposed_attention": Variant(
        words="the plain model's attention, text by text; the rest trained anew",
        base=PLAIN,
        train=_imposed_attention,
        guided=True,
    ),
    "frozen_attention": Variant(
        words="parameters of the plain model's attention, frozen; the rest trained anew",
        base=PLAIN,
        train=_keeping("attention"),
        build=1,
    ),
    "fixed_representation": Variant(
        words="embedding and encoder of the plain model, frozen; attention and decoder trained anew",
        base=PLAIN,
        train=_keeping("embedding", "encoder", "query_encoder"),
        build=1,
    ),
    "twin": Variant(
        words="trained to give the plain model's outputs with other attention",
        base=PLAIN,
        valued=True,
        train=_twin(),
    ),
    "adversary": Variant(
        words=f"trained to give the plain model's outputs with other attention, for up to {LONGER} times as long",
        base=PLAIN,
        valued=True,
        train=_twin(longer=LONGER),
    ),
    "twin_frozen": Variant(
        words="the plain model, only its attention trained anew, to give the same outputs with other attention",
        base=PLAIN,
        valued=True,
        train=_twin(frozen=True),
        build=1,
    ),
    "mlp": Variant(words="an MLP without context, with attention of its own", train=_learnt_mlp, build=1),
    "imposed_mlp_uniform": Variant(words="an MLP without context, with uniform attention", train=_uniform_mlp, build=1),
    "imposed_mlp": Variant(
        words="an MLP without context, with the plain model's attention",
        base=PLAIN,
        train=_imposed_mlp,
        guided=True,
        build=1,
    ),
    "imposed_mlp_adversary": Variant(
        words="an MLP without context, with the attention of the plain model's adversary",
        base="adversary",
        valued=True,
        train=_imposed_mlp,
        guided=True,
    ),
}


def variant(name: str) -> Variant:
    """The variant of that name. Raises ModelError with the nearest one."""
    if name not in VARIANTS:
        raise ModelError(f"Unknown variant '{name}'. {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def jain_wallace(of: str, *, encoder: str, alignment: str, projection: str = "softmax", **parts: Any) -> Plan:
    """A model as Jain & Wallace 2019 train it: random embeddings of 300, 128 hidden units (per direction), Adam
    (amsgrad, 1e-3), batches of 32, 8 epochs; questions are read by smaller models, for longer. Raises ModelError for a
    part that this version's models do not have."""
    asked = corpus(of)
    sizes = QUESTION_SIZES if asked.form == "question" else {"embedding_size": 300, "hidden_size": 128}
    built = architecture(
        asked,
        encoder=encoder,
        alignment=alignment,
        projection=projection,
        **{**sizes, "attention_size": sizes["hidden_size"], **parts},
    )
    return Plan(corpus=of, architecture=built, settings=QUESTION_SETTINGS if asked.form == "question" else Settings())
