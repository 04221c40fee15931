"""Classifiers of recordings: their frames or patches are units with a time, which are erased and deleted exactly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import TEXT
from attnaudit.checks import TotalEffect
from attnaudit.conformance.suite import Subject, cases
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, DataError, ModelError
from attnaudit.input_files import read_recording
from attnaudit.instances import Dataset, Instance
from tests.small_recordings import (
    BANDS,
    FRAMES,
    KINDS,
    LENGTH,
    PATCH,
    RATE,
    STEP,
    recordings,
    small_recording_classifier,
    write_wave,
)

NEEDS = ["leave_one_out.inputs", "token_effect.live", "gradient.meister.inputs"]


def _adapter(kind: str = "wav2vec2", **settings: Any) -> Any:
    return transformer(*small_recording_classifier(kind), **settings)


def _values(extractor: Any, instance: Instance) -> Tensor:
    waveform = read_recording(instance).values.numpy()
    values: Tensor = extractor(waveform, sampling_rate=RATE, return_tensors="pt")["input_values"]
    return values


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in ("hubert", "unispeech_sat", "wav2vec2_layer") else ())
        for kind in KINDS
    ],
)
def test_the_adapter_keeps_the_contract(kind: str, tmp_path: Path) -> None:
    settings = {"erased": "mask"} if kind == "hubert" else {}
    subject = Subject(kind, lambda: _adapter(kind, **settings), recordings(tmp_path))
    failures = [result for result in (case.result() for case in cases(subject)) if result.outcome == "fail"]
    assert failures == []


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_attention_are_those_of_each_recording_alone(kind: str, tmp_path: Path) -> None:
    model, extractor = small_recording_classifier(kind)
    model.set_attn_implementation("eager")
    instances = recordings(tmp_path)
    with torch.no_grad():
        outputs = [model(_values(extractor, one), output_attentions=True) for one in instances]
    adapter = _adapter(kind)
    trace = adapter.run(adapter.collate(instances))
    assert torch.allclose(trace.logits, torch.cat([one.logits for one in outputs]), atol=1e-5)
    for site in adapter.sites():
        for row, output in enumerate(outputs):
            expected = output.attentions[site.layer][0]
            found = trace.attention[site.key][row, :, : expected.shape[1], : expected.shape[2]]
            assert torch.allclose(found, expected, atol=1e-6)


def _measured(adapter: Any, instance: Instance) -> Any:
    data = Dataset(name="recordings", source="test", description="", instances=(instance,))
    return measure(adapter, data, NEEDS, model="m", seed=0)[0]


def _require_equal(found: Any, probabilities: Any, units: Tensor, mean: Tensor) -> None:
    """Compare leave-one-out, effects and gradients with those of a function of the units' embeddings (T, d).

    Args:
        found: The measurements.
        probabilities: (embeddings of the remaining units, their numbers) -> class probabilities.
        units: (T, d) embeddings of all units.
        mean: (d,) embedding that replaces an erased unit.
    """
    everything = list(range(len(units)))
    with torch.no_grad():
        whole = probabilities(units, everything)
        predicted = int(whole.argmax())

        def without(unit: int) -> list[int]:
            return [other for other in everything if other != unit]

        def erased(places: Sequence[int]) -> Tensor:
            changed = units.clone()
            changed[list(places)] = mean
            result: Tensor = probabilities(changed, everything)
            return result

        deleted = [float((whole - probabilities(units[without(i)], without(i))).abs().sum() / 2) for i in everything]
        changes = [whole - erased([i]) + erased(without(i)) - erased(everything) for i in everything]
    leaf = units.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(probabilities(leaf, everything)[predicted], leaf)
    norms = gradient.norm(dim=-1).numpy()
    assert np.allclose(found.vector("leave_one_out.inputs.change")[0], deleted, atol=1e-5)
    assert np.allclose(found.vector("token_effect.live")[0], [float(one[predicted]) / 2 for one in changes], atol=1e-5)
    assert np.allclose(found.vector("gradient.meister.inputs")[0], norms / norms.sum(), atol=1e-5)


@pytest.mark.parametrize("kind", ["wav2vec2", "wav2vec2_layer"])
def test_erased_and_deleted_frames_by_hand(kind: str, tmp_path: Path) -> None:
    model, extractor = small_recording_classifier(kind)
    instance = recordings(tmp_path)[1]
    found = _measured(_adapter(kind), instance)
    with torch.no_grad():
        features = model.wav2vec2.feature_extractor(_values(extractor, instance)).transpose(1, 2)
        units = model.wav2vec2.feature_projection(features)[0][0]
        mean = model.wav2vec2.feature_projection(features.mean(1, keepdim=True))[0][0, 0]

    def probabilities(embeddings: Tensor, _places: Sequence[int]) -> Tensor:
        states = model.wav2vec2.encoder(embeddings[None]).last_hidden_state
        logits: Tensor = model.classifier(model.projector(states).mean(1))[0]
        return logits.double().softmax(-1)

    _require_equal(found, probabilities, units, mean)


@pytest.mark.parametrize("number", [0, 2])
def test_erased_and_deleted_patches_by_hand(number: int, tmp_path: Path) -> None:
    model, extractor = small_recording_classifier("ast")
    instance = recordings(tmp_path)[number]
    found = _measured(_adapter("ast"), instance)
    inner = model.audio_spectrogram_transformer
    embeddings = inner.embeddings
    with torch.no_grad():
        patches = embeddings.patch_embeddings(_values(extractor, instance))[0]
    frames = (len(read_recording(instance).values) - 400) // 160 + 1
    columns = (FRAMES - PATCH) // 3 + 1
    shown = [place for place in range(len(patches)) if place % columns * 3 < frames]
    padding = [place for place in range(len(patches)) if place not in shown]
    assert (len(padding) > 0) == (number == 2)
    assert len(found.tokens[0]) == len(shown)

    def probabilities(units: Tensor, kept: Sequence[int]) -> Tensor:
        places = [*(shown[unit] for unit in kept), *padding]
        tokens = torch.cat([units, patches[padding]]) + embeddings.position_embeddings[0, [2 + one for one in places]]
        special = torch.cat([embeddings.cls_token[0], embeddings.distillation_token[0]])
        states = torch.cat([special + embeddings.position_embeddings[0, :2], tokens])[None]
        for layer in inner.layers:
            states = layer(states)
        normed = inner.layernorm(states)
        logits: Tensor = model.classifier((normed[:, 0] + normed[:, 1]) / 2)[0]
        return logits.double().softmax(-1)

    _require_equal(found, probabilities, patches[shown], patches[shown].mean(0))


def test_times_of_frames(tmp_path: Path) -> None:
    instance = recordings(tmp_path)[1]
    inputs = _adapter().collate([instance])
    spans = inputs.times[TEXT][0]
    assert len(spans) == (2000 - LENGTH) // STEP + 1
    assert spans[3] == (3 * STEP / RATE, (3 * STEP + LENGTH) / RATE)
    assert inputs.tokens[TEXT][0][1] == "0.010 to 0.033 s"


def test_times_and_boxes_of_patches(tmp_path: Path) -> None:
    inputs = _adapter("ast").collate(recordings(tmp_path)[:3])
    times, boxes = inputs.times[TEXT], inputs.boxes[TEXT]
    columns, second = (FRAMES - PATCH) // 3 + 1, 1 / RATE
    assert np.allclose(times[0][2 + 2], (6 * 160 * second, (9 * 160 + 400) * second))  # frames 6 to 9
    assert np.allclose(times[0][2 + columns], (0, (3 * 160 + 400) * second))
    assert np.allclose(boxes[0][2], (0, 1 - PATCH / BANDS, PATCH / FRAMES, PATCH / BANDS), atol=1e-4)
    assert inputs.tokens[TEXT][0][:3] == ["[CLS]", "[DISTILLATION]", "0.00 to 0.06 s, bands 1 to 4"]
    # The third recording has 6 frames, so its last patches begin at frame 3 and are cut after frame 6.
    real = inputs.real()[2].tolist()
    assert [place for place in range(2 + columns) if real[place]] == [2, 3]
    assert np.allclose(times[2][3], (3 * 160 * second, (5 * 160 + 400) * second))
    assert np.allclose(boxes[2][3][::2], (0.5, 0.5))


def test_a_stored_spectrogram_gives_the_same_numbers(tmp_path: Path) -> None:
    instance, (_, extractor) = recordings(tmp_path)[0], small_recording_classifier("ast")
    np.save(tmp_path / "spectrogram.npy", _values(extractor, instance)[0].numpy())
    stored = Instance(id="s", text="s", file=str(tmp_path / "spectrogram.npy"))
    adapter = _adapter("ast")
    one, other = adapter.collate([instance]), adapter.collate([stored])
    assert torch.equal(adapter.run(one).logits, adapter.run(other).logits)
    assert torch.equal(one.ids[TEXT], other.ids[TEXT])


@pytest.mark.parametrize(
    ("kind", "mixers"),
    [
        ("ast", []),
        ("wav2vec2_layer", ["wav2vec2.encoder.pos_conv_embed"]),
        ("wav2vec2", ["wav2vec2.feature_extractor.conv_layers.0.layer_norm", "wav2vec2.encoder.pos_conv_embed.conv"]),
    ],
)
def test_modules_that_mix_frames_are_named_and_fail_gates(kind: str, mixers: list[str], tmp_path: Path) -> None:
    adapter = _adapter(kind)
    assert [name.partition(" (")[0] for name in adapter.capabilities.unseen_mixers] == mixers
    data = Dataset(name="recordings", source="test", description="", instances=tuple(recordings(tmp_path)))
    gate = TotalEffect(at_least=1e-9)
    record = gate.judge(measure(adapter, data, gate.needs(), model="m", seed=0)[0])
    assert record.unseen_mixers == list(adapter.capabilities.unseen_mixers)
    accepting = TotalEffect(at_least=1e-9, unseen_mixers="accept")
    assert accepting.judge(measure(adapter, data, gate.needs(), model="m", seed=0)[0]).unseen_mixers == []


def test_what_replaces_a_unit_is_declared() -> None:
    assert "the mean frame of its recording" in _adapter().capabilities.erasure
    assert "the mask embedding of the model" in _adapter(erased="mask").capabilities.erasure
    assert "the mean patch of its recording" in _adapter("ast").capabilities.erasure
    assert _adapter().configuration != _adapter(erased="mask").configuration
    with pytest.raises(ModelError, match="the model has no mask token"):
        _adapter("ast", erased="mask")
    with pytest.raises(ModelError, match="erased is 'noise'; expected 'mean'"):
        _adapter(erased="noise")


@pytest.mark.parametrize("kind", ["ast", "wav2vec2"])
def test_a_folder(kind: str, tmp_path: Path) -> None:
    model, extractor = small_recording_classifier(kind)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=r"no feature extractor .*feature_extractor\.save_pretrained"):
        load_model(str(tmp_path / "model"))
    extractor.save_pretrained(tmp_path / "model")
    loaded = load_model(str(tmp_path / "model"))
    assert loaded.family == f"transformer, {model.config.model_type}, recordings"
    adapter, rows = loaded.adapter, recordings(tmp_path)
    with torch.no_grad():
        expected = torch.cat([model(_values(extractor, one)).logits for one in rows])
    assert torch.allclose(adapter.run(adapter.collate(rows)).logits, expected, atol=1e-5)


class Around(nn.Module):
    """A user's module around a model of recordings."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.head = nn.Linear(inner.config.hidden_size, 2)

    def forward(self, input_values: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inner(input_values).last_hidden_state[:, 0])
        return logits


