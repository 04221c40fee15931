"""Build batches for Transformers models that read patches of a picture or of a spectrogram.

A token of such a model is a special token, such as [CLS], or a patch. The special tokens come first.

Shapes: B rows, T tokens, V variants, N patches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnaudit.adapters.donors import REPLACED_BY, ROW, Donors
from attnaudit.adapters.huggingface.pictures_and_recordings.patch_grid import PatchGrid
from attnaudit.adapters.huggingface.texts.input_builder import InputBuilder
from attnaudit.adapters.padding import delete_positions, keep_positions, pad, select_rows, substitute_positions
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance

#: Keys of `Inputs.extra`: the values (B, 1, ...) that the model reads, such as pixels; the place (B, T) of each token
#: among all special tokens and patches of the model; and a mask (B, 1, N) of the patches that show the picture or the
#: recording, and no padding. Deleted tokens leave gaps in the places. The mask is missing if there is no padding.
PIXELS, PLACES, SHOWN = "pixels", "places", "shown patches"
#: Number of random inputs in a synthetic batch. It differs from the number of channels.
SYNTHETIC_INPUTS = 4


@dataclass(frozen=True, kw_only=True)
class PatchInputBuilder(InputBuilder):
    """Builds the inputs of one model that reads patches.

    Attributes:
        grid: Where the patches of the model are.
        deletable: Whether the model gives the correct logits if patches are deleted.
        whole: What is divided into patches, such as "picture".
    """

    grid: PatchGrid
    deletable: bool = True
    whole: str = "picture"

    @property
    def deletes(self) -> bool:
        return self.deletable

    @property
    def pads(self) -> bool:
        return False

    @property
    def masks(self) -> bool:
        return True

    @property
    def erasure(self) -> str:
        deletion = (
            "A deleted patch is left out of the sequence, and the other patches keep their position embeddings."
            if self.deletable
            else "Patches cannot be deleted, because the model reads all positions."
        )
        erased = f"An erased patch is replaced by {self.grid.replacement.description(self.whole)}."
        if self.donors is not None:
            erased = self.donors.description("patch", "the patch at the same place")
        return f"{erased} {deletion}"

    @property
    def names(self) -> tuple[str, str]:
        return ("patch", self.whole)

    @property
    def donors(self) -> Donors | None:
        """The donors whose patches replace erased patches; None if something else replaces them."""
        return self.grid.replacement.donors

    @property
    def draws(self) -> int:
        return 1 if self.donors is None else self.donors.draws

    @property
    def replacement(self) -> Any:
        """The entry of the configuration that says what replaces an erased patch."""
        return self.grid.replacement.name if self.donors is None else self.donors.configuration

    @property
    def mask_id(self) -> int:
        """The id that stands for an erased patch."""
        return self.grid.special

    # -- batches --------------------------------------------------------------------------------------------------

    def with_rows(self, inputs: Inputs, instances: Sequence[Instance]) -> Inputs:
        """Add the entry from which donors are drawn (`ROW`) to the batch of some instances.

        Raises:
            DataError: The batch has a patch at a place where no donor has one.
        """
        if self.donors is None:
            return inputs
        row = self.donors.row_entry(instances, list(inputs.extra[PIXELS][:, 0]), self.device)
        for one, entry, real in zip(instances, row, inputs.real(), strict=True):
            places = (real.nonzero()[:, 0] - self.grid.special).tolist()
            self.donors.require_places(one, entry, places)
        return replace(inputs, extra={**inputs.extra, ROW: row})

    def batch(self, pixels: Tensor, patch_ids: Sequence[Sequence[int]], shown: Tensor | None = None) -> Inputs:
        """Return a batch of whole inputs.

        Args:
            pixels: (B, ...) values that the model reads.
            patch_ids: The ids of the N patches of each row. They are larger than the number of special tokens.
            shown: (B, N) False at patches of padding. They become special tokens. None if there is no padding.
        """
        grid, device = self.grid, self.device
        places = torch.arange(grid.special + grid.patches).expand(len(pixels), -1)
        ids, mask = pad([[*range(grid.special), *row] for row in patch_ids], value=self.pad_id, device=device)
        special = places < grid.special
        extra = {PIXELS: pixels[:, None].to(device), PLACES: places.clone().to(device)}
        if shown is not None:
            special[:, grid.special :] |= ~shown
            extra[SHOWN] = shown[:, None].to(device)
        return Inputs(ids={TEXT: ids}, mask={TEXT: mask}, special={TEXT: special.to(device)}, extra=extra)

    def select_rows(self, inputs: Inputs, rows: Sequence[int]) -> Inputs:
        selected = select_rows(inputs, rows, per_token=(PLACES, REPLACED_BY))
        extra = dict(selected.extra)
        if SHOWN in extra and bool(extra[SHOWN].all()):
            del extra[SHOWN]
        return replace(selected, extra=extra)

    def perturbed(self, inputs: Inputs, positions: Collection[int]) -> Inputs:
        replaced = torch.zeros_like(inputs.mask[TEXT])
        replaced[0, list(positions)] = True
        return self.substitute(inputs, TEXT, torch.zeros(1, dtype=torch.long, device=self.device), replaced)

    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        self._require_deletable()
        return delete_positions(inputs, stream, drop, pad_id=self.pad_id, per_token=(PLACES, REPLACED_BY))

    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        self._require_deletable()
        return keep_positions(inputs, stream, rows, keep, pad_id=self.pad_id, per_token=(PLACES, REPLACED_BY))

    def _require_deletable(self) -> None:
        if not self.deletable:
            raise AdapterError("delete: the model reads all positions, so no patch can be deleted. Erase it instead.")

    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return self.substitute_draw(inputs, stream, rows, replaced, 0)

    def substitute_draw(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor, draw: int) -> Inputs:
        variants = substitute_positions(inputs, stream, rows, replaced, mask_id=self.mask_id)
        if self.donors is None or ROW not in inputs.extra:
            return variants
        drawn = self.donors.drawn(inputs, inputs.extra[PLACES] - self.grid.special, draw)
        return replace(variants, extra={**variants.extra, REPLACED_BY: drawn[rows] * replaced})

    def single_tokens(self, inputs: Inputs, positions: Tensor, times: int) -> Inputs:
        def select(values: Tensor) -> Tensor:
            return values.gather(1, positions[:, None]).repeat_interleave(times, dim=0)

        ids = {TEXT: select(inputs.ids[TEXT])}
        mask = {TEXT: torch.ones_like(ids[TEXT], dtype=torch.bool)}
        return Inputs(ids=ids, mask=mask, special=mask, extra={PLACES: select(inputs.extra[PLACES])})

    def pooled_tokens(self, inputs: Inputs) -> Tensor:
        return inputs.real()

    # -- arguments of forward() -----------------------------------------------------------------------------------

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        if PIXELS in inputs.extra:
            return {self.grid.argument: inputs.extra[PIXELS][:, 0]}
        # The passes of `single_tokens` skip the embeddings, so only the shape of the pixels matters.
        return {self.grid.argument: torch.zeros((), device=self.device).expand(len(inputs.ids[TEXT]), *self.grid.size)}


def random_pixels(size: Sequence[int]) -> Tensor:
    """Return values (4, ...) of random inputs of the given size. Every call gives the same values."""
    return torch.randn((SYNTHETIC_INPUTS, *size), generator=torch.Generator().manual_seed(0))
