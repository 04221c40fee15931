"""The adapter for models that pool the states of one encoder with several attentions.

Examples are memory networks, whose hops attend to the same memory one after another, and models with one attention per
question or aspect. Each attention is a site with a name and one or more heads.

Shapes: B instances, T tokens of the text, H heads, V variants, C logits, m features of a hidden state, v features of
the values at a site, q features of the query's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor, nn

from attnaudit.adapters.pooled.part_options import require_callable
from attnaudit.adapters.pooled.target_decoder import decoder_of
from attnaudit.adapters.pooled.token_streams import (
    Encoding,
    TokenStreams,
    modules_among,
    require_encoder,
    require_reading,
    require_states,
)
from attnaudit.adapters.protocol import QUERY, TEXT, Capabilities, Inputs, Intervention, Site, Trace
from attnaudit.errors import AdapterError, nearest
from attnaudit.targets import CLASS, Target

#: The family of these models, unless the adapter names another one.
SEVERAL_SITES = "several-site attention"


class Attend(Protocol):
    """The function through which a model applies its attention weights."""

    def __call__(self, site: str, weights: Tensor, values: Tensor) -> Tensor:
        """Return the weighted sum of the values, with the weights that the audit may replace.

        Args:
            site: The name of the site.
            weights: (B, T) weights that sum to one over the allowed tokens; (B, H, T) at a site with several heads.
            values: (B, T, v) vectors to which the weights are applied.

        Returns:
            (B, v) context; (B, H, v) at a site with several heads.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Encoded:
    """The states of a pass, which do not depend on the attention.

    Attributes:
        states: (B, T, m) states.
        allowed: (B, T) True on tokens that may be attended to.
        query: The state (B, q) of the query in a tuple, which is empty for a model without a query.
    """

    states: Tensor
    allowed: Tensor
    query: tuple[Tensor, ...]

    def repeated(self, times: int) -> _Encoded:
        """Return detached states in which each instance is repeated, with its copies next to each other."""
        states, allowed, *query = (
            tensor.detach().repeat_interleave(times, dim=0) for tensor in (self.states, self.allowed, *self.query)
        )
        return _Encoded(states, allowed, tuple(query))


