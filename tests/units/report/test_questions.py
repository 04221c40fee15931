"""A report says which question failed, what may help, and where the policy was never tried."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnaudit.records import PolicyQuestion, PolicyRecord, RunRecord
from attnaudit.report import build, wording
from attnaudit.report.questions import FIRST_REMEDIES, notes, remedies, remedies_in_short
from tests.units.report.example_runs import run_record, seven_checks, write_run

USED, POINTS = (
    PolicyQuestion(name="used", asks="Is attention used?", checks=["first"], remedies=["tying: .02 became .25"]),
    PolicyQuestion(name="points", asks="Does it point?", checks=["second"]),
)


def run(*, blocks: bool, family: str = "bilstm", name: str = "default") -> RunRecord:
    base = seven_checks()[0]
    first = msgspec.structs.replace(base, check="first", verdict="fail" if blocks else "pass", blocks=blocks)
    second = msgspec.structs.replace(base, check="second", verdict="pass", blocks=False)
    policy = PolicyRecord(file="p.toml", sha256="0", name=name, validated_on=["bilstm"], questions=[USED, POINTS])
    made = run_record([first, second], declared_policy=policy)
    models = [msgspec.structs.replace(one, family=family) for one in made.models]
    return msgspec.structs.replace(made, models=models)


def test_the_question_that_failed_is_named_with_its_remedy() -> None:
    assert notes(run(blocks=True)) == ["“Is attention used?” was not answered with yes (first: fail)."]
    assert remedies(run(blocks=True)) == ["What may help: tying: .02 became .25"]
    said = wording.outcome(run(blocks=True))
    assert notes(run(blocks=True))[0] in said.notes
    assert list(said.remedies) == remedies(run(blocks=True))


def test_nothing_is_said_where_all_is_well() -> None:
    assert notes(run(blocks=False)) == []
    assert remedies(run(blocks=False)) == []


def test_of_many_remedies_the_first_are_shown_those_of_each_question_in_turn(tmp_path: Path) -> None:
    one = run(blocks=True)
    second = msgspec.structs.replace(one.checks[1], verdict="fail", blocks=True)
    asked = [
        msgspec.structs.replace(USED, remedies=["a", "b", "c"]),
        msgspec.structs.replace(POINTS, remedies=["d", "a"]),
    ]
    assert one.declared_policy is not None
    policy = msgspec.structs.replace(one.declared_policy, questions=asked)
    both = msgspec.structs.replace(one, checks=[one.checks[0], second], declared_policy=policy)
    assert remedies(both) == [f"What may help: {name}" for name in "adbc"]
    assert remedies_in_short(both) == [*remedies(both)[:FIRST_REMEDIES], "What may help: 1 more in the report"]
    assert remedies_in_short(one) == remedies(one)
    build(write_run(tmp_path, both, []))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.index("What may help: b") < page.index("1 more thing that may help") < page.index("What may help: c")


def test_another_family_is_not_validated() -> None:
    (said,) = notes(run(blocks=False, family="pooled attention, gru encoder"))
    assert "not validated for this family (pooled attention, gru encoder)" in said
    assert said.endswith("tried against known truth on: bilstm.")
    assert "not validated for this family (not stated)" in notes(run(blocks=False, family=""))[0]


def test_a_policy_without_a_name_claims_nothing() -> None:
    assert notes(run(blocks=False, family="other", name="")) == []
    assert notes(msgspec.structs.replace(run(blocks=True), declared_policy=None)) == []


def test_remedies_are_said_to_be_measured_elsewhere_for_another_family() -> None:
    said = remedies(run(blocks=True, family="transformer, bert"))
    assert "What may help (measured on other families of models): tying: .02 became .25" in said
