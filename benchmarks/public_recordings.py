"""Audit two audio classifiers of Transformers, trained briefly on tones, for docs/public_units.md.

No weights for audio can be had from a package. The architectures are therefore those of Transformers, unchanged, but
small and with weights of a training of some seconds. Each recording contains noise and a short tone, which is high or
low. The results are compared with plain PyTorch code on an untouched copy of the model.

Shapes: T units, d features.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from attnaudit.adapters.huggingface import transformer
from attnaudit.data import load
from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance

RATE, SAMPLES, TONE = 16_000, 8_000, 1_600
TRAIN, RECORDINGS, EPOCHS, COMPARED = 400, 24, 8, 4
CLASSES = ("low", "high")
_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_labels": 2,
}


def recording(label: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return half a second of noise with a short tone, of about 500 Hz for label 0 and 2,500 Hz for label 1."""
    samples = random.normal(0, 0.05, SAMPLES)
    start, pitch = random.integers(0, SAMPLES - TONE), random.uniform(400, 600) * (1 if label == 0 else 5)
    samples[start : start + TONE] += 0.3 * np.sin(2 * np.pi * pitch * np.arange(TONE) / RATE)
    return samples.astype("float32")


def build_ast() -> tuple[Any, Any]:
    """Return an Audio Spectrogram Transformer with 24 patches, and its feature extractor."""
    settings = {"max_length": 48, "num_mel_bins": 32}
    config = transformers.ASTConfig(patch_size=8, frequency_stride=8, time_stride=8, **settings, **_SMALL)
    return transformers.ASTForAudioClassification(config), transformers.ASTFeatureExtractor(**settings)


def build_wav2vec2() -> tuple[Any, Any]:
    """Return a Wav2Vec2 with 24 frames of 50 milliseconds, and its feature extractor."""
    config = transformers.Wav2Vec2Config(
        conv_dim=(32, 32, 32),
        conv_kernel=(10, 8, 8),
        conv_stride=(8, 8, 5),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        classifier_proj_size=16,
        layerdrop=0.0,
        mask_time_prob=0.0,
        **_SMALL,
    )
    return transformers.Wav2Vec2ForSequenceClassification(config), transformers.Wav2Vec2FeatureExtractor()


def adapt(model: Any, extractor: Any) -> Any:
    return transformer(model, extractor, classes=CLASSES)


def trained(build: Callable[[], tuple[Any, Any]], folder: Path) -> tuple[Any, Any, tuple[Instance, ...]]:
    """Train a model on tones, and write other recordings.

    Returns:
        The model, its feature extractor, and the recordings.
    """
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    model, extractor = build()
    labels = torch.arange(TRAIN) % 2
    waveforms = [recording(int(label), random) for label in labels]
    x = torch.cat([extractor(one, sampling_rate=RATE, return_tensors="pt")["input_values"] for one in waveforms])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(TRAIN).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]).logits, labels[batch]).backward()
            optimizer.step()
    rows = ["file,label"]
    for number in range(RECORDINGS):
        np.save(folder / f"{number}.npy", recording(number % 2, random))
        rows.append(f"{number}.npy,{CLASSES[number % 2]}")
    (folder / "tones.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return model.eval(), extractor, tuple(load(folder / "tones.csv").instances)


@torch.no_grad()
def compared(model: Any, extractor: Any, adapter: Any, measured: Measurements) -> dict[str, float]:
    """Return the largest differences from plain PyTorch code: logits, attention, and changes without each unit."""
    found: dict[str, list[float]] = {"logits": [], "attention": [], "leave-one-out": []}
    model.set_attn_implementation("eager")
    inner = model.base_model
    embeds = inner.embeddings if hasattr(inner, "embeddings") else inner.feature_projection
    special = 2 if hasattr(inner, "embeddings") else 0  # the tokens before the first patch
    for i, instance in enumerate(measured.instances[:COMPARED]):
        waveform = np.load(str(instance.file))
        values = extractor(waveform, sampling_rate=RATE, return_tensors="pt")["input_values"]
        whole = model(values, output_attentions=True)
        trace = adapter.run(adapter.collate([instance]))
        found["logits"].append(float((trace.logits - whole.logits).abs().max()))
        for site, weights in zip(adapter.sites(), whole.attentions, strict=True):
            found["attention"].append(float((trace.attention[site.key] - weights).abs().max()))
        probabilities = whole.logits.double().softmax(-1)
        for unit, change in enumerate(measured.vector("leave_one_out.inputs.change")[i]):

            def drop(_module: nn.Module, _given: object, output: Any, place: int = special + unit) -> Any:
                tokens: Tensor = output if isinstance(output, Tensor) else output[0]
                left = torch.cat([tokens[:, :place], tokens[:, place + 1 :]], 1)
                return left if isinstance(output, Tensor) else (left, *output[1:])

            handle = embeds.register_forward_hook(drop)
            without = model(values).logits.double().softmax(-1)
            handle.remove()
            found["leave-one-out"].append(abs(float(change) - float((probabilities - without).abs().sum()) / 2))
    return {name: float(np.max(differences)) for name, differences in found.items()}


#: The name of the class, how it is built, and what it is.
MODELS: tuple[tuple[str, Callable[[], tuple[Any, Any]], str], ...] = (
    ("ASTForAudioClassification", build_ast, "an audio spectrogram transformer"),
    ("Wav2Vec2ForSequenceClassification", build_wav2vec2, "convolutions and a transformer over their frames"),
)


def audited(
    build: Callable[[], tuple[Any, Any]],
    measure_model: Callable[[Any, Sequence[Instance]], tuple[Measurements, Any, Any]],
) -> tuple[float, int, dict[str, float], Any, Any]:
    """Train, audit and compare a model.

    Args:
        build: Builds the model and its feature extractor.
        measure_model: (adapter, recordings) -> the measurements, the outcomes of conformance, and the values of checks.

    Returns:
        The CPU seconds of the audit, the number of units of a recording, the differences, the outcomes of conformance,
        and the values of the checks.
    """
    with TemporaryDirectory(prefix="attnaudit-") as scratch:
        model, extractor, instances = trained(build, Path(scratch))
        untouched = copy.deepcopy(model)
        started = time.process_time()
        adapter = adapt(model, extractor)
        measured, outcomes, values = measure_model(adapter, instances)
        seconds = time.process_time() - started
        differences = compared(untouched, extractor, adapter, measured)
    return seconds, len(measured.tokens[0]), differences, outcomes, values
