"""Write the result of a validation to validation.json, validation.md and validation.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError
from attnaudit.formatting import plural
from attnaudit.records import Chart, Series
from attnaudit.report.charts import Drawing, chart
from attnaudit.report.markdown import LONGEST_REASON, escape
from attnaudit.research.study.report_files import record_json, render_page, write_files
from attnaudit.research.study.text_tables import markdown_table
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.figures_schema import CheckFigures, Figures, GroupRates, InTurn, InvarianceResult
from attnaudit.research.validation.validation_schema import FamilyFigures, Validation

#: The largest number of series in a chart.
MAXIMUM_CURVES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySection:
    """The data of the section of one family.

    Attributes:
        family: The figures of the family.
        gated_roc: A chart with the ROC curves of the policy and of its gated checks. None if there are no curves.
        ungated_roc: A chart with the ROC curves of the other checks. If there are too many curves, it shows only some
            of them. None if there are no curves.
        checks: The checks in the order in which the page lists them.
    """

    family: FamilyFigures
    gated_roc: Drawing | None
    ungated_roc: Drawing | None
    checks: list[CheckFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPage:
    """The data of the HTML page.

    Attributes:
        validation: The result of the validation.
        sections: One section per family.
        figure_text: The module whose functions the template calls to format numbers.
    """

    validation: Validation
    sections: list[FamilySection]

    figure_text = figure_text


def write(validation: Validation, out: Path) -> list[Path]:
    """Write validation.json, validation.md and validation.html into a folder, and return their paths.

    Raises:
        ReportError: A file cannot be written.
    """
    return write_files(
        out,
        {
            "validation.json": record_json(validation),
            "validation.md": markdown(validation),
            "validation.html": html(validation),
        },
    )


def read(path: Path) -> Validation:
    """Read a validation.json.

    Raises:
        ReportError: The file cannot be read, or it is not a valid result of a validation.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Validation)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(
            f"{path}: cannot be read as a validation ({error}). Run `attnaudit validate` again."
        ) from error


def html(validation: Validation) -> str:
    """Return the result as one HTML page that opens offline."""
    sections = [
        FamilySection(
            family=family,
            gated_roc=_gated_roc(family),
            ungated_roc=_ungated_roc(family),
            checks=ordered(family.checks),
        )
        for family in validation.families
    ]
    page = ValidationPage(validation=validation, sections=sections)
    return render_page("attnaudit.research.validation", "validation.html.j2", page)


def markdown(validation: Validation) -> str:
    """Return the result as a Markdown page, for a repository or for the summary of a CI job."""
    lines = ["# Validation of the policies", ""]
    for family in validation.families:
        lines += _family_section(family)
    if validation.invariances:
        head, rows = figure_text.invariance_table(validation.invariances)
        lines += ["## Invariances: the largest change of a value under changes that do not affect faithfulness", ""]
        lines += markdown_table(head, rows)
        lines += [f"* {phrase}." for phrase in figure_text.broken_invariances(validation.invariances)]
        lines += [f"* {phrase}." for phrase in _inapplicable_invariances(validation.invariances)]
        lines.append("")
    lines += _notes("Notes", validation.notes, validation.failed)
    lines.append(
        f"Population {validation.population} (sha256 {validation.population_sha256[:12]}), at most "
        f"{validation.max_instances} instances per model, seed {validation.seed}, "
        f"{validation.measuring_seconds:.0f} s of measuring{' (quick)' if validation.quick else ''}; attnaudit "
        f"{validation.attnaudit}."
    )
    return "\n".join(lines) + "\n"


