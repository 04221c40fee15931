"""What the templates show, assembled from the records: nothing is computed in a template."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit import formatting, verdict_text
from attnaudit.records import CheckRecord, MissingCase, RunRecord
from attnaudit.report import wording
from attnaudit.report.charts import Drawing, chart, histogram, strip, strip_span
from attnaudit.report.heatmaps import Heatmap, columns_to_show, heatmap
from attnaudit.report.matrices import matrix
from attnaudit.report.questions import FIRST_REMEDIES
from attnaudit.report.run_files import Case, MeasurementsFile

WORST = 5  # instances per case
OPEN = 2  # of which this many are unfolded
CELLS = 14_000  # coloured tokens in the whole file: about 1 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseView:
    """One check on one model and data set."""

    anchor: str
    check: CheckRecord
    subject: str
    state: str
    verdict: str
    symbol: str
    value: str
    interval: str
    fail_interval: str
    required: str
    references: tuple[tuple[str, str, str, str], ...]  # name, value, meaning, n
    why_verdict: str
    strip: Drawing | None
    distribution: Drawing | None
    charts: tuple[tuple[str, Drawing | None], ...]
    undefined: tuple[tuple[str, int], ...]
    parameters: tuple[tuple[str, str], ...]
    details: tuple[tuple[str, str], ...]
    heatmaps: tuple[Heatmap, ...]
    withheld: int
    unfolded: int  # how many instances are shown without opening anything


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """One check with its cases, in the order of the models and data sets."""

    anchor: str
    check: CheckRecord
    cases: tuple[CaseView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectView:
    """One model on one data set: its count of verdicts, for the side-by-side view."""

    name: str
    model: str
    data: str
    seed: str  # in words, where the run has several
    says: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    run: RunRecord
    outcome: wording.Outcome
    checks: tuple[CheckView, ...]
    subjects: tuple[SubjectView, ...]
    several: bool
    command: str
    measurements_absent: bool
    missing: tuple[tuple[str, tuple[MissingCase, ...]], ...]  # reason, its cases
    title: str

    first_remedies = FIRST_REMEDIES

    # The words that templates call.
    number = staticmethod(formatting.number)
    plural = staticmethod(formatting.plural)
    duration = staticmethod(formatting.duration)


def assemble(run: RunRecord, measurements: MeasurementsFile) -> Page:
    """The whole report as views."""
    cases: dict[Case, None] = {(c.model, c.data, c.seed): None for c in run.checks}
    shown, withheld = _heatmaps(run, measurements)
    grouped: dict[str, list[CheckRecord]] = {}
    for one in run.checks:
        grouped.setdefault(one.check, []).append(one)
    anchors = _Anchors()
    names = _subject_names(list(cases))
    views = []
    for group in grouped.values():
        span = strip_span(group)
        anchor = anchors.of(group[0].check)
        many = len(group) > 1
        views.append(
            CheckView(
                anchor=anchor,
                check=group[0],
                cases=tuple(
                    _case(
                        one,
                        anchor=anchors.of(f"{anchor}-{one.model}-{one.data}") if many else anchor,
                        subject=names[(one.model, one.data, one.seed)],
                        picture=strip(one, span),
                        heatmaps=shown.get(one.key, ()),
                        withheld=withheld.get(one.key, 0),
                    )
                    for one in group
                ),
            )
        )
    return Page(
        run=run,
        outcome=wording.outcome(run),
        checks=tuple(views),
        subjects=tuple(_subject(case, names[case], views) for case in cases),
        several=len(cases) > 1,
        command=shlex.join(run.command),
        measurements_absent=measurements.measured is None,
        missing=_by_reason(run.missing),
        title=", ".join(one.name for one in run.models) or "no model was measured",
    )


def _by_reason(missing: Sequence[MissingCase]) -> tuple[tuple[str, tuple[MissingCase, ...]], ...]:
    grouped: dict[str, list[MissingCase]] = {}
    for one in missing:
        grouped.setdefault(one.reason, []).append(one)
    return tuple((reason, tuple(cases)) for reason, cases in grouped.items())


class _Anchors:
    """Unique fragment names made of plain letters only."""

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


def _subject(case: Case, name: str, views: Sequence[CheckView]) -> SubjectView:
    records = [v.check for view in views for v in view.cases]
    gated = [c for c in records if (c.model, c.data, c.seed) == case and c.severity == "gate"]
    passed = sum(c.verdict == "pass" for c in gated)
    blocked = any(c.blocks for c in gated)
    says = f"{passed} of {len(gated)} gated checks passed" if gated else "no gated check"
    state = "fail" if blocked else "pass" if gated else "undefined"
    seed = name.removeprefix(f"{case[0]} on {case[1]}")
    return SubjectView(name=name, model=case[0], data=case[1], seed=seed, says=says, state=state)


def _case(
    one: CheckRecord,
    *,
    anchor: str,
    subject: str,
    picture: Drawing | None,
    heatmaps: tuple[Heatmap, ...],
    withheld: int,
) -> CaseView:
    state = verdict_text.shown_verdict(one)
    return CaseView(
        anchor=anchor,
        check=one,
        subject=subject,
        state=state,
        verdict=wording.VERDICTS[state],
        symbol=wording.SYMBOLS[state],
        value=formatting.number(one.value, digits=verdict_text.digits(one)),
        interval=verdict_text.interval_words(one),
        fail_interval=verdict_text.interval_range(one.fail_interval, verdict_text.digits(one))
        if one.fail_interval
        else "",
        required=verdict_text.requirement_symbol(one.requirement) if one.requirement else "—",
        references=tuple(
            (r.name, formatting.number(r.value), r.meaning, "" if r.n is None else f"{r.n:,}") for r in one.references
        ),
        why_verdict=" ".join(
            filter(
                None,
                (verdict_text.verdict_sentence(one), verdict_text.planned(one), verdict_text.defined_sentence(one)),
            )
        ),
        strip=picture,
        distribution=histogram(one, one.distribution) if one.distribution else None,
        charts=_charts(one),
        undefined=tuple(sorted(one.undefined.items(), key=lambda pair: -pair[1])),
        parameters=tuple((name, _plain(value)) for name, value in one.parameters.items() if value is not None),
        details=tuple((name, _plain(value)) for name, value in one.details.items()),
        heatmaps=heatmaps,
        withheld=withheld,
        unfolded=0 if state in ("pass", "measured") else OPEN,
    )


def _charts(one: CheckRecord) -> tuple[tuple[str, Drawing | None], ...]:
    charts = tuple((c.title, chart(c)) for c in one.charts)
    if one.matrix is None:
        return charts
    return ((f"By layer and head: {one.statistic}, {one.unit}", matrix(one.matrix, measured=one.title)), *charts)


def _plain(value: str | float | int | bool | None) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else formatting.number(value)


def _heatmaps(
    run: RunRecord, measurements: MeasurementsFile
) -> tuple[dict[tuple[str, str, str, int], tuple[Heatmap, ...]], dict[tuple[str, str, str, int], int]]:
    """The drawn instances of each case, and how many more the record names."""
    names = measurements.measured or {}
    wanted = []
    columns: set[str] = set()
    for one in run.checks:
        case = (one.model, one.data, one.seed)
        wanted += [(case, worst.instance) for worst in one.worst[:WORST]]
        columns.update(columns_to_show(one, names.get(case, ())))
    found = measurements.instances(wanted, columns)
    allowance = CELLS // max(1, sum(bool(c.worst) for c in run.checks))
    drawn, withheld = {}, {}
    for one in run.checks:
        case = (one.model, one.data, one.seed)
        maps: list[Heatmap] = []
        cells = 0
        for worst in one.worst[:WORST]:
            shown = found.get((case, worst.instance))
            view = heatmap(
                one, worst.instance, worst.value, shown, names.get(case, ()), absent=measurements.measured is None
            )
            cells += sum(len(line.pieces) for line in view.lines)
            if maps and cells > allowance:
                break
            maps.append(view)
        drawn[one.key] = tuple(maps)
        withheld[one.key] = len(one.worst) - len(maps)
    return drawn, withheld
