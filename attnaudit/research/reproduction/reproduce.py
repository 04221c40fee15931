"""One reproduction from beginning to end: data, models, audits, rows, figures."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from attnaudit import __version__
from attnaudit.errors import AuditError, DataError, ReportError, nearest
from attnaudit.models.word_vectors import Vectors
from attnaudit.progress import ProgressCallback
from attnaudit.research.reproduction import reproduction_pages
from attnaudit.research.reproduction.audit_models import Asked, Measured, asked, audit_all
from attnaudit.research.reproduction.claims import judged
from attnaudit.research.reproduction.corpora import EMBEDDED, Prepared, corpus, prepare
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.paper_tables import Result, RowPlan, TablePlan
from attnaudit.research.reproduction.reproduction_options import Options
from attnaudit.research.reproduction.reproduction_records import SCHEMA_VERSION, Remedy, Reproduction, WordVectors
from attnaudit.research.reproduction.table_rows import RowRun, laid_out
from attnaudit.research.reproduction.train_models import TrainedPlan, train_all
from attnaudit.run.environment import describe_environment

#: A title, such as "training" -> a progress bar.
ProgressBar = Callable[[str], AbstractContextManager[ProgressCallback]]

QUICK_SEEDS, QUICK_SEARCHED = 1, 10
QUICK_TRAINING = {"epochs": 4, "learning_rate": 0.01}
QUICK_SIZES = {"embedding_size": 32, "hidden_size": 16, "attention_size": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What a run found, before it is laid out. created: when it began; began: the same on a clock of its own."""

    options: Options
    corpora: Sequence[str]
    rows: list[RowRun]
    data: dict[str, Prepared]
    created: str
    began: float


def reproduce(options: Options, *, progress_bar: ProgressBar) -> Reproduction:
    """`gather`, and `reported` at once."""
    return reported(gather(options, progress_bar=progress_bar))


