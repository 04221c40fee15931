"""Copies of a pooled model with a change that leaves it as faithful as before: other logits, classes or tokens.

The copies share the parts of the original model that do not change. No checkpoint is edited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.padding import substitute_positions
from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.adapters.pooled.token_streams import Encoding
from attnaudit.adapters.protocol import Inputs
from attnaudit.errors import ModelError

#: How idle tokens are shown.
IDLE = "<idle>"


def with_logits(
    adapter: PooledAttentionAdapter, *, scale: float = 1.0, bias: Sequence[float] | None = None
) -> PooledAttentionAdapter:
    """Multiply the logits by a constant, and then add a bias to the logit of each class.

    Args:
        adapter: A model with a linear decoder that reads no query.
        scale: The factor, which is positive.
        bias: One number per class; None for no bias. A single sigmoid logit gets the difference of the two numbers.

    Raises:
        ModelError: The decoder is not linear, or the model reads a query.
    """
    weight, offset = _linear(adapter)
    added = torch.zeros(len(adapter.capabilities.classes)) if bias is None else torch.tensor(bias)
    if len(weight) == 1:
        added = added[1:] - added[:1]
    return _rebuilt(adapter, decoder=_decoder(scale * weight, scale * offset + added.to(offset)))


def with_reordered_classes(
    adapter: PooledAttentionAdapter, order: Sequence[int], names: Sequence[str]
) -> PooledAttentionAdapter:
    """Reorder and rename the classes.

    Args:
        adapter: A model with a linear decoder that reads no query.
        order: The old index of each class.
        names: The new names, in the new order.

    Raises:
        ModelError: The decoder is not linear, or the model reads a query.
    """
    weight, bias = _linear(adapter)
    if len(weight) == 1:
        sign = 1.0 if order[0] == 0 else -1.0
        return _rebuilt(adapter, decoder=_decoder(sign * weight, sign * bias), classes=names)
    return _rebuilt(adapter, decoder=_decoder(weight[list(order)], bias[list(order)]), classes=names)


def with_idle_tokens(adapter: PooledAttentionAdapter, count: int) -> PooledAttentionAdapter:
    """Append idle tokens to every text. They get no weight, and replacing them changes nothing.

    Their states are zeros. If a text has no other token left, its idle tokens share the attention equally.

    Args:
        adapter: A model with a linear decoder that reads no query.
        count: The number of tokens to append.

    Raises:
        ModelError: The decoder is not linear, or the model reads a query.
    """
    weight, bias = _linear(adapter)
    return _WithIdleTokens(
        adapter,
        count,
        **_parts(
            adapter,
            embedding=_flagging_embedding(adapter),
            encoder=_flagging_encoder(adapter),
            attention=_attention_without_idle(adapter),
            decoder=_decoder(torch.cat([weight, weight.new_zeros(len(weight), 1)], dim=1), bias),
        ),
    )


class _WithIdleTokens(PooledAttentionAdapter):
    """A pooled model whose texts end with idle tokens (see `with_idle_tokens`). The id of an idle token is -1."""

    def __init__(self, original: PooledAttentionAdapter, count: int, **parts: Any) -> None:
        def tokenize(text: str) -> Encoding:
            encoding = original.tokenize(text)
            special = encoding.special or [False] * len(encoding.ids)
            return Encoding(
                ids=[*encoding.ids, *[-1] * count],
                tokens=[*encoding.tokens, *[IDLE] * count],
                special=[*special, *[False] * count],
            )

        super().__init__(**{**parts, "tokenize": tokenize})

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        assert self.mask_id is not None
        replaced = replaced & (inputs.ids[stream][rows] >= 0)
        return substitute_positions(inputs, stream, rows, replaced, mask_id=self.mask_id)


# The last feature of an embedding and of a state is 1 for idle tokens and 0 for all others.


def _flagging_embedding(original: PooledAttentionAdapter) -> Callable[[Tensor], Tensor]:
    def embedding(ids: Tensor) -> Tensor:
        embedded = original.embedding(torch.where(ids < 0, original.pad_id, ids))
        return torch.cat([embedded, (ids < 0)[..., None].to(embedded)], dim=-1)

    return embedding


def _flagging_encoder(original: PooledAttentionAdapter) -> Callable[[Tensor, Tensor], Tensor]:
    def encoder(embedded: Tensor, mask: Tensor) -> Tensor:
        flag = embedded[..., -1:]
        read = mask & (flag[..., 0] == 0)
        # An encoder may refuse a text without tokens. It therefore reads the first position of such a text, and the
        # state of this position is discarded.
        nonempty = read.clone()
        nonempty[:, 0] |= ~read.any(1)
        states = original.encoder(embedded[..., :-1].contiguous(), nonempty)
        return torch.cat([torch.where(read[..., None], states, 0.0), flag], dim=-1)

    return encoder


def _attention_without_idle(original: PooledAttentionAdapter) -> Callable[[Tensor, Tensor], Tensor]:
    def attention(states: Tensor, allowed: Tensor) -> Tensor:
        read = allowed & (states[..., -1] == 0)
        some = read.any(1, keepdim=True)
        weights = original.attention(states[..., :-1], torch.where(some, read, allowed))
        equal = allowed.to(weights) / allowed.sum(1, keepdim=True).clamp_min(1)
        return torch.where(some, weights, equal)

    return attention


def _linear(adapter: PooledAttentionAdapter) -> tuple[Tensor, Tensor]:
    """Return the weight (C, m) and the bias (C,) of the decoder, without gradients."""
    if not adapter.capabilities.linear_decoder or adapter.query is not None:
        raise ModelError(
            f"{adapter.description or 'The model'}: its decoder is not an nn.Linear, or it reads a query. Expected a "
            "linear decoder and no query. Choose another model."
        )
    weight, bias = adapter.decoder_weights()
    return weight.detach(), bias.detach()


def _decoder(weight: Tensor, bias: Tensor) -> nn.Linear:
    decoder = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        decoder.weight.copy_(weight)
        decoder.bias.copy_(bias)
    return decoder


def _parts(adapter: PooledAttentionAdapter, *, decoder: nn.Linear, **changes: Any) -> dict[str, Any]:
    """Return the arguments that rebuild an adapter with some parts changed."""
    return {
        "embedding": adapter.embedding,
        "encoder": adapter.encoder,
        "attention": adapter.attention,
        "tokenize": adapter.tokenize,
        "classes": adapter.capabilities.classes,
        "pad_id": adapter.pad_id,
        "mask_id": adapter.mask_id,
        "attend_special": adapter.attend_special,
        "max_tokens": adapter.capabilities.max_tokens,
        "description": adapter.description,
        "family": adapter.family,
        "decoder": decoder,
        "modules": (*adapter.modules, decoder),
        **changes,
    }


def _rebuilt(adapter: PooledAttentionAdapter, *, decoder: nn.Linear, **changes: Any) -> PooledAttentionAdapter:
    """Return an adapter with another decoder, and perhaps other classes."""
    return PooledAttentionAdapter(**_parts(adapter, decoder=decoder, lstm=adapter.lstm, reach=adapter.reach, **changes))
