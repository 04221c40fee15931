"""Encode the measurements of a run for the instance explorer of the report.

The result is a list of parts, which are compressed with raw DEFLATE and written in base64, and a manifest in JSON that
describes them. For each case, which is one model on one data set, there are:

* an index: ids, labels, predicted classes, numbers of tokens and confidence of all instances, in JSON;
* texts: the tokens of consecutive instances, in JSON;
* values: for the same instances, the numbers of each measure per token: float32 scales, then int8 codes;
* numbers: measures with one number per instance, in 16 bits each.

A value per token is accurate to 1/254 of the largest absolute value of its row. A number per instance is exact if the
measure consists of whole numbers, and otherwise accurate to 1/131,068 of the range of the measure.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnaudit.records import CheckRecord, RunRecord
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, common_names
from attnaudit.report.explorer.explorer_rows import CaseRows, Floats, TokenColumn
from attnaudit.report.run_files import Case
from attnaudit.report.wording import column_name, short_column_name

#: The code of a number that is undefined. Defined numbers have smaller codes.
UNDEFINED_NUMBER = 65_535
#: Parts are closed when they reach this size before compression, so that a click loads little.
PART_BYTES = 256 * 1024
#: With more classes than this, their probabilities are left out. The confidence is always included.
MOST_CLASSES = 12
#: The compression level of zlib.
LEVEL = 6

KINDS = {
    "attention": "attention",
    "gradient": "importance",
    "input_x_gradient": "importance",
    "leave_one_out": "importance",
    "token_effect": "effect",
    "adversarial": "adversarial",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerData:
    """The encoded measurements of a run.

    Attributes:
        manifest: The description of the parts, ready for JSON.
        parts: Name of a part -> its content in base64.
    """

    manifest: Mapping[str, Any]
    parts: Mapping[str, str]

    @property
    def size(self) -> int:
        """The number of characters of all parts."""
        return sum(map(len, self.parts.values()))


def encode(run: RunRecord, cases: Mapping[Case, CaseRows]) -> ExplorerData:
    """Encode the measurements of a run.

    Args:
        run: The record of the run.
        cases: Model, data set and seed -> the measurements.
    """
    parts: dict[str, str] = {}
    described = [_encode_case(run, case, rows, f"case{i}", parts) for i, (case, rows) in enumerate(cases.items())]
    names = common_names(run.measured)
    units = run.unit if names == TOKENS_OF_TEXTS else names.units
    every = {"unit": names.unit, "units": names.units, "row": names.row, "rows": names.rows}
    return ExplorerData(manifest={"unit": units, "names": every, "cases": described}, parts=parts)


def compressed(content: bytes) -> str:
    """Compress bytes with raw DEFLATE, and write the result in base64."""
    stream = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(stream.compress(content) + stream.flush()).decode("ascii")


def to_json(value: Any) -> bytes:
    """Return a value as JSON in ASCII. All other characters, including lone surrogates, are escaped."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def number_codes(values: Floats) -> tuple[NDArray[np.uint16], float, float]:
    """Reduce numbers to 16 bits.

    Args:
        values: (n,) numbers; NaN where undefined. At least one is defined.

    Returns:
        The (n,) codes; the lowest number; and the step. A defined number is lowest + step · code.
    """
    defined = np.isfinite(values)
    lowest, highest = float(values[defined].min()), float(values[defined].max())
    whole = bool((values[defined] == np.rint(values[defined])).all())
    step = 1.0 if whole and highest - lowest < UNDEFINED_NUMBER else (highest / 65_534 - lowest / 65_534)
    offsets = (np.where(defined, values, lowest) - lowest) / step if step else np.zeros(len(values))
    codes = np.where(defined, np.rint(offsets), UNDEFINED_NUMBER).astype(np.uint16)
    return codes, lowest, step


def _encode_case(run: RunRecord, case: Case, rows: CaseRows, prefix: str, parts: dict[str, str]) -> dict[str, Any]:
    """Add the parts of one case, and return its description."""
    model, data, seed = case
    classes = next((record.classes for record in run.models if record.name == model), [])
    parts[f"{prefix}-index"] = compressed(to_json(_index(rows)))
    starts = _text_starts(rows)
    bounds = [*starts, len(rows.ids)]
    for block, (first, last) in enumerate(itertools.pairwise(bounds)):
        parts[f"{prefix}-text{block}"] = compressed(to_json(rows.tokens[first:last]))
    value_starts = _value_starts(rows)
    for block, content in enumerate(_values(rows, value_starts)):
        parts[f"{prefix}-values{block}"] = compressed(content)
    return {
        "model": model,
        "data": data,
        "seed": seed,
        "prefix": prefix,
        "n": len(rows.ids),
        "token_count": int(rows.lengths.sum()),
        "texts": starts,
        "value_starts": value_starts,
        "columns": [_column(name) for name in rows.columns],
        "numbers": _numbers(rows, classes, prefix, parts),
        "checks": _checks(run, case, rows.ids),
    }


