"""One reproduction from beginning to end: data, models, audits, rows, figures."""

from __future__ import annotations

import fnmatch
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from attnaudit import __version__
from attnaudit.auditing.environment import describe_environment
from attnaudit.errors import AuditError, CheckError, DataError, ReportError, nearest
from attnaudit.reproduction import pages
from attnaudit.reproduction.auditing import Asked, Measured, asked, audit_all
from attnaudit.reproduction.claims import judged
from attnaudit.reproduction.corpora import EMBEDDED, Prepared, corpus, prepare
from attnaudit.reproduction.declaring import Models, Paper, Quantity, Result, RowPlan, TablePlan
from attnaudit.reproduction.plans import Plan, variant
from attnaudit.reproduction.records import SCHEMA_VERSION, Figure, Line, Made, Reproduction, Row, Table, WordVectors
from attnaudit.reproduction.training import TrainedPlan, train_all
from attnaudit.zoo.vectors import Vectors

Told = Callable[[int, int, str], None]
Shown = Callable[[str], AbstractContextManager[Told]]

QUICK_SEEDS, QUICK_SEARCHED = 1, 10
QUICK_TRAINING = {"epochs": 4, "learning_rate": 0.01}
QUICK_SIZES = {"embedding_size": 32, "hidden_size": 16, "attention_size": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """tables: names, all where empty. only: patterns of row names such as "sst/*", all rows where empty. instances: at
    most so many of each test set. quick: small data, small models, one seed; its output is marked so and kept apart.
    vectors: word vectors that embeddings start from; such rows have a report of their own."""

    paper: Paper
    out: Path
    command: str
    data_root: Path | None = None
    tables: Sequence[str] = ()
    only: Sequence[str] = ()
    seeds: int = 3
    instances: int | None = None
    jobs: int = 1
    quick: bool = False
    vectors: Vectors | None = None

    @property
    def folder(self) -> Path:
        """Where everything goes: a quick run never mixes with a real one, nor one data root's kind with the other."""
        return self.out / "quick" if self.quick else self.out

    @property
    def report(self) -> str:
        """The stem of the report's files."""
        stem = self.paper.name if self.data_root else f"{self.paper.name}-embedded"
        stem += f"-{self.vectors.name}" if self.vectors else ""
        return f"{stem}-quick" if self.quick else stem

    @property
    def embeddings(self) -> str:
        """What tables say of them."""
        if self.vectors is None:
            return self.paper.embeddings
        return (
            f"Embeddings start from {self.vectors.name} ({self.vectors.width} wide) and are trained further, but those "
            "of bAbI are random. Words without a vector start at random, as large as those with one; words seen once "
            "in training are read as unknown. Where the paper's hidden states are as wide as its embeddings, ours are."
        )


@dataclass(slots=True, kw_only=True)
class _Row:
    """A row that this run makes: by seed, role -> plan."""

    table: TablePlan
    plan: RowPlan
    seeds: list[dict[str, Plan]]
    made: list[Models] = field(default_factory=list)
    missing: str = ""


def reproduce(options: Options, *, shown: Shown) -> Reproduction:
    """Train, audit and lay out what is asked for; rows of an earlier run that are not asked for now are kept.

    shown: a word for what is being done -> a progress bar. Raises AuditError: before any training for files that are
    missing, tables and rows that do not exist.
    """
    started, created = time.perf_counter(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    earlier = options.folder / "papers" / f"{options.report}.json"
    _same_vectors(earlier, options)  # a file that cannot be added to is named before hours of training
    corpora = options.paper.corpora if options.data_root else (EMBEDDED,)
    tables = _tables(options)
    chosen = [row for table in tables for row in _rows(table, corpora, options)]
    if not chosen:
        names = sorted({row.name for table in tables for row in table.rows(corpora)})
        raise AuditError(f"--only {' '.join(options.only)}: no row is called so. {nearest(options.only[0], names)}")
    data = _prepared(chosen, options)
    plans = list(dict.fromkeys(plan for row in chosen for models in row.seeds for plan in models.values()))
    with shown("training") as told:
        models, untrained = train_all(plans, data, options.folder / "models", jobs=options.jobs, told=told)
    wanted = _asked(chosen, models, options)
    with shown("auditing") as told:
        measured, unaudited = audit_all(
            models,
            wanted,
            {name: one.path("test") for name, one in data.items()},
            folder=options.folder / "models",
            kept=options.folder / "measured",
            jobs=options.jobs,
            told=told,
        )
    _gather(chosen, models, measured, {**untrained, **unaudited})
    before = pages.read_if_there(earlier)  # by now another run may have added to it
    found = Reproduction(
        schema_version=SCHEMA_VERSION,
        paper=options.paper.name,
        title=options.paper.title,
        citation=options.paper.citation,
        quick=options.quick,
        command=options.command,
        created=created,
        attnaudit=__version__,
        seconds=time.perf_counter() - started,
        jobs=options.jobs,
        environment=describe_environment(device="cpu", threads=1),
        data={**(before.data if before else {}), **{name: one.rows for name, one in data.items()}},
        tables=[_laid_out(table, corpora, chosen, before, options, created) for table in options.paper.tables],
        vectors=_recorded(options.vectors),
    )
    helps = () if options.paper.remedies is None or options.quick else tuple(options.paper.remedies(found))
    return msgspec.structs.replace(found, findings=judged(options.paper.claims, found), remedies=helps)


def _recorded(vectors: Vectors | None) -> WordVectors | None:
    if vectors is None:
        return None
    return WordVectors(name=vectors.name, width=vectors.width, sha256=vectors.sha256)


def _same_vectors(earlier: Path, options: Options) -> None:
    """Raises ReportError for a report that cannot be read, or is of other word vectors of the same name."""
    before = pages.read_if_there(earlier)
    if before and before.vectors and options.vectors and before.vectors.sha256 != options.vectors.sha256:
        raise ReportError(
            f"{earlier}: its rows started from another file called {before.vectors.name}. Rename "
            f"{options.vectors.path}, or give another --out."
        )


def _tables(options: Options) -> list[TablePlan]:
    known = {table.name: table for table in options.paper.tables}
    for name in options.tables:
        if name not in known:
            raise AuditError(f"--table {name}: {options.paper.name} has no such table. {nearest(name, known)}")
    return [table for table in options.paper.tables if not options.tables or table.name in options.tables]


def _rows(table: TablePlan, corpora: Sequence[str], options: Options) -> list[_Row]:
    found = []
    for row in table.rows(corpora):
        if options.only and not any(fnmatch.fnmatchcase(row.name, pattern) for pattern in options.only):
            continue
        seeds = [] if row.unavailable else [_seeded(row, seed, options) for seed in range(_seed_count(row, options))]
        found.append(_Row(table=table, plan=row, seeds=seeds, missing=row.unavailable))
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


def _prepared(chosen: Sequence[_Row], options: Options) -> dict[str, Prepared]:
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


def _asked(chosen: Sequence[_Row], models: Mapping[Plan, TrainedPlan], options: Options) -> list[tuple[Plan, Asked]]:
    """The audits of each model: those of all its rows together, one per number of instances."""
    together: dict[tuple[Plan, int | None], tuple[dict[str, object], set[str]]] = {}
    for row in chosen:
        for audit in row.table.audits:
            limit = _instances(audit.instances, options)
            limit = min(limit, QUICK_SEARCHED) if options.quick and audit.instances and limit else limit
            roles = audit.roles or list(row.plan.models)
            plans = [one[role] for one in row.seeds for role in roles if role in one]
            for plan in (plan for plan in plans if plan in models and variant(plan.variant).alone):
                checks, tokens = together.setdefault((plan, limit), ({}, set()))
                checks.update({check.id: check for check in audit.checks})
                tokens.update(audit.tokens)
    return [
        (plan, asked(list(checks.values()), instances=limit, tokens=sorted(tokens)))  # type: ignore[arg-type]
        for (plan, limit), (checks, tokens) in together.items()
    ]


def _gather(
    chosen: Sequence[_Row],
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


def _laid_out(
    table: TablePlan,
    corpora: Sequence[str],
    chosen: Sequence[_Row],
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
    cut = [f"{row.title}: {row.made.instances} test texts" for row in there if row.made and row.made.instances]
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


def _row(row: _Row, options: Options, created: str) -> Row:
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


def _seeds(row: _Row) -> list[int]:
    """Of the first role, beside which others may be from the next seeds; of all where the row is about seeds."""
    some = [list(models.values())[: None if row.plan.once else 1] for models in row.made]
    return sorted({result.trained.plan.seed for results in some for result in results})


def _line(quantity: Quantity, row: _Row, classes: Sequence[str]) -> Line:
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


def _figures(row: _Row) -> list[Figure]:
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
