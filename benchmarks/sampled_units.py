"""Coverage of intervals if leave-one-out is measured for a sample of the units: `python -m benchmarks.sampled_units`.

A population of rows has known numbers: the attention and leave-one-out of every unit. An audit draws rows from it, and
units from each row. The interval of the mean τ-b should contain the mean over the whole population, with all units. The
command prints a table. With `--out`, it also writes the table to a page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attnaudit.arrays import Floats
from attnaudit.metrics import kendall_tau_b
from attnaudit.metrics.sampled_kendall import sampled_tau_b_of_rows
from attnaudit.research.study.text_tables import markdown_table
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

#: Rows of the population, and units of each row.
POPULATION, UNITS = 400, 2000
#: Sizes of the sample, and the number of simulated audits of each setting.
SIZES, AUDITS = (64, 256), 200
ROWS = (30, 100)
CONFIDENCE = 0.95

PAGE = """# Coverage of intervals if leave-one-out is measured for a sample of the units

Written by `python -m benchmarks.sampled_units --out benchmarks/sampled_units.md`.

`Agreement(sampled_units=m)` measures leave-one-out for m random units of each row
([docs/bags.md](../docs/bags.md#a-sample-of-the-units)). Its 95% interval should contain the mean τ-b over all rows of
the population and all of their units. The table shows in which share of simulated audits it does.

A population has {population} rows of {units:,} units, whose attention and leave-one-out are known numbers. Each audit
draws rows with replacement, and units from each row without replacement. There are {audits} audits per setting; the
intervals of the shares are Wilson's 95% intervals.

* **bias**: the mean estimate minus the true τ, ± its standard error.
* **coverage**: the share of the intervals that contain the true τ.
* **coverage without the second stage**: the same for normal intervals whose standard error leaves out the sample of the
  units.
* **undefined**: the share of the audits in which a sample has too few different values, so that the check has no value.
  The other columns leave these audits out.
"""

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
    means, widths = [], []
    for audit in range(audits):
        chosen = random.integers(len(exact), size=rows)
        units = torch.from_numpy(np.stack([random.permutation(x.shape[1])[:size] for _ in range(rows)]))
        of_rows = torch.from_numpy(chosen)[:, None]
        estimates = sampled_tau_b_of_rows(x[of_rows, units], y[of_rows, units], x.shape[1])[0].numpy()
        if np.isnan(estimates).any():
            undefined += 1
            continue
        means.append(estimates.mean())
        interval = mean_interval(
            estimates, groups, confidence=CONFIDENCE, generator=np.random.default_rng(audit), bounds=(-1.0, 1.0)
        )
        assert interval is not None
        covered += int(interval.low <= exact.mean() <= interval.high)
        widths.append(interval.high - interval.low)
        error = 1.96 * exact[chosen].std(ddof=1) / math.sqrt(rows)
        without_second_stage += int(abs(estimates.mean() - exact.mean()) <= error)
    count = len(means)
    share = f"{100 * undefined / audits:.1f}%"
    if not count:
        return [f"{exact.mean():.3f}", "", "", "", "", share]
    shares = [percentage_with_interval(hits, count) for hits in (covered, without_second_stage)]
    bias = f"{np.mean(means) - exact.mean():+.4f} ± {np.std(means) / math.sqrt(count):.4f}"
    return [f"{exact.mean():.3f}", bias, *shares, f"{np.mean(widths):.3f}", share]


def percentage_with_interval(hits: int, count: int) -> str:
    """Return a share in percent with Wilson's 95% interval."""
    from scipy.stats import binomtest

    found = binomtest(hits, count).proportion_ci(method="wilson")
    return f"{100 * hits / count:.1f}% [{100 * found.low:.1f}%, {100 * found.high:.1f}%]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audits", type=int, default=AUDITS, help=f"simulated audits per setting (default: {AUDITS})")
    parser.add_argument("--out", type=Path, help="write the page with the table to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = []
    for name, draw in SCENARIOS.items():
        x, y = (torch.from_numpy(values) for values in draw(np.random.default_rng(0)))
        for size in SIZES:
            for rows in ROWS:
                line = simulated(x, y, rows, size, options.audits)
                table.append([name, str(rows), f"{size} of {UNITS:,}", *line])
                print(*table[-1], sep=" | ", flush=True)
    columns = [
        "population", "rows", "units", "true τ", "bias", "coverage", "coverage without the second stage",
        "mean width", "undefined",
    ]  # fmt: skip
    lines = [PAGE.format(audits=options.audits, units=UNITS, population=POPULATION).rstrip(), ""]
    text = "\n".join([*lines, *markdown_table(columns, table, numeric=columns[1:])]).rstrip() + "\n"
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
