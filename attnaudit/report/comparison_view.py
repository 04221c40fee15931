"""The content of the page that compares two runs, in a form that the templates only have to print."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.formatting import number, percentage, plural
from attnaudit.records import CheckRecord
from attnaudit.records.comparison_records import ComparedCheck, ComparedSubject, Comparison, PairedValue
from attnaudit.report.charts import Drawing
from attnaudit.report.difference_strip import difference_strip
from attnaudit.report.paired_heatmaps import PairedMap, columns_of, paired_map
from attnaudit.report.run_files import Case, MeasuredInstance, MeasurementsFile
from attnaudit.report.wording import VERDICT_NAMES, VERDICT_SYMBOLS
from attnaudit.verdict_text import shown_verdict

#: Largest number of instances that are shown for a check.
MOST_INSTANCES = 5
#: How many of these are open at first if the check is a gate.
OPEN_INSTANCES = 1
#: Largest number of coloured tokens on the page. They take about 1 MB.
MOST_TOKEN_CELLS = 14_000

#: The meaning of a difference -> its name, its symbol, and the verdict that has the same colour.
MEANINGS = {
    "better": ("Better", "+", "pass"),
    "worse": ("Worse", "−", "fail"),
    "higher": ("Higher", "↑", "measured"),
    "lower": ("Lower", "↓", "measured"),
    "unclear": ("No clear difference", "≈", "measured"),
    "same": ("Unchanged", "=", "measured"),
    "no interval": ("No interval", "?", "undefined"),
    "not comparable": ("Not comparable", "∅", "undefined"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """A verdict as text.

    Attributes:
        css: The CSS class of the verdict.
        name: The verdict in words.
        symbol: The verdict as one character.
    """

    css: str
    name: str
    symbol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """A number in both runs, or a check, as a row of the table of differences.

    Attributes:
        title: The name of the number, or the title of the check.
        id: The id of the check; "" for accuracy and F1.
        anchor: The fragment identifier of the instances of the check; "" if none are shown.
        role: "gate" or "informational"; "" for accuracy and F1.
        base: The number in the base run.
        candidate: The number in the candidate run.
        difference: The difference with its sign; an em dash if there is none.
        interval: The interval of the difference; "" if there is none.
        level: The confidence of the interval, such as "95%"; "" if there is none.
        detectable: The smallest difference that would have been detected; "" if it is unknown.
        count: The number of instances with a value in both runs; an em dash if the check is not comparable.
        meaning: What the difference means, in the form of a verdict.
        strip: The drawing of the interval; None without one.
        verdicts: The verdict of each run, the base run first; empty for accuracy and F1.
        changed: Whether the verdict or the role differs between the runs.
        reason: Why there is no difference or interval; "" if there are both.
        warning: Why the interval may be too narrow; "" if nothing suggests that.
    """

    title: str
    id: str = ""
    anchor: str = ""
    role: str = ""
    base: str
    candidate: str
    difference: str
    interval: str
    level: str
    detectable: str
    count: str
    meaning: VerdictView
    strip: Drawing | None
    verdicts: tuple[VerdictView, ...] = ()
    changed: bool = False
    reason: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedView:
    """The instances that moved most under one check, or whose attention did.

    Attributes:
        anchor: The fragment identifier.
        title: The title of the check, or "Attention".
        about: What the numbers of the instances are.
        maps: The instances.
        open: The number of instances that are open at first.
    """

    anchor: str
    title: str
    about: str
    maps: tuple[PairedMap, ...]
    open: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectComparison:
    """A model on a data set in both runs.

    Attributes:
        name: The models and the data set in words.
        facts: Sentences about the instances that were paired, the predictions and the attention.
        task: The rows of accuracy and F1.
        checks: The rows of the checks.
        only_one: Sentences about the checks that only one of the runs judged.
        moved: The instances that moved most.
    """

    name: str
    facts: tuple[str, ...]
    task: tuple[DifferenceRow, ...]
    checks: tuple[DifferenceRow, ...]
    only_one: tuple[str, ...]
    moved: tuple[MovedView, ...]

    @property
    def changed(self) -> tuple[DifferenceRow, ...]:
        """The checks whose verdict or role differs between the runs."""
        return tuple(row for row in self.checks if row.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """The whole comparison.

    Attributes:
        comparison: The records.
        title: The names of the runs.
        headline: What the comparison found, in one or two sentences.
        state: "fail" if a gate that passed in the base run blocks in the candidate run; otherwise "measured".
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


