"""Reports are written file by file, each as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.errors import ReportError
from attnaudit.research.study.report_files import record_json, write_files
from attnaudit.research.validation.figures_schema import RocPoint


def test_files_are_written_into_a_new_folder(tmp_path: Path) -> None:
    paths = write_files(tmp_path / "a" / "b", {"x.md": "é\n", "y.json": "{}"})
    assert [path.name for path in paths] == ["x.md", "y.json"]
    assert paths[0].read_bytes() == "é\n".encode()
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["x.md", "y.json"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ReportError, match=r"x\.md: cannot be written .*Give --out a folder that you may write to"):
        write_files(tmp_path / "file", {"x.md": ""})


def test_a_record_is_indented_json() -> None:
    text = record_json(RocPoint(false_alarms=0.0, sensitivity=1.0))
    assert text == '{\n "false_alarms": 0.0,\n "sensitivity": 1.0\n}\n'
