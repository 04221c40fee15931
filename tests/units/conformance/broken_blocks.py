"""Adapters that declare `query_blocks`: one that keeps the contract, and some that break it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnaudit.adapters import Trace
from attnaudit.adapters.protocol import Inputs, Intervention, Site
from attnaudit.adapters.query_blocks import BlockIntervention
from tests.units.conformance.conformance_models import SmallTransformer


class ComputesInBlocks(SmallTransformer):
    """Holds all weights, but hands them out in blocks. Subclasses make a mistake."""

    def __init__(self, **declared: Any) -> None:
        super().__init__(query_blocks=True, **declared)

    def run(
        self,
        inputs: Inputs,
        *,
        intervene: Intervention | BlockIntervention | None = None,
        sites: Collection[str] | None = None,
        blocks: Collection[str] = (),
        detached: bool = False,
        **given: Any,
    ) -> Trace:
        if detached:
            return super().run(inputs, intervene=self.detach, **given)
        trace = super().run(inputs, intervene=self.changed(intervene) if blocks else intervene, **given)
        return self.blocked(trace, frozenset(blocks) if intervene is None else frozenset())

    def detach(self, _site: Site, weights: Tensor, _allowed: Tensor) -> Tensor | None:
        return weights.detach()

    def changed(self, intervene: Intervention | BlockIntervention | None) -> Intervention | BlockIntervention | None:
        return intervene

    def blocked(self, trace: Trace, blocks: frozenset[str]) -> Trace:
        return replace(trace, blocks=blocks)

    def attention_rows(self, trace: Trace, site: Site, first: int, stop: int) -> tuple[Tensor, Tensor]:
        return trace.attention[site.key][:, :, first:stop], trace.allowed[site.key][:, :, first:stop]


class NamesNoBlocks(ComputesInBlocks):
    def blocked(self, trace: Trace, blocks: frozenset[str]) -> Trace:
        return trace


class ComputesRoughlyInBlocks(ComputesInBlocks):
    def blocked(self, trace: Trace, blocks: frozenset[str]) -> Trace:
        return replace(super().blocked(trace, blocks), logits=trace.logits * (1.01 if blocks else 1.0))


class StartsEveryBlockAtTheFirstQuery(ComputesInBlocks):
    def attention_rows(self, trace: Trace, site: Site, first: int, stop: int) -> tuple[Tensor, Tensor]:
        weights, allowed = super().attention_rows(trace, site, first, stop)
        return trace.attention[site.key][:, :, : weights.shape[2]], allowed


class AllowsOtherKeysInBlocks(ComputesInBlocks):
    def attention_rows(self, trace: Trace, site: Site, first: int, stop: int) -> tuple[Tensor, Tensor]:
        weights, allowed = super().attention_rows(trace, site, first, stop)
        return weights, ~allowed


class IgnoresInterventionsInBlocks(ComputesInBlocks):
    def changed(self, intervene: Intervention | BlockIntervention | None) -> None:
        return None


class DoesNotDetach(ComputesInBlocks):
    def detach(self, _site: Site, _weights: Tensor, _allowed: Tensor) -> None:
        return None
