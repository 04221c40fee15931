"""Which differences between two policies make the new one stricter or laxer."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from attnaudit.checks.base import Check
from attnaudit.checks.policies.effective_policy import effective_policy, validation_of
from attnaudit.checks.policies.policy_diff import KINDS, SUSPECT, differences
from attnaudit.records import EffectivePolicy, Interval, PolicyException, Requirement, UnvalidatedRule
from attnaudit.statistics.verdict import blocks, decide, fail_confidence

GATE = checks.Conicity(at_most=0.5)


def diff(old: Iterable[Check], new: Iterable[Check], **options: Any) -> list[str]:
    return [f"{c.kind}: {c.subject}: {c.text}" for c in differences(effective_policy(old), effective_policy(new))]


def of(**arguments: Any) -> Check:
    return checks.UniformFragility(**{"at_least": 0.1, **arguments})


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (of(), of(at_least=0.05), "laxer: uniform_fragility.tvd: at_least changed from 0.1 to 0.05"),
        (of(at_least=0.05), of(), "stricter: uniform_fragility.tvd: at_least changed from 0.05 to 0.1"),
        (checks.Conicity(at_most=0.4), GATE, "laxer: conicity: at_most changed from 0.4 to 0.5"),
        (GATE, checks.Conicity(at_most=0.4), "stricter: conicity: at_most changed from 0.5 to 0.4"),
        (
            checks.Conicity(at_most="floor + 0.2"),
            checks.Conicity(at_most="floor + 0.3"),
            "laxer: conicity: at_most changed from 'floor + 0.2' to 'floor + 0.3'",
        ),
        (
            checks.Conicity(at_most="floor + 0.2"),
            checks.Conicity(at_most="2 * floor"),
            "compare by hand: conicity: at_most changed from 'floor + 0.2' to '2.0 * floor'",
        ),
        (
            GATE,
            checks.Conicity(at_most="floor + 0.2"),
            "compare by hand: conicity: at_most changed from 0.5 to 'floor + 0.2'",
        ),
        (of(), of(severity="report"), "laxer: uniform_fragility.tvd: is no longer a gate"),
        (
            of(severity="report"),
            of(),
            "stricter: uniform_fragility.tvd: is now a gate with at_least 0.1",
        ),
        (of(), of(confidence=0.9), "laxer: uniform_fragility.tvd: confidence changed from 0.95 to 0.9"),
        (of(), of(confidence=0.99), "stricter: uniform_fragility.tvd: confidence changed from 0.95 to 0.99"),
        (of(), of(inconclusive="warn"), "laxer: uniform_fragility.tvd: inconclusive changed from 'fail' to 'warn'"),
        (of(inconclusive="warn"), of(inconclusive="pass"), "laxer: uniform_fragility.tvd: inconclusive changed from"),
        (of(inconclusive="pass"), of(), "stricter: uniform_fragility.tvd: inconclusive changed from 'pass' to 'fail'"),
        (
            of(inconclusive="warn"),
            of(inconclusive="warn", confidence=0.99),
            "laxer: uniform_fragility.tvd: fails only if its whole 99.0000% interval is on the wrong side",
        ),
        (of(inconclusive="pass"), of(inconclusive="pass", confidence=0.9), "stricter: uniform_fragility.tvd: fails"),
        (of(), of(unseen_mixers="accept"), "laxer: uniform_fragility.tvd: now accepts models that carry information"),
        (of(unseen_mixers="accept"), of(), "stricter: uniform_fragility.tvd: no longer accepts models that carry"),
        (
            checks.RetrainedUniform(at_least=0.1, severity="gate"),
            checks.RetrainedUniform(at_least=0.1, severity="gate", seeds=1),
            "compare by hand: retrained_uniform: seeds changed from 3 to 1, so it may measure something else",
        ),
        (
            checks.RetrainedUniform(),
            checks.RetrainedUniform(seeds=1, train="mine"),
            "changed: retrained_uniform: seeds changed from 3 to 1",
        ),
        (
            of(severity="report"),
            of(severity="report", at_least=0.01),
            "changed: uniform_fragility.tvd: at_least changed from 0.1 to 0.01",
        ),
    ],
)
def test_one_change(old: Check, new: Check, line: str) -> None:
    lines = diff([old], [new])
    assert lines[0].startswith(line)
    assert len(lines) == 1 + ("train=" in line or getattr(new, "train", None) is not None)
    assert diff([old], [old]) == diff([new], [new]) == []


def test_checks_appear_and_disappear_and_the_suspect_lines_come_first() -> None:
    reported = checks.Agreement(severity="report")
    assert diff([GATE, reported], [GATE]) == ["disappeared: agreement.gradient.meister.inputs: an informational check"]
    assert diff([GATE], [GATE, of()]) == ["appeared: uniform_fragility.tvd: a gate with at_least 0.1"]
    assert diff([GATE, of(at_least=0.2)], [checks.Agreement(at_least=0.1), of()]) == [
        "laxer: uniform_fragility.tvd: at_least changed from 0.2 to 0.1",
        "disappeared: conicity: a gate with at_most 0.5",
        "appeared: agreement.gradient.meister.inputs: a gate with at_least 0.1",
    ]


def test_another_reading_is_another_check() -> None:
    lines = diff([of()], [of(reading="rollout@query=own")])
    assert [line.partition(":")[0] for line in lines] == ["disappeared", "appeared"]


def test_more_gates_make_a_gate_laxer_that_may_be_inconclusive() -> None:
    lines = diff([of(inconclusive="warn")], [of(inconclusive="warn"), GATE])
    assert lines == [
        "laxer: uniform_fragility.tvd: fails only if its whole 97.5000% interval is on the wrong side; before, its "
        "95.0000% interval had to be there (confidence 0.95, 1 gate → confidence 0.95, 2 gates)",
        "appeared: conicity: a gate with at_most 0.5",
    ]
    assert diff([of()], [of(), GATE]) == ["appeared: conicity: a gate with at_most 0.5"]


def test_the_code_of_a_custom_check() -> None:
    policy = effective_policy([of()])
    old, new = (
        msgspec.structs.replace(policy, checks=[{**policy.checks[0], "code": code}]) for code in ("a" * 64, "b" * 64)
    )
    (change,) = differences(old, new)
    assert (change.kind, change.text) == (
        "compare by hand",
        "the code that computes it changed, so it may measure something else",
    )


def test_a_check_that_is_declared_twice_is_compared_by_hand() -> None:
    twice = [of(), of(at_least=0.2)]
    assert diff(twice, twice) == []
    (line,) = diff([of()], twice)
    assert line.startswith("compare by hand: uniform_fragility.tvd: is declared several times")


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ([], [{}], ["laxer: conicity: a skip or expected failure is accepted: why"]),
        ([{}], [], ["stricter: conicity: a skip or expected failure is no longer accepted"]),
        ([{}], [{"reason": "other"}], ["changed: conicity: the reason for the exception changed: other"]),
        (
            [],
            [{"model": "m", "data": "d"}],
            ["laxer: conicity: a skip or expected failure is accepted of model m on data d: why"],
        ),
        (
            [{}],
            [{"model": "m"}],
            [
                "stricter: conicity: a skip or expected failure is no longer accepted",
                "changed: conicity: a skip or expected failure is accepted of model m: why",
            ],
        ),
        (
            [{"model": "m"}],
            [{}],
            [
                "laxer: conicity: a skip or expected failure is accepted: why",
                "changed: conicity: a skip or expected failure is no longer accepted of model m",
            ],
        ),
    ],
)
def test_exceptions(old: list[dict[str, str]], new: list[dict[str, str]], lines: list[str]) -> None:
    before, after = (
        effective_policy([GATE], [PolicyException(**{"check": "conicity", "reason": "why", **one}) for one in some])
        for some in (old, new)
    )
    assert [f"{c.kind}: {c.subject}: {c.text}" for c in differences(before, after)] == lines


def test_informational() -> None:
    plain, informational = effective_policy([]), effective_policy([], informational=True)
    assert [change.kind for change in differences(plain, informational)] == ["laxer"]
    assert [change.kind for change in differences(informational, plain)] == ["stricter"]


def valid(*families: str, unvalidated: UnvalidatedRule = "block") -> EffectivePolicy:
    return effective_policy([GATE], validations=[validation_of([GATE], families, unvalidated)])


OTHERS = "models of the families that neither policy names: "
RUN_FAILS, APPLY, INFORM = "the run fails", "the gates apply", "the gates are informational"


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (valid("a"), valid("a"), []),
        (valid("a"), valid("a", unvalidated="gate"), [f"laxer: {OTHERS}{RUN_FAILS} in the old policy, but {APPLY}"]),
        (valid("a", unvalidated="gate"), valid("a", unvalidated="report"), [f"laxer: {OTHERS}{APPLY}"]),
        (valid("a", unvalidated="report"), valid("a"), [f"stricter: {OTHERS}{INFORM}"]),
        (valid("a"), valid(), [f"laxer: {OTHERS}{RUN_FAILS}"]),
        (valid(), valid("a"), [f"stricter: {OTHERS}{APPLY}"]),
        (valid(), valid("a", unvalidated="gate"), ["changed: the families on which the gates were validated"]),
        (valid("a"), valid("a", "b"), [f"laxer: models of the family 'b': {RUN_FAILS}"]),
        (valid("a, one"), valid("a"), [f"laxer: models of the family 'a': {RUN_FAILS}"]),
        (
            valid("a", unvalidated="report"),
            valid("a", "b", unvalidated="report"),
            ["stricter: models of the family 'b'"],
        ),
        (valid("a"), valid("b"), ["laxer: models of the family 'b'", "stricter: models of the family 'a'"]),
        (valid("a", unvalidated="gate"), valid("b", unvalidated="gate"), ["changed: the families"]),
    ],
)
def test_what_happens_to_models_of_each_family(old: EffectivePolicy, new: EffectivePolicy, lines: list[str]) -> None:
    found = [f"{change.kind}: {change.text}" for change in differences(old, new)]
    assert len(found) == len(lines), found
    for line, start in zip(found, lines, strict=True):
        assert line.startswith(start)
    assert (old.sha256 == new.sha256) == (not lines)


def test_a_policy_that_names_no_family_keeps_its_hash() -> None:
    assert valid() == effective_policy([GATE])
    assert valid("a", "b") == valid("b", "a", "b")


def test_a_record_with_invalid_thresholds_is_compared_by_hand() -> None:
    policy = effective_policy([GATE])
    for value in ("floor +", "", True, None, "0"):
        changed = msgspec.structs.replace(policy, checks=[{**policy.checks[0], "at_most": value}])
        assert [change.kind for change in differences(policy, changed)] == ["compare by hand"], value


gates = st.builds(
    of,
    at_least=st.sampled_from([0.2, 0.3, 0.4]),
    confidence=st.sampled_from([0.8, 0.95, 0.99]),
    inconclusive=st.sampled_from(["fail", "warn", "pass"]),
    severity=st.sampled_from(["gate", "gate", "report"]),
)
policies = st.tuples(gates, st.lists(st.just(GATE), max_size=1)).map(lambda pair: [pair[0], *pair[1]])


def blocked(policy: EffectivePolicy, value: float, error: float) -> bool:
    """Whether the first check blocks a model with this value and standard error, by the rule of the verdicts."""
    table: Any = next(table for table in policy.checks if table["id"] == "uniform_fragility.tvd")
    if table["severity"] == "report":
        return False

    def interval(confidence: float) -> Interval:
        reach = error * NormalDist().inv_cdf((1 + confidence) / 2)
        return Interval(low=value - reach, high=value + reach, confidence=confidence, method="normal")

    number = sum(other["severity"] == "gate" for other in policy.checks)
    verdict, _ = decide(
        value=value,
        interval=interval(table["confidence"]),
        requirement=Requirement(direction="at_least", value=table["at_least"]),
        n=100,
        n_defined=100,
        fail_interval=interval(fail_confidence(table["confidence"], number)),
    )
    return blocks(verdict, severity="gate", inconclusive=table["inconclusive"])


@given(old=policies, new=policies, value=st.floats(0, 0.6), error=st.floats(0.001, 0.2))
def test_a_change_that_unblocks_a_model_is_reported_as_suspect(
    old: list[Check], new: list[Check], value: float, error: float
) -> None:
    before, after = effective_policy(old), effective_policy(new)
    kinds = {change.kind for change in differences(before, after) if change.subject == "uniform_fragility.tvd"}
    if blocked(before, value, error) and not blocked(after, value, error):
        assert kinds & set(SUSPECT)
    if blocked(after, value, error) and not blocked(before, value, error):
        assert "stricter" in kinds


@given(old=policies, new=policies)
def test_what_is_laxer_one_way_is_stricter_the_other_way(old: list[Check], new: list[Check]) -> None:
    opposite = dict(zip(KINDS, ("stricter", "appeared", "compare by hand", "laxer", "disappeared", "changed")))
    forth, back = effective_policy(old), effective_policy(new)
    there = sorted((change.subject, opposite[change.kind]) for change in differences(forth, back))
    assert there == sorted((change.subject, change.kind) for change in differences(back, forth))
    assert (forth.sha256 == back.sha256) == (not there)
