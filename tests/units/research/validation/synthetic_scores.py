"""Synthetic models for the tests of scoring and choosing: per check, a record with a value and an interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnaudit.checks import UniformFragility
from attnaudit.records import CheckRecord, Interval
from attnaudit.research.validation.population_schema import Entry
from attnaudit.research.validation.scoring import JudgedModel

REACH = 0.05


def entry(kind: str, truth: str, *, half: str = "tuning", seed: int = 0, **more: Any) -> Entry:
    folder = f"{kind}-{half}-{seed}"
    return Entry(folder=folder, kind=kind, truth=truth, data="synthetic", half=half, seed=seed, **more)  # type: ignore[arg-type]


def record(check: str, value: float | None, *, reach: float = REACH, n: int = 100, n_defined: int = 100) -> CheckRecord:
    interval = None
    if value is not None:
        interval = Interval(low=value - reach, high=value + reach, confidence=0.95, method="synthetic")
    family = UniformFragility(severity="report").family
    return CheckRecord(
        check=check, family=family, model="m", data="d", seed=0, title=check, question="", why="", how_to_read="",
        parameters={}, needs=[], verdict="inconclusive", reason="", severity="report", inconclusive="fail",
        statistic="mean", unit="", value_name="", value=value, requirement=None, interval=interval, n=n,
        n_defined=n_defined, undefined={}, references=[], details={}, distribution=None, charts=[], worst=[],
        worst_first="lowest", token_columns=[], note="", blocks=False,
    )  # fmt: skip


def judged(kind: str, truth: str, values: Mapping[str, float | None], **more: Any) -> JudgedModel:
    return JudgedModel(entry(kind, truth, **more), {name: record(name, value) for name, value in values.items()})
