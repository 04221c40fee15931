"""BERT in plain torch, from a state dict alone: no Transformers code, no interface. For tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

#: (layer, head, weights (Q, K)) -> weights to use.
Change = Callable[[int, int, Tensor], Tensor]


def classify(state: Mapping[str, Tensor], ids: list[int], heads: int, change: Change | None = None) -> Tensor:
    """(C,) logits of one unpadded text. Devlin et al. 2019, section 3; one head at a time."""

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
        here = f"bert.encoder.layer.{layer}"
        query, key, value = (dense(f"{here}.attention.self.{part}", x) for part in ("query", "key", "value"))
        width = query.shape[-1] // heads
        mixed = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            weights = torch.softmax(query[:, part] @ key[:, part].T / math.sqrt(width), -1)
            if change is not None:
                weights = change(layer, head, weights)
            mixed.append(weights @ value[:, part])
        attended = dense(f"{here}.attention.output.dense", torch.cat(mixed, -1))
        x = norm(f"{here}.attention.output.LayerNorm", attended + x)
        inner = gelu(dense(f"{here}.intermediate.dense", x))
        x = norm(f"{here}.output.LayerNorm", dense(f"{here}.output.dense", inner) + x)
    return dense("classifier", torch.tanh(dense("bert.pooler.dense", x[0])))
