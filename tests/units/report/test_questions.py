"""What a report says about the policy: answers to its questions, remedies, and families it was not validated on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.model_families import unvalidated_models
from attnaudit.records import (
    EffectivePolicy,
    PolicyQuestion,
    PolicyRecord,
    PolicyValidation,
    RunRecord,
    UnvalidatedRule,
)
from attnaudit.report import build, wording
from attnaudit.report.questions import FIRST_REMEDIES, policy_notes, remedies, remedies_in_short
from tests.units.report.example_runs import run_record, seven_checks, write_run

USED, POINTS = (
    PolicyQuestion(name="used", asks="Is attention used?", checks=["first"], remedies=["tying: .02 became .25"]),
    PolicyQuestion(name="points", asks="Does it point?", checks=["second"]),
)


def run(
    *, blocks: bool, family: str = "bilstm", name: str = "default", unvalidated: UnvalidatedRule = "block"
) -> RunRecord:
    base = seven_checks()[0]
    first = msgspec.structs.replace(base, check="first", verdict="fail" if blocks else "pass", blocks=blocks)
    second = msgspec.structs.replace(base, check="second", verdict="pass", blocks=False)
    policy = PolicyRecord(
        file="p.toml",
        sha256="0",
        name=name,
        validated_on=["bilstm"],
        unvalidated=unvalidated,
        questions=[USED, POINTS],
    )
    record = run_record([first, second], declared_policy=policy)
    models = [msgspec.structs.replace(model, family=family) for model in record.models]
    claim = PolicyValidation(checks=["first"], validated_on=policy.validated_on, unvalidated=policy.unvalidated)
    effective = EffectivePolicy(sha256="0", checks=[], validations=[claim])
    return msgspec.structs.replace(record, models=models, unvalidated=unvalidated_models(effective, models))


def test_a_question_answered_with_no_has_its_reason_and_remedy() -> None:
    assert policy_notes(run(blocks=True)) == ["“Is attention used?” No: first is 0.213, but at least 0.30 is required."]
    assert remedies(run(blocks=True)) == ["What may help: tying: .02 became .25"]
    outcome = wording.outcome(run(blocks=True))
    assert policy_notes(run(blocks=True))[0] in outcome.notes
    assert list(outcome.remedies) == remedies(run(blocks=True))


def test_questions_whose_gates_pass_have_no_note_and_no_remedy() -> None:
    assert policy_notes(run(blocks=False)) == []
    assert remedies(run(blocks=False)) == []


def test_questions_take_turns_with_their_remedies_and_the_first_are_shown(tmp_path: Path) -> None:
    first_only = run(blocks=True)
    second = msgspec.structs.replace(first_only.checks[1], verdict="fail", blocks=True)
    questions = [
        msgspec.structs.replace(USED, remedies=["a", "b", "c"]),
        msgspec.structs.replace(POINTS, remedies=["d", "a"]),
    ]
    assert first_only.declared_policy is not None
    policy = msgspec.structs.replace(first_only.declared_policy, questions=questions)
    both = msgspec.structs.replace(first_only, checks=[first_only.checks[0], second], declared_policy=policy)
    assert remedies(both) == [f"What may help: {name}" for name in "adbc"]
    assert remedies_in_short(both) == [*remedies(both)[:FIRST_REMEDIES], "The report lists 1 more thing that may help."]
    assert remedies_in_short(first_only) == remedies(first_only)
    build(write_run(tmp_path, both, []))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.index("What may help: b") < page.index("1 more thing that may help") < page.index("What may help: c")


def test_a_note_names_a_family_on_which_the_policy_was_not_validated() -> None:
    (note,) = policy_notes(run(blocks=False, family="pooled attention, gru encoder"))
    assert note.startswith(
        "demo: the policy 'default' was not validated on this family of models (pooled attention, gru encoder), "
        "only on: bilstm. "
    )
    assert "(not stated)" in policy_notes(run(blocks=False, family=""))[0]
    assert policy_notes(run(blocks=False, family="bilstm, two layers")) == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "block",
            "the run fails. Use a policy that was validated on this family. To apply the thresholds nevertheless, "
            'set unvalidated = "gate" under [policy] in p.toml.',
        ),
        ("gate", 'Its thresholds were applied nevertheless, because it sets unvalidated = "gate".'),
        ("report", 'Its gates are informational for this model, because it sets unvalidated = "report".'),
    ],
)
def test_the_note_says_what_the_policy_does_with_another_family(rule: UnvalidatedRule, words: str) -> None:
    (note,) = policy_notes(run(blocks=False, family="other", unvalidated=rule))
    assert words in note


def test_a_run_that_fails_because_of_a_family_says_so_in_its_headline() -> None:
    failed = msgspec.structs.replace(run(blocks=False, family="other"), status="failed", exit_status=1)
    assert wording.outcome(failed).headline == (
        "The policy was not validated for models such as demo. This release is blocked."
    )


def test_a_policy_that_names_no_family_says_so_only_if_it_has_a_name() -> None:
    for name, notes in (
        ("mine", ["demo: the policy 'mine' does not name a family of models on which it was validated."]),
        ("", []),
    ):
        policy = PolicyRecord(file="p.toml", sha256="0", name=name)
        record = msgspec.structs.replace(run(blocks=False), declared_policy=policy)
        assert policy_notes(record) == notes


def test_remedies_for_another_family_say_that_they_were_measured_elsewhere() -> None:
    expected = "What may help (measured on other model families): tying: .02 became .25"
    assert remedies(run(blocks=True, family="transformer, bert")) == [expected]


def test_a_question_is_unclear_where_no_gate_failed_and_one_did_not_pass() -> None:
    undecided = run(blocks=True)
    gates = [msgspec.structs.replace(check, verdict="inconclusive") for check in undecided.checks]
    undecided = msgspec.structs.replace(undecided, checks=gates)
    assert policy_notes(undecided) == ["“Is attention used?” Unclear: first is inconclusive."]


def test_an_answer_names_model_and_data_where_the_run_has_several() -> None:
    two_models = run(blocks=True)
    other = msgspec.structs.replace(two_models.checks[0], model="other", verdict="undefined", value=None)
    two_models = msgspec.structs.replace(two_models, checks=[*two_models.checks, other])
    assert policy_notes(two_models) == [
        "“Is attention used?” No: first for demo on movie-reviews is 0.213, but at least 0.30 is required; "
        "first for other on movie-reviews is undefined."
    ]
