"""Figures of a row are computed from the texts of all its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import msgspec

from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.paper_tables import MODEL, Models, Result, RowPlan, TablePlan, defined
from attnaudit.research.reproduction.results.measured_rows import RowRun, row_figures
from attnaudit.research.reproduction.train_models import TrainedPlan


def models(seed: int, values: Sequence[float]) -> Models:
    n = len(values)
    audit = AuditedModel(
        fingerprints={}, checks=[], skipped={}, instances=n, seconds=0.0, cpu_seconds=0.0, classes=["no", "yes"],
        ids=[f"{seed}-{i}" for i in range(n)], labels=[0] * n, predicted=[i % 2 for i in range(n)],
        probabilities=[[1.0, 0.0]] * n, scalars={"x": list(values)}, tokens=[["a"]] * n, per_token={"y": [[1.0]] * n},
    )  # fmt: skip
    trained = SimpleNamespace(plan=SimpleNamespace(seed=seed))
    return {MODEL: Result(trained=cast(TrainedPlan, trained), audits=(audit,))}


def test_the_texts_of_all_seeds_are_pooled_in_the_order_of_the_seeds() -> None:
    def figures(row: RowPlan, found: Models) -> list[Figure]:
        (audit,) = found[MODEL].audits
        assert audit.ids == ["0-0", "0-1", "1-0", "1-1", "1-2"]
        assert audit.per_token == {"y": [[1.0]] * 5}
        assert defined(found[MODEL], "x") == [0.1, 0.2, 0.3, 0.4, 0.5]
        assert defined(found[MODEL], "x", of_class=1) == [0.2, 0.4]
        return [Figure(name="f", row=row.name, title="", caption="")]

    plan = RowPlan(name="sst/bilstm", title="", corpus="sst")
    table = TablePlan(
        name="t", title="", source="", rows=lambda corpora: [plan], quantities=(), audits=(), figures=figures
    )
    seeds = [models(1, (0.3, 0.4, 0.5)), models(0, (0.1, 0.2))]
    run = RowRun(table=table, plan=plan, plans_by_seed=[], models_by_seed=seeds)
    assert [figure.name for figure in row_figures(run)] == ["f"]
    assert seeds[1][MODEL].audits[0].ids == ["0-0", "0-1"]  # the audits themselves do not change


def test_only_columns_that_all_seeds_have_are_pooled() -> None:
    def figures(row: RowPlan, found: Models) -> list[Figure]:
        (audit,) = found[MODEL].audits
        assert audit.scalars == {"x": [0.1, 0.2, 0.3]}
        return [Figure(name="f", row=row.name, title="", caption="")]

    def measured_for_another_table(found: Models) -> Models:
        (audit,) = found[MODEL].audits
        more = msgspec.structs.replace(audit, scalars={**audit.scalars, "z": [1.0] * audit.instances})
        return {MODEL: replace(found[MODEL], audits=(more,))}

    plan = RowPlan(name="sst/bilstm", title="", corpus="sst")
    table = TablePlan(
        name="t", title="", source="", rows=lambda corpora: [plan], quantities=(), audits=(), figures=figures
    )
    first, second = models(0, (0.1, 0.2)), models(1, (0.3,))
    for seeds in ([measured_for_another_table(first), second], [first, measured_for_another_table(second)]):
        run = RowRun(table=table, plan=plan, plans_by_seed=[], models_by_seed=seeds)
        assert [figure.name for figure in row_figures(run)] == ["f"]
