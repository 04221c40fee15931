"""Trained models are audited once; later runs measure only checks that have no kept record."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.checks import AdversarialDivergence, Agreement, Check, PermutationFragility
from attnaudit.errors import CheckError
from attnaudit.research.reproduction import audit_models, train_models
from attnaudit.research.reproduction.audit_models import AuditedModel, audit_all, audit_request
from attnaudit.research.reproduction.figures.paper_figures import counterfactual_text, draw, permutation_violins
from attnaudit.research.reproduction.paper_tables import (
    MODEL,
    Result,
    RowPlan,
    accuracy,
    column_of,
    detail_of,
    reference_of,
    value_of,
)
from tests.units.research.reproduction.small_corpus import data, plan

AGREEMENT = Agreement(importance="leave_one_out", severity="report")
PERMUTED = PermutationFragility(severity="report")
EXACT = AdversarialDivergence(tvd=0.01, severity="report")
ROW = RowPlan(name="r", title="R", corpus="movie-reviews")


def audit(
    tmp_path: Path, *checks: Check, tokens: tuple[str, ...] = ()
) -> tuple[train_models.TrainedPlan, AuditedModel]:
    prepared = data(tmp_path / "data")
    models, failed = train_models.train_all([plan(epochs=4)], {"movie-reviews": prepared}, tmp_path / "models")
    assert failed == {}
    measured, unaudited = audit_all(
        models,
        [(plan(epochs=4), audit_request(checks, instances=30, token_columns=tokens))],
        {"movie-reviews": prepared.path("test")},
        checkpoints=tmp_path / "models",
        results=tmp_path / "measured",
    )
    assert unaudited == {}
    return models[plan(epochs=4)], measured[plan(epochs=4), 30]


def test_only_what_is_new_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first = audit(tmp_path, AGREEMENT)
    judged: list[list[str]] = []
    judge_model = audit_models.judge_model

    def note(loaded: object, dataset: object, checks: list[Check], **options: object) -> object:
        judged.append([check.id for check in checks])
        return judge_model(loaded, dataset, checks, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(audit_models, "judge_model", note)
    assert audit(tmp_path, AGREEMENT)[1] == first
    assert judged == []
    _, both = audit(tmp_path, AGREEMENT, PERMUTED)
    assert judged == [[PERMUTED.id]]
    assert {one.check for one in both.checks} == {AGREEMENT.id, PERMUTED.id}
    assert both.scalars["agreement.leave_one_out.inputs.tau"] == first.scalars["agreement.leave_one_out.inputs.tau"]


def test_numbers_are_read_off_records_and_columns(tmp_path: Path) -> None:
    trained, measured = audit(tmp_path, AGREEMENT, PERMUTED)
    models = {MODEL: Result(trained=trained, audits=(measured,))}
    assert accuracy(models) == (trained.test.accuracy, 40)
    record = next(one for one in measured.checks if one.check == PERMUTED.id)
    assert value_of(PERMUTED.id)(models) == (record.value, 30)
    mean, n = column_of("permutation.tvd", lambda values: sum(values) / len(values))(models)
    assert n == 30
    assert mean == pytest.approx(record.value, abs=1e-6)
    by_class = [column_of("permutation.tvd", len, of_class=index)(models)[1] for index in (0, 1)]
    assert sum(by_class) == 30
    assert detail_of(PERMUTED.id, "drop in F1")(models)[0] is not None
    assert reference_of(AGREEMENT.id, "gradient_loo")(models)[1] > 0
    for wrong in (value_of("permutation"), detail_of(PERMUTED.id, "drop"), column_of("permutation.tv", len)):
        with pytest.raises(CheckError, match="Did you mean"):
            wrong(models)


def test_figures_show_the_measured_numbers(tmp_path: Path) -> None:
    column = "adversarial.0.01.attention"
    trained, measured = audit(tmp_path, PERMUTED, EXACT, tokens=("attention", column))
    models = {MODEL: Result(trained=trained, audits=(measured,))}
    figure = permutation_violins(ROW, models, "permutation.tvd")
    assert figure.violins is not None
    assert sum(one.n for one in figure.violins.violins) <= 30
    assert draw(figure) is not None
    rival = counterfactual_text(ROW, models, "0.01")
    if rival is not None and rival.rival is not None:
        row = measured.ids.index(rival.rival.instance)
        assert rival.rival.attention == measured.per_token["attention"][row]
        assert measured.labels[row] == measured.predicted[row]
        assert rival.rival.tvd <= 0.01 + 1e-5
