"""What a report says about the policy: answers to its questions, remedies, and families it was not validated on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.model_families import unvalidated_models
from attnaudit.plugin.terminal_summary import _notes
from attnaudit.records import (
    BaselineComparison,
    EffectivePolicy,
    GateRecord,
    Interval,
    Matrix,
    MissingCase,
    Planning,
    PolicyQuestion,
    PolicyRecord,
    PolicyRemedy,
    PolicyValidation,
    RankedInstance,
    RunRecord,
    UnvalidatedModel,
    UnvalidatedRule,
    VerdictName,
)
from attnaudit.records.check_records import NO_BETTER
from attnaudit.report import build, wording
from attnaudit.report.questions import policy_notes
from attnaudit.report.remedies import FIRST_REMEDIES, remedies, remedies_in_short
from attnaudit.report.unvalidated import unvalidated_sentence
from tests.units.report.example_checks import seven_checks
from tests.units.report.example_runs import run_record, write_run

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
    assert policy_notes(run(blocks=True)) == [
        "“Is attention used?” No: mean Kendall's τ-b 0.213 (first), required at least 0.30."
    ]
    assert remedies(run(blocks=True)) == ["What may help: tying: .02 became .25"]
    outcome = wording.outcome(run(blocks=True))
    assert policy_notes(run(blocks=True))[0] in outcome.notes
    assert outcome.next_steps == ("Tying: .02 became .25.",)


def test_gates_without_a_verdict_come_first_with_their_reason() -> None:
    base = run(blocks=True)
    failed = base.checks[0]
    reason = "The measure needs token masking.\nSet mask_token in tokenizer_config.json. " + "word " * 100
    gates = [
        GateRecord(model=failed.model, data=failed.data, check=check, state=state)
        for check, state in (("first", "failed"), ("held", "open"), ("enough", "open"))
    ]
    missing = [
        MissingCase(test="t", model=failed.model, data=failed.data, check=check, reason=reason)
        for check in ("held", "enough", "informational")
    ]
    record = msgspec.structs.replace(base, gates=gates, missing=missing)
    get, tie = wording.outcome(record).next_steps
    assert get.startswith(
        "Get a verdict on held, enough: The measure needs token masking. Set mask_token in tokenizer_config.json. word"
    )
    assert get.endswith("word …")
    assert tie == "Tying: .02 became .25."
    ended = msgspec.structs.replace(record, problem="The data could not be read.")
    assert wording.outcome(ended).next_steps == (tie,)


def test_a_passing_gate_names_the_classes_on_which_attention_does_not_point() -> None:
    passed = run(blocks=False)
    pointing = msgspec.structs.replace(passed.checks[1], severity="gate", details={NO_BETTER: "'green'"})
    checks = [passed.checks[0], pointing]
    both = msgspec.structs.replace(passed, checks=checks)
    (note,) = policy_notes(both)
    assert note in list(_notes(both, -1))  # the terminal shows it even with -q
    assert note == (
        "“Does it point?” passes on all texts together. But on those predicted as 'green', attention points no better "
        "than equal weights do. Do not show attention as the reason for these predictions."
    )
    for changes in ({"verdict": "fail"}, {"severity": "report"}, {"details": {}}):
        other = msgspec.structs.replace(pointing, **changes)
        assert policy_notes(msgspec.structs.replace(passed, checks=[passed.checks[0], other])) == []


def test_the_headline_gives_the_most_serious_gate_in_words() -> None:
    failed = run(blocks=True)
    texts = {"when_failed": "Attention is barely used", "in_words": "It hardly moves."}
    gate = msgspec.structs.replace(failed.checks[0], **texts)
    headlines = {}
    for verdict in ("fail", "inconclusive", "undefined"):
        checks = [msgspec.structs.replace(gate, verdict=verdict), failed.checks[1]]
        outcome = wording.outcome(msgspec.structs.replace(failed, checks=checks, status="failed"))
        headlines[verdict] = (outcome.lead, outcome.value_below_lead)
        assert "It hardly moves." in outcome.notes_below_lead
        assert outcome.headline.endswith("This release is blocked.")
    assert headlines == {
        "fail": (
            "Blocked. Attention is barely used.",
            "Mean Kendall's τ-b 0.213; the policy requires at least 0.30.",
        ),
        "inconclusive": (
            "Blocked. “Is attention used?” is not decided.",
            "Mean Kendall's τ-b 0.199 to 0.226; the policy requires at least 0.30.",
        ),
        "undefined": (f"Blocked. “Is attention used?” has no answer: {gate.reason}.", ""),
    }
    wider = Interval(low=0.19, high=0.31, confidence=0.975, method="m")
    undecided = msgspec.structs.replace(gate, verdict="inconclusive", fail_interval=wider)
    outcome = wording.outcome(msgspec.structs.replace(failed, checks=[undecided, failed.checks[1]], status="failed"))
    assert outcome.value_below_lead.startswith("Mean Kendall's τ-b 0.213, 97.5% interval 0.190 to 0.310; the policy")
    other = msgspec.structs.replace(failed.checks[1], verdict="undefined", blocks=True)
    both = msgspec.structs.replace(failed, checks=[other, gate], status="failed")
    assert wording.outcome(both).lead == f"{headlines['fail'][0]} 1 more gate did not pass."
    assert wording.outcome(run(blocks=False)).lead == wording.outcome(run(blocks=False)).value_below_lead == ""


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
    assert (
        page.index("Next step")
        < page.index("<p>A.</p>")
        < page.index("3 more things that may help")
        < page.index('<p class="fine">B.</p>')
    )


def test_a_note_names_a_family_on_which_the_policy_was_not_validated() -> None:
    (note,) = policy_notes(run(blocks=False, family="pooled attention, gru encoder"))
    assert note.startswith(
        "demo: the policy 'default' was not validated on this family of models (pooled attention, gru encoder). "
        "It was validated only on: bilstm. "
    )
    assert "(not stated)" in policy_notes(run(blocks=False, family=""))[0]
    families = ["transformer, deit, pictures", "transformer, vit, pictures"]
    model = UnvalidatedModel(model="m", family="bilstm", checks=["first"], validated_on=families, unvalidated="gate")
    assert "only on: transformer, deit, pictures; transformer, vit, pictures. " in unvalidated_sentence(model, None)
    assert policy_notes(run(blocks=False, family="bilstm, two layers")) == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "block",
            "the run fails. Use a policy that was validated on this family. To apply the thresholds nevertheless, "
            'set unvalidated = "gate" under [policy] in p.toml.',
        ),
        (
            "gate",
            'The thresholds of the policy were applied nevertheless, because the policy sets unvalidated = "gate".',
        ),
        (
            "report",
            'The gates of the policy are informational for this model, because the policy sets unvalidated = "report".',
        ),
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
        (
            "mine",
            [
                "demo: the policy 'mine' names no family of models on which it was validated, so its error rates are "
                "unknown."
            ],
        ),
        ("", []),
    ):
        policy = PolicyRecord(file="p.toml", sha256="0", name=name)
        record = msgspec.structs.replace(run(blocks=False), declared_policy=policy)
        assert policy_notes(record) == notes


def test_remedies_are_not_shown_for_a_family_on_which_they_were_not_measured() -> None:
    assert remedies(run(blocks=True, family="transformer, bert")) == []


def with_remedies(record: RunRecord, *of_policy: PolicyRemedy, **changes: object) -> RunRecord:
    """Return a run whose policy has these remedies, and whose blocking gate has these other fields."""
    assert record.declared_policy is not None
    question = msgspec.structs.replace(USED, remedies=[], remedy=list(of_policy))
    policy = msgspec.structs.replace(record.declared_policy, questions=[question])
    gate = msgspec.structs.replace(record.checks[0], **changes)
    return msgspec.structs.replace(record, declared_policy=policy, checks=[gate, *record.checks[1:]])


@pytest.mark.parametrize(
    ("verdict", "family", "shown"),
    [
        ("fail", "bilstm", ["What may help: tie; accuracy 0.88 → 0.83", "What may help: ask"]),
        ("fail", "transformer, bert", ["What may help: ask"]),
        ("undefined", "bilstm", ["What may help: ask"]),
        ("inconclusive", "bilstm", []),
    ],
)
def test_a_remedy_is_shown_for_its_verdicts_and_families(verdict: VerdictName, family: str, shown: list[str]) -> None:
    tie = PolicyRemedy(text="tie", families=["bilstm"], accuracy="0.88 → 0.83")
    ask = PolicyRemedy(text="ask", when=["fail", "undefined"])
    record = with_remedies(run(blocks=True, family=family), tie, ask, verdict=verdict, planning=None)
    assert [text for text in remedies(record) if "audit" not in text] == shown


@pytest.mark.parametrize(
    ("instances", "words"),
    [
        (790, "audit more texts for first: about 790 instances would probably decide it"),
        (None, "reconsider the threshold"),
    ],
)
def test_an_inconclusive_gate_needs_more_texts(instances: int | None, words: str) -> None:
    planning = Planning(instances=instances, low=280, high=None, power=0.8)
    (text,) = remedies(with_remedies(run(blocks=True), verdict="inconclusive", planning=planning, n_defined=120))
    assert words in text


@pytest.mark.parametrize(
    ("rows", "words"),
    [(2026, ". Only 120 of 2,026 rows of movie-reviews were audited"), (120, ""), (None, "")],
)
def test_an_inconclusive_gate_names_the_rows_that_were_not_audited(rows: int | None, words: str) -> None:
    planning = Planning(instances=790, low=280, high=None, power=0.8)
    record = with_remedies(run(blocks=True), verdict="inconclusive", planning=planning, n_defined=120)
    data = msgspec.structs.replace(record.data[0], audited=120, rows=rows)
    (text,) = remedies(msgspec.structs.replace(record, data=[data]))
    assert text.endswith(f"(at least 280, without an upper limit){words}")


def test_an_undefined_gate_needs_other_texts() -> None:
    undefined = {"a single token": 3, "all attention weights are equal": 200}
    (text,) = remedies(with_remedies(run(blocks=True), verdict="undefined", value=None, undefined=undefined))
    assert text.endswith("missing value is: all attention weights are equal")


def test_other_texts_are_not_advised_if_there_is_no_baseline() -> None:
    missing = BaselineComparison(
        baseline_name="last",
        base="first",
        candidate=0.5,
        reading="",
        measures_sha256="",
        not_comparable="There is no baseline. Accept this run: `attnaudit baseline accept RUN --out DIR --name last`",
    )
    undefined = {"not comparable with the baseline": 120}
    record = with_remedies(
        run(blocks=True),
        verdict="undefined",
        value=None,
        undefined=undefined,
        comparison=missing,
        check="first.vs_last",
    )
    assert remedies(record) == []
    assert any("attnaudit baseline accept RUN --out DIR --name last" in note for note in wording.outcome(record).notes)


def test_a_failed_gate_names_the_best_reading_that_was_measured() -> None:
    failed = with_remedies(run(blocks=True))
    gate = failed.checks[0]
    table = Matrix(
        row_label="layer", column_label="head", rows=["0", "1"], columns=["0", "1"], values=[[0.1, None], [0.9, 0.2]]
    )
    sweep = msgspec.structs.replace(
        gate, check="first/own@layer=*,heads=*", matrix=table, severity="report", blocks=False
    )
    (text,) = remedies(msgspec.structs.replace(failed, checks=[gate, sweep]))
    assert (
        "layer 1, head 0 has the best value of first among the measured readings (0.900); the accuracy does not change"
        in text
    )
    worse = msgspec.structs.replace(table, values=[[0.1, None], [0.1, 0.2]])
    sweep = msgspec.structs.replace(sweep, matrix=worse)
    assert remedies(msgspec.structs.replace(failed, checks=[gate, sweep])) == []


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
        "“Is attention used?” No: mean Kendall's τ-b 0.213 (first for demo on movie-reviews), required at least "
        f"0.30; first for other on movie-reviews is undefined ({other.reason})."
    ]


def test_the_most_serious_gate_and_its_remedies_come_first(tmp_path: Path) -> None:
    failed = run(blocks=True)
    planning = Planning(instances=790, low=280, high=None, power=0.8)
    first = msgspec.structs.replace(
        failed.checks[1], title="Undecided", verdict="inconclusive", blocks=True, planning=planning
    )
    both = msgspec.structs.replace(failed, checks=[first, failed.checks[0]])
    failing, deciding = remedies(both)
    assert failing == "What may help: tying: .02 became .25"
    assert deciding.startswith("What may help: audit more texts for second")
    build(write_run(tmp_path, both, []))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.index(f">{failed.checks[0].title}</a>") < page.index(">Undecided</a>")


def test_a_model_without_decisions_has_no_accuracy() -> None:
    hide = PolicyRemedy(text="hide it", families=["bilstm"], accuracy="unchanged")
    record = with_remedies(run(blocks=True), hide, verdict="fail")
    assert "What may help: hide it; accuracy unchanged" in remedies(record)
    scores = [msgspec.structs.replace(model, no_decision="the score is not a decision") for model in record.models]
    record = msgspec.structs.replace(record, models=scores)
    assert "What may help: hide it; the predictions do not change" in remedies(record)
    other = msgspec.structs.replace(scores[0], name="other", no_decision="")
    gate = msgspec.structs.replace(record.checks[0], model="other")
    record = msgspec.structs.replace(record, models=[*scores, other], checks=[*record.checks, gate])
    assert remedies(record) == [
        "What may help with demo on movie-reviews: hide it; the predictions do not change",
        "What may help with other on movie-reviews: hide it; accuracy unchanged",
    ]


def two_models(of_first: VerdictName, of_second: VerdictName) -> RunRecord:
    """Return a run of the models "demo" and "other", each with a gate with this verdict."""
    record = run(blocks=True)
    gates = [
        msgspec.structs.replace(
            record.checks[0], model=model, verdict=verdict, blocks=verdict != "pass", planning=None, reason="Too few."
        )
        for model, verdict in (("demo", of_first), ("other", of_second))
    ]
    models = [*record.models, msgspec.structs.replace(record.models[0], name="other")]
    return msgspec.structs.replace(record, models=models, checks=gates)


def test_a_remedy_names_its_model_if_it_is_not_for_every_model() -> None:
    assert remedies(two_models("fail", "fail")) == ["What may help: tying: .02 became .25"]
    alone = two_models("pass", "fail")
    assert remedies(alone) == ["What may help with other on movie-reviews: tying: .02 became .25"]
    assert wording.outcome(alone).next_steps == ("other on movie-reviews: Tying: .02 became .25.",)


def test_the_model_with_the_most_serious_verdict_comes_first() -> None:
    first, second = remedies(two_models("inconclusive", "fail"))
    assert first == "What may help with other on movie-reviews: tying: .02 became .25"
    assert second.startswith("What may help with demo on movie-reviews: audit more texts")


def test_a_failed_gate_without_a_remedy_sends_the_reader_to_its_typical_texts() -> None:
    record = with_remedies(run(blocks=True), verdict="fail", typical=[RankedInstance(instance="7", value=0.2)])
    assert remedies(record) == [
        "What may help: look at the typical texts of first in the report, to see which tokens decide"
    ]
