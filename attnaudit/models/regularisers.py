"""Terms of the training loss that keep each hidden state close to its word (Tutek & Šnajder 2020, §3.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnaudit.errors import ModelError
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.vocabulary import RESERVED, UNKNOWN

#: The share of words that are chosen for prediction, and the shares of the chosen words that are masked and replaced by
#: random words (Devlin et al. 2019).
CHOSEN, MASKED, REPLACED = 0.15, 0.8, 0.1
#: Largest number of logits in memory at once. Each chosen word has one logit for every word of the vocabulary.
LOGITS = 2**21


def require_equal_widths(model: PooledClassifier, setting: str) -> None:
    """Raise ModelError unless a hidden state has as many features as an embedding.

    Args:
        model: The model to check.
        setting: Name of the setting that needs equal widths, for the message.
    """
    hidden, embedding = model.encoder.width, model.architecture.embedding_size
    if hidden != embedding:
        raise ModelError(
            f"{setting} compares hidden states ({hidden} features) with embeddings ({embedding} features), so both "
            f"must have the same size. Use --embedding-size {hidden}, or change --hidden-size."
        )


def tying(traced: ForwardPass) -> Tensor:
    """Return the mean over instances of (1/n) Σ_t ‖h_t - e_t‖² (Tutek & Šnajder 2020, eq. 4).

    Here h_t is the hidden state and e_t the embedding of token t. n is the number of tokens, including special ones.
    """
    return _mean_over_tokens((traced.hidden - traced.embedded).square().sum(dim=-1), traced.mask)


def tying_norm(traced: ForwardPass) -> Tensor:
    """Return the mean over instances of (1/n) Σ_t ‖h_t - e_t‖, with the symbols of `tying`."""
    return _mean_over_tokens(torch.linalg.vector_norm(traced.hidden - traced.embedded, dim=-1), traced.mask)


def _mean_over_tokens(gaps: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over instances of the mean of their `gaps` (B, T) over tokens."""
    mean: Tensor = ((gaps * mask).sum(dim=1) / mask.sum(dim=1)).mean()
    return mean


def masked_words(model: PooledClassifier, ids: Tensor, mask: Tensor, special: Tensor) -> Tensor:
    """Return the loss of masked language modelling (Tutek & Šnajder 2020, eq. 5).

    Some words are chosen for prediction, and the text is corrupted (see `corrupt`). Each chosen word is predicted from
    its hidden state in the corrupted text. The loss is summed over the words of an instance, so it grows with the
    length of the text. The paper therefore gives the loss a lower weight for long texts.

    The logits are products of hidden states with the embedding matrix. No gradient flows to the matrix through these
    products. It gets gradients only through the embeddings that the encoder reads. The id of the unknown word serves as
    the mask, so unknown words are never chosen for prediction.

    Args:
        model: The model to train.
        ids: (B, T) token ids.
        mask: (B, T) mask, True on tokens.
        special: (B, T) mask, True on special tokens.

    Returns:
        The mean loss over instances, a scalar.
    """
    chosen, corrupted = corrupt(ids, mask & ~special, len(model.embedding.weight))
    hidden = model.encoder(model.dropout(model.embedding(corrupted)), mask)
    summed: Tensor = _WordPrediction.apply(hidden[chosen], model.embedding.weight.detach(), ids[chosen])  # type: ignore[no-untyped-call]
    return summed / len(ids)


class _WordPrediction(torch.autograd.Function):
    """The summed cross-entropy of the logits states @ words.T, computed in parts of at most LOGITS logits.

    The function maps states (N, m), words (V, m) and targets (N,) to a scalar. Only the states get a gradient. The
    forward pass already computes this gradient, so the N × V logits are never stored together.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, words: Tensor, targets: Tensor) -> Tensor:
        summed, gradient = states.new_zeros(()), torch.empty_like(states)
        rows = max(1, LOGITS // len(words))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits = states[part] @ words.T
            target_logits = logits.gather(1, targets[part, None])
            largest = logits.amax(dim=1, keepdim=True)
            exponentials = logits.sub_(largest).exp_()
            total = exponentials.sum(dim=1, keepdim=True)
            summed += (largest + total.log() - target_logits).sum()
            gradient[part] = exponentials @ words / total - words[targets[part]]
        ctx.save_for_backward(gradient)
        return summed

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * output_gradients[0], None, None


def corrupt(ids: Tensor, real: Tensor, vocabulary_size: int) -> tuple[Tensor, Tensor]:
    """Choose words for prediction and corrupt them in the text.

    Each word is chosen with a probability of 15%. Of the chosen words, 80% are masked, 10% are replaced by random
    words, and 10% are kept. Random numbers come from the global generator of torch.

    Args:
        ids: (B, T) token ids.
        real: (B, T) mask, True on real tokens.
        vocabulary_size: Size of the vocabulary. Random words are drawn from it, without special tokens.

    Returns:
        (B, T) mask, True on the chosen words, and the (B, T) corrupted ids.
    """
    chosen = real & (ids != UNKNOWN) & (torch.rand(ids.shape, device=ids.device) < CHOSEN)
    fate = torch.rand(ids.shape, device=ids.device)
    random_words = torch.randint(min(len(RESERVED), vocabulary_size - 1), vocabulary_size, ids.shape, device=ids.device)
    corrupted = ids.masked_fill(chosen & (fate < MASKED), UNKNOWN)
    replaced = chosen & (fate >= MASKED) & (fate < MASKED + REPLACED)
    return chosen, torch.where(replaced, random_words, corrupted)
