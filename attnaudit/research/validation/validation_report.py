"""Write the result of a validation to validation.json, validation.md and validation.html."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError
from attnaudit.records import Chart, Series
from attnaudit.report.charts import Drawing, chart
from attnaudit.report.markdown import LONGEST_REASON, escape
from attnaudit.research.study.report_files import record_json, render_page, write_files
from attnaudit.research.study.text_tables import markdown_table
from attnaudit.research.validation import figure_text
from attnaudit.research.validation.validation_schema import CheckFigures, Figures, GroupRates, Validation

#: The largest number of series in a chart.
MAXIMUM_CURVES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPage:
    """The data of the HTML page.

    Attributes:
        validation: The result of the validation.
        gated_roc: A chart with the ROC curves of the policy and of its gated checks. None if there are no curves.
        ungated_roc: A chart with the ROC curves of the other checks. If there are too many curves, it shows only some
            of them. None if there are no curves.
        checks: The checks in the order in which the page lists them.
        figure_text: The module whose functions the template calls to format numbers.
    """

    validation: Validation
    gated_roc: Drawing | None
    ungated_roc: Drawing | None
    checks: list[CheckFigures]

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
    page = ValidationPage(
        validation=validation,
        gated_roc=_gated_roc(validation),
        ungated_roc=_ungated_roc(validation),
        checks=ordered(validation.checks),
    )
    return render_page("attnaudit.research.validation", "validation.html.j2", page)


def markdown(validation: Validation) -> str:
    """Return the result as a Markdown page, for a repository or for the summary of a CI job."""
    lines = [f"# {figure_text.outcome(validation)}.", ""]
    lines += [f"* Below the goal: {phrase}." for phrase in figure_text.shortfalls(validation)]
    lines += [f"* Caution: {phrase}." for phrase in figure_text.cautions(validation)]
    held_out = validation.policy_held_out
    if held_out is not None:
        lines += [
            f"* Sensitivity: {figure_text.share(held_out.sensitivity)}. "
            f"False alarms: {figure_text.share(held_out.false_alarms)}.",
            "",
            *_group_table("kind", held_out.by_kind),
            *_group_table("encoder", held_out.by_encoder),
        ]
    if validation.trends:
        lines += ["## Trends: models without a known truth, which are not scored", ""]
        rows = [(kind.name, str(kind.models), figure_text.share(kind.alarms)) for kind in validation.trends]
        lines += markdown_table(("kind", "models", "alarms"), rows)
    lines += ["## Checks, on held-out models", "", *_check_table(validation)]
    if validation.left_out:
        lines += ["## Each kind left out in turn", "", *_left_out_table(validation)]
    if validation.remedies:
        lines += ["## Remedies (trends: medians over models)", "", *_remedy_table(validation)]
    lines += _notes(validation)
    lines.append(
        f"{validation.models} models of {validation.population}, at most {validation.max_instances} instances each, "
        f"seed {validation.seed}, {validation.measuring_seconds:.0f} s of measuring"
        f"{' (quick)' if validation.quick else ''}; policy {validation.policy}; attnaudit {validation.attnaudit}."
    )
    return "\n".join(lines) + "\n"


def ordered(checks: Sequence[CheckFigures]) -> list[CheckFigures]:
    """Return the gated checks, followed by the other checks. Both groups are sorted by area, the highest first."""

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


def _check_table(validation: Validation) -> list[str]:
    rows = []
    for check in ordered(validation.checks):
        figures = figure_text.published_figures(check)
        rows.append(
            (
                f"`{check.check}`",
                figure_text.QUESTIONS[check.question],
                "yes" if check.gated else "no",
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


def _left_out_table(validation: Validation) -> list[str]:
    rows = [
        (
            row.kind,
            row.truth,
            figure_text.share(row.alarms),
            figure_text.number(row.area),
            "; ".join(row.checks),
        )
        for row in validation.left_out
    ]
    return markdown_table(("kind", "truth", "alarms", "area", "policy chosen without it"), rows)


def _remedy_table(validation: Validation) -> list[str]:
    rows = [
        (
            effect.option,
            f"`{effect.check}`",
            f"{effect.plain:.3f} (n={effect.plain_models})",
            f"{effect.treated:.3f} (n={effect.treated_models})",
        )
        for effect in validation.remedies
    ]
    return markdown_table(("option", "check", "plain", "with it"), rows)


def _notes(validation: Validation) -> list[str]:
    if not validation.failed and not validation.notes:
        return []
    failed = sorted(validation.failed.items())
    return [
        "## Notes",
        "",
        *(f"* {escape(note, LONGEST_REASON)}" for note in validation.notes),
        *(f"* not audited: {escape(folder)}: {escape(why, LONGEST_REASON)}" for folder, why in failed),
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


def _gated_roc(validation: Validation) -> Drawing | None:
    halves = (("policy, held out", validation.policy_held_out), ("policy, tuning half", validation.policy_tuning))
    curves = [(name, figures) for name, figures in halves if figures is not None]
    curves += _curves([check for check in validation.checks if check.gated])
    return _roc_chart("ROC of the policy and of its gated checks", curves[:MAXIMUM_CURVES])


def _ungated_roc(validation: Validation) -> Drawing | None:
    """Draw the ROC curves of the checks that are not gated, in the order of `ordered`.

    If there are too many curves, only every n-th of them is drawn.
    """
    curves = _curves([check for check in ordered(validation.checks) if not check.gated])
    most = MAXIMUM_CURVES - 1
    step = max(1, (len(curves) - 1) // (most - 1))
    curves = curves[::step] if len(curves) > most else curves
    return _roc_chart("ROC of checks that are not gated", curves[:most])
