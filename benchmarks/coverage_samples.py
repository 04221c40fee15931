"""Populations with known true values, and samples of rows that are drawn from them.

The distributions are quantiles that were measured on the packaged reviews with the demo model (coverage_shapes.json).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate

HERE = Path(__file__).resolve().parent
#: The confidence levels: 95%, and the level at which a check fails under a policy of 20 gated checks.
LEVELS = (0.95, 0.9975)
#: The possible numbers of rows of a source.
CLUSTERS = (1, 2, 4, 8)
#: The correlation of rows of one source.
CORRELATION = 0.5
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """A statistic on a population with a known true value.

    Attributes:
        statistic: The name of the statistic.
        shape: The name of the distribution.
        draw: Takes n and a random generator, draws a sample of n instances, and returns the interval of the statistic.
            Returns None if the sample has no interval.
        truth: Returns the true value for a sample of n instances.
        slow: Whether fewer samples are drawn, because each takes about a second or the scenario has many variants.
    """

    statistic: str
    shape: str
    draw: Callable[[int, np.random.Generator], IntervalEstimate | None]
    truth: Callable[[int], float]
    slow: bool = False

    @property
    def name(self) -> str:
        return f"{self.statistic}: {self.shape}"


def shapes() -> dict[str, Any]:
    """Return the quantiles and counts in coverage_shapes.json."""
    stored: dict[str, Any] = json.loads((HERE / "coverage_shapes.json").read_text(encoding="utf-8"))
    return stored


@dataclass(frozen=True)
class Population:
    """A distribution that is defined by its quantiles. Between them, it is interpolated linearly.

    Attributes:
        quantiles: The quantiles at 0, 0.005, ..., 1: 201 values for measured distributions.
        of: A function that is applied to every value. An example is rounding, which creates ties.
    """

    quantiles: Floats
    of: Callable[[Floats], Floats] = lambda x: x

    def at(self, u: Floats) -> Floats:
        return self.of(np.interp(u, np.linspace(0, 1, len(self.quantiles)), self.quantiles))

    def mean(self) -> float:
        return float(self.at((np.arange(4_000_000) + 0.5) / 4_000_000).mean())

    def median(self) -> float:
        return float(self.at(np.array([0.5]))[0])


def populations() -> dict[str, Population]:
    """Return name -> distribution for the measured distributions and for variants of them."""
    found = {name: Population(np.array(values)) for name, values in shapes()["shapes"].items()}
    found["tau of the gradient, tied"] = Population(found["tau of the gradient"].quantiles, lambda x: np.round(x, 1))
    tvd = found["uniform TVD"].quantiles
    # This is like sparse attention: on seven of ten instances, replacing the weights changes nothing.
    found["uniform TVD, 70% zero"] = Population(
        np.concatenate([np.zeros(140), np.interp(np.linspace(0, 1, 61), np.linspace(0, 1, len(tvd)), tvd)])
    )
    return found


def independent(n: int) -> tuple[Groups, NDArray[np.int64]]:
    """Return groups of n rows in which each row has its own source, and the (n,) numbers of the sources."""
    return grouped(np.arange(n)), np.arange(n)


def clustered(n: int, random: np.random.Generator) -> tuple[Groups, NDArray[np.int64]]:
    """Return groups of n rows in which sources have 1, 2, 4 or 8 rows, and the (n,) numbers of the sources."""
    sizes = random.choice(CLUSTERS, n)
    members = np.repeat(np.arange(n), sizes)[:n]
    return grouped(members), members


def grouped(members: NDArray[np.int64]) -> Groups:
    """Return the groups of rows that share a source.

    Args:
        members: (n,) The number of the source of each row.
    """
    n = len(members)
    return Groups.of([f"{g:06d}" for g in members], [f"{i:06d}" for i in range(n)], np.ones(n, dtype=bool))


def uniform_of(members: NDArray[np.int64], random: np.random.Generator, correlation: float) -> Floats:
    """Return (n,) uniform random numbers that are correlated within sources.

    Args:
        members: (n,) The number of the source of each row.
        random: The random generator.
        correlation: The correlation of the normal scores of two numbers with the same source.
    """
    from scipy.special import ndtr

    shared, own = random.normal(size=len(members)), random.normal(size=len(members))
    found: Floats = ndtr(math.sqrt(correlation) * shared[members] + math.sqrt(1 - correlation) * own)
    return found
