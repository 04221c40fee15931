"""Variants of a training job. They train copies of a model, for checks that compare the model with such copies.

In a variant, attention is uniform, adversarial or imposed by another model, or parts of the model are copied and frozen
(Wiegreffe & Pinter 2019, "Attention is not not Explanation"; Wen, Subbalakshmi & Yang 2022, §5). Most functions return
a changed job for `attnaudit.models.training.train`:

    train(with_uniform_attention(job))
    train(as_adversary(job, base, weight=0.01))

The arguments `base` and `guide` are models that are not trained. They must be on the CPU and have the vocabulary of the
job.
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

#: The number that `with_new_seed` adds to a seed. It is large enough that no other copy has the new seed.
SEED_OFFSET = 1_000_000
#: The number of possible seeds. The smallest seed is 0, and the largest is one less than this number.
_SEEDS = 2**63


def uniform_attention(architecture: Architecture) -> Architecture:
    """Return the architecture with uniform attention, that is, the weight 1/n on each of the n real tokens.

    Raises:
        ModelError: The architecture has planted states.
    """
    _refuse_planted(architecture)
    return msgspec.structs.replace(architecture, alignment="uniform", projection="softmax", projection_parameter=None)


def context_free(architecture: Architecture) -> Architecture:
    """Return the multilayer perceptron of Wiegreffe & Pinter 2019, §3.3, with the sizes of this architecture.

    Its encoder applies a linear layer and tanh to each token separately. Jain & Wallace 2019 call this encoder
    "average".

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
    """Return a job that trains a model with uniform attention (Wiegreffe & Pinter 2019, §3.1).

    Raises:
        ModelError: The architecture has planted states.
    """
    return replace(job, architecture=uniform_attention(job.architecture))


def with_untrained_attention(job: TrainingJob) -> TrainingJob:
    """Return a job that trains a model whose attention keeps its random initial parameters (Wen et al. 2022, §5.1)."""

    def freeze(model: PooledClassifier, _vocabulary: Vocabulary) -> None:
        model.attention.requires_grad_(False)

    return replace(job, prepare=freeze)


def with_imposed_attention(job: TrainingJob, guide: PooledClassifier) -> TrainingJob:
    """Return a job that trains a model with the attention weights of another model, the guide.

    The model also uses these weights after training. Its own attention is neither trained nor used. If the job has the
    architecture `context_free(architecture)`, the model is the MLP of Wiegreffe & Pinter 2019, §3.3. If the job has the
    architecture of the guide, the model is "Fix Attn" of Wen et al. 2022, §5.1, with learned weights.
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

    The best epoch has the smallest loss on the development data (see `twin_loss`). Training stops after PATIENCE epochs
    without a better epoch.

    Args:
        job: The job to change. The architecture of `base` replaces its architecture.
        base: The model to copy. The copy is trained to have different attention.
        weight: λ, the weight of the divergence.
        divergence: "kl" or "jsd" (see `twin_loss`).
        frozen: Whether to copy and freeze all parameters of `base` except those of its attention. Attention is then
            trained from random values with a new seed, because the gradient of the loss is zero at the attention of
            `base` (Meister et al. 2021, appendix C). If False, all parameters are trained, with the seed of the job.
        longer: The factor by which the number of epochs of the job is multiplied.

    Raises:
        ModelError: `frozen` is True, and the attention of `base` has no parameters.
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
    """Return a job that copies and freezes parts of `base`, and trains the other parts with a new seed.

    Two variants of Wen et al. 2022, §5.1, can be built in this way:

    * "Fix Rep" freezes the parts "embedding" and "encoder", and trains attention from scratch. The paper does not say
      whether the decoder is also trained from scratch. Add "decoder" to freeze it.
    * "Fix Attn" freezes attention, and trains the encoder and the decoder from scratch. The part "attention" stands
      for the parameters of the attention. To freeze the attention weights instead, use `with_imposed_attention`. For
      uniform weights, use `with_uniform_attention`.

    Args:
        job: The job to change. The architecture of `base` replaces its architecture.
        base: The model whose parts are copied.
        *parts: Names of parts (see `copy_and_freeze`).
    """
    return replace(with_new_seed(job), architecture=base.architecture, prepare=copy_and_freeze(base, *parts))


def with_new_seed(job: TrainingJob) -> TrainingJob:
    """Return the job with a new seed, different from the seeds of all other copies.

    With the seed of the base model, the parts that are not copied would start from the same random values as in the
    base model, and training could end with the same parameters again.
    """
    return replace(job, settings=_new_seed(job.settings))


def _new_seed(settings: Settings) -> Settings:
    return msgspec.structs.replace(settings, seed=(settings.seed + SEED_OFFSET) % _SEEDS)


def copy_and_freeze(base: PooledClassifier, *parts: str) -> Prepare:
    """Return a function for `TrainingJob.prepare` that copies parts of `base` into the new model and freezes them.

    Args:
        base: The model whose parts are copied.
        *parts: "embedding", "encoder", "attention" or "decoder". For models that read a query, also "query_encoder" or
            "joint", which are ignored for other models.

    Returns:
        The function. It raises ModelError if a part does not have the same sizes in both models.
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
