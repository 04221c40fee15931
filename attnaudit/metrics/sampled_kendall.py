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
    m = len(x)
    if population < m:
        raise ValueError(f"population: expected at least the {m} units of the sample, but got {population}")
    if min(_different(x), _different(y)) < FEWEST_DIFFERENT:
        return SampledTau(math.nan, math.nan)
    difference, tied_x, tied_y = _by_unit(x.double(), y.double())
    tau = _tau(difference.sum() / 2, tied_x.sum() / 2, tied_y.sum() / 2, m)
    without = _tau(difference.sum() / 2 - difference, tied_x.sum() / 2 - tied_x, tied_y.sum() / 2 - tied_y, m - 1)
    left = 1 - m / population
    corrected = tau - left * (m - 1) * (without.mean() - tau)
    variance = left * (m - 1) / m * (without - without.mean()).square().sum()
    return SampledTau(float(corrected.clamp(-1, 1)), float(variance))


def _different(values: Tensor) -> int:
    """Return how many values differ from the most frequent one."""
    return len(values) - int(torch.unique(values, return_counts=True)[1].max())


def _tau(difference: Tensor, tied_x: Tensor, tied_y: Tensor, units: int) -> Tensor:
    pairs = units * (units - 1) / 2
    return difference / ((pairs - tied_x) * (pairs - tied_y)).sqrt()


def _by_unit(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three numbers (m,) for each unit.

    They count the other units with which it forms a concordant pair, minus those with which it forms a discordant pair;
    those that are tied with it in x; and those that are tied with it in y.
    """
    parts = []
    step = max(1, PAIRS_AT_ONCE // len(x))
    for some_x, some_y in zip(torch.split(x, step), torch.split(y, step), strict=True):
        sign_x, sign_y = (a[:, None].sub(b).sign() for a, b in ((some_x, x), (some_y, y)))
        tied = [(sign == 0).sum(1) - 1.0 for sign in (sign_x, sign_y)]
        parts.append(torch.stack([(sign_x * sign_y).sum(1), *(one.double() for one in tied)]))
    difference, tied_x, tied_y = torch.cat(parts, dim=1)
    return difference, tied_x, tied_y
