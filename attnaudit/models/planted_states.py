"""Planted hidden states: an attention score, a token's own evidence, the evidence of the whole text, and features.

Planted states are constructed so that the effect of every token on the output is known. The embedding has three
separate parts. Attention is computed from one half, a token's own evidence from one quarter, and the evidence of the
whole text from the last quarter:

    h_i = [a_i; v_i; s_i; u_i]      logit = Σ_i α_i (w_v v_i + w_s s_i)      α = projection(a)

* u_i are features that are computed from the first part of the embedding, for each token alone or with its context.
* a_i = alignment(u_i) is the score.
* v_i is the token's own evidence.
* s_i is the text's evidence s = Σ_j z_j in the states that contain it, and 0 in all other states.
* w_v and w_s are weights of the decoder.

There is no bias, and an embedding of zeros has no evidence. With fixed attention, token j therefore contributes exactly
α_j w_v v_j + w_s z_j Σ_i α_i to the logit, where the sum is over the states i that contain s.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError
from attnaudit.models.alignments import ALIGNMENTS
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoders import Encoder, encoder
from attnaudit.models.projections import project

#: Columns of a hidden state: the score, the token's own evidence, the text's evidence, and then the features.
SCORE, OWN, TEXT_EVIDENCE = 0, 1, 2
FIRST_FEATURE = 3
#: Smoothing constant of "unit" evidence, v = z / sqrt(z² + SMOOTH²). Its magnitude is slightly below 1.
SMOOTH = 0.01
#: Added to the attention score of the first or last real token if only its state contains the text's evidence.
BONUS = 5.0
_CONTEXT_FREE = ("average", "mlp")


class PlantedEncoder(Encoder):
    """The encoder of a planted model whose embeddings are trained (see `attnaudit.models.architecture.Planted`).

    With the encoder "average" or "mlp", the features of a token depend on this token alone. With other encoders, they
    depend on the context. With every encoder, the evidence of a token depends on this token alone.

    Args:
        architecture: An architecture whose `planted` is not None.

    Raises:
        ModelError: The number of layers is given and is not 1, the embedding has fewer than 4 features, or evidence is
            "scored" although the encoder reads context.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        assert architecture.planted is not None
        self.planted = architecture.planted
        quarter = architecture.embedding_size // 4
        if quarter < 1:
            raise ModelError(
                f"embedding_size is {architecture.embedding_size}, but planted states need an embedding of at least "
                "4 features."
            )
        if architecture.layers not in (None, 1):
            raise ModelError(f"layers is {architecture.layers}, but planted states need an encoder with one layer.")
        if self.planted.evidence == "scored" and architecture.encoder not in _CONTEXT_FREE:
            raise ModelError(
                f"evidence 'scored' with encoder '{architecture.encoder}': the score would depend on the context, so "
                "it would carry the evidence of other tokens. Use encoder 'average'."
            )
        self.sizes = [architecture.embedding_size - 2 * quarter, quarter, quarter]
        if architecture.encoder in _CONTEXT_FREE:
            self.features: nn.Module = nn.Linear(self.sizes[0], architecture.hidden_size)
            feature_count = architecture.hidden_size
        else:
            layers = 1 if architecture.encoder == "transformer" else None
            self.features = encoder(architecture.encoder, self.sizes[0], architecture.hidden_size, layers)
            feature_count = self.features.width
        self.alignment = ALIGNMENTS[architecture.alignment](feature_count, architecture.attention_size)
        self.own = nn.Linear(quarter, 1, bias=False)
        self.text = nn.Linear(quarter, 1, bias=False)
        self.width = FIRST_FEATURE + feature_count

    def parts(self, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split embeddings (..., d) into the parts for attention, the token's own evidence, and the text's evidence."""
        attention, own, text = torch.split(embeddings, self.sizes, dim=-1)
        return attention, own, text

    def evidence(self, embeddings: Tensor, score: Tensor | None = None) -> Tensor:
        """Return the evidence v of each token.

        Args:
            embeddings: (B, T, d) embeddings.
            score: (B, T) attention scores. They are needed only for "scored" evidence.

        Returns:
            (B, T) evidence.
        """
        z = self.own(self.parts(embeddings)[1]).squeeze(-1)
        if self.planted.evidence == "free":
            return torch.as_tensor(z)
        unit = z / torch.sqrt(z * z + SMOOTH * SMOOTH)
        if self.training:  # the curve of `unit` is almost flat, so training uses the gradient of a wider curve
            wide = torch.tanh(z)
            unit = unit.detach() + wide - wide.detach()
        if self.planted.evidence == "scored":
            assert score is not None
            unit = unit * torch.sigmoid(score)
        return torch.as_tensor(unit)

    def text_evidence(self, embeddings: Tensor) -> Tensor:
        """Return the (B, T) terms z of the text's evidence, one per token. Their sum is the text's evidence."""
        z: Tensor = self.text(self.parts(embeddings)[2])
        return z.squeeze(-1)

    def carriers(self, mask: Tensor) -> Tensor:
        """Return the states that contain the text's evidence.

        The first real token follows START, and the last real token precedes END. START and END surround every text.

        Args:
            mask: (B, T) mask, True on tokens.

        Returns:
            (B, T) mask, True on the states that contain the text's evidence.
        """
        if self.planted.label == "nowhere":
            return torch.zeros_like(mask)
        if self.planted.label == "everywhere":
            return mask
        place = mask.long().cumsum(dim=1)
        last = mask.sum(dim=1, keepdim=True) - 1
        carrier = torch.full_like(last, 2) if self.planted.label == "first" else last
        return mask & (place == carrier)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        read = self.parts(embeddings)[0]
        features = self.features(read, mask) if isinstance(self.features, Encoder) else torch.tanh(self.features(read))
        score = self.alignment(features)
        carriers = self.carriers(mask)
        if self.planted.label in ("first", "last"):
            score = score + BONUS * carriers
        text = (self.text_evidence(embeddings) * mask).sum(dim=1, keepdim=True) * carriers
        columns = torch.stack([score, self.evidence(embeddings, score), text], dim=-1)
        return torch.cat([columns, features], dim=-1) * mask.unsqueeze(-1)


class ScoreColumn(nn.Module):
    """Attention over planted states: a projection, such as softmax, of the scores that the states contain.

    It maps hidden states (B, T, m) and a mask (B, T), True on tokens that may receive attention, to weights (B, T).

    Args:
        projection: A module that maps scores (B, T) to weights (B, T).
    """

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return project(self.projection, hidden[..., SCORE], allowed)