def test_a_module_around_a_spectrogram_transformer(tmp_path: Path) -> None:
    model, extractor = small_recording_classifier("ast")
    module, rows = Around(model.audio_spectrogram_transformer).eval(), recordings(tmp_path)
    with torch.no_grad():
        expected = torch.cat([module(_values(extractor, one)) for one in rows])
    adapter = transformer(module, extractor, classes=["a", "b"])
    assert torch.allclose(adapter.run(adapter.collate(rows)).logits, expected, atol=1e-5)


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def row(name: str) -> Instance:
        return Instance(id=name, text=name, file=str(tmp_path / name), where="rows.csv:2")

    write_wave(tmp_path / "slow.wav", np.full(4000, 0.5), rate=8000)
    write_wave(tmp_path / "long.wav", np.linspace(-1, 1, 9000))
    write_wave(tmp_path / "short.wav", np.linspace(-1, 1, 90))
    np.save(tmp_path / "other.npy", np.zeros((3, 3)))
    frames, patches = _adapter(), _adapter("ast")
    for adapter in (frames, patches):
        with pytest.raises(DataError, match=r"rows.csv:2: .*has 8,000 samples per second, but the model reads 16,000"):
            adapter.collate([row("slow.wav")])
        with pytest.raises(DataError, match="the row names no file, but the model reads files"):
            adapter.collate([Instance(id="a", text="a text")])
    with pytest.raises(DataError, match="the recording has 54 frames, but the model reads 1 to 24"):
        patches.collate([row("long.wav")])
    with pytest.raises(DataError, match="the recording has 90 samples, but the model needs at least 400"):
        patches.collate([row("short.wav")])
    with pytest.raises(DataError, match=r"the spectrogram has the shape \(3, 3\), but the model reads \(24, 12\)"):
        patches.collate([row("other.npy")])
    with pytest.raises(DataError, match="the recording has 90 samples, but the model needs at least 360"):
        frames.collate([row("short.wav")])
    with pytest.raises(DataError, match="the model reads waveforms"):
        frames.collate([row("other.npy")])


def _other(name: str, **settings: Any) -> Any:
    import transformers

    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(**settings)).eval()


def test_other_architectures_are_refused_with_the_reason() -> None:
    import transformers

    shared = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    waves = shared | {**KINDS["wav2vec2"][1], "num_conv_pos_embeddings": 4}
    extractor = transformers.Wav2Vec2FeatureExtractor()
    with pytest.raises(AdapterError, match=r"WavLM.*no attention weights were found .*cannot observe"):
        transformer(_other("WavLMForSequenceClassification", **waves), extractor)
    with pytest.raises(AdapterError, match=r"SEW.*for 11 tokens.*cannot be audited"):
        transformer(_other("SEWForSequenceClassification", **waves, squeeze_factor=2), extractor)
    with pytest.raises(AdapterError, match=r"Wav2Vec2Bert.*it reads 'input_features' instead of 'input_values'"):
        transformer(_other("Wav2Vec2BertForSequenceClassification", **shared), extractor)
    with pytest.raises(ModelError, match="needs its feature extractor, but a dict was given"):
        transformer(small_recording_classifier()[0].cpu(), {}, classes=["a", "b", "c"])
