"""Judge the gates of a run by confidence sequences, on its stored measurements in many random orders."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from attnaudit.arrays import Floats, Integers
from attnaudit.records import Requirement
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.confidence_sequence import ConfidenceSequence
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.independent_units import balanced_units, keyed_order
from attnaudit.statistics.statistic_sequences import (
    limited_ratio_sequence,
    mean_sequence,
    total_effect_sequence,
    unbet_units,
)
from attnaudit.statistics.verdict import MINIMUM_DEFINED, fail_confidence
from benchmarks.simulated_sequences import CONFIDENCE, standardised, variance

#: The sequence of a gate in a random order of the rows, as `Gate` describes it.
SequenceOf = Callable[[list[int]], tuple[ConfidenceSequence, Integers, float]]


@dataclass(frozen=True)
class Gate:
    """A gate of a run, with a function that computes its sequence for any order of the rows.

    Attributes:
        name: The check and its threshold.
        requirement: The threshold.
        gated: The number of gates of the policy. Failures are corrected for it.
        value: The statistic on all rows.
        verdict: The verdict on all rows.
        of: Takes a random order of all rows. Returns the sequence, the rows of each of its pairs, and the statistic on
            all rows, computed with the scale and the limits of the sequence.
    """

    name: str
    requirement: Requirement
    gated: int
    value: float
    verdict: str
    of: SequenceOf


class Run:
    """The stored measurements of a run of the default policy on one model and data set with two labels.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "measurements.parquet"
        self.audit = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
        self.ids = self.column("logits", "instance")
        labels = self.column("logits", "label")
        self.classes = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        if len(set(labels)) != 2 or len(set(self.ids)) != len(self.ids):
            raise ValueError(f"{folder}: expected one model on one data set with two labels.")
        self.weighted = WeightedRows.balanced(self.classes, self.groups)

    @property
    def groups(self) -> Groups:
        """All rows. In the packaged reviews, every row is a source of its own."""
        return Groups.of(self.ids, self.ids, np.ones(len(self.ids), dtype=np.bool_))

    def column(self, measure: str, field: str) -> list[Any]:
        """Return a field of every row of a measure, sorted by instance."""
        table = pq.read_table(self.path, filters=[("measure", "=", measure)]).sort_by("instance")
        found: list[Any] = table.column(field).to_pylist()
        return found

    def scalar(self, measure: str) -> Floats:
        """Return the (n,) values of a measure; all must be defined."""
        return np.array(self.column(measure, "value"), dtype=np.float64)

    def record(self, check: str) -> dict[str, Any]:
        """Return the record of a check."""
        return next(one for one in self.audit["checks"] if one["check"] == check)


def gates(run: Run) -> list[Gate]:
    """Return the first two gates of the default policy, and other checks with example thresholds."""
    return [
        total_effect_gate(run),
        pointing_gate(run),
        above_uniform_gate(run, 0.58),
        mean_gate(run, "agreement.leave_one_out.inputs", "agreement.leave_one_out.inputs.tau", (-1.0, 1.0), 0.3),
        mean_gate(run, "permutation_fragility.tvd", "permutation.tvd", (0.0, 1.0), 0.08),
        mean_gate(run, "permutation_fragility.tvd", "permutation.tvd", (0.0, 1.0), 0.07),
    ]


def policy_gate(run: Run, check: str) -> dict[str, Any]:
    """Return the arguments of a `Gate` that are in the record of a check of the policy."""
    record = run.record(check)
    limit = record["requirement"]
    return {
        "name": f"`{check}` ≥ {limit['value']:g}",
        "requirement": Requirement(direction=limit["direction"], value=limit["value"]),
        "gated": record["gated"],
        "value": record["value"],
        "verdict": record["verdict"],
    }


def total_effect_gate(run: Run) -> Gate:
    """Return the first gate of the default policy, on the total effect of attention."""
    logit = np.array(run.column("logits", "values"), dtype=np.float64)[:, 0]
    logits = np.stack([-logit / 2, logit / 2], axis=1)
    others = np.array(run.column("rearrangement.centred_logits", "values"), dtype=np.float64).reshape(len(logit), -1, 2)

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        units = balanced_units(run.classes, order, 2)
        outputs, changes = standardised(logits, others, run.classes, units[: unbet_units(units)])
        one = total_effect_sequence(changes, outputs, units, confidence=CONFIDENCE)
        limited = np.minimum(changes, one.bounds.most_above)
        value = float(run.weighted.mean(limited)) / (2 * variance(outputs, run.weighted))
        return one, units.reshape(len(units), -1), value

    return Gate(**policy_gate(run, "total_effect.standardised"), of=of)


