"""The base class of checks that replace attention weights. It defines which weights are replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.errors import CheckError

PLACES = {
    "reading": "with the hidden states fixed",
    "layer": "in all rows of the layer",
    "everywhere": "in all rows of every layer",
}
REPLACEMENTS = {
    "live": ", live (the weights that each layer computes)",
    "frozen": ", frozen (the weights of the unchanged model)",
}


@dataclass(frozen=True, kw_only=True)
class WhereReplaced(PerInstanceCheck):
    """The base class of `Fragility` and `TotalEffect`.

    Args:
        where: Which weights are replaced. "reading": the weights of the reading (the attention that is shown as the
            explanation), while the hidden states stay fixed. "layer": all weights of the layer of the reading, for
            every query. "everywhere": all weights of every layer of the same stack (such as the encoder).
        replacement: Only for where="everywhere": which weights of a deeper layer are rearranged. "live" (the default):
            the weights that the layer computes from the changed states below it. "frozen": the weights of the unchanged
            model.
    """

    replaces_weights: ClassVar[bool] = True

    where: Literal["reading", "layer", "everywhere"] = "reading"
    replacement: Literal["live", "frozen"] | None = None

    def validate(self) -> None:
        self.require_choice("where", PLACES)
        if self.where == "everywhere":
            object.__setattr__(self, "replacement", "live" if self.replacement is None else self.replacement)
            self.require_choice("replacement", ("live", "frozen"))
        elif self.replacement is not None:
            raise CheckError(
                f"{self.name_in_errors}: replacement={self.replacement!r} chooses between live and frozen weights in "
                "deeper layers, so it applies only to where='everywhere'. Leave it out."
            )

    @property
    def place(self) -> str:
        """A suffix, such as ".layer", of the ids of the check and its measure. It shows which weights are replaced."""
        return {"reading": "", "layer": ".layer", "everywhere": f".everywhere.{self.replacement}"}[self.where]

    @property
    def place_in_title(self) -> str:
        """A suffix of the title that shows which weights are replaced; "" for where="reading"."""
        replacement = f" ({self.replacement})" if self.replacement else ""
        return {"reading": "", "layer": ", in a whole layer", "everywhere": f", in every layer{replacement}"}[
            self.where
        ]

    @property
    def place_in_words(self) -> str:
        """Which weights are replaced, in words."""
        return PLACES[self.where] + REPLACEMENTS.get(self.replacement or "", "")
