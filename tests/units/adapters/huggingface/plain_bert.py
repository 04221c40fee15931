"""BERT in plain torch, computed from a state dict without any Transformers code. For tests only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

#: Replaces attention weights: (layer, head, weights (Q, K)) -> the weights to use.
Change = Callable[[int, int, Tensor], Tensor]


def classify(state: Mapping[str, Tensor], ids: list[int], heads: int, change: Change | None = None) -> Tensor:
    """Return the logits (C,) of one unpadded text (Devlin et al. 2019, section 3), computed one head at a time."""

    def dense(name: str, x: Tensor) -> Tensor:
        return linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-12)

    words = state["bert.embeddings.word_embeddings.weight"][ids]
    places = state["bert.embeddings.position_embeddings.weight"][: len(ids)]
    types = state["bert.embeddings.token_type_embeddings.weight"][0]
    x = norm("bert.embeddings.LayerNorm", words + places + types)
    layers = 1 + max(int(name.split(".")[3]) for name in state if name.startswith("bert.encoder.layer."))
    for layer in range(layers):
        prefix = f"bert.encoder.layer.{layer}"
        query, key, value = (dense(f"{prefix}.attention.self.{part}", x) for part in ("query", "key", "value"))
        width = query.shape[-1] // heads
        mixed = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            weights = torch.softmax(query[:, part] @ key[:, part].T / math.sqrt(width), -1)
            if change is not None:
                weights = change(layer, head, weights)
            mixed.append(weights @ value[:, part])
        attended = dense(f"{prefix}.attention.output.dense", torch.cat(mixed, -1))
        x = norm(f"{prefix}.attention.output.LayerNorm", attended + x)
        inner = gelu(dense(f"{prefix}.intermediate.dense", x))
        x = norm(f"{prefix}.output.LayerNorm", dense(f"{prefix}.output.dense", inner) + x)
    return dense("classifier", torch.tanh(dense("bert.pooler.dense", x[0])))
