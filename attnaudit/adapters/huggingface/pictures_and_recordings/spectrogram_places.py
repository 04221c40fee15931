"""Where the frames of a spectrogram are in a recording, and where the patches of a model are in a spectrogram.

Both are measured by changing parts of a recording or of a spectrogram.

Shapes: n samples, t frames, f frequencies, N patches, d features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface.pictures_and_recordings.patch_grid import PatchGrid
from attnaudit.adapters.huggingface.pictures_and_recordings.recordings import RecordingEncoder
from attnaudit.errors import AdapterError

#: Values of a spectrogram that differ by at most this much are equal.
_EQUAL = 1e-6
#: The start of a frame may deviate from a straight line by at most this many samples.
_STRAIGHT = 2
#: Number of frames among which three are tested, and the smallest number that is enough.
_TESTED, _FEWEST = 24, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTimes:
    """The samples from which the frames of a spectrogram are computed.

    Frame number i is computed from `length` samples, of which the first is number `start + i * step`.

    Attributes:
        start: The first sample of the first frame.
        step: The number of samples from one frame to the next.
        length: The number of samples of a frame.
        rate: The number of samples per second.
    """

    start: float
    step: float
    length: float
    rate: int

    @property
    def fewest(self) -> int:
        """The smallest number of samples of a recording with a frame."""
        return math.ceil(self.start + self.length)

    def frames(self, samples: int) -> int:
        """Return the number of frames of a recording with n samples."""
        return max(0, int((samples - self.start - self.length) // self.step) + 1)

    def span(self, first: int, end: int) -> tuple[float, float]:
        """Return the start and the end, in seconds, of the frames from `first` to `end - 1`."""
        start = max(0.0, self.start + first * self.step)
        return start / self.rate, (self.start + (end - 1) * self.step + self.length) / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSpan:
    """The part of a spectrogram that a patch shows.

    Attributes:
        first_frame: Its first frame.
        end_frame: The frame after its last frame.
        first_band: Its lowest frequency, as a number from 0.
        end_band: The frequency above its highest frequency.
    """

    first_frame: int
    end_frame: int
    first_band: int
    end_band: int


def frame_times(encoder: RecordingEncoder, name: str) -> FrameTimes:
    """Find the samples from which a feature extractor computes each frame.

    Args:
        encoder: The feature extractor.
        name: The name of the model, for messages.

    Raises:
        AdapterError: A frame depends on samples far away from it, or the frames are not at equal distances.
    """
    waveform = encoder.noise(encoder.rate // 2)
    spectrogram = encoder.values(waveform, name)

    def fewest(frame: int, *, from_end: bool) -> int:
        """Return how many samples at the start or at the end of the recording must change until a frame changes."""

        def changes(samples: int) -> bool:
            other = waveform.clone()
            part = slice(len(other) - samples, None) if from_end else slice(0, samples)
            other[part] = -0.5 * other[part] + 0.05
            difference = encoder.values(other, name)[frame] - spectrogram[frame]
            return bool((difference.abs() > _EQUAL).any())

        return _first(changes, len(waveform))

    known = min(len(spectrogram), _TESTED)
    if known < _FEWEST:
        raise _unknown_times(name)
    frames, count = (known // 6, known // 2, known - known // 6), len(waveform)
    starts = [fewest(frame, from_end=False) - 1 for frame in frames]
    ends = [count + 1 - fewest(frame, from_end=True) for frame in frames]
    step = (starts[-1] - starts[0]) / (frames[-1] - frames[0])
    first = starts[0] - frames[0] * step
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    deviation = max(abs(first + frame * step - start) for frame, start in zip(frames, starts, strict=True))
    if step < 1 or deviation > _STRAIGHT or max(lengths) - min(lengths) > _STRAIGHT or max(lengths) > len(waveform) / 2:
        raise _unknown_times(name)
    return FrameTimes(start=round(first), step=step, length=max(lengths), rate=encoder.rate)


def _first(holds: Callable[[int], bool], most: int) -> int:
    """Return the smallest number from 1 to `most` for which a condition holds that holds for all larger numbers."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _unknown_times(name: str) -> AdapterError:
    return AdapterError(
        f"{name}: its feature extractor does not compute the frames of the spectrogram from short, equally spaced "
        "parts of the recording, so the times of the patches are unknown. Turn off everything that depends on the "
        "whole recording."
    )


def patch_spans(grid: PatchGrid, name: str) -> tuple[PatchSpan, ...]:
    """Find the frames and the frequencies of each patch.

    Args:
        grid: The patches of the model, which reads spectrograms (t, f).
        name: The name of the model, for messages.

    Raises:
        AdapterError: The patches are not rectangles at equal distances.
    """
    module: nn.Module = grid.patch_module
    values = torch.randn((1, *grid.size), generator=torch.Generator().manual_seed(0))
    values = values.to(next(module.parameters()).device).requires_grad_(True)

    def measured(place: int) -> PatchSpan:
        embedding: Tensor = module(values)[0, place]
        weights = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1)).to(embedding)
        (gradient,) = torch.autograd.grad(embedding @ weights, values)
        frames, bands = gradient[0].abs().sum(1).nonzero()[:, 0], gradient[0].abs().sum(0).nonzero()[:, 0]
        return PatchSpan(
            first_frame=int(frames[0]),
            end_frame=int(frames[-1]) + 1,
            first_band=int(bands[0]),
            end_band=int(bands[-1]) + 1,
        )

    first = measured(0)
    right = measured(1) if grid.columns > 1 else first
    below = measured(grid.columns) if grid.rows > 1 else first
    spans = tuple(
        PatchSpan(
            first_frame=first.first_frame + _shift(first, right, below, r, c)[0],
            end_frame=first.end_frame + _shift(first, right, below, r, c)[0],
            first_band=first.first_band + _shift(first, right, below, r, c)[1],
            end_band=first.end_band + _shift(first, right, below, r, c)[1],
        )
        for r in range(grid.rows)
        for c in range(grid.columns)
    )
    for place in {0, grid.patches // 3, grid.patches // 2, grid.patches - 1}:
        if measured(place) != spans[place]:
            raise AdapterError(
                f"{name}: its patches are not equally spaced rectangles of the spectrogram, so their times are "
                "unknown. This architecture cannot be audited."
            )
    return spans


def _shift(first: PatchSpan, right: PatchSpan, below: PatchSpan, row: int, column: int) -> tuple[int, int]:
    """Return how many frames and frequencies a patch is away from the first patch."""
    frames = column * (right.first_frame - first.first_frame) + row * (below.first_frame - first.first_frame)
    bands = column * (right.first_band - first.first_band) + row * (below.first_band - first.first_band)
    return frames, bands
