"""Kendall's τ-b of a large set of units, estimated from a simple random sample of them.

The share of concordant pairs minus the share of discordant pairs is a U-statistic, so its value in a sample is an
unbiased estimate (Hoeffding 1948). If there are ties, τ-b divides it by a denominator that also depends on the sample.
In a sample of m units, the bias of this ratio is of the order 1/m. The jackknife reduces the bias to the order 1/m²
(Quenouille 1956), and estimates the variance that is due to sampling (Tukey 1958). The correction and the variance are
multiplied by the share of the units that the sample does not contain (Cochran 1977, §2.6).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attnaudit.unit_samples import FEWEST_DIFFERENT

#: The largest number of pairs that are compared at once.
PAIRS_AT_ONCE = 2**20


class SampledTau(NamedTuple):
    """An estimate of Kendall's τ-b.

    Attributes:
        tau: The estimate, from -1 to 1; NaN if the sample is too small.
        variance: The variance of the estimate over random samples; NaN if the sample is too small.
    """

    tau: float
    variance: float


def sampled_tau_b(x: Tensor, y: Tensor, population: int) -> SampledTau:
    """Estimate Kendall's τ-b over n units from a sample of m units, drawn without replacement.

    Args:
        x: (m,) values of the units in the sample, without NaN.
        y: (m,) values of the same units, without NaN.
        population: n, at least m. If n = m, the estimate is τ-b itself.

    Returns:
        The estimate. It is undefined if fewer than 10 of the values of x, or of y, differ from the most frequent one.

    Examples:
        >>> values = torch.arange(40.0)
        >>> sampled_tau_b(values, values.square(), 1000)
        SampledTau(tau=1.0, variance=0.0)
    """
    tau, variance = sampled_tau_b_of_rows(x[None], y[None], population)
    return SampledTau(float(tau[0]), float(variance[0]))


def sampled_tau_b_of_rows(x: Tensor, y: Tensor, population: int) -> tuple[Tensor, Tensor]:
    """Estimate Kendall's τ-b of several sets of n units, as `sampled_tau_b` does.

    Args:
        x: (R, m) values of the units in the sample of each set, without NaN.
        y: (R, m) values of the same units, without NaN.
        population: n, at least m.

    Returns:
        (R,) estimates and (R,) variances, in float64.
    """
    m = x.shape[1]
    if population < m:
        raise ValueError(f"population: expected at least the {m} units of the sample, but got {population}")
    x, y = x.double(), y.double()
    counts = _by_unit(x, y)
    sums = counts.sum(2, keepdim=True) / 2
    tau, without = _tau(sums, m)[:, 0], _tau(sums - counts, m - 1)
    mean, left = without.mean(1), 1 - m / population
    corrected = (tau - left * (m - 1) * (mean - tau)).clamp(-1, 1)
    variance = left * (m - 1) / m * (without - mean[:, None]).square().sum(1)
    # A unit with the most frequent value is tied with all others of them, and no unit is tied with more.
    most_frequent = counts[1:].amax((0, 2)) + 1
    too_few = m - most_frequent < FEWEST_DIFFERENT
    return corrected.masked_fill(too_few, math.nan), variance.masked_fill(too_few, math.nan)


def _tau(counts: Tensor, units: int) -> Tensor:
    """Return τ-b, given numbers of pairs (3, ...) as in `_by_unit` and the number of units."""
    difference, tied_x, tied_y = counts
    pairs = units * (units - 1) / 2
    tau: Tensor = difference / ((pairs - tied_x) * (pairs - tied_y)).sqrt()
    return tau


def _by_unit(x: Tensor, y: Tensor) -> Tensor:
    """Return three numbers for each unit, (3, R, m).

    They count the other units with which it forms a concordant pair, minus those with which it forms a discordant pair;
    those that are tied with it in x; and those that are tied with it in y.
    """
    rows, units = x.shape
    counts = x.new_empty((3, rows, units))
    step = max(1, PAIRS_AT_ONCE // units)  # single units and the others that are compared at once
    for some in torch.split(torch.arange(rows), max(1, step // units)):
        for these in torch.split(torch.arange(units), step):
            sign_x, sign_y = (a[some][:, these, None].sub(a[some][:, None]).sign() for a in (x, y))
            counts[0, some[:, None], these] = (sign_x * sign_y).sum(2)
            for number, sign in enumerate((sign_x, sign_y), start=1):
                counts[number, some[:, None], these] = (sign == 0).sum(2).double() - 1
    return counts
