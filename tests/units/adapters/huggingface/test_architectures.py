"""Each architecture is compared with its own eager attention in a model that attnaudit has not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.protocol import TEXT, Inputs, ModelAdapter, Site
from attnaudit.conformance import check_adapter
from attnaudit.instances import Instance
from tests import architectures
from tests.architectures import ARCHITECTURES, LABELS, NAMES
from tests.slow_cases import slow_except

LoadAdapter = Callable[[str], Any]
#: Architectures of the main structures; the full suite takes a second or more for each.
FULLY_TRIED = ("bert", "modernbert", "gpt2", "llama", "gemma2", "t5", "xlnet")


def _alone(inputs: Inputs, row: int) -> dict[str, Tensor]:
    """Return the arguments of forward() for one row without padding."""
    mask = inputs.mask[TEXT][row]
    given = {"input_ids": inputs.ids[TEXT][row : row + 1, mask]}
    if "token_types" in inputs.extra:
        given["token_type_ids"] = inputs.extra["token_types"][row : row + 1, mask]
    return given


def _own(name: str, inputs: Inputs, row: int, implementation: str | None, **settings: Any) -> Any:
    model, tokenizer = architectures.build(name, implementation=implementation)
    given: dict[str, Any] = _alone(inputs, row)
    if ARCHITECTURES[name].writes and model.config.is_encoder_decoder:
        before = [tokenizer.bos_token_id] if name == "bart-lm" else []  # The decoder of BART writes <s> first.
        given["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id, *before]])
    with torch.no_grad():
        output = model(**given, **settings)
    logits = output.logits
    if ARCHITECTURES[name].writes:
        words = [tokenizer(w, add_special_tokens=False)["input_ids"] for w in LABELS.values()]
        if ARCHITECTURES[name].tokenizer == "unigram":
            words = [tokenizer(w.strip(), add_special_tokens=False)["input_ids"] for w in LABELS.values()]
        logits = logits[:, -1, [word[0] for word in words]]
    return output, logits[0]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_original_model(
    name: str, load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    adapter = load_adapter(name)
    inputs = adapter.collate(instances)
    with torch.no_grad():
        logits = adapter.run(inputs).logits
    for row in range(len(instances)):
        _, expected = _own(name, inputs, row, None)
        torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_attention_is_what_eager_attention_outputs(
    name: str, load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    adapter = load_adapter(name)
    inputs = adapter.collate(instances)
    with torch.no_grad():
        trace = adapter.run(inputs)
    for row in range(len(instances)):
        output, _ = _own(name, inputs, row, "eager", output_attentions=True)
        layers = (
            [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
            if "encoder_attentions" in output
            else list(output.attentions)
        )
        sites = sorted(adapter.sites(), key=lambda s: ("encoder", "decoder", "cross").index(_stack(s)))
        assert len(layers) == len(sites)
        for site, expected in zip(sites, layers, strict=True):
            weights = _unpadded(trace.attention[site.key][row], inputs, site, row)
            torch.testing.assert_close(weights, expected[0], atol=1e-6, rtol=0, msg=f"{name} {site.key}")


def _stack(site: Site) -> str:
    return {"layer": "encoder"}.get(site.key.partition(".")[0], site.key.partition(".")[0])


def _unpadded(weights: Tensor, inputs: Inputs, site: Site, row: int) -> Tensor:
    """(H, Q, K) without the padding of one row."""
    return weights[:, inputs.mask[str(site.query)][row]][:, :, inputs.mask[site.keys][row]]


@pytest.mark.parametrize("name", slow_except(NAMES, FULLY_TRIED))
def test_the_full_conformance_suite_passes(name: str, load_adapter: LoadAdapter, instances: list[Instance]) -> None:
    assert isinstance(load_adapter(name), ModelAdapter)
    check_adapter(load_adapter(name), instances)


@pytest.mark.parametrize("name", NAMES)
def test_the_description_and_the_capabilities(name: str, load_adapter: LoadAdapter) -> None:
    adapter, architecture = load_adapter(name), ARCHITECTURES[name]
    assert adapter.runner.kernel.name == architecture.kernel
    assert adapter.description.endswith("softmax") == (architecture.kernel != "interface")
    assert adapter.description.startswith(f"{architecture.kind}{architecture.task}, ")
    assert adapter.capabilities.classes == (tuple(LABELS) if architecture.writes else ("negative", "positive"))
    assert {s.heads for s in adapter.sites()} == {architectures.HEADS}
    assert {s.sinks for s in adapter.sites()} == {name == "gpt-oss"}
    assert len({s.key for s in adapter.sites()}) == len(adapter.sites())


READINGS = {
    "last@layer=-1,heads=mean": {
        "gpt2", "llama", "mistral", "gemma2", "qwen3", "gpt-oss", "xlnet", "gpt2-lm", "llama-lm",
    },
    "last@layer=-1,heads=mean,stack=cross": {"t5", "bart", "t5-lm", "bart-lm"},
    "mean@layer=-1,heads=mean": {"modernbert"},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_default_reading_is_the_row_that_the_head_reads(name: str, load_adapter: LoadAdapter) -> None:
    expected = next((reading for reading, names in READINGS.items() if name in names), "cls@layer=-1,heads=mean")
    assert load_adapter(name).capabilities.reading == expected


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_sites_of_a_single_stack(name: str, load_adapter: LoadAdapter) -> None:
    """ALBERT calls one module several times, and each call is a site."""
    assert load_adapter(name).sites() == tuple(
        Site(key=f"layer.{n}", layer=n, kind="self", heads=4, query=TEXT, keys=TEXT) for n in range(3)
    )


@pytest.mark.parametrize("name", ["t5", "bart-lm"])
def test_sites_of_an_encoder_and_a_decoder(name: str, load_adapter: LoadAdapter) -> None:
    sites = {s.key: (s.kind, s.layer, s.query, s.keys) for s in load_adapter(name).sites()}
    assert sites == {
        **{f"encoder.{n}": ("self", n, TEXT, TEXT) for n in range(3)},
        **{f"decoder.{n}": ("self", n, "decoder", "decoder") for n in range(2)},
        **{f"cross.{n}": ("cross", n, "decoder", TEXT) for n in range(2)},
    }


@pytest.mark.parametrize("name", NAMES)
def test_replay_runs_one_position_if_the_logits_are_read_there(name: str, load_adapter: LoadAdapter) -> None:
    adapter = load_adapter(name)
    *earlier, last = (adapter.replay_forms(site) for site in adapter.sites())
    assert all(forms.from_layer for forms in [*earlier, last])
    assert not any(forms.one_position for forms in earlier)
    reads_one_position = ARCHITECTURES[name].kernel == "interface" and name != "modernbert"
    assert last.one_position == reads_one_position


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "bart-lm", "deberta-v2"])
def test_replay_is_differentiable_in_the_weights_and_freezes_the_parameters(
    name: str, load_adapter: LoadAdapter, instances: list[Instance]
) -> None:
    adapter = load_adapter(name)
    inputs = adapter.collate(instances)
    trace = adapter.run(inputs, hidden=True)
    site = adapter.sites()[-1]
    queries = adapter.read_positions(inputs)
    own = trace.attention[site.key]
    index = queries[:, None, None, None].expand(-1, own.shape[1], 1, own.shape[3])
    weights = own.gather(2, index)[:, None, :, 0].detach().requires_grad_(True)
    adapter.model.requires_grad_(True)
    try:
        (slope,) = torch.autograd.grad(adapter.replay(inputs, trace, site, queries, weights).square().sum(), weights)
        assert all(p.requires_grad for p in adapter.model.parameters())
    finally:
        adapter.model.requires_grad_(False)

    def replace_row(site_now: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        return live.scatter(2, index, weights[:, 0, :, None]) if site_now.key == site.key else None

    whole = adapter.run(inputs, intervene=replace_row).logits
    (expected,) = torch.autograd.grad(whole.square().sum(), weights)
    torch.testing.assert_close(slope, expected, atol=1e-4, rtol=1e-3)


def _allowed(name: str, load_adapter: LoadAdapter, text: str) -> Tensor:
    adapter = load_adapter(name)
    inputs = adapter.collate([Instance(id="a", text=text), Instance(id="b", text=text + " " + text)])
    with torch.no_grad():
        trace = adapter.run(inputs)
    length = int(inputs.mask[TEXT][0].sum())
    allowed = torch.stack([a[:, 0] for a in trace.allowed.values()])
    assert not allowed[:, 0, length:].any()
    assert not allowed[:, 0, :, length:].any()
    return allowed[:, 0, :length, :length]


def test_allowed_keys_are_those_before_a_causal_query(load_adapter: LoadAdapter) -> None:
    allowed = _allowed("llama", load_adapter, "the film is good and the plot is bad")
    assert (allowed == torch.ones_like(allowed).tril()).all()


def test_allowed_keys_are_those_in_a_sliding_window(load_adapter: LoadAdapter) -> None:
    allowed = _allowed("mistral", load_adapter, "the film is good and the plot is bad")
    assert (allowed == torch.ones_like(allowed).tril() & torch.ones_like(allowed).triu(-3)).all()


def test_allowed_keys_of_an_encoder_are_all_tokens(load_adapter: LoadAdapter) -> None:
    assert _allowed("bert", load_adapter, "the film is good").all()
    assert _allowed("deberta-v2", load_adapter, "the film is good").all()


def test_a_model_whose_attention_is_uniform_is_loaded() -> None:
    model, tokenizer = architectures.build("bert")
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
    adapter = transformer(model, tokenizer)
    trace = adapter.run(adapter.collate([Instance(id="1", text=architectures.SENTENCES[0])]))
    for weights in trace.attention.values():
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / weights.shape[-1]))
