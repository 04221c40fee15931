"""The total effect of the class in which it is smallest: definition, invariances, classes with few rows, texts."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.checks.builtin.predicted_classes import FEWEST_SOURCES
from attnaudit.checks.builtin.total_effect import SMALLEST, TotalEffect
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import CheckError
from attnaudit.records import UnitNames
from attnaudit.research.validation.changed_adapters import with_logits
from attnaudit.research.validation.invariance_models import hand_made
from attnaudit.research.validation.invariances import repeated
from attnaudit.verdict_text import failure_message
from tests.units.checks.synthetic_measurements import measured, reordered

OUTPUTS = ("probabilities", "logits", "standardised")
few = settings(max_examples=8)


def smallest(on: str = "standardised", **arguments: Any) -> TotalEffect:
    found = TotalEffect(on=on, classes="smallest", **({"severity": "report"} | arguments))  # type: ignore[arg-type]
    assert found.of_smallest
    return found


def with_classes(counts: tuple[int, ...], *, seed: int = 0, unused: int | None = None) -> Measurements:
    """Return measurements of a model that predicts each class this often. Its labels are drawn at random.

    Rearranged weights move the logits of each row to those of a random row, or not at all if the class is `unused`.
    """
    random = np.random.default_rng(seed)
    n, classes = sum(counts), len(counts)
    m = measured(n, seed=seed)
    m.classes = tuple(f"class {i}" for i in range(classes))
    m.labels = random.integers(0, classes, n)
    m.predicted = random.permutation(np.repeat(np.arange(classes), counts))
    logits = random.normal(size=(n, classes)) + 8 * np.eye(classes)[m.predicted]
    moved = logits[:, None] + (random.random((n, 16, 1)) < 0.4) * (
        logits[random.integers(0, n, (n, 16))] - logits[:, None]
    )
    if unused is not None:
        moved[m.predicted == unused] = logits[m.predicted == unused][:, None]
    set_logits(m, logits, moved)
    m.vectors["rearrangement.decisions"] = [np.bincount(row.argmax(1), minlength=classes) / 16 for row in moved]
    return m


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def set_logits(m: Measurements, logits: np.ndarray, moved: np.ndarray) -> None:
    """Set the logits (n, C) and those under 16 rearrangements (n, 16, C), and what follows from them."""
    centred, centred_moved = (x - x.mean(-1, keepdims=True) for x in (logits, moved))
    m.vectors["logits"], m.vectors["probabilities"] = list(logits), list(softmax(logits))
    m.vectors["rearrangement.centred_logits"] = [row.ravel() for row in centred_moved]
    m.scalars["rearrangement.logits"] = ((centred_moved - centred[:, None]) ** 2).sum(-1).mean(1)
    m.scalars["rearrangement.probabilities"] = ((softmax(moved) - softmax(logits)[:, None]) ** 2).sum(-1).mean(1)


def by_definition(m: Measurements, on: str, left_out: tuple[int, ...] = ()) -> dict[int, float]:
    """Return the index of each predicted class, computed with loops over the rows and the rearrangements."""
    counts = {c: sum(m.predicted == c) for c in sorted(set(m.predicted.tolist())) if c not in left_out}
    rows = [i for i in range(len(m)) if m.predicted[i] in counts]
    weights = {i: 1 / len(counts) / counts[int(m.predicted[i])] for i in rows}
    logits = {i: m.vectors["logits"][i] - m.vectors["logits"][i].mean() for i in rows}
    others = {i: m.vectors["rearrangement.centred_logits"][i].reshape(16, -1) for i in rows}
    if on != "logits":
        mean, scale = 0.0, 1.0
        if on == "standardised":
            mean = sum(weights[i] * logits[i] for i in rows)
            variance = sum(weights[i] * ((logits[i] - mean) ** 2).sum() for i in rows)
            scale = np.sqrt(variance / len(m.classes))
        logits = {i: softmax((z - mean) / scale) for i, z in logits.items()}
        others = {i: np.array([softmax((z - mean) / scale) for z in several]) for i, several in others.items()}
    centre = sum(weights[i] * logits[i] for i in rows)
    variance = sum(weights[i] * ((logits[i] - centre) ** 2).sum() for i in rows)
    changes = {i: np.mean([((z - logits[i]) ** 2).sum() for z in others[i]]) for i in rows}
    return {c: float(np.mean([changes[i] for i in rows if m.predicted[i] == c]) / (2 * variance)) for c in counts}


@pytest.mark.parametrize("on", OUTPUTS)
@pytest.mark.parametrize("counts", [(30, 50), (20, 40, 25, 15)])
def test_the_value_follows_its_definition(on: str, counts: tuple[int, ...]) -> None:
    m = with_classes(counts)
    expected = by_definition(m, on)
    record = smallest(on).judge(m)
    assert record.value == pytest.approx(min(expected.values()), rel=1e-9)
    assert record.interval is not None
    assert record.interval.low < record.value < record.interval.high
    assert record.interval.method.endswith(f"smallest of {len(counts)} classes")
    assert record.details[SMALLEST] == m.classes[min(expected, key=expected.__getitem__)]
    assert record.details["mean index of the predicted classes"] == pytest.approx(np.mean(list(expected.values())))
    for number, name in enumerate(m.classes):
        assert record.details[f"mean where '{name}' is predicted"] == pytest.approx(expected[number])
    assert (record.check, record.n_defined, record.note) == (f"total_effect.{on}.smallest", len(m), "")


@pytest.mark.parametrize("on", OUTPUTS)
def test_a_class_in_which_other_weights_give_the_same_output_blocks(on: str) -> None:
    m = with_classes((200, 200), unused=0)
    hidden = TotalEffect(on=on, at_least=0.13).judge(m)  # type: ignore[arg-type]
    found = smallest(on, at_least=0.13, severity="gate").judge(m)
    assert (hidden.verdict, found.verdict, found.blocks) == ("pass", "fail", True)
    assert found.value == 0.0
    assert found.interval is not None
    assert found.interval.low == 0.0 < found.interval.high < 0.13
    assert found.when_failed.startswith("In one of the predicted classes, attention is barely used")
    assert found.in_words in failure_message(found)
    assert found.in_words.startswith(
        "In the texts predicted as 'class 0', shuffling the attention weights over the tokens"
    )
    assert smallest(on, at_least=0.13, severity="gate").judge(with_classes((200, 200))).verdict == "pass"


def test_labels_have_no_part_in_it() -> None:
    m = with_classes((40, 30, 30))
    other = replace(m, labels=np.full(len(m), -1))
    assert smallest().judge(other).value == smallest().judge(m).value


@few
@given(
    factor=st.sampled_from([0.01, 1.0, 100.0]),
    bias=st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    order=st.permutations(range(3)),
)
def test_scale_bias_and_names_do_not_matter_while_the_decisions_stay_the_same(
    factor: float, bias: list[float], order: list[int]
) -> None:
    m = with_classes((20, 30, 15))
    changed = replace(m, vectors=dict(m.vectors), scalars=dict(m.scalars), predicted=np.argsort(order)[m.predicted])
    logits = np.stack(m.vectors["logits"])
    moved = np.stack(m.vectors["rearrangement.centred_logits"]).reshape(len(m), 16, 3)
    set_logits(changed, *((factor * x + np.array(bias))[..., order] for x in (logits, moved)))
    for on in ("logits", "standardised"):
        before, after = smallest(on).judge(m), smallest(on).judge(changed)
        assert after.value == pytest.approx(before.value, rel=1e-9)
        assert after.interval is not None
        assert before.interval is not None
        assert (after.interval.low, after.interval.high) == pytest.approx(
            (before.interval.low, before.interval.high), rel=1e-6
        )
        assert after.details[SMALLEST] == m.classes[order.index(int(str(before.details[SMALLEST])[-1]))]


@few
@given(times=st.lists(st.integers(1, 6), min_size=3, max_size=3), seed=st.integers(0, 3))
def test_neither_how_often_a_class_is_predicted_nor_the_order_of_rows_matters(times: list[int], seed: int) -> None:
    m = with_classes((15, 20, 12))
    rows = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(m)), np.array(times)[m.predicted]))
    for on in OUTPUTS:
        assert smallest(on).judge(repeated(m, rows)).value == pytest.approx(smallest(on).judge(m).value, rel=1e-9)


def test_a_mean_over_the_rows_depends_on_how_often_a_class_is_predicted() -> None:
    """This is what the smallest index avoids: here, the mean passes only if the unused class is rare enough."""
    m = with_classes((20, 20), unused=0)
    rows = np.repeat(np.arange(40), np.where(m.predicted == 0, 1, 9))
    mean = TotalEffect(on="standardised", classes="as_sampled", severity="report")
    assert mean.judge(repeated(m, rows)).value > 1.2 * mean.judge(m).value  # type: ignore[operator]
    assert smallest().judge(repeated(m, rows)).value == smallest().judge(m).value == 0


@pytest.mark.parametrize("change", ["scale", "bias", "moved weights", "shifted scores"])
def test_the_value_for_a_model_is_invariant(change: str) -> None:
    model = hand_made(2, seed=1, texts=60)
    before = measured_on(model.adapter, model)
    assert min(np.bincount(before.predicted, minlength=2)) >= FEWEST_SOURCES
    margins = np.abs(np.diff(np.stack(list(before.vector("logits"))), axis=1))
    bias = 0.4 * float(margins.min())
    assert model.moved_weights is not None
    assert model.shifted_scores is not None
    adapter = {
        "scale": with_logits(model.adapter, scale=7.0),
        "bias": with_logits(model.adapter, bias=[bias, -bias]),
        "moved weights": model.moved_weights,
        "shifted scores": model.shifted_scores,
    }[change]
    after = measured_on(adapter, model)
    assert (after.predicted == before.predicted).all()
    for on in ("logits", "standardised"):
        value = smallest(on).judge(before).value
        assert value is not None
        assert value > 0.01
        allowed = 0.01 if change == "moved weights" else 1e-6
        assert smallest(on).judge(after).value == pytest.approx(value, abs=allowed)


def measured_on(adapter: PooledAttentionAdapter, model: Any) -> Measurements:
    return measure(adapter, model.dataset, ["rearrangement"], model="m", seed=0)[0]


def test_a_class_that_is_predicted_for_few_texts_is_left_out_and_named() -> None:
    m = with_classes((60, 50, FEWEST_SOURCES - 1), unused=2)
    record = smallest(at_least=0.1, severity="gate").judge(m)
    assert record.value == pytest.approx(min(by_definition(m, "standardised", left_out=(2,)).values()), rel=1e-9)
    assert record.verdict == "pass"
    assert record.undefined == {
        "their class is not predicted for at least 10 texts (texts of one source count once)": FEWEST_SOURCES - 1
    }
    assert "texts predicted as 'class 2' are left out: this class is predicted for fewer than 10 texts" in record.note
    assert record.details["mean where 'class 2' is predicted"] is None
    assert smallest(at_least=0.1, severity="gate").judge(with_classes((60, 50, FEWEST_SOURCES), unused=2)).blocks


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_change_that_is_not_finite_blocks(wrong: float) -> None:
    m = with_classes((60, 60))
    for name in (name for name in m.scalars if name.startswith("rearrangement.") and "prob" not in name):
        m.scalars[name][3] = wrong
    record = checks.TotalEffect(on="logits", classes="smallest", at_least=0.01, severity="gate").judge(m)
    assert (record.verdict, record.blocks) == ("undefined", True)


def test_texts_of_one_source_count_once() -> None:
    m = with_classes((60, 60, 30))
    rare = np.flatnonzero(m.predicted == 2)
    for number, row in enumerate(rare):
        m.sources[row] = f"source {number % (FEWEST_SOURCES - 1)}"
    assert smallest().judge(m).n_defined == 120
    m.sources[rare[0]] = "another source"
    assert smallest().judge(m).n_defined == 150


def test_the_verdict_is_undefined_if_too_few_texts_remain() -> None:
    check = smallest(at_least=0.01, severity="gate")
    record = check.judge(with_classes((40, 39, *(7,) * 3)))  # 79 of 100 remain
    assert (record.verdict, record.blocks, record.n_defined) == ("undefined", True, 79)
    assert "'class 2', 'class 3', 'class 4' are left out: each of these classes is" in record.note
    assert check.judge(with_classes((40, 40, *(5,) * 4))).verdict == "pass"  # 80 of 100 remain


def test_the_verdict_is_undefined_if_only_one_class_remains() -> None:
    record = smallest(at_least=0.01, severity="gate").judge(with_classes((95, 5)))
    assert (record.verdict, record.value, record.blocks) == ("undefined", None, True)
    assert record.undefined == {
        "their class is not predicted for at least 10 texts (texts of one source count once)": 5,
        "no other class is predicted for at least 10 texts (texts of one source count once)": 95,
    }
    assert "the same for every text" not in record.note


def test_texts_with_equal_weights_count_as_unchanged_in_their_class() -> None:
    m = with_classes((40, 40))
    equal = np.flatnonzero(m.predicted == 1)[:30]
    expected = by_definition(m, "logits")
    for column in ("logits", "probabilities"):
        m.scalars[f"rearrangement.{column}"][equal] = np.nan
    for row in equal:
        m.vectors["rearrangement.centred_logits"][row] = np.full(32, np.nan)
    record = smallest("logits").judge(m)
    assert record.details[SMALLEST] == "class 1"
    assert record.details["mean where 'class 0' is predicted"] == pytest.approx(expected[0])
    assert record.value is not None
    assert record.value < 0.5 * expected[1]
    assert "30 texts whose attention weights are all equal count as unchanged" in record.note
    for column in ("logits", "probabilities"):
        m.scalars[f"rearrangement.{column}"][:] = np.nan
    assert smallest("logits").judge(m).undefined == {"all attention weights are equal": 80}


def test_without_decisions_the_value_and_the_texts_are_those_of_all_texts() -> None:
    m = with_classes((40, 40))
    m.no_decision = "the target is a score without a threshold"
    record = smallest().judge(m)
    mean = TotalEffect(on="standardised", classes="as_sampled", severity="report").judge(m)
    assert record.value == pytest.approx(mean.value)
    assert SMALLEST not in record.details
    assert record.details.keys() == mean.details.keys()
    for text in ("title", "question", "how_to_read", "when_failed", "statistic", "value_name", "in_words"):
        assert getattr(record, text) == getattr(mean, text), text
    assert (record.check, record.parameters["classes"]) == ("total_effect.standardised.smallest", "smallest")
    assert record.note == (
        "the value is the index of all texts, not the smallest index of a class, because the target is a score without "
        "a threshold"
    )
    bags = replace(m, unit_names=UnitNames(unit="patch", row="slide"))
    named = smallest().judge(bags)
    assert named.note.startswith("the value is the index of all slides")
    assert "the attention weights are shuffled over the patches" in named.how_to_read


def test_the_order_of_the_rows_does_not_matter() -> None:
    m = with_classes((30, 30, 30))
    first, again = smallest().judge(m), smallest().judge(reordered(m, np.random.default_rng(0).permutation(90)))
    assert again.value == pytest.approx(first.value, abs=1e-12)
    assert again.interval is not None
    assert first.interval is not None
    assert (again.interval.low, again.interval.high) == pytest.approx((first.interval.low, first.interval.high))


def test_it_has_neither_numbers_per_row_to_compare_nor_a_confidence_sequence() -> None:
    m = with_classes((40, 40))
    with pytest.raises(CheckError, match="smallest index of a class"):
        smallest().linearised_values(m)
    record = dataclasses.replace(smallest(at_least=0.1, severity="gate"), sampling="sequential").judge(m)
    assert "because the predicted classes are known only after measuring" in record.note


def test_an_unknown_value_of_classes_is_refused() -> None:
    with pytest.raises(CheckError, match="unknown classes 'smalest'"):
        checks.TotalEffect(classes="smalest", severity="report")  # type: ignore[arg-type]
