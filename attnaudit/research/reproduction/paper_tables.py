"""Classes that declare a paper, and functions that compute the quantities of its tables.

A paper has tables, a table has rows, and a row has models. If a row has several models, each has a role, which is a
name such as "base" or "adversary".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from attnaudit.checks.base import Check
from attnaudit.errors import CheckError, nearest
from attnaudit.records import CheckRecord
from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.figures.quantity_axes import NUMBER, Axis
from attnaudit.research.reproduction.figures.quantity_figures import CurvePlan
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.paper_report import Reproduction, Row
from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.reproduction.train_models import TrainedPlan
from attnaudit.research.reproduction.verdicts_on_claims.claims import Claim
from attnaudit.research.reproduction.verdicts_on_claims.goals import Goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trained model and its audits.

    Attributes:
        trained: The trained model.
        audits: The audits of the model. The audit with the most instances comes first.
    """

    trained: TrainedPlan
    audits: tuple[AuditedModel, ...]

    def check(self, name: str) -> CheckRecord | None:
        """Return the record of the check with the given id.

        If several audits have the check, the record comes from the audit with the most instances.

        Returns:
            The record, or None if the check could not be judged.

        Raises:
            CheckError: No audit of the model has this check.
        """
        for audit in self.audits:
            for record in audit.checks:
                if record.check == name:
                    return record
        known = [check for audit in self.audits for check in audit.fingerprints]
        if name not in known:
            raise CheckError(f"No check '{name}' in this audit. {nearest(name, known)}")
        return None

    def having(self, column: str) -> AuditedModel:
        """Return the audit that measured a column. If there are several, return the one with the most instances.

        Raises:
            CheckError: No audit of the model measured the column.
        """
        for audit in self.audits:
            if column in audit.scalars:
                return audit
        known = {name for audit in self.audits for name in audit.scalars}
        raise CheckError(f"No number '{column}' was measured. {nearest(column, known)}")


