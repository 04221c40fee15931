"""The feature extractor of a model that reads recordings, and the files from which it reads them.

Shapes: n samples, t frames of a spectrogram, f features of a frame.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import first_line
from attnaudit.adapters.huggingface.texts.configuration import cleaned
from attnaudit.errors import DataError
from attnaudit.input_files import read_recording
from attnaudit.instances import Instance


class RecordingEncoder:
    """The feature extractor of a model, used like a `TextEncoder`.

    Attributes:
        extractor: The feature extractor.
        argument: The argument of the model's forward() that takes its values.
        rate: The number of samples per second that the model reads.
        limit: None, because recordings are never truncated.
        template: None, because there is no prompt.
        takes_query: False.
        takes_passages: False.
    """

    limit: int | None = None
    template: str | None = None
    takes_query = False
    takes_passages = False

    def __init__(self, extractor: Any, argument: str) -> None:
        self.extractor, self.argument = extractor, argument
        self.rate = int(extractor.sampling_rate)

    @property
    def configuration(self) -> dict[str, Any]:
        """The settings of the feature extractor, which change the values that the model reads."""
        settings = cleaned(json.loads(self.extractor.to_json_string()))
        return {"class": type(self.extractor).__name__, "settings": settings}

    def read(self, instance: Instance) -> Tensor:
        """Return the waveform (n,) or the spectrogram (t, f) in the file of an instance.

        Raises:
            DataError: The file is invalid or has another sampling rate, or the row also has a query or passages.
        """
        where = instance.where or instance.id
        if instance.query is not None or instance.passages:
            raise DataError(
                f"{where}: the row has a query or passages, but the model reads only a recording. Remove these columns."
            )
        recording = read_recording(instance)
        if recording.rate not in (None, self.rate):
            raise DataError(
                f"{where}: {instance.file} has {recording.rate:,} samples per second, but the model reads "
                f"{self.rate:,}. Resample the recording."
            )
        return recording.values

    def require_samples(self, waveform: Tensor, fewest: int, where: str) -> None:
        """Check that a waveform (n,) has enough samples for a frame.

        Raises:
            DataError: It has fewer than `fewest` samples.
        """
        if len(waveform) < fewest:
            raise DataError(
                f"{where}: the recording has {len(waveform):,} samples, but the model needs at least {fewest:,} "
                f"({1000 * fewest / self.rate:.0f} milliseconds). Use a longer recording, or remove the row."
            )

    def values(self, waveform: Tensor, where: str) -> Tensor:
        """Return what the model reads, (n,) or (t, f), given a waveform (n,).

        Raises:
            DataError: The feature extractor fails.
        """
        try:
            found = self.extractor(waveform.numpy(), sampling_rate=self.rate, return_tensors="pt")
            values: Tensor = found[self.argument][0]
        # Feature extractors raise many types of errors.
        except Exception as error:
            raise DataError(
                f"{where}: the feature extractor {type(self.extractor).__name__} cannot process a recording of "
                f"{len(waveform):,} samples ({type(error).__name__}: {first_line(error)}). Correct the file, or remove "
                "the row."
            ) from error
        values = values.float()
        if not bool(values.isfinite().all()):
            raise DataError(
                f"{where}: the feature extractor gives numbers that are not finite, for example because the recording "
                "is silent. Remove the row."
            )
        return values

    def noise(self, samples: int) -> Tensor:
        """Return a waveform (n,) of noise. Every call gives the same noise."""
        return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(0))
