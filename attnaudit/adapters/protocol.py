"""The adapter protocol: what a model must provide to be audited.

An adapter lists the attention sites of its model, each with weights of shape (B, H, Q, K). A model with pooled
attention has a single site with H = Q = 1. A stream is one sequence of tokens, such as the text or the query.

Shapes: B instances, T tokens of a stream (padded), H heads, Q queries, K keys, V variants of the inputs or the weights,
C logits, d features of an embedding, m features of a hidden state, q features of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attnaudit.adapters.joined_rows import JoinedRows
from attnaudit.instances import Instance
from attnaudit.precision import FLOAT32
from attnaudit.records.unit_names import require_name
from attnaudit.targets import CLASS, Target

SiteKind = Literal["pool", "self", "cross"]
#: A part of a picture: x, y, width and height, as fractions of the width and the height of the picture.
Box = tuple[float, float, float, float]
#: A part of a recording: start and end in seconds.
TimeSpan = tuple[float, float]

#: Name of the stream that holds the tokens of the text. An audit examines the attention to these tokens.
TEXT = "text"
#: Name of the stream that holds the tokens of the query. Only models that read a query have this stream.
QUERY = "query"
#: Key of an entry (B, 1, C) of `Inputs.extra`: True for the classes that are possible answers for the row. Without it,
#: all classes are possible.
OPEN_CLASSES = "open"
#: Key of an entry (B, T) of `Inputs.extra`: True at the tokens whose states the target is read from, such as the tokens
#: before those of an answer. The reading `target@...` is the mean of the attention of these tokens.
TARGET_QUERIES = "target_queries"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an adapter can do.

    An audit uses these declarations to choose its checks and the fastest computations. It never tests which methods
    an adapter has.

    Attributes:
        classes: Class names in the order of the logits. A model with two classes may return a single logit, whose
            sigmoid is the probability of `classes[1]`.
        target: Which output of the model is explained (see `attnaudit.targets`).
        labels: All labels of a model that assigns any number of labels to a text. The labels in the data must be among
            them. Empty for other models.
        decides: Whether the logits are a decision, which can be right or wrong. If not, the model has a
            single logit, and the probability of `classes[1]` is explained even if it is small. Measures of decisions
            are then undefined.
        task: Kind of task. Only "classification", with one label per input, can be audited.
        decodes: Whether `decode` can compute logits from hidden states and attention weights alone. The model must then
            have a single site, with pooled attention.
        linear_decoder: Whether the logits are W·(weights·hidden) + b. `decoder_weights` must then return W and b. If
            traces have a `decoder_condition`, each row has its own b, and `decode` must return this b if all attention
            weights are zero.
        replays: Whether `replay` can compute the logits for replaced weights at one query.
        resumes: Whether `resume` can run the model from a site on, with weights replaced there. It also requires
            `replays`.
        value_vectors: Whether `value_vectors` can return each head's value vectors after the output projection.
        shares_states: Whether `share` and `logits_without` can reuse hidden states when tokens are removed.
        single_masks: Whether `logits_with_single_masks` can compute the logits of a long input with a single masked
            token, in time that does not grow with the square of the length. It also requires `shares_masked`.
        shares_masked: Whether `share` and `logits_masked` can reuse hidden states when tokens are masked.
        unitwise: Whether the hidden state of a token depends on this token alone, not on other tokens and not on its
            position. An audit then uses `decode` to compute the logits if tokens are masked and the attention is kept
            fixed. The adapter must therefore declare `decodes`. The attention may depend on all tokens.
        influences: Whether `influence` can compute the influence of tokens on hidden states. It also requires `share`.
        batches_gradients: Whether one backward pass can compute the gradients of several numbers at the embeddings, as
            in `torch.autograd.grad(..., is_grads_batched=True)`.
        retrains: Whether `retrain` can train another copy of the model.
        differentiable: Whether gradients reach the embeddings and replaced weights.
        deletion: Whether `delete` and `keep` can remove tokens.
        mask: Whether `substitute` can replace tokens by a mask token.
        query: Whether instances may have a query.
        passages: Whether instances have passages. `Inputs.passages` then gives the passage of each token.
        max_tokens: Longest input in tokens; None if unlimited.
        left_padding: Whether `run` accepts inputs with padding on the left.
        selects_sites: Whether `run` takes the argument `sites` (see `SiteSelectingAdapter`).
        selects_queries: Whether `run` takes the arguments `sites` and `queries` (see `QuerySelectingAdapter`).
        query_blocks: Whether `run` can compute attention without holding the weights of all queries (see
            `BlockAdapter`).
        reading: The attention that an audit takes as the explanation, such as "cls@layer=-1,heads=mean" (see
            `attnaudit.readings`). A check may name another reading. "" for a model with a single row of attention
            weights.
        unseen_mixers: Modules that carry information between tokens outside the attention sites, such as
            "model.layers.0.mixer (MambaMixer)". An audit cannot see their weights, so no reading includes them. Gates
            of a policy fail unless the policy accepts these modules. A pooled model does not list its encoder.
        erasure: How units are erased, in one or two sentences for reports, such as "An erased patch is replaced by the
            mean patch of its picture."; "" if tokens are deleted or replaced by the mask token.
        unit_name: What a unit is, in the singular, for reports and messages, such as "patch". Its plural follows from
            the usual rules of English.
        row_name: What a row of the data is, in the singular, for the same purpose, such as "picture".
        draws: How many random replacements of a masked unit are averaged. If it is more than 1, the adapter must
            implement `DrawingAdapter`, and must not declare `shares_masked`.
        precision: The floating-point type in which the model computes: "float32", or "float16" or "bfloat16" if it is
            audited in half precision. The tolerances of an audit depend on it. In half precision, logits, embeddings
            and attention weights must be returned as float32, and the adapter must implement `HalfPrecisionAdapter`.
    """

    classes: tuple[str, ...]
    target: Target = CLASS
    labels: tuple[str, ...] = ()
    decides: bool = True
    task: str = "classification"
    decodes: bool = False
    linear_decoder: bool = False
    replays: bool = False
    resumes: bool = False
    value_vectors: bool = False
    shares_states: bool = False
    shares_masked: bool = False
    single_masks: bool = False
    unitwise: bool = False
    influences: bool = False
    batches_gradients: bool = False
    retrains: bool = False
    differentiable: bool = True
    deletion: bool = True
    mask: bool = False
    query: bool = False
    passages: bool = False
    max_tokens: int | None = None
    left_padding: bool = False
    selects_sites: bool = False
    selects_queries: bool = False
    query_blocks: bool = False
    reading: str = ""
    unseen_mixers: tuple[str, ...] = ()
    erasure: str = ""
    unit_name: str = "token"
    row_name: str = "text"
    draws: int = 1
    precision: str = FLOAT32

    def __post_init__(self) -> None:
        require_name("unit_name", self.unit_name)
        require_name("row_name", self.row_name)

    @property
    def no_decision(self) -> str:
        """The reason why values that need decisions are undefined, as a clause; "" if the logits are decisions."""
        return "" if self.decides else self.target.no_decision or "the output of the model is not a decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An attention site: one place in the model where weights over tokens are computed.

    Attributes:
        key: Name of the site, unique in the model.
        layer: Index of the site's layer, from 0. Each stack (encoder, decoder, cross-attention) is counted separately.
        kind: "pool", "self" or "cross".
        heads: Number of heads.
        query: Stream of the tokens that attend. None if no token attends, as in pooled attention.
        keys: Stream of the tokens that are attended to.
        sinks: Whether the site has an attention sink that is not a token. The weights over the tokens may then sum to
            less than one.
    """

    key: str
    layer: int = 0
    kind: SiteKind = "pool"
    heads: int = 1
    query: str | None = None
    keys: str = TEXT
    sinks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorTable:
    """The feature vectors of the units in a batch, for models that read vectors instead of token ids.

    Attributes:
        ids: (N,) different token ids, in ascending order.
        vectors: (N, d) the vector of each id.
    """

    ids: Tensor
    vectors: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A padded batch of instances.

    Attributes:
        ids: Stream -> (B, T) token ids.
        mask: Stream -> (B, T) True on tokens, False on padding.
        special: Stream -> (B, T) True on special tokens such as [CLS]. The model reads these tokens, but no statistic
            includes them.
        tokens: Stream -> one list of strings per row: the row's tokens, including special tokens but not padding.
        words: Stream -> (B, T) index of the word that a token belongs to; -1 on special tokens and padding. Empty if
            every token is a word.
        passages: Stream -> (B, T) index of the passage that a token belongs to; -1 on all other tokens. Empty if the
            model reads no passages.
        boxes: Stream -> one list of boxes (x, y, width, height) per row, one box per token, including special tokens
            but not padding. The numbers are fractions of the width and the height of the picture. A special token has
            the box (0, 0, 0, 0). Empty if the tokens are not parts of a picture.
        times: Stream -> one list of (start, end) per row, in seconds, one pair per token as in `boxes`. Empty if the
            tokens are not parts of a recording.
        tables: Stream -> the vectors that its ids stand for. All rows and variants of a batch share one table. Empty
            if the model reads no feature vectors.
        extra: Name -> any other tensor with one entry per row. For example, "truncated" (B,) is True where the text
            was truncated.
    """

    ids: Mapping[str, Tensor]
    mask: Mapping[str, Tensor]
    special: Mapping[str, Tensor]
    tokens: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    words: Mapping[str, Tensor] = field(default_factory=dict)
    passages: Mapping[str, Tensor] = field(default_factory=dict)
    boxes: Mapping[str, Sequence[Sequence[Box]]] = field(default_factory=dict)
    times: Mapping[str, Sequence[Sequence[TimeSpan]]] = field(default_factory=dict)
    tables: Mapping[str, VectorTable] = field(default_factory=dict)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def real(self, stream: str = TEXT) -> Tensor:
        """Return a mask (B, T), True on the tokens that statistics include: neither padding nor special tokens."""
        return self.mask[stream] & ~self.special[stream]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The results of one forward pass.

    Attributes:
        logits: (B, C) logits.
        attention: Site key -> (B, H, Q, K) weights that the pass used; zero where `allowed` is False.
        allowed: Site key -> (B, 1 or H, Q, K) True where a query may attend to a key. Always False if the query is
            padding.
        hidden: Site key -> (B, K, m) states from which the site's values are computed, attached to the autograd graph.
            In pooled attention, the weights are applied to these states directly. Empty unless `run` was called with
            `hidden=True`.
        before_norm: Site key -> (B, K, m) the states in `hidden` before the normalisation layer that ends the encoder,
            attached to the autograd graph. Optional. The norm of a normalised state is nearly constant, so its gradient
            says little about the influence of the inputs.
        decoder_condition: (B, q) second input of the decoder in a pooled model, such as the state of the query. It is
            attached to the autograd graph and independent of the attention. None if the decoder reads only the context.
        cache: Data of this pass for the adapter's own `replay` and `value_vectors`. No other code reads it.
        queries: Site key -> (B, R) positions of the queries whose weights the trace contains. Sites with the weights of
            all queries have no entry. At sites with an entry, Q is R in the shapes above.
        blocks: Keys of the sites whose weights are not stored, but computed in blocks of queries when they are read
            (see `BlockAdapter`). For such a site, `attention` and `allowed` have no entry, or only the queries in
            `queries`.
        joined: The tensors in `attention` and `hidden` that were joined from several passes. Gradients of the logits
            with respect to them are computed by `joined_rows.gradients`. Empty if all rows ran in one pass.
    """

    logits: Tensor
    attention: Mapping[str, Tensor]
    allowed: Mapping[str, Tensor]
    hidden: Mapping[str, Tensor] = field(default_factory=dict)
    decoder_condition: Tensor | None = None
    cache: object = None
    queries: Mapping[str, Tensor] = field(default_factory=dict)
    before_norm: Mapping[str, Tensor] = field(default_factory=dict)
    blocks: frozenset[str] = frozenset()
    joined: Sequence[JoinedRows] = ()


#: A function that replaces attention weights. It is called with the site, the weights (B, H, Q, K) that the model
#: computed, and the mask `allowed` (B, 1 or H, Q, K). It returns the weights to use, or None to leave the weights
#: unchanged. The adapter must let gradients of the logits reach the returned weights.
Intervention = Callable[[Site, Tensor, Tensor], Tensor | None]


@runtime_checkable
class ModelAdapter(Protocol):
    """The interface through which an audit uses one model.

    An audit calls `delete`, `keep`, `substitute`, `decode` and `decoder_weights` only if `capabilities` declares them.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this adapter can do."""
        ...

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The modules that own the model's parameters.

        An audit moves them to its device, puts them in evaluation mode and hashes their parameters.
        """
        ...

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        """Tokenise instances and pad them to one batch. Row b of the batch is `instances[b]`."""
        ...

    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        """Return the embeddings (B, T, d) of each stream. An audit takes gradients with respect to them."""
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
            embeddings: Stream -> (B, T, d) embeddings to use instead of `embed(inputs)`; None to use `embed(inputs)`.
            intervene: Called once for every site, with the weights that the model computed there. It may return other
                weights for the model to use. None leaves all weights unchanged. If the rows run in several passes, it
                is called in each of them, with weights of zero in the rows that have not run yet.
            hidden: Whether the trace must contain hidden states.
        """
        ...

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        """Return copies of rows, each without one token.

        An adapter must remove the token from the ids. It must not change the text and tokenise it again.

        Args:
            inputs: The batch.
            stream: The stream that loses tokens.
            drop: One (row, position) per copy: the row to copy, and the position of the token to remove.

        Returns:
            A batch with one row per entry of `drop`, in the same order. Each copy has the entries of its row in
            `inputs.extra`.
        """
        ...

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        """Return copies of rows, each with only some of its tokens.

        The result must be the same as if `delete` had removed all other tokens one by one.

        Args:
            inputs: The batch.
            stream: The stream that loses tokens.
            rows: (V,) index of the row that each copy is made from.
            keep: (V, T) True at the positions that the copy keeps.

        Returns:
            A batch with V rows.
        """
        ...

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        """Return copies of rows in which some tokens are replaced by the mask token.

        A model without a mask token uses the token for unknown words. All other tokens keep their positions. The
        result may lack positions at the end that are padding in all of its rows.

        Args:
            inputs: The batch.
            stream: The stream whose tokens are replaced.
            rows: (V,) index of the row that each copy is made from.
            replaced: (V, T) True at the positions to replace.

        Returns:
            A batch with V rows.
        """
        ...

    def decode(self, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None = None) -> Tensor:
        """Compute the logits for V different attention distributions per row.

        Args:
            hidden: (B, T, m) hidden states of a trace.
            weights: (B, V, T) attention weights; (B, V, H, T) if the site has several heads.
            decoder_condition: The `decoder_condition` of the trace. An adapter whose traces have none may omit this
                parameter.

        Returns:
            (B, V, C) logits.
        """
        ...

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        """Return the weight (C, m) and bias (C,) of a decoder that is linear in the context."""
        ...


def decode_logits(adapter: ModelAdapter, hidden: Tensor, weights: Tensor, decoder_condition: Tensor | None) -> Tensor:
    """Call `adapter.decode` and return its logits (B, V, C).

    If the weights (B, V, H, T) have a single head, the adapter gets them without the dimension of the heads. The
    decoder condition is passed only if it is not None, because an adapter without one may omit this parameter.
    """
    if weights.dim() == 4 and weights.shape[2] == 1:
        weights = weights[:, :, 0]
    if decoder_condition is None:
        return adapter.decode(hidden, weights)
    return adapter.decode(hidden, weights, decoder_condition)


def linear_decoder(adapter: ModelAdapter, hidden: Tensor, decoder_condition: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weight (C, m) and bias (B, C) of an adapter's linear decoder, without gradients.

    `hidden` (B, T, m) and `decoder_condition` (B, q) come from a trace. The bias differs by row only if there is a
    decoder condition.
    """
    weight, bias = (parameter.detach() for parameter in adapter.decoder_weights())
    if decoder_condition is None:
        return weight, bias.expand(len(hidden), -1)
    with torch.no_grad():
        return weight, adapter.decode(hidden, torch.zeros_like(hidden[:, None, :, 0]), decoder_condition)[:, 0]
