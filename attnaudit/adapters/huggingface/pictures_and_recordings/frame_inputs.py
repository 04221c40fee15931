"""Build padded batches from recordings, for Transformers models that read waveforms.

A token of such a model is a frame of the recording. The features of the frames are computed when a batch is built, from
each recording alone and without padding.

Shapes: B rows, T frames, V variants, n samples, f features of a frame.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnaudit.adapters.donors import REPLACED_BY, ROW
from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.pictures_and_recordings.donor_frames import DonorFrames
from attnaudit.adapters.huggingface.pictures_and_recordings.frame_modules import FrameModules
from attnaudit.adapters.huggingface.pictures_and_recordings.recordings import RecordingEncoder
from attnaudit.adapters.huggingface.texts.configuration import cleaned
from attnaudit.adapters.huggingface.texts.input_builder import InputBuilder
from attnaudit.adapters.padding import delete_positions, keep_positions, pad, substitute_positions
from attnaudit.adapters.protocol import TEXT, Inputs, VectorTable
from attnaudit.errors import DataError
from attnaudit.instances import Instance
from attnaudit.targets import RECORDINGS

#: Key of the table of waveforms in `Inputs.tables`. Its vectors (R, n) are the R recordings of a batch, padded.
WAVEFORMS = "waveforms"
#: Keys of `Inputs.extra`: (B, 1, 2) the index of the recording in the table, and its number of samples; and (B, 1, f)
#: the mean of the features of all frames of the recording.
RECORDING, MEAN = "recording", "mean frame"
#: The id of padding and of an erased frame. The ids of frames are larger.
PADDING, ERASED, FIRST = 0, 1, 2
#: Lengths of the synthetic recordings in frames. The first must be the longest.
SYNTHETIC_FRAMES = (11, 6, 8)


#: How a frame is deleted, for reports.
_DELETED = "A deleted frame is left out of the sequence, and the frames after it move up."


@dataclass(frozen=True, kw_only=True)
class FrameInputBuilder(InputBuilder):
    """Builds the inputs of one model that reads waveforms.

    Attributes:
        encoder: Reads recordings and converts them to the values that the model reads.
        modules: How the model divides a waveform into frames.
        donors: The donors whose frames replace erased frames; None if something else replaces them.
    """

    encoder: RecordingEncoder
    modules: FrameModules
    donors: DonorFrames | None = None

    @property
    def draws(self) -> int:
        return 1 if self.donors is None else self.donors.draws

    @property
    def reads(self) -> str:
        return RECORDINGS

    @property
    def masks(self) -> bool:
        return True

    @property
    def erasure(self) -> str:
        if self.donors is not None:
            return f"{self.donors.description('frame', 'the frame at the same time')} {_DELETED}"
        what = {"mean": "the mean frame of its recording", "mask": "the mask embedding of the model"}
        return f"An erased frame is replaced by {what[self.modules.erased]}. {_DELETED}"

    @property
    def names(self) -> tuple[str, str]:
        return ("frame", RECORDING)

    def configuration(self, head: Head) -> str:
        content = {
            "config": cleaned(json.loads(self.model.config.to_json_string(use_diff=False))),
            "feature_extractor": self.encoder.configuration,
            "erased": self.modules.erased if self.donors is None else self.donors.configuration,
            "classes": list(head.classes),
        }
        return json.dumps(content, sort_keys=True)

    # -- batches --------------------------------------------------------------------------------------------------

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        """Read the recordings of the instances and divide them into frames (see `ModelAdapter.collate`)."""
        waveforms = [read_waveform(self.encoder, self.modules, one) for one in instances]
        inputs = self._from_waveforms(waveforms)
        counts = inputs.mask[TEXT].sum(1).tolist()
        if self.donors is not None:
            row = self.donors.row_entry(instances, waveforms, self.device)
            for one, entry, count in zip(instances, row, counts, strict=True):
                self.donors.require_places(one, entry, range(count))
            inputs = replace(inputs, extra={**inputs.extra, ROW: row})
        rate, length, step = self.encoder.rate, self.modules.length, self.modules.step
        spans = [[(t * step / rate, (t * step + length) / rate) for t in range(count)] for count in counts]
        names = [[f"{start:.3f} to {end:.3f} s" for start, end in row] for row in spans]
        return replace(inputs, tokens={TEXT: names}, times={TEXT: spans})

    def synthetic(self) -> Inputs:
        """Build a batch of random recordings. Every call gives the same recordings."""
        generator = torch.Generator().manual_seed(0)
        return self._from_waveforms(
            [torch.randn(self.modules.samples(count), generator=generator) for count in SYNTHETIC_FRAMES]
        )

    def _from_waveforms(self, waveforms: Sequence[Tensor]) -> Inputs:
        device, modules = self.device, self.modules
        waveforms = [one.to(device) for one in waveforms]
        features = [modules.features_of(one) for one in waveforms]
        ids_of = [_frame_ids(one, len(frames)) for one, frames in zip(waveforms, features, strict=True)]
        ids, mask = pad(ids_of, value=PADDING, device=device)
        zeros = torch.zeros((2, modules.features), device=device)  # the entries of padding and of erased frames
        known, first = np.unique(np.concatenate([[PADDING, ERASED], *ids_of]), return_index=True)
        vectors = torch.cat([zeros, *features])[torch.from_numpy(first).to(device)]
        rows = torch.arange(len(waveforms), device=device)
        lengths = torch.tensor([len(one) for one in waveforms], device=device)
        padded = torch.nn.utils.rnn.pad_sequence(waveforms, batch_first=True)
        return Inputs(
            ids={TEXT: ids},
            mask={TEXT: mask},
            special={TEXT: torch.zeros_like(mask)},
            tables={
                TEXT: VectorTable(ids=torch.from_numpy(known).to(device), vectors=vectors),
                WAVEFORMS: VectorTable(ids=rows, vectors=padded),
            },
            extra={
                RECORDING: torch.stack([rows, lengths], 1)[:, None],
                MEAN: torch.stack([frames.mean(0, keepdim=True) for frames in features]),
            },
        )

    def perturbed(self, inputs: Inputs, positions: Collection[int]) -> Inputs:
        replaced = torch.zeros_like(inputs.mask[TEXT])
        replaced[0, list(positions)] = True
        return self.substitute(inputs, TEXT, torch.zeros(1, dtype=torch.long, device=self.device), replaced)

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        return delete_positions(inputs, stream, drop, pad_id=PADDING, per_token=(REPLACED_BY,))

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        return keep_positions(inputs, stream, rows, keep, pad_id=PADDING, per_token=(REPLACED_BY,))

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return self.substitute_draw(inputs, stream, rows, replaced, 0)

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        variants = substitute_positions(inputs, stream, rows, replaced, mask_id=ERASED)
        if self.donors is None or ROW not in inputs.extra:
            return variants
        times = torch.arange(replaced.shape[1], device=self.device).expand_as(inputs.ids[TEXT])
        drawn = self.donors.drawn(inputs, times, draw)
        return replace(variants, extra={**variants.extra, REPLACED_BY: drawn[rows] * replaced})

    def single_tokens(self, inputs: Inputs, positions: Tensor, times: int) -> Inputs:
        ids = inputs.ids[TEXT].gather(1, positions[:, None]).repeat_interleave(times, dim=0)
        mask = torch.ones_like(ids, dtype=torch.bool)
        extra = {name: value.repeat_interleave(times, dim=0) for name, value in inputs.extra.items()}
        return Inputs(
            ids={TEXT: ids},
            mask={TEXT: mask},
            special={TEXT: torch.zeros_like(mask)},
            tables=inputs.tables,
            extra=extra,
        )

    # -- values that the model reads ------------------------------------------------------------------------------

    def embed(self, inputs: Inputs) -> Tensor:
        """Return the embeddings (B, T, d) of the frames, before any information passes between frames."""
        table, ids = inputs.tables[TEXT], inputs.ids[TEXT]
        features = table.vectors[torch.searchsorted(table.ids, ids)]
        erased = (ids == ERASED)[..., None]
        replacement = inputs.extra[MEAN]
        if self.donors is not None and REPLACED_BY in inputs.extra:
            replacement = self.donors.features(self.modules, inputs.extra[REPLACED_BY])
        embeddings = self.modules.embed(torch.where(erased, replacement, features))
        if self.modules.token is not None:
            embeddings = torch.where(erased, self.modules.token.to(embeddings), embeddings)
        return embeddings

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        """Return the arguments of forward() for a batch whose embeddings are given (see `FrameModules.given`)."""
        mask = inputs.mask[TEXT]
        rows, width = mask.shape
        samples = self.modules.samples(width)
        silence = torch.zeros((), device=self.device).expand(rows, samples)
        if bool(mask.all()):
            return {self.encoder.argument: silence}
        counts = torch.tensor([self.modules.samples(count) for count in mask.sum(1).tolist()], device=self.device)
        real = torch.arange(samples, device=self.device) < counts[:, None]
        return {self.encoder.argument: silence, "attention_mask": real.long()}

    def waveforms(self, inputs: Inputs) -> list[Tensor]:
        """Return the waveform (n,) of each row."""
        table = inputs.tables[WAVEFORMS]
        return [table.vectors[row, :length] for row, length in inputs.extra[RECORDING][:, 0].tolist()]


def read_waveform(encoder: RecordingEncoder, modules: FrameModules, instance: Instance) -> Tensor:
    """Return the waveform (n,) of an instance, as the model reads it.

    Raises:
        DataError: The file contains no waveform, or the waveform is shorter than a frame.
    """
    where = instance.where or instance.id
    values = encoder.read(instance)
    if values.dim() != 1:
        raise DataError(
            f"{where}: the file contains an array of the shape {tuple(values.shape)}, but the model reads waveforms. "
            "Expected an array of the shape (samples,), or a .wav file."
        )
    encoder.require_samples(values, modules.length, where)
    return encoder.values(values, where)


def _frame_ids(waveform: Tensor, frames: int) -> list[int]:
    """Return an id for each frame of a recording. Recordings with the same samples have the same ids."""
    content = waveform.cpu().numpy().tobytes()
    start = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 2
    return [FIRST + (start + 2**20 * frame + frame) % (2**62) for frame in range(frames)]