def _index(rows: CaseRows) -> dict[str, Any]:
    """Return what the list of instances needs: one entry per instance in each list."""
    labels: dict[str, int] = {}
    predicted: dict[str, int] = {}
    confidence: list[int | None] = [None] * len(rows.ids)
    if rows.probabilities is not None:
        largest = rows.probabilities.max(axis=1)
        confidence = [None if np.isnan(value) else round(float(value) * 1e5) for value in largest]
    return {
        "ids": rows.ids,
        "label": [-1 if label is None else labels.setdefault(label, len(labels)) for label in rows.labels],
        "labels": list(labels),
        "predicted": [predicted.setdefault(name, len(predicted)) for name in rows.predicted],
        "classes": list(predicted),
        "lengths": rows.lengths.tolist(),
        "confidence": confidence,
    }


def _text_starts(rows: CaseRows) -> list[int]:
    """Return the first instance of every part with texts."""
    return _starts([sum(map(len, tokens)) + 4 * len(tokens) + 4 for tokens in rows.tokens])


def _value_starts(rows: CaseRows) -> list[int]:
    """Return the first instance of every part with values."""
    if not rows.columns:
        return []
    return _starts(((rows.lengths + 4) * len(rows.columns)).tolist())


def _starts(sizes: Sequence[int]) -> list[int]:
    """Split items of the given sizes into parts of about PART_BYTES. Return the first item of every part."""
    starts: list[int] = []
    filled = PART_BYTES
    for i, size in enumerate(sizes):
        if filled + size > PART_BYTES:
            starts.append(i)
            filled = 0
        filled += size
    return starts


def _values(rows: CaseRows, starts: Sequence[int]) -> Iterable[bytes]:
    """Yield the values of consecutive instances: for each column, the scales of the instances, and then the codes."""
    ends = np.concatenate([[0], np.cumsum(rows.lengths)])
    bounds = [*starts, len(rows.ids)]
    for first, last in itertools.pairwise(bounds):
        yield b"".join(_block(column, first, last, ends) for column in rows.columns.values())


def _block(column: TokenColumn, first: int, last: int, ends: NDArray[np.int64]) -> bytes:
    scales = column.scales[first:last].astype("<f4").tobytes()
    return scales + column.codes[ends[first] : ends[last]].tobytes()


def _column(name: str) -> dict[str, Any]:
    """Describe a measure with one number per token."""
    measure, _, reading = name.partition("/")
    described: dict[str, Any] = {
        "measure": measure,
        "reading": reading,
        "title": column_name(measure),
        "short": short_column_name(measure),
        "kind": KINDS.get(measure.split(".")[0], "other"),
    }
    adversarial = re.fullmatch(r"adversarial\.(.+)\.attention", measure)
    if adversarial:
        described["epsilon"] = float(adversarial[1])
    return described


def _numbers(rows: CaseRows, classes: Sequence[str], prefix: str, parts: dict[str, str]) -> list[dict[str, Any]]:
    """Add the parts with one number per instance. Return the name, the part, the offset and the scale of each measure.

    Measures that have the same number for every instance are described by this number alone.
    """
    columns: list[tuple[str, str, Floats]] = []
    if rows.probabilities is not None and rows.probabilities.shape[1] <= MOST_CLASSES:
        names = classes if len(classes) == rows.probabilities.shape[1] else range(rows.probabilities.shape[1])
        columns += [(f"probability of {name}", "", rows.probabilities[:, c]) for c, name in enumerate(names)]
    for name in sorted(rows.scalars):
        measure, _, reading = name.partition("/")
        columns.append((measure, reading, rows.scalars[name]))
    described: list[dict[str, Any]] = []
    pending: list[bytes] = []
    part = f"{prefix}-numbers0"
    for measure, reading, values in columns:
        if not np.isfinite(values).any():
            continue
        codes, lowest, step = number_codes(values)
        entry = {"measure": measure, "reading": reading, "lowest": lowest, "step": step}
        described.append(entry)
        if not codes.any():
            continue
        content = codes.astype("<u2").tobytes()
        if pending and sum(map(len, pending)) + len(content) > PART_BYTES:
            parts[part] = compressed(b"".join(pending))
            pending, part = [], f"{prefix}-numbers{len(parts)}"
        entry |= {"part": part, "offset": sum(map(len, pending))}
        pending.append(content)
    if pending:
        parts[part] = compressed(b"".join(pending))
    return described


def _checks(run: RunRecord, case: Case, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Describe the checks of a case with their worst instances, gates first."""
    positions = {one: i for i, one in enumerate(ids)}
    records = [c for c in run.checks if (c.model, c.data, c.seed) == case and c.worst]
    records.sort(key=lambda record: record.severity != "gate")
    return [_check(record, positions) for record in records]


def _check(record: CheckRecord, positions: Mapping[str, int]) -> dict[str, Any]:
    worst = [[positions[one.instance], one.value] for one in record.worst if one.instance in positions]
    return {
        "check": record.check,
        "title": record.title,
        "gate": record.severity == "gate",
        "reading": record.reading,
        "worst": worst,
    }
