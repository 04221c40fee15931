"""The share of the differences that the attended tokens keep: its definition, invariances and undefined cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnaudit import checks
from attnaudit.checks.builtin.held_sufficiency import NOTHING_MASKED
from attnaudit.checks.sequential import ROWS, RowSequence
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from tests.units.checks.builtin.test_pointing import with_rows

Numbers = NDArray[np.float64]
#: The logits of a text, and those if only the attended tokens are kept.
Row = tuple[Sequence[float], Sequence[float]]


def measurements(rows: Sequence[Row], labels: Sequence[int] | None = None) -> Measurements:
    m = with_rows([(np.array([0.7, 0.3]), np.array([1.0, 0.0]))] * len(rows), labels=labels)
    whole, kept = (np.array([row[i] for row in rows], dtype=float) for i in (0, 1))
    change = kept - whole
    m.vectors["logits"] = list(whole)
    m.vectors["attended_tokens.change"] = list(change - change.mean(1, keepdims=True))
    m.scalars["attended_tokens.number"] = np.ones(len(rows))
    return m


def value(rows: Sequence[Row], labels: Sequence[int] | None = None, **arguments: str) -> float | None:
    return checks.HeldSufficiency(severity="report", **arguments).judge(measurements(rows, labels)).value  # type: ignore[arg-type]


def plain(rows: Sequence[Row], weights: Sequence[float]) -> float:
    """The value by its definition. The factor is the best of 100,001."""
    share = np.array(weights) / np.sum(weights)
    outputs, kept = (x - x.mean(1, keepdims=True) for x in (np.array([row[i] for row in rows]) for i in (0, 1)))
    outputs, kept = (x - share @ x for x in (outputs, kept))
    spread = np.linalg.norm(outputs, axis=1) @ share
    return float(
        max(1 - np.linalg.norm(outputs - a * kept, axis=1) @ share / spread for a in np.linspace(0, 1, 100_001))
    )


def logits(rows: int, *, classes: int = 3, seed: int = 0) -> Numbers:
    return np.random.default_rng(seed).normal(size=(rows, classes))


def test_the_value_is_1_if_the_differences_stay_and_0_if_they_vanish() -> None:
    whole = logits(20)
    assert value([(one, one) for one in whole]) == pytest.approx(1.0)
    assert value([(one, one + np.array([1.0, -2.0, 4.0])) for one in whole]) == pytest.approx(1.0), "the same change"
    assert value([(one, one + i) for i, one in enumerate(whole)]) == pytest.approx(1.0), "of all logits"
    assert value([(one, [3.0, 1.0, 0.0]) for one in whole]) == pytest.approx(0.0), "the same output for every text"
    assert value([(one, 0.8 * one) for one in whole]) == pytest.approx(0.8), "smaller differences"
    assert value([(one, 3.0 * one) for one in whole]) == 1.0, "larger differences"
    assert value([(one, 1e9 * one) for one in whole]) == 1.0, "much larger differences"
    assert value([(one, -one) for one in whole]) == 0.0, "the opposite"


def test_a_constant_word_with_a_large_effect_is_not_enough() -> None:
    """The word moves every output by 5. It tells no two texts apart, so nothing is kept."""
    whole = [np.array([5.0 + own, -own]) for own in (1.0, -1.0) * 10]
    assert value([(one, [5.0, 0.0]) for one in whole]) == pytest.approx(0.0)


def test_classes_have_equal_weight_unless_they_are_as_sampled() -> None:
    rows = [(a, a / 2 + b) for a, b in zip(logits(8), logits(8, seed=1), strict=True)]
    labels = [0, 0, 0, 0, 0, 0, 1, 1]
    assert value(rows, labels) == pytest.approx(plain(rows, [1 / 6] * 6 + [1 / 2] * 2), abs=1e-4)
    assert value(rows, labels, classes="as_sampled") == pytest.approx(plain(rows, [1.0] * 8), abs=1e-4)
    assert checks.HeldSufficiency(classes="as_sampled", at_least=0.1).id == "held_sufficiency.as_sampled"
    with pytest.raises(CheckError, match="classes"):
        checks.HeldSufficiency(classes="equal", at_least=0.1)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(3, 12),
    scale=st.floats(0.01, 100),
    bias=st.lists(st.floats(-20, 20), min_size=3, max_size=3),
    copies=st.integers(1, 4),
)
def test_the_value_stays_the_same_if_faithfulness_does(
    seed: int, count: int, scale: float, bias: list[float], copies: int
) -> None:
    """A factor on all logits, a bias per class, other class names, another order or share of labels change nothing."""
    whole = logits(count, seed=seed)
    kept = whole + 0.5 * logits(count, seed=seed + 1)
    labels = [i % 2 for i in range(count)]
    assume(count > 3)
    found = value(list(zip(whole, kept, strict=True)), labels)
    assert found is not None

    def same(first: Numbers, second: Numbers, of: Sequence[int] = labels) -> bool:
        return value(list(zip(first, second, strict=True)), of) == pytest.approx(found, rel=1e-6, abs=1e-6)

    assert same(scale * whole, scale * kept)
    assert same(whole + bias, kept + bias)
    assert same(whole[:, ::-1], kept[:, ::-1])
    assert same(whole[::-1], kept[::-1], labels[::-1])
    repeated = [i for i in range(count) for _ in range(copies if labels[i] else 1)]
    assert same(whole[repeated], kept[repeated], [labels[i] for i in repeated])
    assert 0.0 <= found <= 1.0


def test_classes_that_are_not_possible_answers_do_not_count() -> None:
    """The third class is open in no row, so the value is that of the first two."""
    rows = [(a, a + b / 2) for a, b in zip(logits(12, classes=2), logits(12, classes=2, seed=1), strict=True)]
    m = measurements(rows)
    m.vectors["logits"] = [np.append(one, 50.0 * i) for i, one in enumerate(m.vectors["logits"])]
    m.vectors["attended_tokens.change"] = [np.append(one, 0.0) for one in m.vectors["attended_tokens.change"]]
    m.vectors["open_classes"] = [np.array([1.0, 1.0, 0.0])] * 12
    assert checks.HeldSufficiency(severity="report").judge(m).value == pytest.approx(value(rows))


def test_the_value_of_a_part_has_the_weights_of_all_instances() -> None:
    rows = [(a, a + b) for a, b in zip(logits(60), logits(60, seed=1), strict=True)]
    m = measurements(rows, [0] * 50 + [1] * 10)
    check = checks.HeldSufficiency(severity="report")
    everything, values = np.ones(60, dtype=bool), check.values(m)
    assert check.value_of_part(m, values, everything) == pytest.approx(check.judge(m).value)
    assert check.value_of_part(m, values, ~everything) is None
    turned = [(a, -a if i < 20 else a) for i, a in enumerate(logits(60))]
    m = measurements(turned)
    assert check.value_of_part(m, check.values(m), np.arange(60) < 20) == 0.0, "the opposite keeps nothing"


def noisy(count: int, *, seed: int, share: float = 0.8) -> list[Row]:
    """Texts that keep this share of their output, plus noise."""
    generator = np.random.default_rng(seed)
    whole = generator.normal(size=(count, 2)) + np.where(generator.random(count) < 0.3, 2.0, -1.0)[:, None] * [1, -1]
    return [(one, share * one + generator.normal(scale=0.3, size=2)) for one in whole]


def test_the_interval_contains_the_value_and_reaches_a_verdict() -> None:
    record = checks.HeldSufficiency(at_least=0.6).judge(measurements(noisy(300, seed=0)))
    assert record.verdict == "pass"
    assert record.interval is not None
    assert record.interval.low < record.value < record.interval.high  # type: ignore[operator]
    assert "50% of the tokens have 80% of the attention" in record.in_words
    assert "of the differences between the outputs of the texts stay" in record.in_words
    assert checks.HeldSufficiency(at_least=0.95).judge(measurements(noisy(300, seed=0))).verdict == "fail"


@pytest.mark.parametrize("share", [pytest.param(0.8, marks=pytest.mark.slow), 1.6])
def test_the_standard_error_includes_that_of_both_means(share: float) -> None:
    """The linearised values vary as much as the value does over samples. Without the means, they would vary less."""
    check = checks.HeldSufficiency(severity="report", classes="as_sampled")
    samples = [measurements(noisy(80, seed=seed, share=share)) for seed in range(400)]
    found = [np.nanmean(check.linearised_values(one)) for one in samples]  # the mean is the value
    errors = [np.std(check.linearised_values(one), ddof=1) / 80**0.5 for one in samples[:40]]
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.12)


@pytest.mark.parametrize("classes", ["balanced", "as_sampled"])
def test_a_sequential_gate_passes_and_fails_before_the_last_row(classes: Any) -> None:
    rows = noisy(1500, seed=1)
    labels = [i % 2 for i in range(1500)]
    check = checks.HeldSufficiency(classes=classes, at_least=0.3, sampling="sequential")
    record = check.judge(measurements(rows, labels))
    assert (record.verdict, record.interval.is_sequence) == ("pass", True)  # type: ignore[union-attr]
    assert record.details[ROWS] < 1200  # type: ignore[operator]
    nothing = [(one, other) for (one, _), (_, other) in zip(rows, noisy(1500, seed=2), strict=True)]
    record = check.judge(measurements(nothing, labels))
    assert record.verdict == "fail"
    assert record.details[ROWS] < 1200  # type: ignore[operator]


def test_a_sequence_leaves_out_texts_without_a_value() -> None:
    m = measurements(noisy(400, seed=0))
    check = checks.HeldSufficiency(classes="as_sampled", at_least=0.3)
    single = np.arange(400) % 2 == 0
    m.scalars["attended_tokens.number"] = np.where(single, np.nan, 1.0)
    m.vectors["attended_tokens.change"] = [
        np.full(2, np.nan) if gone else one
        for one, gone in zip(m.vectors["attended_tokens.change"], single, strict=True)
    ]
    found = check.row_sequence(m)
    assert isinstance(found, RowSequence)
    assert found.rows.shape == (25, 1, 8)
    assert not single[found.rows].any()


def test_why_there_is_no_sequence() -> None:
    check = checks.HeldSufficiency(classes="as_sampled", at_least=0.3)
    m = measurements([([1.0, 0.0], [0.0, 1.0])] * 400)
    assert check.row_sequence(m) == "the outputs of the first rows do not vary"
    m.scalars["attended_tokens.number"] = np.full(400, 2.0)
    assert check.row_sequence(m) == "all tokens of every text are attended"
    m = measurements([(one, one / 2) for one in logits(400)])
    m.vectors["open_classes"] = [np.array([1.0, 1.0, 0.0])] * 400
    assert isinstance(check.row_sequence(m), RowSequence)
    m.vectors["open_classes"][7] = np.ones(3)
    assert check.row_sequence(m) == "not all rows have the same possible answers"


def test_it_is_undefined_without_differences_without_masked_tokens_or_with_single_tokens() -> None:
    record = checks.HeldSufficiency(at_least=0.4).judge(measurements([([1.0, 0.0], [0.0, 1.0])] * 40))
    assert (record.value, record.verdict) == (None, "undefined")
    assert "the output is the same for every text" in record.note
    m = measurements([([1.0, float(i)], [1.0, float(i)]) for i in range(40)])
    m.scalars["attended_tokens.number"] = np.array([2.0] * 30 + [1.0] * 10)
    record = checks.HeldSufficiency(at_least=0.4).judge(m)
    assert (record.value, record.details[NOTHING_MASKED]) == (1.0, 0.75)
    assert "In 75% of the texts, these are all tokens, so none is masked." in record.in_words
    m.scalars["attended_tokens.number"] = np.full(40, 2.0)
    record = checks.HeldSufficiency(at_least=0.4).judge(m)
    assert (record.value, record.verdict) == (None, "undefined")
    assert "all tokens of every text are attended" in record.note
    m = measurements([([1.0, float(i)], [0.0, 1.0]) for i in range(40)])
    m.tokens = [["w"]] * 40
    m.scalars["attended_tokens.number"] = np.full(40, np.nan)
    assert "single token" in str(checks.HeldSufficiency(at_least=0.4).judge(m).undefined)
