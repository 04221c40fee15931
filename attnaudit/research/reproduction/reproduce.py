"""Reproduce one paper: prepare its data, train and audit its models, and add the results to its report."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from attnaudit import __version__
from attnaudit.errors import AuditError, DataError, ReportError, invalid_input, nearest
from attnaudit.formatting import plural
from attnaudit.models.word_vectors import Vectors
from attnaudit.progress import ProgressCallback
from attnaudit.research.reproduction.audit_models import AuditedModel, AuditRequest, audit_all, audit_request
from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.paper_report import Reproduction, WordVectors
from attnaudit.research.reproduction.paper_tables import Paper, Result, RowPlan, TablePlan
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.prepare_corpora import Prepared, prepare
from attnaudit.research.reproduction.render_reports import render
from attnaudit.research.reproduction.reproduce_options import DEFAULT_SEEDS, ReproductionOptions
from attnaudit.research.reproduction.results.earlier_runs import with_earlier_runs
from attnaudit.research.reproduction.results.measured_rows import RowRun, measured_row, row_figures
from attnaudit.research.reproduction.results.results_file import (
    SCHEMA_VERSION,
    SUFFIX,
    MeasuredFigure,
    Results,
    RunHeader,
    exclusive,
    read_results,
    results_text,
)
from attnaudit.research.reproduction.results.seed_plan import SEED_PLAN, SeedPlan, read_seed_plan
from attnaudit.research.reproduction.table_layout import corpora_of, require_declared
from attnaudit.research.reproduction.train_models import TrainedPlan, train_all
from attnaudit.research.study.report_files import write_files
from attnaudit.run.environment import describe_environment

#: Returns a context manager that shows a progress bar with a title, such as "training".
ProgressBar = Callable[[str], AbstractContextManager[ProgressCallback]]

QUICK_SEEDS, QUICK_SEARCHED = 1, 10
QUICK_TRAINING = {"epochs": 4, "learning_rate": 0.01}
QUICK_SIZES = {"embedding_size": 32, "hidden_size": 16, "attention_size": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """The trained and audited models of a run.

    Attributes:
        options: The options of the run.
        rows: The rows with their models.
        data: Name of a corpus -> prepared parts of the corpus.
        created: When the run began (ISO 8601, UTC).
        seconds: Wall-clock time of the run, in seconds.
        seed_plan: The plan of seeds. None if there is none.
    """

    options: ReproductionOptions
    rows: list[RowRun]
    data: dict[str, Prepared]
    created: str
    seconds: float
    seed_plan: SeedPlan | None


class Reproduced(NamedTuple):
    """What a run has written.

    Attributes:
        report: The report.
        written: The paths of the written files.
        failed: One line for each selected row that could not be measured, with the reason.
    """

    report: Reproduction
    written: list[Path]
    failed: list[str]


def reproduce(options: ReproductionOptions, *, progress_bar: ProgressBar) -> Reproduced:
    """Train and audit the models of the selected rows, and write the report.

    The report also keeps the rows of earlier runs, unless they are measured again.

    Args:
        options: What to measure, and where to write.
        progress_bar: Returns a context manager that shows a progress bar with a title.

    Returns:
        The report, the paths of the written files, and the rows that could not be measured.

    Raises:
        AuditError: A table does not exist, no row matches `only`, or a file is missing, cannot be read or cannot be
            written. Tables, rows and input files are checked before any training.
    """
    run = _train_and_audit(options, progress_bar)
    name = f"{options.stem}{SUFFIX}"

    def find_paper(known: str) -> Paper:
        return options.paper if known == options.paper.name else paper(known)

    with exclusive(options.reports):  # Another run may have added rows in the meantime.
        results = _added(run, _earlier_results(options))
        written = write_files(options.reports, {name: results_text(results)})
        reports, pages = render(options.reports, stem=options.stem, find_paper=find_paper)
    missing = [row for row in run.rows if row.missing and not row.plan.unavailable]
    failed = [f"{row.plan.name} ({row.table.name}): {row.missing}" for row in missing]
    return Reproduced(reports[options.stem], [*written, *pages], failed)


def _train_and_audit(options: ReproductionOptions, progress_bar: ProgressBar) -> FinishedRun:
    began, created = time.perf_counter(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with invalid_input():
        earlier = _earlier_results(options)  # Raise errors about it before training, which may take hours.
        corpora = corpora_of(options.paper, embedded=options.data_root is None)
        tables = _tables(options)
        seed_plan = read_seed_plan(options.reports)
        rows = [row for table in tables for row in _rows(table, corpora, options, seed_plan)]
        if not rows:
            names = sorted({row.name for table in tables for row in table.rows(corpora)})
            raise AuditError(f"--only {' '.join(options.only)}: no row matches. {nearest(options.only[0], names)}")
        _require_new_seeds(rows, earlier)
        data = _prepared(rows, options)
    plans = list(dict.fromkeys(plan for row in rows for roles in row.plans_by_seed for plan in roles.values()))
    with progress_bar("training") as progress:
        models, untrained = train_all(plans, data, options.folder / "models", jobs=options.jobs, progress=progress)
    with progress_bar("auditing") as progress:
        measured, unaudited = audit_all(
            models,
            _audits(rows, models, options),
            {name: parts.path("test") for name, parts in data.items()},
            checkpoints=options.folder / "models",
            results=options.folder / "measured",
            jobs=options.jobs,
            progress=progress,
        )
    _attach_models(rows, models, measured, {**untrained, **unaudited})
    seconds = time.perf_counter() - began
    return FinishedRun(options=options, rows=rows, data=data, created=created, seconds=seconds, seed_plan=seed_plan)


def _added(run: FinishedRun, earlier: Results | None) -> Results:
    """Add the rows and figures of this run to the earlier results.

    Rows that were measured again are replaced. If their settings are the same, they keep their earlier numbers.
    """
    options = run.options
    embedded = options.data_root is None
    environment = describe_environment(device="cpu", threads=1)
    rows = {(row.table, row.name): row for row in earlier.rows} if earlier else {}
    figures = {(one.table, one.figure.row, one.figure.name): one for one in earlier.figures} if earlier else {}
    for row in (row for row in run.rows if not row.plan.unavailable):
        table, name = row.table.name, row.plan.name
        plan = run.seed_plan
        planned = None if plan is None or options.quick else plan.seeds(options.stem, table, name)
        measured = measured_row(
            row,
            command=options.command,
            created=run.created,
            instances=options.instances,
            seed_plan=plan.sha256 if plan is not None and planned is not None else None,
            environment=environment,
            vectors=_recorded(options.vectors),
        )
        rows[table, name] = with_earlier_runs(
            measured, rows.get((table, name)), planned=None if row.plan.once else planned
        )
        if measured.quantities:
            figures = {key: one for key, one in figures.items() if key[:2] != (table, name)}
        for figure in row_figures(row):
            figures[table, name, figure.name] = MeasuredFigure(table=table, figure=figure)
    order = [
        (table.name, row.name)
        for table in options.paper.tables
        for row in table.rows(corpora_of(options.paper, embedded=embedded))
    ]
    return Results(
        header=RunHeader(
            schema_version=SCHEMA_VERSION,
            paper=options.paper.name,
            embedded=embedded,
            quick=options.quick,
            vectors=_recorded(options.vectors),
            created=run.created,
            attnaudit=__version__,
            seconds=round(run.seconds, 3),
            jobs=options.jobs,
            environment=environment,
            data={**(earlier.header.data if earlier else {}), **{name: one.rows for name, one in run.data.items()}},
        ),
        rows=tuple(sorted(rows.values(), key=lambda row: order.index((row.table, row.name)))),
        figures=tuple(sorted(figures.values(), key=lambda one: order.index((one.table, one.figure.row)))),
    )


def _recorded(vectors: Vectors | None) -> WordVectors | None:
    if vectors is None:
        return None
    return WordVectors(name=vectors.name, width=vectors.width, sha256=vectors.sha256)


def _earlier_results(options: ReproductionOptions) -> Results | None:
    """Return the results of earlier runs to which this run adds its rows. Return None if there are none.

    Raises:
        ReportError: The file cannot be read, does not match the declaration of the paper, or has rows that were
            measured with other word vectors of the same name.
    """
    path = options.reports / f"{options.stem}{SUFFIX}"
    earlier = read_results(path)
    if earlier is not None:
        require_declared(earlier, options.paper, path)
    if earlier and earlier.header.vectors and options.vectors:
        vectors = earlier.header.vectors
        if vectors.sha256 != options.vectors.sha256:
            raise ReportError(
                f"{path}: its rows were measured with different word vectors of the same name, {vectors.name}. Rename "
                f"{options.vectors.path}, or give another --out."
            )
    return earlier


def _tables(options: ReproductionOptions) -> list[TablePlan]:
    known = {table.name: table for table in options.paper.tables}
    for name in options.tables:
        if name not in known:
            raise AuditError(f"--table {name}: {options.paper.name} has no such table. {nearest(name, known)}")
    return [table for table in options.paper.tables if not options.tables or table.name in options.tables]


def _rows(
    table: TablePlan, corpora: Sequence[str], options: ReproductionOptions, seed_plan: SeedPlan | None
) -> list[RowRun]:
    rows = []
    for plan in table.rows(corpora):
        if options.only and not any(fnmatch.fnmatchcase(plan.name, pattern) for pattern in options.only):
            continue
        seeds = () if plan.unavailable else _seeds(table.name, plan, options, seed_plan)
        by_seed = [_with_seed(plan, seed, options) for seed in seeds]
        rows.append(RowRun(table=table, plan=plan, plans_by_seed=by_seed, missing=plan.unavailable))
    return rows


def _seeds(table: str, row: RowPlan, options: ReproductionOptions, plan: SeedPlan | None) -> range:
    """Return the seeds of a row.

    Raises:
        AuditError: The options ask for another number of seeds than the plan.
    """
    if row.once:
        return range(1)
    if options.quick:
        return range(QUICK_SEEDS)
    planned = None if plan is None else plan.seeds(options.stem, table, row.name)
    if plan is not None and planned is not None and options.seeds not in (None, len(planned)):
        raise AuditError(
            f"--seeds {options.seeds}: {plan.path} plans {plural(len(planned), 'seed')} for {row.name}. Leave "
            "--seeds out, or change the plan and commit it before the run."
        )
    return planned or range(options.seeds or DEFAULT_SEEDS)


def _require_new_seeds(rows: Sequence[RowRun], earlier: Results | None) -> None:
    """Refuse a plan that gives a row new seeds, if some of them have been run together with older ones.

    Raises:
        AuditError: The results of such a seed have been seen.
    """
    stored = {(row.table, row.name): row for row in earlier.rows} if earlier else {}
    for row in rows:
        before = stored.get((row.table.name, row.plan.name))
        seeds = [next(iter(plans.values())).seed for plans in row.plans_by_seed]
        if before is None or not seeds or row.plan.once:
            continue
        for made in (before.provenance, *(run.provenance for run in before.earlier)):
            if made is not None and min(made.seeds) < seeds[0] and set(made.seeds) & set(seeds):
                known = ", ".join(map(str, made.seeds))
                raise AuditError(
                    f"{row.plan.name} ({row.table.name}): {SEED_PLAN} plans new seeds from {seeds[0]} on, but the "
                    f"results have a run with seeds {known}. Plan seeds from {max(made.seeds) + 1} on."
                )


def _with_seed(row: RowPlan, seed: int, options: ReproductionOptions) -> dict[str, Plan]:
    plans = {role: plan.with_seed(seed + plan.seed) for role, plan in row.models.items()}
    if options.quick:
        return {role: quick(plan, options.vectors) for role, plan in plans.items()}
    return {role: plan.starting_from(options.vectors) for role, plan in plans.items()}


def quick(plan: Plan, vectors: Vectors | None = None) -> Plan:
    """Return a plan for a quick run: the same model with much smaller sizes and short training.

    Args:
        plan: The plan of the full model.
        vectors: The word vectors that the embeddings start from. None for random embeddings.
    """
    width = 2 * QUICK_SIZES["hidden_size"]
    sizes = {**QUICK_SIZES, "embedding_size": width}  # Residual states and tying need states as wide as embeddings.
    architecture = msgspec.structs.replace(plan.architecture, **sizes)
    small = msgspec.structs.replace(plan, architecture=architecture)
    return small.starting_from(vectors).with_settings(**QUICK_TRAINING)


def _prepared(rows: Sequence[RowRun], options: ReproductionOptions) -> dict[str, Prepared]:
    """Prepare every corpus that a row needs.

    Raises:
        DataError: Some corpora cannot be prepared. The error contains the messages of all of them.
    """
    names = {plan.corpus for row in rows for roles in row.plans_by_seed for plan in roles.values()}
    prepared, missing = {}, []
    for name in sorted(names):
        try:
            prepared[name] = prepare(corpus(name), options.data_root, options.folder / "data", quick=options.quick)
        except DataError as error:
            missing.append(str(error))
    if missing:
        raise DataError(missing[0], lines=missing[1:])
    return prepared


def _audits(
    rows: Sequence[RowRun], models: Mapping[Plan, TrainedPlan], options: ReproductionOptions
) -> list[tuple[Plan, AuditRequest]]:
    """Return one audit request for each model and number of instances.

    If several rows need audits of the same model on the same number of instances, one request covers all of them.
    """
    together: dict[tuple[Plan, int | None], tuple[dict[str, object], set[str]]] = {}
    for row in rows:
        for audit in row.table.audits:
            limit = _smaller(audit.instances, options.instances)
            if options.quick and audit.instances:
                limit = _smaller(limit, QUICK_SEARCHED)
            roles = audit.roles or list(row.plan.models)
            plans = [by_role[role] for by_role in row.plans_by_seed for role in roles if role in by_role]
            for plan in (plan for plan in plans if plan in models):
                checks, tokens = together.setdefault((plan, limit), ({}, set()))
                checks.update({check.id: check for check in audit.checks})
                tokens.update(audit.tokens)
    return [
        (plan, audit_request(list(checks.values()), instances=limit, token_columns=sorted(tokens)))  # type: ignore[arg-type]
        for (plan, limit), (checks, tokens) in together.items()
    ]


def _smaller(first: int | None, second: int | None) -> int | None:
    limits = [limit for limit in (first, second) if limit is not None]
    return min(limits) if limits else None


def _attach_models(
    rows: Sequence[RowRun],
    models: Mapping[Plan, TrainedPlan],
    measured: Mapping[tuple[Plan, int | None], AuditedModel],
    failed: Mapping[Plan, str],
) -> None:
    """Add to each row its trained and audited models. If a seed failed, add the reason instead."""
    audits: dict[Plan, list[AuditedModel]] = {}
    for (plan, _), audit in measured.items():
        audits.setdefault(plan, []).append(audit)
    for row in rows:
        for plans in row.plans_by_seed:
            reasons = [failed[plan] for plan in plans.values() if plan in failed]
            if reasons:
                row.missing = row.missing or reasons[0]
                continue
            row.models_by_seed.append(
                {
                    role: Result(
                        trained=models[plan],
                        audits=tuple(sorted(audits.get(plan, ()), key=lambda audit: -audit.instances)),
                    )
                    for role, plan in plans.items()
                }
            )