def assemble_comparison(comparison: Comparison, base: MeasurementsFile, candidate: MeasurementsFile) -> ComparisonPage:
    """Assemble the content of the page.

    Args:
        comparison: The comparison of two runs.
        base: The measurements of the base run.
        candidate: The measurements of the candidate run.
    """
    checks = [check for subject in comparison.subjects for check in subject.checks]
    lost = [check for check in checks if check.is_gate and not check.base.blocks and check.candidate.blocks]
    subjects = comparison.subjects
    cells = MOST_TOKEN_CELLS // max(1, sum(1 + len(subject.checks) for subject in subjects))
    return ComparisonPage(
        comparison=comparison,
        title=f"{comparison.base.run} and {comparison.candidate.run}",
        headline=_headline(checks, lost),
        state="fail" if lost else "measured",
        notes=(*_task_notes(subjects), *comparison.left_out, *comparison.notes),
        subjects=tuple(
            _subject(one, i, comparison, (base, candidate), most_cells=cells) for i, one in enumerate(subjects)
        ),
        policy=_policy_sentence(comparison),
    )


def _headline(checks: Sequence[ComparedCheck], lost: Sequence[ComparedCheck]) -> str:
    meanings = [check.paired.meaning for check in checks if check.paired and _decided(check.paired)]
    count = Counter(meanings)
    of = f"of {plural(len(meanings), 'compared check')}"
    if not meanings:
        found = "No check could be compared instance by instance."
    elif not count["worse"] and not count["better"]:
        found = f"The candidate is not clearly better or worse on any {of}."
    else:
        better, worse = (count[name] or "none" for name in ("better", "worse"))
        found = f"The candidate is clearly worse on {worse} {of} and clearly better on {better}."
    changed = sum(_verdict_changed(check) for check in checks)
    if lost:
        return f"{found} {plural(len(lost), 'gate')} that passed in the base run {_do(len(lost))} not pass any more."
    if changed:
        return f"{found} {plural(changed, 'verdict')} changed, and no gate that passed is lost."
    return f"{found} No verdict changed."


def _decided(paired: PairedValue) -> bool:
    """Return whether it is known what a difference means."""
    return paired.interval is not None or paired.meaning == "same"


def _do(count: int) -> str:
    return "does" if count == 1 else "do"


