"""The base class of checks that replace attention weights: which weights are replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
        where: Which weights are replaced. "reading": those of the reading, while the hidden states stay fixed.
            "layer": those of all rows of the layer of the reading, where a row contains the weights of one query.
            "everywhere": those of all rows of every layer of the same stack.
        replacement: Only for where="everywhere": from which weights of a deeper layer the new ones are made. "live"
            (the default): from those that the layer computes from the changed states below it. "frozen": from those of
            the unchanged model.
    """

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
        """The part of the names of the check and its measure that says which weights are replaced, such as ".layer"."""
        return {"reading": "", "layer": ".layer", "everywhere": f".everywhere.{self.replacement}"}[self.where]

    @property
    def place_in_title(self) -> str:
        """What tells the title from that of the same check where="reading", for which it is ""."""
        replacement = f" ({self.replacement})" if self.replacement else ""
        return {"reading": "", "layer": ", in a whole layer", "everywhere": f", in every layer{replacement}"}[
            self.where
        ]

    @property
    def place_in_words(self) -> str:
        """Which weights are replaced, in words."""
        return PLACES[self.where] + REPLACEMENTS.get(self.replacement or "", "")
