"""A sound adapter of many sites passes every check; each broken one fails the check meant for it, with advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters import Inputs, Trace
from attnaudit.adapters.optional_methods import ConvertedModelAdapter
from attnaudit.adapters.padding import delete_positions, keep_positions
from attnaudit.adapters.protocol import TEXT, ModelAdapter
from attnaudit.conformance import CHECKS, BrokenContractError, Case, Subject, full, quick
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.targets import Target
from tests.small_models import adapter as pooled
from tests.small_models import dataset
from tests.units.conformance import broken_blocks as blocks
from tests.units.conformance import broken_computed as computed
from tests.units.conformance import broken_half_precision as half
from tests.units.conformance import broken_shown as shown
from tests.units.conformance.conformance_models import INSTANCES, PLAIN, SOUND, SmallTransformer


def instances_for(adapter: ModelAdapter) -> list[Instance]:
    return INSTANCES if adapter.capabilities.query else PLAIN


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_adapter_passes_every_check(name: str) -> None:
    adapter = SOUND[name]()
    results = full(adapter, instances_for(adapter))
    assert [one.check for one in results] == [check.name for check in CHECKS]
    assert {one.check: one.detail for one in results if one.outcome == "fail"} == {}
    skipped = {
        "decode",
        "logits_without",
        "logits_masked",
        "influence",
        "batched_gradients",
        "selected_sites",
        "selected_queries",
        "query_blocks",
        "original_model",
        "half_precision",
        "target",
    } | ({"query"} if name != "cross" else set())
    assert {one.check for one in results if one.outcome == "skip"} == skipped
    assert next(one.detail for one in results if one.check == "value_vectors").startswith("value vectors")


@pytest.mark.parametrize("name", SOUND)
def test_the_quick_form_holds_the_checks_that_apply(name: str) -> None:
    adapter = SOUND[name]()
    found = [one.check for one in quick(adapter, instances_for(adapter))]
    skipped = {
        "decode",
        "logits_without",
        "logits_masked",
        "influence",
        "batched_gradients",
        "selected_sites",
        "selected_queries",
        "query_blocks",
        "original_model",
        "half_precision",
        "target",
    }
    assert found == [check.name for check in CHECKS if check.quick and check.name not in skipped]


def test_a_pooled_adapter_passes_the_full_form() -> None:
    results = {one.check: one for one in full(pooled(2, mask_id=1), dataset().instances)}
    assert {name for name, one in results.items() if one.outcome == "fail"} == set()
    skipped = {name for name, one in results.items() if one.outcome == "skip"}
    assert skipped == {
        "query",
        "each_site",
        "left_padding",
        "logits_without",
        "logits_masked",
        "influence",
        "batched_gradients",
        "replay",
        "value_vectors",
        "selected_sites",
        "selected_queries",
        "query_blocks",
        "original_model",
        "half_precision",
        "target",
    }
    assert results["replay"].detail == "the capabilities declare replays=False"


class TellsTokensApart(SmallTransformer):
    """Has an extra entry with one value per token."""

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


def test_the_allowed_check_describes_the_structure_of_attention() -> None:
    details = {name: {one.check: one.detail for one in full(make(), INSTANCES)} for name, make in SOUND.items()}
    assert details["causal"]["allowed"] == "attention is causal and excludes padding"
    assert details["within a window"]["allowed"] == "attention is bidirectional within a window and excludes padding"
    assert "at most one" in details["with sinks"]["sums"]


def declaring(**capabilities: Any) -> Callable[[], SmallTransformer]:
    return lambda: SmallTransformer(**capabilities)


def names_another_layer() -> ModelAdapter:
    torch.manual_seed(2)
    return pooled(lstm=nn.LSTM(6, 5, batch_first=True, bidirectional=True))


def lists_another_module() -> ModelAdapter:
    return pooled(modules=(nn.Linear(1, 1),))


LABEL, SPAN = Target(kind="label", name="toxic"), Target(kind="span")
#: check -> adapters that it is meant for, each with the advice that the error gives.
BROKEN: dict[str, list[tuple[Callable[[], ModelAdapter], str]]] = {
    "sites": [
        (shown.NamesOneKeyTwice, "Give every site its own key"),
        (shown.NamesAStreamThatIsNone, "for every stream that a site names"),
        (shown.HidesASite, "no attention or allowed mask for 'layer 1'"),
        (computed.Raises, "raised ValueError at broken_computed.py:206 in residual: expected 3 axes"),
    ],
    "shapes": [
        (shown.ShowsTheMeanOfHeads, r"shape \(9, 1, 20, 20\); expected \(9, 2, 20, 20\)"),
        (shown.AllowsByNumbers, "expected bool"),
        (shown.DividesByZero, "the attention weights at 'layer 0' contain nan for 1, 'bad'.*division by zero"),
        (shown.AnswersInfinity, "the logits contain inf for 1, 'bad'.*numbers too large"),
        (shown.ShowsHiddenStatesOfTheStream, "Return the states from which the site computes its values"),
    ],
    "modules": [(lists_another_module, "List the module that owns them")],
    "capabilities": [
        (declaring(classes=("a", "b", "c")), "one logit per class"),
        (declaring(classes=("a", "a")), "two different names"),
        (declaring(task="ranking"), "expected one of"),
        (declaring(max_tokens=3), "declare max_tokens=3"),
    ],
    "reading": [
        (declaring(reading=""), "Declare which weights are the explanation"),
        (declaring(reading="csl@layer=-1"), "unknown query or kind 'csl'"),
        (declaring(reading="cls@layer=2"), "the layers over the text are '0', '1'"),
        (declaring(reading="cls@layer=0,heads=2"), "heads 0 to 1"),
        (declaring(reading="cls@layer=*"), "Name one layer"),
        (declaring(reading="cls@layer=0,stack=cross"), "names 'cross'; the stacks of the model are 'encoder'"),
        (declaring(reading="norms@layer=0", value_vectors=False), "declare value_vectors=True"),
        (declaring(cross=True, reading="cls@layer=0"), "Add stack="),
    ],
    "special_tokens": [(shown.TagsNoSpecialTokens, r"begins with '\[start\]'.*Flag the tokens that the tokeniser")],
    "words": [
        (shown.RestartsWordNumbers, "continue the numbering"),
        (shown.CountsSpecialTokensAsWords, "must be -1 on special tokens and padding"),
    ],
    "query": [(declaring(query=True), "Encode Instance.query in collate")],
    "evaluation_mode": [(shown.IsNoisy, "random in evaluation mode")],
    "sums": [
        (shown.ShowsPaddingQueries, "Multiply the weights by the allowed mask"),
        (shown.ForgetsTheMask, "Mask the scores with -inf"),
        (shown.ShowsScores, "not the scores"),
        (lambda: shown.KeepsItsSinksToItself(sinks=True), r"declare Site\(sinks=True\)"),
    ],
    "allowed": [
        (shown.AllowsPaddingKeys, "True on padding keys"),
        (shown.AllowsPaddingQueries, "True at padding queries"),
        (shown.LeavesATokenNothing, "is False on all keys for some token"),
        (lambda: shown.KeepsItsStructureToItself(causal=True), "later tokens, but these weights are always zero"),
        (lambda: shown.KeepsItsStructureToItself(window=3), "at certain distances"),
    ],
    "self_replacement": [
        (shown.MovesWhenReplaced, "not with those passed to it"),
        (shown.MovesAtOneSiteAlone, "at 'layer 0' alone"),
        (shown.AsksAtOneSite, "never calls intervene at 'layer 1'"),
        (shown.OffersOtherWeights, "apply no dropout or scaling"),
    ],
    "intervention": [
        (shown.ShowsButDoesNotUse, "run\\(\\) ignores the replaced weights"),
        (shown.UsesButDoesNotShow, "Return the weights that the model used"),
    ],
    "each_site": [(shown.ShowsButDoesNotUseInOneLayer, "'layer 1' alone leaves the logits unchanged")],
    "decode": [(declaring(decodes=True), "of the kind 'pool'. Declare replays instead")],
    "padding": [
        (computed.ReadsPadding, "Use the mask in the encoder"),
        (computed.ShowsWeightsAtTheEnd, "Return each weight at the positions"),
    ],
    "left_padding": [(computed.CountsPositionsFromTheEdge, "left_padding=False")],
    "batch_mates": [
        (computed.SeesBatchMates, "batch normalisation"),
        (computed.LeavesRowsSorted, "in the order of the inputs|not put back in order"),
    ],
    "embeddings": [
        (computed.ScalesGivenEmbeddings, "instead of the model's embedding lookup"),
        (computed.EmbedsFlat, r"of shape \(9, 20, d\)"),
    ],
    "gradients": [
        (computed.DetachesEmbeddings, r"without detach\(\)"),
        (computed.DetachesReplacedWeights, "no gradient reaches the weights that intervene returns at 'layer 1'"),
    ],
    "live_gradients": [
        (computed.OffersDetachedWeights, "no gradient passes through them"),
        (computed.DetachesReplacedWeights, "at 'layer 1'"),
        (computed.DetachesLiveWeights, "no gradient passes through them"),
    ],
    "finite_differences": [(computed.LeavesAPathOutOfTheGraph, "missing from the autograd graph")],
    "deletion": [
        (computed.DeletesTheNext, "Remove only the id at that position"),
        (computed.DeletesOnlyTheId, "Move each flag together"),
        (computed.DeletesExtraEntries, "Copy all entries of each row"),
    ],
    "repeated_deletion": [(computed.KeepsInAnotherOrder, "in their original order")],
    "substitution": [(computed.SubstitutesTheNext, "changes ids at unmarked positions")],
    "logits_without": [(names_another_layer, "the encoder's states, without any further computation")],
    "logits_masked": [(lambda: computed.MasksNothing(shares_masked=True), "shares_masked=False")],
    "batched_gradients": [
        (computed.DifferentiatesInNumpy, "one backward pass cannot compute the gradients of several hidden states"),
        (computed.DoublesBatchedGradients, "in one backward pass and in one pass each differ by"),
    ],
    "influence": [(names_another_layer, "influence.. and the gradients of run.. differ")],
    "replay": [
        (computed.ReplaysFrozen, "run all later layers again"),
        (computed.ReplaysWithoutGradient, "passes no gradient"),
        (computed.ReplaysOneAlternative, r"expected \(B, V, C\)"),
        (computed.ResumesInAnotherOrder, "with its copies next to each other"),
        (computed.ResumesUnchanged, "use the weights that the intervention returns"),
        (computed.ResumesOnce, r"expected \(B·V, C\)"),
    ],
    "value_vectors": [
        (computed.TransformsByOneHead, "the part of the output projection that belongs to this head"),
        (computed.TransformsNothing, "rows, heads, keys"),
        (computed.TransformsAllKeys, r"keys=slice\(1, None\)"),
    ],
    "selected_sites": [
        (computed.ComputesRoughlyAtOtherSites, "the logits of run.. for all sites and with sites="),
        (computed.ShowsOtherWeightsAtChosenSites, "the attention at 'layer 1'"),
        (computed.LosesGradientsAtOtherSites, "the gradients of run.. for all sites and with sites="),
    ],
    "selected_queries": [
        (computed.ReturnsAllQueries, "returned weights of shape"),
        (
            computed.ComputesRoughlyAtOtherQueries,
            r"if run\(\) is called for only some queries of 'layer 0', the logits differ by",
        ),
        (computed.ShowsOtherQueries, "some queries of 'layer 0', the weights differ by"),
        (
            computed.IgnoresInterventionsOnQueries,
            r"if run\(\) for some queries of 'layer 0' replaces their weights, the logits differ by",
        ),
    ],
    "query_blocks": [
        (blocks.NamesNoBlocks, r"Trace.blocks = \[\]; expected this site"),
        (
            blocks.ComputesRoughlyInBlocks,
            "if the weights at 'layer 0' are computed in blocks of queries, the logits differ by",
        ),
        (
            blocks.StartsEveryBlockAtTheFirstQuery,
            "if the weights at 'layer 0' are computed in blocks of queries, the weights differ by",
        ),
        (blocks.AllowsOtherKeysInBlocks, "of queries, the masks of the allowed keys differ"),
        (
            blocks.IgnoresInterventionsInBlocks,
            "if the weights at 'layer 0' are replaced in blocks of queries, the logits differ by",
        ),
        (blocks.DoesNotDetach, "`detached` must stop all gradients through the weights"),
    ],
    "original_model": [(computed.ConvertsAnotherModel, "Update transformers")],
    "half_precision": [
        (half.DependsOnTheBatchInHalfPrecision, "a row alone, not in a batch: the logits differ by"),
        (half.AttendsElsewhereInHalfPrecision, "a row alone, .* the attention weights at 'layer 0' differ by"),
        (half.HasAnotherKernelInHalfPrecision, "own sdpa kernel"),
        (half.DeclaresAnotherPrecision, "precision is 'float8'; expected 'float32' or one of float16, bfloat16"),
    ],
    "target": [
        (
            computed.ReadsAnotherOutput,
            "those computed from the raw output of the model differ.*Compute the logit from the output",
        ),
        (
            declaring(target=LABEL, classes=LABEL.classes, labels=("toxic",)),
            "returns 2 logits; expected one, the logit",
        ),
        (
            lambda: computed.OneLogit(target=LABEL, classes=LABEL.classes),
            r"declare the labels \[\], which lack 'toxic'",
        ),
        (lambda: computed.OneLogit(target=LABEL, labels=("toxic",)), r"expected \['not toxic', 'toxic'\]"),
        (lambda: computed.OneLogit(target=SPAN, classes=SPAN.classes, decides=False), "declare deletion=True"),
        (lambda: computed.OneLogit(target=SPAN, classes=SPAN.classes, deletion=False), "declare decides=True"),
    ],
}


def test_there_is_a_broken_adapter_for_every_check() -> None:
    assert set(BROKEN) == {check.name for check in CHECKS}


@pytest.mark.parametrize(
    ("name", "make", "advice"),
    [
        pytest.param(name, make, advice, id=f"{name}: {advice}")
        for name, adapters in BROKEN.items()
        for make, advice in adapters
    ],
)
def test_a_broken_adapter_fails_the_check_meant_for_it(
    name: str, make: Callable[[], ModelAdapter], advice: str
) -> None:
    check = next(one for one in CHECKS if one.name == name)
    adapter = make()
    with pytest.raises(BrokenContractError, match=advice):
        Case(Subject("broken", lambda: adapter, instances_for(adapter)), check).run()


@pytest.mark.parametrize("name", [check.name for check in CHECKS if check.quick])
def test_the_quick_form_refuses_it_too(name: str) -> None:
    adapter = BROKEN[name][0][0]()
    with pytest.raises(AdapterError, match=rf"not audited \(.*\):\n(.*\n)*  {name}: "):
        quick(adapter, instances_for(adapter))


def test_constant_logits_are_reported_as_what_they_are() -> None:
    """Nothing is known about the use of replaced weights then, so the message does not say that run() ignores them."""
    decoder = nn.Linear(10, 2)
    nn.init.zeros_(decoder.weight)
    with pytest.raises(AdapterError, match="gives all 6 sampled texts exactly the same logits") as caught:
        quick(pooled(2, decoder=decoder), dataset().instances)
    assert "ignores" not in str(caught.value)


def test_an_adapter_may_describe_how_its_original_model_compares() -> None:
    class Agrees(SmallTransformer):
        def compare_with_original(self, inputs: Inputs) -> str:
            return "sdpa gives the same logits within 2e-7"

    assert isinstance(Agrees(), ConvertedModelAdapter)
    assert not isinstance(SmallTransformer(), ConvertedModelAdapter)
    results = quick(Agrees(), PLAIN)
    assert results[-1].check == "original_model"
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
        "logits_without",
        "logits_masked",
        "influence",
        "batched_gradients",
        "selected_sites",
        "selected_queries",
        "query_blocks",
        "original_model",
        "half_precision",
        "target",
    }


def test_an_adapter_without_gradients_is_still_caught_by_what_its_logits_do() -> None:
    adapter = shown.ShowsButDoesNotUseInOneLayer(differentiable=False)
    failed = {one.check for one in full(adapter, PLAIN) if one.outcome == "fail"}
    assert failed == {"each_site"}


def test_texts_that_nearly_fill_the_model_are_left_out_where_padding_is_added() -> None:
    adapter = SmallTransformer(max_tokens=20)
    long = Instance(id="long", text="x" * 68)
    results = {one.check: one for one in full(adapter, [*PLAIN, long])}
    assert results["padding"].detail.endswith("(lengths 3 to 13)")
    assert results["batch_mates"].outcome == "pass"
    alone = {one.check: one for one in full(adapter, [long])}
    assert alone["padding"].detail == "not compared: with more padding, every example would exceed 20 tokens"
