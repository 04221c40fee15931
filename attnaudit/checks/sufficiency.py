"""Do the most attended tokens alone give the prediction? (DeYoung et al. 2020)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnaudit.checks.base import registered
from attnaudit.checks.erasure import Erasure


@registered
@dataclass(frozen=True, kw_only=True)
class Sufficiency(Erasure):
    """p(x) - p(r), r the most attended 1, 5, 10, 20, 50% of the tokens alone, against random tokens or signed
    leave-one-out.

    A small fall is good, so the gain is the random order's fall minus that of attention. Needs sufficiency.deletion and
    sufficiency.mask. See `Erasure` for arguments and columns.
    """

    name: ClassVar[str] = "sufficiency"
    sign: ClassVar[float] = -1.0

    def words(self) -> tuple[str, str, str]:
        return (
            "The most attended tokens are enough",
            "Do the most attended tokens alone keep the output better than random ones?",
            "If the tokens shown as important do not lead to the prediction by themselves, something else does.",
        )
