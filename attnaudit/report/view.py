"""The content of the report, assembled from the records in a form that the templates only have to print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.formatting import number, sentence
from attnaudit.records import CheckRecord, MeasureRecord, MissingCase, RunRecord, UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, common_names, names_of
from attnaudit.report import wording
from attnaudit.report.charts import Drawing, chart
from attnaudit.report.check_charts import histogram, strip, strip_range
from attnaudit.report.check_costs import CostTable, table_of
from attnaudit.report.gate_text import excepted_gates, gate_notes, option_lines
from attnaudit.report.heatmaps import Heatmap
from attnaudit.report.matrices import matrix
from attnaudit.report.pictures import EmbeddedPicture, PictureStore
from attnaudit.report.questions import seriousness
from attnaudit.report.run_files import Case, MeasurementsFile
from attnaudit.report.scores import Score, scores
from attnaudit.report.shown_instances import shown_instances
from attnaudit.report.two_runs.baseline_tables import BaselineRun, BaselineTable, baseline_tables
from attnaudit.verdict_text import (
    defined_sentence,
    detected,
    digits,
    displayed_name,
    interval_range,
    interval_words,
    planned,
    requirement_symbol,
    verdict_sentence,
)

#: How many of the worst instances are open at first if the check did not pass.
OPEN_INSTANCES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceView:
    """A reference of a check, as text.

    Attributes:
        name: The name of the reference.
        value: The value of the reference.
        meaning: What the reference is.
        count: The number of instances from which the reference was computed; "" if it is unknown.
    """

    name: str
    value: str
    meaning: str
    count: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """One check on one model and data set.

    Attributes:
        anchor: The fragment identifier of the case on the page.
        check: The record of the case.
        subject: The model and the data set in words.
        verdict: The verdict, which is also the CSS class.
        verdict_name: The verdict in words.
        symbol: The verdict as one character.
        role: Whether the check is a gate, and whether it blocks the release.
        value: The value.
        statistic: The statistic with its unit, if it has one.
        interval: The interval of the value; an em dash if there is none.
        fail_interval: The interval that decides whether the case fails; "" if there is none.
        required: The threshold with "≥" or "≤". For a check without a threshold: "higher is better", "lower is better",
            or an em dash.
        references: The references.
        explanation: Sentences that explain the value and the verdict.
        note: Remarks on the value as a sentence; "" if there are none.
        strip: The drawing in the table of verdicts (see `attnaudit.report.check_charts`); None without numbers.
        distribution: The histogram of the values per instance; None if there is none.
        charts: Pairs of a title and a drawing, for the other charts.
        undefined: Pairs of a reason and the number of instances without a value, the largest number first.
        parameters: Pairs of a name and a value, for the arguments of the check that are not None.
        details: Pairs of a name and a value, for further numbers.
        breakdowns: For each breakdown of a gate, the property by which its parts differ, and the name, the value and
            the number of instances of each part.
        typical: The typical instances that are shown.
        heatmaps: The worst instances that are shown.
        instances_left_out: Number of worst instances in the record that are not shown.
        open_heatmaps: Number of heatmaps that are open at first.
        names: The names of the units and rows.
    """

    anchor: str
    check: CheckRecord
    subject: str
    verdict: str
    verdict_name: str
    symbol: str
    role: str
    value: str
    statistic: str
    interval: str
    fail_interval: str
    required: str
    references: tuple[ReferenceView, ...]
    explanation: str
    note: str
    strip: Drawing | None
    distribution: Drawing | None
    charts: tuple[tuple[str, Drawing | None], ...]
    undefined: tuple[tuple[str, int], ...]
    parameters: tuple[tuple[str, str], ...]
    details: tuple[tuple[str, str], ...]
    breakdowns: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]
    typical: tuple[Heatmap, ...]
    heatmaps: tuple[Heatmap, ...]
    instances_left_out: int
    open_heatmaps: int
    names: UnitNames


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """One check with all of its cases.

    Attributes:
        anchor: The fragment identifier of the check on the page.
        check: The record of the first case.
        cases: The cases, in the order of the models and data sets.
    """

    anchor: str
    check: CheckRecord
    cases: tuple[CaseView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectView:
    """One model on one data set, which is a column of the table that compares models.

    Attributes:
        name: The model, the data set and, if the run has several seeds, the seed.
        model: The name of the model.
        data: The name of the data set.
        seed: The seed in words, such as ", seed 1", if the run has several seeds; otherwise "".
        gates: The number of gates that passed, in words.
        state: "fail" if a gate that is not excepted blocks the release, "pass" if none does, and "undefined" if there
            are no gates.
    """

    name: str
    model: str
    data: str
    seed: str
    gates: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report.

    Attributes:
        run: The record of the run.
        outcome: The headline with its notes and remedies.
        scores: The accuracy and macro F1 of each model on each data set with labels.
        checks: All checks with their cases.
        subjects: All pairs of a model and a data set.
        command: The command line of the run.
        options: Lines with the options that pytest did not read from the command line.
        gates: A line with the number of gates in each state, and further lines about the gates (see `gate_notes`). If
            there are no further lines, the first line is left out too, and `gates` is empty.
        measurements_absent: Whether the run folder has no measurements.parquet.
        missing: Pairs of a reason and the selected cases that have no verdict for this reason.
        title: The names of the models.
        baselines: The tables that compare the models with the baselines of the policy.
        pictures: The pictures that the page embeds.
        names: The names of the units and rows that all models have in common; those of texts if they differ.
    """

    run: RunRecord
    outcome: wording.Outcome
    scores: tuple[Score, ...]
    checks: tuple[CheckView, ...]
    subjects: tuple[SubjectView, ...]
    command: str
    options: tuple[str, ...]
    gates: tuple[str, ...]
    measurements_absent: bool
    missing: tuple[tuple[str, tuple[MissingCase, ...]], ...]
    title: str
    baselines: tuple[BaselineTable, ...]
    pictures: tuple[EmbeddedPicture, ...] = ()
    names: UnitNames = TOKENS_OF_TEXTS

    def names_of(self, measured: MeasureRecord) -> UnitNames:
        """Return the names of the units and rows of a model on a data set."""
        return names_of(measured.unit_names)

    def costs_of(self, measured: MeasureRecord) -> CostTable | None:
        """Return the cost of each check of a model on a data set; None if the run did not record costs."""
        return table_of(measured, self.run.checks) if measured.costs else None


