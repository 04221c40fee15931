"""How far the limits of an interval are from the true value: a bootstrap of the limits themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attnaudit.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampledLimits:
    """Bootstrap samples of a value and of its standard error, from which the limits of an interval follow.

    Attributes:
        error: The observed standard error, above 0.
        centres: (S,) values of the resamples minus the observed value.
        errors: (S,) standard errors of the resamples.
        sources: The number of sources from which the variance comes, (Σ s²)² / Σ s⁴, where s are their deviations.
        quantile: Returns how many standard errors a limit is from the value, at a confidence: the upper limit (True) or
            the lower one (False).
        unseen: Returns the same distance, in the unit of the value, for a sample in which nothing varies; infinite if
            such a sample has no interval.
    """

    error: float
    centres: Floats = field(repr=False)
    errors: Floats = field(repr=False)
    sources: float
    quantile: Callable[[float, bool], float] = field(repr=False)
    unseen: Callable[[float, bool], float] = field(repr=False)

    def reach(self, confidence: float, power: float, *, above: bool) -> float:
        """Return the distance from the true value that a limit does not exceed in a share `power` of samples.

        From sample to sample, a limit varies with the value and with the length of the interval. If values are skewed,
        the two vary together: on the side of the long tail, a sample with an extreme value also has a long interval.
        The quantile of the resampled limits includes this.

        The distance is proportional to the standard error of the sample that reports it, and too short if that error
        happens to be small. Browne (1995) therefore plans samples with the upper limit of the standard deviation of a
        pilot study. If the variance comes from k sources, it is proportional to k, which is the count of rare events:
        with the upper limit u of their mean at the confidence `power` (Garwood 1936), the distance is multiplied by
        √(u / k).

        Args:
            confidence: The confidence of the interval.
            power: The share of samples.
            above: Whether the upper limit is meant.

        Returns:
            The distance, in the unit of the value.
        """
        from scipy.special import gammaincinv

        lengths = self.quantile(confidence, above) * self.errors
        distance = _quantile(lengths + (self.centres if above else -self.centres), power)
        return distance * math.sqrt(float(gammaincinv(self.sources + 1, power)) / self.sources)

    def unvaried_reach(self, confidence: float, power: float, *, above: bool) -> float:
        """Return the same distance if too many samples lack the few sources from which the variance comes.

        About exp(-k) of the samples have none of k sources. Nothing varies in these samples, and their interval, which
        allows for unseen values, can be much longer than the observed one. If they are more than 1 - power of all
        samples, their limit is the distance.

        Args:
            confidence: The confidence of the interval.
            power: The share of samples.
            above: Whether the upper limit is meant.

        Returns:
            The distance, in the unit of the value; 0 if few samples lack these sources, infinite if such a sample has
            no interval.
        """
        if math.exp(-self.sources) <= 1 - power:
            return 0.0
        moved = _quantile(self.centres if above else -self.centres, power)  # by the sources that are lacking
        return self.unseen(confidence, above) + max(0.0, moved)


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share, method="higher"))
