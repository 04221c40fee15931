"""What the kinds share: fixing parts of a planted model, and its contributions as its construction gives them."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.models.architecture import Architecture, Planted
from attnaudit.models.planted_states import OWN, SCORE, TEXT_EVIDENCE, PlantedEncoder
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.vocabulary import END, START, Vocabulary
from attnaudit.research.planted.kinds import SMALL, Contribution, freeze, hold, indicator, keep_zero


def planted(
    *, alignment: str, evidence: str = "free", label: str = "nowhere", encoder: str = "average"
) -> Architecture:
    """A small model with planted states."""
    return msgspec.structs.replace(
        SMALL, encoder=encoder, alignment=alignment, planted=Planted(evidence=evidence, label=label)
    )


def encoder_of(model: PooledClassifier) -> PlantedEncoder:
    assert isinstance(model.encoder, PlantedEncoder)
    return model.encoder


def fix_decoder(model: PooledClassifier, *, reads: tuple[int, ...]) -> None:
    """A decoder without bias that reads these columns of the states only."""
    closed = torch.ones_like(model.decoder.weight, dtype=torch.bool)
    closed[:, list(reads)] = False
    keep_zero(model.decoder.weight, closed)
    with torch.no_grad():  # evidence learns from the first step on, and its sign is its own
        model.decoder.weight.masked_fill_(~closed, 1.0)
    keep_zero(model.decoder.bias, torch.ones_like(model.decoder.bias, dtype=torch.bool))


def silence(model: PooledClassifier, *, own: Tensor | None = None, text: Tensor | None = None) -> None:
    """Words (V,) whose own evidence, or part in the text's evidence, stays zero. START and END never have any."""
    encoder, weight = encoder_of(model), model.embedding.weight
    closed = torch.zeros_like(weight, dtype=torch.bool)
    _, own_part, text_part = encoder.parts(closed)
    for part, chosen in ((own_part, own), (text_part, text)):
        part[[START, END]] = True
        if chosen is not None:
            part[chosen] = True
    keep_zero(weight, closed)


def as_drawn(model: PooledClassifier) -> None:
    """Attention stays as it was drawn. Trained, it would turn from frequent words first, which have little evidence."""
    encoder = encoder_of(model)
    freeze(encoder.features)
    freeze(encoder.alignment)
    read = torch.zeros_like(model.embedding.weight, dtype=torch.bool)
    encoder.parts(read)[0].fill_(True)
    hold(model.embedding.weight, read)


def loud(model: PooledClassifier, times: float) -> None:
    """Make own evidence `times` larger than it is drawn."""
    with torch.no_grad():
        encoder_of(model).parts(model.embedding.weight)[1].mul_(times)


def no_bias(model: PooledClassifier) -> None:
    """An ordinary classifier in which an embedding of zeros is no evidence."""
    for module in (*model.encoder.modules(), model.decoder):
        if isinstance(module, nn.Linear) and module.bias is not None:
            keep_zero(module.bias, torch.ones_like(module.bias, dtype=torch.bool))


def terms(model: PooledClassifier, traced: ForwardPass) -> tuple[Tensor, Tensor]:
    """What each token contributes to the logit, by its own evidence and through the text's: two of (B, T)."""
    encoder, weight = encoder_of(model), model.decoder.weight[0]
    own = traced.weights * traced.hidden[..., OWN] * weight[OWN]
    carried = (traced.weights * encoder.carriers(traced.mask)).sum(dim=1, keepdim=True)
    return own, encoder.text_evidence(traced.embedded) * carried * weight[TEXT_EVIDENCE]


def spread(traced: ForwardPass, among: Tensor) -> Tensor:
    """Variance of the scores of these tokens (B, T) within their text. Taught to be small, the scores of tokens that
    attention need not tell apart do not drift with how frequent a word is, and so with its evidence."""
    score = traced.hidden[..., SCORE]
    mean = (score * among).sum(dim=1, keepdim=True) / among.sum(dim=1, keepdim=True).clamp(min=1)
    varied: Tensor = ((score - mean).square() * among).sum() / among.sum().clamp(min=1)
    return varied


def related(model: PooledClassifier, traced: ForwardPass, among: Tensor) -> Tensor:
    """Squared mean correlation, within texts, of the scores of these tokens (B, T) with the rank of their part in the
    text's evidence, which takes no part in training. Attention that this keeps small says nothing about what decides:
    left alone, scores drift with how frequent a word is, and frequent words have little evidence."""
    evidence = encoder_of(model).text_evidence(traced.embedded).detach().abs()
    pairs = among[:, :, None] & among[:, None, :]
    rank = (torch.sign(evidence[:, :, None] - evidence[:, None, :]) * pairs).sum(dim=2)
    count = among.sum(dim=1, keepdim=True).clamp(min=1)
    score = traced.hidden[..., SCORE]
    score = (score - (score * among).sum(dim=1, keepdim=True) / count) * among
    length = (score.square().sum(dim=1) * rank.square().sum(dim=1) + 1e-12).sqrt()
    return ((score * rank).sum(dim=1) / length).mean().square()


def unrelated(model: PooledClassifier, traced: ForwardPass, _targets: Tensor, loss: Tensor) -> Tensor:
    """An objective: learn the labels, with attention unrelated to the text's evidence."""
    encoder = encoder_of(model)
    alone = encoder.carriers(traced.mask) if encoder.planted.label in ("first", "last") else ~traced.mask
    return loss + 10.0 * related(model, traced, traced.real & ~alone)


def by_construction(model: PooledClassifier, _vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
    """Contributions (B, T) of a planted model; they sum to the logit over real tokens."""
    own, text = terms(model, traced)
    return own + text


def by_state(model: PooledClassifier, _vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
    """Contributions (B, T) of an ordinary context-free classifier without bias: α_i w·h_i."""
    contribution: Tensor = traced.weights * (traced.hidden @ model.decoder.weight[0])
    return contribution


def by_words(chosen: frozenset[str]) -> Contribution:
    """1 on words that decide by the construction of the data, else 0."""

    def of(_model: PooledClassifier, vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
        return indicator(vocabulary, chosen)[traced.ids].float()

    return of
