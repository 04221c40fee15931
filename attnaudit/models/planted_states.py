"""Hidden states of known content: a score, a token's own evidence, the evidence of the whole text, and features.

The embedding has three parts that share nothing: what attention reads (half of it), what a token's own evidence reads
and what the text's evidence reads (a quarter each). So it is known from construction what moves the output:

    h_i = [a_i; v_i; s_i; u_i]      logit = Σ_i α_i (w_v v_i + w_s s_i)      α = projection(a)

with features u_i of the first part (of the token alone, or of a BiLSTM), score a_i = alignment(u_i), own evidence v_i,
and the text's evidence s = Σ_j z_j in those states that carry it. There is no bias and an embedding of zeros is no
evidence, so token j contributes exactly α_j w_v v_j + w_s z_j Σ_{i carries s} α_i while attention is held.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError
from attnaudit.models.alignments import ALIGNMENTS
from attnaudit.models.encoders import BiLSTM, Encoder
from attnaudit.models.pooled_classifier import Architecture
from attnaudit.models.projections import project

SCORE, OWN, TEXT_EVIDENCE = 0, 1, 2
FIRST_FEATURE = 3
#: How far evidence of one magnitude may fall short of it: v = z / sqrt(z² + SMOOTH²).
SMOOTH = 0.01
#: Added to the score of the one state that carries the label.
BONUS = 5.0
_CONTEXT_FREE = ("average", "mlp")


class PlantedEncoder(Encoder):
    """The states above. encoder "average" or "mlp": features of the token alone; "bilstm": features of its context,
    while evidence stays the token's own. Raises ModelError for another encoder, for an embedding of less than 4
    features, and for scored evidence in context."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        assert architecture.planted is not None
        self.planted = architecture.planted
        quarter = architecture.embedding_size // 4
        if quarter < 1:
            raise ModelError(f"embedding_size is {architecture.embedding_size}: planted states need at least 4.")
        if architecture.encoder not in (*_CONTEXT_FREE, "bilstm") or architecture.layers not in (None, 1):
            raise ModelError(
                f"encoder '{architecture.encoder}' with layers {architecture.layers}: planted states have the features "
                "of 'average', 'mlp' or a 'bilstm' of one layer."
            )
        if self.planted.evidence == "scored" and architecture.encoder not in _CONTEXT_FREE:
            raise ModelError(
                f"evidence 'scored' with encoder '{architecture.encoder}': a score of the context would carry evidence "
                "of other tokens. Use encoder 'average'."
            )
        self.sizes = [architecture.embedding_size - 2 * quarter, quarter, quarter]
        if architecture.encoder in _CONTEXT_FREE:
            self.features: nn.Module = nn.Linear(self.sizes[0], architecture.hidden_size)
            features = architecture.hidden_size
        else:
            self.features = BiLSTM(self.sizes[0], architecture.hidden_size)
            features = self.features.width
        self.alignment = ALIGNMENTS[architecture.alignment](features, architecture.attention_size)
        self.own = nn.Linear(quarter, 1, bias=False)
        self.text = nn.Linear(quarter, 1, bias=False)
        self.width = FIRST_FEATURE + features

    def parts(self, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (..., d) -> what attention, own evidence and the text's evidence read."""
        attention, own, text = torch.split(embeddings, self.sizes, dim=-1)
        return attention, own, text

    def evidence(self, embeddings: Tensor, score: Tensor | None = None) -> Tensor:
        """Own evidence v (B, T)."""
        z = self.own(self.parts(embeddings)[1]).squeeze(-1)
        if self.planted.evidence == "free":
            return torch.as_tensor(z)
        unit = z / torch.sqrt(z * z + SMOOTH * SMOOTH)
        if self.training:  # its own gradient vanishes where it is flat: learn through a wider curve
            wide = torch.tanh(z)
            unit = unit.detach() + wide - wide.detach()
        if self.planted.evidence == "scored":
            assert score is not None
            unit = unit * torch.sigmoid(score)
        return torch.as_tensor(unit)

    def text_evidence(self, embeddings: Tensor) -> Tensor:
        """z (B, T): each token's part in the evidence of the text."""
        z: Tensor = self.text(self.parts(embeddings)[2])
        return z.squeeze(-1)

    def carriers(self, mask: Tensor) -> Tensor:
        """(B, T) True on the states that carry the evidence of the text. START and END stand around every text."""
        if self.planted.label == "nowhere":
            return torch.zeros_like(mask)
        if self.planted.label == "everywhere":
            return mask
        place = mask.long().cumsum(dim=1)
        last = mask.sum(dim=1, keepdim=True) - 1
        wanted = torch.full_like(last, 2) if self.planted.label == "first" else last
        return mask & (place == wanted)

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        read = self.parts(embeddings)[0]
        features = self.features(read, mask) if isinstance(self.features, BiLSTM) else torch.tanh(self.features(read))
        score = self.alignment(features)
        carriers = self.carriers(mask)
        if self.planted.label in ("first", "last"):
            score = score + BONUS * carriers
        text = (self.text_evidence(embeddings) * mask).sum(dim=1, keepdim=True) * carriers
        columns = torch.stack([score, self.evidence(embeddings, score), text], dim=-1)
        return torch.cat([columns, features], dim=-1) * mask.unsqueeze(-1)


class ScoreColumn(nn.Module):
    """Attention that projects the scores which the states hold: (hidden (B, T, m), allowed) -> weights (B, T)."""

    def __init__(self, projection: nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return project(self.projection, hidden[..., SCORE], allowed)
