"""Do the most attended tokens alone give the prediction? (DeYoung et al. 2020)"""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.checks.base import registered
from attnaudit.checks.builtin.erasure import Erasure


@registered
@dataclass(frozen=True, kw_only=True)
class Sufficiency(Erasure):
    """Change of the output when only the most attended tokens are kept, compared with other orders of erasure.

    The change is p(x) - p(r), where p is the probability of the predicted class, x is the text and r are the kept
    tokens. A small change is good. The gain of attention is the mean change when tokens are kept in random orders,
    minus the change when they are kept in the order of attention. The arguments are described in `Erasure`.
    """

    metric = "sufficiency"
    erasing = "Keeping only"
    claim = "The most attended tokens are enough"
    question = "Do the most attended tokens alone keep the output better than random ones?"
    why = "If the tokens shown as important do not give the prediction alone, it depends on other tokens too."
    sign = -1.0
