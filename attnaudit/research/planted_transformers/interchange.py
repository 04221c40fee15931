"""Verify whether a reading is right, by interchange interventions. No check uses them.

Values of a text, the host, are replaced by values of a text with another predicted class, the donor. The attention
weights stay those of the host. A reading is right on the host if the prediction becomes that of the donor in two
interchanges:

* The route: the value vectors of the reading's heads are replaced at the host's positions. The new vector is the mean
  over the donor's positions.
* The tokens: the embeddings of the tokens are replaced at the host's positions. The new embedding is the mean over the
  donor's positions.

The positions of a text are the smallest set of tokens with 80% of the reading's weight. Sources: Geiger et al. 2022,
"Inducing causal structure for interpretable neural networks"; Gupta et al. 2024, "InterpBench".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.instances import Instance
from attnaudit.readings import Reading, parse
from attnaudit.research.planted_units.truth_rule import smallest_set

#: The number of donors of each text.
DONORS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Interchange:
    """The outcome of the interchanges under one reading.

    Attributes:
        share: The share of texts on which the reading is right. This requires that the prediction becomes that of the
            donor in both interchanges, for at least half of the donors of the text. A donor that changes the prediction
            of no text is ignored, because its attended tokens may not decide anything. A text whose donors are all
            ignored does not count as right.
        route: The share of (host, donor) pairs in which the prediction becomes the donor's when the value vectors are
            replaced.
        tokens: The same share when the embeddings of the tokens are replaced.
    """

    share: float
    route: float
    tokens: float


def interchange(
    adapter: HuggingFaceAdapter,
    instances: Sequence[Instance],
    reading: str,
    *,
    seed: int,
    heads: Sequence[int] | None = None,
) -> Interchange:
    """Measure the share of texts on which a reading is right, by interchanging value vectors and tokens between texts.

    Args:
        adapter: The model.
        instances: The texts. They are run as one batch, and must include two predicted classes.
        reading: The text form of a reading of one layer, without a stack.
        seed: The seed of the choice of donors.
        heads: The heads to use instead of the heads of the reading. None to use the heads of the reading.

    Raises:
        ValueError: The model predicts the same class for all texts.
    """
    chosen = parse(reading)
    if heads is None:
        heads = range(adapter.sites()[0].heads) if chosen.heads == "mean" else [int(chosen.heads)]
    inputs = adapter.collate(instances)
    with torch.no_grad():
        values: list[Tensor] = []
        with _values_of(adapter, chosen, values.append):
            trace = adapter.run(inputs)
        own = values[0]
        predicted = _predicted(trace.logits)
        if bool((predicted == predicted[0]).all()):
            raise ValueError(
                "the model predicts the same class for all texts, so values cannot be exchanged between classes"
            )
        embeddings = adapter.embed(inputs)[TEXT]
        site = adapter.sites()[_layer(adapter, chosen)]
        weights = _attention(inputs, trace.attention[site.key][:, list(heads)], chosen)
        places = smallest_set(weights)
        within = weights * places
        within = within / within.sum(1, keepdim=True).clamp_min(1e-12)
        donor_values = torch.einsum("bt,bthd->bhd", within, own)
        donor_embeddings = torch.einsum("bt,btd->bd", within, embeddings)
        exchanged = torch.zeros(own.shape[2], dtype=torch.bool)
        exchanged[list(heads)] = True
        donors = _donors(predicted, seed)

        def held(site: Any, _weights: Tensor, _allowed: Tensor) -> Tensor:
            return trace.attention[site.key]

        by_route, by_tokens = [], []
        for donor in donors.T:
            patch = places[:, :, None, None] & exchanged[None, None, :, None]
            changed = torch.where(patch, donor_values[donor][:, None], own)
            with _values_of(adapter, chosen, lambda _own, new=changed: new):  # type: ignore[misc]
                logits = adapter.run(inputs, intervene=held).logits
            by_route.append(_predicted(logits) == predicted[donor])
            changed = torch.where(places[..., None], donor_embeddings[donor][:, None], embeddings)
            logits = adapter.run(inputs, embeddings={TEXT: changed}, intervene=held).logits
            by_tokens.append(_predicted(logits) == predicted[donor])
    route, tokens = torch.stack(by_route, dim=1), torch.stack(by_tokens, dim=1)
    follows = route & tokens
    return Interchange(
        share=_share(follows, donors),
        route=float(route.double().mean()),
        tokens=float(tokens.double().mean()),
    )


def _share(follows: Tensor, donors: Tensor) -> float:
    """Return the share of hosts that follow at least half of their donors. Donors that no host follows are ignored.

    A host whose donors are all ignored does not count as right.

    Args:
        follows: (B, D) whether a host follows a donor.
        donors: (B, D) the numbers of the donors.
    """
    followed = torch.zeros(len(follows), dtype=torch.long).index_add_(0, donors.flatten(), follows.flatten().long())
    usable = (followed > 0)[donors]
    count = usable.sum(1)
    right = (follows & usable).sum(1) * 2 >= count
    return float((right & (count > 0)).double().mean())


def _predicted(logits: Tensor) -> Tensor:
    """Return the index (B,) of the predicted class, given logits (B, C). A single logit is that of class 1."""
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(-1)


def _donors(predicted: Tensor, seed: int) -> Tensor:
    """Return (B, D) the numbers of texts with another predicted class, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    other = (predicted[:, None] != predicted).double()
    return torch.multinomial(other, DONORS, replacement=True, generator=generator)


