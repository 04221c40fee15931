"""Read the rows of measurements.parquet, column by column, for the instance explorer of the report.

If a data set has more than 20,000 instances, only a sample is read. The size of the report and the memory that it needs
then do not grow with the data.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnaudit.errors import ReportError
from attnaudit.processes import return_free_memory
from attnaudit.report.parquet_row_groups import RowGroups, only_value, statistics_of
from attnaudit.report.run_files import RUN_AGAIN, Case

if TYPE_CHECKING:
    import pyarrow as pa

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

#: The code of the largest absolute value that a token has in a row. Negative values have negative codes.
LARGEST_CODE = 127
#: The code of a value that is undefined.
UNDEFINED_CODE = -128
#: The largest number of instances of one case in the explorer, apart from those that the checks list.
MOST_INSTANCES = 20_000
KEYS = ("model", "data", "seed", "instance", "label", "predicted", "measure")


@dataclass(slots=True, kw_only=True)
class TokenColumn:
    """A measure with one number per token, with 8 bits per number.

    The value of a token is scale · code / 127, with an error of at most scale / 254.

    Attributes:
        scales: (n,) the largest absolute value of each instance, float32; NaN if all of its values are undefined.
        codes: (all tokens,) int8; -128 where undefined.
    """

    scales: NDArray[np.float32]
    codes: NDArray[np.int8]


@dataclass(slots=True, kw_only=True)
class CaseRows:
    """The measurements of one model on one data set.

    Attributes:
        total: The number of instances in the file. It is larger than n if only a sample was read.
        ids: The ids of the n instances, in the order of the file.
        labels: The labels; None for instances without a label.
        predicted: The predicted classes; "" where unknown.
        tokens: The tokens of each instance; empty where the file has none.
        scalars: Name -> (n,) numbers; NaN where undefined.
        columns: Name -> the numbers per token.
        probabilities: (n, classes) predicted probabilities; None if they were not stored.
    """

    total: int = 0
    ids: list[str] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)
    tokens: list[list[str]] = field(default_factory=list)
    scalars: dict[str, Floats] = field(default_factory=dict)
    columns: dict[str, TokenColumn] = field(default_factory=dict)
    probabilities: Floats | None = None

    @property
    def lengths(self) -> Integers:
        """(n,) number of tokens of each instance."""
        return np.array([len(tokens) for tokens in self.tokens], dtype=np.int64)


def read_rows(path: Path, *, listed: Collection[str] = ()) -> dict[Case, CaseRows]:
    """Read the rows of measurements.parquet.

    If a case has more than 20,000 instances, read a random sample of 20,000. It depends only on the ids, so that two
    models have the same sample.

    Args:
        path: The file.
        listed: The ids of instances that are read even if they are not in the sample.

    Returns:
        Model, data set and seed -> their measurements. The only vectors included are the probabilities and the measures
        with one number per token.

    Raises:
        ReportError: The file is corrupt.
    """
    import pyarrow as pa

    cases: dict[Case, _Reader] = {}
    try:
        groups = RowGroups(path, dictionaries=["model", "data", "label", "predicted", "measure"])
        samples = _samples(groups)
        chosen = {case: {*one.ids, *listed} for case, one in samples.items() if one.total > MOST_INSTANCES}
        for read in (_read_instances, _read_tokens, _read_measures):
            for group in groups:
                read(group, cases, chosen)
                if chosen:  # return the memory of a row group of which only a sample was kept
                    return_free_memory(libraries=False)
    except (pa.ArrowException, OSError) as error:
        raise ReportError(f"{path}: cannot be read as measurements: {error}. {RUN_AGAIN}") from error
    for case, reader in cases.items():
        reader.rows.total = samples[case].total if case in chosen else len(reader.rows.ids)
    return {case: reader.rows for case, reader in cases.items()}


class _Sample:
    """A random sample of the instances of one case. It depends only on their ids.

    Args:
        measure: The name of a measure. Only its rows are counted, because every measure has the same instances.

    Attributes:
        total: The number of all instances.
    """

    def __init__(self, measure: str) -> None:
        self.measure = measure
        self.total = 0
        self._kept: list[tuple[int, str]] = []  # a heap with the smallest hashes, negated

    def add(self, ids: list[str]) -> None:
        """Add instances to those from which the sample is drawn."""
        self.total += len(ids)
        for one in ids:
            key = -int.from_bytes(hashlib.blake2b(one.encode(errors="surrogatepass"), digest_size=8).digest())
            if len(self._kept) < MOST_INSTANCES:
                heapq.heappush(self._kept, (key, one))
            else:
                heapq.heappushpop(self._kept, (key, one))

    @property
    def ids(self) -> set[str]:
        """The ids of the sample."""
        return {one for _, one in self._kept}


def _samples(groups: RowGroups) -> dict[Case, _Sample]:
    """Draw a sample of the instances of every case. The result is empty if there are too few rows to need a sample."""
    found: dict[Case, _Sample] = {}
    if groups.rows <= MOST_INSTANCES:
        return found
    for group in groups:
        only = only_value(group, "measure")
        if only is not None and only not in {one.measure for one in found.values()} and found:
            continue
        for case, measure, rows in _by_measure(_columns(group, *KEYS), {}):
            sample = found.setdefault(case, _Sample(measure))
            if sample.measure == measure:
                sample.add(rows.column("instance").to_pylist())
        return_free_memory(libraries=False)
    return found


def _read_instances(group: Any, cases: dict[Case, _Reader], chosen: Mapping[Case, set[str]]) -> None:
    """Read which instances there are."""
    for case, _, rows in _by_measure(_columns(group, *KEYS), chosen):
        reader = cases.setdefault(case, _Reader())
        if reader.add_instances(rows):
            reader.without_tokens = True


def _read_tokens(group: Any, cases: dict[Case, _Reader], chosen: Mapping[Case, set[str]]) -> None:
    """Read the tokens of those instances whose tokens are not yet known."""
    if not any(reader.without_tokens for reader in cases.values()) or not _has_tokens(group):
        return
    for case, _, rows in _by_measure(_columns(group, *KEYS, "tokens"), chosen):
        if cases[case].without_tokens:
            cases[case].add_tokens(rows)


def _read_measures(group: Any, cases: dict[Case, _Reader], chosen: Mapping[Case, set[str]]) -> None:
    """Read the numbers of a row group. Only measures with one number per token have tokens in their rows."""
    per_token = _has_tokens(group)
    only = only_value(group, "measure")
    columns = [*KEYS, "value"]
    if per_token or only in (None, "probabilities"):  # the explorer shows no other vectors
        columns += ["values", *(["tokens"] if per_token and only is None else [])]
    for case, measure, rows in _by_measure(_columns(group, *columns), chosen):
        with_tokens = rows.column("tokens").null_count < rows.num_rows if "tokens" in columns else per_token
        cases[case].add_measure(measure, rows, per_token=with_tokens)


def _columns(group: Any, *names: str) -> pa.Table:
    """Read some columns of a row group."""
    table: pa.Table = group.read_row_group(0, columns=[*names], use_threads=False)
    return table


def _has_tokens(group: Any) -> bool:
    """Return whether rows of a row group may have tokens, given the statistics of the column in the file."""
    statistics = statistics_of(group, "tokens.list.element")
    return statistics is None or not statistics.has_null_count or statistics.num_values > 0


def _by_measure(table: pa.Table, chosen: Mapping[Case, set[str]]) -> Iterator[tuple[Case, str, pa.Table]]:
    """Split rows by model, data set, seed and measure, and yield the rows of the chosen instances.

    Args:
        table: The rows of a row group, which usually holds a single measure.
        chosen: The ids of the chosen instances of a case. If a case is not a key, all of its instances are chosen.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for case, measure, rows in _split(table):
        if case in chosen:
            rows = rows.filter(pc.is_in(rows.column("instance"), value_set=pa.array(chosen[case], pa.string())))
        if rows.num_rows:
            yield case, measure, rows


