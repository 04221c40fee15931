"""The invariances of `TotalEffect` and `Pointing` as properties, on hand-made models, and checks without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.checks import Check
from attnaudit.data.labels import label_indices
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset
from attnaudit.research.validation.changed_adapters import with_idle_tokens, with_logits, with_reordered_classes
from attnaudit.research.validation.invariance_models import InvarianceModel, hand_made
from attnaudit.research.validation.invariances import repeated

EXACT = 1e-6
GATES = (
    checks.TotalEffect(on="standardised", severity="report"),
    checks.TotalEffect(on="logits", severity="report"),
    checks.Pointing(on="logits", severity="report"),
    checks.Pointing(on="logits", measure="plain", severity="report"),
    checks.Pointing(on="logits", measure="share", severity="report"),
)
ON_PROBABILITIES = (checks.TotalEffect(severity="report"), checks.Pointing(severity="report"))
AS_SAMPLED = tuple(dataclasses.replace(gate, classes="as_sampled") for gate in GATES)
TVD = checks.PermutationFragility(severity="report")
ERASURE = checks.Comprehensiveness(against="signed_loo", severity="report")
NEEDS = sorted({need for check in (*GATES, TVD, ERASURE) for need in check.needs()})

few = settings(max_examples=6)
class_counts = st.sampled_from([2, 3, 5])
model_seeds = st.integers(0, 2)
each_gate = pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.id)


@cache
def built(classes: int, seed: int) -> InvarianceModel:
    return hand_made(classes, seed=seed, texts=15)


def run(adapter: PooledAttentionAdapter, dataset: Dataset, needs: Sequence[str] = NEEDS) -> Measurements:
    labels = label_indices(dataset, adapter.capabilities.classes)
    return measure(adapter, dataset, needs, model="invariance", seed=0, labels=labels)[0]


@cache
def measured(classes: int, seed: int) -> Measurements:
    model = built(classes, seed)
    return run(model.adapter, model.dataset)


def value(check: Check, measurements: Measurements) -> float:
    found = check.evidence(measurements).value
    assert found is not None
    return found


def assert_same(before: Measurements, after: Measurements, allowed: float = EXACT) -> None:
    for gate in GATES:
        assert value(gate, after) == pytest.approx(value(gate, before), abs=allowed), gate.id


def most_moved(check: Check, before: Measurements, after: Sequence[Measurements]) -> float:
    return max(abs(value(check, each) - value(check, before)) for each in after)


def unlabelled(measurements: Measurements) -> Measurements:
    return dataclasses.replace(measurements, labels=np.full(len(measurements), -1))


@each_gate
def test_the_values_are_neither_0_nor_1(gate: Check) -> None:
    """Otherwise, the values would be invariant for no good reason."""
    for classes in (2, 3, 5):
        assert 0.02 < value(gate, measured(classes, 0)) < 0.98


@few
@given(class_counts, model_seeds, st.floats(0.1, 10), st.data())
def test_scale_bias_and_classes(classes: int, seed: int, scale: float, data: st.DataObject) -> None:
    model = built(classes, seed)
    size = float(np.std(measured(classes, seed).vector("logits")))
    bias = data.draw(st.lists(st.floats(-2 * size, 2 * size), min_size=classes, max_size=classes))
    order = data.draw(st.permutations(range(classes)))
    old = model.adapter.capabilities.classes
    new = {old[index]: f"new {place}" for place, index in enumerate(order)}
    changed = with_reordered_classes(with_logits(model.adapter, scale=scale, bias=bias), order, list(new.values()))
    rows = tuple(dataclasses.replace(one, label=new[str(one.label)]) for one in model.dataset.instances)
    after = run(changed, dataclasses.replace(model.dataset, instances=rows, classes=tuple(new.values())))
    assert_same(measured(classes, seed), after)


@few
@given(class_counts, model_seeds, st.data())
def test_label_shares(classes: int, seed: int, data: st.DataObject) -> None:
    """Each row of a class is repeated equally often, so the distribution of the texts of each class stays the same."""
    before = measured(classes, seed)
    times = np.array(data.draw(st.lists(st.integers(1, 6), min_size=classes, max_size=classes)))
    rows = np.arange(len(before))
    assert_same(before, repeated(before, np.repeat(rows, times[before.labels])), allowed=1e-9)
    by_prediction = unlabelled(before)
    assert_same(by_prediction, repeated(by_prediction, np.repeat(rows, times[before.predicted])), allowed=1e-9)


@few
@given(class_counts, model_seeds, st.integers(2, 4), st.randoms(use_true_random=False))
def test_rows_repeated_and_reordered(classes: int, seed: int, times: int, random: object) -> None:
    before = measured(classes, seed)
    rows = np.repeat(np.arange(len(before)), times)
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert_same(before, repeated(before, rows), allowed=1e-9)


@few
@given(class_counts, model_seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_file(classes: int, seed: int, random: object) -> None:
    model = built(classes, seed)
    rows = list(model.dataset.instances)
    random.shuffle(rows)  # type: ignore[attr-defined]
    after = run(model.adapter, dataclasses.replace(model.dataset, instances=tuple(rows)))
    assert_same(measured(classes, seed), after, allowed=1e-12)


@few
@given(class_counts, model_seeds)
def test_copies_of_rows_in_the_file(classes: int, seed: int) -> None:
    """The copies have other ids, so that other rearrangements are drawn: this moves only the standardised index."""
    model = built(classes, seed)
    copies = [dataclasses.replace(one, id=f"{one.id}-copy", text=f" {one.text}\t") for one in model.dataset.instances]
    after = run(model.adapter, dataclasses.replace(model.dataset, instances=(*model.dataset.instances, *copies)))
    for gate in GATES:
        allowed = 0.03 if gate.subject == "total_effect.standardised" else EXACT
        assert value(gate, after) == pytest.approx(value(gate, measured(classes, seed)), abs=allowed), gate.id


@few
@given(class_counts, model_seeds)
def test_negligible_weights_and_constants(classes: int, seed: int) -> None:
    model = built(classes, seed)
    assert model.moved_weights is not None
    assert model.shifted_scores is not None
    assert_same(measured(classes, seed), run(model.moved_weights, model.dataset), allowed=0.01)
    assert_same(measured(classes, seed), run(model.shifted_scores, model.dataset))


@few
@given(class_counts, model_seeds, st.sampled_from([1, 3]))
def test_idle_tokens_leave_the_cosine_alone_and_never_lower_pointing(classes: int, seed: int, count: int) -> None:
    """Uniform weights do worse with idle tokens, so attention that leaves them out is further above them."""
    model, before = built(classes, seed), measured(classes, seed)
    after = run(with_idle_tokens(model.adapter, count), model.dataset, ["pointing.held", "pointing.live"])
    for name in ("cosine", "largest"):
        column = f"pointing.held.logits.{name}"
        np.testing.assert_allclose(after.scalar(column), before.scalar(column), atol=1e-9)
    uniform = "pointing.held.logits.uniform_cosine"
    longer = np.sqrt(before.lengths / (before.lengths + count))
    np.testing.assert_allclose(after.scalar(uniform), before.scalar(uniform) * longer, atol=1e-9)
    gate = checks.Pointing(on="logits", severity="report")
    assert value(gate, after) > value(gate, before)


def test_idle_tokens_are_rearranged_like_others() -> None:
    """This is why the invariance does not apply to `TotalEffect`: rearranged weights reach the idle tokens."""
    model = built(2, 0)
    gate = checks.TotalEffect(on="logits", severity="report")
    after = run(with_idle_tokens(model.adapter, 3), model.dataset, gate.needs())
    assert abs(value(gate, after) - value(gate, measured(2, 0))) > 0.02


@pytest.mark.parametrize("check", [TVD, ERASURE, *ON_PROBABILITIES], ids=lambda check: check.id)
def test_probabilities_are_not_invariant_under_scale(check: Check) -> None:
    model = built(3, 0)
    after = [run(with_logits(model.adapter, scale=scale), model.dataset) for scale in (0.1, 10)]
    assert most_moved(check, measured(3, 0), after) > 0.02


@pytest.mark.parametrize("check", [TVD, ERASURE, *ON_PROBABILITIES], ids=lambda check: check.id)
def test_probabilities_are_not_invariant_under_bias(check: Check) -> None:
    model = built(2, 0)
    size = float(np.std(measured(2, 0).vector("logits")))
    after = [run(with_logits(model.adapter, bias=[sign * size, -sign * size]), model.dataset) for sign in (1, -1)]
    assert most_moved(check, measured(2, 0), after) > 0.02


@pytest.mark.parametrize("check", [TVD, ERASURE, *AS_SAMPLED], ids=lambda check: check.id)
def test_values_as_sampled_are_not_invariant_under_label_shares(check: Check) -> None:
    before = measured(3, 0)
    after = [repeated(before, np.repeat(np.arange(15), np.where(before.labels == label, 6, 1))) for label in range(3)]
    assert most_moved(check, before, after) > 0.01


def test_erasure_is_not_invariant_under_idle_tokens() -> None:
    model = built(3, 0)
    after = [run(with_idle_tokens(model.adapter, count), model.dataset, ERASURE.needs()) for count in (1, 3)]
    assert most_moved(ERASURE, measured(3, 0), after) > 0.02
