"""Which numbers of a baseline a case is compared with, and why the two may not be comparable."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.checks.base import Check
from attnaudit.checks.paired_gate import BaselineNumbers, PairedGate, paired_gate, rounded_numbers
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.records import (
    BASELINE_FORMAT,
    Baseline,
    BaselineCheck,
    BaselineComparison,
    BaselineSubject,
    CheckRecord,
)
from attnaudit.run.baselines.baseline_comparison import AuditedPair, compared
from attnaudit.verdict_text import failure_message
from tests.units.checks.synthetic_measurements import measured

GATE = paired_gate(
    checks.Pointing(on="logits", at_least=0.3), margin=0.05, baseline_name="last", folder="audits/baseline"
)
BASE = "pointing.logits"
AUDITED = AuditedPair(
    model="release",
    model_sha256="a" * 64,
    data="rows",
    data_sha256="b" * 64,
    sample_sha256=None,
    policy_sha256="c" * 64,
    measures_sha256="d" * 64,
    attnaudit="0.2.0",
    seed=0,
    unit="tokens",
)
MEASURED = measured()


def subject(**changes: Any) -> BaselineSubject:
    numbers = rounded_numbers(GATE.base.linearised_values(MEASURED))
    return BaselineSubject(
        **{
            "model": "release",
            "model_sha256": "e" * 64,
            "data": "rows",
            "data_sha256": "b" * 64,
            "sample_sha256": None,
            "checks": [BaselineCheck(check=BASE, reading="", value=float(numbers.mean()), low=0.0, high=1.0)],
            "values": {one: [number] for one, number in zip(MEASURED.ids, numbers.tolist(), strict=True)},
            **changes,
        }
    )


def baseline(*subjects: BaselineSubject, **changes: Any) -> Baseline:
    return Baseline(
        **{
            "format": BASELINE_FORMAT,
            "baseline_name": "last",
            "run": "first",
            "created": "2026-01-31T14:05:02+00:00",
            "attnaudit": "0.2.0",
            "measures_sha256": "d" * 64,
            "policy_sha256": "c" * 64,
            "seed": 0,
            "unit": "tokens",
            "not_passed": [],
            "subjects": [*subjects] or [subject()],
            "sha256": "f" * 64,
            **changes,
        }
    )


def numbers_of(present: Baseline | None, gate: PairedGate = GATE) -> BaselineNumbers:
    return compared(gate, present, AUDITED, MEASURED, run=Path("reports/second"))


def test_the_numbers_are_those_of_the_same_instances() -> None:
    found = numbers_of(baseline())
    assert found.comparison.not_comparable == ""
    assert (found.comparison.baseline_run, found.comparison.baseline_model) == ("first", "release")
    assert not found.comparison.same_model
    assert found.numbers is not None
    np.testing.assert_array_equal(found.numbers, rounded_numbers(GATE.base.linearised_values(MEASURED)))


def test_the_model_of_the_same_name_is_compared_or_else_the_only_one() -> None:
    one, other, release = (subject(model=name, model_sha256=name) for name in ("one", "other", "release"))
    assert numbers_of(baseline(one)).comparison.baseline_model == "one"
    assert numbers_of(baseline(one, release)).comparison.baseline_model == "release"
    unclear = numbers_of(baseline(one, other)).comparison
    assert "no model to compare with release on rows, only one on rows, other on rows" in unclear.not_comparable
    assert unclear.baseline is None


def test_a_missing_baseline_names_the_command_that_creates_it() -> None:
    found = numbers_of(None).comparison
    assert "There is no baseline for the last release yet" in found.not_comparable
    command = "`attnaudit baseline accept reports/second --out audits/baseline --name last`"
    assert found.not_comparable.endswith(command)


def without(values: dict[str, list[float | None]], name: str) -> dict[str, list[float | None]]:
    return {one: numbers for one, numbers in values.items() if one != name}


VALUES = subject().values
OTHER_CHECK = BaselineCheck(check="agreement", reading="", value=0.0, low=0.0, high=1.0)
OTHER_READING = BaselineCheck(check=BASE, reading="cls@layer=-1,heads=mean", value=0.0, low=0.0, high=1.0)


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        (
            baseline(policy_sha256="0" * 64),
            "the policy differs (000000000000 in the baseline, cccccccccccc in this run)",
        ),
        (baseline(measures_sha256="0" * 64), "measures differs (code 000000000000 in the baseline, dddd"),
        (baseline(measures_sha256="0" * 64, attnaudit="0.1.0"), "(attnaudit 0.1.0 in the baseline, 0.2.0 in this run)"),
        (baseline(seed=7), "the seed differs (7 in the baseline, 0 in this run)"),
        (baseline(unit="words"), "the statistics are computed over words in the baseline, and over tokens in this run"),
        (baseline(subject(data_sha256="0" * 64)), "the data rows differ"),
        (baseline(subject(sample_sha256="0" * 64)), "the sample of the data rows differs"),
        (baseline(subject(data="x", data_sha256="0" * 64)), "no model to compare with release on rows, only release"),
        (baseline(subject(checks=[OTHER_CHECK])), f"the baseline lacks the check {BASE}"),
        (
            baseline(subject(checks=[OTHER_READING])),
            "the reading differs (cls@layer=-1,heads=mean in the baseline, pooled",
        ),
        (baseline(subject(values=without(VALUES, "row-0007"))), "the baseline lacks 1 instance, such as row-0007"),
        (baseline(subject(values=VALUES | {"more": [0.5]})), "the baseline has 1 instance that this run lacks"),
    ],
)
def test_what_differs_is_named_with_the_command_that_resolves_it(present: Baseline, reason: str) -> None:
    found = numbers_of(present)
    assert reason in found.comparison.not_comparable
    assert "`attnaudit baseline accept reports/second --out audits/baseline --name last`" in (
        found.comparison.not_comparable
    )
    assert (found.comparison.baseline, found.numbers) == (None, None)


def shifted(by: float, *, row: int | None = None) -> Baseline:
    """Return a baseline whose numbers are those of the model, plus a shift of one row, or a mean shift of all rows."""
    numbers = GATE.base.linearised_values(MEASURED)
    if row is None:
        numbers += by * (1 + 0.1 * (-1.0) ** np.arange(len(MEASURED)))
    else:
        numbers[row] += by
    numbers = rounded_numbers(numbers)
    check = BaselineCheck(check=BASE, reading="", value=float(numbers.mean()), low=0.0, high=1.0)
    values = {one: [number] for one, number in zip(MEASURED.ids, numbers.tolist(), strict=True)}
    return baseline(subject(checks=[check], values=values))


def judged(present: Baseline | None, gate: PairedGate = GATE) -> CheckRecord:
    return dataclasses.replace(gate, baseline=numbers_of(present, gate)).judge(MEASURED, gated=2)


@pytest.mark.parametrize(("by", "verdict"), [(0.0, "pass"), (0.02, "pass"), (0.3, "fail"), (-0.3, "pass")])
def test_the_margin_is_compared_with_the_whole_interval_of_the_difference(by: float, verdict: str) -> None:
    record = judged(shifted(by))
    assert record.value == pytest.approx(-by, abs=1e-6)
    assert (record.verdict, record.severity, record.check) == (verdict, "gate", f"{BASE}.vs_last")
    assert record.requirement is not None
    assert record.requirement.value == -0.05
    assert ("better than the last release by 0.300" in record.note) == (by == -0.3)
    assert record.comparison is not None
    own = checks.Pointing(on="logits", severity="report").judge(MEASURED).value
    assert record.comparison.candidate == pytest.approx(own)


def test_the_sentence_names_the_same_instances_only_if_they_are_the_same() -> None:
    record = judged(shifted(0.02))
    assert record.in_words.startswith("The cosine with the effects above uniform weights is ")
    assert record.in_words.endswith(" for the last release, on the same instances.")
    assert record.value_name == "change of the cosine with the effects above uniform weights since the last release"
    numbers = rounded_numbers(GATE.base.linearised_values(MEASURED)).tolist()
    values = {one: [number] for one, number in zip(MEASURED.ids, [None, *numbers[1:]], strict=True)}
    check = BaselineCheck(check=BASE, reading="", value=float(np.mean(numbers[1:])), low=0.0, high=1.0)
    assert judged(baseline(subject(checks=[check], values=values))).in_words.endswith(" for the last release.")


@pytest.mark.parametrize(
    ("check", "value", "end"),
    [
        (checks.TotalEffect(at_least=0.01), 0.04, "the smallest possible value is 0"),
        (checks.Polarity(at_most=0.5), 0.96, "the largest possible value is 1"),
    ],
    ids=["decrease", "increase"],
)
def test_a_margin_that_no_model_can_exceed_is_refused(check: Check, value: float, end: str) -> None:
    gate = paired_gate(check, margin=0.05, baseline_name="last", folder="audits/baseline")
    measures = [BaselineCheck(check=gate.base_id, reading="", value=value, low=0.0, high=1.0)]
    values = {one: [value] for one in MEASURED.ids}
    found = numbers_of(baseline(subject(checks=measures, values=values)), gate)
    assert found.numbers is None
    assert found.comparison.not_comparable.startswith("This gate can never fail")
    assert end in found.comparison.not_comparable


def test_an_upper_limit_bounds_the_rise() -> None:
    upper = dataclasses.replace(GATE, at_least=None, at_most=0.05)
    assert judged(shifted(0.1), upper).verdict == "pass"
    assert "better" in judged(shifted(0.1), upper).note
    assert judged(shifted(-0.3), upper).verdict == "fail"


def test_the_same_model_has_no_sampling_error_but_another_model_with_the_same_numbers_has() -> None:
    other = judged(baseline()).interval
    same = judged(baseline(subject(model_sha256=AUDITED.model_sha256))).interval
    assert other is not None
    assert same is not None
    assert same.low == same.high == 0
    assert other.low < 0 < other.high


def test_a_case_that_is_not_comparable_is_undefined_and_blocks() -> None:
    record = judged(None)
    assert (record.verdict, record.value, record.blocks) == ("undefined", None, True)
    assert record.comparison is not None
    assert record.reason == record.comparison.not_comparable
    assert record.undefined == {"not comparable with the baseline": len(MEASURED)}
    assert "not comparable, required at least -0.050" in failure_message(record)


def test_a_gate_is_not_judged_without_its_baseline() -> None:
    with pytest.raises(CheckError, match="Run pytest"):
        GATE.judge(MEASURED)


def _itself(check: Check, m: Measurements, *, rounding: float = 0.0) -> CheckRecord:
    """Judge a paired gate on a model that is compared with itself, with rounding errors in the numbers."""
    gate = paired_gate(check, margin=0.05, baseline_name="last", folder=None)
    exact = gate.base.linearised_values(m)
    numbers = rounded_numbers(exact + rounding * np.random.default_rng(0).uniform(-1, 1, len(m)))
    comparison = BaselineComparison(
        baseline_name="last",
        base=gate.base_id,
        candidate=None,
        reading="",
        measures_sha256="d" * 64,
        baseline=float(np.nanmean(numbers)) if not np.isnan(numbers).all() else None,
        same_model=True,
    )
    return dataclasses.replace(gate, baseline=BaselineNumbers(comparison=comparison, numbers=numbers)).judge(m)


@given(accuracy=st.floats(0.3, 1.0), seed=st.integers(0, 100))
def test_a_gate_on_correct_predictions_passes_against_the_same_model_at_any_accuracy(
    accuracy: float, seed: int
) -> None:
    m = measured(seed=seed)
    correct = np.arange(len(m)) < math.ceil(accuracy * len(m))
    m.predicted = np.where(correct, m.labels, 1 - m.labels)
    m.scalars["token_probability"] = np.random.default_rng(seed).uniform(0.4, 0.9, len(m))
    m.scalars["token_probability.whole"] = np.full(len(m), 0.9)
    check = checks.TokenProbability(at_most=0.95)
    alone, record = check.judge(m), _itself(check, m)
    assert (record.verdict, record.value) == ("pass", 0.0)
    assert (record.n, record.n_defined, record.undefined) == (alone.n, alone.n_defined, alone.undefined)
    assert record.n == correct.sum()
    assert f"measured on the {correct.sum()} of 120 instances that are predicted correctly" in record.note


def test_without_labels_the_note_of_a_paired_gate_says_so() -> None:
    m = measured(labelled=False)
    m.scalars["token_probability"] = np.full(len(m), 0.5)
    m.scalars["token_probability.whole"] = np.full(len(m), 0.9)
    record = _itself(checks.TokenProbability(at_most=0.95), m)
    assert (record.verdict, record.n, record.undefined) == ("undefined", 0, {})
    assert "the check needs labels" in record.note


@pytest.mark.parametrize(
    "check",
    [
        checks.Agreement(at_least=0.1),
        checks.InfluenceEntropy(at_most=0.9),
        checks.PermutationFragility(at_least=0.01),
        checks.UniformFragility(at_least=0.01),
        checks.Comprehensiveness(at_least=0.01),
        checks.Pointing(at_least=0.1),
        checks.Pointing(on="logits", at_least=0.1),
        checks.TotalEffect(at_least=0.01),
    ],
    ids=lambda check: check.id,
)
def test_a_paired_gate_gives_the_reasons_and_the_note_of_its_check(check: Check) -> None:
    m = measured()
    for name in ("permutation.tvd", "uniform.tvd"):
        m.scalars[name][:5] = np.nan
    alone, record = check.judge(m), _itself(check, m)
    assert (record.n, record.undefined) == (alone.n, alone.undefined)
    gate = paired_gate(check, margin=0.05, baseline_name="last", folder=None)
    assert (gate.replaces_weights, gate.has_custom_texts) == (check.replaces_weights, check.has_custom_texts)
    assert all(part in record.note for part in alone.note.split("; "))


@pytest.mark.parametrize("rounding", [0.0, 1e-7, 5e-7])
def test_a_gate_on_few_rows_passes_against_the_same_model_up_to_rounding(rounding: float) -> None:
    record = _itself(checks.PermutationFragility(at_least=0.01), measured(n=31), rounding=rounding)
    assert record.interval is not None
    assert (record.verdict, record.interval.method) == ("pass", "the same model and the same numbers")
    assert record.interval.low == record.interval.high == record.value
