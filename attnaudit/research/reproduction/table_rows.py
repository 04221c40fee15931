"""Tables and their rows, read off the models and audits of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnaudit import __version__
from attnaudit.errors import CheckError
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.paper_tables import Models, Quantity, Result, RowPlan, TablePlan
from attnaudit.research.reproduction.reproduction_options import Options
from attnaudit.research.reproduction.reproduction_records import Figure, Line, Made, Reproduction, Row, Table


@dataclass(slots=True, kw_only=True)
class RowRun:
    """A row that this run makes: by seed, role -> plan."""

    table: TablePlan
    plan: RowPlan
    seeds: list[dict[str, Plan]]
    made: list[Models] = field(default_factory=list)
    missing: str = ""


def laid_out(
    table: TablePlan,
    corpora: Sequence[str],
    chosen: Sequence[RowRun],
    before: Reproduction | None,
    options: Options,
    created: str,
) -> Table:
    mine = {row.plan.name: row for row in chosen if row.table.name == table.name}
    earlier = next((one for one in before.tables if one.name == table.name), None) if before else None
    kept = {row.name: row for row in earlier.rows} if earlier else {}
    rows, figures = [], []
    for plan in table.rows(corpora):
        if plan.name in mine:
            rows.append(_row(mine[plan.name], options, created))
            figures += _figures(mine[plan.name])
        elif plan.name in kept and kept[plan.name].lines:
            rows.append(kept[plan.name])
            figures += [one for one in earlier.figures if one.row == plan.name] if earlier else []
        else:
            missing = plan.unavailable or "not run here"
            rows.append(Row(name=plan.name, title=plan.title, corpus=plan.corpus, lines=[], missing=missing))
    there = [row for row in rows if row.lines]
    further, drawn = table.across(there) if table.across is not None and there else ((), ())
    return Table(
        name=table.name,
        title=table.title,
        source=table.source,
        deviations=_deviations(table, rows, options),
        rows=[*rows, *further],
        figures=[*drawn, *figures],
    )


def _deviations(table: TablePlan, rows: Sequence[Row], options: Options) -> list[str]:
    """Of the paper, the table and the corpora of the rows that are there; how many seeds and instances."""
    there = [row for row in rows if row.made is not None]
    of_corpora = [text for name in dict.fromkeys(row.corpus for row in there) for text in corpus(name).deviations]
    cut = [
        f"{row.title}: {row.made.instances} test texts"
        for row in there
        if table.audits and row.made and row.made.instances
    ]
    single = [row.title for row in there if row.made and len(row.made.seeds) == 1]
    seeds = f"One seed, so no deviation over seeds: {'; '.join(single) if len(single) < len(there) else 'every row'}."
    quick = ["QUICK: small data, small models, short training, one seed. Not a reproduction."] if options.quick else []
    return [
        *quick,
        options.embeddings,
        *options.paper.deviations,
        *table.deviations,
        *of_corpora,
        *([f"A sample of the test set: {'; '.join(cut)}."] if cut else []),
        *([seeds] if single else []),
    ]


def _row(row: RowRun, options: Options, created: str) -> Row:
    if not row.made:
        return Row(name=row.plan.name, title=row.plan.title, corpus=row.plan.corpus, lines=[], missing=row.missing)
    results = [result for models in row.made for result in models.values()]
    skipped = {why for result in results for audit in result.audits for why in audit.skipped.values()}
    classes = next((audit.classes for result in results for audit in result.audits), [])
    return Row(
        name=row.plan.name,
        title=row.plan.title,
        corpus=row.plan.corpus,
        lines=[
            _line(one, row, classes)
            for one in row.table.quantities
            if one.of_class is None or one.of_class < len(classes)
        ],
        notes=(*_started(results, options), *sorted({*skipped, *([row.missing] if row.missing else [])})),
        made=Made(
            command=options.command,
            created=created,
            attnaudit=__version__,
            seeds=_seeds(row),
            instances=options.instances,
            training_seconds=sum(result.trained.seconds for result in results),
            training_cpu_seconds=sum(result.trained.cpu_seconds for result in results),
            audit_seconds=sum(audit.seconds for result in results for audit in result.audits),
            audit_cpu_seconds=sum(audit.cpu_seconds for result in results for audit in result.audits),
            quick=options.quick,
        ),
    )


def _started(results: Sequence[Result], options: Options) -> list[str]:
    """How many words had a vector, in the models of one corpus."""
    counts = [result.trained.started for result in results if result.trained.started is not None]
    return (
        [f"{max(counts):,} words of the training texts started from {options.vectors.name}"]
        if counts and options.vectors
        else []
    )


def _seeds(row: RowRun) -> list[int]:
    """Of the first role, beside which others may be from the next seeds; of all where the row is about seeds."""
    some = [list(models.values())[: None if row.plan.once else 1] for models in row.made]
    return sorted({result.trained.plan.seed for results in some for result in results})


def _line(quantity: Quantity, row: RowRun, classes: Sequence[str]) -> Line:
    values: list[float | None] = []
    counts: list[int] = []
    for models in row.made:
        try:
            value, n = quantity.read(models)
        except CheckError:
            if not _skipped(models):
                raise
            value, n = None, 0  # the check behind it could not be judged; the row's notes say why
        values.append(None if value is None else round(value, 10))
        counts.append(n)
    known = [value for value in values if value is not None]
    named = quantity.words if quantity.of_class is None else quantity.words.format(classes[quantity.of_class])
    return Line(
        quantity=quantity.name,
        words=named,
        paper=row.plan.paper.get(quantity.name),
        ours=statistics.fmean(known) if known else None,
        std=statistics.stdev(known) if len(known) > 1 else None,
        values=values,
        n=round(statistics.fmean(counts)) if counts else None,
        digits=quantity.digits,
    )


def _figures(row: RowRun) -> list[Figure]:
    if row.table.figures is None or not row.made:
        return []
    first = min(row.made, key=lambda models: next(iter(models.values())).trained.plan.seed)
    try:
        return list(row.table.figures(row.plan, first))
    except CheckError:
        if not _skipped(first):
            raise
        return []


def _skipped(models: Models) -> bool:
    return any(audit.skipped for result in models.values() for audit in result.audits)
