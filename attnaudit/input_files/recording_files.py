"""Recordings of sound: waveforms in .wav files, and waveforms or spectrograms in array files.

Shapes: n samples, t frames of a spectrogram, f features of a frame.
"""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.errors import DataError
from attnaudit.input_files.array_files import FORMATS, parse_array
from attnaudit.input_files.file_contents import contents_of, place
from attnaudit.instances import Instance

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".wav",)
#: Number of bytes per sample -> the data type of the samples. Samples of 3 bytes are read as the upper bytes of 4.
_SAMPLE_TYPES = {1: "u1", 2: "<i2", 3: "<i4", 4: "<i4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The contents of a file with sound.

    Attributes:
        values: (n,) samples of a waveform, or a spectrogram (t, f).
        rate: The number of samples per second; None if the file does not give it.
    """

    values: Tensor
    rate: int | None = None


def read_recording(instance: Instance) -> Recording:
    """Read the recording of an instance.

    A .wav file contains a waveform. Its channels are averaged, and its samples are numbers from -1 to 1. An array file
    (see `read_array`) contains a waveform (n,) or a spectrogram (t, f), and optionally an entry `sampling_rate`.

    Raises:
        DataError: The file has changed since the data were loaded, cannot be read, or contains no recording. The
            message names the row and the file.
    """
    content, path, where = contents_of(instance), Path(str(instance.file)), place(instance)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return parse_wave(content, path, where)
    if suffix not in FORMATS:
        raise DataError(
            f"{where}: {path} is a picture, but the model reads recordings. Expected a .wav file, or an array in one "
            f"of {', '.join(FORMATS)}."
        )
    array = parse_array(content, path, where)
    if array.features.dim() > 2:
        raise DataError(
            f"{where}: {path} contains an array of the shape {tuple(array.features.shape)}, expected a waveform (n,) "
            "or a spectrogram (frames, features)."
        )
    return Recording(values=array.features, rate=array.sampling_rate)


def parse_wave(content: bytes, path: Path, where: str) -> Recording:
    """Convert the contents of a .wav file (see `read_recording`).

    Args:
        content: The contents.
        path: The file.
        where: The row and the column that name the file, for messages.

    Raises:
        DataError: The contents are not a .wav file with uncompressed integer samples, or there are no samples.
    """
    import numpy as np
    import torch

    at = f"{where}: {path}"
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            promised = file.getnframes()
            raw = file.readframes(promised)
    except (wave.Error, EOFError, OSError) as error:
        raise DataError(
            f"{at} is not a .wav file with uncompressed samples of whole numbers: {str(error) or 'it is incomplete'}. "
            "Convert it to 16-bit PCM, or store the samples as an array."
        ) from error
    whole = len(raw) - len(raw) % (channels * width)
    if whole < promised * channels * width:
        raise DataError(
            f"{at} is incomplete: its header announces {promised:,} samples, but the file has "
            f"{whole // (channels * width):,}. Copy or convert the recording again."
        )
    if width not in _SAMPLE_TYPES or not whole or rate < 1:
        raise DataError(
            f"{at} has {whole // (channels * width)} samples of {width} bytes at {rate} samples per second; expected "
            "at least one sample of 1 to 4 bytes. Convert the file to 16-bit PCM."
        )
    data = np.frombuffer(raw[:whole], dtype="u1").reshape(-1, width)
    if width == 3:
        data = np.pad(data, ((0, 0), (1, 0)))
    samples = np.ascontiguousarray(data).view(_SAMPLE_TYPES[width]).astype(np.float64)
    samples = samples / 128 - 1 if width == 1 else samples / (2**31 if width == 3 else 2 ** (8 * width - 1))
    mono = samples.reshape(-1, channels).mean(1).astype(np.float32)
    return Recording(values=torch.from_numpy(mono), rate=rate)
