"""Training another copy of a model, to compare with: with attention that is uniform, imposed, kept, or drawn away from
a base model's (Wiegreffe & Pinter 2019, "Attention is not not Explanation"; Wen, Subbalakshmi & Yang 2022, §5).

A base model takes no part in training and is on the CPU; its vocabulary is that of the copy. Everything else is as in
`attnaudit.models.training.train`, which raises the errors.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError
from attnaudit.instances import Dataset
from attnaudit.models.pooled_classifier import Architecture, PooledClassifier, Query
from attnaudit.models.training import Prepare, Settings, Trained, train
from attnaudit.models.training_state import Unfinished
from attnaudit.models.twin_adversary import twin_loss, twin_objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.progress import ProgressCallback
from attnaudit.retraining import LONGER, PATIENCE

#: What `anew` adds to a seed: more than anyone counts up to, so that no other copy of the model has it.
ANEW = 1_000_000


def uniform(architecture: Architecture) -> Architecture:
    """The same with the weight 1/n on every real token. Raises ModelError for planted states."""
    return _built_anew(architecture, alignment="uniform", projection="softmax", leave="projection_parameter")


def context_free(architecture: Architecture) -> Architecture:
    """The MLP of Wiegreffe & Pinter 2019, §3.4, of the same sizes: a linear map and tanh of each token alone, which is
    the encoder that Jain & Wallace 2019 call average. Raises ModelError for planted states."""
    return _built_anew(architecture, encoder="average", states="plain", leave="layers")


def _built_anew(architecture: Architecture, *, leave: str, **changes: str) -> Architecture:
    if architecture.planted is not None:
        raise ModelError("The model's states are planted, not learnt: it cannot be trained anew. Audit it without.")
    kept = {name: getattr(architecture, name) for name in architecture.__struct_fields__ if name != leave}
    return Architecture(**kept | changes)


def train_uniform(
    training: Dataset,
    dev: Dataset,
    *,
    architecture: Architecture,
    settings: Settings,
    vocabulary: Vocabulary | None = None,
    test: Dataset | None = None,
    progress: ProgressCallback | None = None,
    unfinished: Unfinished | None = None,
) -> Trained:
    """The same architecture with uniform attention from the first step on (Wiegreffe & Pinter 2019, §3.1)."""
    return train(
        training,
        dev,
        architecture=uniform(architecture),
        settings=settings,
        vocabulary=vocabulary,
        test=test,
        progress=progress,
        unfinished=unfinished,
    )


def train_imposed(
    guide: PooledClassifier,
    training: Dataset,
    dev: Dataset,
    *,
    architecture: Architecture,
    settings: Settings,
    vocabulary: Vocabulary,
    test: Dataset | None = None,
    progress: ProgressCallback | None = None,
    unfinished: Unfinished | None = None,
) -> Trained:
    """A model in which the weights of `guide` stand in place of its own, text by text, in training and after. Of
    `context_free(architecture)` it is the MLP of Wiegreffe & Pinter 2019, §4.1; of the guide's own architecture it is
    "Fix Attn" of Wen et al. 2022, §5.1, with the learnt weights. Its own attention is not trained and never used."""

    def prepare(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
        model.attention.requires_grad_(False)
        model.imposed = weights_of(guide)

    return train(
        training,
        dev,
        architecture=architecture,
        settings=settings,
        vocabulary=vocabulary,
        test=test,
        progress=progress,
        unfinished=unfinished,
        prepare=prepare,
    )


def weights_of(guide: PooledClassifier) -> Callable[[Tensor, Tensor, Tensor, Query | None], Tensor]:
    """(ids, mask, special, query) -> (B, T) weights of the guide in evaluation mode, without a graph."""
    guide.eval()

    def of(ids: Tensor, mask: Tensor, special: Tensor, query: Query | None) -> Tensor:
        with torch.no_grad():
            return guide.trace(ids, mask, special, query).weights

    return of


def train_twin(
    base: PooledClassifier,
    training: Dataset,
    dev: Dataset,
    *,
    weight: float,
    divergence: str = "kl",
    frozen: bool = False,
    longer: int = LONGER,
    settings: Settings,
    vocabulary: Vocabulary,
    test: Dataset | None = None,
    progress: ProgressCallback | None = None,
    unfinished: Unfinished | None = None,
) -> Trained:
    """A copy that is trained to answer as `base` does while its attention goes elsewhere: see `twin_loss` for weight
    and divergence. The epoch with the smallest loss on `dev` is kept, of `longer` times those in `settings`; training
    stops after PATIENCE without a better one.

    frozen: the parameters of `base`, and only attention is trained, drawn from another seed: from the base's own
    attention, where the loss has no slope, it could not start (Meister et al. 2021, app. C). Otherwise all parameters
    are new, from the seed in `settings`. Raises ModelError when frozen attention has nothing to train.
    """
    if frozen and not any(True for _ in base.attention.parameters()):
        raise ModelError(
            f"The model's attention ({base.architecture.alignment}) has no parameters, so that no adversary with "
            "frozen states can be trained. Use frozen=False."
        )
    return train(
        training,
        dev,
        architecture=base.architecture,
        settings=msgspec.structs.replace(anew(settings) if frozen else settings, epochs=longer * settings.epochs),
        vocabulary=vocabulary,
        test=test,
        progress=progress,
        unfinished=unfinished,
        prepare=keep(base, "embedding", "encoder", "query_encoder", "joint", "decoder") if frozen else None,
        objective=twin_objective(base, weight=weight, divergence=divergence),
        nearest=twin_loss(base, weight=weight, divergence=divergence),
        patience=PATIENCE,
    )


def train_keeping(
    base: PooledClassifier,
    training: Dataset,
    dev: Dataset,
    *parts: str,
    settings: Settings,
    vocabulary: Vocabulary,
    test: Dataset | None = None,
    progress: ProgressCallback | None = None,
    unfinished: Unfinished | None = None,
) -> Trained:
    """A copy that has these parts of `base` (see `keep`); the rest is trained on the labels, drawn from another seed.

    "Fix Rep" of Wen et al. 2022, §5.1 keeps what attention reads, "embedding" and "encoder"; they say that the
    attention is trained from scratch, and not whether the decoder is: add "decoder" to keep it too. "Fix Attn" keeps
    attention while encoder and decoder are trained from scratch: its parameters as "attention" here, its weights by
    `train_imposed`, uniform weights by `train_uniform`. Raises ModelError where the sizes differ.
    """
    return train(
        training,
        dev,
        architecture=base.architecture,
        settings=anew(settings),
        vocabulary=vocabulary,
        test=test,
        progress=progress,
        unfinished=unfinished,
        prepare=keep(base, *parts),
    )


def anew(settings: Settings) -> Settings:
    """The same with another seed. Parts that are trained beside parts of a base model would from its own seed begin
    where the base's began, and go the same way again."""
    return msgspec.structs.replace(settings, seed=(settings.seed + ANEW) % 2**63)


def keep(base: PooledClassifier, *parts: str) -> Prepare:
    """A `prepare` for `train`: these parts ("embedding", "encoder", "attention", "decoder") are the base's, and stay.
    So do "query_encoder" and "joint" of models that read a query; others have none, and go without. Raises ModelError
    where the sizes differ."""

    def prepare(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
        for part in parts:
            ours: nn.Module | None = getattr(model, part)
            if ours is None:
                continue
            try:
                ours.load_state_dict(getattr(base, part).state_dict())
            except RuntimeError as error:
                raise ModelError(
                    f"The base model's {part} does not fit the new model's: give both the same architecture and "
                    "vocabulary."
                ) from error
            ours.requires_grad_(False)

    return prepare
