"""Why a gate failed, according to other numbers of the run, and which remedy comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnaudit.checks.policies.policy import load_policy
from attnaudit.records import CheckRecord, PolicyQuestion, PolicyRecord, PolicyRemedy, RunRecord, UnitNames
from attnaudit.records.check_records import LARGEST_WEIGHT
from attnaudit.report import build, wording
from attnaudit.report.markdown import summary
from attnaudit.report.measured_causes import BLENDED, NEARLY_EQUAL, cause_notes
from attnaudit.report.remedies import remedies
from tests.units.report.example_checks import check_record
from tests.units.report.example_runs import run_record, write_run

ROOT = Path(__file__).parents[3]
TIE = "What may help: tie the states; accuracy 0.79 → 0.77"
INFORMATIONAL: dict[str, Any] = {"severity": "report", "verdict": "informational", "blocks": False}


def run(weight: float | None, entropy: float | None, *further: CheckRecord, **gate: Any) -> RunRecord:
    """Return a run with a failed gate, and with the evidence that is not None."""
    details = {} if weight is None else {LARGEST_WEIGHT: weight}
    checks = [check_record(check="pointing.logits.plain", details=details, **gate)]
    if entropy is not None:
        checks.append(check_record(check="influence_entropy.hidden", value=entropy, details={}, **INFORMATIONAL))
    tie = PolicyRemedy(text="tie the states", families=["bilstm"], accuracy="0.79 → 0.77")
    question = PolicyQuestion(name="points", asks="Does it point?", checks=["pointing.logits.plain"], remedy=[tie])
    policy = PolicyRecord(file="p.toml", sha256="0", validated_on=["bilstm"], questions=[question])
    record = run_record([*checks, *further], declared_policy=policy)
    models = [msgspec.structs.replace(model, family="bilstm") for model in record.models]
    return msgspec.structs.replace(record, models=models)


@pytest.mark.parametrize("entropy", [None, 0.51, 0.95])
def test_nearly_equal_weights_are_named_and_have_their_own_next_step(tmp_path: Path, entropy: float | None) -> None:
    record = run(1.051, entropy)
    first, *others = remedies(record)
    assert first.startswith("What may help: find out why the attention scores hardly differ: ")
    assert others == [TIE]
    note = (
        "The attention weights are nearly equal: in 95% of the texts, the largest weight is at most 1.05 times the "
        "mean weight. Shuffling such weights hardly changes the output, and they point at no token."
    )
    assert cause_notes(record)[0] == note
    assert wording.outcome(record).causes == tuple(cause_notes(record))
    assert f"\n{note}\n" in summary(record, report="r")
    build(write_run(tmp_path, record, []))
    assert f"<p>{note}</p>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_blended_states_are_named_and_the_remedy_of_the_policy_comes_first() -> None:
    record = run(5.2, 0.914)
    assert remedies(record) == [TIE]
    assert cause_notes(record) == [
        "The hidden states blend their texts: their influence entropy is 0.91 (0: each state depends on one token; 1: "
        "on all tokens alike). A weight on a state therefore says little about the token at its position."
    ]


def test_without_a_measured_cause_the_remedy_of_the_policy_does_not_come_first() -> None:
    record = run(5.2, 0.508)
    assert remedies(record) == [
        "What may help: look at the typical texts of pointing.logits.plain in the report, to see which tokens decide. "
        "The run found no cause of the failure: the hidden states are not blended (influence entropy 0.51; from 0.8, "
        "they count as blended)",
        TIE,
    ]
    assert cause_notes(record) == []
    second = check_record(check="second")
    assert remedies(run(5.2, 0.508, second)) == remedies(record)


@pytest.mark.parametrize(("weight", "entropy"), [(None, None), (5.2, None)])
def test_no_cause_is_guessed_without_evidence(weight: float | None, entropy: float | None) -> None:
    record = run(weight, entropy)
    assert remedies(record) == [TIE]
    assert cause_notes(record) == []


def test_the_limits_belong_to_the_causes() -> None:
    assert len(cause_notes(run(NEARLY_EQUAL, BLENDED))) == 2
    assert cause_notes(run(NEARLY_EQUAL + 0.01, BLENDED - 0.01)) == []


def test_a_gate_that_did_not_fail_has_no_cause() -> None:
    for verdict, blocks in (("pass", False), ("inconclusive", True), ("undefined", True)):
        record = run(1.0, 0.95, verdict=verdict, blocks=blocks)
        assert cause_notes(record) == []
        assert not any("attention scores" in text for text in remedies(record))


def test_evidence_on_another_model_or_reading_does_not_count() -> None:
    other = check_record(check="pointing.logits.plain", model="other", details={LARGEST_WEIGHT: 1.0}, **INFORMATIONAL)
    head = check_record(check="pointing.logits.plain/heads=1", reading="heads=1", details={LARGEST_WEIGHT: 1.0})
    head = msgspec.structs.replace(head, **INFORMATIONAL)
    assert cause_notes(run(5.2, None, other, head)) == []
    (note,) = cause_notes(run(1.0, None, other))
    assert note.startswith("demo on movie-reviews: The attention weights are nearly equal")


def test_the_sentences_have_the_names_of_the_units_and_rows() -> None:
    (note,) = cause_notes(run(1.0, None, unit_names=UnitNames(unit="patch", row="picture")))
    assert "in 95% of the pictures" in note
    assert note.endswith("they point at no patch.")


def test_the_remedies_of_the_default_policy_are_first_given_for_the_code_of_the_user() -> None:
    questions = load_policy(ROOT / "audits/policy.toml").record.questions
    texts = [one.text for question in questions for one in question.remedy]
    with_command = [text for text in texts if "`attnaudit train " in text]
    assert len(with_command) == 4
    assert all(text.index(", as `attnaudit train ") > 0 for text in with_command)
    assert sum("(step 6 of the tutorial)" in text for text in texts) == 2
    assert "## 6. What to do" in (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
