"""The data of the instance explorer: what is in the page can be decoded to what was measured."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.report import build
from attnaudit.report.explorer import explorer_page, explorer_rows
from attnaudit.report.explorer.explorer_data import compressed, number_codes, to_json
from attnaudit.report.explorer.explorer_rows import quantised, read_rows
from tests.units.report.example_runs import hostile, realistic
from tests.units.report.explorer_runs import (
    EFFECT,
    HOSTILE_TEXTS,
    decoded_numbers,
    decoded_values,
    explorable,
    manifest_of,
    page_parts,
    values_of,
)

FLOATS = st.floats(-1e30, 1e30) | st.just(float("nan")) | st.just(float("inf"))


def test_a_page_holds_every_instance_and_value(tmp_path: Path) -> None:
    build(explorable(tmp_path, HOSTILE_TEXTS))
    parts = page_parts((tmp_path / "report.html").read_text(encoding="utf-8"))
    (case,) = manifest_of(parts)["cases"]
    index = json.loads(parts["case0-index"])
    tokens = [text.split(" ") for text in HOSTILE_TEXTS]
    assert index["ids"] == [f"r{i}" for i in range(len(HOSTILE_TEXTS))]
    assert json.loads(parts["case0-text0"]) == tokens
    assert index["lengths"] == list(map(len, tokens))
    assert [index["classes"][i] for i in index["predicted"]] == ["negative", "positive"] * 4
    assert index["confidence"] == [50_000 + 1_000 * i for i in range(len(HOSTILE_TEXTS))]
    values = decoded_values(case, parts, index["lengths"])
    for name, column in (("attention", 0), (EFFECT, 3), ("adversarial.0.1.attention", 5)):
        for row, text in zip(values[name], tokens, strict=True):
            expected = np.array(values_of(text, column))
            assert np.abs(np.array(row) - expected).max() <= np.abs(expected).max() / 254 * 1.0001
    assert "curve" not in values
    numbers = decoded_numbers(case, parts)
    expected = [(i * 37 % 101) / 100 for i in range(len(HOSTILE_TEXTS))]
    np.testing.assert_allclose(numbers["uniform.tvd"], expected, atol=1 / 131_000)
    assert numbers["adversarial.0.01.jsd"] == [0.25] * len(HOSTILE_TEXTS)
    (check,) = case["checks"]
    assert check["gate"]
    assert [row for row, _ in check["worst"]] == [2, 0, 1]


@given(st.lists(st.lists(FLOATS, min_size=1, max_size=6), min_size=1, max_size=5))
def test_token_values_are_accurate_to_a_share_of_the_largest_one(rows: list[list[float]]) -> None:
    scales, codes = quantised(np.concatenate(rows), np.array(list(map(len, rows))))
    start = 0
    for row, scale in zip(rows, scales.tolist(), strict=True):
        own = codes[start : start + len(row)].astype(float)
        start += len(row)
        defined = np.isfinite(row)
        np.testing.assert_array_equal(own == -128, ~defined)
        assert np.isnan(scale) == (not defined.any())
        if defined.any():
            errors = np.abs(scale * own / 127 - row)[defined]
            assert errors.max() <= scale / 254 * 1.001 + 1e-44  # the smallest float32


@given(st.lists(FLOATS, min_size=1, max_size=20).filter(lambda row: np.isfinite(row).any()))
def test_numbers_are_accurate_to_a_share_of_their_range(values: list[float]) -> None:
    codes, lowest, step = number_codes(np.array(values))
    defined = np.isfinite(values)
    np.testing.assert_array_equal(codes == 65_535, ~defined)
    known = np.array(values)[defined]
    errors = np.abs(lowest + step * codes[defined].astype(float) - known)
    assert errors.max() <= np.ptp(known / 2) / 65_500 + 1e-300


@given(st.lists(st.integers(-30_000, 30_000), min_size=1))
def test_whole_numbers_are_exact(values: list[int]) -> None:
    codes, lowest, step = number_codes(np.array(values, dtype=float))
    assert (lowest + step * codes.astype(float)).tolist() == values


@pytest.mark.parametrize("text", [*HOSTILE_TEXTS, "lone \ud800 surrogate", "\x00\x1b", ""])
def test_any_text_survives_and_is_harmless_in_a_page(text: str) -> None:
    encoded = compressed(to_json([text]))
    assert re.fullmatch(r"[A-Za-z0-9+/]+=*", encoded)
    assert json.loads(zlib.decompress(base64.b64decode(encoded), wbits=-15)) == [text]


def test_the_policy_names_the_hash_of_the_script_and_of_no_other(tmp_path: Path) -> None:
    build(hostile(tmp_path))
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in source
    assert "<!--" not in script
    assert "innerHTML" not in script
    assert "window.marker=1" not in script


def test_large_data_are_next_to_the_page_and_leave_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = explorable(tmp_path, HOSTILE_TEXTS)
    monkeypatch.setattr(explorer_page, "MOST_IN_PAGE", 0)
    build(folder)
    files = {path.name: path.read_bytes() for path in (folder / "explorer").iterdir()}
    assert {"case0-index.js", "case0-text0.js", "case0-values0.js", "case0-numbers0.js"} <= set(files)
    for name, content in files.items():
        assert re.fullmatch(rf'attnauditPart\("\w{{16}}","{name[:-3]}","[A-Za-z0-9+/=]+"\);\n', content.decode())
    source = (folder / "report.html").read_text(encoding="utf-8")
    assert "'strict-dynamic'" in source
    assert set(page_parts(source)) == {"manifest"}
    build(folder)
    assert {path.name: path.read_bytes() for path in (folder / "explorer").iterdir()} == files
    assert (folder / "report.html").read_text(encoding="utf-8") == source
    monkeypatch.undo()
    (folder / "explorer" / "notes.txt").write_text("mine")
    build(folder)
    assert [path.name for path in (folder / "explorer").iterdir()] == ["notes.txt"]
    assert "strict-dynamic" not in (folder / "report.html").read_text(encoding="utf-8")


def test_the_layout_of_the_file_does_not_matter(tmp_path: Path) -> None:
    folder = explorable(tmp_path, HOSTILE_TEXTS, second_model=True)
    path = folder / "measurements.parquet"
    table = pq.read_table(path)
    rows = read_rows(path)
    pq.write_table(table.sort_by([("model", "ascending"), ("measure", "ascending")]), path, row_group_size=3)
    regrouped = read_rows(path)
    assert set(rows) == set(regrouped)
    for case, one in rows.items():
        other = regrouped[case]
        assert (one.ids, one.tokens, one.predicted) == (other.ids, other.tokens, other.predicted)
        assert set(one.columns) == set(other.columns)
        assert "curve" not in one.columns
        for name, column in one.columns.items():
            np.testing.assert_array_equal(column.codes, other.columns[name].codes)
            np.testing.assert_array_equal(column.scales, other.columns[name].scales)
        for name, scalar in one.scalars.items():
            np.testing.assert_array_equal(scalar, other.scalars[name])


def test_a_measure_that_is_undefined_on_an_instance_is_undefined_there_alone(tmp_path: Path) -> None:
    folder = realistic(tmp_path)
    path = folder / "measurements.parquet"
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        if row["instance"] == "r1" and row["measure"] == "leave_one_out.inputs":
            row["values"] = None
        if row["instance"] == "r2" and row["measure"] == "attention":
            row["values"][3] = None
    pq.write_table(type(pq.read_table(path)).from_pylist(rows, schema=pq.read_schema(path)), path)
    build(folder)
    parts = page_parts((folder / "report.html").read_text(encoding="utf-8"))
    (case,) = manifest_of(parts)["cases"]
    values = decoded_values(case, parts, json.loads(parts["case0-index"])["lengths"])
    assert np.isnan(values["leave_one_out.inputs"][1]).all()
    assert not np.isnan(values["leave_one_out.inputs"][0]).any()
    assert np.flatnonzero(np.isnan(values["attention"][2])).tolist() == [3]


def test_without_measurements_there_is_no_explorer_and_no_script(tmp_path: Path) -> None:
    folder = realistic(tmp_path)
    (folder / "measurements.parquet").unlink()
    build(folder)
    source = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script" not in source
    assert "script-src" not in source


def test_a_page_with_too_many_instances_holds_a_sample_and_those_that_the_checks_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{'a b c d'[: 1 + 2 * (i % 4)]} {i}" for i in range(60)]
    folder = explorable(tmp_path, texts)
    whole = read_rows(folder / "measurements.parquet")
    monkeypatch.setattr(explorer_rows, "MOST_INSTANCES", 20)
    build(folder)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    parts = page_parts(page)
    (case,) = manifest_of(parts)["cases"]
    index = json.loads(parts["case0-index"])
    hashes = {f"r{i}": hashlib.blake2b(f"r{i}".encode(), digest_size=8).digest() for i in range(60)}
    expected = {*sorted(hashes, key=hashes.__getitem__)[:20], "r0", "r1", "r2"}
    assert index["ids"] == [f"r{i}" for i in range(60) if f"r{i}" in expected]
    assert f"A sample of {len(expected)} of 60 instances, drawn at random" in page
    kept = [int(one[1:]) for one in index["ids"]]
    assert json.loads(parts["case0-text0"]) == [texts[i].split(" ") for i in kept]
    values = decoded_values(case, parts, index["lengths"])["attention"]
    for row, i in zip(values, kept, strict=True):
        np.testing.assert_allclose(row, values_of(texts[i].split(" "), 0), atol=1 / 250)
    (all_rows,) = whole.values()
    assert all_rows.total == len(all_rows.ids) == 60
    tvd = decoded_numbers(case, parts)["uniform.tvd"]
    np.testing.assert_allclose(tvd, all_rows.scalars["uniform.tvd"][kept], atol=1 / 65_000)


def test_the_sample_depends_on_the_ids_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer_rows, "MOST_INSTANCES", 7)
    folder = explorable(tmp_path, [f"word {i}" for i in range(40)])
    table = pq.read_table(folder / "measurements.parquet")
    first = read_rows(folder / "measurements.parquet")
    backwards = tmp_path / "backwards.parquet"
    pq.write_table(table.take(np.arange(table.num_rows)[::-1]), backwards, row_group_size=50)
    second = read_rows(backwards)
    ((one,), (other,)) = first.values(), second.values()
    assert len(one.ids) == 7
    assert sorted(one.ids) == sorted(other.ids)
    assert (one.total, other.total) == (40, 40)
