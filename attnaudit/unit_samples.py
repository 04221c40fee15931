"""The sizes of samples of units: which sizes are allowed, how needs name them, and how reports describe them.

If leave-one-out is measured for a sample of the units of each instance, the name of the need ends with the size of the
sample, such as "leave_one_out.inputs.sampled.512". This module does not import torch.
"""

from __future__ import annotations

from attnaudit.arrays import Integers
from attnaudit.errors import CheckError

#: The part of a need that precedes the number of units.
SAMPLED = "sampled"
#: The smallest and the largest size of a sample.
FEWEST_SAMPLED, MOST_SAMPLED = 32, 4096
#: At least this many units of a sample must differ from the most frequent value. With fewer, the number of tied pairs,
#: and with it the denominator of τ-b, is too uncertain for the jackknife.
FEWEST_DIFFERENT = 10


def split_sample(text: str) -> tuple[str, int]:
    """Split the argument of a need, such as "inputs.sampled.512", into "inputs" and 512.

    Returns:
        The text before the size of the sample, and the size; 0 if all units are measured.

    Raises:
        CheckError: The size is not a whole number within the limits.
    """
    before, dot, size = f".{text}".rpartition(f".{SAMPLED}.")
    if not dot:
        return text, 0
    if not (size.isascii() and size.isdigit() and FEWEST_SAMPLED <= int(size) <= MOST_SAMPLED):
        raise CheckError(
            f"expected .{SAMPLED}.N with a whole number N of units from {FEWEST_SAMPLED} to {MOST_SAMPLED:,}, but got "
            f"'.{SAMPLED}.{size}'. Write, for example, .{SAMPLED}.512."
        )
    return before.removeprefix("."), int(size)


def with_sample(text: str, size: int) -> str:
    """Return the argument of a need with the size of a sample. The inverse of `split_sample`.

    Examples:
        >>> with_sample("inputs", 512)
        'inputs.sampled.512'
    """
    return f"{text}.{SAMPLED}.{size}" if size else text


def units_measured(lengths: Integers, size: int) -> str:
    """Describe how many units of a row were measured.

    Args:
        lengths: (n,) the numbers of units of the rows.
        size: The size of the sample.

    Examples:
        >>> import numpy as np
        >>> units_measured(np.array([10_000, 10_000]), 512)
        '512 of 10,000 units'
        >>> units_measured(np.array([90, 10_000, 700]), 512)
        '512 of 700 to 10,000 units (all units of 1 row)'
        >>> units_measured(np.array([90, 80]), 512)
        'all units'
    """
    larger = lengths[lengths > size]
    if not len(larger):
        return "all units"
    least, most = int(larger.min()), int(larger.max())
    whole = len(lengths) - len(larger)
    text = f"{size:,} of {least:,} to {most:,} units" if least < most else f"{size:,} of {most:,} units"
    return text + (f" (all units of {whole:,} row{'s' * (whole > 1)})" if whole else "")
