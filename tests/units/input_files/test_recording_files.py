"""Recordings that a row names, and the errors for invalid ones."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from attnaudit.errors import DataError
from attnaudit.input_files import Recording, read_recording
from attnaudit.input_files.named_file import find_file
from attnaudit.input_files.recording_files import parse_wave
from attnaudit.instances import Instance

WHERE = "rows.csv:2: column 'file'"


def read(path: Path) -> Recording:
    found = find_file(path.name, path.parent, WHERE)
    return read_recording(
        Instance(id="a", text=path.name, file=found.path, file_sha256=found.sha256, where="rows.csv:2")
    )


def write(path: Path, frames: bytes, width: int, channels: int = 1, rate: int = 8000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(frames)


@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=40))
def test_samples_of_16_bits(tmp_path_factory: pytest.TempPathFactory, samples: list[int]) -> None:
    path = tmp_path_factory.mktemp("wave") / "a.WAV"
    write(path, np.array(samples, dtype="<i2").tobytes(), 2)
    recording = read(path)
    assert recording.rate == 8000
    assert recording.values.tolist() == [sample / 2**15 for sample in samples]


@pytest.mark.parametrize(
    ("width", "content", "expected"),
    [
        (1, bytes([0, 128, 192]), [-1.0, 0.0, 0.5]),
        (3, b"\x00\x00\x80\x00\x00\x40", [-1.0, 0.5]),
        (4, b"\x00\x00\x00\x80\x00\x00\x00\x40", [-1.0, 0.5]),
    ],
)
def test_other_widths(tmp_path: Path, width: int, content: bytes, expected: list[float]) -> None:
    write(tmp_path / "a.wav", content, width)
    assert read(tmp_path / "a.wav").values.tolist() == expected


def test_channels_are_averaged(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", np.array([[100, 300], [0, -200]], dtype="<i2").tobytes(), 2, channels=2)
    assert torch.equal(read(tmp_path / "a.wav").values, torch.tensor([200.0, -100.0]) / 2**15)


def test_waveforms_and_spectrograms_in_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4, dtype="float64"))
    assert read(tmp_path / "a.npy").values.tolist() == [0, 1, 2, 3]
    assert read(tmp_path / "a.npy").rate is None
    torch.save({"features": torch.zeros(3, 5), "sampling_rate": 16000}, tmp_path / "a.pt")
    spectrogram = read(tmp_path / "a.pt")
    assert (tuple(spectrogram.values.shape), spectrogram.rate) == ((3, 5), 16000)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "bool"])
def test_waveforms_of_integers_are_refused_because_their_scale_is_unknown(tmp_path: Path, dtype: str) -> None:
    samples = np.array([0, 1, 1, 0]).astype(dtype)
    np.save(tmp_path / "a.npy", samples)
    torch.save({"features": torch.from_numpy(samples), "sampling_rate": 16000}, tmp_path / "a.pt")
    save_file({"features": torch.from_numpy(samples)}, tmp_path / "a.safetensors")
    for suffix in (".npy", ".pt", ".safetensors"):
        with pytest.raises(DataError, match=rf"a\{suffix}: the array is a waveform of {dtype},.*/ 32768"):
            read(tmp_path / f"a{suffix}")
    np.save(tmp_path / "spectrogram.npy", samples.reshape(2, 2))
    assert read(tmp_path / "spectrogram.npy").values.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("content", [b"x", b"RIFF\x00\x00\x00\x00WAVE", b"RIFF" + b"\xff" * 60])
def test_invalid_files(content: bytes) -> None:
    with pytest.raises(DataError, match=r"here: a\.wav is not a \.wav file .*Convert it to 16-bit PCM"):
        parse_wave(content, Path("a.wav"), "here")


def test_an_empty_reason_is_replaced() -> None:
    with pytest.raises(DataError, match=r"samples of whole numbers: it is incomplete\. "):
        parse_wave(b"RIFF", Path("a.wav"), "here")


@given(st.integers(44, 44 + 2 * 100 - 1))
def test_truncated_files(size: int) -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes(bytes(200))
    kept = (size - 44) // 2
    with pytest.raises(DataError, match=rf"announces 100 samples, but the file has {kept}\. Copy"):
        parse_wave(file.getvalue()[:size], Path("a.wav"), "here")


def test_no_samples_and_other_files(tmp_path: Path) -> None:
    write(tmp_path / "empty.wav", b"", 2)
    with pytest.raises(DataError, match="0 samples of 2 bytes"):
        read(tmp_path / "empty.wav")
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    with pytest.raises(DataError, match=r"the shape \(2, 2, 2\), expected a waveform"):
        read(tmp_path / "cube.npy")
    (tmp_path / "a.png").write_bytes(b"x")
    picture = Instance(id="a", text="a.png", file=str(tmp_path / "a.png"), where="rows.csv:2")
    with pytest.raises(DataError, match="is a picture, but the model reads recordings"):
        read_recording(picture)
