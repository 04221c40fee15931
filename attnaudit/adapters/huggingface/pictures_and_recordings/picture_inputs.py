"""Build padded batches from pictures, for Transformers models that classify pictures.

Shapes: B rows, N patches, h and w pixels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.huggingface.outputs.output_heads import Head
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_grid import Box, PatchGrid, axis_map, boxes_in_picture
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_inputs import PatchInputBuilder, random_pixels
from attnaudit.adapters.huggingface.texts.configuration import cleaned
from attnaudit.adapters.huggingface.wrapped_models import name_of
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.errors import DataError
from attnaudit.input_files import read_picture
from attnaudit.instances import Instance
from attnaudit.targets import OTHERWISE_ERASED, PICTURES

#: Ids of patches are hashes of their pixels, above the ids of the special tokens.
_FIRST_PATCH_ID = 2**62


class PictureEncoder:
    """The image processor of a model, used like a `TextEncoder`.

    Attributes:
        processor: The image processor.
        limit: None, because a picture is never truncated.
        template: None, because there is no prompt.
        takes_query: False.
        takes_passages: False.
    """

    limit: int | None = None
    template: str | None = None
    takes_query = False
    takes_passages = False

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self._placements: dict[tuple[int, int], tuple[tuple[float, float], tuple[float, float]]] = {}

    def boxes(self, grid: PatchGrid, size: tuple[int, int], where: str) -> list[Box]:
        """Return the box of each patch in a picture of the given width and height (see `axis_map`)."""
        if size not in self._placements:
            across, down = (axis_map(self.pixels, size, axis, where) for axis in ("x", "y"))
            self._placements[size] = across, down
        return boxes_in_picture(grid, *self._placements[size])

    def pixels(self, pictures: Sequence[Any]) -> Tensor:
        """Return the pixels (B, channels, h, w) that the model reads, given pictures in RGB."""
        wanted = [self._in_mode(picture) for picture in pictures]
        values: Tensor = self.processor(images=wanted, return_tensors="pt")["pixel_values"]
        return values.float()

    def _in_mode(self, picture: Any) -> Any:
        """Convert an RGB picture to grey if the processor normalises a single channel."""
        mean = getattr(self.processor, "image_mean", None)
        return picture.convert("L") if isinstance(mean, list | tuple) and len(mean) == 1 else picture


@dataclass(frozen=True, kw_only=True)
class PictureInputBuilder(PatchInputBuilder):
    """Builds the inputs of one model that reads pictures.

    Attributes:
        encoder: Converts pictures to pixels.
    """

    encoder: PictureEncoder

    @property
    def reads(self) -> str:
        is_default = self.donors is None and self.grid.replacement.name == "typical"
        return PICTURES if is_default else OTHERWISE_ERASED

    def configuration(self, head: Head) -> str:
        content = {
            "config": cleaned(json.loads(self.model.config.to_json_string(use_diff=False))),
            "image_processor": cleaned(json.loads(self.encoder.processor.to_json_string())),
            "image_processor_class": type(self.encoder.processor).__name__,
            "erased": self.replacement,
            "classes": list(head.classes),
        }
        return json.dumps(content, sort_keys=True)

    # -- batches --------------------------------------------------------------------------------------------------

    def collate(self, instances: Sequence[Instance]) -> Inputs:
        """Read the pictures of the instances and divide them into patches (see `ModelAdapter.collate`)."""
        pictures, pixels = [], []
        for one in instances:
            if one.query is not None or one.passages:
                raise DataError(
                    f"{one.where or one.id}: the row has a query or passages, but the model reads only a picture. "
                    "Remove these columns."
                )
            pictures.append(read_picture(one))
            pixels.append(self.encoder.pixels(pictures[-1:]))
            if tuple(pixels[-1].shape[1:]) != self.grid.size:
                raise DataError(
                    f"{one.where or one.id}: the image processor turns the picture of {pictures[-1].width} × "
                    f"{pictures[-1].height} pixels into the shape {tuple(pixels[-1].shape[1:])}, but the model "
                    f"reads {self.grid.size}. Set the size of the image processor to that of the model, or turn on "
                    "its centre crop."
                )
        inputs = self.with_rows(self._from_pixels(torch.cat(pixels)), instances)
        boxes = [self.encoder.boxes(self.grid, picture.size, name_of(self.model)) for picture in pictures]
        names = [*(f"[{name}]" for name in self.grid.special_names), *self.grid.patch_names]
        nowhere = [(0.0, 0.0, 0.0, 0.0)] * self.grid.special
        return replace(
            inputs,
            tokens={TEXT: [list(names) for _ in instances]},
            boxes={TEXT: [[*nowhere, *one] for one in boxes]},
        )

    def synthetic(self) -> Inputs:
        """Build a batch of random pictures. Every call gives the same pictures."""
        return self._from_pixels(random_pixels(self.grid.size).to(self.device))

    def _from_pixels(self, pixels: Tensor) -> Inputs:
        """Return the batch of pixels (B, channels, h, w)."""
        return self.batch(pixels, [_patch_ids(self.grid, picture) for picture in pixels.cpu()])


def _patch_ids(grid: PatchGrid, pixels: Tensor) -> list[int]:
    """Return an id for each patch of a picture (channels, h, w). Patches with the same pixels have the same id."""
    patches = grid.cut(pixels[None])[0].contiguous().numpy()
    digests = (hashlib.blake2b(patch.tobytes(), digest_size=8).digest() for patch in patches)
    return [_FIRST_PATCH_ID + int.from_bytes(digest, "big") % _FIRST_PATCH_ID for digest in digests]
