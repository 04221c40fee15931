"""The index of the lines of a large file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.data import line_index
from attnaudit.data.files import BYTE_ORDER_MARK
from attnaudit.data.line_index import LineIndex
from attnaudit.errors import DataError

PIECES = st.sampled_from([b"a", b"bc", "ä".encode(), b" ", b"\t", b"\n", b"\r\n", b'{"text": "x"}'])


@given(
    pieces=st.lists(PIECES, max_size=40),
    mark=st.booleans(),
    chunk=st.sampled_from([1, 2, 3, 7, 64]),
)
def test_every_line_that_is_not_blank_is_read_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], mark: bool, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    body = b"".join(pieces)
    path.write_bytes((BYTE_ORDER_MARK if mark else b"") + body)
    expected = [(number, line) for number, line in enumerate(body.split(b"\n"), start=1) if line.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_index, "CHUNK", chunk)
        if not expected:
            with pytest.raises(DataError, match="the file is empty"):
                LineIndex(path)
            return
        index = LineIndex(path)
    assert index.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    backwards = range(len(index) - 1, -1, -1)
    found = [(number, line.removesuffix(b"\n")) for number, _, line in index.read(backwards)]
    assert found[::-1] == expected
    assert [path.read_bytes()[offset:][:1] for _, offset, _ in index.read(backwards)] == [
        line[:1] for _, line in expected[::-1]
    ]


def test_a_line_of_null_bytes_is_not_blank(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a"}\n\0\0\0\n \t\r\n{"text": "b"}\n')
    assert [number for number, _, _ in LineIndex(path).read(range(3))] == [1, 2, 4]


def test_a_file_that_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("one\ntwo\n")
    index = LineIndex(path)
    assert [line for _, _, line in index.read([1])] == [b"two\n"]
    path.write_text("one\ntwo\nthree\n")
    with pytest.raises(DataError, match="the file changed while it was being read"):
        list(index.read([0]))


def test_a_file_in_utf16_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("one\n", encoding="utf-16")
    with pytest.raises(DataError, match="UTF-16"):
        LineIndex(path)
