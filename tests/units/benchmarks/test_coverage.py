"""The coverage simulation: its true values are right, and the stored page is made from the stored numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attnaudit.statistics.f1_drop import F1Drop
from benchmarks import coverage, coverage_samples, planning
from benchmarks.coverage_scenarios import scenarios

KNOWN = coverage_samples.populations()


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_true_mean_and_median_of_a_shape_are_those_of_a_large_sample(name: str) -> None:
    drawn = KNOWN[name].at(np.random.default_rng(0).random(400_000))
    assert KNOWN[name].mean() == pytest.approx(drawn.mean(), abs=4 * drawn.std() / 632)
    assert (drawn < KNOWN[name].median()).mean() <= 0.503
    assert (drawn <= KNOWN[name].median()).mean() >= 0.497


def test_rows_of_one_source_are_correlated_and_keep_their_distribution() -> None:
    random = np.random.default_rng(1)
    _, members = coverage_samples.clustered(40_000, random)
    u = coverage_samples.uniform_of(members, random, 0.5)
    assert np.quantile(u, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.02)
    same = members[1:] == members[:-1]
    assert np.corrcoef(u[1:][same], u[:-1][same])[0, 1] == pytest.approx(0.48, abs=0.04)


@pytest.mark.slow
def test_the_true_drop_in_f1_is_that_of_a_large_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(F1Drop, "interval", lambda self, groups, **_: found.append(self.value(groups)[2]))
    for scenario in scenarios():
        if scenario.statistic.startswith("ΔF1"):
            scenario.draw(60_000, np.random.default_rng(2))
            assert found.pop() == pytest.approx(scenario.truth(60_000), abs=0.006)


@pytest.mark.slow
def test_the_true_ratio_is_that_of_a_large_sample() -> None:
    scenario = next(one for one in scenarios() if one.statistic == "ratio of means")
    spread = scenario.draw(20_000, np.random.default_rng(3))
    assert spread is not None
    assert spread.low - 0.01 < scenario.truth(20_000) < spread.high + 0.01


@pytest.mark.slow
def test_the_true_value_of_pointing_is_that_of_a_large_sample() -> None:
    chosen = [one for one in scenarios() if one.statistic.startswith("pointing")]
    chosen += [one for one in scenarios() if one.statistic.startswith("total effect, ") and one.slow]
    assert len(chosen) == 23
    for scenario in chosen:
        spread = scenario.draw(20_000, np.random.default_rng(3))
        assert spread is not None
        assert spread.low - 0.01 < scenario.truth(20_000) < spread.high + 0.01


def test_counts_of_a_small_run_add_up() -> None:
    names = [one.name for one in scenarios()]
    row = coverage.run(names.index("mean: tau of leave-one-out"), 40, 60)
    one = row["levels"]["0.95"]
    assert one["coverage"] + one["truth below"] + one["truth above"] == pytest.approx(1)
    assert 0.8 <= one["coverage"] <= row["levels"]["0.9975"]["coverage"] <= 1
    assert "mean | tau of leave-one-out" in coverage.table([row], "0.95")


def test_the_needed_number_decides_four_samples_of_five() -> None:
    row = planning.run("tau of leave-one-out", 100, 2.0, 40)
    drawn = planning.population("tau of leave-one-out")
    grid = drawn.at((np.arange(100_000) + 0.5) / 100_000)
    gap = 2 * grid.std() / 10
    error = grid.std() / np.sqrt(row["needed"])
    assert gap / error == pytest.approx(1.96 + 0.84, abs=0.02)
    assert row["inconclusive"] >= row["with a figure"] >= row["tried"] >= row["decided rightly"]


def test_the_stored_page_is_made_from_the_stored_numbers() -> None:
    stored = json.loads((coverage.HERE / "coverage.json").read_text(encoding="utf-8"))
    page = coverage.page(stored["rows"], stored["planning"])
    assert (coverage.HERE / "coverage.md").read_text(encoding="utf-8") == page
    order = [(one.statistic, one.shape) for one in scenarios()]
    assert list(dict.fromkeys((row["statistic"], row["shape"]) for row in stored["rows"])) == order
