"""Forward passes that request the attention of only some sites."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, cast

from torch import Tensor

from attnaudit.adapters.protocol import Inputs, Intervention, ModelAdapter, Trace


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


def run_for(
    adapter: ModelAdapter,
    inputs: Inputs,
    sites: Collection[str] | None,
    *,
    embeddings: Mapping[str, Tensor] | None = None,
    intervene: Intervention | None = None,
    hidden: bool = False,
) -> Trace:
    """Run one forward pass that must return the attention of some sites (None for all sites).

    If the adapter does not declare `selects_sites`, the trace contains all sites.
    """
    if sites is not None and adapter.capabilities.selects_sites:
        selecting = cast(SiteSelectingAdapter, adapter)
        return selecting.run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden, sites=sites)
    return adapter.run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)
