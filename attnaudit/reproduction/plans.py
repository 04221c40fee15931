"""Which model: one record says all it is made from, so that equal plans of different papers share one checkpoint."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from attnaudit.errors import ModelError, nearest
from attnaudit.records import Record
from attnaudit.reproduction.corpora import Corpus, corpus
from attnaudit.zoo.model import Architecture, PooledClassifier
from attnaudit.zoo.text import Vocabulary
from attnaudit.zoo.training import Objective, Prepare, Settings

#: Part of every model's key: raise it when a variant is made differently, and older models are trained anew.
BUILD = 1
PLAIN = "plain"


class Plan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. variant: a name in VARIANTS; value: its parameter, where it has one. The seed is in the settings."""

    corpus: str
    architecture: Architecture
    settings: Settings
    variant: str = PLAIN
    value: float | None = None

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode([BUILD, self], order="sorted")).hexdigest()

    @property
    def folder(self) -> str:
        """A name that people can read and that no other plan has."""
        parts = (self.architecture.encoder, self.architecture.alignment, self.architecture.projection)
        variant = (
            "" if self.variant == PLAIN else f"-{self.variant}" + ("" if self.value is None else f"{self.value:g}")
        )
        return f"{self.corpus}-{'-'.join(parts)}{variant}-seed{self.seed}-{self.digest[:8]}"

    @property
    def base(self) -> Plan | None:
        """The plain model that this variant is made from, trained before it."""
        if not variant(self.variant).based:
            return None
        return msgspec.structs.replace(self, variant=PLAIN, value=None)

    def with_seed(self, seed: int) -> Plan:
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, seed=seed))

    def with_settings(self, **changed: Any) -> Plan:
        return msgspec.structs.replace(self, settings=msgspec.structs.replace(self.settings, **changed))

    def check(self) -> None:
        """Raises ModelError or AuditError for a part, a variant or a setting that there is not."""
        variant(self.variant)
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
class Variant:
    """based: whether it needs the plain model of the same plan. prepare, objective: what `train` is given, made from
    the plan's value and the plain model (None unless based)."""

    words: str
    based: bool = False
    prepare: Callable[[float | None, PooledClassifier | None], Prepare] | None = None
    objective: Callable[[float | None, PooledClassifier | None], Objective] | None = None


def _kept(*frozen: str) -> Callable[[float | None, PooledClassifier | None], Prepare]:
    """Take over these modules of the plain model and train them no further."""

    def made(_value: float | None, base: PooledClassifier | None) -> Prepare:
        def prepare(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
            for name in frozen:
                module = getattr(model, name)
                module.load_state_dict(copy.deepcopy(getattr(base, name).state_dict()))
                module.requires_grad_(False)

        return prepare

    return made


def _away(value: float | None, base: PooledClassifier | None) -> Objective:
    """TVD(p_a, p_b) - λ KL(α_a ‖ α_b), mean over instances (Wiegreffe & Pinter 2019, eq. 2)."""
    assert base is not None

    def objective(_model: PooledClassifier, traced: Any, _targets: Any, _loss: Any) -> torch.Tensor:
        with torch.no_grad():
            original = base.trace(traced.ids, traced.mask, traced.special)
        moved = (_probabilities(traced.logits) - _probabilities(original.logits)).abs().sum(-1) / 2
        log_ratio = traced.weights.clamp_min(1e-12).log() - original.weights.clamp_min(1e-12).log()
        apart = (traced.weights * log_ratio).sum(-1)
        found: torch.Tensor = (moved - (value or 0.0) * apart).mean()
        return found

    return objective


def _probabilities(logits: torch.Tensor) -> torch.Tensor:
    if logits.shape[-1] == 1:
        positive = torch.sigmoid(logits)
        return torch.cat([1 - positive, positive], dim=-1)
    return torch.softmax(logits, dim=-1)


#: name -> how it comes about. A new variant is an entry here.
VARIANTS: dict[str, Variant] = {
    PLAIN: Variant(words="trained as it is"),
    "frozen_attention": Variant(
        words="attention of the plain model, frozen; the rest trained anew", based=True, prepare=_kept("attention")
    ),
    "fixed_representation": Variant(
        words="embedding and encoder of the plain model, frozen; attention and decoder trained anew",
        based=True,
        prepare=_kept("embedding", "encoder"),
    ),
    "twin": Variant(
        words="trained to give the plain model's outputs with other attention", based=True, objective=_away
    ),
}


def variant(name: str) -> Variant:
    """The variant of that name. Raises ModelError with the nearest one."""
    if name not in VARIANTS:
        raise ModelError(f"Unknown variant '{name}'. {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def jain_wallace(of: str, *, encoder: str, alignment: str, projection: str = "softmax", **parts: Any) -> Plan:
    """A model as Jain & Wallace 2019 train it: random embeddings of 300, 128 hidden units (per direction), Adam
    (amsgrad, 1e-3), batches of 32, 8 epochs. Raises ModelError for a part that this version's models do not have."""
    built = architecture(
        corpus(of),
        encoder=encoder,
        alignment=alignment,
        projection=projection,
        **{"embedding_size": 300, "hidden_size": 128, "attention_size": 128, **parts},
    )
    return Plan(corpus=of, architecture=built, settings=Settings())
