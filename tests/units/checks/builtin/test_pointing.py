"""The pointing check equals its definition, and does not change where it must not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.checks.builtin import pointing as check
from attnaudit.checks.builtin.class_weights import Classes
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.instances import Instance
from attnaudit.measures import token_effects
from attnaudit.records.check_records import NO_BETTER
from tests.strategies import seeds
from tests.units.checks.synthetic_measurements import measured, set_effects

Row = np.ndarray


def plain(rows: Sequence[tuple[Row, Row]], weights: Sequence[float] | None = None) -> tuple[float, float, float]:
    """Return C, c(α) and c(uniform) of weighted rows of (attention, effects), as they are defined."""
    weight = attention = uniform = 0.0
    for (shares, signed), times in zip(rows, weights or [1.0] * len(rows), strict=True):
        e = [abs(float(x)) for x in signed]
        if len(e) < 2 or not any(e):
            continue
        length, m = math.sqrt(sum(x * x for x in e)), times * max(e)
        weight += m
        attention += m * sum(w * x for w, x in zip(shares, e, strict=True)) / length / math.sqrt(sum(shares**2))
        uniform += m * sum(e) / length / math.sqrt(len(e))
    attention, uniform = attention / weight, uniform / weight
    return (attention - uniform) / (1 - uniform), attention, uniform


def plain_share(rows: Sequence[tuple[Row, Row]], weights: Sequence[float] | None = None, limit: float = 0.25) -> float:
    """Return the weighted share of the texts whose c_x is at least the limit, by its definition."""
    pointed = stakes = 0.0
    for (shares, signed), times in zip(rows, weights or [1.0] * len(rows), strict=True):
        e = np.abs(signed)
        if len(e) < 2 or not e.any():
            continue
        uniform = e.sum() / np.linalg.norm(e) / math.sqrt(len(e))
        own = float(shares @ e) / float(np.linalg.norm(e) * np.linalg.norm(shares))
        stake = times * e.max() * (1 - uniform)
        stakes += stake
        pointed += stake if own - uniform >= limit * (1 - uniform) else 0.0
    return pointed / stakes


def balanced(classes: Sequence[int]) -> list[float]:
    """Return the weights that give every class the same total weight."""
    counts = {one: list(classes).count(one) for one in classes}
    return [1 / counts[one] for one in classes]


def rows_of(m: Measurements, kind: str = "held") -> list[tuple[Row, Row]]:
    return list(zip(m.vectors["attention"], m.vectors[f"token_effect.{kind}"], strict=True))


def with_rows(
    rows: Sequence[tuple[Row, Row]], *, classes: Sequence[int] | None = None, labels: Sequence[int] | None = None
) -> Measurements:
    """Return measurements of these rows of (attention, effects)."""
    m = Measurements(
        model="model",
        data="data",
        seed=0,
        classes=("negative", "positive"),
        instances=[Instance(id=f"{i:04d}", text=f"t {i}") for i in range(len(rows))],
        sources=[f"{i:04d}" for i in range(len(rows))],
        tokens=[[f"w{j}" for j in range(len(weights))] for weights, _ in rows],
        labels=np.array(labels if labels is not None else [-1] * len(rows), dtype=np.int64),
        predicted=np.array(classes if classes is not None else [0] * len(rows), dtype=np.int64),
        vectors={"attention": [weights for weights, _ in rows]},
        per_token={"attention"},
    )
    m.scalars["attention.max"] = np.array([weights.max() for weights, _ in rows])
    for kind in ("held", "held.logits", "live", "live.logits"):
        set_effects(m, kind, [effects for _, effects in rows])
    return m


def value(rows: Sequence[tuple[Row, Row]]) -> float:
    found = checks.Pointing(severity="report").judge(with_rows(rows)).value
    assert found is not None
    return found


@st.composite
def some_rows(draw: st.DrawFn, least: int = 2) -> list[tuple[Row, Row]]:
    """Attention and signed effects of several texts, some of them without effects or with idle tokens."""
    random = np.random.default_rng(draw(seeds))
    rows = []
    for _ in range(draw(st.integers(least, 8))):
        n = int(random.integers(2, 9))
        effects = random.normal(size=n) * (random.random(n) < 0.7) * random.choice([0.0, 0.001, 0.3, 1.0])
        rows.append((random.dirichlet(np.ones(n)), effects))
    rows.append((np.array([0.5, 0.3, 0.2]), np.array([0.1, -0.4, 0.0])))
    return rows


@given(some_rows())
def test_the_value_is_the_weighted_cosine_above_uniform_weights(rows: list[tuple[Row, Row]]) -> None:
    record = checks.Pointing(at_least=0.5).judge(with_rows(rows))
    expected, attention, uniform = plain(rows)
    assert record.value == pytest.approx(expected, abs=1e-9)
    assert record.details["mean cosine, weighted by the largest effect"] == pytest.approx(attention)
    assert record.details["the same with uniform weights"] == pytest.approx(uniform)
    assert record.n_defined == len(rows)  # A text without an effect counts, with no weight.
    if record.interval:
        assert record.interval.low <= record.value <= record.interval.high <= 1


def test_details_in_numbers_and_in_words() -> None:
    m = measured()
    record = checks.Pointing(at_least=0.5).judge(m)
    weights = balanced(m.labels.tolist())
    effects = [times * np.abs(e) for (_, e), times in zip(rows_of(m), weights, strict=True)]
    largest = sum(e.max() for e in effects)
    drawn = sum(float(w @ e) for w, e in zip(m.vectors["attention"], effects, strict=True)) / largest
    assert record.details[check.PRECISION] == pytest.approx(drawn)
    at_random = sum(e.mean() for e in effects) / largest
    assert record.details["the same for a token drawn at random"] == pytest.approx(at_random)
    assert f"according to attention is {drawn:.0%} of the effect of the most influential token" in record.in_words
    assert f"at random, it is {at_random:.0%}" in record.in_words
    assert record.details["value on logits"] == pytest.approx(
        plain(rows_of(m, "held.logits"), balanced(m.labels.tolist()))[0]
    )
    assert record.details["value with live attention"] == pytest.approx(plain(rows_of(m, "live"), weights)[0])
    of_class = [row for row, c in zip(rows_of(m), m.predicted, strict=True) if c == 1]
    assert record.details["value where 'positive' is predicted"] == pytest.approx(plain(of_class)[0])
    sizes = sorted((e.max() for e in effects), reverse=True)
    half = record.details["instances that carry half of the weight"]
    assert sum(sizes[:half]) >= largest / 2 > sum(sizes[: half - 1])


@pytest.mark.parametrize("measure", ["cosine", "plain", "share"])
def test_predicted_classes_are_named_if_attention_points_no_better_than_equal_weights(measure: str) -> None:
    right, wrong = (np.array(weights) for weights in ([0.8, 0.1, 0.1], [0.1, 0.1, 0.8]))
    strong, weak = np.array([8.0, 0.0, 0.0]), np.array([0.5, 0.0, 0.0])

    def details(number: int, of_weak: Row) -> dict[str, object]:
        rows = [(right, strong)] * 40 + [(of_weak, weak)] * number
        check = checks.Pointing(severity="report", measure=measure)  # type: ignore[arg-type]
        return dict(check.judge(with_rows(rows, classes=[0] * 40 + [1] * number)).details)

    assert details(30, wrong)[NO_BETTER] == "'positive'"
    assert NO_BETTER not in details(29, wrong)  # too few for a verdict on them
    assert NO_BETTER not in details(30, right)


def test_the_worst_instances_have_large_effects_that_attention_misses() -> None:
    m = measured()
    record = checks.Pointing(at_least=0.5).judge(m)
    misses = m.scalars["pointing.held.largest"] * (1 - m.scalars["pointing.held.cosine"])
    assert [one.instance for one in record.worst[:3]] == [m.ids[i] for i in np.argsort(-misses)[:3]]
    assert record.worst[0].value == pytest.approx(misses.max())
    assert record.token_columns == ["attention", "token_effect.held", "token_effect.live"]


def test_on_logits_reads_the_columns_of_logits() -> None:
    m = measured()
    record = checks.Pointing(at_least=0.5, on="logits").judge(m)
    assert record.check == "pointing.logits"
    assert record.value == pytest.approx(plain(rows_of(m, "held.logits"), balanced(m.labels.tolist()))[0])
    assert record.details["value on probabilities"] == checks.Pointing(at_least=0.5).judge(m).value
    assert record.token_columns == ["attention", "token_effect.held.logits", "token_effect.live.logits"]


@pytest.mark.parametrize("on", ["probabilities", "logits"])
@pytest.mark.parametrize("measure", ["cosine", "plain", "share"])
@pytest.mark.parametrize("labelled", ["all", "some", "none"])
def test_every_class_has_the_same_weight(on: str, measure: str, labelled: str) -> None:
    m = measured(labelled=labelled != "none")
    if labelled == "some":
        m.labels[5] = -1
    classes = (m.labels if labelled == "all" else m.predicted).tolist()
    rows = rows_of(m, "held" if on == "probabilities" else "held.logits")
    reference = plain_share if measure == "share" else lambda *of: plain(*of)[int(measure == "plain")]
    check = checks.Pointing(severity="report", on=on, measure=measure)  # type: ignore[arg-type]
    record = check.judge(m)
    assert record.value == pytest.approx(reference(rows, balanced(classes)), abs=1e-12)
    missing = {"all": 0, "some": 1, "none": len(m)}[labelled]
    assert (f"{missing} of 120 rows have no label" in record.note) == (missing > 0)
    sampled = replace(check, classes="as_sampled").judge(m)
    assert sampled.value == pytest.approx(reference(rows), abs=1e-12)
    assert sampled.value != record.value
    assert sampled.check == f"{record.check}.as_sampled"
    assert "label" not in sampled.note
    for one in (record, sampled):
        assert one.interval.low < one.value < one.interval.high


@given(some_rows(least=4), st.integers(1, 4), st.sampled_from(["cosine", "plain", "share"]))
def test_copies_of_the_rows_of_a_class_do_not_matter(rows: list[tuple[Row, Row]], copies: int, measure: str) -> None:
    labels = [i % 2 for i in range(len(rows))]
    first = [row for row, label in zip(rows, labels, strict=True) if label == 0]
    check = checks.Pointing(severity="report", measure=measure)  # type: ignore[arg-type]
    value = check.judge(with_rows(rows, labels=labels)).value
    more = check.judge(with_rows([*rows, *first * copies], labels=[*labels, *[0] * len(first) * copies])).value
    assert more == pytest.approx(value, abs=1e-9)


@given(some_rows(), st.integers(1, 30))
def test_the_plain_cosine_ignores_tokens_without_weight_and_effect(rows: list[tuple[Row, Row]], count: int) -> None:
    plain_cosine = checks.Pointing(severity="report", measure="plain")
    record = plain_cosine.judge(with_rows(rows))
    assert record.value == pytest.approx(plain(rows)[1], abs=1e-9)
    assert {one.name: one.value for one in record.references}["uniform"] == pytest.approx(plain(rows)[2])
    assert record.details["cosine above uniform weights"] == pytest.approx(plain(rows)[0])
    longer = [(np.pad(weights, (0, count)), np.pad(effects, (0, count))) for weights, effects in rows]
    assert plain_cosine.judge(with_rows(longer)).value == pytest.approx(record.value, abs=1e-12)


@pytest.mark.parametrize("length", [4, 20, 400])
def test_half_of_the_evidence_has_the_same_plain_cosine_in_texts_of_any_length(length: int) -> None:
    weights, effects = np.zeros(length), np.zeros(length)
    weights[0], effects[:2] = 1.0, 0.3
    record = checks.Pointing(at_least=0.83, measure="plain", on="logits").judge(with_rows([(weights, effects)] * 50))
    assert record.check == "pointing.logits.plain"
    assert record.value == pytest.approx(math.sqrt(0.5))
    assert record.verdict == "fail"


def test_texts_whose_tokens_have_equal_effects_count_in_the_plain_cosine() -> None:
    weights, effects = np.array([0.5, 0.3, 0.2]), np.full(3, 0.4)
    m = with_rows([(weights, effects)] * 9)
    assert checks.Pointing(at_least=0.5).judge(m).verdict == "undefined"
    expected = weights.sum() / math.sqrt(3) / np.linalg.norm(weights)
    assert checks.Pointing(at_least=0.5, measure="plain").judge(m).value == pytest.approx(expected)


def test_the_share_is_that_of_the_texts_on_which_attention_points() -> None:
    """Attention is right on the first texts and equally spread on the others, which have more weight."""
    cue = np.array([0.0, 0.4, 0.0, 0.0])
    right, flat = (np.array([0.02, 0.94, 0.02, 0.02]), cue), (np.full(4, 0.25), 2 * cue)
    m = with_rows([right] * 60 + [flat] * 40)
    record = checks.Pointing(at_least=0.5, measure="share").judge(m)
    assert record.value == pytest.approx(60 / 140)
    assert record.check == "pointing.probabilities.share"
    assert record.interval.low < 60 / 140 < record.interval.high
    assert record.worst[0].value == pytest.approx(0.8 * 0.5)
    assert record.details["cosine above uniform weights"] == checks.Pointing(at_least=0.5).judge(m).value
    half = checks.Pointing(at_least=0.5).judge(m).details
    name = "share of the texts on which the cosine is at least a quarter of the way from equal weights to 1"
    assert half[name] == record.value
    with pytest.raises(CheckError, match=r"at_least is 1\.2"):
        checks.Pointing(at_least=1.2, measure="share")


@pytest.mark.parametrize("classes", ["balanced", "as_sampled"])
def test_the_words_on_the_share_name_its_weights_and_the_share_without_them(classes: Classes) -> None:
    """Attention is right only on the rare class, whose effects are three times as large."""
    cue, attention = np.array([0.0, 1.0, 0.0, 0.0]), np.array([0.02, 0.94, 0.02, 0.02])
    rows = [(attention, 3 * cue)] * 10 + [(attention[::-1], cue)] * 90 + [(attention, 0 * cue)] * 5
    m = with_rows(rows, labels=[1] * 10 + [0] * 95)
    record = checks.Pointing(at_least=0.5, measure="share", classes=classes).judge(m)
    assert record.value == pytest.approx(0.76 if classes == "balanced" else 0.25, abs=0.01)
    assert record.details[check.UNWEIGHTED] == pytest.approx(0.1)  # The texts without effects do not count.
    assert "If every text counts the same, it is 10%." in record.in_words
    assert ("every class counts the same" in record.in_words) == (classes == "balanced")
    words = checks.Pointing(at_least=0.5, measure="plain", classes=classes).judge(m).in_words
    assert words.endswith("attention points at the influential tokens on only 10% of the texts.")


def test_a_text_at_exactly_a_quarter_of_the_way_counts() -> None:
    effects = np.array([1.0, 0.0])
    quarter = np.sqrt(0.5) + (1 - np.sqrt(0.5)) / 4  # the cosine a quarter of the way from uniform weights to 1
    attention = np.array([quarter, np.sqrt(1 - quarter**2)])
    for tilt, expected in ((0.0, 1.0), (1e-6, 0.0)):
        weights = attention + np.array([-tilt, tilt])
        record = checks.Pointing(at_least=0.5, measure="share").judge(
            with_rows([(weights / weights.sum(), effects)] * 9)
        )
        assert record.value == expected


@pytest.mark.parametrize("on", ["probabilities", "logits"])
@pytest.mark.parametrize("right", [True, False])
def test_a_share_of_all_or_no_texts_allows_for_unseen_texts(on: str, right: bool) -> None:
    weights, effects = np.array([0.9, 0.05, 0.05]), np.array([1.0, 0.0, 0.0] if right else [0.0, 1.0, 0.0])
    widths = []
    for rare, common in ((40, 40), (40, 400), (4, 400)):
        random = np.random.default_rng(0)
        rows = [(weights, effects * size) for size in random.uniform(0.5, 1, rare + common)]
        m = with_rows(rows, labels=[0] * rare + [1] * common)
        record = checks.Pointing(at_least=0.5, measure="share", on=on).judge(m)  # type: ignore[arg-type]
        assert record.value == (1.0 if right else 0.0)
        low, high = record.interval.low, record.interval.high
        assert (low, high)[right] == record.value
        widths.append(high - low)
        # A text that was missed with probability 2.5% in the rare class has at most this share of it.
        assert widths[-1] >= (1 - 0.025 ** (1 / rare)) / 2
    assert widths[0] == pytest.approx(
        widths[1], rel=0.1
    )  # More texts of the common class tell nothing of the rare one.
    assert widths[2] > 2 * widths[1]
    assert "a rare class has as much weight as the others, but its rows give only as much information as" in record.note


def test_the_note_names_classes_without_rows() -> None:
    rows = [(np.array([0.4, 0.6]), np.array([0.1, -0.3]))] * 20
    for labels, words in (([1] * 20, "no row has the label 'negative'"), (None, "no row is predicted 'positive'")):
        m = with_rows(rows, labels=labels)
        assert words in checks.Pointing(at_least=0.5).judge(m).note
        assert checks.Pointing(at_least=0.5, classes="as_sampled").judge(m).note == ""


def test_a_class_with_one_source_leaves_no_interval() -> None:
    random = np.random.default_rng(0)
    rows = [(random.dirichlet(np.ones(4)), random.random(4)) for _ in range(60)]
    record = checks.Pointing(at_least=0.5).judge(with_rows(rows, labels=[0] * 59 + [1]))
    assert record.value is not None
    assert (record.interval, record.verdict) == (None, "inconclusive")
    assert "all rows of the class 'positive' have the same source" in record.reason + record.note
    sampled = checks.Pointing(at_least=0.5, classes="as_sampled").judge(with_rows(rows, labels=[0] * 59 + [1]))
    assert sampled.interval is not None


def test_shapley_values_are_compared_on_request() -> None:
    m = measured()
    one = checks.Pointing(at_least=0.5, shapley_orders=20)
    pointing = ("pointing.held", "pointing.live", "pointing.shapley.20")
    assert one.needs() == (*pointing, "token_effect.held", "token_effect.shapley.20")
    assert one.id == "pointing.probabilities.shapley.20"
    record = one.judge(m)
    assert record.value == checks.Pointing(at_least=0.5).judge(m).value
    assert record.details["value with Shapley values"] == pytest.approx(
        plain(rows_of(m, "shapley.20"), balanced(m.labels.tolist()))[0]
    )
    assert 0 < record.details["cosine of the effects and Shapley values"] < 1
    set_effects(m, "shapley.20", [2 * e for _, e in rows_of(m)])
    assert one.judge(m).details["cosine of the effects and Shapley values"] == pytest.approx(1)


def test_arguments_are_validated() -> None:
    with pytest.raises(CheckError, match=r"shapley_orders is -1; expected a whole number from 0 to 100,000"):
        checks.Pointing(at_least=0.5, shapley_orders=-1)
    with pytest.raises(CheckError, match=r"unknown on 'logit'.*logits"):
        checks.Pointing(at_least=0.5, on="logit")
    with pytest.raises(CheckError, match="at_most"):
        checks.Pointing(at_most=0.5)


def test_the_check_knows_the_limits_and_columns_of_the_measure() -> None:
    assert check.MOST_ORDERS == token_effects.MOST_ORDERS
    assert {of: suffix for suffix, of in token_effects.OUTPUTS.items()} == check.SUFFIXES


# --- undefined --------------------------------------------------------------------------------------------------------


def test_without_any_effect_the_value_is_undefined() -> None:
    record = checks.Pointing(at_least=0.5).judge(with_rows([(np.array([0.4, 0.6]), np.zeros(2))] * 20))
    assert (record.verdict, record.value, record.details) == ("undefined", None, {})
    assert record.undefined == {"replacing tokens does not change the output": 20}


def test_with_equal_effects_everywhere_the_value_is_undefined_and_says_why() -> None:
    record = checks.Pointing(at_least=0.5).judge(with_rows([(np.array([0.4, 0.6]), np.array([0.1, -0.1]))] * 20))
    assert (record.verdict, record.value) == ("undefined", None)
    assert "all tokens have the same effect" in record.note


def test_there_is_no_interval_if_few_texts_have_unequal_effects() -> None:
    rows = [(np.array([0.4, 0.6]), np.array([0.1, -0.1]))] * 40 + [(np.array([0.4, 0.6]), np.array([0.5, 0.1]))]
    record = checks.Pointing(at_least=-1).judge(with_rows(rows))
    assert record.value is not None
    assert record.interval is None
    assert record.verdict == "inconclusive"
    assert "too few texts have effects that differ between tokens" in record.reason + record.note


def test_perfect_pointing_allows_for_unseen_texts() -> None:
    random = np.random.default_rng(0)
    rows = [(w, w) for w in (random.dirichlet(np.ones(5)) for _ in range(50))]
    record = checks.Pointing(at_least=0.5).judge(with_rows(rows))
    assert record.value == pytest.approx(1)
    assert record.interval.low <= record.value <= record.interval.high == pytest.approx(1)