def gather(options: Options, *, progress_bar: ProgressBar) -> Gathered:
    """Train and audit what is asked for.

    progress_bar: shows progress under a title. Raises AuditError: before any training for files that are
    missing, tables and rows that do not exist.
    """
    began, created = time.perf_counter(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    _earlier(options)  # a file that cannot be added to is named before hours of training
    corpora = options.paper.corpora if options.data_root else (EMBEDDED,)
    tables = _tables(options)
    chosen = [row for table in tables for row in _rows(table, corpora, options)]
    if not chosen:
        names = sorted({row.name for table in tables for row in table.rows(corpora)})
        raise AuditError(f"--only {' '.join(options.only)}: no row is called so. {nearest(options.only[0], names)}")
    data = _prepared(chosen, options)
    plans = list(dict.fromkeys(plan for row in chosen for models in row.seeds for plan in models.values()))
    with progress_bar("training") as progress:
        models, untrained = train_all(plans, data, options.folder / "models", jobs=options.jobs, progress=progress)
    wanted = _asked(chosen, models, options)
    with progress_bar("auditing") as progress:
        measured, unaudited = audit_all(
            models,
            wanted,
            {name: one.path("test") for name, one in data.items()},
            folder=options.folder / "models",
            kept=options.folder / "measured",
            jobs=options.jobs,
            progress=progress,
        )
    _gather(chosen, models, measured, {**untrained, **unaudited})
    return Gathered(options=options, corpora=corpora, rows=chosen, data=data, created=created, began=began)


def reported(gathered: Gathered) -> Reproduction:
    """Laid out, with the rows of earlier runs that were not asked for now. Another run may have added some meanwhile:
    who writes the result does both within `pages.alone`."""
    options = gathered.options
    before = _earlier(options)
    found = Reproduction(
        schema_version=SCHEMA_VERSION,
        paper=options.paper.name,
        title=options.paper.title,
        citation=options.paper.citation,
        quick=options.quick,
        command=options.command,
        created=gathered.created,
        attnaudit=__version__,
        seconds=time.perf_counter() - gathered.began,
        jobs=options.jobs,
        environment=describe_environment(device="cpu", threads=1),
        data={**(before.data if before else {}), **{name: one.rows for name, one in gathered.data.items()}},
        tables=[
            laid_out(table, gathered.corpora, gathered.rows, before, options, gathered.created)
            for table in options.paper.tables
        ],
        vectors=_recorded(options.vectors),
    )
    return msgspec.structs.replace(
        found, findings=judged(options.paper.claims, found), remedies=_remedies(found, options)
    )


def _remedies(found: Reproduction, options: Options) -> tuple[Remedy, ...]:
    if options.paper.remedies is None or options.quick:
        return ()
    random = options.folder / "papers" / f"{options.random}.json"
    return tuple(options.paper.remedies(found, reproduction_pages.read_if_there(random) if options.vectors else None))


def _recorded(vectors: Vectors | None) -> WordVectors | None:
    if vectors is None:
        return None
    return WordVectors(name=vectors.name, width=vectors.width, sha256=vectors.sha256)


def _earlier(options: Options) -> Reproduction | None:
    """The report that the rows are added to. Raises ReportError for one that cannot be read, or is of other word
    vectors of the same name."""
    path = options.folder / "papers" / f"{options.report}.json"
    before = reproduction_pages.read_if_there(path)
    if before and before.vectors and options.vectors and before.vectors.sha256 != options.vectors.sha256:
        raise ReportError(
            f"{path}: its rows started from another file called {before.vectors.name}. Rename "
            f"{options.vectors.path}, or give another --out."
        )
    return before


def _tables(options: Options) -> list[TablePlan]:
    known = {table.name: table for table in options.paper.tables}
    for name in options.tables:
        if name not in known:
            raise AuditError(f"--table {name}: {options.paper.name} has no such table. {nearest(name, known)}")
    return [table for table in options.paper.tables if not options.tables or table.name in options.tables]


def _rows(table: TablePlan, corpora: Sequence[str], options: Options) -> list[RowRun]:
    found = []
    for row in table.rows(corpora):
        if options.only and not any(fnmatch.fnmatchcase(row.name, pattern) for pattern in options.only):
            continue
        seeds = [] if row.unavailable else [_seeded(row, seed, options) for seed in range(_seed_count(row, options))]
        found.append(RowRun(table=table, plan=row, seeds=seeds, missing=row.unavailable))
    return found


def _seed_count(row: RowPlan, options: Options) -> int:
    if row.once:
        return 1
    return QUICK_SEEDS if options.quick else options.seeds


def _seeded(row: RowPlan, seed: int, options: Options) -> dict[str, Plan]:
    made = {role: plan.with_seed(seed + plan.seed) for role, plan in row.models.items()}
    if options.quick:
        made = {role: quick(plan) for role, plan in made.items()}
    if options.vectors is not None:
        made = {role: plan.starting_from(options.vectors) for role, plan in made.items()}
    return made


def quick(plan: Plan) -> Plan:
    """The same model, far smaller and briefly trained."""
    width = 2 * QUICK_SIZES["hidden_size"]
    sizes = {**QUICK_SIZES, "embedding_size": width}  # as wide as the states, which residual and tying need
    architecture = msgspec.structs.replace(plan.architecture, **sizes)
    return msgspec.structs.replace(plan, architecture=architecture).with_settings(**QUICK_TRAINING)


def _prepared(chosen: Sequence[RowRun], options: Options) -> dict[str, Prepared]:
    """Every corpus that a row needs. Raises one DataError for all files that are missing."""
    names = {plan.corpus for row in chosen for models in row.seeds for plan in models.values()}
    found, missing = {}, []
    for name in sorted(names):
        try:
            found[name] = prepare(corpus(name), options.data_root, options.folder / "data", quick=options.quick)
        except DataError as error:
            missing.append(str(error))
    if missing:
        raise DataError("\n".join(missing))
    return found


def _instances(of: int | None, options: Options) -> int | None:
    limits = [n for n in (of, options.instances) if n is not None]
    return min(limits) if limits else None


def _asked(chosen: Sequence[RowRun], models: Mapping[Plan, TrainedPlan], options: Options) -> list[tuple[Plan, Asked]]:
    """The audits of each model: those of all its rows together, one per number of instances."""
    together: dict[tuple[Plan, int | None], tuple[dict[str, object], set[str]]] = {}
    for row in chosen:
        for audit in row.table.audits:
            limit = _instances(audit.instances, options)
            limit = min(limit, QUICK_SEARCHED) if options.quick and audit.instances and limit else limit
            roles = audit.roles or list(row.plan.models)
            plans = [one[role] for one in row.seeds for role in roles if role in one]
            for plan in (plan for plan in plans if plan in models):
                checks, tokens = together.setdefault((plan, limit), ({}, set()))
                checks.update({check.id: check for check in audit.checks})
                tokens.update(audit.tokens)
    return [
        (plan, asked(list(checks.values()), instances=limit, tokens=sorted(tokens)))  # type: ignore[arg-type]
        for (plan, limit), (checks, tokens) in together.items()
    ]


def _gather(
    chosen: Sequence[RowRun],
    models: Mapping[Plan, TrainedPlan],
    measured: Mapping[tuple[Plan, int | None], Measured],
    failed: Mapping[Plan, str],
) -> None:
    audits: dict[Plan, list[Measured]] = {}
    for (plan, _), one in measured.items():
        audits.setdefault(plan, []).append(one)
    for row in chosen:
        for plans in row.seeds:
            reasons = [failed[plan] for plan in plans.values() if plan in failed]
            if reasons:
                row.missing = row.missing or reasons[0]
                continue
            row.made.append(
                {
                    role: Result(
                        trained=models[plan],
                        audits=tuple(sorted(audits.get(plan, ()), key=lambda a: -a.instances)),
                    )
                    for role, plan in plans.items()
                }
            )
