"""A report says which question failed, what may help, and where the policy was never tried."""

from __future__ import annotations

import msgspec

from attnaudit.records import PolicyQuestion, PolicyRecord, RunRecord
from attnaudit.report import words
from attnaudit.report.questions import notes
from tests.units.report.example_runs import run_record, seven_checks

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
    assert notes(run(blocks=True)) == [
        "“Is attention used?” was not answered with yes (first: fail).",
        "What may help: tying: .02 became .25",
    ]
    assert notes(run(blocks=True))[0] in words.outcome(run(blocks=True)).notes


def test_nothing_is_said_where_all_is_well() -> None:
    assert notes(run(blocks=False)) == []


def test_another_family_is_not_validated() -> None:
    (said,) = notes(run(blocks=False, family="pooled attention, gru encoder"))
    assert "not validated for this family (pooled attention, gru encoder)" in said
    assert said.endswith("tried against known truth on: bilstm.")
    assert "not validated for this family (not stated)" in notes(run(blocks=False, family=""))[0]


def test_a_policy_without_a_name_claims_nothing() -> None:
    assert notes(run(blocks=False, family="other", name="")) == []
    assert notes(msgspec.structs.replace(run(blocks=True), declared_policy=None)) == []


def test_remedies_are_said_to_be_measured_elsewhere_for_another_family() -> None:
    said = notes(run(blocks=True, family="transformer, bert"))
    assert "What may help (measured on other families of models): tying: .02 became .25" in said
