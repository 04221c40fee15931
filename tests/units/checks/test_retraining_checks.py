"""The records of the checks that train copies, on synthetic measurements of the copies."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import f1_score

from attnaudit import checks
from attnaudit.checks.builtin.retrained_models import decides_better_than_a_constant, measure_of
from attnaudit.checks.policies.policy import from_tables, to_table
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import CheckError
from attnaudit.retraining import Retraining
from tests.units.checks.synthetic_measurements import measured

EVERY = (
    checks.RetrainedUniform(),
    checks.RetrainedUniform(seeds=1, train="a.csv", dev="b/c.csv", at_least=0.01, severity="gate"),
    checks.SeedVariance(),
    checks.SeedVariance(seeds=2, at_most="0.5 * uniform", severity="gate"),
    checks.GuidedMLP(),
    checks.GuidedMLP(adversary=0.001, divergence="jsd", seeds=2),
    checks.TrainedAdversary(),
    checks.TrainedAdversary(weight=0.05, divergence="jsd", frozen=True, seeds=2, sweep=True, compare_seeds=3),
    checks.TrainedAdversary(compare_seeds=2, at_most="2 * seeds", severity="gate"),
)
each = pytest.mark.parametrize("check", EVERY, ids=range(len(EVERY)))


def with_copies(check: checks.Check, *, classes: int = 2, labelled: bool = True) -> Measurements:
    """Return synthetic measurements of all copies that the check trains."""
    m = measured(150, labelled=labelled)
    random = np.random.default_rng(5)
    n = len(m)
    if classes > 2:
        m.classes = tuple(f"c{i}" for i in range(classes))
        m.labels = random.integers(0, classes, n)
        m.predicted = np.where(random.random(n) < 0.8, m.labels, random.integers(0, classes, n))
    for need in check.needs():
        noise = random.random(n) < 0.25
        m.scalars[f"{need}.predicted"] = np.where(noise, random.integers(0, classes, n), m.predicted).astype(float)
        m.scalars[f"{need}.jsd"] = random.beta(2, 9, n)
        m.scalars[f"{need}.tvd"] = random.beta(1, 20, n)
        m.scalars[f"{need}.jsd"][0] = np.nan
    return m


def f1(m: Measurements, predicted: np.ndarray) -> float:
    if len(m.classes) == 2:
        return float(f1_score(m.labels, predicted))
    return float(f1_score(m.labels, predicted, average="macro"))


@each
def test_a_record_is_complete_and_informational_by_default(check: checks.Check) -> None:
    record = check.judge(with_copies(check))
    assert record.value is not None
    assert record.interval is not None
    assert record.interval.low <= record.value <= record.interval.high
    assert record.family == "retraining"
    assert "The check trains" in record.why
    assert record.severity == "gate" or not record.blocks
    assert all(series.y for chart in record.charts for series in chart.series)


@each
def test_a_policy_table_gives_the_same_check(check: checks.Check) -> None:
    (read,) = from_tables([to_table(check)], where="policy")
    assert read == check
    assert all("/" not in need for need in read.needs())


def test_the_default_arguments() -> None:
    (uniform, seeds) = from_tables([{"name": "RetrainedUniform"}, {"name": "SeedVariance"}], where="policy")
    assert (uniform.severity, len(uniform.needs()), len(seeds.needs())) == ("report", 4, 8)
    assert uniform.needs()[-1] == seeds.needs()[0]
    assert uniform.needs()[0] == "retrained.attention=uniform"
    assert seeds.needs()[0] == "retrained.seed=1"
    assert checks.TrainedAdversary(weight=0.02, frozen=True).needs() == (
        "retrained.attention=adversary,weight=0.02,frozen=True",
    )
    assert len({need for check in EVERY[4:6] for need in check.needs()}) == 9 + 6 + 2 + 2 - 6


@pytest.mark.parametrize("classes", [2, 4])
def test_the_value_is_f1_of_the_model_minus_f1_of_the_uniform_copies(classes: int) -> None:
    check = checks.RetrainedUniform()
    m = with_copies(check, classes=classes)
    *scores, with_attention = [f1(m, m.scalars[f"{need}.predicted"]) for need in check.needs()]
    record = check.judge(m)
    assert record.details["F1, retrained with attention"] == pytest.approx(with_attention)
    assert record.value == pytest.approx(f1(m, m.predicted) - np.mean(scores))
    assert record.details["F1, uniform"] == pytest.approx(np.mean(scores))
    assert record.details["accuracy, model"] == pytest.approx((m.predicted == m.labels).mean())
    assert record.details["F1, uniform, lowest to highest"] == f"{min(scores):.3f} to {max(scores):.3f}"


@pytest.mark.parametrize("classes", [2, 4])
def test_guided_mlps_are_compared_with_uniform_ones(classes: int) -> None:
    check = checks.GuidedMLP(seeds=2, adversary=0.01)
    m = with_copies(check, classes=classes)

    def of(**how: object) -> float:
        names = [f"retrained.{Retraining(encoder='mlp', seed=s, **how).text}.predicted" for s in (0, 1)]  # type: ignore[arg-type]
        return float(np.mean([f1(m, m.scalars[name]) for name in names]))

    record = check.judge(m)
    assert record.value == pytest.approx(of(attention="base") - of(attention="uniform"))
    assert record.details["F1, its own"] == pytest.approx(of())
    assert record.details["F1, adversary"] == pytest.approx(of(attention="adversary", weight=0.01))
    assert record.details["F1, audited model"] == pytest.approx(f1(m, m.predicted))


def test_without_labels_f1_is_undefined() -> None:
    for check in (checks.RetrainedUniform(), checks.GuidedMLP()):
        record = check.judge(with_copies(check, labelled=False))
        assert record.verdict == "undefined"
        assert "label" in record.note
        assert record.undefined == {"no label": 150}


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("random", [False, True])
def test_the_difference_is_undefined_if_the_copy_with_attention_learned_nothing(classes: int, random: bool) -> None:
    check = checks.RetrainedUniform(seeds=2, at_least=0.01, severity="gate")
    m = with_copies(check, classes=classes)
    *uniform, control = [f"{need}.predicted" for need in check.needs()]
    for name in uniform:
        m.scalars[name] = np.zeros(len(m))
    m.scalars[control] = m.labels.astype(float)
    assert check.judge(m).verdict == "pass", "uniform copies learned nothing, but a copy with attention did"
    drawn = np.random.default_rng(0).integers(0, classes, len(m))
    m.scalars[control] = drawn.astype(float) if random else np.ones(len(m))
    record = check.judge(m)
    assert (record.verdict, record.value, record.blocks) == ("undefined", None, True)
    assert sum(record.undefined.values()) == len(m)
    assert "decide no better than a constant class (retrained with attention)" in record.note


def test_guided_mlps_are_not_compared_if_no_mlp_learned_anything() -> None:
    check = checks.GuidedMLP(seeds=2, at_least=-0.1, severity="gate")
    m = with_copies(check)
    for need in check.needs():
        m.scalars[f"{need}.predicted"] = np.ones(len(m))
    record = check.judge(m)
    assert (record.verdict, record.value) == ("undefined", None)
    assert "(guided, uniform, its own)" in record.note
    for kind in check.mlps:
        learned = with_copies(check)
        for need in check.needs():
            if need not in {measure_of(mlp) for mlp in check.mlps[kind]}:
                learned.scalars[f"{need}.predicted"] = np.ones(len(learned))
        assert check.judge(learned).value is not None, kind


def test_a_copy_learned_something_if_its_balanced_accuracy_is_above_that_of_a_constant() -> None:
    m = measured(400, sources=40)
    m.labels = (np.arange(400) % 10 == 0).astype(np.int64)  # a constant class is correct in 90% of the cases

    def learned(predicted: np.ndarray) -> bool:
        columns = predicted.reshape(len(m), -1).astype(float)
        return decides_better_than_a_constant(m, columns, confidence=0.95)

    assert learned(m.labels)
    assert not learned(1 - m.labels)
    assert not learned(np.zeros(400))
    found = m.labels * (np.arange(400) % 20 == 0)  # half of the rare class, and nothing else: an accuracy of 95%
    assert learned(found)
    assert learned(np.column_stack([found, np.zeros(400)]))
    one = m.labels * (np.arange(400) == 0)
    assert not learned(one)
    m.labels = np.zeros(400, dtype=np.int64)
    assert not learned(m.labels), "with a single class, a constant is always correct"


def test_an_adversary_is_reported_with_its_tvd_and_the_divergence_between_seeds() -> None:
    check = checks.TrainedAdversary(compare_seeds=2, seeds=2, at_most="2 * seeds")
    m = with_copies(check)
    names = [f"retrained.{adversary.text}" for adversary in check.adversaries()]
    seeds = np.nanmean([m.scalars[f"retrained.seed={s}.jsd"] for s in (1, 2)])
    record = check.judge(m)
    assert record.value == pytest.approx(np.nanmean([m.scalars[f"{name}.jsd"] for name in names]))
    assert record.details["mean TVD of the output"] == pytest.approx(
        np.mean([m.scalars[f"{name}.tvd"] for name in names])
    )
    assert record.details["mean JSD as a multiple of that between seeds"] == pytest.approx(record.value / seeds)
    assert record.requirement is not None
    assert record.requirement.value == pytest.approx(2 * seeds)
    assert record.undefined == {"no attention to compare": 1}


def test_a_sweep_charts_one_point_for_each_weight() -> None:
    check = checks.TrainedAdversary(sweep=True, weight=0.01)
    m = with_copies(check)
    (chart,) = check.judge(m).charts
    points = sorted((m.scalars[f"{need}.tvd"].mean(), np.nanmean(m.scalars[f"{need}.jsd"])) for need in check.needs())
    assert chart.series[0].x == pytest.approx([x for x, _ in points])
    assert chart.series[0].y == pytest.approx([y for _, y in points])
    assert [need.partition("weight=")[2] for need in check.needs()] == ["0.001", "0.003", "0.01", "0.03", "0.1"]


def test_the_reference_of_seed_variance_is_the_divergence_to_equal_weights() -> None:
    check = checks.SeedVariance(seeds=2)
    m = with_copies(check)
    expected = [jensenshannon(row, np.full(len(row), 1 / len(row))) ** 2 for row in m.vectors["attention"]]
    (uniform,) = check.judge(m).references
    assert uniform.value == pytest.approx(np.mean(expected[1:]))


def test_a_copy_that_could_not_be_trained_raises_the_reason() -> None:
    check = checks.TrainedAdversary()
    m = with_copies(check)
    m.facts[f"{check.needs()[0]}.refused"] = "There is no data."
    with pytest.raises(CheckError, match=r"^TrainedAdversary on model: There is no data\.$"):
        check.judge(m)


def test_an_adversary_without_a_divergence_is_only_reported() -> None:
    check = checks.TrainedAdversary(weight=0.0, at_most=0.3)
    assert not check.judge(with_copies(check)).blocks


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: checks.RetrainedUniform(seeds=0), "seeds is 0; expected a whole number from 1 to 100"),
        (lambda: checks.RetrainedUniform(seeds=2.5), "seeds is 2.5"),  # type: ignore[arg-type]
        (lambda: checks.SeedVariance(train=""), "train is ''"),
        (lambda: checks.SeedVariance(at_least=0.1), "with at_least, the check would pass in the very case"),
        (lambda: checks.RetrainedUniform(severity="gate"), "a gate needs a threshold"),
        (lambda: checks.GuidedMLP(divergence="jsd"), "Give adversary=λ"),
        (lambda: checks.GuidedMLP(adversary=-1.0), "adversary is -1; expected"),
        (lambda: checks.TrainedAdversary(divergence="kk"), "Did you mean 'kl'"),  # type: ignore[arg-type]
        (lambda: checks.TrainedAdversary(weight=-1), "weight is -1; expected"),
        (lambda: checks.TrainedAdversary(frozen="yes"), "expected true or false"),  # type: ignore[arg-type]
        (lambda: checks.TrainedAdversary(at_most="seeds"), "has no reference"),
        (
            lambda: checks.TrainedAdversary(weight=0.0, at_most=0.3, severity="gate"),
            r"^TrainedAdversary: weight is 0, so no different attention is sought, .*Give a weight above 0",
        ),
        (lambda: checks.TrainedAdversary(sweep=True, weight=0), "multiplies weight by several factors"),
    ],
)
def test_invalid_arguments_are_refused(make, message) -> None:
    with pytest.raises(CheckError, match=message):
        make()
