"""Each architecture against its own eager attention, computed by a model that attnaudit has not touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.protocol import TEXT, Inputs, ModelAdapter, Site
from attnaudit.conformance import check_adapter
from attnaudit.instances import Instance
from tests import architectures
from tests.architectures import ARCHITECTURES, LABELS, NAMES

Adapter = Callable[[str], Any]


def _alone(inputs: Inputs, row: int) -> dict[str, Tensor]:
    """What the architecture itself is called with for one row, without padding."""
    mask = inputs.mask[TEXT][row]
    given = {"input_ids": inputs.ids[TEXT][row : row + 1, mask]}
    if "token_types" in inputs.extra:
        given["token_type_ids"] = inputs.extra["token_types"][row : row + 1, mask]
    return given


def _own(name: str, inputs: Inputs, row: int, implementation: str | None, **settings: Any) -> Any:
    model, tokenizer = architectures.build(name, implementation=implementation)
    given: dict[str, Any] = _alone(inputs, row)
    if ARCHITECTURES[name].writes and model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id]])
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
def test_logits_are_those_of_the_model_as_it_ships(name: str, adapter: Adapter, instances: list[Instance]) -> None:
    found = adapter(name)
    inputs = found.collate(instances)
    with torch.no_grad():
        logits = found.run(inputs).logits
    for row in range(len(instances)):
        _, expected = _own(name, inputs, row, None)
        torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_attention_is_what_eager_attention_outputs(
    name: str, adapter: Adapter, instances: list[Instance]
) -> None:
    found = adapter(name)
    inputs = found.collate(instances)
    with torch.no_grad():
        trace = found.run(inputs)
    for row in range(len(instances)):
        output, _ = _own(name, inputs, row, "eager", output_attentions=True)
        layers = (
            [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
            if "encoder_attentions" in output
            else list(output.attentions)
        )
        sites = sorted(found.sites(), key=lambda s: ("encoder", "decoder", "cross").index(_stack(s)))
        assert len(layers) == len(sites)
        for site, expected in zip(sites, layers, strict=True):
            weights = _unpadded(trace.attention[site.key][row], inputs, site, row)
            torch.testing.assert_close(weights, expected[0], atol=1e-6, rtol=0, msg=f"{name} {site.key}")


def _stack(site: Site) -> str:
    return {"layer": "encoder"}.get(site.key.partition(".")[0], site.key.partition(".")[0])


def _unpadded(weights: Tensor, inputs: Inputs, site: Site, row: int) -> Tensor:
    """(H, Q, K) without the padding of one row."""
    return weights[:, inputs.mask[str(site.query)][row]][:, :, inputs.mask[site.keys][row]]


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_whole_adapter_contract(name: str, adapter: Adapter, instances: list[Instance]) -> None:
    """Own attention put back, replay, deletion, batch mates, both sides of padding, gradients and all else."""
    assert isinstance(adapter(name), ModelAdapter)
    check_adapter(adapter(name), instances)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_it(name: str, adapter: Adapter) -> None:
    found, one = adapter(name), ARCHITECTURES[name]
    assert found.runner.kernel.name == one.kernel
    assert found.description.startswith(f"{one.kind}{one.task}, ")
    assert found.description.endswith(one.kernel)
    assert found.capabilities.classes == (tuple(LABELS) if one.writes else ("negative", "positive"))
    assert {s.heads for s in found.sites()} == {architectures.HEADS}
    assert {s.sinks for s in found.sites()} == {name == "gpt-oss"}
    assert len({s.key for s in found.sites()}) == len(found.sites())


READINGS = {
    "last@layer=-1,heads=mean": {
        "gpt2", "llama", "mistral", "gemma2", "qwen3", "gpt-oss", "xlnet", "gpt2-lm", "llama-lm",
    },
    "last@layer=-1,heads=mean,stack=cross": {"t5", "bart", "t5-lm", "bart-lm"},
    "mean@layer=-1,heads=mean": {"modernbert"},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_reading_is_of_the_row_that_decides(name: str, adapter: Adapter) -> None:
    expected = next((reading for reading, names in READINGS.items() if name in names), "cls@layer=-1,heads=mean")
    assert adapter(name).capabilities.reading == expected


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_sites_of_a_single_stack(name: str, adapter: Adapter) -> None:
    """ALBERT calls one module again and again: each call is a site."""
    assert adapter(name).sites() == tuple(
        Site(key=f"layer.{n}", layer=n, kind="self", heads=4, query=TEXT, keys=TEXT) for n in range(3)
    )


@pytest.mark.parametrize("name", ["t5", "bart-lm"])
def test_sites_of_an_encoder_and_a_decoder(name: str, adapter: Adapter) -> None:
    found = {s.key: (s.kind, s.layer, s.query, s.keys) for s in adapter(name).sites()}
    assert found == {
        **{f"encoder.{n}": ("self", n, TEXT, TEXT) for n in range(3)},
        **{f"decoder.{n}": ("self", n, "decoder", "decoder") for n in range(2)},
        **{f"cross.{n}": ("cross", n, "decoder", TEXT) for n in range(2)},
    }


@pytest.mark.parametrize("name", NAMES)
def test_replay_takes_the_narrow_form_where_one_position_decides(name: str, adapter: Adapter) -> None:
    found = adapter(name)
    *earlier, last = (found.replay_forms(site) for site in found.sites())
    assert all(forms.from_layer for forms in [*earlier, last])
    assert not any(forms.one_position for forms in earlier)
    one_position = ARCHITECTURES[name].kernel == "interface" and name != "modernbert"
    assert last.one_position == one_position


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "bart-lm", "deberta-v2"])
def test_replay_is_differentiable_in_the_weights_alone(name: str, adapter: Adapter, instances: list[Instance]) -> None:
    found = adapter(name)
    inputs = found.collate(instances)
    trace = found.run(inputs, hidden=True)
    site = found.sites()[-1]
    queries = found.read_positions(inputs)
    own = trace.attention[site.key]
    index = queries[:, None, None, None].expand(-1, own.shape[1], 1, own.shape[3])
    weights = own.gather(2, index)[:, None, :, 0].detach().requires_grad_(True)
    found.model.requires_grad_(True)
    try:
        (slope,) = torch.autograd.grad(found.replay(inputs, trace, site, queries, weights).square().sum(), weights)
        assert all(p.requires_grad for p in found.model.parameters())
    finally:
        found.model.requires_grad_(False)

    def put(here: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        return live.scatter(2, index, weights[:, 0, :, None]) if here.key == site.key else None

    whole = found.run(inputs, intervene=put).logits
    (expected,) = torch.autograd.grad(whole.square().sum(), weights)
    torch.testing.assert_close(slope, expected, atol=1e-4, rtol=1e-3)


def _allowed(name: str, adapter: Adapter, text: str) -> Tensor:
    found = adapter(name)
    inputs = found.collate([Instance(id="a", text=text), Instance(id="b", text=text + " " + text)])
    with torch.no_grad():
        trace = found.run(inputs)
    length = int(inputs.mask[TEXT][0].sum())
    allowed = torch.stack([a[:, 0] for a in trace.allowed.values()])
    assert not allowed[:, 0, length:].any()
    assert not allowed[:, 0, :, length:].any()
    return allowed[:, 0, :length, :length]


def test_allowed_keys_are_those_before_a_causal_query(adapter: Adapter) -> None:
    allowed = _allowed("llama", adapter, "the film is good and the plot is bad")
    assert (allowed == torch.ones_like(allowed).tril()).all()


def test_allowed_keys_are_those_in_a_sliding_window(adapter: Adapter) -> None:
    allowed = _allowed("mistral", adapter, "the film is good and the plot is bad")
    assert (allowed == torch.ones_like(allowed).tril() & torch.ones_like(allowed).triu(-3)).all()


def test_allowed_keys_of_an_encoder_are_all_tokens(adapter: Adapter) -> None:
    assert _allowed("bert", adapter, "the film is good").all()
    assert _allowed("deberta-v2", adapter, "the film is good").all()
