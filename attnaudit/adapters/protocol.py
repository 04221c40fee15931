"""The adapter protocol: what a model must expose to be audited. Everything is a list of attention sites.

Shapes: B instances, T tokens of a stream (padded), H heads, Q queries, K keys, C logits, d and m features.
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

#: The stream of tokens that attention is read over in pooled models.
TEXT = "text"
#: The stream of an instance's query, in pooled models that read one.
QUERY = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an adapter can do. Checks and fast paths are selected by these, never by looking for methods.

    task: "classification" (one label per input) is audited; "multi_label" and "regression" are refused.
    classes: names in the order of the logits. One logit with two classes is a sigmoid for classes[1].
    decodes: `decode(hidden, weights)` gives the logits of a context without encoding again.
    linear_decoder: `decoder_weights()` gives (W, b) with logits = W·(weights·hidden) + b; where a trace has something
    beside the context, b differs by row and is what `decode` gives for weights of zero.
    replays: `replay()` gives the logits of other weights at one query of a site without what comes before it.
    value_norms: `transformed()` gives the value vectors after the output projection.
    shares_states: `share` and `logits_without` give the logits of inputs that lack tokens, from states
        shared with the whole input.
    influences: `influence` gives how much of each hidden state comes from each token, without a graph.
    retrains: `retrain` trains another copy of the model.
    differentiable: gradients reach embeddings and replaced weights.
    deletion: `delete` and `keep` work. mask: `substitute` works. query: instances may carry a query. max_tokens:
    longest input, None if unlimited. left_padding: `run` takes inputs that are padded on the left.
    reading: what is shown of the model's attention when a check names nothing else, such as "cls@layer=-1,heads=mean"
    (see attnaudit.readings); "" for a model with one pooled attention.
    """

    classes: tuple[str, ...]
    task: str = "classification"
    decodes: bool = False
    linear_decoder: bool = False
    replays: bool = False
    value_norms: bool = False
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
    """One place where weights over tokens are computed. layer: counted from 0 within its stack. query and keys name
    token streams; query is None for a learned query (pooled attention). sinks: rows may sum to less than one, the rest
    goes to a sink that is no token."""

    key: str
    layer: int = 0
    kind: SiteKind = "pool"
    heads: int = 1
    query: str | None = None
    keys: str = TEXT
    sinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A padded batch: stream -> (B, T). mask: True on tokens, False on padding. special: True on tokens such as
    [CLS] that enter the encoder but no statistic. tokens: stream -> B lists of T_b strings, special ones included.
    words: stream -> (B, T) number of the word that a token is part of, -1 on special tokens and padding; empty where
    every token is a word. extra: name -> one entry per row, such as "truncated" (B,): True where the text was cut."""

    ids: Mapping[str, Tensor]
    mask: Mapping[str, Tensor]
    special: Mapping[str, Tensor]
    tokens: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    words: Mapping[str, Tensor] = field(default_factory=dict)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def real(self, stream: str = TEXT) -> Tensor:
        """(B, T) True on the tokens that statistics are taken over: neither padding nor special."""
        return self.mask[stream] & ~self.special[stream]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one forward pass shows. attention: site key -> (B, H, Q, K), zero where not allowed.
    allowed: site key -> (B, 1 or H, Q, K) True where a query may attend; False in all of the row of a padding query.
    hidden: site key -> (B, K, m), with its graph: the states that the site's values are made of, which for pooled
    attention are those that the weights are applied to. beside: (B, q) what the decoder of a pooled model reads of a
    row beside the context, such as the state of its query, with its graph; no attention moves it. prefix: whatever the
    adapter's own `replay` and `transformed` need of the pass."""

    logits: Tensor
    attention: Mapping[str, Tensor]
    allowed: Mapping[str, Tensor]
    hidden: Mapping[str, Tensor] = field(default_factory=dict)
    decoder_condition: Tensor | None = None
    prefix: object = None


#: (site, live weights (B,H,Q,K), allowed) -> weights to use instead, or None to leave them. Differentiable.
Intervention = Callable[[Site, Tensor, Tensor], Tensor | None]


