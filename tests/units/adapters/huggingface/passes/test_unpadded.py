"""Models whose logits depend on padding run without padding, so a row gives the same result alone and in a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.joined_rows import gradients
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import TARGET_QUERIES, TEXT, Inputs, Site, Trace
from attnaudit.conformance import check_adapter
from attnaudit.conformance.batch_invariance import widened
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError
from attnaudit.instances import Dataset, Instance
from attnaudit.targets import Target
from benchmarks.small_configurations import spread_weights, tiny_config
from tests import architectures

CLASSES = (
    "MobileBertForSequenceClassification",
    "ConvBertForSequenceClassification",
    "T5GemmaForSequenceClassification",
)
#: Two texts have the same length, and the longest text is in the middle.
INSTANCES = [
    Instance(id=str(n), text=text)
    for n, text in enumerate(
        ("good", architectures.SENTENCES[4], architectures.SENTENCES[1], "bad", "the film is good")
    )
]
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def built(name: str) -> tuple[Any, Any]:
    """Return a small model of a class, the same in every call, and its tokenizer."""
    import transformers

    tokenizer, model_class = architectures.tokenizer("unigram"), getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class(tiny_config(model_class, tokenizer, classifies=True)).eval()
    spread_weights(model)
    return model, tokenizer


@cache
def adapter_of(name: str) -> Any:
    adapter = transformer(*built(name))
    adapter.model.requires_grad_(False)
    return adapter


def alone(inputs: Inputs, row: int) -> Tensor:
    """Return the ids (1, T) of one row without padding."""
    return inputs.ids[TEXT][row : row + 1, inputs.mask[TEXT][row]]


def of_row(values: Tensor, inputs: Inputs, site: Site, row: int) -> Tensor:
    """Return the weights (H, Q, K) of one row without padding."""
    return values[row][:, inputs.mask[str(site.query)][row]][:, :, inputs.mask[site.keys][row]]


@pytest.mark.parametrize("name", CLASSES)
def test_logits_and_attention_are_those_of_the_original_model_on_single_texts(name: str) -> None:
    adapter, (plain, _) = adapter_of(name), built(name)
    plain.set_attn_implementation("eager")
    inside: list[Any] = []
    plain.base_model.register_forward_hook(lambda _module, _args, output: inside.append(output))
    inputs = adapter.collate(INSTANCES)
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        logits = adapter.runner.logits(inputs)
        for row in range(len(INSTANCES)):
            output = plain(input_ids=alone(inputs, row), output_attentions=True)
            torch.testing.assert_close(trace.logits[row], output.logits[0], **CLOSE)
            torch.testing.assert_close(logits[row], output.logits[0], **CLOSE)
            stacks = {"layer": output.attentions}
            if "cross_attentions" in inside[-1]:
                stacks = {stack: inside[-1][f"{stack}_attentions"] for stack in ("encoder", "decoder", "cross")}
            for site in adapter.sites():
                expected = stacks[site.key.partition(".")[0]][site.layer][0]
                torch.testing.assert_close(of_row(trace.attention[site.key], inputs, site, row), expected, **CLOSE)
        padded = plain(input_ids=inputs.ids[TEXT], attention_mask=inputs.mask[TEXT].long()).logits
    assert float((padded - trace.logits).abs().max()) > 1e-3  # padding does change the logits
    for site in adapter.sites():
        pairs = inputs.mask[str(site.query)][:, None, :, None] & inputs.mask[site.keys][:, None, None]
        assert not trace.allowed[site.key][~pairs.expand_as(trace.allowed[site.key])].any()
        assert not trace.attention[site.key][~pairs.expand_as(trace.attention[site.key])].any()
        assert trace.hidden[site.key].shape[:2] == inputs.mask[site.keys].shape


def assert_close_to_largest(found: Tensor, expected: Tensor) -> None:
    """Require that two tensors differ by at most 5e-5 of the largest entry, as rounding explains."""
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5 * max(1.0, float(expected.abs().max())))


def differentiated(adapter: Any, inputs: Inputs) -> tuple[Trace, list[Tensor], Tensor]:
    """Return a trace, and the gradients of its logits with respect to its embeddings, attention and hidden states.

    Also return the gradient of the norms of the last hidden states with respect to the embeddings.
    """
    leaf = adapter.embed(inputs)[TEXT].detach().requires_grad_(True)
    with torch.enable_grad():
        trace = adapter.run(inputs, embeddings={TEXT: leaf}, hidden=True)
        at = [leaf, *trace.attention.values(), *trace.hidden.values()]
        found = gradients(trace.logits[:, 0].sum(), at, trace.joined, retain_graph=True)
        last = [site.key for site in adapter.sites() if site.keys == TEXT][-1]
        (of_states,) = torch.autograd.grad(trace.hidden[last].norm(dim=-1).sum(), leaf)
    assert all(gradient is not None for gradient in found)
    return trace, [gradient for gradient in found if gradient is not None], of_states


@pytest.mark.parametrize("name", CLASSES)
def test_gradients_are_those_of_each_text_alone(name: str) -> None:
    adapter = adapter_of(name)
    inputs = adapter.collate(INSTANCES)
    _, together, of_states = differentiated(adapter, inputs)
    for row, one in enumerate(INSTANCES):
        _, expected, own = differentiated(adapter, adapter.collate([one]))
        for found, its_own in zip(together, expected, strict=True):
            assert_close_to_largest(found[(row, *map(slice, its_own.shape[1:]))], its_own[0])
        assert_close_to_largest(of_states[row, : own.shape[1]], own[0])
        assert not of_states[row, own.shape[1] :].any()


@pytest.mark.parametrize("name", CLASSES)
def test_an_intervention_acts_on_the_right_rows(name: str) -> None:
    adapter = adapter_of(name)
    inputs = adapter.collate(INSTANCES)
    with torch.no_grad():
        clean = adapter.run(inputs)
        generator = torch.Generator().manual_seed(0)
        replaced = {
            key: torch.rand(weights.shape, generator=generator) * clean.allowed[key]
            for key, weights in clean.attention.items()
        }
        changed = adapter.run(inputs, intervene=lambda site, _w, _a: replaced[site.key])
        for row, one in enumerate(INSTANCES):
            single = adapter.collate([one])

            def own(site: Site, weights: Tensor, _allowed: Tensor, row: int = row) -> Tensor:
                return replaced[site.key][row : row + 1, :, : weights.shape[2], : weights.shape[3]]

            torch.testing.assert_close(changed.logits[row], adapter.run(single, intervene=own).logits[0], **CLOSE)
        for key, weights in replaced.items():
            torch.testing.assert_close(changed.attention[key], weights)

        def only_second(_site: Site, weights: Tensor, allowed: Tensor) -> Tensor:
            assert weights.shape[:1] == allowed.shape[:1] == (len(INSTANCES),)
            uniform = (allowed / allowed.sum(-1, keepdim=True).clamp_min(1)).expand_as(weights)
            return torch.where(torch.arange(len(weights))[:, None, None, None] == 1, uniform, weights)

        second = adapter.run(inputs, intervene=only_second).logits
        assert (second - clean.logits).abs().amax(1).gt(1e-4).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("name", CLASSES)
def test_replayed_weights_act_on_the_right_rows(name: str) -> None:
    adapter = adapter_of(name)
    inputs = adapter.collate(INSTANCES)
    site = adapter.sites()[-1]
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        queries = adapter.read_positions(inputs)
        keys = inputs.mask[site.keys][:, None, None]
        weights = torch.rand(len(queries), 2, site.heads, keys.shape[-1], generator=torch.Generator().manual_seed(0))
        weights = weights * keys
        found = adapter.replay(inputs, trace, site, queries, weights)
        for row, one in enumerate(INSTANCES):
            single = adapter.collate([one])
            width = single.mask[site.keys].shape[1]
            own = adapter.run(single, hidden=True)
            given = weights[row : row + 1, ..., :width]
            expected = adapter.replay(single, own, site, adapter.read_positions(single), given)
            torch.testing.assert_close(found[row], expected[0], **CLOSE)

        def double(one: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
            return live * 2 if one.key == site.key else None

        resumed = adapter.resume(inputs, trace, site, 2, double)
        torch.testing.assert_close(resumed, adapter.run(repeated(inputs, 2), intervene=double).logits, **CLOSE)


def test_queries_that_are_selected_are_those_of_the_batch() -> None:
    adapter = adapter_of(CLASSES[0])
    inputs = adapter.collate(INSTANCES)
    site = adapter.sites()[0]
    queries = inputs.mask[TEXT].sum(1)[:, None] - 1
    given: list[Tensor] = []

    def first_key(_site: Site, weights: Tensor, _allowed: Tensor) -> Tensor:
        given.append(weights)
        return torch.zeros_like(weights).index_fill(3, torch.tensor([0]), 1.0)

    with torch.no_grad():
        trace = adapter.runner.run(
            inputs,
            sites=(site.key,),
            queries={site.key: queries},
            intervene=lambda s, w, a: first_key(s, w, a) if s.key == site.key else None,
        )
    assert given[-1].shape == (len(INSTANCES), site.heads, 1, inputs.mask[TEXT].shape[1])
    for row, at in enumerate(queries[:, 0].tolist()):
        assert (trace.attention[site.key][row, :, at, 0] == 1).all()
        assert (trace.attention[site.key][row, :, :at, 0] < 1).all()


def test_value_vectors_are_those_of_each_text_alone() -> None:
    adapter = adapter_of(CLASSES[0])
    inputs = adapter.collate(INSTANCES)
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        for site in adapter.sites():
            together = adapter.value_vectors(trace, site)
            for row, one in enumerate(INSTANCES):
                own = adapter.value_vectors(adapter.run(adapter.collate([one]), hidden=True), site)[0]
                torch.testing.assert_close(together[row, :, : own.shape[1]], own, **CLOSE)


@pytest.mark.parametrize("name", [CLASSES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in CLASSES[1:])])
def test_the_full_conformance_suite_passes(name: str) -> None:
    check_adapter(adapter_of(name), [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES)])


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_every_measure_is_the_same_in_any_batch(name: str) -> None:
    needs = (
        *("agreement.gradient.meister.inputs", "agreement.gradient.meister.hidden", "permutation", "uniform"),
        *("uniform.everywhere.live", "leave_one_out.inputs", "influence.hidden", "flip"),
    )
    rows = Dataset(name="films", source="synthetic", description="", instances=tuple(INSTANCES))
    alone, together = (
        measure(adapter_of(name), rows, needs, model="small", seed=0, batch_tokens=size)[0] for size in (1, 4096)
    )
    for column in alone.scalars:
        np.testing.assert_allclose(alone.scalars[column], together.scalars[column], atol=5e-5, err_msg=column)
    assert np.isfinite(alone.scalar("permutation.tvd")).any()


def test_a_model_that_runs_without_padding_has_no_shortcuts() -> None:
    adapter = adapter_of(CLASSES[0])
    assert adapter.description.endswith(" heads, run without padding")
    capabilities = adapter.capabilities
    shortcuts = ("selects_sites", "selects_queries", "query_blocks", "shares_states", "left_padding")
    assert not any(getattr(capabilities, name) for name in shortcuts)
    forms = adapter.replay_forms(adapter.sites()[-1])
    assert not any((forms.one_position, forms.after_position, forms.from_layer))
    assert capabilities.reading == "cls@layer=-1,heads=mean"


def test_padding_must_be_on_the_right() -> None:
    adapter = adapter_of(CLASSES[0])
    inputs = adapter.collate(INSTANCES)
    with torch.no_grad():
        padded = adapter.run(widened(inputs, left=0, right=2)).logits
        torch.testing.assert_close(padded, adapter.run(inputs).logits, **CLOSE)
        with pytest.raises(AdapterError, match="the stream 'text' has padding before or between tokens"):
            adapter.run(widened(inputs, left=2, right=0))


def test_an_observer_receives_the_attention_of_one_pass() -> None:
    adapter = adapter_of(CLASSES[0])
    runner, inputs = adapter.runner, adapter.collate(INSTANCES)
    recorder = runner.recorder(inputs)
    with pytest.raises(ValueError, match="the rows have different lengths"):
        runner.logits(inputs, recorder)


def test_half_precision_is_compared_in_groups_of_equal_length() -> None:
    model, tokenizer = built(CLASSES[2])
    adapter = transformer(model.to(torch.bfloat16), tokenizer)
    assert adapter.description.endswith(", run without padding, bfloat16")
    sentence = adapter.compare_with_float32(adapter.collate(INSTANCES))
    assert "of 5 predictions" in sentence
    converted = transformer(built(CLASSES[2])[0].to(torch.bfloat16), tokenizer, precision="float32")
    assert "the attention weights by at most" in converted.compare_with_original(converted.collate(INSTANCES))


@pytest.mark.parametrize(
    ("name", "kind", "query"), [("MobileBertForTokenClassification", "tag", None),
                                ("MobileBertForQuestionAnswering", "span", "good film")]
)  # fmt: skip
def test_the_target_that_the_model_finds_does_not_depend_on_the_batch(name: str, kind: Any, query: str | None) -> None:
    adapter = transformer(*built(name), target=Target(kind=kind))
    instances = [Instance(id=one.id, text=one.text, query=query) for one in INSTANCES]
    together = adapter.collate(instances)
    for row, one in enumerate(instances):
        own = adapter.collate([one]).extra[TARGET_QUERIES][0]
        assert together.extra[TARGET_QUERIES][row, : len(own)].tolist() == own.tolist()
        assert not together.extra[TARGET_QUERIES][row, len(own) :].any()


@pytest.fixture
def changed_pooler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Tensor], Tensor]], tuple[Any, Any]]:
    """Return a function that builds a BERT to whose pooled state a function of all states (B, T, m) is added."""

    def built_with(added: Callable[[Tensor], Tensor]) -> tuple[Any, Any]:
        model, tokenizer = architectures.build("bert")
        own = model.bert.pooler.forward
        monkeypatch.setattr(model.bert.pooler, "forward", lambda states: own(states) + added(states))
        return model, tokenizer

    return built_with


def test_a_mean_over_padding_is_a_mean_over_tokens_without_it(
    changed_pooler: Callable[[Callable[[Tensor], Tensor]], tuple[Any, Any]],
) -> None:
    adapter = transformer(*changed_pooler(lambda states: states.mean(1)))
    assert adapter.description.endswith(", run without padding")
    assert adapter.capabilities.reading == "mean@layer=-1,heads=mean"


def test_a_model_whose_rows_depend_on_each_other_is_refused(
    changed_pooler: Callable[[Callable[[Tensor], Tensor]], tuple[Any, Any]],
) -> None:
    with pytest.raises(AdapterError, match="another text of the same length in the batch changes the logits by"):
        transformer(*changed_pooler(lambda states: states[:, 0].mean(0)))


def test_a_derived_class_runs_without_padding_unless_it_has_its_own_forward() -> None:
    import transformers

    class Named(transformers.MobileBertForSequenceClassification):  # type: ignore[misc]
        pass

    class Rewritten(transformers.MobileBertForSequenceClassification):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **kwargs)

    model, tokenizer = built(CLASSES[0])
    model.__class__ = Named
    assert "run without padding" in transformer(model, tokenizer).description
    model.__class__ = Rewritten
    with pytest.raises(AdapterError, match="padding changes the logits"):
        transformer(model, tokenizer)
