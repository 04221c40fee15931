"""The results of measuring one model on one data set: numbers per instance and per token.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Integers, Table
from attnaudit.disk_arrays.chosen_rows import ChosenRows
from attnaudit.disk_arrays.mapped_arrays import release_mapped
from attnaudit.engine.ragged_columns import RaggedColumn, lengths_of
from attnaudit.errors import CheckError, nearest
from attnaudit.instances import Instance, ids_of
from attnaudit.readings import named, split
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, UnitNames
from attnaudit.statistics.group_names import GroupNames
from attnaudit.statistics.groups import Groups

#: Columns that every run has and whose names do not begin with the name of a measure.
ALWAYS = ("probabilities", "logits", "truncated", "open_classes")
DECLARED = "A check must declare the measures that it reads: needs=[...]."

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Measurements:
    """The measured numbers of n instances. The instances are sorted by id.

    Attributes:
        model: Name of the model.
        data: Name of the data set.
        seed: Seed of the audit.
        classes: Class names in the order of the logits.
        instances: The n instances, sorted by id.
        sources: The name of the group to which each instance belongs when groups are resampled. See
            `attnaudit.engine.merged_sources.merged_sources`.
        tokens: The real units (tokens or words) of each instance, as strings.
        labels: (n,) class indices; -1 for instances without a label.
        predicted: (n,) predicted class indices.
        scalars: Column name -> (n,) numbers; NaN where undefined.
        vectors: Column name -> n arrays, one per instance. If there are many instances, they are in a file.
        per_token: Names of the vector columns with one number per real unit.
        tables: Name -> an array that a measure computed from the whole data set. If its entries belong to single
            instances or tokens, the table "<measure>.instances" has the index of each entry's instance.
        facts: Name -> a short text that says how something was measured.
        states: Name -> n arrays, which `compute` of a measure returned and its `finish` reads. Empty afterwards.
        keep_alive: Objects that must live as long as the columns and tables, such as the temporary folder of their
            files.
        shared: Names of the columns that do not depend on the reading.
        readings: A reading that a check names -> the single readings that it stands for in this model. The names of
            columns contain single readings. "" is the model's own reading.
        own_reading: The text form of the model's own reading; "" for a model with a single row of attention weights.
        unseen_mixers: The modules of the model that every reading leaves out (see `Capabilities.unseen_mixers`).
        no_decision: Why values that need decisions are undefined, as a clause; "" if the output is a decision. If it is
            not a decision, `labels` is -1 everywhere, and `predicted` is 1, the index of the target.
        boxes: For each instance, (units, 4) x, y, width and height of each unit, as fractions of the picture's width
            and height. Empty if the units are not parts of a picture.
        unit_names: The names of the units and rows for texts.
        times: For each instance, (units, 2) the start and the end of each unit in seconds; empty if the units are not
            parts of a recording.
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
    vectors: dict[str, Sequence[Floats]] = field(default_factory=dict)
    per_token: set[str] = field(default_factory=set)
    tables: dict[str, Table] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    states: dict[str, RaggedColumn] = field(default_factory=dict)
    keep_alive: list[object] = field(default_factory=list)
    shared: set[str] = field(default_factory=set)
    readings: dict[str, list[str]] = field(default_factory=dict)
    own_reading: str = ""
    unseen_mixers: tuple[str, ...] = ()
    no_decision: str = ""
    boxes: Sequence[Floats] = ()
    times: Sequence[Floats] = ()
    unit_names: UnitNames = TOKENS_OF_TEXTS

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def ids(self) -> Sequence[str]:
        """The ids of the instances."""
        return ids_of(self.instances)

    @property
    def lengths(self) -> Integers:
        """(n,) number of real units of each instance."""
        attention = self.vectors.get("attention")  # it has one number per unit
        return lengths_of(attention if isinstance(attention, RaggedColumn | ChosenRows) else self.tokens)

    @property
    def columns(self) -> list[str]:
        """The sorted names of all scalars, vectors and tables."""
        return sorted({*self.scalars, *self.vectors, *self.tables})

    def groups(self, chosen: NDArray[np.bool_]) -> Groups:
        """Group some of the instances by source.

        Args:
            chosen: (n,) True for the instances to group.
        """
        groups = Groups.of(self.sources, self.ids, chosen)
        release_mapped()  # the sources of a million rows need 8 MB, and other columns that were read need more
        return groups

    def counted_groups(self, chosen: NDArray[np.bool_]) -> Groups:
        """Group some of the instances by source, to count the sources. Measurements without intervals have them, too.

        Args:
            chosen: (n,) True for the instances to group.
        """
        return self.groups(chosen)

    def content(self, row: int) -> Hashable:
        """Return what the model reads of an instance. It is the same for instances that repeat each other.

        Ids, labels and sources are left out.
        """
        one = self.instances[row]
        return (one.query, one.file_sha256, one.passages, one.answer, one.position, *self.tokens[row])

    def different(self, chosen: NDArray[np.bool_], most: int) -> int:
        """Count the different instances among some of the instances, up to `most`. Repeated texts count once.

        Instances with the same content measure the same thing, whatever their ids, labels and sources are.

        Args:
            chosen: (n,) True for the instances to count.
            most: The number at which counting ends, so that few rows are read if there are many.
        """
        count = 0
        contents: set[Hashable] = set()
        groups: set[Hashable] = set()
        sourced = False
        for row in map(int, np.flatnonzero(chosen)):  # a list of them would have every row
            one = self.instances[row]
            content = self.content(row)
            contents.add(content)
            # Instances without a source are in the same group exactly if the model reads the same tokens. The target
            # can still differ.
            groups.add(content if one.source else (self.sources[row], one.answer, one.position))
            sourced = sourced or bool(one.source)
            count = min(len(contents), len(groups)) if sourced else len(groups)
            if count >= most:
                break
        return count

    def only(self, chosen: NDArray[np.bool_]) -> Measurements:
        """Return the measurements of some of the instances.

        Tables are left out, because they are computed from the whole data set. Vectors, tokens and instances that are
        in a file are read only when they are needed.

        Args:
            chosen: (n,) True for the instances to include.
        """
        rows = np.flatnonzero(chosen)
        sources = self.sources
        return Measurements(
            model=self.model,
            data=self.data,
            seed=self.seed,
            classes=self.classes,
            instances=ChosenRows(self.instances, rows),
            sources=sources.only(chosen) if isinstance(sources, GroupNames) else ChosenRows(sources, rows),
            tokens=ChosenRows(self.tokens, rows),
            labels=self.labels[rows],
            predicted=self.predicted[rows],
            scalars={name: column[rows] for name, column in self.scalars.items()},
            vectors={name: ChosenRows(column, rows) for name, column in self.vectors.items()},
            per_token=set(self.per_token),
            facts=dict(self.facts),
            shared=set(self.shared),
            readings=dict(self.readings),
            own_reading=self.own_reading,
            unseen_mixers=self.unseen_mixers,
            no_decision=self.no_decision,
            boxes=ChosenRows(self.boxes, rows) if self.boxes else (),
            times=ChosenRows(self.times, rows) if self.times else (),
            unit_names=self.unit_names,
        )

    def under(self, reading: str) -> Measurements:
        """Return the measurements under one single reading, with the reading removed from the names of the columns.

        Columns that do not depend on the reading are kept. Columns of other readings are left out. For "", which is the
        model's own reading, return these measurements unchanged.
        """

        ending = named("", reading)

        def plain_name(name: str) -> str | None:
            if name in self.shared:
                return name
            if not name.endswith(ending):
                return None
            plain, of_column = split(name)
            return plain if of_column == reading else None

        return self._renamed(plain_name) if reading else self

    def of(self, measures: Sequence[str]) -> Measurements:
        """Return the measurements with only the columns of some measures, and the columns that every run has.

        A check must not read other columns, because they exist only if another check of the run needs them.

        Args:
            measures: Names of measures with their arguments, without readings.
        """

        def name_if_declared(name: str) -> str | None:
            plain = split(name)[0]
            declared = plain in ALWAYS or any(plain == one or plain.startswith(f"{one}.") for one in measures)
            return name if declared else None

        return self._renamed(name_if_declared)

    def _renamed(self, rename: Callable[[str], str | None]) -> Measurements:
        """Return the measurements with renamed columns. A column is left out if its new name is None."""

        def renamed(columns: Mapping[str, T]) -> dict[str, T]:
            pairs = ((rename(name), value) for name, value in columns.items())
            return {name: value for name, value in pairs if name is not None}

        return replace(
            self,
            scalars=renamed(self.scalars),
            vectors=renamed(self.vectors),
            tables=renamed(self.tables),
            states=renamed(self.states),
            facts=renamed(self.facts),
            per_token=set(renamed(dict.fromkeys(self.per_token))),
        )

    def readings_of(self, reading: str) -> list[str]:
        """Return the single readings that a reading stands for in this model. "" is the model's own reading.

        Raises:
            CheckError: Nothing was measured under this reading.
        """
        if not reading:
            return [""]
        try:
            return self.readings[reading]
        except KeyError:
            raise CheckError(f"No reading '{reading}' was measured. {nearest(reading, self.readings)}") from None

    def freeze(self) -> None:
        """Make every array read-only, so that one check cannot change the numbers that another check reads."""
        vectors = chain(*(column for column in self.vectors.values() if not isinstance(column, RaggedColumn)))
        for array in chain((self.labels, self.predicted), self.scalars.values(), vectors, self.tables.values()):
            array.setflags(write=False)

    def scalar(self, name: str) -> Floats:
        """Return a scalar column (n,).

        Raises:
            CheckError: There is no such column. The message suggests similar names.
        """
        try:
            return self.scalars[name]
        except KeyError:
            raise CheckError(f"No number '{name}' was measured. {nearest(name, self.scalars)} {DECLARED}") from None

    def vector(self, name: str) -> Sequence[Floats]:
        """Return a vector column, which has one array per instance.

        Raises:
            CheckError: There is no such column. The message suggests similar names.
        """
        try:
            return self.vectors[name]
        except KeyError:
            raise CheckError(f"No vector '{name}' was measured. {nearest(name, self.vectors)} {DECLARED}") from None

    def table(self, name: str) -> Table:
        """Return a table.

        Raises:
            CheckError: There is no such table. The message suggests similar names.
        """
        try:
            return self.tables[name]
        except KeyError:
            raise CheckError(f"No table '{name}' was measured. {nearest(name, self.tables)}") from None
