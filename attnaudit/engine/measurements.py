"""What measuring one model on one data set yields: numbers per instance, and per token. numpy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from attnaudit.errors import CheckError, nearest
from attnaudit.instances import Instance
from attnaudit.readings import split

#: Columns of every run that are not called after their measure.
ALWAYS = ("probabilities", "logits", "truncated")
DECLARED = "What a check reads it also declares: needs=[...]."

T = TypeVar("T")
Floats = NDArray[np.float64]
Table = NDArray[np.float64] | NDArray[np.float32] | NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Measurements:
    """Numbers in the order of `instances`, which is the order of their ids.

    scalars: name -> (n,) float64, NaN where undefined. vectors: name -> n arrays; those named in `per_token` hold one
    number per real token. tables: name -> arrays over the whole data set, or over those of its instances that a
    companion entry names. facts: words about how something was measured. keep_alive: what tables are backed by.
    shared: columns that no reading changes. readings: a reading as a check names it -> those it stands for in this
    model, under whose names columns are kept ("" for the model's own, which is `own_reading`).
    predicted: (n,) class indices. labels: (n,) class indices, -1 where unlabelled.
    """

    model: str
    data: str
    seed: int
    classes: tuple[str, ...]
    instances: Sequence[Instance]
    tokens: Sequence[Sequence[str]]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    scalars: dict[str, Floats] = field(default_factory=dict)
    vectors: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)
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
        return [one.id for one in self.instances]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) number of real tokens."""
        return np.array([len(t) for t in self.tokens], dtype=np.int64)

    @property
    def columns(self) -> list[str]:
        return sorted({*self.scalars, *self.vectors, *self.tables})

    def only(self, chosen: NDArray[np.bool_]) -> Measurements:
        """The numbers of the chosen (n,) instances alone; tables, which are over all of them, are left out."""
        rows = np.flatnonzero(chosen).tolist()
        return Measurements(
            model=self.model,
            data=self.data,
            seed=self.seed,
            classes=self.classes,
            instances=[self.instances[i] for i in rows],
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
        """The same instances with the columns of one reading, as `readings` lists them, under their plain names."""

        def plain(name: str) -> str | None:
            return name if name in self.shared else split(name)[0] if split(name)[1] == reading else None

        return self._renamed(plain) if reading else self

    def of(self, measures: Sequence[str]) -> Measurements:
        """The same with the columns of these measures, and those of every run: what a check has not asked for is
        measured in some runs and not in others."""

        def asked(name: str) -> str | None:
            plain = split(name)[0]
            mine = plain in ALWAYS or any(plain == one or plain.startswith(f"{one}.") for one in measures)
            return name if mine else None

        return self._renamed(asked)

    def _renamed(self, rename: Callable[[str], str | None]) -> Measurements:
        """The same with columns under other names; None leaves one out."""

        def mine(columns: Mapping[str, T]) -> dict[str, T]:
            named = ((rename(name), value) for name, value in columns.items())
            return {name: value for name, value in named if name is not None}

        return replace(
            self,
            scalars=mine(self.scalars),
            vectors=mine(self.vectors),
            tables=mine(self.tables),
            facts=mine(self.facts),
            per_token=set(mine(dict.fromkeys(self.per_token))),
        )

    def readings_of(self, asked: str) -> list[str]:
        """What a reading stands for in this model, "" for its own. Raises CheckError where it was not measured."""
        if not asked:
            return [""]
        try:
            return self.readings[asked]
        except KeyError:
            raise CheckError(f"No measured reading '{asked}'. {nearest(asked, self.readings)}") from None

    def freeze(self) -> None:
        """No array can be changed any more: what one check did to it, the next would be judged on."""
        columns = chain(self.scalars.values(), *self.vectors.values(), self.tables.values())
        for array in (self.labels, self.predicted, *columns):
            array.setflags(write=False)

    def scalar(self, name: str) -> Floats:
        """(n,) numbers of a measure. Raises CheckError that names the nearest measured column."""
        try:
            return self.scalars[name]
        except KeyError:
            raise CheckError(f"No measured number '{name}'. {nearest(name, self.scalars)} {DECLARED}") from None

    def vector(self, name: str) -> list[NDArray[np.float64]]:
        """n arrays of a measure. Raises CheckError that names the nearest measured column."""
        try:
            return self.vectors[name]
        except KeyError:
            raise CheckError(f"No measured vector '{name}'. {nearest(name, self.vectors)} {DECLARED}") from None

    def table(self, name: str) -> Table:
        """A data-set-wide array. Raises CheckError that names the nearest measured table."""
        try:
            return self.tables[name]
        except KeyError:
            raise CheckError(f"No measured table '{name}'. {nearest(name, self.tables)}") from None
