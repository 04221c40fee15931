"""Sequential gates: which checks have a confidence sequence, and what it does to their records."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.checks.policies.policy import from_tables
from attnaudit.checks.sequential import NO_SEQUENCE, ROWS, SPENT_ERROR, is_settled, judged_by_sequence
from attnaudit.engine.joined_measurements import joined
from attnaudit.errors import CheckError
from attnaudit.statistics.confidence_sequence import EnclosedSequence
from attnaudit.statistics.independent_units import keyed_order
from tests.units.checks.synthetic_measurements import measured

#: A check with a threshold -> whether it has a sequence.
KNOWN = {
    checks.Agreement(at_least=0.1): True,
    checks.InfluenceEntropy(at_most=0.9): True,
    checks.PermutationFragility(at_least=0.1): True,
    checks.PermutationFragility(measure="f1_drop", at_least=0.1): False,
    checks.Comprehensiveness(against="random", at_least=0.1): True,
    checks.Comprehensiveness(against="signed_loo", at_least=0.1): False,
    checks.AdversarialDivergence(at_most=0.5): False,
    checks.TotalEffect(on="standardised", at_least=0.1): True,
    checks.TotalEffect(on="probabilities", classes="as_sampled", at_least=0.1): True,
    checks.TotalEffect(on="logits", at_least=0.1): False,
    checks.TotalEffect(on="standardised", classes="smallest", at_least=0.1): False,
    checks.Pointing(on="logits", measure="share", at_least=0.1): True,
    checks.Pointing(on="logits", measure="plain", at_least=0.1): True,
    checks.Pointing(on="logits", measure="cosine", at_least=0.1): True,
    checks.Pointing(on="probabilities", measure="share", at_least=0.1): True,
    checks.HeldSufficiency(at_least=0.1): True,
    checks.HeldSufficiency(classes="as_sampled", at_least=0.1): True,
}
SEQUENTIAL = [check for check, has in KNOWN.items() if has]


def name_of(check):
    return check.id


def sequential(check):
    return dataclasses.replace(check, sampling="sequential")


def betting(sequence):
    return (sequence.lower, sequence.upper) if isinstance(sequence, EnclosedSequence) else (sequence,)


@pytest.mark.parametrize("check", KNOWN, ids=name_of)
def test_a_check_has_a_sequence_or_says_why_not(check):
    m = measured(n=600)
    record, usual = sequential(check).judge(m), check.judge(m)
    assert judged_by_sequence(record) == KNOWN[check]
    assert not judged_by_sequence(usual)
    assert record.value == usual.value
    if KNOWN[check]:
        assert record.interval.low <= record.value <= record.interval.high
        assert (record.details[ROWS] is None) == (record.verdict == "inconclusive")
    else:
        assert record.interval == usual.interval
        assert "valid only for a fixed number of rows: there is no confidence sequence, because " in record.note
        assert ROWS not in record.details


@pytest.mark.parametrize("check", SEQUENTIAL, ids=name_of)
def test_more_rows_add_pairs_and_change_none(check):
    m = measured(n=600)
    first = np.zeros(600, dtype=bool)
    first[keyed_order(m.ids, m.seed)[:400]] = True
    part, whole = (check.row_sequence(one) for one in (m.only(first), m))
    for some, all_of_them in zip(betting(part.sequence), betting(whole.sequence), strict=True):
        count = len(some)
        assert some.unbet < count < len(all_of_them)
        assert np.allclose(some.above, all_of_them.above[:count], rtol=1e-9)
        assert np.allclose(some.below, all_of_them.below[:count], rtol=1e-9)
        assert some.bounds == all_of_them.bounds


def test_the_record_shows_after_how_many_rows_of_the_order_the_gate_settled():
    m = measured(n=600)
    check = sequential(checks.Agreement(at_least=0.1))
    record = check.judge(m, gated=2)
    assert record.verdict == "pass"
    assert is_settled(record)
    assert 30 <= record.details[ROWS] < 600
    assert record.details[SPENT_ERROR] == pytest.approx(0.025)
    chosen = np.zeros(600, dtype=bool)
    chosen[keyed_order(m.ids, m.seed)[: record.details[ROWS]]] = True
    assert is_settled(check.judge(m.only(chosen), gated=2))
    chosen[keyed_order(m.ids, m.seed)[record.details[ROWS] - 1]] = False
    assert not is_settled(check.judge(m.only(chosen), gated=2))


def test_a_gate_that_does_not_settle_is_inconclusive_and_blocks():
    m = measured(n=600)
    value = checks.Agreement(at_least=0.1).judge(m).value
    record = sequential(checks.Agreement(at_least=value)).judge(m)
    assert (record.verdict, record.blocks, is_settled(record)) == ("inconclusive", True, False)
    assert record.details[ROWS] is None


@pytest.mark.parametrize(
    ("measurements", "check", "reason"),
    [
        (measured(sources=200), checks.Agreement(at_least=0.1), "rows may share a source"),
        (measured(), checks.Agreement(at_least="floor + 0.1"), "relative to references"),
        (measured(labelled=False), checks.TotalEffect(at_least=0.1), "rows have no label"),
        (measured(n=40), checks.TotalEffect(at_least=0.1), "too few rows"),
        (measured(), checks.TotalEffect(on="logits", at_least=0.1), "the change of the logits"),
        (measured(), checks.PermutationFragility(measure="f1_drop", at_least=0.1), NO_SEQUENCE),
        (measured(labelled=False), checks.HeldSufficiency(at_least=0.1), "rows have no label"),
        (measured(n=40), checks.HeldSufficiency(at_least=0.1), "too few rows"),
    ],
)
def test_the_reason_why_there_is_no_sequence(measurements, check, reason):
    record = sequential(check).judge(measurements)
    assert reason in record.note
    assert not is_settled(record)


def test_rows_that_repeat_another_one_do_not_settle_a_gate():
    m = measured(n=600)
    m.sources = ["one", "other"] * 300
    assert len(checks.Agreement(at_least=0.1).row_sequence(m).sequence) == 2


def test_fewer_than_30_different_rows_are_inconclusive_however_often_they_are_repeated():
    m, check = measured(n=600), sequential(checks.Agreement(at_least=-0.99))
    m.sources = [str(row % 29) for row in range(600)]
    record = check.judge(m)
    assert (record.verdict, record.interval, record.blocks) == ("inconclusive", None, True)
    assert "600 instances have a value, but only 29 of them are different" in record.reason
    m.sources = [str(row % 30) for row in range(600)]
    assert check.judge(m).verdict == "pass"


def test_a_policy_sets_the_sampling_of_all_checks():
    table = {"name": "Agreement", "at_least": 0.1}
    (check,) = from_tables([table], where="policy", defaults={"sampling": "sequential"})
    assert check.parameters["sampling"] == "sequential"
    assert "sampling" not in from_tables([table], where="policy")[0].parameters
    with pytest.raises(CheckError, match="unknown sampling 'blocks'"):
        from_tables([table], where="policy", defaults={"sampling": "blocks"})


def test_joined_measurements_are_those_of_all_instances():
    m = measured()
    chosen = np.arange(120) % 3 == 0
    again = joined(m.only(chosen), m.only(~chosen))
    assert again.ids == m.ids
    assert np.array_equal(again.labels, m.labels)
    assert all(np.array_equal(again.scalars[name], m.scalars[name], equal_nan=True) for name in m.scalars)
    assert all(np.array_equal(a, b) for a, b in zip(again.vectors["attention"], m.vectors["attention"], strict=True))