class SeveralAttentionsAdapter(TokenStreams):
    """A model adapter for a classifier that pools the states of its encoder with several attentions."""

    def __init__(
        self,
        *,
        embedding: Callable[[Tensor], Tensor],
        encoder: Callable[[Tensor, Tensor], Tensor],
        pool: Callable[..., Tensor],
        sites: Mapping[str, int],
        reading: str = "",
        tokenize: Callable[[str], Encoding],
        classes: Sequence[str],
        modules: Sequence[nn.Module] | None = None,
        pad_id: int = 0,
        mask_id: int | None = None,
        attend_special: bool = False,
        max_tokens: int | None = None,
        description: str = "",
        family: str = SEVERAL_SITES,
        configuration: str = "",
        query: Callable[[Tensor, Tensor], Tensor] | None = None,
        target: Target = CLASS,
        original: Callable[..., Tensor] | None = None,
    ) -> None:
        """Build an adapter from the parts of a model.

        Args:
            embedding: (B, T) ids -> (B, T, d) embeddings.
            encoder: (embeddings (B, T, d), mask (B, T)) -> states (B, T, m). They must not depend on any attention
                weights.
            pool: (states (B, T, m), allowed (B, T), attend) -> logits (B, C). It must compute every weighted sum with
                `attend(site, weights, values)` (see `Attend`), once per site.
            sites: Name of each site -> its number of heads, in the order in which `pool` computes them.
            reading: The attention that is shown as the explanation (see `attnaudit.readings`), such as
                "own@site=hop 1,heads=mean" or "own@layer=-1,heads=0". It is required if there is more than one site or
                head, and invalid otherwise.
            tokenize: As for `PooledAttentionAdapter`.
            classes: As for `PooledAttentionAdapter`.
            modules: As for `PooledAttentionAdapter`.
            pad_id: As for `PooledAttentionAdapter`.
            mask_id: As for `PooledAttentionAdapter`.
            attend_special: As for `PooledAttentionAdapter`.
            max_tokens: As for `PooledAttentionAdapter`.
            description: As for `PooledAttentionAdapter`.
            family: The family of the model.
            configuration: As for `PooledAttentionAdapter`.
            query: Function that encodes the query: (embeddings (B, Q, d), mask (B, Q)) -> state (B, q). If given,
                `pool` is called with this state as its fourth argument.
            target: As for `PooledAttentionAdapter`.
            original: As for `PooledAttentionAdapter`.

        Raises:
            AdapterError: An option is invalid.
        """
        if not sites or any(not name or set(name) & set(",=@/") for name in sites) or min(sites.values()) < 1:
            raise AdapterError(
                f"sites={dict(sites)}: expected the name of each site and its number of heads, such as {{'hop 1': 1}}. "
                "A name must not contain a comma, '=', '@' or '/'."
            )
        reads = () if query is None else ("query_state",)
        require_callable("pool", pool, ("states", "allowed", "attend", *reads))
        self.encoder, self.pool, self.query = require_encoder(encoder), decoder_of(target, pool, classes), query
        self._sites = tuple(Site(key=name, layer=i, heads=heads) for i, (name, heads) in enumerate(sites.items()))
        require_reading(self._sites, reading)
        super().__init__(
            embedding=embedding,
            tokenize=tokenize,
            modules=modules_among((embedding, encoder, pool)) if modules is None else modules,
            streams=(TEXT,) if query is None else (TEXT, QUERY),
            pad_id=pad_id,
            mask_id=mask_id,
            attend_special=attend_special,
            description=description,
            family=family,
            configuration=configuration,
            target=target,
            original=original,
            capabilities=Capabilities(
                classes=tuple(classes),
                replays=True,
                mask=mask_id is not None,
                query=query is not None,
                max_tokens=max_tokens,
                reading=reading,
            ),
        )

    def sites(self) -> tuple[Site, ...]:
        return self._sites

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
    ) -> Trace:
        embedded = self.embed(inputs) if embeddings is None else embeddings
        count, width = inputs.ids[TEXT].shape
        states = require_states(self.encoder(embedded[TEXT], inputs.mask[TEXT]), (count, width))
        query = () if self.query is None else (self.query(embedded[QUERY], inputs.mask[QUERY]),)
        encoded = _Encoded(states, self._allowed(inputs), query)
        logits, attention, values = self._pooled(encoded, intervene)
        return Trace(
            logits=logits,
            attention={key: weights[:, :, None, :] for key, weights in attention.items()},
            allowed={site.key: encoded.allowed[:, None, None, :] for site in self._sites},
            hidden=values if hidden else {},
            cache=encoded,
        )

    def _pooled(
        self, encoded: _Encoded, intervene: Intervention | None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Run the attentions and everything after them.

        Returns:
            (B, C) logits; site -> (B, H, T) weights; site -> (B, T, v) values.
        """
        attention: dict[str, Tensor] = {}
        values_of: dict[str, Tensor] = {}
        by_key = {site.key: site for site in self._sites}
        allowed = encoded.allowed

        def attend(site: str, weights: Tensor, values: Tensor) -> Tensor:
            if site not in by_key:
                raise AdapterError(
                    f"attend() was called for the site '{site}', which is not declared. {nearest(site, by_key)} Add it "
                    "to the argument `sites`."
                )
            if site in attention:
                raise AdapterError(
                    f"attend() was called twice for the site '{site}'. Give each attention its own name."
                )
            heads = by_key[site].heads
            expected = tuple(allowed.shape) if heads == 1 else (len(allowed), heads, allowed.shape[1])
            if tuple(weights.shape) != expected or values.shape[:2] != allowed.shape:
                raise AdapterError(
                    f"attend('{site}'): the weights have the shape {tuple(weights.shape)} and the values "
                    f"{tuple(values.shape)}; expected weights {expected} and values ({len(allowed)}, "
                    f"{allowed.shape[1]}, v)."
                )
            weights = weights.reshape(len(allowed), heads, -1)
            if intervene is not None:
                replaced = intervene(by_key[site], weights[:, :, None, :], allowed[:, None, None, :])
                weights = weights if replaced is None else replaced[:, :, 0, :]
            attention[site], values_of[site] = weights, values
            context = weights @ values
            return context[:, 0] if heads == 1 else context

        logits = self.pool(encoded.states, allowed, attend, *encoded.query)
        missing = [name for name in by_key if name not in attention]
        if missing:
            raise AdapterError(
                f"pool() did not call attend() for the sites {', '.join(missing)}. Compute every weighted sum with "
                "attend(site, weights, values), or remove the site from the argument `sites`."
            )
        return logits, attention, values_of

    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        count, variants, heads, width = weights.shape
        rows = weights.reshape(count * variants, heads, 1, width)

        def replace(at: Site, _live: Tensor, _allowed: Tensor) -> Tensor | None:
            return rows if at.key == site.key else None

        logits, _, _ = self._pooled(cast(_Encoded, trace.cache).repeated(variants), replace)
        return logits.reshape(count, variants, -1)

    def replay_cost(self, inputs: Inputs, site: Site, queries: Tensor) -> int:
        return int(inputs.mask[TEXT].shape[1])
