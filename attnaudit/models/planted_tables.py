"""Planted hidden states whose content is given for each word, so that a model is specified instead of trained.

The embedding of token i contains its attention score a_i, its evidence v_i (multiplied by its attention weight α_i),
its bypass evidence b_i, and a flag g_i (1 if the token is a marker):

    logits = scale · (Σ_i α_i v_i (1 - s) + b s') + bias      α = projection(a)      b = Σ_i b_i

With a switch, s = s' = min(Σ g_i, 1). Only bypass evidence then counts in texts with a marker, and only evidence
multiplied by attention counts in other texts. Without a switch, s = 0 and s' = 1, so both kinds count. The formula of b
is that of the bypass "sum" (see `attnaudit.models.architecture.PlantedTables`). Every state contains b, and the weights
sum to one, so b reaches the decoder regardless of the weights. Only with the bypass "collected" do no other states than
those of markers contain b, so it is multiplied by their weights. An embedding of zeros has no evidence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnaudit.errors import ModelError
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoders import Encoder


class TableEncoder(Encoder):
    """The encoder of a planted model with given embeddings (see `attnaudit.models.architecture.PlantedTables`).

    A hidden state contains a score, the evidence of the token, and the bypass evidence.

    Args:
        architecture: An architecture whose `planted.tables` is not None.

    Raises:
        ModelError: The encoder is not "average", or the embedding has the wrong size.
    """

    reach = None

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        assert architecture.planted is not None
        assert architecture.planted.tables is not None
        self.tables = architecture.planted.tables
        if architecture.encoder != "average":
            raise ModelError(f"encoder is '{architecture.encoder}', but planted tables need the encoder 'average'.")
        if architecture.embedding_size != self.tables.columns:
            raise ModelError(
                f"embedding_size is {architecture.embedding_size}, but planted tables with {self.tables.outputs} "
                f"output(s) need an embedding of {self.tables.columns} features."
            )
        self.width = 1 + 2 * self.tables.outputs

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        outputs = self.tables.outputs
        score, own, bypass, marker = torch.split(embeddings * mask.unsqueeze(-1), [1, outputs, outputs, 1], dim=-1)
        first = (mask & (mask.long().cumsum(dim=1) == 2)).unsqueeze(-1)  # START precedes the first real token
        score = score + self.tables.first_score * first
        carried = (bypass * first if self.tables.bypass == "first" else bypass).sum(dim=1, keepdim=True)
        if self.tables.bypass == "saturating":
            carried = torch.tanh(carried)
        if self.tables.bypass == "none":
            carried = torch.zeros_like(carried)
        if self.tables.switched:
            switch = marker.sum(dim=1, keepdim=True).clamp(max=1.0)
            own, carried = own * (1 - switch), carried * switch
        carried = carried * marker if self.tables.bypass == "collected" else carried.expand_as(own)
        # Attention reads the first column, `planted_states.SCORE`.
        return torch.cat([score, own, carried], dim=-1) * mask.unsqueeze(-1)
