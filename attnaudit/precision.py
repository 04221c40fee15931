"""The floating-point types in which a model can be audited, and the tolerances for their rounding errors.

This module does not import torch.
"""

from __future__ import annotations

#: The type of most models. Conformance checks that prove an adapter correct always compute in this type.
FLOAT32 = "float32"
#: Type -> distance between 1 and the next larger number.
EPSILONS = {FLOAT32: 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
#: The types with 16 bits.
HALF = ("float16", "bfloat16")
#: The largest difference that rounding in float32 explains, for numbers whose absolute values are at most 1.
FLOAT32_TOLERANCE = 1e-4
#: The same difference in half precision, as a multiple of the type's epsilon. A model in half precision can be run in
#: several ways: alone or in a batch, with the fused kernel or the eager function. Between these ways, the logits of
#: models with 12 layers differ by up to 4 epsilons times the largest logit.
HALF_EPSILONS = 8


def tolerance(precision: str) -> float:
    """Return the largest difference that rounding can explain, for numbers whose absolute values are at most 1.

    Args:
        precision: "float32", "float16" or "bfloat16".
    """
    return HALF_EPSILONS * EPSILONS[precision] if precision in HALF else FLOAT32_TOLERANCE


def logit_rounding(precision: str) -> float:
    """Return the rounding error of a logit, relative to the largest absolute logit of the instance.

    If all absolute logits are below 1, the error is relative to 1. It is four times the epsilon of the type. In
    float32, running an instance in another batch changes a logit by up to half of this error.

    Args:
        precision: "float32", "float16" or "bfloat16".
    """
    return 4 * EPSILONS[precision]
