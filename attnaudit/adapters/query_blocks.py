"""Attention in blocks of queries, for texts whose attention weights for all pairs of tokens would not fit in memory.

A pass names the sites whose weights it must not hold. The weights of these sites are computed again whenever they are
read, for a block of consecutive queries at a time.

Shapes: B rows, T tokens, H heads, Q queries, R queries of a block, K keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from torch import Tensor

from attnaudit.adapters.protocol import Inputs, Intervention, ModelAdapter, Site, Trace

#: Largest number of attention weights of one site (rows × heads × queries × keys) that a pass holds. The weights of
#: larger sites are computed in blocks of queries.
LARGEST_SITE = 2**23
#: Largest number of attention weights in a block, unless a single query has more.
LARGEST_BLOCK = 2**21


class BlockIntervention(Protocol):
    """A function that replaces attention weights, and that treats each query independently of the others.

    It can therefore be called with all queries, as an `Intervention`, or once for each block of queries.
    """

    def __call__(self, site: Site, weights: Tensor, allowed: Tensor, first: int = 0, /) -> Tensor | None:
        """Return the weights (B, H, R, K) to use, or None to leave the weights unchanged.

        Args:
            site: The site.
            weights: (B, H, R, K) weights that the model computed for R consecutive queries.
            allowed: (B, 1 or H, R, K) True where a query may attend to a key.
            first: Position of the first of these queries.
        """
        ...


class ErasureIntervention(Protocol):
    """A function that returns the intervention on the attention of variants in which units are erased."""

    def __call__(self, rows: Tensor, left: Tensor | None, /) -> BlockIntervention:
        """Return the intervention on V variants that run together.

        Args:
            rows: (V,) the row of the batch that each variant is made from.
            left: (V, T) True at the tokens that the variants still have if tokens are deleted; None if they are masked.
        """
        ...


class BlockAdapter(ModelAdapter, Protocol):
    """The interface of adapters that declare `query_blocks`. It extends `QuerySelectingAdapter`."""

    def run(
        self,
        inputs: Inputs,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
        intervene: Intervention | BlockIntervention | None = None,
        hidden: bool = False,
        sites: Collection[str] | None = None,
        queries: Mapping[str, Tensor] | None = None,
        blocks: Collection[str] = (),
        detached: bool = False,
    ) -> Trace:
        """Run one forward pass.

        Args:
            inputs: As in `ModelAdapter.run`.
            embeddings: As in `ModelAdapter.run`.
            intervene: As in `QuerySelectingAdapter.run`. At the sites in `blocks`, it is called once for each block of
                queries, and must be a `BlockIntervention`.
            hidden: As in `ModelAdapter.run`.
            sites: As in `SiteSelectingAdapter.run`. It includes the sites in `blocks`.
            queries: As in `QuerySelectingAdapter.run`. Without an intervention, it may have entries for sites in
                `blocks`.
            blocks: Keys of the sites for which the trace must not hold the weights of all queries. `Trace.blocks` has
                the same keys, and `attention_rows` returns the weights. If `intervene` is given, the weights cannot be
                read, and `Trace.blocks` is empty.
            detached: Whether gradients treat the weights of all sites as constants.
        """
        ...

    def attention_rows(self, trace: Trace, site: Site, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Compute the weights of some queries at a site in `Trace.blocks`, without gradients.

        Args:
            trace: A trace of `run`.
            site: The site.
            first: Position of the first query.
            stop: Position after the last query. It may exceed the number of queries.

        Returns:
            (B, H, R, K) weights and (B, 1 or H, R, K) mask, as in `Trace.attention` and `Trace.allowed`.
        """
        ...


def queries_per_block(rows: int, heads: int, keys: int) -> int:
    """Return the number of queries in a block: at least 1, otherwise limited by `LARGEST_BLOCK`."""
    return max(1, LARGEST_BLOCK // max(1, rows * heads * keys))


def block_starts(queries: int, size: int) -> Iterator[int]:
    """Return the position of the first query of each block, given the number of queries and the size of a block."""
    return iter(range(0, queries, size))


def too_large_to_hold(adapter: ModelAdapter, inputs: Inputs, rows: int, sites: Collection[str]) -> frozenset[str]:
    """Return the keys of the sites whose weights a pass computes in blocks, because they exceed `LARGEST_SITE`.

    Args:
        adapter: The model. If it does not declare `query_blocks`, the result is empty.
        inputs: A batch whose streams are as long as those of the pass.
        rows: Number of rows of the pass.
        sites: Keys of the sites at which the pass needs the weights of all queries.
    """
    if not adapter.capabilities.query_blocks:
        return frozenset()

    def size(site: Site) -> int:
        queries, keys = (inputs.mask[stream].shape[1] for stream in (str(site.query), site.keys))
        return rows * site.heads * queries * keys

    return frozenset(site.key for site in adapter.sites() if site.key in sites and size(site) > LARGEST_SITE)