#: Role -> model. If a row has only one model, its role is MODEL.
Models = Mapping[str, Result]
#: The value of a quantity, or None if it is undefined, and the number of instances that it is computed from.
Reading = tuple[float | None, int]
MODEL = "model"
ROW_NAMES = "Rows are named corpus/encoder/alignment: sst/bilstm/additive is a BiLSTM with additive attention on SST."


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number that is computed for each row of a table.

    Attributes:
        name: A short name, unique in the table.
        words: The description of the quantity in the tables. "{}" is replaced by the name of the class `of_class`. The
            description may continue that of the quantity above ("… ").
        label: The description of the quantity where it is read alone, such as in figures. It must be given if `words`
            is a continuation or contains the name of a class. "" for `words`.
        axis: The axis of strip plots of the quantity.
        read: Computes the quantity from the models of one seed. If it raises CheckError because a check could not be
            judged, the value is undefined.
        digits: The number of decimals in the reports.
        of_class: The index of a class. Only instances of this class count. None for all instances. If the model has no
            such class, the quantity is left out.
        score_of: The role of a model, if the quantity is the score (`Paper.score`) of this model; otherwise "". The
            rows of this model count only if its score comes close enough to the score in the paper (see
            `row_exclusions`).
    """

    name: str
    words: str
    read: Callable[[Models], Reading]
    digits: int = 3
    of_class: int | None = None
    score_of: str = ""
    label: str = ""
    axis: Axis = NUMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """A row of a table.

    Attributes:
        name: The name of the row, unique in the table, such as "sst/bilstm/additive" (corpus/encoder/alignment).
        title: The name of the row in the reports.
        corpus: The name of the corpus.
        models: Role -> plan. One model is trained for each role and each seed. The seed of a model is the seed of the
            run plus the seed in the plan. The plans of two roles may therefore differ only in their seeds.
        paper: Name of a quantity -> number in the paper.
        unavailable: Why this version of attnaudit cannot build the models. It is "" if it can.
        once: Whether the row is run only once, for the first seed, because its models already have different seeds.
        must_be_trained: Roles of variants whose models must be trained well enough for the row to count (see
            `row_exclusions`). For models without a variant, this is always required.
        build: Increase this number when the definition of a quantity changes for this row, so that it is run again.
    """

    name: str
    title: str
    corpus: str
    models: Mapping[str, Plan] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    unavailable: str = ""
    once: bool = False
    must_be_trained: Sequence[str] = ()
    build: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """An audit of the models of a table.

    Attributes:
        checks: The checks.
        instances: The largest number of test texts. None for all of them.
        tokens: The names of the per-token columns to store, such as "attention".
        roles: The roles of the models to audit. If it is empty, the models of all roles are audited.
    """

    checks: Sequence[Check]
    instances: int | None = None
    tokens: Sequence[str] = ()
    roles: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table of a paper.

    Attributes:
        name: The name of the table, as `--table` expects it.
        title: The heading of the table in the reports.
        source: The place of the table in the paper, such as "table 2".
        rows: Returns the rows for a list of names of corpora.
        quantities: The quantities of each row.
        audits: The audits of the models.
        figures: Computes the figures of a row from its models. The texts of all seeds are pooled. None if the table has
            no such figures.
        curves: Figures that are computed from the quantities of each row, with one line per seed.
        drawn: Names of quantities that have a strip plot although the paper has no numbers for them. Quantities with
            numbers in the paper always have one.
        across: Computes additional rows and figures from all rows with quantities. None if there are none.
        deviations: Sentences that describe how every row differs from the setting of the paper.
        left_out: The corpora that the paper leaves out of this table. Their rows can be run, but claims must not count
            them.
        compared_with: What our numbers are compared with: "paper", or "other paper" if they are another paper's.
    """

    name: str
    title: str
    source: str
    rows: Callable[[Sequence[str]], Sequence[RowPlan]]
    quantities: Sequence[Quantity]
    audits: Sequence[Audit]
    figures: Callable[[RowPlan, Models], Sequence[Figure]] | None = None
    curves: Sequence[CurvePlan] = ()
    drawn: Sequence[str] = ()
    across: Callable[[Sequence[Row]], tuple[Sequence[Row], Sequence[Figure]]] | None = None
    deviations: Sequence[str] = ()
    left_out: Sequence[str] = ()
    compared_with: str = "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper.

    Attributes:
        name: The name of the paper, as `attnaudit reproduce` expects it.
        title: The title of the paper.
        citation: The authors, the venue and the year.
        corpora: The names of the corpora, in the order of the paper.
        tables: The tables.
        row_names: How rows are named, and what readers of the claims should know about them.
        embeddings: A sentence about the random embeddings. It is one of the deviations if no word vectors are given.
        deviations: Sentences that describe how every table differs from the setting of the paper.
        claims: The claims that the measured numbers can support or contradict.
        score: The score by which the paper measures how well a model is trained.
        comparable_scores: (corpus, encoder) -> score of another paper for a comparable model. Models whose encoder has
            no score in this paper are compared with it (see `row_exclusions`).
        goals: How close the numbers should be to the paper's.
        remedies: Returns the training options that help, according to a report. Its first argument is the report. If
            this report uses word vectors, the second argument is the same report with random embeddings, or None if
            there is none. Otherwise, the second argument is None. The attribute is None if the paper has no remedies.
    """

    name: str
    title: str
    citation: str
    corpora: Sequence[str]
    tables: Sequence[TablePlan]
    row_names: str = ROW_NAMES
    embeddings: str = (
        "Embeddings are random (300 wide, standard deviation .1) and not pretrained, which makes a large difference "
        "(see Word vectors in docs/reproduction.md). Words that occur once in the training data are treated as unknown."
    )
    deviations: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    score: Literal["accuracy", "f1"] = "accuracy"
    comparable_scores: Mapping[tuple[str, str], float] = field(default_factory=dict)
    goals: Sequence[Goal] = ()
    remedies: Callable[[Reproduction, Reproduction | None], Sequence[Remedy]] | None = None


def accuracy(models: Models, *, of: str = MODEL) -> Reading:
    """Return the accuracy of a model on the test part, and the number of test instances.

    Args:
        models: Role -> model.
        of: The role of the model in the row (see `RowPlan`).
    """
    score = models[of].trained.test
    return score.accuracy, score.n


def f1(models: Models, *, of: str = MODEL) -> Reading:
    """Return the F1 of a model on the test part, and the number of test instances.

    Args:
        models: Role -> model.
        of: The role of the model in the row (see `RowPlan`).
    """
    score = models[of].trained.test
    return score.f1, score.n


def value_of(check: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """Return a function that reads the value of a check.

    The value is None if it is undefined, or if the check could not be judged.

    Args:
        check: The id of the check.
        of: The role of the model in the row (see `RowPlan`).
    """

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        return (None, 0) if record is None else (record.value, record.n_defined)

    return read


def detail_of(check: str, name: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """Return a function that reads a detail of a check, such as "standard deviation".

    The detail is None if it is not a number, or if the check could not be judged. The function raises CheckError if the
    check has no such detail.

    Args:
        check: The id of the check.
        name: The name of the detail.
        of: The role of the model in the row (see `RowPlan`).
    """

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        if record is None:
            return None, 0
        if name not in record.details:
            raise CheckError(f"Check '{check}' has no detail '{name}'. {nearest(name, record.details)}")
        detail = record.details[name]
        return (float(detail) if isinstance(detail, int | float) else None), record.n_defined

    return read


def reference_of(check: str, name: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """Return a function that reads a reference value of a check.

    The value is None if the check could not be judged or has no references. The function raises CheckError if the check
    has references but none with this name.

    Args:
        check: The id of the check.
        name: The name of the reference.
        of: The role of the model in the row (see `RowPlan`).
    """

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        if record is None or not record.references:
            return None, 0
        by_name = {reference.name: reference for reference in record.references}
        if name not in by_name:
            raise CheckError(f"Check '{check}' has no reference '{name}'. {nearest(name, by_name)}")
        return by_name[name].value, by_name[name].n or 0

    return read


def column_of(
    column: str, statistic: Callable[[Sequence[float]], float | None], *, of_class: int | None = None, of: str = MODEL
) -> Callable[[Models], Reading]:
    """Return a function that computes a statistic of a measured column over the instances on which it is defined.

    The statistic is None if the column is defined on no instance.

    Args:
        column: The name of the column.
        statistic: A function of the values, such as `statistics.fmean`. None if it is undefined for these values.
        of_class: The index of a class. Only instances predicted as this class are used. None for all instances.
        of: The role of the model in the row (see `RowPlan`).
    """

    def read(models: Models) -> Reading:
        values = defined(models[of], column, of_class=of_class)
        return (statistic(values) if values else None), len(values)

    return read


def defined(result: Result, column: str, *, of_class: int | None = None) -> list[float]:
    """Return the defined values of a measured column.

    Args:
        result: The model.
        column: The name of the column.
        of_class: The index of a class. Only instances predicted as this class are used. None for all instances.

    Raises:
        CheckError: The column was not measured.
    """
    audit = result.having(column)
    return [
        value
        for value, predicted in zip(audit.scalars[column], audit.predicted, strict=True)
        if value is not None and math.isfinite(value) and of_class in (None, predicted)
    ]
