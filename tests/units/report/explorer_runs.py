"""Runs for the tests of the instance explorer, and a decoder of its data that does not share code with the encoder."""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnaudit.records import RankedInstance
from tests.units.report.example_checks import check_record
from tests.units.report.example_runs import run_record, write_run

#: Texts that a page could misread, hide or reorder.
HOSTILE_TEXTS = (
    "</script><script>window.marker=1</script>",
    "<!-- <script>",
    "line\u2028separator\u2029end",
    "שלום עולם טוב מאוד",
    "👩‍👩‍👧‍👦 family 🔥",
    "\u202egnp.exe",
    "a ##b ## c",
    '"quoted" & <b>bold</b>',
)
EPSILONS = ("0.01", "0.1")
EFFECT = "token_effect.held"


def values_of(text: Sequence[str], column: int) -> list[float]:
    """Return the numbers of a column over a text: distinct, some negative for the effect of a token."""
    rng = np.random.default_rng([len(text), column])
    return (rng.dirichlet(np.full(len(text), 0.5)) * (1 if column != 3 else -1)).tolist()


def rows_of(
    model: str, texts: Sequence[str], *, heads: int = 0, predicted: Sequence[str] = ("negative", "positive")
) -> list[dict[str, Any]]:
    """Return the rows of measurements.parquet for some texts, whose tokens are the words.

    The instance r<i> has the label "positive", is predicted as each class in turn, with a confidence of 0.5 + i / 100.
    """
    attention = [f"attention/own@layer={layer},heads={head}" for layer in range(heads) for head in range(heads)]
    columns = [*(attention or ["attention"]), "gradient.meister.inputs", "leave_one_out.inputs", EFFECT]
    columns += [f"adversarial.{epsilon}.attention" for epsilon in EPSILONS]
    found = []
    for i, text in enumerate(texts):
        tokens = text.split(" ")
        confidence = 0.5 + i / 100
        of_class = predicted[i % len(predicted)]
        probabilities = [confidence, 1 - confidence] if of_class == "negative" else [1 - confidence, confidence]
        vectors = {name: values_of(tokens, c) for c, name in enumerate(columns)}
        vectors |= {"probabilities": probabilities, "curve": [0.5] * 3}
        scalars = {"uniform.tvd": (i * 37 % 101) / 100, "adversarial.0.01.jsd": 0.25, "adversarial.0.01.tvd": 0.01}
        same = {"model": model, "data": "movie-reviews", "seed": 0, "instance": f"r{i}", "label": "positive"}
        for name, value in (vectors | scalars).items():
            vector = value if isinstance(value, list) else None
            found.append(
                {
                    **same,
                    "predicted": of_class,
                    "measure": name,
                    "value": None if vector else value,
                    "values": vector,
                    "tokens": tokens if name in columns else None,
                }
            )
    return found


def explorable(
    folder: Path, texts: Sequence[str], *, second_model: bool = False, heads: int = 0, run_changes: Any = None
) -> Path:
    """Write a run in which r2, r0 and r1 are the worst instances of a gate.

    If there is a second model, it has other tokens than the first one for the instance r6.
    """
    worst = [RankedInstance(instance=f"r{i}", value=-0.5 + i / 10) for i in (2, 0, 1)]
    check = check_record(worst=worst)
    rows = rows_of("demo", texts, heads=heads)
    checks = [check]
    if second_model:
        checks.append(msgspec.structs.replace(check, model="other"))
        other = [f"{text} s" if i == 6 else text for i, text in enumerate(texts)]  # other tokens for r6
        rows += rows_of("other", other, predicted=("positive", "positive", "negative"))
    return write_run(folder, run_record(checks, **(run_changes or {})), rows)


def page_parts(source: str) -> dict[str, bytes]:
    """Return the decoded parts in a page, and its manifest."""
    found = re.findall(r'<script type="text/plain" id="explorer-([\w-]+)">([A-Za-z0-9+/=]*)</script>', source)
    return {name: zlib.decompress(base64.b64decode(content), wbits=-15) for name, content in found}


def decoded_values(
    case: dict[str, Any], parts: dict[str, bytes], lengths: Sequence[int]
) -> dict[str, list[list[float]]]:
    """Return the numbers per token of every column and instance; NaN where undefined."""
    found: dict[str, list[list[float]]] = {}
    bounds = [*case["value_starts"], case["n"]]
    for block, (first, last) in enumerate(itertools.pairwise(bounds)):
        content, position = parts[f"{case['prefix']}-values{block}"], 0
        for column in case["columns"]:
            name = "/".join(filter(None, (column["measure"], column["reading"])))
            scales = np.frombuffer(content, "<f4", count=last - first, offset=position)
            position += scales.nbytes
            for scale, length in zip(scales.tolist(), lengths[first:last], strict=True):
                codes = np.frombuffer(content, np.int8, count=length, offset=position).astype(float)
                position += length
                found.setdefault(name, []).append(np.where(codes == -128, np.nan, scale * codes / 127).tolist())
        assert position == len(content)
    return found


def decoded_numbers(case: dict[str, Any], parts: dict[str, bytes]) -> dict[str, list[float]]:
    """Return the numbers per instance of every measure; NaN where undefined."""
    found = {}
    for entry in case["numbers"]:
        codes = np.zeros(case["n"])
        if "part" in entry:
            codes = np.frombuffer(parts[entry["part"]], "<u2", count=case["n"], offset=entry["offset"]).astype(float)
        numbers = np.where(codes == 65_535, np.nan, entry["lowest"] + entry["step"] * codes)
        found["/".join(filter(None, (entry["measure"], entry["reading"])))] = numbers.tolist()
    return found


def manifest_of(parts: dict[str, bytes]) -> dict[str, Any]:
    """Return the manifest among the parts of a page."""
    manifest: dict[str, Any] = json.loads(parts["manifest"])
    return manifest