def pointing_gate(run: Run) -> Gate:
    """Return the second gate of the default policy, on the cosine of attention and effects."""
    shared = policy_gate(run, "pointing.logits.plain")
    requirement = Requirement(direction="at_most", value=1 - shared["requirement"].value)
    return Gate(**(shared | {"requirement": requirement}), of=cosine_sequence(run, above_uniform=False))


def above_uniform_gate(run: Run, threshold: float) -> Gate:
    """Return a gate on the cosine of attention and effects above uniform weights, as the only gate of a policy."""
    record = run.record("pointing.logits")
    return Gate(
        name=f"`pointing.logits` ≥ {threshold:g}",
        requirement=Requirement(direction="at_most", value=1 - threshold),
        gated=1,
        value=record["value"],
        verdict=verdict_of(record["interval"], threshold),
        of=cosine_sequence(run, above_uniform=True),
    )


def cosine_sequence(run: Run, *, above_uniform: bool) -> SequenceOf:
    """Return what a `Gate` on the cosine of attention and effects has as `of`.

    The value is 1 minus the ratio of two means: of the largest effect times the distance of the cosine from 1, and of
    the largest effect. If the cosine is compared with that of uniform weights, the latter is multiplied by the distance
    of the cosine of uniform weights from 1. The sequence tests this ratio against 1 minus the threshold.
    """
    columns = ("largest", "cosine", "uniform_cosine")
    largest, cosine, uniform = (run.scalar(f"pointing.held.logits.{name}") for name in columns)
    above = largest * np.maximum(1 - cosine, 0.0)
    below = largest * np.maximum(1 - uniform, 0.0) if above_uniform else largest
    high = math.inf if above_uniform else 1.0

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        units = balanced_units(run.classes, order, 1)
        one = limited_ratio_sequence(above, below, largest, units, confidence=CONFIDENCE, high=high)
        scale = np.minimum(1.0, one.bounds.most_below / largest)
        value = 1 - float(run.weighted.mean(above * scale) / run.weighted.mean(below * scale))
        return one, units.reshape(len(units), -1), value

    return of


def verdict_of(interval: dict[str, float], threshold: float) -> str:
    """Return the verdict of an interval if the value must be at least the threshold."""
    return "pass" if interval["low"] >= threshold else "fail" if interval["high"] < threshold else "inconclusive"


def mean_gate(run: Run, check: str, measure: str, bounds: tuple[float, float], threshold: float) -> Gate:
    """Return a gate on a mean, as the only gate of a policy. Its verdict on all rows follows from the interval."""
    values, record = run.scalar(measure), run.record(check)

    def of(order: list[int]) -> tuple[ConfidenceSequence, Integers, float]:
        one = mean_sequence(values, run.groups, np.array(order), bounds=bounds, confidence=CONFIDENCE)
        return one, np.array(order)[:, None], float(values.mean())

    return Gate(
        name=f"`{check}` ≥ {threshold:g}",
        requirement=Requirement(direction="at_least", value=threshold),
        gated=1,
        value=record["value"],
        verdict=verdict_of(record["interval"], threshold),
        of=of,
    )


def judged(gate: Gate, ids: Sequence[str], orders: int) -> dict[str, Any]:
    """Judge a gate in several random orders, and compare the verdicts with its verdict on all rows."""
    verdicts, rows, values = Counter[str](), [], []
    for seed in range(orders):
        order = keyed_order(ids, seed)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        one, members, value = gate.of(order)
        least = math.ceil(MINIMUM_DEFINED / members.shape[1])
        settled = one.settle(gate.requirement, fail_confidence=fail_confidence(CONFIDENCE, gate.gated), least=least)
        verdicts[settled.verdict] += 1
        undecided = settled.verdict == "inconclusive"
        rows.append(len(ids) if undecided else int(rank[members[: settled.count]].max()) + 1)
        values.append(value)
    opposite = {"pass": "fail", "fail": "pass"}.get(gate.verdict, "")
    return {
        "same": verdicts[gate.verdict],
        "opposite": verdicts[opposite],
        "inconclusive": verdicts["inconclusive"],
        "rows": np.quantile(rows, [0.5, 0.9, 1.0]).astype(int).tolist(),
        "values": np.quantile(values, [0.05, 0.95]).tolist(),
    }
