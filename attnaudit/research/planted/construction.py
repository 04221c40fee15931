"""Building blocks of planted models.

The functions fix parts of a model, add terms to its loss, or compute the contribution of each token to the logit.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor, nn

from attnaudit.models.architecture import Architecture, Planted
from attnaudit.models.planted_states import OWN, SCORE, TEXT_EVIDENCE, PlantedEncoder
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.vocabulary import END, START, Vocabulary
from attnaudit.research.planted.kind import SMALL, Contribution, freeze, indicator, keep_fixed, keep_zero


def planted(
    *, alignment: str, evidence: str = "free", label: str = "nowhere", encoder: str = "average"
) -> Architecture:
    """Return the architecture of a small model with planted states.

    Args:
        alignment: The alignment function of attention, such as "additive".
        evidence: How a token's own evidence is computed: "free", "unit" or "scored" (see `Planted`).
        label: Which hidden states contain the evidence of the whole text: "nowhere", "everywhere", "first" or "last"
            (see `Planted`).
        encoder: What attention scores are computed from: "average" (each token alone) or "bilstm".
    """
    return msgspec.structs.replace(
        SMALL, encoder=encoder, alignment=alignment, planted=Planted(evidence=evidence, label=label)
    )


def encoder_of(model: PooledClassifier) -> PlantedEncoder:
    """Return the encoder of a model, which must be a planted encoder."""
    assert isinstance(model.encoder, PlantedEncoder)
    return model.encoder


def fix_decoder(model: PooledClassifier, *, reads: tuple[int, ...]) -> None:
    """Let the decoder read only some columns of the hidden states.

    The weights of these columns start at 1 and are trained. All other weights and the bias stay 0.

    Args:
        model: The model to change.
        reads: The columns, such as `OWN`.
    """
    unread = torch.ones_like(model.decoder.weight, dtype=torch.bool)
    unread[:, list(reads)] = False
    keep_zero(model.decoder.weight, unread)
    with torch.no_grad():  # With a weight of 0, evidence would have no gradient in the first step.
        model.decoder.weight.masked_fill_(~unread, 1.0)
    keep_zero(model.decoder.bias, torch.ones_like(model.decoder.bias, dtype=torch.bool))


def silence_evidence(model: PooledClassifier, *, own: Tensor | None = None, text: Tensor | None = None) -> None:
    """Set the evidence of some words to zero, and keep it zero during training.

    The tokens START and END always get no evidence.

    Args:
        model: The model to change.
        own: (V,) True at the words that get no evidence of their own. None for no words.
        text: (V,) True at the words that are left out of the evidence of the whole text. None for no words.
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

    If attention were trained, it would become correlated with evidence. Training first lowers the scores of frequent
    words, and frequent words have little evidence.
    """
    encoder = encoder_of(model)
    freeze(encoder.features)
    freeze(encoder.alignment)
    read_by_attention = torch.zeros_like(model.embedding.weight, dtype=torch.bool)
    encoder.parts(read_by_attention)[0].fill_(True)
    keep_fixed(model.embedding.weight, read_by_attention)


def amplify_evidence(model: PooledClassifier, factor: float) -> None:
    """Multiply the initial evidence of each single word by a factor.

    The factor is applied to the embeddings. If the model has "unit" evidence (see `Planted`), this evidence is computed
    from the multiplied embeddings.
    """
    with torch.no_grad():
        encoder_of(model).parts(model.embedding.weight)[1].mul_(factor)


def remove_biases(model: PooledClassifier) -> None:
    """Set the biases of the linear layers of the encoder and the decoder to zero, and keep them zero during training.

    An embedding of zeros then carries no evidence. The model must be an ordinary classifier without planted states.
    """
    for module in (*model.encoder.modules(), model.decoder):
        if isinstance(module, nn.Linear) and module.bias is not None:
            keep_zero(module.bias, torch.ones_like(module.bias, dtype=torch.bool))


def logit_terms(model: PooledClassifier, traced: ForwardPass) -> tuple[Tensor, Tensor]:
    """Return the two terms that each token of a planted model adds to the logit.

    Returns:
        Two tensors of shape (B, T): what each token adds through its own evidence, and what it adds through the
        evidence of the whole text.
    """
    encoder, weight = encoder_of(model), model.decoder.weight[0]
    own = traced.weights * traced.hidden[..., OWN] * weight[OWN]
    carried = (traced.weights * encoder.carriers(traced.mask)).sum(dim=1, keepdim=True)
    return own, encoder.text_evidence(traced.embedded) * carried * weight[TEXT_EVIDENCE]


def score_variance(traced: ForwardPass, among: Tensor) -> Tensor:
    """Return the variance of attention scores within texts, as a term of the loss.

    Without this term, training makes the scores depend on the frequency of the words. Frequency is correlated with
    evidence, so the scores would then be correlated with evidence too.

    Args:
        traced: A forward pass over a batch.
        among: (B, T) True at the tokens whose scores are compared.

    Returns:
        () The mean over these tokens of the squared distance from the mean score of their text.
    """
    score = traced.hidden[..., SCORE]
    mean = (score * among).sum(dim=1, keepdim=True) / among.sum(dim=1, keepdim=True).clamp(min=1)
    variance: Tensor = ((score - mean).square() * among).sum() / among.sum().clamp(min=1)
    return variance


def score_evidence_correlation(model: PooledClassifier, traced: ForwardPass, among: Tensor) -> Tensor:
    """Return the squared correlation of attention scores with the evidence of tokens, as a term of the loss.

    The evidence of the whole text is a sum over its tokens. For each text, the tokens are ranked by the magnitude of
    their summand, and the scores are correlated with these ranks. The mean of the correlations over texts is squared.
    Gradients flow through the scores only. If the term is small, attention does not show which tokens determine the
    output. Without the term, training makes the scores depend on the frequency of words, and frequent words have little
    evidence.

    Args:
        model: A planted model.
        traced: A forward pass of the model over a batch.
        among: (B, T) True at the tokens to correlate over.

    Returns:
        () A number from 0 to 1.
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

    If a single hidden state carries the evidence of its text, the correlation leaves out the token of this state.
    """
    encoder = encoder_of(model)
    excluded = encoder.carriers(traced.mask) if encoder.planted.label in ("first", "last") else ~traced.mask
    return loss + 10.0 * score_evidence_correlation(model, traced, traced.real & ~excluded)


def planted_contributions(model: PooledClassifier, _vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
    """Return the contribution of each token of a planted model to the logit.

    Returns:
        (B, T) contributions. Their sum over the real tokens of a text is the logit.
    """
    own, text = logit_terms(model, traced)
    return own + text


def state_contributions(model: PooledClassifier, _vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
    """Return the contribution of each token of an ordinary classifier to the logit.

    The classifier must be context-free and have no biases.

    Returns:
        (B, T) contributions α_i w·h_i, with attention weight α_i, decoder weights w and hidden state h_i.
    """
    contribution: Tensor = traced.weights * (traced.hidden @ model.decoder.weight[0])
    return contribution


def word_contributions(chosen: frozenset[str]) -> Contribution:
    """Return a function that gives a contribution of 1 to the chosen words and of 0 to all others.

    Args:
        chosen: The words that decide the label. They are known from how the data are generated.
    """

    def contributions(_model: PooledClassifier, vocabulary: Vocabulary, traced: ForwardPass) -> Tensor:
        return indicator(vocabulary, chosen)[traced.ids].float()

    return contributions
