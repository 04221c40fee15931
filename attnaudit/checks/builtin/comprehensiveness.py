"""Does the prediction change when the most attended tokens are erased? (DeYoung et al. 2020)"""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.checks.base import registered
from attnaudit.checks.builtin.erasure import Erasure


@registered
@dataclass(frozen=True, kw_only=True)
class Comprehensiveness(Erasure):
    """Change of the output when the most attended tokens are erased, compared with other orders of erasure.

    The change is p(x) - p(x∖r), where p is the probability of the predicted class, x is the text and r are the erased
    tokens. A large change is good. The gain of attention is the change when tokens are erased in the order of
    attention, minus the mean change when they are erased in random orders. The arguments are described in `Erasure`.
    """

    metric = "comprehensiveness"
    erasing = "Erasing"
    claim = "The most attended tokens are needed"
    question = "Does erasing the most attended tokens change the output more than erasing random ones?"
    why = "If the prediction does not change without the tokens shown as important, it does not depend on them."
    sign = 1.0