def _task_notes(subjects: Sequence[ComparedSubject]) -> list[str]:
    """Return one sentence on the accuracy of each model and data set."""
    notes = []
    for subject in subjects:
        paired = next((one for one in subject.task if one.name == "accuracy"), None)
        if paired is not None:
            where = f" on {subject.candidate_data}" if len(subjects) > 1 else ""
            bounds = f" ({_interval(paired)}, {paired.interval.level} interval)" if paired.interval else ""
            notes.append(
                f"Accuracy{where}: {number(paired.base)} in the base run, {number(paired.candidate)} in the candidate "
                f"run; difference {_signed(paired.difference)}{bounds}."
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
            f"The policies differ. The candidate's policy may pass what that of the base run blocks: see the first "
            f"{plural(laxer, 'line')} of {len(changes)}."
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
    anchors = _anchors(subject, position)
    moved = _moved(subject, anchors, cases, files, most_cells=most_cells)
    shown = {one.anchor for one in moved}
    return SubjectComparison(
        name=_name(subject),
        facts=tuple(_facts(subject)),
        task=tuple(_row(paired, paired.name) for paired in subject.task),
        checks=tuple(_check_row(check, anchors[check.candidate.check], shown) for check in subject.checks),
        only_one=tuple(_only_one(subject)),
        moved=tuple(moved),
    )


def _anchors(subject: ComparedSubject, position: int) -> dict[str, str]:
    """Return unique fragment identifiers: the id of a check -> the identifier of its instances."""
    found: dict[str, str] = {}
    for i, check in enumerate(subject.checks):
        words = re.sub(r"[^a-z0-9]+", "-", check.candidate.check.lower()).strip("-")[:60]
        found[check.candidate.check] = f"moved-{position}-{i}-{words}"
    return found


def _name(subject: ComparedSubject) -> str:
    before, after = subject.base_model, subject.candidate_model
    models = f"{after}, compared with {before}" if before != after else after
    return f"{models}, on {subject.candidate_data}"


def _facts(subject: ComparedSubject) -> list[str]:
    facts = [f"{plural(subject.paired, 'instance')} from {plural(subject.sources, 'source')} paired by id."]
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
    if subject.attention_distance is not None:
        facts.append(
            f"The attention weights of the two models differ by a total variation distance of "
            f"{number(subject.attention_distance)} on average (0: equal, 1: on other tokens), over "
            f"{plural(subject.attention_compared, 'text')} with the same tokens."
        )
    else:
        facts.append("The models split no text into the same tokens, so their attention weights are shown separately.")
    return facts


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _only_one(subject: ComparedSubject) -> list[str]:
    return [
        f"Only the {which} run judged: {', '.join(ids)}."
        for which, ids in (("base", subject.only_base), ("candidate", subject.only_candidate))
        if ids
    ]


def _row(paired: PairedValue, title: str) -> DifferenceRow:
    meaning: str = paired.meaning
    if not _decided(paired):
        meaning = "no interval"
    return DifferenceRow(
        title=title[:1].upper() + title[1:],
        base=number(paired.base),
        candidate=number(paired.candidate),
        difference=_signed(paired.difference),
        interval=_interval(paired),
        level=paired.interval.level if paired.interval else "",
        detectable="" if paired.detectable is None else number(paired.detectable),
        count=number(paired.n),
        meaning=_meaning(meaning),
        strip=difference_strip(paired, MEANINGS[meaning][2]),
    )


def _check_row(compared: ComparedCheck, anchor: str, shown: set[str]) -> DifferenceRow:
    before, after = compared.base, compared.candidate
    fields = {
        "title": after.title,
        "id": after.check,
        "anchor": anchor if anchor in shown else "",
        "role": _role(compared),
        "verdicts": (_verdict(before), _verdict(after)),
        "changed": _verdict_changed(compared),
        "reason": compared.reason,
        "warning": compared.warning,
    }
    if compared.paired is not None:
        row = _row(compared.paired, after.title)
        return DifferenceRow(**{name: getattr(row, name) for name in row.__slots__} | fields)
    return DifferenceRow(
        base=number(before.value),
        candidate=number(after.value),
        difference="—",
        interval="",
        level="",
        detectable="",
        count="—",
        meaning=_meaning("not comparable"),
        strip=None,
        **fields,  # type: ignore[arg-type]
    )


def _role(compared: ComparedCheck) -> str:
    roles = ["gate" if one.severity == "gate" else "informational" for one in (compared.base, compared.candidate)]
    return roles[0] if roles[0] == roles[1] else f"{roles[0]} → {roles[1]}"


def _verdict_changed(compared: ComparedCheck) -> bool:
    return shown_verdict(compared.base) != shown_verdict(compared.candidate) or (
        compared.base.severity != compared.candidate.severity
    )


def _verdict(record: CheckRecord) -> VerdictView:
    verdict = shown_verdict(record)
    return VerdictView(css=verdict, name=VERDICT_NAMES[verdict], symbol=VERDICT_SYMBOLS[verdict])


def _meaning(meaning: str) -> VerdictView:
    name, symbol, css = MEANINGS[meaning]
    return VerdictView(css=css, name=name, symbol=symbol)


def _signed(value: float | None) -> str:
    """Format a difference with its sign."""
    return f"+{number(value)}" if value is not None and value > 0 else number(value)


def _interval(paired: PairedValue) -> str:
    """Format the interval of a difference; "" without one."""
    return "" if paired.interval is None else f"{_signed(paired.interval.low)} to {_signed(paired.interval.high)}"


def _moved(
    subject: ComparedSubject,
    anchors: dict[str, str],
    cases: tuple[Case, Case],
    files: tuple[MeasurementsFile, MeasurementsFile],
    *,
    most_cells: int,
) -> list[MovedView]:
    """Return the instances that moved most, of each check and of the attention itself."""
    measured = [(file.measured or {}).get(case, set()) for file, case in zip(files, cases, strict=True)]
    columns = {one.candidate.check: columns_of(one.candidate, measured) for one in subject.checks}
    ids = {moved.instance for check in subject.checks for moved in check.moved[:MOST_INSTANCES]}
    ids |= {moved.instance for moved in subject.attention_moved[:MOST_INSTANCES]}
    wanted = {"attention", *(name for names in columns.values() for name in names)}
    found = [
        file.instances([(case, one) for one in sorted(ids)], wanted) for file, case in zip(files, cases, strict=True)
    ]

    def maps(moved: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[PairedMap, ...]:
        shown: list[PairedMap] = []
        cells = 0
        for instance, change in moved[:MOST_INSTANCES]:
            both: list[MeasuredInstance | None] = [
                rows.get((case, instance)) for rows, case in zip(found, cases, strict=True)
            ]
            view = paired_map(instance, change, both, names)
            cells += sum(len(row.cells) for _, row in view.rows)
            if shown and cells > most_cells:
                break
            shown.append(view)
        return tuple(shown)

    views = []
    for check in subject.checks:
        changes = [(one.instance, f"{number(one.base)} → {number(one.candidate)}") for one in check.moved]
        if changes:
            record = check.candidate
            about = record.distribution.label if record.distribution else record.value_name
            views.append(
                MovedView(
                    anchor=anchors[record.check],
                    title=record.title,
                    about=about,
                    maps=maps(changes, columns[record.check]),
                    open=OPEN_INSTANCES if check.is_gate else 0,
                )
            )
    distances = [(one.instance, number(one.distance)) for one in subject.attention_moved]
    if distances:
        views.append(
            MovedView(
                anchor=f"{next(iter(anchors.values()), 'moved')}-attention",
                title="Attention itself",
                about="total variation distance between the weights of the two models",
                maps=maps(distances, ["attention"]),
                open=0,
            )
        )
    return views
