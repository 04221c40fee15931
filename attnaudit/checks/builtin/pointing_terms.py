"""The terms of the sums from which `Pointing` computes its value, and the names of its measures.

For a text x, m_x is the largest effect of a token, and c_x says how far attention is from uniform weights on the way to
the effects (see `Pointing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.checks.evidence import Detail, Mask
from attnaudit.engine.measurements import Measurements
from attnaudit.records.check_records import LARGEST_WEIGHT

Measure = Literal["cosine", "plain", "share"]
#: Measure -> name of the value.
VALUE_NAMES: dict[Measure, str] = {
    "cosine": "cosine with the effects, above uniform weights",
    "plain": "cosine with the effects",
    "share": "share of the texts on which attention points",
}
#: Measure -> unit of the value.
UNITS: dict[Measure, str] = {
    "cosine": "cosine above uniform weights",
    "plain": "cosine",
    "share": "weighted share of the texts",
}
#: Measure -> how to read the value.
HOW_TO_READ: dict[Measure, str] = {
    "cosine": (
        "At 1, every token gets attention in proportion to its effect on the prediction. At 0, attention points at the "
        "influential tokens no better than equal weights do; below 0, it does worse. The details give the mean effect "
        "of a token drawn according to attention, as a share of the effect of the most influential token."
    ),
    "plain": (
        "At 1, every token gets attention in proportion to its effect on the prediction. At 0, all attention is on "
        "tokens without an effect. If all attention is on one of two tokens with equal effects, the value is 0.71. The "
        "reference “uniform” is the value of equal weights."
    ),
    "share": (
        "The value is the share of the texts on which attention points at the influential tokens clearly better than "
        "equal weights do. On such a text, the cosine between attention and the effects is at least a quarter of the "
        "way from the cosine of equal weights to 1. Texts whose tokens have larger and more unequal effects count more."
    ),
}
#: Attention points at the influential tokens of a text if its c_x (see `Pointing`) is at least this limit. If a text
#: has many unequal effects, c_x is 0.4 to 0.7 for attention on the right tokens. For attention on other tokens, it is
#: below 0.
POINTS = 0.25
#: Uniform weights count as perfect if Σ_x r_x is at most this fraction of Σ_x m_x (see `Pointing`).
ROUNDING = 1e-9


def gains(measurements: Measurements, column: str) -> tuple[Floats, Floats]:
    """Return the gain of attention over uniform weights, and the largest possible gain r_x, of each text.

    Both are 0 for a text in which no token has an effect.

    Returns:
        (n,) m_x (cos(α, |e|) - cos(uniform, |e|)), and (n,) r_x = m_x (1 - cos(uniform, |e|)); NaN where undefined.
    """
    largest, cosine, uniform = (
        measurements.scalar(f"{column}.{name}") for name in ("largest", "cosine", "uniform_cosine")
    )
    nothing = without_effect(largest)
    gain: Floats = np.where(nothing, 0.0, largest * (cosine - uniform))
    possible: Floats = np.where(nothing, 0.0, largest * np.maximum(1 - uniform, 0.0))
    return gain, np.where(np.isnan(gain), np.nan, possible)


def cosines(measurements: Measurements, column: str, name: str = "cosine") -> tuple[Floats, Floats]:
    """Return the (n,) cosines of attention, or of uniform weights, times m_x, and m_x, of each text.

    Both are 0 for a text in which no token has an effect, and NaN where they are undefined.
    """
    largest, cosine = (measurements.scalar(f"{column}.{part}") for part in ("largest", name))
    weighted: Floats = np.where(without_effect(largest), 0.0, largest * cosine)
    return weighted, np.where(np.isnan(weighted), np.nan, largest)


def without_effect(largest: Floats) -> Mask:
    """Return an (n,) mask, True at texts in which no token has an effect; all False if no text has an effect."""
    return np.asarray((largest == 0) & bool((largest > 0).any()))


def pointed(gain: Floats, possible: Floats, limit: float) -> Floats:
    """Return r_x where c_x = gain / r_x is at least the limit, up to rounding; 0 elsewhere; NaN where undefined."""
    pointed: Floats = np.where(gain >= (limit - ROUNDING) * possible, possible, 0.0)
    return np.where(np.isnan(gain), np.nan, pointed)


def largest_weight(measurements: Measurements, rows: Integers) -> dict[str, Detail]:
    """Return a detail that shows whether the attention weights are nearly equal.

    Args:
        measurements: The measurements of n instances.
        rows: At least one instance that has a value.
    """
    multiples = measurements.scalar("attention.max")[rows] * measurements.lengths[rows]
    return {LARGEST_WEIGHT: float(np.quantile(multiples, 0.95))}


def half_of(weights: Floats) -> int:
    """Return the smallest number of instances that together have half of the total weight."""
    return int(np.searchsorted(np.cumsum(-np.sort(-weights)), weights.sum() / 2) + 1)


def cosine_of_effects(effects: Sequence[Floats], others: Sequence[Floats], rows: Integers) -> float | None:
    """Return the mean cosine of two kinds of effects, weighted by the largest effect of the first kind.

    Args:
        effects: The effects of the tokens of each instance. Their signs are ignored.
        others: The effects of the other kind.
        rows: The positions of the instances to use. Instances without an effect of either kind are left out.

    Returns:
        The mean; None if no instance has effects of both kinds.
    """
    weighted = weights = 0.0
    for row in rows.tolist():
        a, b = np.abs(effects[row]), np.abs(others[row])
        if a.any() and b.any():
            weighted += a.max() * float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
            weights += a.max()
    return float(weighted / weights) if weights else None