def assemble(run: RunRecord, measurements: MeasurementsFile, baseline_runs: Sequence[BaselineRun] = ()) -> Page:
    """Assemble the content of the report of a run.

    Args:
        run: The record of the run.
        measurements: The measurements of the run, which contain the tokens of the worst instances.
        baseline_runs: The comparisons with the runs that were accepted as baselines.
    """
    cases: dict[Case, None] = {(c.model, c.data, c.seed): None for c in run.checks}
    names = _subject_names(list(cases))
    pictures = PictureStore()
    heatmaps, typical = shown_instances(run, measurements, pictures)
    records_of_check: dict[str, list[CheckRecord]] = {}
    for record in run.checks:
        records_of_check.setdefault(record.check, []).append(record)
    anchors = _Anchors()
    views = []
    for records in sorted(records_of_check.values(), key=_urgency):
        shown_range = strip_range(records)
        anchor = anchors.of(records[0].check)
        many = len(records) > 1
        case_views = tuple(
            _case(
                record,
                anchor=anchors.of(f"{anchor}-{record.model}-{record.data}") if many else anchor,
                subject=names[(record.model, record.data, record.seed)],
                role=wording.role(record, run),
                drawing=strip(record, shown_range),
                heatmaps=heatmaps.get(record.key, ()),
                typical=typical.get(record.key, ()),
            )
            for record in records
        )
        views.append(CheckView(anchor=anchor, check=records[0], cases=case_views))
    return Page(
        run=run,
        outcome=wording.outcome(run),
        scores=scores(run),
        checks=tuple(views),
        subjects=tuple(_subject(case, names[case], run) for case in cases),
        command=shlex.join(run.command),
        options=tuple(option_lines(run)),
        gates=_gates(run),
        measurements_absent=measurements.measured is None,
        missing=_missing_by_reason(run.missing),
        title=", ".join(model.name for model in run.models) or "no model was measured",
        baselines=baseline_tables(run, measurements, baseline_runs),
        pictures=tuple(pictures.embedded),
        names=common_names(run.measured),
    )


def _urgency(records: Sequence[CheckRecord]) -> tuple[int, int]:
    """Return where a check stands on the page.

    Gates that block the release come first, sorted by how serious their verdict is. The other gates follow, and then
    the informational checks.
    """
    return min((0, seriousness(one)) if one.blocks else (1 if one.severity == "gate" else 2, 0) for one in records)


