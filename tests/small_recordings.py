"""Small classifiers of recordings with random weights, and recordings for them."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnaudit.instances import Instance

CLASSES, RATE = 3, 16_000
_SHARED: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "num_labels": CLASSES,
}
#: Sizes of models that read spectrograms.
FRAMES, BANDS, PATCH = 24, 12, 4
_SPECTROGRAM = {
    "max_length": FRAMES,
    "num_mel_bins": BANDS,
    "patch_size": PATCH,
    "frequency_stride": PATCH,
    "time_stride": 3,
}
#: Sizes of models that read waveforms. A frame has 400 samples, and a new frame begins every 160 samples.
_WAVEFORM: dict[str, Any] = {
    "conv_dim": (12, 12, 12),
    "conv_kernel": (20, 10, 3),
    "conv_stride": (20, 4, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 5,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 8,
}
_LAYER = {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "num_conv_pos_embeddings": 4}
#: Name -> the model class, and further settings of its configuration.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ast": ("ASTForAudioClassification", _SPECTROGRAM),
    "wav2vec2": ("Wav2Vec2ForSequenceClassification", _WAVEFORM),
    "wav2vec2_layer": ("Wav2Vec2ForSequenceClassification", _WAVEFORM | _LAYER),
    "hubert": ("HubertForSequenceClassification", _WAVEFORM),
    "unispeech_sat": ("UniSpeechSatForSequenceClassification", _WAVEFORM | _LAYER),
}
LENGTH, STEP = 20 + 9 * 20 + 2 * 4 * 20, 20 * 4 * 2
#: Numbers of samples of the recordings. The longest has 24 frames of a spectrogram.
SAMPLES = (4080, 2000, 1300, 3333, 2640)


def small_recording_classifier(kind: str = "wav2vec2") -> tuple[Any, Any]:
    """Return a model in evaluation mode, and its feature extractor."""
    import transformers

    name, settings = KINDS[kind]
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**(_SHARED | settings))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if kind == "ast":
        return model, transformers.ASTFeatureExtractor(max_length=FRAMES, num_mel_bins=BANDS)
    return model, transformers.Wav2Vec2FeatureExtractor(do_normalize=True)


def write_wave(path: Path, samples: np.ndarray[Any, Any], rate: int = RATE) -> None:
    """Write samples from -1 to 1 to a .wav file with one channel of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def recordings(folder: Path) -> list[Instance]:
    """Write random recordings of several lengths, and return them as instances."""
    generator = np.random.default_rng(0)
    instances = []
    for number, samples in enumerate(SAMPLES):
        waveform = generator.uniform(-0.5, 0.5, samples).astype(np.float32)
        path = folder / f"{number}.{'wav' if number % 2 else 'npy'}"
        write_wave(path, waveform) if number % 2 else np.save(path, waveform)
        instances.append(Instance(id=str(number), text=path.name, file=str(path), label=f"LABEL_{number % CLASSES}"))
    return instances
