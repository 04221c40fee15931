"""Adapters whose sites, weights, allowed masks or tokens differ from what the model uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters import Inputs, Intervention, Site, Trace
from attnaudit.adapters.protocol import TEXT
from tests.units.conformance.conformance_models import Block, SmallTransformer


class NamesOneKeyTwice(SmallTransformer):
    def sites(self) -> tuple[Site, ...]:
        return (replace(super().sites()[0], key="layer"), replace(super().sites()[1], key="layer"))


class NamesAStreamThatIsNone(SmallTransformer):
    def sites(self) -> tuple[Site, ...]:
        return tuple(replace(site, query="decoder") for site in super().sites())


class HidesASite(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, attention={"layer 0": trace.attention["layer 0"]})


class ShowsTheMeanOfHeads(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, attention={k: v.mean(1, keepdim=True) for k, v in trace.attention.items()})


class AllowsByNumbers(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, allowed={k: v.float() for k, v in trace.allowed.items()})


class DividesByZero(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, attention={k: v * (0 * v / v.sum()) / 0 for k, v in trace.attention.items()})


class AnswersInfinity(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, logits=trace.logits + torch.inf)


class ShowsHiddenStatesOfTheStream(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, hidden={TEXT: trace.hidden["layer 1"]} if trace.hidden else {})


class TagsNoSpecialTokens(SmallTransformer):
    def encoded(self, text: str) -> tuple[list[int], list[bool], list[int], list[str]]:
        ids, special, _, strings = super().encoded(text)
        return ids, [False] * len(special), list(range(len(ids))), strings


class RestartsWordNumbers(SmallTransformer):
    def encoded(self, text: str) -> tuple[list[int], list[bool], list[int], list[str]]:
        ids, special, words, strings = super().encoded(text)
        return ids, special, [w if w < 2 else w - 2 for w in words], strings


class CountsSpecialTokensAsWords(SmallTransformer):
    def encoded(self, text: str) -> tuple[list[int], list[bool], list[int], list[str]]:
        ids, special, words, strings = super().encoded(text)
        return ids, special, [max(w, 0) for w in words], strings


class IsNoisy(SmallTransformer):
    def residual(self, states: Tensor) -> Tensor:
        return torch.nn.functional.dropout(states, 0.3, training=True)


class ShowsPaddingQueries(SmallTransformer):
    """Returns uniform weights in fully masked rows, as a softmax over equal scores does."""

    def weights(self, block: Block, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)


class ForgetsTheMask(SmallTransformer):
    def weights(self, block: Block, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.softmax(-1) * allowed.any(-1, keepdim=True)


class ShowsScores(SmallTransformer):
    def weights(self, block: Block, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores * allowed


class KeepsItsSinksToItself(SmallTransformer):
    def sites(self) -> tuple[Site, ...]:
        return tuple(replace(site, sinks=False) for site in super().sites())


class ShowsOtherAllowed(SmallTransformer):
    def shown_allowed(self, allowed: Tensor, inputs: Inputs) -> Tensor:
        raise NotImplementedError

    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, allowed={k: self.shown_allowed(v, inputs) for k, v in trace.allowed.items()})


class AllowsPaddingKeys(ShowsOtherAllowed):
    def shown_allowed(self, allowed: Tensor, inputs: Inputs) -> Tensor:
        return inputs.mask[TEXT][:, None, :, None].expand_as(allowed)


class AllowsPaddingQueries(ShowsOtherAllowed):
    def shown_allowed(self, allowed: Tensor, inputs: Inputs) -> Tensor:
        return inputs.mask[TEXT][:, None, None, :].expand_as(allowed)


class LeavesATokenNothing(ShowsOtherAllowed):
    def shown_allowed(self, allowed: Tensor, inputs: Inputs) -> Tensor:
        return allowed & (torch.arange(allowed.shape[2]) > 0)[None, None, :, None]


class KeepsItsStructureToItself(ShowsOtherAllowed):
    """Has causal or windowed weights, but a mask that excludes only padding."""

    def shown_allowed(self, allowed: Tensor, inputs: Inputs) -> Tensor:
        mask = inputs.mask[TEXT]
        return mask[:, None, :, None] & mask[:, None, None, :]


class MovesWhenReplaced(SmallTransformer):
    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        weights, shown = super().used(site, weights, allowed, intervene)
        return (weights if intervene is None else 1.01 * weights), shown


class MovesAtOneSiteAlone(SmallTransformer):
    """Uses the weights of the last site if only the first is replaced; correct if all sites are replaced."""

    def run(self, inputs: Inputs, *, intervene: Intervention | None = None, **given: Any) -> Trace:
        if intervene is not None:
            inner, put = intervene, {}

            def intervene(site: Site, weights: Tensor, allowed: Tensor) -> Tensor | None:
                found = inner(site, weights, allowed)
                put[site.key] = found
                return 0.9 * weights if found is None and put.get("layer 0") is not None else found

        return super().run(inputs, intervene=intervene, **given)


class AsksAtOneSite(SmallTransformer):
    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        return super().used(site, weights, allowed, intervene if site.layer == 0 else None)


class OffersOtherWeights(SmallTransformer):
    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        replaced = None if intervene is None else intervene(site, weights / 2, allowed)
        used = weights if replaced is None else replaced
        return used, used


class ShowsButDoesNotUse(SmallTransformer):
    where = (0, 1)

    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        _, shown = super().used(site, weights, allowed, intervene)
        return (weights if site.layer in self.where else shown), shown


class ShowsButDoesNotUseInOneLayer(ShowsButDoesNotUse):
    where = (1,)


class UsesButDoesNotShow(SmallTransformer):
    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        used, _ = super().used(site, weights, allowed, intervene)
        return used, weights
