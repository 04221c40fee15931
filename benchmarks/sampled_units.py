"""Coverage of intervals if leave-one-out is measured for a sample of the units: `python -m benchmarks.sampled_units`.

A population of rows has known numbers: the attention and leave-one-out of every unit. An audit draws rows from it, and
units from each row. The interval of the mean τ-b should contain the mean over the whole population, with all units. The
command prints a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from attnaudit.arrays import Floats
from attnaudit.metrics import kendall_tau_b
from attnaudit.metrics.sampled_kendall import sampled_tau_b
from attnaudit.research.study.text_tables import markdown_table
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

#: Rows of the population, and units of each row.
POPULATION, UNITS = 400, 2000
#: Size of the sample -> number of simulated audits.
AUDITS = {64: 1000, 256: 100}
ROWS = (30, 100)
CONFIDENCE = 0.95

#: Draws attention and leave-one-out (POPULATION, UNITS) of the population.
Draw = Callable[[np.random.Generator], tuple[Floats, Floats]]


def related(share_of_zeros: float, spread: float) -> Draw:
    """Return a population in which leave-one-out is related to attention, differently in each row.

    Args:
        share_of_zeros: The share of the units without an effect.
        spread: The standard deviation between rows of the slope that relates the two.
    """

    def draw(random: np.random.Generator) -> tuple[Floats, Floats]:
        scores = random.normal(size=(POPULATION, UNITS))
        slopes = 0.6 + spread * random.normal(size=(POPULATION, 1))
        effects = np.exp(slopes * scores + random.normal(size=scores.shape))
        limit = np.quantile(effects, share_of_zeros, axis=1, keepdims=True)
        return np.exp(2 * scores), np.where(effects > limit, effects, 0.0)

    return draw


def weak_rows(random: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw a population in which attention is right on half of the rows, and unrelated to the effects on the others."""
    attention, effects = related(0.5, 0.1)(random)
    wrong = np.arange(POPULATION) % 2 == 1
    effects[wrong] = random.permuted(effects[wrong], axis=1)
    return attention, effects


SCENARIOS: dict[str, Draw] = {
    "no ties, rows alike": related(0.0, 0.0),
    "no ties, rows differ": related(0.0, 0.5),
    "half of the units without an effect": related(0.5, 0.1),
    "80% of the units without an effect": related(0.8, 0.1),
    "90% of the units without an effect": related(0.9, 0.1),
    "attention wrong on half of the rows": weak_rows,
}


def simulated(x: Tensor, y: Tensor, rows: int, size: int, audits: int) -> list[str]:
    """Return a line of the table: the bias of the estimates, the coverage, and the audits without a value."""
    exact = kendall_tau_b(x, y).numpy()
    random = np.random.default_rng((rows, size))
    names = [f"{number:04}" for number in range(rows)]
    groups = Groups.of(names, names, np.ones(rows, dtype=bool))
    covered = without_second_stage = undefined = 0
    means = []
    for audit in range(audits):
        chosen = random.integers(len(exact), size=rows)
        estimates = np.empty(rows)
        for number, row in enumerate(chosen):
            units = torch.from_numpy(random.permutation(x.shape[1])[:size])
            estimates[number] = sampled_tau_b(x[row, units], y[row, units], x.shape[1]).tau
        if np.isnan(estimates).any():
            undefined += 1
            continue
        means.append(estimates.mean())
        interval = mean_interval(
            estimates, groups, confidence=CONFIDENCE, generator=np.random.default_rng(audit), bounds=(-1.0, 1.0)
        )
        assert interval is not None
        covered += int(interval.low <= exact.mean() <= interval.high)
        error = 1.96 * exact[chosen].std(ddof=1) / math.sqrt(rows)
        without_second_stage += int(abs(estimates.mean() - exact.mean()) <= error)
    count = len(means)
    shares = [f"{100 * hits / count:.1f}%" if count else "" for hits in (covered, without_second_stage)]
    bias = f"{np.mean(means) - exact.mean():+.4f} ± {np.std(means) / math.sqrt(count):.4f}" if count else ""
    return [f"{exact.mean():.3f}", bias, *shares, f"{100 * undefined / audits:.1f}%"]


def main() -> None:
    torch.set_num_threads(1)
    table = []
    for name, draw in SCENARIOS.items():
        x, y = (torch.from_numpy(values) for values in draw(np.random.default_rng(0)))
        for size, audits in AUDITS.items():
            for rows in ROWS:
                line = simulated(x, y, rows, size, audits if rows == min(ROWS) else audits // 2)
                table.append([name, str(rows), f"{size} of {UNITS:,}", *line])
                print(*table[-1], sep=" | ", flush=True)
    columns = [
        "population", "rows", "units", "true τ", "bias", "coverage", "coverage without the second stage", "undefined",
    ]  # fmt: skip
    print("\n".join(markdown_table(columns, table, numeric=columns[1:])))


if __name__ == "__main__":
    main()
