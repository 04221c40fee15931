"""Build batches from recordings, for Transformers models that read patches of a spectrogram.

A token of such a model is a special token, such as [CLS], or a patch, which covers some frames and some frequencies.
Patches after the end of a recording are special tokens, because the model reads them but they show nothing of the
recording.

Shapes: B rows, N patches, t frames, f frequencies, n samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_inputs import PatchInputBuilder, random_pixels
from attnaudit.adapters.huggingface.pictures_and_recordings.recordings import RecordingEncoder
from attnaudit.adapters.huggingface.pictures_and_recordings.spectrogram_places import FrameTimes, PatchSpan
from attnaudit.adapters.huggingface.texts.configuration import cleaned
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.errors import DataError
from attnaudit.instances import Instance
from attnaudit.targets import RECORDINGS

#: Ids of patches are hashes of their values, above the ids of the special tokens.
_FIRST_PATCH_ID = 2**62


@dataclass(frozen=True, kw_only=True)
class SpectrogramInputBuilder(PatchInputBuilder):
    """Builds the inputs of one model that reads spectrograms.

    Attributes:
        encoder: Reads recordings and converts them to spectrograms.
        times: Where the frames of a spectrogram are in the recording.
        spans: The frames and the frequencies of each patch.
    """

    encoder: RecordingEncoder
    times: FrameTimes
    spans: tuple[PatchSpan, ...]

    @property
    def reads(self) -> str:
        return RECORDINGS

    def configuration(self, head: Head) -> str:
        content = {
            "config": cleaned(json.loads(self.model.config.to_json_string(use_diff=False))),
            "feature_extractor": self.encoder.configuration,
            "erased": self.replacement,
            "classes": list(head.classes),
        }
        return json.dumps(content, sort_keys=True)

    # -- batches --------------------------------------------------------------------------------------------------

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        """Read the recordings of the instances and divide their spectrograms into patches.

        See `ModelAdapter.collate`.
        """
        spectrograms, ends = [], []
        for one in instances:
            values, frames = read_spectrogram(self.encoder, self.times, one)
            spectrograms.append(self._fitting(values, frames, one.where or one.id))
            ends.append(frames)
        inputs = self.with_rows(self._from_spectrograms(torch.stack(spectrograms), ends), instances)
        return replace(
            inputs,
            tokens={TEXT: [self._names(end) for end in ends]},
            times={TEXT: [self._times(end) for end in ends]},
            boxes={TEXT: [self._boxes(end) for end in ends]},
        )

    def _fitting(self, spectrogram: Tensor, frames: int, where: str) -> Tensor:
        """Return a spectrogram of the size that the model reads.

        Raises:
            DataError: It has another number of frequencies, or more frames than the model reads.
        """
        expected = self.grid.size
        if not 0 < frames <= expected[0]:
            raise DataError(
                f"{where}: the recording has {frames:,} frames, but the model reads 1 to {expected[0]:,}, so a part of "
                "the recording would be missing from the audit. Divide the recording into shorter ones, one per row."
            )
        if tuple(spectrogram.shape) != expected:
            raise DataError(
                f"{where}: the spectrogram has the shape {tuple(spectrogram.shape)}, but the model reads {expected} "
                "(frames, frequencies). Store what the feature extractor of the model returns, or the waveform."
            )
        return spectrogram

    def synthetic(self) -> Inputs:
        """Build a batch of random spectrograms. Every call gives the same spectrograms."""
        values = random_pixels(self.grid.size)
        return self._from_spectrograms(values, [self.grid.size[0]] * len(values))

    def _from_spectrograms(self, values: Tensor, ends: Sequence[int]) -> Inputs:
        """Return the batch of spectrograms (B, t, f), given the number of frames of each recording."""
        shown = torch.tensor([[span.first_frame < end for span in self.spans] for end in ends])
        return self.batch(values, [self._ids(one) for one in values.cpu()], None if bool(shown.all()) else shown)

    def _ids(self, spectrogram: Tensor) -> list[int]:
        """Return an id for each patch. Patches with the same values have the same id."""
        ids = []
        for span in self.spans:
            patch = spectrogram[span.first_frame : span.end_frame, span.first_band : span.end_band].contiguous()
            digest = hashlib.blake2b(patch.numpy().tobytes(), digest_size=8).digest()
            ids.append(_FIRST_PATCH_ID + int.from_bytes(digest, "big") % _FIRST_PATCH_ID)
        return ids

    # -- places ---------------------------------------------------------------------------------------------------

    def _times(self, end: int) -> list[tuple[float, float]]:
        """Return the start and the end of each token in seconds. Patches are cut at the end of the recording."""
        spans = [
            self.times.span(span.first_frame, max(span.first_frame + 1, min(span.end_frame, end)))
            for span in self.spans
        ]
        return [(0.0, 0.0)] * self.grid.special + spans

    def _boxes(self, end: int) -> list[tuple[float, float, float, float]]:
        """Return the box of each token in the spectrogram of the recording, with high frequencies at the top."""
        bands = self.grid.size[1]
        boxes = []
        for span in self.spans:
            left, right = min(span.first_frame, end) / end, min(span.end_frame, end) / end
            top, bottom = 1 - span.end_band / bands, 1 - span.first_band / bands
            boxes.append((round(left, 4), round(top, 4), round(right - left, 4), round(bottom - top, 4)))
        return [(0.0, 0.0, 0.0, 0.0)] * self.grid.special + boxes

    def _names(self, end: int) -> list[str]:
        """Return the name of each token, such as "0.10 to 0.26 s, bands 1 to 16"."""
        times = self._times(end)[self.grid.special :]
        patches = [
            f"{start:.2f} to {stop:.2f} s, bands {span.first_band + 1} to {span.end_band}"
            for span, (start, stop) in zip(self.spans, times, strict=True)
        ]
        return [*(f"[{name}]" for name in self.grid.special_names), *patches]


def read_spectrogram(encoder: RecordingEncoder, times: FrameTimes, instance: Instance) -> tuple[Tensor, int]:
    """Return the spectrogram (t, f) of an instance, as the model reads it, and the number of frames of the recording.

    Raises:
        DataError: The file cannot be read, or the recording is shorter than a frame.
    """
    where = instance.where or instance.id
    values = encoder.read(instance)
    if values.dim() == 2:
        return values, len(values)
    encoder.require_samples(values, times.fewest, where)
    return encoder.values(values, where), times.frames(len(values))
