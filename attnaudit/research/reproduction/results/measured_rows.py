"""Compute the quantities and figures of a table row from its trained and audited models."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from attnaudit import __version__
from attnaudit.errors import CheckError
from attnaudit.records import Environment
from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.paper_report import Provenance, WordVectors
from attnaudit.research.reproduction.paper_tables import Models, Quantity, RowPlan, TablePlan
from attnaudit.research.reproduction.results.results_file import MeasuredQuantity, MeasuredRow, RoleScores
from attnaudit.research.reproduction.results.row_settings import row_setting

#: The attributes of an audit that have one item per text.
OF_TEXTS = ("ids", "labels", "predicted", "probabilities", "tokens")
#: The number of decimals of the stored values.
DECIMALS = 10


@dataclass(slots=True, kw_only=True)
class RowRun:
    """A row to measure in this run.

    Attributes:
        table: The table that the row belongs to.
        plan: The declaration of the row.
        plans_by_seed: For each seed, role -> plan of the model.
        models_by_seed: For each seed whose models could be trained and audited, role -> model.
        missing: Why the row is unavailable, or why a seed failed. It is "" otherwise.
    """

    table: TablePlan
    plan: RowPlan
    plans_by_seed: list[dict[str, Plan]]
    models_by_seed: list[Models] = field(default_factory=list)
    missing: str = ""


def measured_row(
    row: RowRun,
    *,
    command: str,
    created: str,
    instances: int | None,
    seed_plan: str | None = None,
    environment: Environment | None = None,
    vectors: WordVectors | None = None,
) -> MeasuredRow:
    """Compute the quantities of a row from its models.

    Args:
        row: The row with its models.
        command: The shell command that measures the row again.
        created: When the run began (ISO 8601, UTC).
        instances: The largest number of audited test texts. None for all of them.
        seed_plan: The SHA-256 of the plan of seeds. None if there is none for this row.
        environment: The machine and the versions of packages in this run. None to leave them out.
        vectors: The word vectors that the embeddings start from. None for random embeddings.

    Returns:
        The measured row. If no seed has models, the row has no quantities and gives the reason.

    Raises:
        CheckError: A quantity names a check or a column that was not measured.
    """
    if not row.models_by_seed:
        return MeasuredRow(table=row.table.name, name=row.plan.name, missing=row.missing)
    results = [result for models in row.models_by_seed for result in models.values()]
    skipped = {why for result in results for audit in result.audits for why in audit.skipped.values()}
    classes = next((audit.classes for result in results for audit in result.audits), [])
    started = [result.trained.started for result in results if result.trained.started is not None]
    quantities = [
        quantity for quantity in row.table.quantities if quantity.of_class is None or quantity.of_class < len(classes)
    ]
    return MeasuredRow(
        table=row.table.name,
        name=row.plan.name,
        setting=row_setting(row.plan, vectors),
        provenance=Provenance(
            command=command,
            created=created,
            attnaudit=__version__,
            seeds=_seeds(row),
            instances=instances,
            seed_plan=seed_plan,
            environment=environment,
            training_seconds=round(sum(result.trained.seconds for result in results), 3),
            audit_seconds=round(sum((audit.seconds for result in results for audit in result.audits), start=0.0), 3),
        ),
        classes=tuple(classes) if any(quantity.of_class is not None for quantity in quantities) else (),
        words_with_vectors=max(started, default=None),
        notes=tuple(sorted({*skipped, *([row.missing] if row.missing else [])})),
        quantities={quantity.name: _measured(quantity, row) for quantity in quantities},
        scores={role: _scores(role, row) for role in row.plan.models},
    )


def row_figures(row: RowRun) -> list[Figure]:
    """Compute the figures of a row from its models. The texts of all seeds are pooled.

    Returns:
        The figures. The list is empty if the table has no figures, if the row has no models, or if a check that the
        figures need was skipped.

    Raises:
        CheckError: A figure names a check or a column that was not measured.
    """
    if row.table.figures is None or not row.models_by_seed:
        return []
    try:
        return list(row.table.figures(row.plan, _pooled(row.models_by_seed)))
    except CheckError:
        if not any(map(_skipped, row.models_by_seed)):
            raise
        return []


def _pooled(models_by_seed: Sequence[Models]) -> Models:
    """Return the models of the first seed, with the texts of the audits of all seeds one after the other."""
    ordered = sorted(models_by_seed, key=lambda models: next(iter(models.values())).trained.plan.seed)
    return {
        role: replace(first, audits=tuple(map(_joined, zip(*(models[role].audits for models in ordered), strict=True))))
        for role, first in ordered[0].items()
    }


def _joined(audits: Sequence[AuditedModel]) -> AuditedModel:
    """Join the texts of several audits. The check records are those of the first audit.

    A column is left out if an audit does not have it: another table may have measured more checks for one seed.
    """
    lists = {name: [x for one in audits for x in getattr(one, name)] for name in OF_TEXTS}
    columns = {
        name: {
            column: [x for one in audits for x in getattr(one, name)[column]]
            for column in getattr(audits[0], name)
            if all(column in getattr(one, name) for one in audits)
        }
        for name in ("scalars", "per_token")
    }
    return msgspec.structs.replace(audits[0], **lists, **columns)


def _seeds(row: RowRun) -> list[int]:
    """Return the seeds of a row.

    Normally, these are the seeds of the model with the first role: models with other roles may use later seeds. If the
    row is run only once (`RowPlan.once`), the seeds of all its models are returned.
    """
    roles = [list(models.values())[: None if row.plan.once else 1] for models in row.models_by_seed]
    return sorted({result.trained.plan.seed for results in roles for result in results})


def _measured(quantity: Quantity, row: RowRun) -> MeasuredQuantity:
    values: list[float | None] = []
    counts: list[int] = []
    for models in row.models_by_seed:
        try:
            value, n = quantity.read(models)
        except CheckError:
            if not _skipped(models):
                raise
            value, n = None, 0  # A check could not be judged. The notes of the row give the reason.
        values.append(None if value is None else round(value, DECIMALS))
        if value is not None:
            counts.append(n)
    return MeasuredQuantity(n=round(statistics.fmean(counts)) if counts else None, values=values)


def _scores(role: str, row: RowRun) -> RoleScores:
    tests = [models[role].trained.test for models in row.models_by_seed]
    return RoleScores(
        accuracy=tuple(round(score.accuracy, DECIMALS) for score in tests),
        f1=tuple(None if score.f1 is None else round(score.f1, DECIMALS) for score in tests),
    )


def _skipped(models: Models) -> bool:
    return any(audit.skipped for result in models.values() for audit in result.audits)