def _family_section(family: FamilyFigures) -> list[str]:
    lines = [f"## {figure_text.MODELS[family.family].capitalize()}", "", f"{figure_text.outcome(family)}.", ""]
    counts = ", ".join(f"{count} {name}" for name, count in family.counts.items())
    gates = "; ".join(f"`{gate}`" for gate in family.gates) or "none"
    lines += [
        f"* Policy: {family.policy}. Gates: {gates}.",
        f"* Models: {counts}. The held-out models have been scored in {plural(family.looks, 'run')}.",
    ]
    if family.held_out_errors is not None:
        lines += [f"* Held out: {phrase}." for phrase in figure_text.error_phrases(family.held_out_errors)]
    for turn in family.in_turn:
        phrases = figure_text.error_phrases(turn.total)
        lines += [f"* Each {turn.what} left out in turn: {phrase}." for phrase in phrases]
    if family.guarantee is not None:
        lines.append(f"* {family.guarantee.sentence}.")
    lines += [f"* Below the goal: {phrase}." for phrase in figure_text.shortfalls(family)]
    lines += [f"* Caution: {phrase}." for phrase in figure_text.cautions(family)]
    lines.append("")
    for turn in family.in_turn:
        lines += [f"### Each {turn.what} left out in turn", "", *_turn_table(turn)]
    if family.correlations:
        lines += ["### Spearman rank correlation with the known share on which attention is right", ""]
        lines += _correlation_table(family)
    if family.outcomes:
        lines += [
            "### Verdicts by the known share on which attention is right",
            "",
            *_outcome_table(family),
        ]
    if family.held_out is not None:
        lines += ["### Held-out models", "", *_group_table("kind", family.held_out.by_kind)]
        lines += _group_table("encoder", family.held_out.by_encoder)
    if family.trends:
        lines += ["### Trends: models without a known truth, which are not scored", ""]
        rows = [(kind.name, str(kind.models), figure_text.share(kind.alarms)) for kind in family.trends]
        lines += markdown_table(("kind", "models", "alarms"), rows)
    lines += ["### Checks, on held-out models", "", *_check_table(family)]
    if family.remedies:
        lines += ["### Remedies (trends: medians over models)", "", *_remedy_table(family)]
    return lines + _notes("Notes on this family", family.notes, {}, level=3)


def ordered(checks: Sequence[CheckFigures]) -> list[CheckFigures]:
    """Return the gated checks, and then the others. Both groups are sorted by area under the ROC curve, descending."""

    def key(check: CheckFigures) -> tuple[bool, float, str]:
        figures = figure_text.published_figures(check)
        return (not check.gated, -(figures.area.value if figures and figures.area else -1.0), check.check)

    return sorted(checks, key=key)


def _group_table(name: str, groups: Sequence[GroupRates]) -> list[str]:
    rows = [
        (
            group.name or "not stated",
            group.truth,
            str(group.models),
            figure_text.share(group.alarms),
            figure_text.number(group.area),
        )
        for group in groups
    ]
    return markdown_table((name, "truth", "models", "alarms", "area"), rows) if rows else []


def _check_table(family: FamilyFigures) -> list[str]:
    rows = []
    for check in ordered(family.checks):
        figures = figure_text.published_figures(check)
        rows.append(
            (
                f"`{check.check}`",
                figure_text.QUESTIONS[check.question],
                "yes" if check.gated else "no, but allowed" if check.may_gate else "no",
                figure_text.required(check),
                figure_text.area(figures.area if figures else None),
                figure_text.area(check.against_all),
                figure_text.short_share(figures.sensitivity if figures else None),
                figure_text.short_share(figures.false_alarms if figures else None),
                "yes" if check.discriminates else "no",
            )
        )
    head = ("check", "question", "gated", "threshold", "area", "area, all", "caught", "false alarms", "discriminates")
    return markdown_table(head, rows) if rows else []


