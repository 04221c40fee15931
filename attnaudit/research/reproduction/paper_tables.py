"""The words a paper is written in: its tables, their rows (models) and quantities (how a number is read off)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from attnaudit.checks.base import Check
from attnaudit.errors import CheckError, nearest
from attnaudit.records import CheckRecord
from attnaudit.research.reproduction.audit_models import Measured
from attnaudit.research.reproduction.claims import Claim
from attnaudit.research.reproduction.figure_records import Figure
from attnaudit.research.reproduction.model_plans import Plan
from attnaudit.research.reproduction.paper_report import Reproduction, Row
from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.reproduction.train_models import TrainedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One trained model and its audits, the largest first."""

    trained: TrainedPlan
    audits: tuple[Measured, ...]

    def check(self, name: str) -> CheckRecord | None:
        """The record of a check by its id; None where it could not be judged. Raises CheckError where it was not asked
        for."""
        for one in self.audits:
            for record in one.checks:
                if record.check == name:
                    return record
        known = [name for one in self.audits for name in one.asked]
        if name not in known:
            raise CheckError(f"No check '{name}' in this audit. {nearest(name, known)}")
        return None

    def having(self, column: str) -> Measured:
        """The largest audit that measured this column of numbers. Raises CheckError."""
        for one in self.audits:
            if column in one.scalars:
                return one
        known = {name for one in self.audits for name in one.scalars}
        raise CheckError(f"No measured number '{column}'. {nearest(column, known)}")


#: role -> model; a row of one model calls it "model".
Models = Mapping[str, Result]
#: A value (None where it is undefined) and the number of instances behind it.
Reading = tuple[float | None, int]
MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A number of a row and how it is read off one seed's models. of_class: it is about this class alone, and left out
    where there are fewer; "{}" in its words is that class. read may raise CheckError: the value is then undefined."""

    name: str
    words: str
    read: Callable[[Models], Reading]
    digits: int = 3
    of_class: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """name: corpus/encoder/alignment, or what tells the rows of a table apart. models: role -> plan, of which one per
    seed is made; the plan's own seed is added, so that a role may be another role's model from the next seed. once: for
    the first seed alone, where the row itself is about seeds. paper: quantity -> the paper's number. unavailable: why
    no model of this version can be built."""

    name: str
    title: str
    corpus: str
    models: Mapping[str, Plan] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)
    unavailable: str = ""
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The checks of a table. instances: at most so many of the test set. tokens: per-token columns that are kept.
    roles: whose models; all where empty, less those that are no model without another (see `plans.Variant`)."""

    checks: Sequence[Check]
    instances: int | None = None
    tokens: Sequence[str] = ()
    roles: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """rows: the corpora that are asked for -> rows. figures: of the models of one row, first seed; None draws nothing.
    across: the rows that have numbers, those of earlier runs too -> rows and figures that are of them together.
    deviations: sentences that hold for every row."""

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
    """corpora: those of the paper, in its order. deviations: sentences that hold for every table. embeddings: one more,
    where no word vectors are given.
    claims: what the paper says of its numbers. remedies: what follows from ours for those whose attention fails; beside
    a report with word vectors it is given the one from random embeddings, where there is one."""

    name: str
    title: str
    citation: str
    corpora: Sequence[str]
    tables: Sequence[TablePlan]
    embeddings: str = (
        "Embeddings are random (300 wide, standard deviation .1), not pretrained, on which much depends "
        "(docs/reproduction.md, Word vectors); words seen once in training are read as unknown."
    )
    deviations: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    remedies: Callable[[Reproduction, Reproduction | None], Sequence[Remedy]] | None = None


def accuracy(models: Models, *, of: str = MODEL) -> Reading:
    score = models[of].trained.test
    return score.accuracy, score.n


def f1(models: Models, *, of: str = MODEL) -> Reading:
    score = models[of].trained.test
    return score.f1, score.n


def value_of(check: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """The value of a check."""

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        return (None, 0) if record is None else (record.value, record.n_defined)

    return read


def detail_of(check: str, name: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """A detail of a check that is a number, such as "standard deviation"."""

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        if record is None:
            return None, 0
        if name not in record.details:
            raise CheckError(f"Check '{check}' has no detail '{name}'. {nearest(name, record.details)}")
        found = record.details[name]
        return (float(found) if isinstance(found, int | float) else None), record.n_defined

    return read


def reference_of(check: str, name: str, *, of: str = MODEL) -> Callable[[Models], Reading]:
    """A reference value of a check, such as "ceiling"."""

    def read(models: Models) -> Reading:
        record = models[of].check(check)
        found = [] if record is None else [one for one in record.references if one.name == name]
        return (found[0].value, found[0].n or 0) if found else (None, 0)

    return read


def column_of(
    column: str, statistic: Callable[[Sequence[float]], float], *, of_class: int | None = None, of: str = MODEL
) -> Callable[[Models], Reading]:
    """A statistic of a measured column over its defined instances; of_class: over those predicted as that class."""

    def read(models: Models) -> Reading:
        values = defined(models[of], column, of_class=of_class)
        return (statistic(values) if values else None), len(values)

    return read


def defined(result: Result, column: str, *, of_class: int | None = None) -> list[float]:
    """The defined numbers of a column."""
    audit = result.having(column)
    return [
        x
        for x, predicted in zip(audit.scalars[column], audit.predicted, strict=True)
        if x is not None and math.isfinite(x) and of_class in (None, predicted)
    ]