def _split(table: pa.Table) -> Iterator[tuple[Case, str, pa.Table]]:
    """Split rows by model, data set, seed and measure."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not table.num_rows:
        return
    names = ("model", "data", "seed", "measure")
    columns = [table.column(name).combine_chunks() for name in names]
    coded = [column if isinstance(column, pa.DictionaryArray) else pc.dictionary_encode(column) for column in columns]
    if all(len(column.dictionary) == 1 for column in coded):
        model, data, seed, measure = (column.dictionary[0].as_py() for column in coded)
        yield (model, data, seed), measure, table
        return
    codes: Integers = np.zeros(table.num_rows, dtype=np.int64)
    for column in coded:
        codes = codes * len(column.dictionary) + column.indices.to_numpy(zero_copy_only=False)
    for code in dict.fromkeys(codes.tolist()):
        chosen = np.flatnonzero(codes == code)
        rows = table.take(pa.array(chosen))
        model, data, seed, measure = (rows.column(name)[0].as_py() for name in names)
        yield (model, data, seed), measure, rows


class _Reader:
    """Collects the measurements of one case."""

    def __init__(self) -> None:
        self.rows = CaseRows()
        self.without_tokens = False
        self._positions: dict[str, int] = {}
        self._strings: dict[str, str] = {}
        self._ids: Any = None  # the ids as an Arrow array
        self._starts: Integers | None = None  # (n + 1,) where the tokens of each instance start

    def add_instances(self, rows: pa.Table) -> bool:
        """Add the instances that are not yet known. Return whether there are any."""
        instances = rows.column("instance").combine_chunks()
        if self._ids is not None and self._ids.equals(instances):
            return False
        known = len(self._positions)
        columns = (rows.column(name).to_pylist() for name in ("instance", "label", "predicted"))
        for one, label, predicted in zip(*columns, strict=True):
            if one not in self._positions:
                self._positions[one] = len(self._positions)
                self.rows.ids.append(one)
                self.rows.labels.append(label)
                self.rows.predicted.append(predicted or "")
                self.rows.tokens.append([])
        if not known:
            self._ids = instances
        return len(self._positions) > known

    def add_tokens(self, rows: pa.Table) -> None:
        """Add the tokens of instances that have none yet."""
        for position, tokens in zip(self._positions_of(rows), rows.column("tokens").to_pylist(), strict=True):
            if tokens and not self.rows.tokens[position]:
                # Equal tokens are one string, which saves most of the memory.
                self.rows.tokens[position] = [self._strings.setdefault(token or "", token or "") for token in tokens]
        self.without_tokens = not all(self.rows.tokens)

    def add_measure(self, measure: str, rows: pa.Table, *, per_token: bool) -> None:
        """Add the numbers of one measure.

        Args:
            measure: The name of the measure.
            rows: Its rows.
            per_token: Whether its vectors have one number per token.
        """
        positions = np.asarray(self._positions_of(rows), dtype=np.int64)
        value = rows.column("value").to_numpy().astype(np.float64)
        if np.isfinite(value).any():
            scalar = self.rows.scalars.setdefault(measure, np.full(len(self.rows.ids), np.nan))
            scalar[positions] = np.where(np.isfinite(value), value, np.nan)
        if "values" not in rows.column_names:
            return
        values = rows.column("values").combine_chunks()
        if values.null_count == len(values):
            return
        sizes = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = values.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        if measure == "probabilities":
            self._add_probabilities(positions, sizes, flat)
        elif per_token:
            self._add_column(measure, positions, sizes, flat)

    def _positions_of(self, rows: pa.Table) -> list[int] | Integers:
        instances = rows.column("instance").combine_chunks()
        if self._ids is not None and self._ids.equals(instances):
            return np.arange(len(instances))
        return [self._positions[one] for one in instances.to_pylist()]

    def _add_probabilities(self, positions: Integers, sizes: Integers, flat: Floats) -> None:
        classes = int(sizes.max())
        if self.rows.probabilities is None:
            self.rows.probabilities = np.full((len(self.rows.ids), classes), np.nan)
        complete = sizes == self.rows.probabilities.shape[1]
        if complete.all():
            self.rows.probabilities[positions] = flat.reshape(len(positions), -1)

    def _add_column(self, measure: str, positions: Integers, sizes: Integers, flat: Floats) -> None:
        """Add a measure with one number per token. A row with too many or too few numbers is left undefined."""
        if self._starts is None:
            self._starts = np.concatenate([[0], np.cumsum(self.rows.lengths)])
        expected = np.diff(self._starts)[positions]
        fits = (sizes == expected) & (sizes > 0)
        if not fits.any():
            return
        flat = flat[np.repeat(fits, sizes)]
        column = self.rows.columns.get(measure)
        if column is None:
            column = self.rows.columns[measure] = TokenColumn(
                scales=np.full(len(self.rows.ids), np.nan, dtype=np.float32),
                codes=np.full(int(self._starts[-1]), UNDEFINED_CODE, dtype=np.int8),
            )
        chosen = positions[fits]
        scales, codes = quantised(flat, sizes[fits])
        column.scales[chosen] = scales
        first = np.repeat(self._starts[:-1][chosen] - np.concatenate([[0], np.cumsum(sizes[fits])[:-1]]), sizes[fits])
        column.codes[first + np.arange(len(flat))] = codes


def quantised(flat: Floats, sizes: Integers) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Reduce numbers to 8 bits. Every instance has its own scale.

    Args:
        flat: The numbers of all instances, one instance after the other.
        sizes: (n,) count of numbers of each instance, at least 1.

    Returns:
        (n,) scales, and the codes of the numbers. See `TokenColumn`.
    """
    defined = np.abs(flat) <= np.finfo(np.float32).max  # False for NaN
    size = np.where(defined, np.abs(flat), 0.0)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    scales = np.maximum.reduceat(size, starts)
    any_defined = np.logical_or.reduceat(defined, starts)
    safe = np.repeat(np.where(scales > 0, scales, 1.0), sizes)
    codes = np.rint(np.where(defined, flat, 0.0) / safe * LARGEST_CODE).astype(np.int8)
    return np.where(any_defined, scales, np.nan).astype(np.float32), np.where(defined, codes, np.int8(UNDEFINED_CODE))
