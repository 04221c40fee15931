"""The results of probing a Transformers model, that is, of running it on synthetic tokens."""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.adapters.huggingface.outputs.read_tokens import ReadTokens
from attnaudit.adapters.huggingface.passes.equal_states import FirstLinears
from attnaudit.adapters.huggingface.passes.last_layer import LastLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Properties of a model, found by running it on synthetic tokens.

    Attributes:
        read_tokens: The tokens that the logits are read from: "first", "last" or "all"; "" if unknown.
        skips_padding_token: Whether the model does not read its logits from the padding token, even if it is the last
            token of a text.
        pads_left: Whether batches must be padded on the left, because padding on the right changes the logits.
        unpadded: Whether the model must run without padding, because padding on both sides changes the logits (see
            `UnpaddedRunner`).
        left_padding: Whether padding on the left gives the correct logits.
        first_position: Position id of a row's first token if the batch is padded on the left.
        shares_prefixes: Whether the functions of `prefix_cache` give the correct logits for texts with some tokens
            removed.
        unseen_mixers: The modules that carry information between tokens without weights that can be recorded (see
            `token_mixing.unseen_mixers`).
        fuses: Whether the fused kernel gives the same attention output as the model's own attention functions.
        selects_queries: Whether the logits and weights stay the same in a pass that computes the weights of only some
            queries. In such a pass, the fused kernel computes the output of all queries, and the model's own attention
            functions compute these weights.
        last_layer: The modules of the last layer that an audit may run only on the token that the logits are read from.
            None if this would change the logits.
        batches_gradients: Whether one backward pass through the model can compute the gradients of several numbers.
        first_linears: The linear layers that an audit may run only on distinct states. None if this would change the
            logits.
        query_blocks: Whether the weights stay the same if the model's own attention functions compute them in blocks of
            queries.
    """

    read_tokens: ReadTokens
    skips_padding_token: bool
    pads_left: bool
    unpadded: bool
    left_padding: bool
    first_position: int
    shares_prefixes: bool
    unseen_mixers: tuple[str, ...]
    fuses: bool
    selects_queries: bool
    last_layer: LastLayer | None
    batches_gradients: bool
    first_linears: FirstLinears | None
    query_blocks: bool
