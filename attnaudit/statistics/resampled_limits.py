"""Estimate how far the limits of an interval are from the true value, by a bootstrap of the limits themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attnaudit.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampledLimits:
    """Bootstrap samples of a value and its standard error. They determine the limits of intervals.

    Attributes:
        error: The observed standard error, above 0.
        centres: (S,) values of the resamples minus the observed value.
        errors: (S,) standard errors of the resamples.
        sources: The number k of sources from which the variance comes, (Σ s²)² / Σ s⁴, where s is the deviation of a
            source.
        quantile: Takes a confidence, and True for the upper limit or False for the lower limit. Returns the distance of
            this limit from the value, in standard errors.
        unseen: Takes the same arguments as `quantile`. Returns the distance of the limit from the value for a sample in
            which all rows have the same value. The distance is in the unit of the value, and infinite if such a sample
            has no interval.
    """

    error: float
    centres: Floats = field(repr=False)
    errors: Floats = field(repr=False)
    sources: float
    quantile: Callable[[float, bool], float] = field(repr=False)
    unseen: Callable[[float, bool], float] = field(repr=False)

    def reach(self, confidence: float, power: float, *, above: bool) -> float:
        """Return a distance d: in a share `power` of samples, the limit lies within d of the true value.

        The limit of a sample depends on its value and on the length of its interval. If values are skewed, the two are
        correlated: on the side of the long tail, a sample with an extreme value also has a long interval. The quantile
        of the resampled limits takes this correlation into account.

        The distance is proportional to the standard error of the observed sample. It is too short if this error happens
        to be small. Browne (1995) therefore plans samples with an upper confidence limit of the standard deviation of a
        pilot study. Here, the estimated variance is treated as proportional to a count of rare events. The observed
        count is k, the number of sources from which the variance comes. The mean of the count has the upper limit u at
        the confidence `power` (Garwood 1936), so the distance is multiplied by √(u / k).

        Args:
            confidence: The confidence of the interval.
            power: The share of samples.
            above: True for the upper limit, False for the lower limit.

        Returns:
            The distance, in the unit of the value.
        """
        from scipy.special import gammaincinv

        lengths = self.quantile(confidence, above) * self.errors
        distance = _quantile(lengths + (self.centres if above else -self.centres), power)
        return distance * math.sqrt(float(gammaincinv(self.sources + 1, power)) / self.sources)

    def unvaried_reach(self, confidence: float, power: float, *, above: bool) -> float:
        """Return the distance of `reach` if too many samples contain none of the sources from which the variance comes.

        A share of about exp(-k) of the samples contains none of the k sources. The values in these samples do not vary.
        Their interval allows for unseen values, and can be much longer than the observed interval. If their share
        exceeds 1 - power, the limit of these samples determines the distance.

        Args:
            confidence: The confidence of the interval.
            power: The share of samples.
            above: True for the upper limit, False for the lower limit.

        Returns:
            The distance, in the unit of the value. It is 0 if the share is at most 1 - power, and infinite if a sample
            without variation has no interval.
        """
        if math.exp(-self.sources) <= 1 - power:
            return 0.0
        moved = _quantile(self.centres if above else -self.centres, power)  # the value moves without these sources
        return self.unseen(confidence, above) + max(0.0, moved)


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share, method="higher"))
