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
#: Type -> the rounding error of a logit, as a multiple of epsilon, relative to the size of the logits.
LOGIT_EPSILONS = {FLOAT32: 8, "float16": 4, "bfloat16": 4}
#: The largest difference that rounding in float32 explains, for numbers whose absolute values are at most 1.
FLOAT32_TOLERANCE = 1e-4
#: The same difference in half precision, as a multiple of the type's epsilon. A model in half precision can be run in
#: several ways: alone or in a batch, with the fused kernel or the eager function. Between these ways, the logits of
#: models with 12 layers differ by up to 4 epsilons times the largest logit.
HALF_EPSILONS = 8
#: The tolerance for logits is proportional to their size, which counts as at least this number: small logits are
#: differences of larger numbers, and have the rounding errors of these numbers.
SMALLEST_SIZE = 0.05
#: The size of small logits counts as at most this many times the size. The tolerance is also never more than this share
#: of the size. Otherwise, small logits could be pure noise.
MOST_ENLARGED, LARGEST_SHARE = 100.0, 0.5


def tolerance(precision: str) -> float:
    """Return the largest difference that rounding can explain, for numbers whose absolute values are at most 1.

    Args:
        precision: "float32", "float16" or "bfloat16".
    """
    return HALF_EPSILONS * EPSILONS[precision] if precision in HALF else FLOAT32_TOLERANCE


def counted_size(size: float, tolerance: float) -> float:
    """Return the size by which differences of logits are divided before they are compared with the tolerance.

    Args:
        size: The typical absolute value of the logits.
        tolerance: The result of `tolerance`.

    Returns:
        The size, but at least `SMALLEST_SIZE`, or 100 times the size if that is smaller. The difference is then at most
        100 times the tolerance, and at most `LARGEST_SHARE`, of the size. If all logits are 0, it is `SMALLEST_SIZE`.

    Examples:
        >>> counted_size(3.0, 1e-4), counted_size(0.02, 1e-4), round(counted_size(1e-6, 1e-4), 9)
        (3.0, 0.05, 0.0001)
    """
    if size == 0:
        return SMALLEST_SIZE
    return max(size, min(SMALLEST_SIZE, size * min(MOST_ENLARGED, LARGEST_SHARE / tolerance)))


def logit_rounding(precision: str) -> float:
    """Return the rounding error of a logit, relative to the size of the logits of the instance.

    It is eight times the epsilon of float32, and four times that of half precision. On some processors, running an
    instance in another batch in float32 changes a logit by up to 5.5 epsilons.

    Args:
        precision: "float32", "float16" or "bfloat16".
    """
    return LOGIT_EPSILONS[precision] * EPSILONS[precision]
