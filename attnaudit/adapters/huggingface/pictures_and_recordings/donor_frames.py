"""Frames of other recordings that replace erased frames.

Shapes: B rows, T frames, f features of a frame, R donors, P frames of the longest donor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.donors import Donors, InDistribution
from attnaudit.adapters.huggingface.pictures_and_recordings.frame_modules import FrameModules


class DonorFrames(Donors):
    """The waveforms of the donors, and the features of their frames."""

    def __init__(self, chosen: InDistribution, waveforms: Sequence[Tensor], modules: FrameModules) -> None:
        """Prepare the draws. The arguments are those of `Donors`, and how the model divides a waveform into frames."""
        super().__init__(chosen, waveforms)
        counts = np.array([modules.frames(len(one)) for one in self.values])
        self.set_places(np.arange(counts.max(initial=0)) < counts[:, None])
        self._features: tuple[tuple[float, ...], Tensor] | None = None

    def features(self, modules: FrameModules, donors: Tensor) -> Tensor:
        """Return the features (B, T, f) of frame number t of donor `donors[b, t]`.

        The features of all donors are computed once, and again if the parameters of the convolutions have changed.
        """
        parameters = [parameter.detach().double() for parameter in modules.encoder.parameters()]
        state = tuple(float(one) for parameter in parameters for one in (parameter.sum(), parameter.square().sum()))
        if self._features is None or self._features[0] != state:
            device = donors.device
            rows = [modules.features_of(waveform.to(device)) for waveform in self.values]
            self._features = state, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (R, P, f)
        known = self._features[1]
        times = torch.arange(donors.shape[1], device=donors.device).clamp_max(known.shape[1] - 1)
        return known[donors, times]
