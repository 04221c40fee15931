"""The simulation of confidence sequences: its true values are right, and its errors are counted on the right side."""

from __future__ import annotations

import numpy as np
import pytest

from attnaudit.arrays import Integers
from attnaudit.records import Requirement
from attnaudit.statistics.confidence_sequence import ConfidenceSequence, EnclosedSequence
from attnaudit.statistics.statistic_sequences import mean_sequence
from benchmarks.coverage_samples import grouped
from benchmarks.sequential_gates import Gate, judged
from benchmarks.simulated_sequences import Draw, scenarios, simulate


@pytest.mark.parametrize("name", sorted(scenarios()))
def test_the_true_value_is_that_of_many_sequences(name: str) -> None:
    draw, random = scenarios()[name], np.random.default_rng(0)
    differences = []
    for _ in range(60):
        one, truth = draw(random)
        both = (one.lower, one.upper) if isinstance(one, EnclosedSequence) else (one, one)
        differences.append([float((s.above - truth * s.below)[s.unbet :].mean()) for s in both])
    low, high = np.mean(differences, axis=0)
    error = np.std(differences, axis=0, ddof=1).max() / np.sqrt(60)
    assert low < 4 * error
    assert high > -4 * error


def test_errors_are_counted_on_the_side_on_which_a_sequence_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    def off(by: float) -> Draw:
        exact = scenarios()["Bernoulli, 0.3"]

        def draw(random: np.random.Generator) -> tuple[ConfidenceSequence | EnclosedSequence, float]:
            one, truth = exact(random)
            return one, truth + by

        return draw

    higher = simulate(off(-0.2), 20, seed=0)
    lower = simulate(off(0.2), 20, seed=0)
    assert (higher["above"], higher["below"]) == (1.0, 0.0)
    assert (lower["above"], lower["below"]) == (0.0, 1.0)


def test_a_gate_is_judged_as_often_as_there_are_orders() -> None:
    values = np.linspace(0.5, 0.7, 200)
    ids = [str(number) for number in range(200)]

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        groups = grouped(np.arange(200))
        one = mean_sequence(values, groups, np.array(order), bounds=(0.0, 1.0), confidence=0.95)
        return one, np.array(order)[:, None], float(values.mean())

    gate = Gate("a mean", Requirement(direction="at_least", value=0.9), 1, 0.6, "fail", of)
    found = judged(gate, ids, 3)
    assert (found["same"], found["opposite"], found["inconclusive"]) == (3, 0, 0)
    assert 30 <= found["rows"][0] < 100