def _layer(adapter: HuggingFaceAdapter, reading: Reading) -> int:
    return int(reading.layer) % len(adapter.sites())


def _attention(inputs: Inputs, attention: Tensor, reading: Reading) -> Tensor:
    """Return the distribution (B, T) that a reading shows over the real tokens.

    Args:
        inputs: The texts.
        attention: (B, h, Q, K) the weights of the heads of the reading.
        reading: The reading.
    """
    last = reading.query == "last"
    length = inputs.mask[TEXT].sum(1)
    rows = attention[torch.arange(len(attention)), :, length - 1 if last else torch.zeros_like(length)]
    shown = rows.mean(1) * inputs.real()
    return shown / shown.sum(1, keepdim=True).clamp_min(1e-12)


@contextmanager
def _values_of(
    adapter: HuggingFaceAdapter, reading: Reading, replace: Callable[[Tensor], Tensor | None]
) -> Iterator[None]:
    """Pass the value vectors of the reading's layer to a function, as `hooked_values` does."""
    with hooked_values(adapter.model, _layer(adapter, reading), adapter.sites()[0].heads, replace):
        yield


@contextmanager
def hooked_values(model: Any, layer: int, heads: int, replace: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Pass the value vectors of a layer to a function in every forward pass inside the context.

    Args:
        model: A BERT, GPT-2, Llama, ViT or DeiT classifier without grouped-query attention.
        layer: The number of the layer, counted from 0.
        heads: The number of heads H.
        replace: A function of the value vectors (B, T, H, m). It returns those to use instead, or None to keep them.
    """
    if model.config.model_type == "bert":
        module = model.bert.encoder.layer[layer].attention.self.value
    elif model.config.model_type == "gpt2":
        module = model.transformer.h[layer].attn.c_attn
    elif model.config.model_type in ("vit", "deit"):
        module = model.base_model.layers[layer].attention.v_proj
    else:
        module = model.model.layers[layer].self_attn.v_proj

    def hook(_module: object, _args: object, output: Tensor) -> Tensor | None:
        # In GPT-2, one module computes queries, keys and values, in this order.
        before, values = output[..., :-heads_width], output[..., -heads_width:]
        new = replace(values.view(*values.shape[:-1], heads, -1))
        return None if new is None else torch.cat([before, new.flatten(-2)], dim=-1)

    heads_width = model.config.hidden_size
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
