"""Reading data files: what is read, and the error for each kind of unusable file."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnaudit.data import load
from attnaudit.data.files import parse_line
from attnaudit.data.line_index import LineIndex
from attnaudit.errors import DataError
from tests.units.data.written_files import WRITERS, refused, with_every_suffix, write_csv, write_jsonl

ROWS = [
    {"text": "A fine, subtle film.", "label": "positive", "query": "Is it good?", "id": "a", "source": "x"},
    {"text": 'He said "no"\nand left.', "label": "negative", "query": None, "id": "b", "source": "x"},
    {"text": "Née à Zürich \u2028 naïve", "label": None, "query": None, "id": "c", "source": None},
]


def cells(path: Path) -> list[dict[str, Any]]:
    return [
        {"text": one.text, "label": one.label, "query": one.query, "id": one.id, "source": one.source}
        for one in load(path).instances
    ]


@with_every_suffix
def test_all_columns_are_read(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"reviews{suffix}", ROWS)
    assert cells(path) == ROWS
    dataset = load(str(path))
    assert (dataset.name, dataset.rows, dataset.classes) == ("reviews", 3, ("negative", "positive"))
    assert dataset.source == str(path)


words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12).filter(str.strip)
# In CSV, where every cell is text, a label that looks like a fraction, NaN or infinity is refused as a number.
names = words.filter(lambda one: not re.fullmatch(r"(?i)[+-]?[\d.]+(e[+-]?\d+)?|nan|-?inf", one.strip()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "text": words,
                "label": st.none() | names,
                "query": st.none() | words,
                "id": words,
                "source": st.none() | words,
            }
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row["id"],
    )
)
@pytest.mark.parametrize("suffix", list(WRITERS))
def test_what_is_written_is_read(tmp_path: Path, suffix: str, rows: list[dict[str, Any]]) -> None:
    assert cells(WRITERS[suffix](tmp_path / f"rows{suffix}", rows)) == rows


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"rows{suffix}", ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert cells(path) == ROWS


def test_blank_lines_are_not_rows_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "one"}\r\n\r\n{"text": "two"}\r\n')
    assert [(one.text, one.where) for one in load(path).instances] == [("one", f"{path}:1"), ("two", f"{path}:3")]


def test_the_row_number_in_csv_is_the_line_that_the_row_starts_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,label\n"two\nlines",a\n\nlast,b\n')
    assert [one.where for one in load(path).instances] == [f"{path}:2", f"{path}:5"]


def test_large_csv_field(tmp_path: Path) -> None:
    before = csv.field_size_limit(1000)
    path = write_csv(tmp_path / "rows.csv", [{"text": "word " * 60_000}])
    assert len(load(path).instances[0].text) == 300_000
    assert csv.field_size_limit(before) == 1000


def test_suffix_in_capitals(tmp_path: Path) -> None:
    assert load(write_csv(tmp_path / "ROWS.CSV", [{"text": "one"}])).name == "ROWS"


def test_the_description_lists_ignored_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", [{"text": "one", "stars": "4"}])
    assert "Ignored columns: 'stars'" in load(path).description


# --- The file


def test_a_missing_file_names_the_nearest_file(tmp_path: Path) -> None:
    write_csv(tmp_path / "reviews.csv", [{"text": "one"}])
    refused(tmp_path / "review.csv", "no such file", "Did you mean 'reviews.csv'?")


def test_missing_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere" / "rows.csv", "folder", "does not exist")


def test_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "this is a folder without .parquet files")


def test_unknown_suffix(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("text\none\n")
    refused(path, "'.tsv'", ".jsonl, .csv or .parquet")


@with_every_suffix
@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_empty_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(content)
    refused(path, "the file is empty")


def test_header_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n")
    refused(path, "a header but no rows")
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), table)
    refused(table, "no rows")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("suffix", "content"), [(".csv", b"text\ngood\ncaf\xe9\n"), (".jsonl", b'{"text":"good"}\n\n{"text":"caf\xe9"}\n')]
)
def test_bytes_that_are_not_utf8(tmp_path: Path, suffix: str, content: bytes, mark: bytes) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(mark + content)
    offset = (mark + content).index(b"\xe9")
    refused(path, f"{path}:3:", "0xe9", f"offset {offset} ", "save it as UTF-8")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize(
    ("content", "problem", "fix"),
    [
        ("text\none\n".encode("utf-16"), "encoded in UTF-16", "Save it as UTF-8"),
        ("text\none\n".encode("utf-16-le"), "encoded in UTF-16", "Save it as UTF-8"),
        ("text\none\n".encode("utf-16-be"), "encoded in UTF-16", "Save it as UTF-8"),
        ("text\none\n".encode("utf-32"), "encoded in UTF-32", "Save it as UTF-8"),
        (b"\x00\x00\xfe\xff" + "text\none\n".encode("utf-32-be"), "encoded in UTF-32", "Save it as UTF-8"),
        (gzip.compress(b"text\none\n", mtime=0), "compressed with gzip", "gunzip"),
        (b"PK\x03\x04workbook", "zip archive", "export it as CSV"),
        (b"PAR1 columns", "a Parquet file", "suffix .parquet"),
    ],
)
def test_other_encodings_and_formats_are_recognised(
    tmp_path: Path, suffix: str, content: bytes, problem: str, fix: str
) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(content)
    refused(path, problem, fix)
    with pytest.raises(DataError, match=problem):
        LineIndex(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_file_that_git_lfs_has_not_fetched_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    refused(path, "a pointer of Git LFS", "git lfs pull")


# --- Columns


@with_every_suffix
def test_missing_text_column_names_the_nearest(tmp_path: Path, suffix: str) -> None:
    refused(WRITERS[suffix](tmp_path / f"a{suffix}", [{"texts": "one", "label": "x"}]), "Rename 'texts' to 'text'")
    refused(WRITERS[suffix](tmp_path / f"b{suffix}", [{"Review": "one", "label": "x"}]), "Rename 'Review' to 'text'")
    refused(WRITERS[suffix](tmp_path / f"c{suffix}", [{"zzz": "one"}]), "'text' is missing", "found 'zzz'")


@with_every_suffix
def test_a_column_nearly_called_label_is_not_silently_ignored(tmp_path: Path, suffix: str) -> None:
    for name in ("Label", "labell"):
        path = WRITERS[suffix](tmp_path / f"rows{suffix}", [{"text": "one", name: "x"}])
        refused(path, f"column '{name}' would be ignored", "Rename it to 'label'")


@with_every_suffix
def test_the_columns_of_targets_are_read(tmp_path: Path, suffix: str) -> None:
    """Labels are a list, or text in CSV; an empty list is not the same as no list."""
    text = suffix == ".csv"
    rows: list[dict[str, Any]] = [
        {"text": "one", "labels": "a; b" if text else ["a", "b"], "answer": " yes", "position": 2},
        {"text": "two", "labels": "[]" if text else [], "answer": None, "position": None},
        {"text": "three", "labels": None, "answer": " ", "position": 0},
    ]
    found = load(WRITERS[suffix](tmp_path / f"rows{suffix}", rows)).instances
    assert [one.labels for one in found] == [("a", "b"), (), None]
    assert [one.answer for one in found] == [" yes", None, None]
    assert [one.position for one in found] == [2, None, 0]


@pytest.mark.parametrize(
    ("cell", "fragment"),
    [
        ({"labels": 3}, "column 'labels': found int (3), expected a list of label names"),
        ({"labels": ["a", ""]}, "column 'labels': found the entry ''"),
        ({"labels": "[a"}, "text that is no JSON list"),
        ({"position": -1}, "column 'position': found -1, expected the index of a word, counted from 0"),
        ({"position": "two"}, "column 'position': found 'two'"),
        ({"position": 1.5}, "column 'position': found 1.5"),
        ({"position": True}, "column 'position'"),
        ({"answer": ["a"]}, "column 'answer': found a list"),
        ({"positions": 1}, "column 'positions' would be ignored. Rename it to 'position'"),
        ({"position": "9" * 5000}, "column 'position': found '9999"),
        ({"position": float("inf")}, "column 'position': found inf"),
        ({"labels": "[" * 100_000}, "text that is no JSON list (maximum recursion depth"),
        ({"labels": ["a", None]}, "column 'labels': found the entry None"),
        ({"labels": {"a": 1}}, "column 'labels': found an object"),
        ({"answer": 3}, "column 'answer': found int (3), expected text"),
        ({"Answer": "a"}, "column 'Answer' would be ignored. Rename it to 'answer'"),
        ({"answers": ["a"]}, "column 'answers' would be ignored. Rename it to 'answer'"),
    ],
)
def test_invalid_cells_of_targets(tmp_path: Path, cell: dict[str, Any], fragment: str) -> None:
    refused(write_jsonl(tmp_path / "rows.jsonl", [{"text": "one", **cell}]), fragment)


def test_a_column_with_another_meaning_than_the_answer_is_ignored(tmp_path: Path) -> None:
    assert load(write_jsonl(tmp_path / "rows.jsonl", [{"text": "one", "answer_id": "7"}])).instances[0].answer is None


def test_rows_that_differ_only_in_the_target_have_different_ids(tmp_path: Path) -> None:
    rows = [{"text": "one two", "position": 0}, {"text": "one two", "position": 1}, {"text": "one two"}]
    ids = [one.id for one in load(write_jsonl(tmp_path / "rows.jsonl", rows)).instances]
    assert len({identifier.partition("#")[0] for identifier in ids}) == 3


def test_csv_without_header(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("A fine film.,positive\nA dull film.,negative\n")
    refused(path, f"{path}:1:", "The first row must be the header")


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_csv_with_another_separator(tmp_path: Path, mark: str, name: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"text{mark}label\nfine{mark}positive\n")
    refused(path, f"separated by {name}")


def test_duplicate_columns(tmp_path: Path) -> None:
    comma = tmp_path / "rows.csv"
    comma.write_text("text,label,text\na,b,c\n")
    refused(comma, f"{comma}:1:", "more than one column has the name 'text'")
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"text": "a"}\n{"text": "a", "label": "x", "label": "y"}\n')
    refused(lines, f"{lines}:2:", "more than one column has the name 'label'")
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), table)
    refused(table, "more than one column has the name 'text'")


# --- Rows


@with_every_suffix
@pytest.mark.parametrize("text", ["", "  \t"])
def test_blank_text(tmp_path: Path, suffix: str, text: str) -> None:
    path = WRITERS[suffix](tmp_path / f"rows{suffix}", [{"text": "one", "id": 1}, {"text": text, "id": 2}])
    row = 3 if suffix == ".csv" else 2
    refused(path, f"{path}:{row}:", "column 'text'", "a blank text")


@pytest.mark.parametrize(("value", "kind"), [(3, "int (3)"), (None, "null"), (["a"], "a list"), (True, "a Boolean")])
def test_text_that_is_not_text(tmp_path: Path, value: object, kind: str) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "one"}, {"text": value}])
    refused(path, f"{path}:2:", "column 'text'", f"found {kind}")


def test_half_a_surrogate_pair(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "ab\\ud800"}\n')
    refused(path, f"{path}:1:", "surrogate", "character 3")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{'text': 'one'}", "not valid JSON"),
        ('{"text": "one"', "not valid JSON"),
        ('["text", "one"]', "found an array"),
        ('"text"', "found a string"),
        ('{"text": "a"} {"text": "b"}', "Extra data"),
        ("[" * 100_000, "this JSON cannot be read|not valid JSON"),
        ('{"text": "a", "label": ' + "9" * 5000 + "}", "this JSON cannot be read"),
    ],
)
def test_lines_that_are_not_json_objects(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "good"}\n' + line + "\n")
    assert re.search(message, refused(path, f"{path}:2:", "Expected one JSON object per line"))


def test_json_array_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps([{"text": "one"}], indent=1))
    refused(path, f"{path}:1:", "looks like one JSON array")


@pytest.mark.parametrize("line", ['{"text": "one"},', '{"text": "two"}]'])
def test_a_line_of_an_array_is_recognised_wherever_it_is(line: str) -> None:
    with pytest.raises(DataError, match="looks like one JSON array"):
        parse_line(line, "rows.jsonl:7")


@pytest.mark.parametrize(("line", "fields"), [("a,b,c", "3 fields"), ("a", "1 field")])
def test_ragged_csv_row(tmp_path: Path, line: str, fields: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\none,x\n{line}\n")
    refused(path, f"{path}:3:", f"found {fields}, expected 2", "double quotes")


def test_quote_that_never_closes(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,label\none,x\n"two,y\nthree,z\n')
    refused(path, f"{path}:3:", "not valid CSV")


@with_every_suffix
def test_duplicate_ids_name_both_rows(tmp_path: Path, suffix: str) -> None:
    rows = [{"text": "one", "id": "7"}, {"text": "two", "id": "8"}, {"text": "three", "id": "7"}]
    path = WRITERS[suffix](tmp_path / f"rows{suffix}", rows)
    first = 2 if suffix == ".csv" else 1
    refused(path, f"{path}:{first + 2}:", "column 'id'", "'7'", f"in {path}:{first}.")


@with_every_suffix
def test_row_without_its_id(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"rows{suffix}", [{"text": "one", "id": "7"}, {"text": "two", "id": None}])
    refused(path, "column 'id'", "Give every row an id")


def test_jsonl_with_ids_in_some_rows_only(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "one", "id": "7"}, {"text": "two"}])
    refused(path, f"{path}:2:", "missing here, unlike in", "Give every row an id")


@pytest.mark.parametrize("label", [["a", "b"], {"a": 1}, []])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_several_labels_are_refused(tmp_path: Path, suffix: str, label: object) -> None:
    if suffix == ".parquet" and isinstance(label, list):
        pq.write_table(
            pa.table({"text": ["one"], "label": pa.array([label], pa.list_(pa.string()))}), tmp_path / "r.parquet"
        )
        path = tmp_path / "r.parquet"
    else:
        path = WRITERS[suffix](tmp_path / f"rows{suffix}", [{"text": "one", "label": label}])
    refused(path, f"{path}:1:", "column 'label'", "Several labels for one text belong in the column 'labels'")


@with_every_suffix
@pytest.mark.parametrize("label", [0.5, 1.0, -2e-3])
def test_fractions_as_labels_are_refused(tmp_path: Path, suffix: str, label: float) -> None:
    path = WRITERS[suffix](tmp_path / f"rows{suffix}", [{"text": "one", "label": label}])
    about_scores = ["The classes of a score"] if label != 1.0 else []
    refused(path, "column 'label'", f"the number {label}", "Write classes as integers", *about_scores)
    with pytest.raises(DataError) as caught:
        load(path)
    assert ("score" in str(caught.value)) == (label != 1.0)


def test_label_true_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "one", "label": True}])
    refused(path, f"{path}:1:", "column 'label'", "a Boolean")


@with_every_suffix
def test_integer_labels_are_kept_as_text_and_sorted_as_numbers(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"rows{suffix}", [{"text": "a", "label": 10}, {"text": "b", "label": 2}])
    assert [instance.label for instance in load(path).instances] == ["10", "2"]
    assert load(path).classes == ("2", "10")


@with_every_suffix
def test_labelled_and_unlabelled_rows_can_be_mixed(tmp_path: Path, suffix: str) -> None:
    path = WRITERS[suffix](tmp_path / f"rows{suffix}", [{"text": "a", "label": "x"}, {"text": "b", "label": None}])
    assert [instance.label for instance in load(path).instances] == ["x", None]


@pytest.mark.parametrize("label", ["nan", "NaN", "inf"])
def test_nan_and_infinity_are_not_classes_in_csv(tmp_path: Path, label: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\none,{label}\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"rows\.csv:2: column 'label': found the number {label}"):
        load(path)


def test_integer_labels_of_thousands_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"text,label\none,{'9' * 5000}\ntwo,3\n", encoding="utf-8")
    assert load(path).classes == ("3", "9" * 5000)


def test_a_pipe_and_a_device_are_refused_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.csv")
    (tmp_path / "zeros.csv").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"rows\.csv: this is a pipe, expected a regular file with the data"):
        load(tmp_path / "rows.csv")
    with pytest.raises(DataError, match=r"zeros\.csv: this is a device, expected a regular file with the data"):
        load(tmp_path / "zeros.csv")
