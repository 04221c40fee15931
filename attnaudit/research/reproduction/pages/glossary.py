"""The symbols and terms of the reports on papers, each with a definition of one line."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A symbol or term.

    Attributes:
        name: The symbol, as reports write it.
        meaning: The definition.
        pattern: A regular expression that finds the symbol in a text.
    """

    name: str
    meaning: str
    pattern: str


SYMBOLS = (
    Symbol(
        name="τ-b",
        meaning="Kendall's rank correlation, corrected for ties: 1 for the same order, −1 for the opposite order. If "
        "not stated otherwise, it compares the tokens of a text, and the number is a mean over texts.",
        pattern="τ-b",
    ),
    Symbol(
        name="τ",
        meaning="A weighted rank correlation between the mean attention on the first, second, … most attended token "
        "and the information of its hidden state about the output. Pairs with more attention weigh more.",
        pattern="(?<!Δ)τ(?!-b)",
    ),
    Symbol(
        name="Δτ",
        meaning="τ of the normal model minus τ of the other model. It is positive if the other model has a lower τ.",
        pattern="Δτ",
    ),
    Symbol(
        name="leave-one-out",
        meaning="The importance of a token, measured by how much the output changes if the token is left out.",
        pattern="leave-one-out",
    ),
    Symbol(
        name="TVD",
        meaning="Total variation distance between two outputs: half the sum of the absolute differences of the class "
        "probabilities, between 0 and 1.",
        pattern=r"\bTVD\b",
    ),
    Symbol(
        name="JSD",
        meaning="Jensen–Shannon divergence between two distributions of attention, between 0 (equal) and "
        "ln 2 = 0.693 nats (no token in common).",
        pattern=r"\bJSD\b",
    ),
    Symbol(
        name="ε",
        meaning="Of adversarial attention: the largest change of the output (TVD) that is allowed.",
        pattern="ε",
    ),
    Symbol(
        name="nat",
        meaning="The unit of information and divergence if logarithms are natural. 1 nat is 1.44 bits.",
        pattern=r"\bnats?\b",
    ),
    Symbol(
        name="H̃",
        meaning="Normalised entropy of a distribution over the n tokens of a text: −Σ p log p / log n. It is 0 if one "
        "token has everything, and 1 if all tokens have the same share.",
        pattern="H̃",
    ),
    Symbol(
        name="additive",
        meaning="The score of a hidden state h and a query q is vᵀ tanh(W h + U q), where v, W and U are learnt "
        "(Bahdanau et al. 2015).",
        pattern=r"\badditive\b",
    ),
    Symbol(
        name="dot",
        meaning="The score of a hidden state is its dot product with a query, which may be learnt. Some papers divide "
        "it by the square root of the width.",
        pattern=r"\bdot\b",
    ),
    Symbol(
        name="deep",
        meaning="The score of a hidden state comes from a network with several layers.",
        pattern=r"\bdeep\b",
    ),
    Symbol(
        name="sparsemax",
        meaning="Turns scores into weights of which many are exactly 0 (Martins & Astudillo 2016), unlike softmax.",
        pattern=r"\bsparsemax\b",
    ),
    Symbol(
        name="λ",
        meaning="Of an adversary: the weight of the difference in attention in its loss, TVD of the outputs minus "
        "λ times the divergence of attention. Of sparsegen: attention is sparsemax(scores / (1 − λ)), which is sparser "
        "for a larger λ.",
        pattern="λ",
    ),
    Symbol(
        name="F1",
        meaning="F1 score: of the second class in alphabetical order if there are two classes, otherwise the mean over "
        "classes. A drop in F1 is positive if F1 falls.",
        pattern=r"\bF1\b",
    ),
    Symbol(
        name="MI(e; h)",
        meaning="Mutual information between the embedding e of a word and its hidden state h, in nats.",
        pattern=r"MI\(e; h\)",
    ),
    Symbol(
        name="concat",
        meaning="The embedding of a word is appended to its hidden state: h = [rnn(e); e].",
        pattern=r"\bconcat\b",
    ),
    Symbol(
        name="residual",
        meaning="The embedding of a word is added to its hidden state: h = e + rnn(e).",
        pattern=r"\bresidual\b",
    ),
    Symbol(
        name="tying, δ",
        meaning="The loss contains δ times the mean distance between hidden states and the embeddings of their words.",
        pattern=r"\btying\b",
    ),
    Symbol(
        name="MLM, η",
        meaning="Masked language modelling: the loss contains η times that of predicting masked words from hidden "
        "states.",
        pattern=r"\bMLM\b",
    ),
)


def symbols_in(text: str) -> list[Symbol]:
    """Return the symbols that a text uses, and those that their definitions use, in the order of SYMBOLS."""
    used = [symbol for symbol in SYMBOLS if re.search(symbol.pattern, text)]
    texts = [text, *(symbol.meaning for symbol in used)]
    return [symbol for symbol in SYMBOLS if any(re.search(symbol.pattern, one) for one in texts)]