def _gates(run: RunRecord) -> tuple[str, ...]:
    """Return the lines of `gate_notes` as sentences. A single line is left out, because the headline says the same."""
    notes = gate_notes(run)
    return tuple(sentence(note.rstrip(".")) for note in notes) if len(notes) > 1 else ()


def _missing_by_reason(missing: Sequence[MissingCase]) -> tuple[tuple[str, tuple[MissingCase, ...]], ...]:
    by_reason: dict[str, list[MissingCase]] = {}
    for case in missing:
        by_reason.setdefault(case.reason, []).append(case)
    return tuple((reason, tuple(cases)) for reason, cases in by_reason.items())


class _Anchors:
    """Creates unique fragment identifiers, which consist of lower-case letters, digits and hyphens."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, text: str) -> str:
        base = "check-" + re.sub(r"[^a-z0-9]+", "-", text.lower().removeprefix("check-")).strip("-")[:80]
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}-{count}"
        self._taken.add(name)
        return name


def _subject_names(cases: Sequence[Case]) -> dict[Case, str]:
    seeds = len({seed for _, _, seed in cases}) > 1
    return {case: f"{case[0]} on {case[1]}" + (f", seed {case[2]}" if seeds else "") for case in cases}


def _subject(case: Case, name: str, run: RunRecord) -> SubjectView:
    model, data, _ = case
    gates = [c for c in run.checks if (c.model, c.data, c.seed) == case and c.severity == "gate"]
    passed = sum(gate.verdict == "pass" for gate in gates)
    blocked = any(gate.blocks and gate.key[:3] not in excepted_gates(run) for gate in gates)
    return SubjectView(
        name=name,
        model=model,
        data=data,
        seed=name.removeprefix(f"{model} on {data}"),
        gates=f"{passed} of {len(gates)} passed" if gates else "none",
        state="fail" if blocked else "pass" if gates else "undefined",
    )


def _case(
    record: CheckRecord,
    *,
    anchor: str,
    subject: str,
    role: str,
    drawing: Drawing | None,
    heatmaps: tuple[Heatmap, ...],
    typical: tuple[Heatmap, ...],
) -> CaseView:
    verdict, names = record.verdict, names_of(record.unit_names)
    places = digits(record)
    sentences = (
        record.in_words,
        verdict_sentence(record),
        planned(record),
        detected(record),
        defined_sentence(record),
    )
    return CaseView(
        anchor=anchor,
        check=record,
        subject=subject,
        verdict=verdict,
        verdict_name=wording.VERDICT_NAMES[verdict],
        symbol=wording.VERDICT_SYMBOLS[verdict],
        role=role,
        value=number(record.value, digits=places),
        statistic=", ".join(filter(None, (record.statistic, record.unit))),
        interval=interval_words(record),
        fail_interval=interval_range(record.fail_interval, places) if record.fail_interval else "",
        required=requirement_symbol(record.requirement) if record.requirement else wording.BETTER[record.better],
        references=tuple(
            ReferenceView(
                name=names.named(displayed_name(reference.name)),
                value=number(reference.value),
                meaning=reference.meaning,
                count="" if reference.n is None else number(reference.n),
            )
            for reference in record.references
        ),
        explanation=" ".join(filter(None, sentences)),
        note=sentence(record.note.rstrip(".")),
        strip=drawing,
        distribution=histogram(record, record.distribution) if record.distribution else None,
        charts=_charts(record),
        undefined=tuple(sorted(record.undefined.items(), key=lambda pair: -pair[1])),
        parameters=tuple((name, _plain(value)) for name, value in record.parameters.items() if value is not None),
        details=tuple((name, _plain(value)) for name, value in record.details.items()),
        breakdowns=tuple(
            (
                one.by,
                tuple((part.name, number(part.value, digits=places), number(part.n)) for part in one.parts),
            )
            for one in record.breakdowns
        ),
        typical=typical,
        heatmaps=heatmaps,
        names=names,
        instances_left_out=len(record.worst) - len(heatmaps),
        open_heatmaps=0 if verdict in ("pass", "informational") else OPEN_INSTANCES,
    )


def _charts(record: CheckRecord) -> tuple[tuple[str, Drawing | None], ...]:
    charts = tuple((c.title, chart(c)) for c in record.charts)
    if record.matrix is None:
        return charts
    return (
        (
            f"By layer and head: {record.statistic}, {record.unit}",
            matrix(record.matrix, title=record.title, rows=names_of(record.unit_names).rows),
        ),
        *charts,
    )


def _plain(value: str | float | int | bool | None) -> str:
    """Format an argument of a check or a further result."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else number(value)
