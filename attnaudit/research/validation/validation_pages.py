"""validation.json, validation.md and validation.html of one validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError
from attnaudit.records import Chart, Series
from attnaudit.report.charts import Drawing, chart
from attnaudit.report.markdown import LONGEST_REASON, escape
from attnaudit.report.render import environment
from attnaudit.research.validation import validation_wording
from attnaudit.research.validation.validation_records import CheckFigures, Figures, Validation

MOST_CURVES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the template shows."""

    validation: Validation
    roc: Drawing | None
    rest: Drawing | None
    checks: list[CheckFigures]

    words = validation_wording


def write(validation: Validation, out: Path) -> list[Path]:
    """Write the three files into `out`. Raises ReportError when they cannot be written."""
    texts = {
        "validation.json": msgspec.json.format(msgspec.json.encode(validation), indent=1).decode() + "\n",
        "validation.md": markdown(validation),
        "validation.html": html(validation),
    }
    written = []
    for name, text in texts.items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise ReportError(
                f"{path}: cannot be written ({error.strerror}). Give --out a folder that can be."
            ) from error
        written.append(path)
    return written


def read(path: Path) -> Validation:
    """A validation.json. Raises ReportError naming what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Validation)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: not a validation ({error}). Run `attnaudit validate` again.") from error


def html(validation: Validation) -> str:
    """One page that needs nothing but itself."""
    page = Page(
        validation=validation,
        roc=_policy_roc(validation),
        rest=_check_roc(validation),
        checks=ordered(validation.checks),
    )
    return environment("attnaudit.research.validation").get_template("validation.html.j2").render(page=page)


def markdown(validation: Validation) -> str:
    """The tables, for a repository or a job's summary."""
    v = validation
    lines = [f"# {validation_wording.outcome(v)}.", ""]
    lines += [f"* short of the goal: {one}" for one in validation_wording.shortfalls(v)]
    lines += [f"* {one}" for one in validation_wording.small(v)]
    held = v.policy_held_out
    if held is not None:
        lines += [
            f"* sensitivity {validation_wording.share(held.sensitivity)}; "
            f"false alarms {validation_wording.share(held.false_alarms)}",
            "",
            *_table(
                ("kind", "truth", "models", "alarms", "area"),
                [
                    (
                        k.name,
                        k.truth,
                        str(k.models),
                        validation_wording.share(k.alarms),
                        validation_wording.number(k.area),
                    )
                    for k in held.by_kind
                ],
            ),
            *_table(
                ("encoder", "truth", "models", "alarms", "area"),
                [
                    (
                        k.name or "not stated",
                        k.truth,
                        str(k.models),
                        validation_wording.share(k.alarms),
                        validation_wording.number(k.area),
                    )
                    for k in held.by_encoder
                ],
            ),
        ]
    if v.trends:
        lines += ["## Trends: no known truth, not scored", ""]
        lines += _table(
            ("kind", "models", "alarms"),
            [(k.name, str(k.models), validation_wording.share(k.alarms)) for k in v.trends],
        )
    lines += ["## Checks, on held-out models", ""]
    rows = []
    for one in ordered(v.checks):
        found = validation_wording.shown(one) or Figures(
            area=None, sensitivity=None, false_alarms=None, roc=[], by_encoder=[], by_kind=[]
        )
        rows.append(
            (
                f"`{one.check}`",
                validation_wording.QUESTIONS[one.question],
                "yes" if one.gated else "no",
                validation_wording.required(one),
                validation_wording.area(found.area),
                validation_wording.area(one.against_all),
                validation_wording.short_share(found.sensitivity),
                validation_wording.short_share(found.false_alarms),
                "yes" if one.discriminates else "no",
            )
        )
    lines += _table(
        ("check", "question", "gated", "threshold", "area", "area, all", "caught", "false alarms", "discriminates"),
        rows,
    )
    if v.left_out:
        lines += ["## Each kind left out in turn", ""]
        lines += _table(
            ("kind", "truth", "alarms", "area", "policy chosen without it"),
            [
                (
                    k.kind,
                    k.truth,
                    validation_wording.share(k.alarms),
                    validation_wording.number(k.area),
                    "; ".join(k.checks),
                )
                for k in v.left_out
            ],
        )
    if v.remedies:
        lines += ["## Remedies (trends: medians over models)", ""]
        lines += _table(
            ("option", "check", "plain", "with it"),
            [
                (
                    r.option,
                    f"`{r.check}`",
                    f"{r.plain:.3f} (n={r.plain_models})",
                    f"{r.treated:.3f} (n={r.treated_models})",
                )
                for r in v.remedies
            ],
        )
    if v.failed or v.notes:
        lines += ["## Notes", "", *(f"* {escape(note, LONGEST_REASON)}" for note in v.notes)]
        failed = sorted(v.failed.items())
        lines += [f"* not audited: {escape(folder)}: {escape(why, LONGEST_REASON)}" for folder, why in failed]
        lines.append("")
    lines.append(
        f"{v.models} models of {v.population}, at most {v.max_instances} instances each, seed {v.seed}, "
        f"{v.measuring_seconds:.0f} s of measuring{' (quick)' if v.quick else ''}; "
        f"policy {v.policy}; attnaudit {v.attnaudit}."
    )
    return "\n".join(lines) + "\n"


def ordered(checks: list[CheckFigures]) -> list[CheckFigures]:
    """Gated ones first, then the best area first."""

    def key(one: CheckFigures) -> tuple[bool, float, str]:
        found = validation_wording.shown(one)
        return (not one.gated, -(found.area.value if found and found.area else -1.0), one.check)

    return sorted(checks, key=key)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _roc(title: str, curves: list[tuple[str, Figures]]) -> Drawing | None:
    series = [
        Series(name=name, x=[p.false_alarms for p in found.roc], y=[p.sensitivity for p in found.roc])
        for name, found in curves
        if found.roc
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


def _policy_roc(validation: Validation) -> Drawing | None:
    pairs = (("policy, held out", validation.policy_held_out), ("policy, tuning half", validation.policy_tuning))
    curves = [(name, found) for name, found in pairs if found is not None]
    curves += [
        (one.check, found)
        for one in validation.checks
        if one.gated and (found := validation_wording.shown(one)) is not None
    ]
    return _roc("ROC of the policy and of its gated checks", curves[:MOST_CURVES])


def _check_roc(validation: Validation) -> Drawing | None:
    others = [one for one in ordered(validation.checks) if not one.gated and validation_wording.shown(one)]
    step = max(1, (len(others) - 1) // (MOST_CURVES - 2))
    others = others[::step] if len(others) > MOST_CURVES - 1 else others
    curves = [(one.check, found) for one in others if (found := validation_wording.shown(one)) is not None]
    return _roc("ROC of checks that are not gated", curves[: MOST_CURVES - 1])
