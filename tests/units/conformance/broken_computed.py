"""Adapters with wrong results: for padding, other rows in the batch, gradients, deletion or replay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters import Inputs, Intervention, Site, Trace
from attnaudit.adapters.protocol import TEXT
from attnaudit.adapters.site_selection import at_queries, at_query
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.targets import Target
from tests.units.conformance.conformance_models import Block, SmallTransformer


class ReadsPadding(SmallTransformer):
    def decide(self, streams: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        return super().decide({TEXT: streams[TEXT] + streams[TEXT].mean(1, keepdim=True)}, inputs)


class ShowsWeightsAtTheEnd(SmallTransformer):
    """Returns the weights at the right edge of the padded width instead of at their tokens."""

    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        if inputs.ids[TEXT].shape[1] > 20:
            trace = replace(trace, attention={k: v.roll((3, 3), (2, 3)) for k, v in trace.attention.items()})
        return trace


class CountsPositionsFromTheEdge(SmallTransformer):
    def positions(self, mask: Tensor) -> Tensor:
        return torch.arange(mask.shape[1]).expand_as(mask)


class SeesBatchMates(SmallTransformer):
    def residual(self, states: Tensor) -> Tensor:
        return states - states.mean((0, 1))


class LeavesRowsSorted(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, logits=trace.logits[inputs.ids[TEXT][:, 1].argsort()])


class ScalesGivenEmbeddings(SmallTransformer):
    def run(self, inputs: Inputs, *, embeddings: Mapping[str, Tensor] | None = None, **given: Any) -> Trace:
        twice = None if embeddings is None else {k: 2 * v for k, v in embeddings.items()}
        return super().run(inputs, embeddings=twice, **given)


class MasksNothing(SmallTransformer):
    """Gives the logits of the whole text for every masked variant."""

    def share(self, inputs: Inputs) -> Tensor:
        return self.run(inputs).logits

    def variant_cost(self, inputs: Inputs, shared: Tensor, rows: Tensor, keep: Tensor) -> Tensor:
        return torch.ones_like(rows)

    def logits_masked(
        self, inputs: Inputs, shared: Tensor, rows: Tensor, keep: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        return shared[rows]

    def logits_with_single_masks(self, inputs: Inputs, shared: Tensor, row: int, units: Tensor, **how: bool) -> Tensor:
        return shared[row].expand(len(units), -1)


class EmbedsFlat(SmallTransformer):
    def embed(self, inputs: Inputs) -> dict[str, Tensor]:
        return {k: v[:, 0] for k, v in super().embed(inputs).items()}

    def run(self, inputs: Inputs, *, embeddings: Mapping[str, Tensor] | None = None, **given: Any) -> Trace:
        return super().run(inputs, embeddings=embeddings or super().embed(inputs), **given)


class DetachesEmbeddings(SmallTransformer):
    def run(self, inputs: Inputs, *, embeddings: Mapping[str, Tensor] | None = None, **given: Any) -> Trace:
        cut = None if embeddings is None else {k: v.detach() for k, v in embeddings.items()}
        return super().run(inputs, embeddings=cut, **given)


class DetachesReplacedWeights(SmallTransformer):
    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        used, shown = super().used(site, weights, allowed, intervene)
        return (used.detach() if intervene is not None and site.layer == 1 else used), shown


class OffersDetachedWeights(SmallTransformer):
    def used(
        self, site: Site, weights: Tensor, allowed: Tensor, intervene: Intervention | None
    ) -> tuple[Tensor, Tensor]:
        replaced = None if intervene is None else intervene(site, weights.detach(), allowed)
        used = weights if replaced is None else replaced
        return used, used


class DetachesLiveWeights(SmallTransformer):
    def weights(self, block: Block, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().weights(block, scores, allowed).detach()


class LeavesAPathOutOfTheGraph(SmallTransformer):
    def residual(self, states: Tensor) -> Tensor:
        return 0.5 * states + 0.5 * states.detach()


class DeletesTheNext(SmallTransformer):
    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        last = inputs.mask[stream].sum(1) - 1
        return super().delete(inputs, stream, [(r, min(p + 1, int(last[r]))) for r, p in drop])


class DeletesOnlyTheId(SmallTransformer):
    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        found = super().delete(inputs, stream, drop)
        return replace(found, special={k: torch.zeros_like(v) for k, v in found.special.items()})


class DeletesExtraEntries(SmallTransformer):
    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        return replace(super().delete(inputs, stream, drop), extra={})


class KeepsInAnotherOrder(SmallTransformer):
    """Returns the tokens in reverse order if more than one is removed."""

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        found = super().keep(inputs, stream, rows, keep)
        if int((inputs.mask[stream][rows] & ~keep).sum(1).max()) < 2:
            return found
        return replace(found, ids={stream: found.ids[stream].flip(1)}, mask={stream: found.mask[stream].flip(1)})


class SubstitutesTheNext(SmallTransformer):
    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return super().substitute(inputs, stream, rows, replaced.roll(1, 1))


class ReplaysFrozen(SmallTransformer):
    """Takes the weights of later layers from the trace instead of computing them again."""

    def later(self, put: Intervention | None, trace: Trace, times: int) -> Intervention:
        return put or (lambda site, _w, _a: trace.attention[site.key].repeat_interleave(times, 0))


class ReplaysWithoutGradient(SmallTransformer):
    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        return super().replay(inputs, trace, site, queries, weights.detach())


class ReplaysOneAlternative(SmallTransformer):
    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        return super().replay(inputs, trace, site, queries, weights)[:, 0]


class ResumesInAnotherOrder(SmallTransformer):
    """Returns all copies of the first variant before those of the second one."""

    def resume(self, inputs: Inputs, trace: Trace, site: Site, variants: int, *given: Any, **rest: Any) -> Tensor:
        logits = super().resume(inputs, trace, site, variants, *given, **rest)
        return logits.unflatten(0, (-1, variants)).transpose(0, 1).flatten(0, 1)


class ResumesUnchanged(SmallTransformer):
    """Ignores the intervention."""

    def resume(self, inputs: Inputs, trace: Trace, site: Site, variants: int, *given: Any, **rest: Any) -> Tensor:
        return super().resume(inputs, trace, site, variants, lambda _site, _weights, _allowed: None)


class ResumesOnce(SmallTransformer):
    """Returns one row for each row of the batch."""

    def resume(self, inputs: Inputs, trace: Trace, site: Site, variants: int, *given: Any, **rest: Any) -> Tensor:
        return super().resume(inputs, trace, site, variants, *given, **rest)[::variants]


class TransformsByOneHead(SmallTransformer):
    def value_vectors(self, trace: Trace, site: Site, keys: slice = slice(None)) -> Tensor:
        found = super().value_vectors(trace, site, keys)
        return found.flip(1)


class TransformsNothing(SmallTransformer):
    def value_vectors(self, trace: Trace, site: Site, keys: slice = slice(None)) -> Tensor:
        return trace.hidden[site.key][:, keys]


class ConvertsAnotherModel(SmallTransformer):
    def compare_with_original(self, inputs: Inputs) -> str:
        raise AdapterError("The logits under sdpa are 0.3 away, expected at most 1e-4. Update transformers.")


class Raises(SmallTransformer):
    def residual(self, states: Tensor) -> Tensor:
        raise ValueError("expected 3 axes")


class TransformsAllKeys(SmallTransformer):
    def value_vectors(self, trace: Trace, site: Site, keys: slice = slice(None)) -> Tensor:
        return super().value_vectors(trace, site)


class SelectsSites(SmallTransformer):
    """Declares `selects_sites`. Subclasses change the results if `sites` is given."""

    def __init__(self, **declared: Any) -> None:
        super().__init__(selects_sites=True, **declared)

    def run(self, inputs: Inputs, *, sites: Collection[str] | None = None, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return trace if sites is None else self.selected(trace, sites)

    def selected(self, trace: Trace, sites: Collection[str]) -> Trace:
        return replace(trace, attention={key: trace.attention[key] for key in sites})


class SelectsQueries(SmallTransformer):
    """Declares `selects_queries`. Subclasses make a mistake if `queries` are given."""

    replaces = True

    def __init__(self, **declared: Any) -> None:
        super().__init__(selects_sites=True, selects_queries=True, **declared)

    def run(
        self,
        inputs: Inputs,
        *,
        sites: Collection[str] | None = None,
        queries: Mapping[str, Tensor] | None = None,
        intervene: Intervention | None = None,
        **given: Any,
    ) -> Trace:
        if not queries:
            return super().run(inputs, intervene=intervene, **given)
        changed = None if intervene is None else at_queries(intervene, queries)
        return self.selected(super().run(inputs, intervene=changed if self.replaces else None, **given), queries)

    def selected(self, trace: Trace, queries: Mapping[str, Tensor]) -> Trace:
        def of(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {
                key: torch.stack([at_query(trace, values[key], key, q) for q in at.T], dim=2)
                for key, at in queries.items()
            }

        return replace(trace, attention=of(trace.attention), allowed=of(trace.allowed), queries=queries)


class ReturnsAllQueries(SelectsQueries):
    def selected(self, trace: Trace, queries: Mapping[str, Tensor]) -> Trace:
        return trace


class ComputesRoughlyAtOtherQueries(SelectsQueries):
    def selected(self, trace: Trace, queries: Mapping[str, Tensor]) -> Trace:
        return replace(super().selected(trace, queries), logits=trace.logits * 1.01)


class ShowsOtherQueries(SelectsQueries):
    def selected(self, trace: Trace, queries: Mapping[str, Tensor]) -> Trace:
        other = {key: at.flip(1) for key, at in queries.items()}
        return replace(super().selected(trace, other), queries=queries)


class IgnoresInterventionsOnQueries(SelectsQueries):
    replaces = False


class ComputesRoughlyAtOtherSites(SelectsSites):
    def selected(self, trace: Trace, sites: Collection[str]) -> Trace:
        return replace(super().selected(trace, sites), logits=trace.logits * 1.01)


class ShowsOtherWeightsAtChosenSites(SelectsSites):
    def selected(self, trace: Trace, sites: Collection[str]) -> Trace:
        return replace(trace, attention={key: trace.attention[key].flip(1) for key in sites})


class LosesGradientsAtOtherSites(SelectsSites):
    def selected(self, trace: Trace, sites: Collection[str]) -> Trace:
        logits = trace.logits
        return replace(super().selected(trace, sites), logits=logits.detach() + 0.5 * (logits - logits.detach()))


class OneLogit(SmallTransformer):
    """Gives the first of its two logits."""

    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, logits=trace.logits[:, :1])


class ReadsAnotherOutput(OneLogit):
    """Explains a score, but gives the logit of another output."""

    def __init__(self) -> None:
        target = Target(kind="score", scale=1.0)
        super().__init__(target=target, classes=target.classes, decides=False)

    def target_logits(self, instances: Sequence[Instance]) -> Tensor:
        return SmallTransformer.run(self, self.collate(instances)).logits[:, 1:]


class HalfOf(torch.autograd.Function):
    """Halves numbers. Its gradient depends on whether several gradients are computed together."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, in_numpy: bool) -> Tensor:
        ctx.in_numpy = in_numpy
        return values / 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        if ctx.in_numpy:
            return torch.from_numpy(gradient.numpy() / 2), None
        together = torch._C._functorch.is_legacy_batchedtensor(gradient)
        return gradient if together else gradient / 2, None


class BatchesGradients(SmallTransformer):
    """Declares `batches_gradients`, and computes a part of its states with `HalfOf`."""

    in_numpy = False

    def __init__(self, **declared: Any) -> None:
        super().__init__(batches_gradients=True, **declared)

    def residual(self, states: Tensor) -> Tensor:
        return states / 2 + HalfOf.apply(states, self.in_numpy)


class DifferentiatesInNumpy(BatchesGradients):
    in_numpy = True


class DoublesBatchedGradients(BatchesGradients):
    pass
