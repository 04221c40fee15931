"""Building blocks of planted models: fix parts of a model, and compute the contributions of its tokens."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.models.architecture import Architecture, Planted
from attnaudit.models.planted_states import OWN, SCORE, TEXT_EVIDENCE, PlantedEncoder
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.vocabulary import END, START, Vocabulary
from attnaudit.research.planted.kinds import SMALL, Contribution, freeze, indicator, keep_fixed, keep_zero


def planted(
    *, alignment: str, evidence: str = "free", label: str = "nowhere", encoder: str = "average"
) -> Architecture:
    """Return the architecture of a small model with planted states.

    Args:
        alignment: The alignment function of attention.
        evidence: How a token's own evidence is formed: "free", "unit" or "scored".
        label: Which states carry the evidence of the whole text: "nowhere", "everywhere", "first" or "last".
        encoder: What attention reads: "average" (each token alone) or "bilstm".
    """
    return msgspec.structs.replace(
        SMALL, encoder=encoder, alignment=alignment, planted=Planted(evidence=evidence, label=label)
    )


def encoder_of(model: PooledClassifier) -> PlantedEncoder:
    """Return the planted encoder of a model."""
    assert isinstance(model.encoder, PlantedEncoder)
    return model.encoder


def fix_decoder(model: PooledClassifier, *, reads: tuple[int, ...]) -> None:
    """Let the decoder read only these columns of the states, with weight 1 at first and without a bias."""
    unread = torch.ones_like(model.decoder.weight, dtype=torch.bool)
    unread[:, list(reads)] = False
    keep_zero(model.decoder.weight, unread)
    with torch.no_grad():  # with weight 0 the evidence would get no gradient in the first step
        model.decoder.weight.masked_fill_(~unread, 1.0)
    keep_zero(model.decoder.bias, torch.ones_like(model.decoder.bias, dtype=torch.bool))


def silence_evidence(model: PooledClassifier, *, own: Tensor | None = None, text: Tensor | None = None) -> None:
    """Set the evidence of some words to zero and keep it there. START and END never have evidence.

    Args:
        model: The model to change.
        own: (V,) True at the words without own evidence.
        text: (V,) True at the words that add nothing to the evidence of the whole text.
    """
    encoder, weight = encoder_of(model), model.embedding.weight
    silent = torch.zeros_like(weight, dtype=torch.bool)
    _, own_part, text_part = encoder.parts(silent)
    for part, chosen in ((own_part, own), (text_part, text)):
        part[[START, END]] = True
        if chosen is not None:
            part[chosen] = True
    keep_zero(weight, silent)


def freeze_random_attention(model: PooledClassifier) -> None:
    """Exclude all parameters of attention from training, so that they keep their random initial values.

    Training would first lower the scores of frequent words, which have little evidence, so that attention would become
    correlated with evidence.
    """
    encoder = encoder_of(model)
    freeze(encoder.features)
    freeze(encoder.alignment)
    read_by_attention = torch.zeros_like(model.embedding.weight, dtype=torch.bool)
    encoder.parts(read_by_attention)[0].fill_(True)
    keep_fixed(model.embedding.weight, read_by_attention)


def amplify_evidence(model: PooledClassifier, factor: float) -> None:
    """Multiply the initial own evidence of every word, before any smoothing, by a factor."""
    with torch.no_grad():
        encoder_of(model).parts(model.embedding.weight)[1].mul_(factor)


def remove_biases(model: PooledClassifier) -> None:
    """Remove all biases of an ordinary classifier, so that an embedding of zeros carries no evidence."""
    for module in (*model.encoder.modules(), model.decoder):
        if isinstance(module, nn.Linear) and module.bias is not None:
            keep_zero(module.bias, torch.ones_like(module.bias, dtype=torch.bool))


def logit_terms(model: PooledClassifier, traced: ForwardPass) -> tuple[Tensor, Tensor]:
    """Return two terms (B, T) of each token in the logit: its own evidence, and its part in the text's evidence."""
    encoder, weight = encoder_of(model), model.decoder.weight[0]
    own = traced.weights * traced.hidden[..., OWN] * weight[OWN]
    carried = (traced.weights * encoder.carriers(traced.mask)).sum(dim=1, keepdim=True)
    return own, encoder.text_evidence(traced.embedded) * carried * weight[TEXT_EVIDENCE]


def score_variance(traced: ForwardPass, among: Tensor) -> Tensor:
    """Return the variance of attention scores within texts, as a term of the loss.

    Without this term, training makes the scores of these tokens depend on the frequency of the words, with which
    evidence is correlated.

    Args:
        traced: A forward pass over a batch.
        among: (B, T) True at the tokens whose scores are compared.
    """
    score = traced.hidden[..., SCORE]
    mean = (score * among).sum(dim=1, keepdim=True) / among.sum(dim=1, keepdim=True).clamp(min=1)
    variance: Tensor = ((score - mean).square() * among).sum() / among.sum().clamp(min=1)
    return variance


def score_evidence_correlation(model: PooledClassifier, traced: ForwardPass, among: Tensor) -> Tensor:
    """Return how strongly attention scores are correlated with the evidence of the text, as a term of the loss.

    For each text, scores are correlated with the ranks of the magnitudes of the tokens' parts in the text's evidence.
    The term is the squared mean of these correlations over texts. Gradients flow through the scores only. If the term
    is small, attention does not show which tokens decide. Without it, training makes the scores depend on the frequency
    of words, and frequent words have little evidence.

    Args:
        model: The model.
        traced: A forward pass over a batch.
        among: (B, T) True at the tokens to correlate over.
    """
    evidence = encoder_of(model).text_evidence(traced.embedded).detach().abs()
    pairs = among[:, :, None] & among[:, None, :]
    rank = (torch.sign(evidence[:, :, None] - evidence[:, None, :]) * pairs).sum(dim=2)
    count = among.sum(dim=1, keepdim=True).clamp(min=1)
    score = traced.hidden[..., SCORE]
    score = (score - (score * among).sum(dim=1, keepdim=True) / count) * among
    length = (score.square().sum(dim=1) * rank.square().sum(dim=1) + 1e-12).sqrt()
    return ((score * rank).sum(dim=1) / length).mean().square()


def uncorrelated_objective(model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
    """Return the loss of the labels plus 10 times `score_evidence_correlation` over real tokens.

    A single state that carries the evidence of the text is left out of the correlation.
    """
    encoder = encoder_of(model)
    excluded = encoder.carriers(traced.mask) if encoder.planted.label in ("first", "last") else ~traced.mask
    return loss + 10.0 * score_evidence_correlation(model, traced, traced.real & ~excluded)


def planted_contributions(model: PooledClassifier, _vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
    """Return the contributions (B, T) of a planted model. They sum to the logit over real tokens."""
    own, text = logit_terms(model, traced)
    return own + text


def state_contributions(model: PooledClassifier, _vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
    """Return the contributions α_i w·h_i, (B, T), of an ordinary context-free classifier without biases."""
    contribution: Tensor = traced.weights * (traced.hidden @ model.decoder.weight[0])
    return contribution


def word_contributions(chosen: frozenset[str]) -> Contribution:
    """Return a contribution function: 1 at the chosen words, which decide by construction of the data, else 0."""

    def contributions(_model: PooledClassifier, vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
        return indicator(vocabulary, chosen)[traced.ids].float()

    return contributions
