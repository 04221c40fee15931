"""The classes that declare a paper: its tables, their rows of models, and how quantities are computed from models."""

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
        """The record of a check by its id.

        Returns:
            The record; None where the check could not be judged.

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
        """The largest audit that measured this column. Raises CheckError where there is none."""
        for audit in self.audits:
            if column in audit.scalars:
                return audit
        known = {name for audit in self.audits for name in audit.scalars}
        raise CheckError(f"No measured number '{column}'. {nearest(column, known)}")


#: role -> model; the only model of a row has the role MODEL.
Models = Mapping[str, Result]
#: (value, None where it is undefined; number of instances behind it)
Reading = tuple[float | None, int]
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number of a row.

    Attributes:
        name: short name, unique in the table.
        words: what it is, as the pages print it; "{}" is replaced by the class of `of_class`.
        read: computes it from the models of one seed. It may raise CheckError where a check could not be judged; the
            value is then undefined.
        digits: decimals that the pages print.
        of_class: index of the class that the number is about; the quantity is left out where there are fewer classes.
            None where it is about all instances.
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
        name: corpus/encoder/alignment, or whatever distinguishes the rows of the table.
        title: the same as the pages print it.
        corpus: name of the corpus.
        models: role -> plan. One model per role and seed is trained; the seed of the plan is added to the seed of the
            row, so that a role can be another role's model from the next seed.
        paper: quantity -> the paper's number.
        unavailable: why this version cannot build the models; "" where it can.
        once: whether only the first seed is run, because the row itself compares seeds.
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
        tokens: columns with one value per token that are kept, such as "attention".
        roles: roles of the audited models; all of them where empty.
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
        source: where the paper has it, such as "table 2".
        rows: names of corpora -> rows.
        quantities: the numbers of each row.
        audits: how the models are audited.
        figures: draws the figures of a row from the models of its first seed; None for no figures.
        across: rows that have numbers -> further rows and figures that are computed from several of them; None for
            none.
        deviations: how the setting of every row differs from the paper's, in sentences.
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
        embeddings: the deviation that holds where no word vectors are given.
        deviations: how the setting of every table differs from the paper's, in sentences.
        claims: the claims that our numbers can answer.
        remedies: (a report, the report from random embeddings where the first has word vectors and there is one) ->
            training options that the report shows to help; None for none.
    """

    name: str
    title: str
    citation: str
    corpora: Sequence[str]
    tables: Sequence[TablePlan]
    embeddings: str = (
        "Embeddings are random (300 wide, standard deviation .1) and not pretrained, which makes a large difference "
        "(see Word vectors in docs/reproduction.md). Words seen once in training are read as unknown."
    )
    deviations: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    remedies: Callable[[Reproduction, Reproduction | None], Sequence[Remedy]] | None = None


def accuracy(models: Models, *, of: str = MODEL) -> Reading:
    """Accuracy on the test part."""
    score = models[of].trained.test
    return score.accuracy, score.n


def f1(models: Models, *, of: str = MODEL) -> Reading:
    """F1 on the test part."""
    score = models[of].trained.test
    return score.f1, score.n


def value_of(check: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """Read the value of a check by its id."""

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        return (None, 0) if record is None else (record.value, record.n_defined)

    return read


def detail_of(check: str, name: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """Read a numeric detail of a check, such as "standard deviation"."""

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
    """Read a statistic of a measured column over its defined instances.

    Args:
        column: name of the column.
        statistic: such as `statistics.fmean`.
        of_class: use only the instances predicted as this class.
        of: role of the model.
    """

    def read(models: Models) -> Reading:
        values = defined(models[of], column, of_class=of_class)
        return (statistic(values) if values else None), len(values)

    return read


def defined(result: Result, column: str, *, of_class: int | None = None) -> list[float]:
    """The defined values of a measured column, or those of the instances predicted as one class."""
    audit = result.having(column)
    return [
        value
        for value, predicted in zip(audit.scalars[column], audit.predicted, strict=True)
        if value is not None and math.isfinite(value) and of_class in (None, predicted)
    ]
