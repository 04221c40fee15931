"""NAME.json, NAME.md and NAME.html of one reproduction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock

from attnaudit.errors import ReportError
from attnaudit.processes import replace_file
from attnaudit.report.charts import Drawing
from attnaudit.report.heatmaps import Heatmap, line
from attnaudit.report.markdown import LONGEST_REASON, escape
from attnaudit.report.render import environment
from attnaudit.report.wording import number, plural
from attnaudit.research.reproduction import reproduction_wording
from attnaudit.research.reproduction.paper_figures import draw
from attnaudit.research.reproduction.reproduction_records import SCHEMA_VERSION, Figure, Reproduction, Rival, Row, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure with its shapes, or its lines of tokens."""

    figure: Figure
    drawing: Drawing | None
    heatmap: Heatmap | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What the template shows."""

    one: Reproduction
    pictures: dict[str, list[Picture]]

    words = reproduction_wording
    number = staticmethod(number)
    plural = staticmethod(plural)


#: The claims of all papers of a folder together.
TOGETHER = "claims.md"
LOCK = ".lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No other run adds to the reports of the folder meanwhile. Raises ReportError where nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = FileLock(folder / LOCK).acquire()
    except OSError as error:
        raise ReportError(
            f"{folder}: cannot be written ({error.strerror}). Give --out a folder that can be."
        ) from error
    with held:
        yield


def write(one: Reproduction, folder: Path, stem: str) -> list[Path]:
    """Write the three files, and the claims of all reports in the folder together. Raises ReportError when they cannot
    be written."""
    written = _written(folder, _files(one, stem))
    return [*written, *_written(folder, {TOGETHER: together(folder)})]


def _files(one: Reproduction, stem: str) -> dict[str, str]:
    return {
        f"{stem}.json": msgspec.json.format(msgspec.json.encode(one), indent=1).decode() + "\n",
        f"{stem}.md": markdown(one),
        f"{stem}.html": html(one),
    }


def _written(folder: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        try:
            replace_file(folder / name, text.encode())
        except OSError as error:
            raise ReportError(
                f"{folder / name}: cannot be written ({error.strerror}). Give --out a folder that can be."
            ) from error
    return [folder / name for name in texts]


def read_if_there(path: Path) -> Reproduction | None:
    """An earlier report; None where there is none. Raises ReportError for a file that is something else."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}).") from error
    try:
        found = msgspec.json.decode(raw, type=Reproduction)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: not a reproduction ({error}). Move it away, and run again.") from error
    if found.schema_version != SCHEMA_VERSION:
        raise ReportError(
            f"{path}: schema version {found.schema_version}, expected {SCHEMA_VERSION}. Move it away, and run again."
        )
    return found


def html(one: Reproduction) -> str:
    """One page that needs nothing but itself."""
    pictures = {
        table.name: sorted(map(_picture, table.figures), key=lambda picture: picture.heatmap is None)
        for table in one.tables
    }
    return (
        environment("attnaudit.research.reproduction")
        .get_template("reproduction.html.j2")
        .render(page=Page(one=one, pictures=pictures))
    )


def _picture(figure: Figure) -> Picture:
    heatmap = None if figure.rival is None else _heatmap(figure.rival)
    return Picture(figure=figure, drawing=draw(figure), heatmap=heatmap)


def _heatmap(rival: Rival) -> Heatmap:
    everywhere = range(len(rival.tokens))
    return Heatmap(
        instance=rival.instance,
        value=f"JSD {number(rival.jsd)}",
        label=rival.label,
        predicted=rival.predicted,
        tokens=len(rival.tokens),
        shown=len(rival.tokens),
        lines=(
            line("attention", rival.attention, rival.tokens, everywhere),
            line("adversarial.0.01.attention", rival.adversarial, rival.tokens, everywhere),
        ),
    )


def markdown(one: Reproduction) -> str:
    """The tables, for a repository."""
    lines = [f"# {reproduction_wording.heading(one)}", "", f"{one.citation}", ""]
    lines += [f"* {name}: {reproduction_wording.sizes(rows)} texts" for name, rows in one.data.items()]
    lines.append("")
    lines += _claims(one)
    if one.remedies:
        lines += [f"## {reproduction_wording.REMEDIES}", "", *(f"* {remedy.words}" for remedy in one.remedies), ""]
    for table in one.tables:
        lines += _table(table)
    lines += ["## How this was made", "", "```", *reproduction_wording.commands(one), "```", ""]
    lines.append(
        f"attnaudit {one.attnaudit}, {plural(one.jobs, 'job')}; last run {one.created}. "
        f"{reproduction_wording.made_with(one)}."
    )
    return "\n".join(lines) + "\n"


def together(folder: Path) -> str:
    """The claims of all reports in a folder, and what was run for them."""
    read = {path.stem: read_if_there(path) for path in sorted(folder.glob("*.json"), key=lambda path: path.stem)}
    found = {stem: one for stem, one in read.items() if one is not None}
    lines = [f"# {reproduction_wording.CLAIMS}", ""]
    for stem, one in found.items():
        if one.findings:
            lines += [f"## [{reproduction_wording.heading(one)}]({stem}.md)", "", one.citation, "", *_findings(one), ""]
    return "\n".join([*lines, *_coverage(found)])


def _coverage(found: Mapping[str, Reproduction]) -> list[str]:
    corpora = list(
        dict.fromkeys(row.corpus for one in found.values() for row in reproduction_wording.rows_of_corpora(one))
    )
    lines = ["## What was run", "", "Rows of each table that have numbers, and how many seeds they have.", ""]
    lines += [f"| table | {' | '.join(corpora)} |", "|---|" + "---|" * len(corpora)]
    for stem, one in found.items():
        for table in one.tables:
            cells = (reproduction_wording.run(table, corpus) for corpus in corpora)
            lines.append(f"| [{stem}]({stem}.md) {table.name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _claims(one: Reproduction) -> list[str]:
    return [f"## {reproduction_wording.CLAIMS}", "", *_findings(one), ""] if one.findings else []


def _findings(one: Reproduction) -> list[str]:
    lines = [f"| {' | '.join(reproduction_wording.CLAIMS_HEAD)} |", "|---|---|---|"]
    for found in one.findings:
        cells = (f"{found.sentence} ({found.paper})", reproduction_wording.HOLDS[found.holds], found.evidence)
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return lines


def _table(table: Table) -> list[str]:
    lines = [f"## {table.title}", "", f"In the paper: {table.source}.", ""]
    there = reproduction_wording.there(table)
    if there:
        lines += [f"* {text}" for text in table.deviations]
        lines += ["", f"| model | {' | '.join(reproduction_wording.HEAD)} |", "|---|---|---:|---:|---:|---:|"]
        lines += [line for row in there for line in _row(row)]
        lines.append("")
        lines += [f"* {row.title}: {reproduction_wording.how(row)}" for row in there]
        lines += [f"* {row.title}: {escape(note, LONGEST_REASON)}" for row in there for note in row.notes]
        lines.append("")
    for why, names in reproduction_wording.missing(table):
        lines += [f"{', '.join(f'`{name}`' for name in names)}: {escape(why, LONGEST_REASON)}", ""]
    return lines


def _row(row: Row) -> list[str]:
    rows = []
    for place, one in enumerate(row.lines):
        cells = (row.title if place == 0 else "", *reproduction_wording.cells(one))
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
