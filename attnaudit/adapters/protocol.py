"""The adapter protocol: what a model must provide to be audited.

A model is described by a list of attention sites with weights (B, H, Q, K). Pooled attention is the case of a single
site with H = Q = 1.

Shapes: B instances, T tokens of a stream (padded), H heads, Q queries, K keys, V variants of an instance, C logits, d
features of an embedding, m features of a hidden state, q features of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attnaudit.instances import Instance
from attnaudit.progress import ProgressCallback
from attnaudit.retraining import Retraining

SiteKind = Literal["pool", "self", "cross"]

#: The stream of the text's tokens. An audit examines the attention to these.
TEXT = "text"
#: The stream of the query's tokens, in pooled models that read a query.
QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an adapter can do.

    An audit selects checks and faster computations by these declarations, never by testing which methods exist.

    Attributes:
        classes: Class names in the order of the logits. A single logit with two classes is a sigmoid for `classes[1]`.
        task: "classification" (one label per input) is audited; "multi_label" and "regression" are refused.
        decodes: `decode` computes logits from hidden states and attention weights, without encoding again.
        linear_decoder: `decoder_weights` gives the decoder's weight W and bias b, with logits = W·(weights·hidden) + b.
            If a trace has a `decoder_condition`, b differs by row: it is what `decode` returns for weights of zero.
        replays: `replay` computes the logits of other weights at one query without repeating what comes before it.
        value_vectors: `value_vectors` gives each head's value vectors after the output projection.
        shares_states: `share` and `logits_without` compute the logits of inputs with some tokens removed, reusing
            states of the whole input.
        influences: `influence` computes how much each hidden state depends on each token, without autograd.
        retrains: `retrain` trains another copy of the model.
        differentiable: Gradients reach the embeddings and replaced weights.
        deletion: `delete` and `keep` remove tokens.
        mask: `substitute` replaces tokens by a mask token.
        query: Instances may have a query.
        max_tokens: Longest input in tokens; None if unlimited.
        left_padding: `run` accepts inputs with padding on the left.
        reading: The attention that is shown as the explanation unless a check names another, such as
            "cls@layer=-1,heads=mean" (see `attnaudit.readings`); "" for a model with one pooled attention.
    """

    classes: tuple[str, ...]
    task: str = "classification"
    decodes: bool = False
    linear_decoder: bool = False
    replays: bool = False
    value_vectors: bool = False
    shares_states: bool = False
    influences: bool = False
    retrains: bool = False
    differentiable: bool = True
    deletion: bool = True
    mask: bool = False
    query: bool = False
    max_tokens: int | None = None
    left_padding: bool = False
    reading: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An attention site: one place in the model where weights over tokens are computed.

    Attributes:
        key: Name of the site, unique in the model.
        layer: Number of its layer, counted from 0 within its stack (encoder, decoder or cross-attention).
        kind: "pool", "self" or "cross".
        heads: Number of heads.
        query: Stream of the tokens that attend; None for a learned query, as in pooled attention.
        keys: Stream of the tokens that are attended to.
        sinks: Whether weights may sum to less than one, the rest going to an attention sink that is not a token.
    """

    key: str
    layer: int = 0
    kind: SiteKind = "pool"
    heads: int = 1
    query: str | None = None
    keys: str = TEXT
    sinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A padded batch of instances.

    Attributes:
        ids: Stream -> (B, T) token ids.
        mask: Stream -> (B, T) True on tokens, False on padding.
        special: Stream -> (B, T) True on tokens such as [CLS], which the model reads but no statistic includes.
        tokens: Stream -> for each row, its unpadded tokens as strings, special ones included.
        words: Stream -> (B, T) number of the word that a token is part of; -1 on special tokens and padding. Empty if
            every token is a word.
        extra: Name -> tensor with one entry per row, such as "truncated" (B,), True where the text was truncated.
    """

    ids: Mapping[str, Tensor]
    mask: Mapping[str, Tensor]
    special: Mapping[str, Tensor]
    tokens: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    words: Mapping[str, Tensor] = field(default_factory=dict)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def real(self, stream: str = TEXT) -> Tensor:
        """Return the mask (B, T) of the tokens that statistics cover: neither padding nor special."""
        return self.mask[stream] & ~self.special[stream]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one forward pass computed.

    Attributes:
        logits: (B, C) logits.
        attention: Site key -> (B, H, Q, K) weights that the pass used; zero where not allowed.
        allowed: Site key -> (B, 1 or H, Q, K) True where a query may attend to a key; False for padding queries.
        hidden: Site key -> (B, K, m) states that the site's values are computed from, with gradients. For pooled
            attention these are the states that the weights are applied to. Empty unless requested.
        decoder_condition: (B, q) what the decoder of a pooled model reads in addition to the context, such as the state
            of the query, with gradients. It does not depend on the attention. None if the decoder reads only the
            context.
        cache: Anything that the adapter's own `replay` and `value_vectors` need from this pass. Nothing else reads it.
    """

    logits: Tensor
    attention: Mapping[str, Tensor]
    allowed: Mapping[str, Tensor]
    hidden: Mapping[str, Tensor] = field(default_factory=dict)
    decoder_condition: Tensor | None = None
    cache: object = None


#: Replaces attention weights: (site, live weights (B, H, Q, K), allowed) -> the weights to use, or None to keep the
#: live ones. Gradients must reach the returned weights.
Intervention = Callable[[Site, Tensor, Tensor], Tensor | None]


@runtime_checkable
class ModelAdapter(Protocol):
    """Makes one model auditable.

    `delete`, `keep`, `substitute`, `decode` and `decoder_weights` are called only if the capabilities declare them.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this adapter can do."""
        ...

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The modules that own the parameters. They are moved to the device, put in evaluation mode and hashed."""
        ...

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        """Encode and pad instances. Row b belongs to `instances[b]`."""
        ...

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return stream -> (B, T, d) embeddings: the point in the model at which gradients are taken."""
        ...

    def sites(self) -> tuple[Site, ...]:
        """Return the model's attention sites."""
        ...

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        """Run one forward pass.

        Args:
            inputs: The batch.
            embeddings: Stream -> (B, T, d) embeddings to use instead of those that `embed` would give.
            intervene: Called with the live weights of every site; may return other weights to use.
            hidden: Whether the trace must contain hidden states.
        """
        ...

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        """Return one variant per (row, position) in `drop`: that row without the token at that position.

        Remove the token from the ids, never by decoding and tokenising again. Extra entries move with their row.
        """
        ...

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        """Return V shortened rows. Variant v is row `rows[v]` with only the positions where `keep[v]` is True.

        Shapes: `rows` (V,), `keep` (V, T).

        The result equals deleting all other positions with `delete`.
        """
        ...

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        """Return one variant per entry of `rows` (V,): that row with the mask token at positions in `replaced` (V, T).

        A model without a mask token uses its unknown-word token. Length and positions do not change.
        """
        ...

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        """Compute the logits of V alternative attentions per row.

        Args:
            hidden: (B, T, m) hidden states of a trace.
            weights: (B, V, T) attention weights.
            decoder_condition: The `decoder_condition` of the trace. An adapter whose traces have none may omit this
                parameter.

        Returns:
            (B, V, C) logits.
        """
        ...

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        """Return weight (C, m) and bias (C,) of a decoder that is linear in the context."""
        ...


