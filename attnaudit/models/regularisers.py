"""What training adds to the loss so that hidden states keep their words in view (Tutek & Šnajder 2020, §3.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnaudit.errors import ModelError
from attnaudit.models.pooled_classifier import Pass, PooledClassifier
from attnaudit.models.vocabulary import RESERVED, UNKNOWN

#: Share of the words that are to be predicted; of these, shares that are masked and replaced (Devlin et al. 2019).
CHOSEN, MASKED, REPLACED = 0.15, 0.8, 0.1
#: Logits of masked words that are held at a time: they grow as the vocabulary times the length of the texts.
LOGITS = 2**21


def require_equal_widths(model: PooledClassifier, what: str) -> None:
    """Raises ModelError unless a hidden state is as wide as an embedding."""
    states, embedded = model.encoder.width, model.architecture.embedding_size
    if states != embedded:
        raise ModelError(
            f"{what} compares hidden states ({states} wide) with embeddings ({embedded} wide): "
            f"give --embedding-size {states}, or another --hidden-size."
        )


def tying(traced: Pass) -> Tensor:
    """Mean over instances of (1/n) Σ_t ‖h_t - e_t‖² (eq. 4), over all tokens but padding."""
    gaps = (traced.hidden - traced.embedded).square().sum(dim=-1) * traced.mask
    return (gaps.sum(dim=1) / traced.mask.sum(dim=1)).mean()


def masked_words(model: PooledClassifier, ids: Tensor, mask: Tensor, special: Tensor) -> Tensor:
    """Masked language modelling (eq. 5) on ids, mask and special (B, T): mean over instances of the summed
    cross-entropy of the chosen words, each predicted from its state of the corrupted text. The sum is why the paper
    lowers the weight where texts are long.

    The decoder is the embedding itself, held fixed: no gradient passes through it, while as an input the embedding
    learns. The unknown word stands for the mask; it is never chosen, since it hides which word it was.
    """
    chosen, corrupted = corrupt(ids, mask & ~special, len(model.embedding.weight))
    hidden = model.encoder(model.dropout(model.embedding(corrupted)), mask)
    summed: Tensor = _Words.apply(hidden[chosen], model.embedding.weight.detach(), ids[chosen])  # type: ignore[no-untyped-call]
    return summed / len(ids)


class _Words(torch.autograd.Function):
    """states (N, m), words (V, m), targets (N,) -> summed cross-entropy of states @ words.T, with a gradient for the
    states alone, taken at once: N × V logits are never held, only LOGITS of them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, words: Tensor, targets: Tensor) -> Tensor:
        summed, gradient = states.new_zeros(()), torch.empty_like(states)
        rows = max(1, LOGITS // len(words))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits = states[part] @ words.T
            told = logits.gather(1, targets[part, None])
            largest = logits.amax(dim=1, keepdim=True)
            shares = logits.sub_(largest).exp_()
            total = shares.sum(dim=1, keepdim=True)
            summed += (largest + total.log() - told).sum()
            gradient[part] = shares @ words / total - words[targets[part]]
        ctx.save_for_backward(gradient)
        return summed

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * given[0], None, None


def corrupt(ids: Tensor, real: Tensor, vocabulary_size: int) -> tuple[Tensor, Tensor]:
    """ids, real (B, T) -> which words are chosen, and the ids with these masked (80%), replaced by a random word (10%)
    or left as they are (10%). Draws from torch's global random state."""
    chosen = real & (ids != UNKNOWN) & (torch.rand(ids.shape, device=ids.device) < CHOSEN)
    fate = torch.rand(ids.shape, device=ids.device)
    words = torch.randint(min(len(RESERVED), vocabulary_size - 1), vocabulary_size, ids.shape, device=ids.device)
    corrupted = ids.masked_fill(chosen & (fate < MASKED), UNKNOWN)
    replaced = chosen & (fate >= MASKED) & (fate < MASKED + REPLACED)
    return chosen, torch.where(replaced, words, corrupted)
