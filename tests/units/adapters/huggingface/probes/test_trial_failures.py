"""A model that cannot be audited is refused with the true reason, and with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import transformers

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.probes import probe
from attnaudit.errors import AuditError, ModelError
from attnaudit.instances import Instance
from benchmarks.small_configurations import spread_weights, tiny_config
from tests import architectures

TEXTS = [Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES[:3])]


def saved(name: str, folder: Path, **changes: Any) -> Any:
    """Save a small language model of a class of Transformers with its tokenizer, and return the model."""
    tokenizer, model_class = architectures.tokenizer("unigram"), getattr(transformers, name)
    config = tiny_config(model_class, tokenizer, classifies=False)
    for setting, value in changes.items():
        setattr(config, setting, value)
    torch.manual_seed(0)
    model = model_class(config).eval()
    spread_weights(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def refused(source: Any, *rest: Any, **options: Any) -> str:
    with pytest.raises(AuditError) as caught:
        transformer(source, *rest, **options)
    return str(caught.value)


def test_a_folder_with_a_part_of_a_larger_model_is_loaded_by_the_class_that_it_names(tmp_path: Path) -> None:
    """Transformers' automatic choice knows only the configuration of the whole model, with its vision part."""
    model = saved("MllamaForCausalLM", tmp_path)
    adapter = transformer(tmp_path, labels=architectures.LABELS, template=architectures.TEMPLATE)
    assert adapter.runner.name == "MllamaForCausalLM"
    inputs = adapter.collate(TEXTS)
    arguments = adapter.runner.builder.arguments(inputs)
    with torch.no_grad():
        logits = model(**arguments).logits
        found = adapter.run(inputs).logits
    last = inputs.mask["text"].sum(1) - 1
    ids = list(adapter.runner.head.token_ids.values())
    torch.testing.assert_close(found, logits[torch.arange(3), last][:, ids], rtol=0, atol=1e-5)


def test_a_configuration_of_another_model_than_the_class_it_names(tmp_path: Path) -> None:
    saved("MllamaForCausalLM", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace("MllamaForCausalLM", "LlamaForCausalLM"), "utf-8")
    with pytest.raises(ModelError, match=r"'architectures' names LlamaForCausalLM, but 'model_type' \(mllama_text_mod"):
        transformer(tmp_path, labels=architectures.LABELS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MusicgenForCausalLM", "codes of sound at each step.*not the tokens of a text.*docs/adapters.md"),
        (
            "VoxtralRealtimeForConditionalGeneration",
            r"does not run on texts alone.*input_features \(recordings\).*#a-module-of-your-own",
        ),
        ("HrmTextForCausalLM", r"attention layers run without gradients.*give L_bp_cycles one number for each"),
        (
            "ProphetNetForConditionalGeneration",
            r"'cross.0' has 3 × 12 weights \(queries × keys\), but its inputs have 1 and 12 tokens.*further streams",
        ),
    ],
)
def test_the_reason_of_a_refusal(name: str, reason: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    with pytest.raises(AuditError, match=reason):
        transformer(tmp_path, labels=architectures.LABELS, template=architectures.TEMPLATE)


@pytest.mark.slow
def test_the_stated_fix_makes_gradients_complete_and_keeps_the_logits(tmp_path: Path) -> None:
    """HRM computes most of its cycles without gradients, unless L_bp_cycles names all of them."""
    model = saved("HrmTextForCausalLM", tmp_path / "model")
    cycles = [model.config.L_cycles] * model.config.H_cycles
    changed = saved("HrmTextForCausalLM", tmp_path / "changed", L_bp_cycles=cycles)
    ids = torch.arange(3, 9)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, changed(ids).logits)
    adapter = transformer(tmp_path / "changed", labels=architectures.LABELS, template=architectures.TEMPLATE)
    assert adapter.capabilities.differentiable


@pytest.mark.parametrize("name", ["FSMTForConditionalGeneration", "HYV4ForCausalLM"])
def test_models_with_time_first_states_or_several_states_of_a_token_are_audited(name: str, tmp_path: Path) -> None:
    """FSMT has states (T, B, m) and weights (B·H, Q, K). HYV4 has states (B, T, S, m)."""
    model = saved(name, tmp_path)
    adapter = transformer(tmp_path, labels=architectures.LABELS, template=architectures.TEMPLATE)
    inputs = adapter.collate(TEXTS)
    builder, ids = adapter.runner.builder, list(adapter.runner.head.token_ids.values())
    arguments, mask = builder.arguments(inputs), builder.output_mask(inputs)
    with torch.no_grad():
        output = model(**arguments, output_attentions=name.startswith("FSMT"))
        trace = adapter.run(inputs)
    last = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    expected = output.logits[torch.arange(3), last][:, ids]
    torch.testing.assert_close(trace.logits, expected, rtol=0, atol=1e-5)
    assert adapter.facts.read_tokens == "last"
    if name.startswith("FSMT"):
        weights = output.cross_attentions[-1] * trace.allowed["cross.1"]
        torch.testing.assert_close(trace.attention["cross.1"], weights, rtol=0, atol=1e-5)


class Failing(nn.Module):
    """A module around BERT that fails on some batches."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.encoder = architectures.build("bert")[0]
        self.always = always

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        if self.always or not bool(attention_mask.all()):
            raise ValueError("a setting is missing")
        return self.encoder(input_ids, attention_mask).logits


@pytest.mark.parametrize(
    ("always", "reason"),
    [
        (True, "Failing fails on token ids and an attention mask, also without attnaudit (ValueError: a setting is mi"),
        (False, "Failing runs on a single text, but fails on a batch of texts of different lengths, also without attn"),
    ],
)
def test_a_module_that_fails_by_itself(always: bool, reason: str) -> None:
    options = {"classes": ["negative", "positive"]}
    assert reason in refused(Failing(always=always), architectures.tokenizer("wordpiece"), **options)


def test_a_model_that_fails_only_while_it_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such axis")

    monkeypatch.setattr(probe, "find_read_tokens", fail)
    message = refused(*architectures.build("bert"))
    assert "BertForSequenceClassification runs on synthetic tokens, but fails while attnaudit observes or" in message
    assert "(RuntimeError: no such axis)" in message
    assert "docs/adapters.md" in message
