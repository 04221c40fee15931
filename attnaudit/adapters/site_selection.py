"""Forward passes that request the attention of only some sites, and of only some queries.

Shapes: B rows, H heads, Q queries, R selected queries, K keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, cast

from torch import Tensor

from attnaudit.adapters.protocol import Inputs, Intervention, ModelAdapter, Site, Trace
from attnaudit.adapters.query_blocks import BlockAdapter, BlockIntervention
from attnaudit.errors import AdapterError


class SiteSelectingAdapter(ModelAdapter, Protocol):
    """The interface of adapters that declare `selects_sites`. Their passes are faster if few sites are requested."""

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
        sites: Collection[str] | None = None,
    ) -> Trace:
        """Run one forward pass (see `ModelAdapter.run`).

        Args:
            inputs: As in `ModelAdapter.run`.
            embeddings: As in `ModelAdapter.run`.
            intervene: As in `ModelAdapter.run`. It need not be called for sites that are not in `sites`.
            hidden: As in `ModelAdapter.run`.
            sites: Keys of the sites whose attention the trace must contain; None for all sites. The logits and the
                hidden states must not depend on this argument, except for rounding errors.
        """
        ...


class QuerySelectingAdapter(ModelAdapter, Protocol):
    """The interface of adapters that declare `selects_queries`.

    Their passes need less time and memory if only the attention of some queries is requested.
    """

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        hidden: bool = False,
        sites: Collection[str] | None = None,
        queries: Mapping[str, Tensor] | None = None,
    ) -> Trace:
        """Run one forward pass (see `SiteSelectingAdapter.run`).

        Args:
            inputs: As in `ModelAdapter.run`.
            embeddings: As in `ModelAdapter.run`.
            intervene: As in `SiteSelectingAdapter.run`. At the sites in `queries`, it is called with the weights
                (B, H, R, K) of the named queries only, and changes no other weights.
            hidden: As in `ModelAdapter.run`.
            sites: As in `SiteSelectingAdapter.run`.
            queries: Site key -> (B, R) positions of the queries whose weights the trace must contain, in this order.
                `Trace.queries` has the same entries. Sites without an entry have the weights of all queries. The logits
                and the hidden states must not depend on this argument, except for rounding errors.
        """
        ...


def at_query(trace: Trace, values: Tensor, site: str, positions: Tensor) -> Tensor:
    """Return the values (B, H, K) of one query per row.

    Args:
        trace: The trace that the values belong to.
        values: (B, H, Q, K) values of a site, such as its weights; (B, H, R, K) if the trace has only some queries.
        site: The key of the site.
        positions: (B,) position of the query in each row.

    Raises:
        AdapterError: The trace does not have the query of some row.
    """
    places = positions
    if site in trace.queries:
        found = trace.queries[site] == positions[:, None]
        if not bool(found.any(1).all()):
            raise AdapterError(
                f"The trace lacks the attention of the query that the reading needs at '{site}'. Name this "
                "query in the argument `queries` of run()."
            )
        places = found.int().argmax(1)
    index = places[:, None, None, None].expand(-1, values.shape[1], 1, values.shape[3])
    return values.gather(2, index)[:, :, 0]


def at_queries(intervene: Intervention, queries: Mapping[str, Tensor]) -> Intervention:
    """Adapt an intervention on some queries to passes that compute the weights of all queries.

    Args:
        intervene: The intervention. It is called with the weights of only the queries in `queries`.
        queries: As in `QuerySelectingAdapter.run`.
    """

    def on_all(site: Site, weights: Tensor, allowed: Tensor) -> Tensor | None:
        if site.key not in queries:
            return intervene(site, weights, allowed)
        allowed = allowed.expand(-1, -1, weights.shape[2], -1)
        index, of_mask = (
            queries[site.key][:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]) for t in (weights, allowed)
        )
        changed = intervene(site, weights.gather(2, index), allowed.gather(2, of_mask))
        if changed is None:
            return None
        # If a position is listed twice, its first entry is written last. `at_query` reads this entry.
        for r in reversed(range(index.shape[2])):
            weights = weights.scatter(2, index[:, :, r, None], changed[:, :, r, None])
        return weights

    return on_all


def run_for(
    adapter: ModelAdapter,
    inputs: Inputs,
    sites: Collection[str] | None,
    *,
    queries: Mapping[str, Tensor] | None = None,
    embeddings: Mapping[str, Tensor] | None = None,
    intervene: Intervention | BlockIntervention | None = None,
    hidden: bool = False,
    blocks: Collection[str] = (),
) -> Trace:
    """Run one forward pass that must return the attention of the given sites (None for all sites).

    `queries`, `intervene` and `blocks` are as in `BlockAdapter.run`. Only an adapter that declares `query_blocks` may
    be given `blocks`. If the adapter does not declare `selects_queries`, the trace contains all queries. If it does not
    declare `selects_sites` either, the trace contains all sites.
    """
    if blocks:
        in_blocks = cast(BlockAdapter, adapter)
        return in_blocks.run(
            inputs,
            embeddings=embeddings,
            intervene=intervene,
            hidden=hidden,
            sites=sites,
            queries=queries,
            blocks=blocks,
        )
    if queries and adapter.capabilities.selects_queries:
        by_query = cast(QuerySelectingAdapter, adapter)
        return by_query.run(
            inputs, embeddings=embeddings, intervene=intervene, hidden=hidden, sites=sites, queries=queries
        )
    if queries and intervene is not None:
        intervene = at_queries(intervene, queries)
    if sites is not None and adapter.capabilities.selects_sites:
        selecting = cast(SiteSelectingAdapter, adapter)
        return selecting.run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden, sites=sites)
    return adapter.run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)