def decode_logits(adapter: ModelAdapter, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None) -> Tensor:
    """Call `adapter.decode`, with the decoder condition only if there is one."""
    if decoder_condition is None:
        return adapter.decode(hidden, weights)
    return adapter.decode(hidden, weights, decoder_condition)


def linear_decoder(adapter: ModelAdapter, hidden: Tensor, decoder_condition: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weight (C, m) and bias (B, C) of a decoder that is linear in the context, without gradients.

    The bias differs by row if there is a decoder condition.
    """
    weight, bias = (parameter.detach() for parameter in adapter.decoder_weights())
    if decoder_condition is None:
        return weight, bias.expand(len(hidden), -1)
    with torch.no_grad():
        return weight, adapter.decode(hidden, torch.zeros_like(hidden[:, None, :, 0]), decoder_condition)[:, 0]


class TransformerAdapter(ModelAdapter, Protocol):
    """Additional methods for adapters with many sites. They are called only if the capabilities declare them."""

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """Compute the logits of V alternative weights at one query of a site.

        The result equals `run` with that query's weights replaced. Everything before the site may be taken from the
        trace. Must be differentiable in the weights.

        Args:
            inputs: The batch.
            trace: The trace of `run(inputs, hidden=True)`.
            site: The site at which weights are replaced.
            queries: (B,) position of the query in each row.
            weights: (B, V, H, K) weights to use instead.

        Returns:
            (B, V, C) logits.
        """
        ...

    def replay_cost(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        """Return how many tokens `replay` runs per variant of a row. An audit chooses its batch size by this number."""
        ...

    def value_vectors(self, trace: Trace, site: Site) -> Tensor:
        """Return each head's value vectors (B, H, K, m), multiplied by its part of the output projection."""
        ...


class SharingAdapter(ModelAdapter, Protocol):
    """Additional methods for adapters that can reuse states of the whole input for inputs with some tokens removed.

    This is possible for recurrent and local encoders, and for causal Transformers. The capability `shares_states` needs
    `share`, `variant_cost` and `logits_without`; the capability `influences` needs `share` and `influence`.
    """

    def share(self, inputs: Inputs) -> object:
        """Run a batch once and return the states, without gradients, that the methods below reuse."""
        ...

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        """Return the cost (V,) of each variant of `logits_without`, in tokens of an ordinary pass.

        An audit chooses its batch size by this cost.
        """
        ...

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        """Compute the logits of inputs with some tokens removed.

        Args:
            inputs: The batch.
            shared: What `share(inputs)` returned.
            rows: (V,) row of each variant.
            keep: (V, T) positions that the variant keeps.

        Returns:
            (V, C) logits, equal to those of `run` on `keep(inputs, TEXT, rows, keep)`.
        """
        ...

    def influence(self, inputs: Inputs, shared: object, positions: slice) -> Tensor:
        """Compute how much the hidden states at P positions depend on each token.

        Args:
            inputs: The batch.
            shared: What `share(inputs)` returned.
            positions: The positions p.

        Returns:
            (B, P, T) Euclidean norms ‖∂‖h_p‖/∂E_i‖, with h_p the hidden state at position p and E_i the embedding of
            token i; zero where either is padding.
        """
        ...


class RetrainableAdapter(ModelAdapter, Protocol):
    """Additional method for adapters whose model can be trained again. Called only if the capabilities declare it."""

    def retrain(self, retraining: Retraining, progress: ProgressCallback | None = None) -> ModelAdapter:
        """Train another copy of the model.

        The audited model must not change, and no files may be written. The same retraining must give the same copy;
        keep copies in memory, because several checks and data sets may request the same one.

        Args:
            retraining: Which copy to train.
            progress: Called after every training step.

        Returns:
            An adapter in evaluation mode with the same classes, tokens and sites.

        Raises:
            AuditError: The adapter cannot train this copy. The message is one sentence with the fix.
        """
        ...


@runtime_checkable
class ConvertedModelAdapter(Protocol):
    """Additional method for adapters whose model was converted to another attention kernel or precision."""

    def compare_with_original(self, inputs: Inputs) -> str:
        """Describe in one sentence how far the audited logits of a batch are from those of the original model.

        The adapter must not change.

        Raises:
            AdapterError: The logits differ by more than rounding explains.
        """
        ...
