"""The content of the page that compares two runs, in a form that the templates only have to print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from attnaudit.formatting import listed, number, percentage, plural
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.records.comparison_records import ComparedCheck, ComparedSubject, Comparison
from attnaudit.records.unit_names import names_of
from attnaudit.report.gate_lines import asked
from attnaudit.report.run_files import Case, MeasurementsFile
from attnaudit.report.two_runs.difference_rows import (
    DifferenceRow,
    check_row,
    difference_row,
    interval_of,
    is_decided,
    signed,
    verdict_changed,
)
from attnaudit.report.two_runs.moved_instances import MovedView, anchors_of, moved_views

#: Largest number of coloured tokens on the page. They take about 1 MB.
MOST_TOKEN_CELLS = 14_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectComparison:
    """A model on a data set in both runs.

    Attributes:
        name: The models and the data set in words.
        facts: Sentences about the instances that were paired, the predictions and the attention.
        task: The rows of accuracy and F1.
        checks: The rows of the checks.
        only_one: Sentences about the checks that only one of the runs judged.
        moved: The instances that changed most.
    """

    name: str
    facts: tuple[str, ...]
    task: tuple[DifferenceRow, ...]
    checks: tuple[DifferenceRow, ...]
    only_one: tuple[str, ...]
    moved: tuple[MovedView, ...]

    @property
    def changed(self) -> tuple[DifferenceRow, ...]:
        """The checks whose verdict differs between the runs, or that are a gate in only one of them."""
        return tuple(row for row in self.checks if row.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """The whole comparison.

    Attributes:
        comparison: The records.
        title: The names of the runs.
        headline: What the comparison found: first the verdicts that changed, then accuracy and the values.
        state: "fail" if a gate that passed in the base run blocks in the candidate run or has no verdict there;
            otherwise "neutral".
        notes: Sentences that explain or qualify the headline.
        subjects: The models and data sets.
        policy: A sentence about the policies.
    """

    comparison: Comparison
    title: str
    headline: str
    state: str
    notes: tuple[str, ...]
    subjects: tuple[SubjectComparison, ...]
    policy: str


def assemble_comparison(
    comparison: Comparison, base: MeasurementsFile, candidate: MeasurementsFile, *, first_position: int = 0
) -> ComparisonPage:
    """Assemble the content of the page.

    Args:
        comparison: The comparison of two runs.
        base: The measurements of the base run.
        candidate: The measurements of the candidate run.
        first_position: The number of models and data sets that come first on the page because they belong to other
            comparisons.
    """
    checks = [check for subject in comparison.subjects for check in subject.checks]
    lost = [check for check in checks if check.is_gate and not check.base.blocks and check.candidate.blocks]
    subjects = comparison.subjects
    missing = [record for subject in subjects for record in _without_verdict(subject, comparison)]
    cells = MOST_TOKEN_CELLS // max(1, sum(1 + len(subject.checks) for subject in subjects))
    return ComparisonPage(
        comparison=comparison,
        title=f"{comparison.base.run} and {comparison.candidate.run}",
        headline=" ".join([_verdicts(comparison, lost, missing), *_changed_accuracy(subjects), _found(checks)]),
        state="fail" if lost or missing else "neutral",
        notes=(*_status_notes(comparison), *_task_notes(subjects), *comparison.left_out, *comparison.notes),
        subjects=tuple(
            _subject(one, i, comparison, (base, candidate), most_cells=cells)
            for i, one in enumerate(subjects, start=first_position)
        ),
        policy=_policy_sentence(comparison),
    )


def _without_verdict(subject: ComparedSubject, comparison: Comparison) -> list[CheckRecord]:
    """Return the gates that passed in the base run and have no verdict in the candidate run."""
    case = subject.base_model, subject.base_data, comparison.base.seed
    return [
        record
        for record in comparison.base.checks
        if (record.model, record.data, record.seed) == case and record.check in subject.only_base
        if record.severity == "gate" and not record.blocks
    ]


def _status_notes(comparison: Comparison) -> list[str]:
    """Return a sentence with the status of each run and the number of its gates that did not pass.

    The list is empty if both runs passed.
    """
    runs = (("base", comparison.base), ("candidate", comparison.candidate))
    if all(run.status == "passed" for _, run in runs):
        return []
    notes = []
    for which, run in runs:
        blocking = sum(record.blocks for record in run.checks)
        cause = f": {plural(blocking, 'gate')} did not pass" if blocking else ""
        notes.append(f"The status of the {which} run is “{run.status}”{cause}.")
    return notes


def _verdicts(comparison: Comparison, lost: Sequence[ComparedCheck], missing: Sequence[CheckRecord]) -> str:
    """Return sentences about the verdicts that changed. Those that block the candidate come first."""
    checks = [check for subject in comparison.subjects for check in subject.checks]
    found = []
    if missing:
        found.append(
            f"{plural(len(missing), 'gate')} that passed in the base run {'has' if len(missing) == 1 else 'have'} no "
            f"verdict in the candidate run: {_questions(missing, comparison.base)}."
        )
    gained = [check for check in checks if check.is_gate and check.base.blocks and not check.candidate.blocks]
    changed = sum(verdict_changed(check) for check in checks)
    if lost:
        found.append(
            f"{plural(len(lost), 'gate')} that passed in the base run no longer "
            f"{'passes' if len(lost) == 1 else 'pass'}: "
            f"{_questions([one.candidate for one in lost], comparison.candidate)}."
        )
    elif gained:
        found.append(
            f"{plural(len(gained), 'gate')} that blocked the base run no longer "
            f"{'blocks' if len(gained) == 1 else 'block'}: "
            f"{_questions([one.candidate for one in gained], comparison.candidate)}. No gate that passed in the base "
            "run now blocks."
        )
    elif changed:
        found.append(f"{plural(changed, 'verdict')} changed, and no gate that passed in the base run now blocks.")
    else:
        found.append(f"No {'other ' if missing else ''}verdict changed.")
    return " ".join(found)


def _found(checks: Sequence[ComparedCheck]) -> str:
    """Return a sentence with the number of checks on which the candidate is clearly better or worse."""
    meanings = [str(check.paired.meaning) for check in checks if check.paired and is_decided(check.paired)]
    count, compared = Counter(meanings), len(meanings)
    if not meanings:
        return "No check could be compared instance by instance."
    if not count["worse"] and not count["better"]:
        on = "the only compared check" if compared == 1 else f"any of the {compared} compared checks"
        return f"The candidate is not clearly better or worse on {on}."
    if compared == 1:
        return f"The candidate is clearly {meanings[0]} on the only compared check."
    first, second = ("worse", "better") if count["worse"] else ("better", "worse")
    if count[first] == compared:
        return f"The candidate is clearly {first} on all {compared} compared checks."
    return (
        f"The candidate is clearly {first} on {count[first]} of {compared} compared checks and clearly {second} on "
        f"{count[second] or 'none'}."
    )


def _questions(records: Sequence[CheckRecord], run: RunRecord) -> str:
    """Return the questions of the policy to which gates belong, each once. A gate without a question has its title."""
    return listed(list(dict.fromkeys(f"“{asked(one.check, run) or one.title}”" for one in records)))


def _changed_accuracy(subjects: Sequence[ComparedSubject]) -> list[str]:
    """Return a sentence for each model and data set on which the accuracy is clearly better or worse."""
    return [
        f"Accuracy{f' on {subject.candidate_data}' if len(subjects) > 1 else ''} is clearly {paired.meaning} "
        f"({number(paired.base)} → {number(paired.candidate)})."
        for subject in subjects
        for paired in subject.task
        if paired.name == "accuracy" and is_decided(paired) and paired.meaning in ("better", "worse")
    ]


def _task_notes(subjects: Sequence[ComparedSubject]) -> list[str]:
    """Return one sentence on the accuracy of each model and data set."""
    notes = []
    for subject in subjects:
        paired = next((one for one in subject.task if one.name == "accuracy"), None)
        if paired is not None:
            where = f" on {subject.candidate_data}" if len(subjects) > 1 else ""
            bounds = f" ({interval_of(paired)}, {paired.interval.level} interval)" if paired.interval else ""
            notes.append(
                f"Accuracy{where}: {number(paired.base)} in the base run, {number(paired.candidate)} in the candidate "
                f"run; difference {signed(paired.difference)}{bounds}."
            )
    return notes


def _policy_sentence(comparison: Comparison) -> str:
    changes = comparison.policy_changes
    if changes is None:
        return "One of the runs records no policy, so the policies cannot be compared."
    if not changes:
        return "Both runs applied the same policy."
    laxer = sum(change.kind in ("laxer", "disappeared", "compare by hand") for change in changes)
    if laxer:
        return (
            f"The policies differ. {laxer} of {plural(len(changes), 'difference')} may let the candidate's policy pass "
            "a model that the policy of the base run blocks. These are listed first."
        )
    return "The policies differ, and nothing became laxer."


def _subject(
    subject: ComparedSubject,
    position: int,
    comparison: Comparison,
    files: tuple[MeasurementsFile, MeasurementsFile],
    *,
    most_cells: int,
) -> SubjectComparison:
    cases: tuple[Case, Case] = (
        (subject.base_model, subject.base_data, comparison.base.seed),
        (subject.candidate_model, subject.candidate_data, comparison.candidate.seed),
    )
    anchors = anchors_of(subject, position)
    moved = moved_views(subject, anchors, cases, files, most_cells=most_cells)
    shown = {one.anchor for one in moved}
    return SubjectComparison(
        name=_name(subject),
        facts=tuple(_facts(subject)),
        task=tuple(difference_row(paired) for paired in subject.task),
        checks=tuple(
            check_row(check, anchor if anchor in shown else "")
            for check, anchor in zip(subject.checks, anchors.values(), strict=True)
        ),
        only_one=tuple(_only_one(subject)),
        moved=tuple(moved),
    )


def _name(subject: ComparedSubject) -> str:
    before, after = subject.base_model, subject.candidate_model
    models = f"{after}, compared with {before}" if before != after else after
    return f"{models}, on {subject.candidate_data}"


def _facts(subject: ComparedSubject) -> list[str]:
    facts = [f"{plural(subject.paired, 'instance')} from {plural(subject.sources, 'source')} were paired by id."]
    if subject.unpaired:
        facts.append(
            f"{plural(subject.unpaired, 'instance')} that only one of the runs audited {_were(subject.unpaired)} left "
            "out."
        )
    share = percentage(subject.predictions_changed / subject.paired)
    facts.append(
        f"The predicted class differs on {plural(subject.predictions_changed, 'instance')} ({share})."
        if subject.predictions_changed
        else "The predicted class is the same on every instance."
    )
    names = names_of(subject.checks[0].candidate.unit_names if subject.checks else UNSET)
    if subject.attention_distance is not None:
        facts.append(
            f"On {names.count_of_rows(subject.attention_compared)} with the same {names.units}, the attention weights "
            f"of the two models differ by a mean total variation distance of {number(subject.attention_distance)}. 0 "
            f"means that both models give each {names.unit} the same weight, and 1 that they attend to different "
            f"{names.units}."
        )
    else:
        facts.append(
            f"The models split no {names.row} into the same {names.units}, so their attention weights are shown "
            "separately."
        )
    return facts


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _only_one(subject: ComparedSubject) -> list[str]:
    return [
        f"Checks judged only in the {which} run: {', '.join(ids)}."
        for which, ids in (("base", subject.only_base), ("candidate", subject.only_candidate))
        if ids
    ]