@runtime_checkable
class ModelAdapter(Protocol):
    """Makes one model auditable. `delete`, `keep`, `substitute`, `decode` and `decoder_weights` are used only if
    capabilities say so."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The modules that hold parameters: moved to the device, put in evaluation mode, hashed."""
        ...

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        """Encode and pad. Row b belongs to instances[b]."""
        ...

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        """stream -> (B, T, d): the leaf that gradients are taken at."""
        ...

    def sites(self) -> tuple[Site, ...]: ...

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace: ...

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        """One variant per (row, position) in `drop`: that row without the token at that position, on ids (never by
        decoding and tokenising again), padded anew. Extra entries travel with their row."""
        ...

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        """One variant per entry of rows (V,): that row with only the positions that keep (V, T) marks, as `delete`
        would leave them after taking all others away."""
        ...

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        """One variant per entry of rows (V,): that row with the model's mask (or unknown-word) id at the positions that
        replaced (V, T) marks; length and positions stay."""
        ...

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        """hidden (B, T, m), weights (B, V, T) -> logits (B, V, C), for V alternative attentions per row. beside: that
        of the trace; an adapter whose traces have none may leave the argument out."""
        ...

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        """(C, m) and (C,) of a decoder that is linear in the context."""
        ...


def decoded(adapter: ModelAdapter, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None) -> Tensor:
    """`decode`, told what is beside the context where there is something."""
    return (
        adapter.decode(hidden, weights)
        if decoder_condition is None
        else adapter.decode(hidden, weights, decoder_condition)
    )


def linear_decoder(adapter: ModelAdapter, hidden: Tensor, decoder_condition: Tensor | None) -> tuple[Tensor, Tensor]:
    """(C, m) and (B, C) of a decoder that is linear in the context, without a graph: its bias differs by row where
    something is beside the context."""
    weight, bias = (one.detach() for one in adapter.decoder_weights())
    if decoder_condition is None:
        return weight, bias.expand(len(hidden), -1)
    with torch.no_grad():
        return weight, adapter.decode(hidden, torch.zeros_like(hidden[:, None, :, 0]), decoder_condition)[:, 0]


class TransformerAdapter(ModelAdapter, Protocol):
    """What an adapter of many sites may add; each is used only if capabilities say so."""

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        """queries (B,) positions, weights (B, V, H, K) -> logits (B, V, C): those of `run` with the row of that query
        at the site replaced by these weights, all that comes before taken from the trace of `run(hidden=True)`.
        Differentiable in the weights."""
        ...

    def replay_width(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        """How many tokens `replay` runs for one variant of a row: how many variants fit into memory."""
        ...

    def transformed(self, trace: Trace, site: Site) -> Tensor:
        """(B, H, K, m): each head's value vectors after its part of the output projection."""
        ...


class SharingAdapter(ModelAdapter, Protocol):
    """What an adapter may add whose model reads a text in order, such as a recurrent encoder or a causal Transformer:
    texts that lack tokens share states with the whole text. Each is used only if capabilities say so."""

    def share(self, inputs: Inputs) -> object:
        """What the calls below share of one batch: its states, without a graph."""
        ...

    def variant_cost(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        """(V,) as how many tokens of an ordinary pass a variant of `logits_without` counts: how many of them fit into
        memory."""
        ...

    def logits_without(self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor) -> Tensor:
        """rows (V,), keep (V, T) -> (V, C) logits: those of `run` on `keep(inputs, TEXT, rows, keep)`."""
        ...

    def influence(self, inputs: Inputs, shared: object, positions: slice) -> Tensor:
        """(B, P, T) ‖∂‖h_p‖/∂E_i‖ for every position p of the slice and every i, Euclidean norms; zero where either is
        padding."""
        ...


class RetrainableAdapter(ModelAdapter, Protocol):
    """What an adapter may add whose model can be trained anew; used only if capabilities say so."""

    def retrain(self, retraining: Retraining, progress: ProgressCallback | None = None) -> ModelAdapter:
        """Another copy of the model, trained as `retraining` says, in evaluation mode, as an adapter with the same
        classes, tokens and sites. The audited model is left as it is, and the same retraining gives the same copy:
        what is asked for again, for another check or data set, is best kept in memory. Writes no file. progress is to
        be called after every step. Raises AuditError, as one sentence with the mend, for what it cannot train."""
        ...


@runtime_checkable
class Ships(Protocol):
    """What an adapter adds whose model ships with another attention kernel, or in another precision, than it is audited
    with."""

    def shipped(self, inputs: Inputs) -> str:
        """One sentence on how far the audited logits of these inputs are from those of the model as it ships. Raises
        AdapterError when they are further than rounding explains. Leaves the adapter as it was."""
        ...
