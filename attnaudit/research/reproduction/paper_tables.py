"""The classes that declare a paper: its tables, the models of each row, and functions that compute the quantities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attnaudit.checks.base import Check
from attnaudit.errors import CheckError, nearest
from attnaudit.records import CheckRecord
from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.claims import Claim
from attnaudit.research.reproduction.figure_records import Figure
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.paper_report import Reproduction, Row
from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.reproduction.train_models import TrainedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trained model and its audits.

    Attributes:
        trained: the trained model.
        audits: its audits, the one with the most instances first.
    """

    trained: TrainedPlan
    audits: tuple[AuditedModel, ...]

    def check(self, name: str) -> CheckRecord | None:
        """Return the record of a check by its id.

        Returns:
            The record; None if the check could not be judged.

        Raises:
            CheckError: no audit of the model has this check.
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
        """Return the largest audit that measured this column. Raises CheckError if there is none."""
        for audit in self.audits:
            if column in audit.scalars:
                return audit
        known = {name for audit in self.audits for name in audit.scalars}
        raise CheckError(f"No measured number '{column}'. {nearest(column, known)}")


#: role -> model. If a row has only one model, its role is MODEL.
Models = Mapping[str, Result]
#: (value, or None if it is undefined; number of instances that it is computed from)
Reading = tuple[float | None, int]
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number of a row.

    Attributes:
        name: short name, unique in the table.
        words: its description in the reports; "{}" is replaced by the name of the class `of_class`.
        read: function that computes it from the models of one seed. If it raises CheckError and a check could not be
            judged, the value is undefined.
        digits: number of decimals in the reports.
        of_class: index of the class whose instances count; None for all instances. The quantity is left out if the
            model has no such class.
    """

    name: str
    words: str
    read: Callable[[Models], Reading]
    digits: int = 3
    of_class: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """A row of a table.

    Attributes:
        name: unique name in the table, such as "sst/bilstm/additive" (corpus/encoder/alignment).
        title: its name in the reports.
        corpus: name of the corpus.
        models: role -> plan. One model is trained per role and seed. The seed of the plan is added to the seed of the
            row, so that two roles can have the same plan except for consecutive seeds.
        paper: quantity -> the paper's number.
        unavailable: why this version cannot build the models; "" if it can.
        once: whether only the first seed is run, because the roles of the row are different seeds.
    """

    name: str
    title: str
    corpus: str
    models: Mapping[str, Plan] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    unavailable: str = ""
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """An audit of the models of a table.

    Attributes:
        checks: the checks.
        instances: largest number of test texts; None for all of them.
        tokens: per-token columns to store, such as "attention".
        roles: roles of the audited models; all roles if empty.
    """

    checks: Sequence[Check]
    instances: int | None = None
    tokens: Sequence[str] = ()
    roles: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table of a paper.

    Attributes:
        name: name of the table, as `--table` takes it.
        title: its heading.
        source: its place in the paper, such as "table 2".
        rows: function that returns the rows for given names of corpora.
        quantities: the numbers of each row.
        audits: how the models are audited.
        figures: function that draws the figures of a row from the models of its first seed; None for no figures.
        across: function that computes further rows and figures from all rows with quantities; None for no such rows.
        deviations: sentences about differences from the paper's setting that apply to every row.
    """

    name: str
    title: str
    source: str
    rows: Callable[[Sequence[str]], Sequence[RowPlan]]
    quantities: Sequence[Quantity]
    audits: Sequence[Audit]
    figures: Callable[[RowPlan, Models], Sequence[Figure]] | None = None
    across: Callable[[Sequence[Row]], tuple[Sequence[Row], Sequence[Figure]]] | None = None
    deviations: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper.

    Attributes:
        name: name of the paper, as `attnaudit reproduce` takes it.
        title: its title.
        citation: its authors, venue and year.
        corpora: names of its corpora, in its order.
        tables: its tables.
        embeddings: the deviation that applies if no word vectors are given.
        deviations: sentences about differences from the paper's setting that apply to every table.
        claims: the claims that can be checked with our numbers.
        remedies: function that returns the training options that help according to a report; None for no remedies. For
            a report with word vectors, its second argument is the report with random embeddings, if there is one; else
            it is None.
    """

    name: str
    title: str
    citation: str
    corpora: Sequence[str]
    tables: Sequence[TablePlan]
    embeddings: str = (
        "Embeddings are random (300 wide, standard deviation .1) and not pretrained, which makes a large difference "
        "(see Word vectors in docs/reproduction.md). Words that occur once in the training data are treated as unknown."
    )
    deviations: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    remedies: Callable[[Reproduction, Reproduction | None], Sequence[Remedy]] | None = None


def accuracy(models: Models, *, of: str = MODEL) -> Reading:
    """Read the accuracy on the test part."""
    score = models[of].trained.test
    return score.accuracy, score.n


def f1(models: Models, *, of: str = MODEL) -> Reading:
    """Read the F1 on the test part."""
    score = models[of].trained.test
    return score.f1, score.n


def value_of(check: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """Read the value of a check, given by its id."""

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        return (None, 0) if record is None else (record.value, record.n_defined)

    return read


def detail_of(check: str, name: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """Return a function that reads a detail of a check, such as "standard deviation".

    The detail is None if it is not a number, or if the check was not judged.
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
    """Read a reference value of a check by its name."""

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
    column: str, statistic: Callable[[Sequence[float]], float], *, of_class: int | None = None, of: str = MODEL
) -> Callable[[Models], Reading]:
    """Read a statistic of a measured column over the instances where it is defined.

    Args:
        column: name of the column.
        statistic: a function of the values, such as `statistics.fmean`.
        of_class: use only the instances predicted as this class.
        of: role of the model.
    """

    def read(models: Models) -> Reading:
        values = defined(models[of], column, of_class=of_class)
        return (statistic(values) if values else None), len(values)

    return read


def defined(result: Result, column: str, *, of_class: int | None = None) -> list[float]:
    """Return the defined values of a measured column; with `of_class`, only of instances predicted as that class."""
    audit = result.having(column)
    return [
        value
        for value, predicted in zip(audit.scalars[column], audit.predicted, strict=True)
        if value is not None and math.isfinite(value) and of_class in (None, predicted)
    ]
