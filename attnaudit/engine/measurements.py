"""The result of measuring one model on one data set: numbers per instance and per token. Needs numpy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers, Table
from attnaudit.errors import CheckError, nearest
from attnaudit.instances import Instance
from attnaudit.readings import split
from attnaudit.statistics.groups import Groups

#: Columns of every run whose names do not begin with the name of their measure.
ALWAYS = ("probabilities", "logits", "truncated")
DECLARED = "A check must declare the measures that it reads: needs=[...]."

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Numbers of n instances, in the order of the instances' ids.

    Attributes:
        model: name of the model.
        data: name of the data set.
        seed: seed of the audit.
        classes: class names in the order of the logits.
        instances: the n instances, sorted by id.
        sources: the name of the source that each instance is resampled with; see
            `attnaudit.engine.merged_sources.merged_sources`.
        tokens: the real units (tokens or words) of each instance, as strings.
        labels: (n,) class indices; -1 where an instance is unlabelled.
        predicted: (n,) predicted class indices.
        scalars: column name -> (n,) numbers; NaN where undefined.
        vectors: column name -> n arrays.
        per_token: names of the vector columns that hold one number per real unit.
        tables: name -> an array over the whole data set, or over the instances or tokens whose instance positions are
            in the table "<measure>.instances".
        facts: name -> a short text about how something was measured.
        keep_alive: objects that must live as long as the tables, such as the folder of a memory map.
        shared: names of the columns that do not depend on the reading.
        readings: a reading as a check names it -> the single readings that it stands for in this model. Columns are
            named after the single readings; "" is the model's own.
        own_reading: the text form of the model's own reading; "" for a model with one pooled attention.
    """

    model: str
    data: str
    seed: int
    classes: tuple[str, ...]
    instances: Sequence[Instance]
    sources: Sequence[str]
    tokens: Sequence[Sequence[str]]
    labels: Integers
    predicted: Integers
    scalars: dict[str, Floats] = field(default_factory=dict)
    vectors: dict[str, list[Floats]] = field(default_factory=dict)
    per_token: set[str] = field(default_factory=set)
    tables: dict[str, Table] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    keep_alive: list[object] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    readings: dict[str, list[str]] = field(default_factory=dict)
    own_reading: str = ""

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def ids(self) -> list[str]:
        """The ids of the instances."""
        return [instance.id for instance in self.instances]

    @property
    def lengths(self) -> Integers:
        """(n,) number of real units of each instance."""
        return np.array([len(t) for t in self.tokens], dtype=np.int64)

    @property
    def columns(self) -> list[str]:
        """The sorted names of all scalars, vectors and tables."""
        return sorted({*self.scalars, *self.vectors, *self.tables})

    def groups(self, chosen: NDArray[np.bool_]) -> Groups:
        """Return the chosen (n,) instances, grouped by source."""
        return Groups.of(self.sources, self.ids, chosen)

    def only(self, chosen: NDArray[np.bool_]) -> Measurements:
        """Return the measurements of the chosen (n,) instances, without tables, which cover all instances."""
        rows = np.flatnonzero(chosen).tolist()
        return Measurements(
            model=self.model,
            data=self.data,
            seed=self.seed,
            classes=self.classes,
            instances=[self.instances[i] for i in rows],
            sources=[self.sources[i] for i in rows],
            tokens=[self.tokens[i] for i in rows],
            labels=self.labels[rows],
            predicted=self.predicted[rows],
            scalars={name: column[rows] for name, column in self.scalars.items()},
            vectors={name: [column[i] for i in rows] for name, column in self.vectors.items()},
            per_token=set(self.per_token),
            facts=dict(self.facts),
            shared=set(self.shared),
            readings=dict(self.readings),
            own_reading=self.own_reading,
        )

    def under(self, reading: str) -> Measurements:
        """Return the same instances with the columns of one single reading, under their plain names.

        Columns that depend on no reading are kept. For "", the model's own reading, nothing is changed.
        """

        def plain_name(name: str) -> str | None:
            return name if name in self.shared else split(name)[0] if split(name)[1] == reading else None

        return self._renamed(plain_name) if reading else self

    def of(self, measures: Sequence[str]) -> Measurements:
        """Return the same instances with the columns of the given measures and those of every run.

        A check must not see other columns, because whether these are measured depends on the other checks of the run.
        """

        def name_if_declared(name: str) -> str | None:
            plain = split(name)[0]
            declared = plain in ALWAYS or any(plain == one or plain.startswith(f"{one}.") for one in measures)
            return name if declared else None

        return self._renamed(name_if_declared)

    def _renamed(self, rename: Callable[[str], str | None]) -> Measurements:
        """Return the same measurements with renamed columns; a column whose new name is None is left out."""

        def renamed(columns: Mapping[str, T]) -> dict[str, T]:
            pairs = ((rename(name), value) for name, value in columns.items())
            return {name: value for name, value in pairs if name is not None}

        return replace(
            self,
            scalars=renamed(self.scalars),
            vectors=renamed(self.vectors),
            tables=renamed(self.tables),
            facts=renamed(self.facts),
            per_token=set(renamed(dict.fromkeys(self.per_token))),
        )

    def readings_of(self, reading: str) -> list[str]:
        """Return the single readings that a reading stands for in this model; "" is the model's own.

        Raises:
            CheckError: nothing was measured under this reading.
        """
        if not reading:
            return [""]
        try:
            return self.readings[reading]
        except KeyError:
            raise CheckError(f"No measured reading '{reading}'. {nearest(reading, self.readings)}") from None

    def freeze(self) -> None:
        """Make every array read-only, so that no check can change the numbers that the next check reads."""
        columns = chain(self.scalars.values(), *self.vectors.values(), self.tables.values())
        for array in (self.labels, self.predicted, *columns):
            array.setflags(write=False)

    def scalar(self, name: str) -> Floats:
        """Return the (n,) numbers of a column.

        Raises:
            CheckError: there is no such column; the message names the nearest one.
        """
        try:
            return self.scalars[name]
        except KeyError:
            raise CheckError(f"No measured number '{name}'. {nearest(name, self.scalars)} {DECLARED}") from None

    def vector(self, name: str) -> list[Floats]:
        """Return the n arrays of a column.

        Raises:
            CheckError: there is no such column; the message names the nearest one.
        """
        try:
            return self.vectors[name]
        except KeyError:
            raise CheckError(f"No measured vector '{name}'. {nearest(name, self.vectors)} {DECLARED}") from None

    def table(self, name: str) -> Table:
        """Return an array over the whole data set.

        Raises:
            CheckError: there is no such table; the message names the nearest one.
        """
        try:
            return self.tables[name]
        except KeyError:
            raise CheckError(f"No measured table '{name}'. {nearest(name, self.tables)}") from None