def _inapplicable_invariances(invariances: Sequence[InvarianceResult]) -> list[str]:
    """Return why some of the invariances do not apply to some checks, one phrase per invariance and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in invariances:
        if row.holds is None and row.note:
            reasons.setdefault((row.invariance, row.note), []).append(row.check)
    return [f"{name}, {', '.join(checks)}: {note}" for (name, note), checks in reasons.items()]


def _turn_table(turn: InTurn) -> list[str]:
    rows = [(row.name, *figure_text.short_errors(row.errors), "; ".join(row.gates) or "none") for row in turn.rows]
    rows.append(("all", *figure_text.short_errors(turn.total), ""))
    head = (turn.what, "false alarms", "misses", "graded models that pass", f"gates chosen without the {turn.what}")
    return markdown_table(head, rows)


def _correlation_table(family: FamilyFigures) -> list[str]:
    rows = [
        (
            f"`{row.check}`",
            "yes" if row.gated else "no",
            row.mechanism or "all graded mechanisms",
            figure_text.correlation(row),
            str(row.models),
            str(row.shares),
        )
        for row in family.correlations
    ]
    return markdown_table(("check", "gated", "mechanism", "ρ", "models", "shares"), rows)


def _outcome_table(family: FamilyFigures) -> list[str]:
    checks = list(family.outcomes[0].median_values)
    rows = [
        (
            f"{row.share:.0%}",
            str(row.passes),
            str(row.inconclusive),
            str(row.fails),
            *(figure_text.number(row.median_values[check]) for check in checks),
        )
        for row in family.outcomes
    ]
    return markdown_table(("share", "pass", "inconclusive", "fail", *(f"median `{check}`" for check in checks)), rows)


def _remedy_table(family: FamilyFigures) -> list[str]:
    rows = [
        (
            effect.option,
            f"`{effect.check}`",
            f"{effect.plain:.3f} (n={effect.plain_models})",
            f"{effect.treated:.3f} (n={effect.treated_models})",
        )
        for effect in family.remedies
    ]
    return markdown_table(("option", "check", "plain", "with it"), rows)


def _notes(title: str, notes: Sequence[str], failed: Mapping[str, str], *, level: int = 2) -> list[str]:
    if not failed and not notes:
        return []
    return [
        f"{'#' * level} {title}",
        "",
        *(f"* {escape(note, LONGEST_REASON)}" for note in notes),
        *(f"* not audited: {escape(name)}: {escape(why, LONGEST_REASON)}" for name, why in sorted(failed.items())),
        "",
    ]


def _roc_chart(title: str, curves: Sequence[tuple[str, Figures]]) -> Drawing | None:
    series = [
        Series(name=name, x=[p.false_alarms for p in figures.roc], y=[p.sensitivity for p in figures.roc])
        for name, figures in curves
        if figures.roc
    ]
    if not series:
        return None
    series.append(Series(name="chance", x=[0.0, 1.0], y=[0.0, 1.0]))
    return chart(
        Chart(
            title=title,
            x_label="alarms on faithful models",
            y_label="alarms on unfaithful models",
            kind="line",
            series=series,
        )
    )


def _curves(checks: Sequence[CheckFigures]) -> list[tuple[str, Figures]]:
    pairs = ((check.check, figure_text.published_figures(check)) for check in checks)
    return [(name, figures) for name, figures in pairs if figures is not None]


def _gated_roc(family: FamilyFigures) -> Drawing | None:
    halves = (("policy, held out", family.held_out), ("policy, tuning half", family.tuning))
    curves = [(name, figures) for name, figures in halves if figures is not None]
    curves += _curves([check for check in family.checks if check.gated])
    return _roc_chart("ROC of the policy and of its gated checks", curves[:MAXIMUM_CURVES])


def _ungated_roc(family: FamilyFigures) -> Drawing | None:
    """Draw the ROC curves of the checks that are not gated, in the order of `ordered`.

    If there are too many curves, only every n-th of them is drawn.
    """
    curves = _curves([check for check in ordered(family.checks) if not check.gated])
    most = MAXIMUM_CURVES - 1
    step = max(1, (len(curves) - 1) // (most - 1))
    curves = curves[::step] if len(curves) > most else curves
    return _roc_chart("ROC of checks that are not gated", curves[:most])
