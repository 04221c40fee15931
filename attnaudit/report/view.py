"""The content of the templates, assembled from the records, so that the templates compute nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from attnaudit.formatting import number, sentence
from attnaudit.records import CheckRecord, MissingCase, RunRecord
from attnaudit.report import wording
from attnaudit.report.charts import Drawing, chart
from attnaudit.report.check_charts import histogram, strip, strip_range
from attnaudit.report.gate_text import excepted_gates, gate_notes, option_lines
from attnaudit.report.heatmaps import Heatmap, columns_to_show, heatmap
from attnaudit.report.matrices import matrix
from attnaudit.report.questions import FIRST_REMEDIES
from attnaudit.report.run_files import Case, MeasuredInstance, MeasurementsFile
from attnaudit.verdict_text import (
    defined_sentence,
    digits,
    interval_range,
    interval_words,
    planned,
    requirement_symbol,
    shown_verdict,
    verdict_sentence,
)

#: How many instances a case shows at most.
MOST_INSTANCES = 5
#: How many of them are open from the start if the check did not pass.
OPEN_INSTANCES = 2
#: How many coloured tokens the whole file may contain: they take about 1 MB.
MOST_TOKEN_CELLS = 14_000

RecordKey: TypeAlias = tuple[str, str, str, int]  # model, data, check, seed


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceView:
    """A reference value of a check; `count` is the number of instances that it is computed from, or "" if unknown."""

    name: str
    value: str
    meaning: str
    count: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """One check on one model and data set.

    Attributes:
        anchor: Its fragment identifier on the page.
        check: Its record.
        subject: Its model and data set.
        verdict: Its verdict, or "measured"; also its CSS class.
        verdict_name: The verdict in words.
        symbol: The verdict as one character.
        role: Whether it is a gate, and whether it blocks the release.
        value: Its value.
        statistic: The statistic, with its unit where it has one.
        interval: Its interval; an em dash where it has none.
        fail_interval: The interval that a failure needs; "" where it has none.
        required: Its threshold with its sign; an em dash where it has none.
        references: Its reference values.
        explanation: Sentences that explain the verdict.
        note: A sentence with remarks on the value; "" where there are none.
        strip: The drawing in the table of verdicts.
        distribution: The histogram of the values per instance.
        charts: (title, drawing) of the other charts.
        undefined: (reason, count) of the instances without a value, the largest count first.
        parameters: (name, value) of each setting of the check.
        details: (name, value) of each further number.
        heatmaps: The worst instances, as far as they are shown.
        instances_left_out: How many more instances the record lists.
        open_heatmaps: How many of the heatmaps are open from the start.
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
    heatmaps: tuple[Heatmap, ...]
    instances_left_out: int
    open_heatmaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """One check with its cases, in the order of models and data sets; `check` is the record of its first case."""

    anchor: str
    check: CheckRecord
    cases: tuple[CaseView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectView:
    """One model on one data set: a column of the table that compares models.

    Attributes:
        name: The model and the data set, and the seed where the run has several.
        model: The name of the model.
        data: The name of the data set.
        seed: The seed in words, such as ", seed 1", where the run has several; otherwise "".
        gates: How many of its gates passed, in words.
        state: "pass", "fail", or "undefined" where it has no gate.
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
        outcome: The headline, with its notes and remedies.
        checks: Every check with its cases.
        subjects: Every pair of a model and a data set.
        command: The command line of the run.
        options: Lines with the options that were not on the command line.
        gates: Lines on the gates that were not selected, are excepted or have no verdict, and on tests that were run
            again, after a line that counts the gates; empty if there are none of these.
        measurements_absent: Whether the run folder has no measurements.parquet.
        missing: (reason, cases) of the cases without a verdict.
        title: The models of the run.
    """

    run: RunRecord
    outcome: wording.Outcome
    checks: tuple[CheckView, ...]
    subjects: tuple[SubjectView, ...]
    command: str
    options: tuple[str, ...]
    gates: tuple[str, ...]
    measurements_absent: bool
    missing: tuple[tuple[str, tuple[MissingCase, ...]], ...]
    title: str

    first_remedies = FIRST_REMEDIES


def assemble(run: RunRecord, measurements: MeasurementsFile) -> Page:
    """Assemble the views of a whole run.

    Args:
        run: The record of the run.
        measurements: Its measurements, for the tokens of the worst instances.
    """
    cases: dict[Case, None] = {(c.model, c.data, c.seed): None for c in run.checks}
    names = _subject_names(list(cases))
    heatmaps = _heatmaps(run, measurements)
    records_of_check: dict[str, list[CheckRecord]] = {}
    for record in run.checks:
        records_of_check.setdefault(record.check, []).append(record)
    anchors = _Anchors()
    views = []
    for records in records_of_check.values():
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
            )
            for record in records
        )
        views.append(CheckView(anchor=anchor, check=records[0], cases=case_views))
    return Page(
        run=run,
        outcome=wording.outcome(run),
        checks=tuple(views),
        subjects=tuple(_subject(case, names[case], run) for case in cases),
        command=shlex.join(run.command),
        options=tuple(option_lines(run)),
        gates=_gates(run),
        measurements_absent=measurements.measured is None,
        missing=_missing_by_reason(run.missing),
        title=", ".join(model.name for model in run.models) or "no model was measured",
    )


