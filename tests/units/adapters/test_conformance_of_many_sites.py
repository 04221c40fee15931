"""A sound adapter of many sites passes every check; each broken one fails the check meant for it, with the mend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters import Inputs, Intervention, Site, Trace
from attnaudit.adapters.conformance import CHECKS, BrokenContractError, Case, Subject, full, quick
from attnaudit.adapters.padding import delete_positions, keep_positions
from attnaudit.adapters.protocol import TEXT, ModelAdapter, Ships
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from tests.small_models import adapter as pooled
from tests.small_models import dataset
from tests.units.adapters.conformance_models import INSTANCES, PLAIN, SOUND, Block, SmallTransformer


def instances_for(adapter: ModelAdapter) -> list[Instance]:
    return INSTANCES if adapter.capabilities.query else PLAIN


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_adapter_passes_every_check(name: str) -> None:
    adapter = SOUND[name]()
    results = full(adapter, instances_for(adapter))
    assert [one.check for one in results] == [check.name for check in CHECKS]
    assert {one.check: one.detail for one in results if one.outcome == "fail"} == {}
    skipped = {"decode", "resume", "influence", "shipped"} | ({"query"} if name != "cross" else set())
    assert {one.check for one in results if one.outcome == "skip"} == skipped
    assert next(one.detail for one in results if one.check == "transformed").startswith("value vectors")


@pytest.mark.parametrize("name", SOUND)
def test_the_quick_form_holds_the_checks_that_apply(name: str) -> None:
    adapter = SOUND[name]()
    found = [one.check for one in quick(adapter, instances_for(adapter))]
    skipped = {"decode", "resume", "influence", "shipped"}
    assert found == [check.name for check in CHECKS if check.quick and check.name not in skipped]


def test_a_pooled_adapter_passes_the_full_form() -> None:
    results = {one.check: one for one in full(pooled(2, mask_id=1), dataset().instances)}
    assert {name for name, one in results.items() if one.outcome == "fail"} == set()
    skipped = {name for name, one in results.items() if one.outcome == "skip"}
    assert skipped == {"query", "each_site", "left_padding", "resume", "influence", "replay", "transformed", "shipped"}
    assert results["replay"].detail == "the capabilities say replays=False"


class TellsTokensApart(SmallTransformer):
    """With an extra entry per token, which moves with its token."""

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        inputs = super().collate(instances)
        return replace(inputs, extra={**inputs.extra, "types": inputs.ids[TEXT] % 3 * inputs.mask[TEXT]})

    def run(self, inputs: Inputs, *, embeddings: Mapping[str, Tensor] | None = None, **given: Any) -> Trace:
        embedded = self.embed(inputs) if embeddings is None else embeddings
        moved = {TEXT: embedded[TEXT] + self.model.places(inputs.extra["types"])}
        return super().run(inputs, embeddings=moved, **given)

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        return delete_positions(inputs, stream, drop, pad_id=0, per_token=("types",))

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        return keep_positions(inputs, stream, rows, keep, pad_id=0, per_token=("types",))


def test_extra_entries_per_token_are_padded_and_cut_with_their_tokens() -> None:
    results = full(TellsTokensApart(mask=False, replays=False), PLAIN)
    assert {one.check: one.detail for one in results if one.outcome == "fail"} == {}


def test_what_the_structure_of_attention_is_said_to_be() -> None:
    said = {name: {one.check: one.detail for one in full(make(), INSTANCES)} for name, make in SOUND.items()}
    assert said["causal"]["allowed"] == "causal, without padding"
    assert said["within a window"]["allowed"] == "both ways, within a window, without padding"
    assert "at most one" in said["with sinks"]["sums"]


# -- broken adapters ------------------------------------------------------------------------------------------------


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


class ShowsHiddenStatesOfTheStream(SmallTransformer):
    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return replace(trace, hidden={TEXT: trace.hidden["layer 1"]} if trace.hidden else {})


class TagsNoSpecialTokens(SmallTransformer):
    def encoded(self, text: str) -> tuple[list[int], list[bool], list[int], list[str]]:
        ids, special, _, strings = super().encoded(text)
        return ids, [False] * len(special), list(range(len(ids))), strings


class CountsWordsAnew(SmallTransformer):
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
    """What a softmax over a row of nothing gives: uniform weights."""

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
    """Causal or windowed weights, and a mask that tells of padding only."""

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
    """Takes the weights of the last site where only the first is replaced: right when all are put back."""

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


class ReadsPadding(SmallTransformer):
    def decide(self, streams: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
        return super().decide({TEXT: streams[TEXT] + streams[TEXT].mean(1, keepdim=True)}, inputs)


class ShowsWeightsAtTheEnd(SmallTransformer):
    """Its rows are those of tokens, moved to the right edge of the padded width."""

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
    """Right for one token taken away, backwards for more."""

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        found = super().keep(inputs, stream, rows, keep)
        if int((inputs.mask[stream][rows] & ~keep).sum(1).max()) < 2:
            return found
        return replace(found, ids={stream: found.ids[stream].flip(1)}, mask={stream: found.mask[stream].flip(1)})


class SubstitutesTheNext(SmallTransformer):
    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return super().substitute(inputs, stream, rows, replaced.roll(1, 1))


class ReplaysFrozen(SmallTransformer):
    """Later layers keep the weights of the trace, where they should run live."""

    def later(self, put: Intervention | None, trace: Trace, times: int) -> Intervention:
        return put or (lambda site, _w, _a: trace.attention[site.key].repeat_interleave(times, 0))


class ReplaysWithoutGradient(SmallTransformer):
    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        return super().replay(inputs, trace, site, queries, weights.detach())


class ReplaysOneAlternative(SmallTransformer):
    def replay(self, inputs: Inputs, trace: Trace, site: Site, queries: Tensor, weights: Tensor) -> Tensor:
        return super().replay(inputs, trace, site, queries, weights)[:, 0]


class TransformsByOneHead(SmallTransformer):
    def transformed(self, trace: Trace, site: Site) -> Tensor:
        found = super().transformed(trace, site)
        return found.flip(1)


class TransformsNothing(SmallTransformer):
    def transformed(self, trace: Trace, site: Site) -> Tensor:
        return trace.hidden[site.key]


class ShipsAnotherModel(SmallTransformer):
    def shipped(self, inputs: Inputs) -> str:
        raise AdapterError("The logits under sdpa are 0.3 away, expected at most 1e-4. Update transformers.")


class Raises(SmallTransformer):
    def residual(self, states: Tensor) -> Tensor:
        raise ValueError("expected 3 axes")


def said(**capabilities: Any) -> Callable[[], SmallTransformer]:
    return lambda: SmallTransformer(**capabilities)


#: check -> adapters that it is meant for, each with what the error says is the mend.
def names_another_layer() -> ModelAdapter:
    torch.manual_seed(2)
    return pooled(lstm=nn.LSTM(6, 5, batch_first=True, bidirectional=True))


BROKEN: dict[str, list[tuple[Callable[[], ModelAdapter], str]]] = {
    "sites": [
        (NamesOneKeyTwice, "Give every site its own key"),
        (NamesAStreamThatIsNone, "for every stream that a site names"),
        (HidesASite, "no attention or allowed mask for 'layer 1'"),
        (Raises, "raised ValueError: expected 3 axes"),
    ],
    "shapes": [
        (ShowsTheMeanOfHeads, r"shape \(9, 1, 20, 20\); expected \(9, 2, 20, 20\)"),
        (AllowsByNumbers, "expected bool"),
        (ShowsHiddenStatesOfTheStream, "Give the states that its values are made of"),
    ],
    "capabilities": [
        (said(classes=("a", "b", "c")), "one logit per class"),
        (said(classes=("a", "a")), "two different names"),
        (said(task="ranking"), "expected one of"),
        (said(max_tokens=3), "say max_tokens=3"),
    ],
    "reading": [
        (said(reading=""), "Say which part is shown"),
        (said(reading="csl@layer=-1"), "begins with 'csl'"),
        (said(reading="cls@layer=2"), "layers 0 to 1"),
        (said(reading="cls@layer=0,heads=2"), "heads 0 to 1"),
        (said(reading="cls@layer=*"), "Name one layer"),
        (said(reading="cls@layer=0,stack=cross"), "names 'cross'; the model has 'encoder'"),
        (said(reading="norms@layer=0", value_norms=False), "Declare value_norms"),
        (said(cross=True, reading="cls@layer=0"), "Add stack="),
    ],
    "special_tokens": [(TagsNoSpecialTokens, r"begins with '\[start\]'.*Flag what the tokeniser")],
    "words": [
        (CountsWordsAnew, "go on counting"),
        (CountsSpecialTokensAsWords, "put -1 elsewhere"),
    ],
    "query": [(said(query=True), "Encode Instance.query too")],
    "evaluation_mode": [(IsNoisy, "random in evaluation")],
    "sums": [
        (ShowsPaddingQueries, "Multiply the weights by allowed"),
        (ForgetsTheMask, "Mask the scores with -inf"),
        (ShowsScores, "not the scores"),
        (lambda: KeepsItsSinksToItself(sinks=True), r"declare Site\(sinks=True\)"),
    ],
    "allowed": [
        (AllowsPaddingKeys, "True on padding keys"),
        (AllowsPaddingQueries, "rows of padding queries"),
        (LeavesATokenNothing, "attend to nothing"),
        (lambda: KeepsItsStructureToItself(causal=True), "later tokens, where no weight ever is"),
        (lambda: KeepsItsStructureToItself(window=3), "at some distances"),
    ],
    "self_replacement": [
        (MovesWhenReplaced, "in place of the live ones"),
        (MovesAtOneSiteAlone, "at 'layer 0' alone"),
        (AsksAtOneSite, "never calls intervene at 'layer 1'"),
        (OffersOtherWeights, "without dropout or scaling"),
    ],
    "intervention": [
        (ShowsButDoesNotUse, "the model does not use it"),
        (UsesButDoesNotShow, "Return the weights that were used"),
    ],
    "each_site": [(ShowsButDoesNotUseInOneLayer, "'layer 1' alone leaves the logits as they are")],
    "decode": [(said(decodes=True), "Declare replays for other models")],
    "padding": [
        (ReadsPadding, "see the mask"),
        (ShowsWeightsAtTheEnd, "Show each weight at the positions"),
    ],
    "left_padding": [(CountsPositionsFromTheEdge, "left_padding=False")],
    "batch_mates": [
        (SeesBatchMates, "batch normalisation"),
        (LeavesRowsSorted, "Undo any sort|not undone"),
    ],
    "embeddings": [
        (ScalesGivenEmbeddings, "where the model looks its own embeddings up"),
        (EmbedsFlat, r"of shape \(9, 20, d\)"),
    ],
    "gradients": [
        (DetachesEmbeddings, r"without detach\(\)"),
        (DetachesReplacedWeights, "replaced attention at 'layer 1'"),
    ],
    "live_gradients": [
        (OffersDetachedWeights, "no gradient passes through them"),
        (DetachesReplacedWeights, "at 'layer 1'"),
        (DetachesLiveWeights, "no gradient passes through them"),
    ],
    "finite_differences": [(LeavesAPathOutOfTheGraph, "left out of the graph")],
    "deletion": [
        (DeletesTheNext, "Remove that id alone"),
        (DeletesOnlyTheId, "Move the flags"),
        (DeletesExtraEntries, "travel with its row"),
    ],
    "repeated_deletion": [(KeepsInAnotherOrder, "in their order")],
    "substitution": [(SubstitutesTheNext, "other positions than those marked")],
    "resume": [(names_another_layer, "the encoder's states with nothing added")],
    "influence": [(names_another_layer, "influence.. and the gradients of run.. differ")],
    "replay": [
        (ReplaysFrozen, "let all later layers run live"),
        (ReplaysWithoutGradient, "passes no gradient"),
        (ReplaysOneAlternative, r"expected \(B, V, C\)"),
    ],
    "transformed": [
        (TransformsByOneHead, "its own part of the output projection"),
        (TransformsNothing, "rows, heads, keys"),
    ],
    "shipped": [(ShipsAnotherModel, "Update transformers")],
}


def test_there_is_a_broken_adapter_for_every_check() -> None:
    assert set(BROKEN) == {check.name for check in CHECKS}


@pytest.mark.parametrize(
    ("name", "make", "mend"),
    [
        pytest.param(name, make, mend, id=f"{name}: {mend}")
        for name, adapters in BROKEN.items()
        for make, mend in adapters
    ],
)
def test_a_broken_adapter_fails_the_check_meant_for_it(name: str, make: Callable[[], ModelAdapter], mend: str) -> None:
    check = next(one for one in CHECKS if one.name == name)
    adapter = make()
    with pytest.raises(BrokenContractError, match=mend):
        Case(Subject("broken", lambda: adapter, instances_for(adapter)), check).run()


@pytest.mark.parametrize("name", [check.name for check in CHECKS if check.quick])
def test_the_quick_form_refuses_it_too(name: str) -> None:
    adapter = BROKEN[name][0][0]()
    with pytest.raises(AdapterError, match=rf"not audited:\n(.*\n)*  {name}: "):
        quick(adapter, instances_for(adapter))


def test_an_adapter_may_say_how_its_shipped_kernel_compares() -> None:
    class Agrees(SmallTransformer):
        def shipped(self, inputs: Inputs) -> str:
            return "sdpa gives the same logits within 2e-7"

    assert isinstance(Agrees(), Ships)
    assert not isinstance(SmallTransformer(), Ships)
    results = quick(Agrees(), PLAIN)
    assert results[-1].check == "shipped"
    assert results[-1].detail == "sdpa gives the same logits within 2e-7"


def test_what_cannot_be_differentiated_is_not_asked_for_gradients() -> None:
    results = full(SmallTransformer(differentiable=False), PLAIN)
    skipped = {one.check for one in results if one.outcome == "skip"}
    assert skipped == {
        "query",
        "decode",
        "gradients",
        "live_gradients",
        "finite_differences",
        "resume",
        "influence",
        "shipped",
    }


def test_an_adapter_without_gradients_is_still_caught_by_what_its_logits_do() -> None:
    adapter = ShowsButDoesNotUseInOneLayer(differentiable=False)
    failed = {one.check for one in full(adapter, PLAIN) if one.outcome == "fail"}
    assert failed == {"each_site"}


def test_texts_that_nearly_fill_the_model_are_left_out_where_padding_is_added() -> None:
    adapter = SmallTransformer(max_tokens=20)
    long = Instance(id="long", text="x" * 68)
    results = {one.check: one for one in full(adapter, [*PLAIN, long])}
    assert results["padding"].detail.endswith("(lengths 3 to 13)")
    assert results["batch_mates"].outcome == "pass"
    alone = {one.check: one for one in full(adapter, [long])}
    assert alone["padding"].detail == "no example leaves room for padding below 20 tokens"
