"""Build the report of a paper from its measured results.

The report adds titles, the numbers of the paper, means over seeds and the answers to claims.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError, nearest
from attnaudit.research.reproduction.corpora import EMBEDDED, Corpus, corpus
from attnaudit.research.reproduction.figures.quantity_figures import curve_figures, strip_figures
from attnaudit.research.reproduction.paper_report import OUTDATED, Line, Reproduction, Row, Table, WordVectors
from attnaudit.research.reproduction.paper_tables import Paper, Quantity, RowPlan, TablePlan
from attnaudit.research.reproduction.results.earlier_runs import mean_of_runs, note_on_runs
from attnaudit.research.reproduction.results.results_file import MeasuredRow, Results
from attnaudit.research.reproduction.results.row_exclusions import RowKey, row_exclusions
from attnaudit.research.reproduction.results.row_settings import without_outdated_rows
from attnaudit.research.reproduction.results.seed_counts import RowSeeds, with_planned_seeds
from attnaudit.research.reproduction.verdicts_on_claims.claims import answer_claims
from attnaudit.research.reproduction.verdicts_on_claims.goals import goal_results

NOT_RUN = "not run here"


def lay_out(results: Results, paper: Paper, *, seeds: Mapping[RowKey, RowSeeds] | None = None) -> Reproduction:
    """Build the report of a paper, without remedies.

    Args:
        results: The measured results. Call `require_declared` on them first.
        paper: The declaration of the paper.
        seeds: (table, row) -> planned seeds. Other seeds are left out, and a row that lacks planned seeds cannot decide
            a claim. Rows without a plan keep all their seeds. None if no row has a plan.
    """
    header = results.header
    results = replace(results, rows=tuple(map(mean_of_runs, results.rows)))
    corpora = corpora_of(paper, embedded=header.embedded)
    plans = {(table.name, row.name): row for table in paper.tables for row in table.rows(corpora)}
    results, outdated = without_outdated_rows(results, plans)
    results, notes, incomplete = with_planned_seeds(results, seeds or {})
    by_score = row_exclusions(results.rows, paper, corpora)
    reasons = (incomplete, {key: exclusion.reason for key, exclusion in by_score.items()})
    excluded = {
        key: "; ".join(of_rows[key] for of_rows in reasons if key in of_rows) for key in {**incomplete, **by_score}
    }
    unfinished = excluded.keys() - {key for key, exclusion in by_score.items() if not exclusion.unrecorded}
    texts = RowTexts(notes=notes, excluded=excluded, unfinished=unfinished, outdated=outdated)
    report = Reproduction(
        paper=paper.name,
        title=paper.title,
        citation=paper.citation,
        quick=header.quick,
        created=header.created,
        attnaudit=header.attnaudit,
        seconds=header.seconds,
        jobs=header.jobs,
        environment=header.environment,
        data=header.data,
        tables=[_table(table, results, paper, texts) for table in paper.tables],
        vectors=header.vectors,
        row_names=paper.row_names,
    )
    report = report.with_findings(answer_claims(paper.claims, report))
    return msgspec.structs.replace(report, goals=goal_results(paper.goals, report))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTexts:
    """Texts about rows.

    Attributes:
        notes: Notes on the seeds of a row.
        excluded: Why a row cannot decide a claim.
        unfinished: The rows that cannot decide a claim only because planned seeds have not been run yet, or because a
            score was not recorded.
        outdated: The rows that were measured with other settings.
    """

    notes: Mapping[RowKey, str]
    excluded: Mapping[RowKey, str]
    unfinished: Set[RowKey]
    outdated: Set[RowKey]


def corpora_of(paper: Paper, *, embedded: bool) -> Sequence[str]:
    """Return the names of the corpora of a run.

    Args:
        paper: The declaration of the paper.
        embedded: Whether the run uses only the packaged sentences, and not the corpora of the paper.
    """
    return (EMBEDDED,) if embedded else paper.corpora


def require_declared(results: Results, paper: Paper, path: Path) -> None:
    """Check that a paper declares every table, row and quantity of the results.

    The report would leave out everything that is not declared.

    Args:
        results: The measured results.
        paper: The declaration of the paper.
        path: The path of the results file. The error names it.

    Raises:
        ReportError: A table, row or quantity is not declared. The message gives the nearest known name.
    """
    corpora = corpora_of(paper, embedded=results.header.embedded)
    quantities = {table.name: [quantity.name for quantity in table.quantities] for table in paper.tables}
    names = {table.name: [row.name for row in table.rows(corpora)] for table in paper.tables}
    for row in results.rows:
        _require(row.table, quantities, f"{path}: contains a row of table '{row.table}'")
        _require(row.name, names[row.table], f"{path}: contains the row '{row.name}' of table '{row.table}'")
        for name in row.quantities:
            _require(name, quantities[row.table], f"{path}: contains the quantity '{name}' of table '{row.table}'")


def _require(name: str, known: Collection[str], problem: str) -> None:
    if name not in known:
        raise ReportError(f"{problem}, which this version of attnaudit does not have. {nearest(name, known)}")


def _table(table: TablePlan, results: Results, paper: Paper, texts: RowTexts) -> Table:
    measured = {row.name: row for row in results.rows if row.table == table.name}
    plans = table.rows(corpora_of(paper, embedded=results.header.embedded))
    rows = [_row(plan, measured.get(plan.name), table, results.header.vectors, texts) for plan in plans]
    with_lines = [row for row in rows if row.lines]
    further, pictures = table.across(with_lines) if table.across is not None and with_lines else ((), ())
    figures = [
        *strip_figures(
            [*with_lines, *further], table.drawn, left_out=table.left_out, compared_with=table.compared_with
        ),
        *curve_figures(with_lines, table.curves),
        *pictures,
        *(one.figure for one in results.figures if one.table == table.name),
    ]
    return Table(
        name=table.name,
        title=table.title,
        source=table.source,
        deviations=_deviations(table, rows, results, paper),
        rows=[*rows, *further],
        figures=figures,
        left_out=tuple(table.left_out),
        compared_with=table.compared_with,
    )


def _row(
    plan: RowPlan, measured: MeasuredRow | None, table: TablePlan, vectors: WordVectors | None, texts: RowTexts
) -> Row:
    if measured is None or not measured.quantities:
        not_run = OUTDATED if (table.name, plan.name) in texts.outdated else NOT_RUN
        missing = plan.unavailable or (measured.missing if measured else not_run)
        return Row(name=plan.name, title=plan.title, corpus=plan.corpus, lines=[], missing=missing)
    key = (table.name, plan.name)
    count = measured.words_with_vectors
    on_seeds = [note for note in (texts.notes.get(key, ""), note_on_runs(measured)) if note]
    by_class = {one.of_class for one in table.quantities if one.of_class is not None}
    # A part of the classes, such as the first three answers of bAbI, would be misleading.
    whole = len(measured.classes) <= len(by_class)
    quantities = [one for one in table.quantities if one.of_class is None or whole]
    started = [] if count is None or vectors is None else [
        f"{count:,} words of the training texts have a vector in {vectors.name}"
    ]  # fmt: skip
    return Row(
        name=plan.name,
        title=plan.title,
        corpus=plan.corpus,
        lines=[_line(one, plan, measured) for one in quantities if one.name in measured.quantities],
        notes=(*started, *on_seeds, *measured.notes),
        provenance=measured.provenance,
        excluded=texts.excluded.get(key, ""),
        unfinished=key in texts.unfinished,
    )


def _line(quantity: Quantity, plan: RowPlan, measured: MeasuredRow) -> Line:
    found = measured.quantities[quantity.name]
    known = [value for value in found.values if value is not None]
    class_name = "" if quantity.of_class is None else measured.classes[quantity.of_class]
    return Line(
        quantity=quantity.name,
        words=quantity.words.format(class_name) if class_name else quantity.words,
        label=quantity.label,
        axis=quantity.axis,
        class_name=class_name,
        paper=plan.paper.get(quantity.name),
        ours=statistics.fmean(known) if known else None,
        std=statistics.stdev(known) if len(known) > 1 else None,
        values=found.values,
        n=found.n if known else None,
        digits=quantity.digits,
    )


def _deviations(table: TablePlan, rows: Sequence[Row], results: Results, paper: Paper) -> list[str]:
    """Return sentences that describe how the setting of a table differs from the setting of the paper.

    They cover all tables of the paper, this table, and the corpora, instances and seeds of its measured rows. Each
    sentence is listed once, even if it applies to several corpora.
    """
    measured = [(row, row.provenance) for row in rows if row.provenance is not None]
    used = [corpus(name) for name in dict.fromkeys(row.corpus for row, _ in measured)]
    vectors = results.header.vectors
    of_corpora = [
        text for one in used for text in (*one.deviations, *(one.random_deviations if vectors is None else ()))
    ]
    sampled = [f"{row.title}: {made.instances} test texts" for row, made in measured if table.audits and made.instances]
    single = [row.title for row, made in measured if len(made.seeds) == 1]
    every = len(single) == len(measured)
    quick = "QUICK: small data, small models, short training, one seed. Not a reproduction."
    found = [
        *([quick] if results.header.quick else []),
        _embeddings(vectors, paper, used, table.rows([row.corpus for row, _ in measured])),
        *paper.deviations,
        *table.deviations,
        *of_corpora,
        *([f"Only a sample of the test set was audited: {'; '.join(sampled)}."] if sampled else []),
        *(
            [
                "No standard deviation is given where there is only one seed: "
                f"{'every row' if every else '; '.join(single)}."
            ]
            if single
            else []
        ),
    ]
    return list(dict.fromkeys(found))


def _embeddings(vectors: WordVectors | None, paper: Paper, corpora: Sequence[Corpus], rows: Sequence[RowPlan]) -> str:
    if vectors is None:
        return paper.embeddings
    random = "; the embeddings for bAbI are random" if any(one.form == "question" for one in corpora) else ""
    text = (
        f"Embeddings start from {vectors.name} ({vectors.width} wide) and are trained further{random}. "
        "Words without a vector start at random, at the scale of the others. Words that occur once in the training "
        "data are treated as unknown."
    )
    widths = {plan.architecture.hidden_size for row in rows for plan in row.models.values() if plan.equal_widths}
    if widths:
        text += (
            " The paper's hidden states are as wide as its embeddings. Ours are too, so a BiLSTM has "
            f"{vectors.width // 2} units per direction instead of {max(widths)}."
        )
    return text
