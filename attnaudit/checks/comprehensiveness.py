"""Does the prediction suffer when the most attended tokens are gone? (DeYoung et al. 2020)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnaudit.checks.base import registered
from attnaudit.checks.erasure import Erasure


@registered
@dataclass(frozen=True, kw_only=True)
class Comprehensiveness(Erasure):
    """p(x) - p(x∖r), r the most attended 1, 5, 10, 20, 50% of the tokens, against random tokens or signed
    leave-one-out.

    Needs comprehensiveness.deletion and comprehensiveness.mask. See `Erasure` for arguments and columns.
    """

    name: ClassVar[str] = "comprehensiveness"
    sign: ClassVar[float] = 1.0

    def words(self) -> tuple[str, str, str]:
        return (
            "The most attended tokens are needed",
            "Does taking away the most attended tokens change the output more than taking away random ones?",
            "If the prediction does as well without the tokens shown as important, they were not what it rested on.",
        )
