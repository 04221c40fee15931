"""The outputs for texts in which units are masked one by one, or all at once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnaudit.engine.batches.shared_work import SharesWork


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMasks:
    """The logits of a batch of B instances with masked units, float64.

    They are NaN for instances with a single unit, and at positions where no unit starts. T is the number of tokens
    (padded), and C the number of classes.

    Attributes:
        without: (B, T, C) only one unit is masked.
        alone: (B, T, C) all units except one are masked.
        nothing: (B, C) all units are masked.
    """

    without: Tensor
    alone: Tensor
    nothing: Tensor


class SharesUnitMasks(SharesWork):
    """A batch whose outputs with masked units several measures share."""

    _unit_masks: tuple[str, UnitMasks] | None = None

    def keep_unit_masks(self, name: str, masks: UnitMasks) -> None:
        """Keep the outputs with units masked one by one, which a measure has computed together with other results.

        Args:
            name: The name under which the work for them is counted.
            masks: The outputs.
        """
        self._unit_masks = name, masks

    @property
    def known_unit_masks(self) -> UnitMasks | None:
        """The outputs that `keep_unit_masks` has kept; None if there are none."""
        if self._unit_masks is None:
            return None
        name, masks = self._unit_masks
        self.use(name)
        return masks