def _gates(run: RunRecord) -> tuple[str, ...]:
    """Return the lines on gates as sentences. A single line adds nothing to the headline, so it is left out."""
    notes = gate_notes(run)
    return tuple(sentence(note.rstrip(".")) for note in notes) if len(notes) > 1 else ()


def _missing_by_reason(missing: Sequence[MissingCase]) -> tuple[tuple[str, tuple[MissingCase, ...]], ...]:
    by_reason: dict[str, list[MissingCase]] = {}
    for case in missing:
        by_reason.setdefault(case.reason, []).append(case)
    return tuple((reason, tuple(cases)) for reason, cases in by_reason.items())


class _Anchors:
    """Makes unique fragment identifiers from lower-case letters, digits and hyphens."""

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
    record: CheckRecord, *, anchor: str, subject: str, role: str, drawing: Drawing | None, heatmaps: tuple[Heatmap, ...]
) -> CaseView:
    verdict = shown_verdict(record)
    places = digits(record)
    sentences = (verdict_sentence(record), planned(record), defined_sentence(record))
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
        required=requirement_symbol(record.requirement) if record.requirement else "—",
        references=tuple(
            ReferenceView(
                name=reference.name,
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
        heatmaps=heatmaps,
        instances_left_out=len(record.worst) - len(heatmaps),
        open_heatmaps=0 if verdict in ("pass", "measured") else OPEN_INSTANCES,
    )


def _charts(record: CheckRecord) -> tuple[tuple[str, Drawing | None], ...]:
    charts = tuple((c.title, chart(c)) for c in record.charts)
    if record.matrix is None:
        return charts
    return (
        (f"By layer and head: {record.statistic}, {record.unit}", matrix(record.matrix, title=record.title)),
        *charts,
    )


def _plain(value: str | float | int | bool | None) -> str:
    """Format a setting or a further number."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else number(value)


def _heatmaps(run: RunRecord, measurements: MeasurementsFile) -> dict[RecordKey, tuple[Heatmap, ...]]:
    """Return the heatmaps of the worst instances of each case, as many as the size limit of the file allows."""
    measured = measurements.measured or {}
    pairs: list[tuple[Case, str]] = []
    columns: set[str] = set()
    for record in run.checks:
        case = (record.model, record.data, record.seed)
        pairs += [(case, ranked.instance) for ranked in record.worst[:MOST_INSTANCES]]
        columns.update(columns_to_show(record, measured.get(case, ())))
    instances = measurements.instances(pairs, columns)
    cells_per_case = MOST_TOKEN_CELLS // max(1, sum(bool(record.worst) for record in run.checks))
    return {
        record.key: _heatmaps_of_case(record, measurements, instances, most_cells=cells_per_case)
        for record in run.checks
    }


def _heatmaps_of_case(
    record: CheckRecord,
    measurements: MeasurementsFile,
    instances: dict[tuple[Case, str], MeasuredInstance],
    *,
    most_cells: int,
) -> tuple[Heatmap, ...]:
    """Return the worst instances of one case: at least one, and more while all have at most `most_cells` tokens."""
    case = (record.model, record.data, record.seed)
    heatmaps: list[Heatmap] = []
    cells = 0
    for ranked in record.worst[:MOST_INSTANCES]:
        view = heatmap(
            record,
            ranked.instance,
            ranked.value,
            instances.get((case, ranked.instance)),
            (measurements.measured or {}).get(case, ()),
            file_absent=measurements.measured is None,
        )
        cells += sum(len(row.cells) for row in view.rows)
        if heatmaps and cells > most_cells:
            break
        heatmaps.append(view)
    return tuple(heatmaps)
