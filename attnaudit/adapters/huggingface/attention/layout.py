"""The attention, layers and embeddings of a Transformers model, and hooks that record or replace their values.

Shapes: B rows, T tokens, K keys, d and m features.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.attention.recorder import AttentionCall
from attnaudit.adapters.huggingface.forward_hooks import temporary_hooks
from attnaudit.adapters.protocol import Site
from attnaudit.errors import AdapterError

#: Name of the stream of the decoder's tokens, in encoder-decoder models.
DECODER = "decoder"
#: Names of the arguments that pass the states of another stream to cross-attention, in all architectures.
_CROSS_ARGUMENTS = ("key_value_states", "encoder_hidden_states")


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a model that an audit reads or replaces.

    Attributes:
        calls: Every attention call of a forward pass, in order.
        layers: The layers that make these calls, in the order in which the layers are called. A layer that is called
            several times is listed several times.
        embedding: The module whose first call embeds the tokens of the text.
        embedding_time_first: Whether `embedding` is called with ids of shape (T, B) instead of (B, T).
        decoder_embeddings: Other embedding modules of the same shape, which may embed the tokens of the decoder. Empty
            for a model without a decoder.
        output_projections: Site key -> the linear layer, with its adapters, that is applied to the concatenated outputs
            of the site's heads. Sites whose linear layer was not found are missing.
        causal: True if no query attends to a later key. Always False for encoder-decoder models.
    """

    calls: tuple[AttentionCall, ...]
    layers: tuple[nn.Module, ...]
    embedding: nn.Module
    embedding_time_first: bool
    decoder_embeddings: tuple[nn.Module, ...]
    output_projections: Mapping[str, nn.Module]
    causal: bool

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attention sites, in the order in which a forward pass computes them."""
        return tuple(call.site for call in self.calls)

    def embeddings(self, ids: Tensor) -> Tensor:
        """Return the embeddings (B, T, d) of token ids (B, T)."""
        found: Tensor = embedding_output(self.embedding(ids))[0]
        return found

    @property
    def distinct_layers(self) -> list[nn.Module]:
        """The layers, each listed once."""
        return list({id(layer): layer for layer in self.layers}.values())

    def call_index(self, site: Site) -> int:
        """Return the index in `calls` of the attention call that computes a site.

        Raises:
            AdapterError: The model has no such site.
        """
        for index, call in enumerate(self.calls):
            if call.site.key == site.key:
                return index
        raise AdapterError(
            f"The model has no attention site '{site.key}'. Its sites are {', '.join(c.site.key for c in self.calls)}."
        )

    def first_call_in_layer(self, site: Site) -> int:
        """Return the index in `calls` of the first attention call in the same layer as a site."""
        layer_call = self.calls[self.call_index(site)].layer_call
        return next(index for index, call in enumerate(self.calls) if call.layer_call == layer_call)


def value_states(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tensor | None, bool]:
    """Find the states from which an attention module computes its keys and values.

    Args:
        module: The attention module.
        args: Positional arguments of a call of the module.
        kwargs: Keyword arguments of the call.

    Returns:
        The states, or None if no argument contains them; and a flag, True if the states come from another stream, as in
        cross-attention.
    """
    parameters = inspect.signature(module.forward).parameters
    names = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    arguments: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in _CROSS_ARGUMENTS:
        if isinstance(arguments.get(name), Tensor):
            return arguments[name], True
    if isinstance(arguments.get("hidden_states"), Tensor):
        return arguments["hidden_states"], False
    query, key = arguments.get("query"), arguments.get("key")
    if isinstance(query, Tensor) and isinstance(key, Tensor):
        return key, key is not query
    return next((v for v in arguments.values() if isinstance(v, Tensor) and v.dim() == 3), None), False


def embedding_output(output: Tensor | tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what an embedding module returns, as a tuple. The embeddings come first.

    Some modules return more than the embeddings, such as the scale of quantised ones.
    """
    return output if isinstance(output, tuple) else (output,)


def _with_embeddings(output: Tensor | tuple[Any, ...], embeddings: Tensor) -> Tensor | tuple[Any, ...]:
    """Return what an embedding module returns, with other embeddings."""
    return (embeddings, *output[1:]) if isinstance(output, tuple) else embeddings


@contextmanager
def replaced_embeddings(layout: Layout, embeddings: Tensor | None) -> Iterator[None]:
    """Replace the embeddings of the text inside the context.

    The first call of the embedding module returns the given embeddings. If gradients are enabled, the embeddings of the
    decoder's tokens also become leaf tensors that require gradients. The decoder's attention then has gradients.

    Args:
        layout: The model's layout.
        embeddings: (B, T, d) embeddings of the text; None to change nothing.
    """
    if embeddings is None:
        yield
        return
    calls = 0

    def replace(_module: nn.Module, _args: object, output: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            return make_leaf(_module, _args, output)
        given = embeddings.transpose(0, 1) if layout.embedding_time_first else embeddings
        # Some architectures scale the embeddings in place, so the hook returns a copy.
        return _with_embeddings(output, given.to(embedding_output(output)[0].dtype, copy=True))

    def make_leaf(_module: nn.Module, _args: object, output: Any) -> Any:
        own = embedding_output(output)[0]
        if not torch.is_grad_enabled() or own.requires_grad:
            return None
        return _with_embeddings(output, own.detach().requires_grad_(True))

    handles = [layout.embedding.register_forward_hook(replace)]
    handles += [module.register_forward_hook(make_leaf) for module in layout.decoder_embeddings]
    with temporary_hooks(handles):
        yield


@contextmanager
def recorded_value_states(layout: Layout, states: dict[str, Tensor]) -> Iterator[None]:
    """Record the states from which the values of each site are computed.

    Args:
        layout: The model's layout.
        states: Filled inside the context with site key -> (B, K, m) states. Sites whose states are not found are
            missing.
    """
    index = 0

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        nonlocal index
        call = layout.calls[index]
        found, _ = value_states(module, args, kwargs)
        index += 1
        if found is not None:
            states[call.site.key] = call.token_states(found)

    modules = {id(call.module): call.module for call in layout.calls}
    with temporary_hooks([m.register_forward_pre_hook(record, with_kwargs=True) for m in modules.values()]):
        yield
