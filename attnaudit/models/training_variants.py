"""Variants of a training job: attention that is uniform, imposed, or adversarial, and parts that are copied and frozen.

They train the copies that a model is compared with (Wiegreffe & Pinter 2019, "Attention is not not Explanation";
Wen, Subbalakshmi & Yang 2022, §5). Each function returns a changed job for `attnaudit.models.training.train`:

    train(with_uniform_attention(job))
    train(as_adversary(job, base, weight=0.01))

A base model must be on the CPU and have the vocabulary of the job. It is not trained.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import AttentionSource, PooledClassifier, Query
from attnaudit.models.training_job import Prepare, Settings, TrainingJob
from attnaudit.models.twin_adversary import twin_loss, twin_objective
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.retraining import LONGER, PATIENCE

#: Added to a seed by `with_new_seed`. It is large, so that the new seed is none of those that users give to copies.
SEED_OFFSET = 1_000_000
#: Largest seed, exclusive.
_SEEDS = 2**63


def uniform_attention(architecture: Architecture) -> Architecture:
    """Return the architecture with the weight 1/n on every real token.

    Raises:
        ModelError: The architecture has planted states.
    """
    _refuse_planted(architecture)
    return msgspec.structs.replace(architecture, alignment="uniform", projection="softmax", projection_parameter=None)


def context_free(architecture: Architecture) -> Architecture:
    """Return the multilayer perceptron of Wiegreffe & Pinter 2019, §3.4, with the sizes of this architecture.

    It applies a linear layer and tanh to each token separately, which Jain & Wallace 2019 call the encoder "average".

    Raises:
        ModelError: The architecture has planted states.
    """
    _refuse_planted(architecture)
    return msgspec.structs.replace(architecture, encoder="average", states="plain", layers=None)


def _refuse_planted(architecture: Architecture) -> None:
    if architecture.planted is not None:
        raise ModelError(
            "The model's states are planted, not learned, so it cannot be retrained. Audit it without the checks that "
            "train copies of the model."
        )


def with_uniform_attention(job: TrainingJob) -> TrainingJob:
    """Return a job that trains with uniform attention from the first step on (Wiegreffe & Pinter 2019, §3.1).

    Raises:
        ModelError: The architecture has planted states.
    """
    return replace(job, architecture=uniform_attention(job.architecture))


def with_imposed_attention(job: TrainingJob, guide: PooledClassifier) -> TrainingJob:
    """Return a job that trains a model with the attention weights of `guide`, which it also uses after training.

    With `context_free(architecture)` this is the MLP of Wiegreffe & Pinter 2019, §4.1. With the guide's own
    architecture it is "Fix Attn" of Wen et al. 2022, §5.1, with the learned weights. The model's own attention is
    neither trained nor used.
    """

    def impose(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
        model.attention.requires_grad_(False)
        model.imposed_attention = attention_of(guide)

    return replace(job, prepare=impose)


def attention_of(guide: PooledClassifier) -> AttentionSource:
    """Return a function that computes the guide's attention weights in evaluation mode, without gradients."""
    guide.eval()

    def weights(ids: Tensor, mask: Tensor, special: Tensor, query: Query | None) -> Tensor:
        with torch.no_grad():
            return guide.trace(ids, mask, special, query).weights

    return weights


def as_adversary(
    job: TrainingJob,
    base: PooledClassifier,
    *,
    weight: float,
    divergence: str = "kl",
    frozen: bool = False,
    longer: int = LONGER,
) -> TrainingJob:
    """Return a job that trains a copy of `base` to give the same outputs with attention as different as possible.

    The best epoch is the one with the smallest loss on dev (see `twin_loss`). Training stops after PATIENCE epochs
    without a better one.

    Args:
        job: Its architecture is replaced by that of `base`.
        base: The model to differ from.
        weight: λ, the weight of the divergence.
        divergence: "kl" or "jsd".
        frozen: Copy and freeze all parameters of `base` except those of its attention. Attention is trained from
            random values of a new seed, because the gradient of the loss is zero at the base's own attention (Meister
            et al. 2021, appendix C). If False, all parameters are trained, from the job's seed.
        longer: The job's number of epochs is multiplied by this.

    Raises:
        ModelError: `frozen` is True, but the attention of `base` has no parameters.
        AuditError: The divergence is unknown.
    """
    if frozen and not any(True for _ in base.attention.parameters()):
        raise ModelError(
            f"The model's attention ({base.architecture.alignment}) has no parameters, so there is nothing to train "
            "while its states are frozen. Use frozen=False."
        )
    if frozen:
        shared_parts = ("embedding", "encoder", "query_encoder", "joint", "decoder")
        job = replace(with_new_seed(job), prepare=copy_and_freeze(base, *shared_parts))
    settings = msgspec.structs.replace(job.settings, epochs=longer * job.settings.epochs)
    return replace(
        job,
        architecture=base.architecture,
        settings=settings,
        objective=twin_objective(base, weight=weight, divergence=divergence),
        selection_loss=twin_loss(base, weight=weight, divergence=divergence),
        patience=PATIENCE,
    )


def with_frozen_parts(job: TrainingJob, base: PooledClassifier, *parts: str) -> TrainingJob:
    """Return a job that copies and freezes parts of `base` and trains the other parts, from a new seed.

    "Fix Rep" of Wen et al. 2022, §5.1, keeps what attention reads, "embedding" and "encoder". The paper says that
    attention is trained from scratch, but not whether the decoder is: add "decoder" to keep it too. "Fix Attn" keeps
    attention, while encoder and decoder are trained from scratch: use "attention" here to keep its parameters,
    `with_imposed_attention` to keep its weights, and `with_uniform_attention` for uniform weights.

    Args:
        job: Its architecture is replaced by that of `base`.
        base: The model to copy from.
        parts: Names of parts, as `copy_and_freeze` takes them.
    """
    return replace(with_new_seed(job), architecture=base.architecture, prepare=copy_and_freeze(base, *parts))


def with_new_seed(job: TrainingJob) -> TrainingJob:
    """Return the job with a seed that no other copy has.

    With the seed of the base model, the parts that are not copied from it would start from the same random values as
    its own parts, and could become the same again.
    """
    return replace(job, settings=_new_seed(job.settings))


def _new_seed(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, seed=(settings.seed + SEED_OFFSET) % _SEEDS)


def copy_and_freeze(base: PooledClassifier, *parts: str) -> Prepare:
    """Return a `prepare` function that copies parts of `base` into the new model and keeps them fixed in training.

    Args:
        base: The model to copy from.
        parts: "embedding", "encoder", "attention", "decoder"; "query_encoder" and "joint" for models that read a
            query, which are ignored for others.

    Returns:
        A function for `TrainingJob.prepare`. It raises ModelError if the sizes of the models differ.
    """

    def prepare(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
        for part in parts:
            module: nn.Module | None = getattr(model, part)
            if module is None:
                continue
            try:
                module.load_state_dict(getattr(base, part).state_dict())
            except RuntimeError as error:
                raise ModelError(
                    f"The base model's {part} does not fit the new model. Use the same architecture and vocabulary "
                    "for both."
                ) from error
            module.requires_grad_(False)

    return prepare
