"""The benchmark of a GPU stops in time, and continues where it stopped. These tests need no GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
pytest.importorskip("captum", reason="needs captum: pip install captum")

from attnaudit.errors import AdapterError
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import writing


class _Work:
    """Two parts with three results each, and a clock that each result advances by one second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
        self.now, self.measured = 0.0, list[str]()
        monkeypatch.setattr(writing, "JSON", file)
        monkeypatch.setattr(command.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(command, "speed", self.speed)
        monkeypatch.setattr(command, "PARTS", {"rows": self.rows, "speed": self.speed})

    def results(self, part: str, left_out: Any = ()) -> Iterator[dict[str, Any]]:
        for number in range(3):
            if (f"{part} {number}", "") not in left_out:
                self.now += 1
                self.measured.append(f"{part} {number}")
                yield {"name": f"{part} {number}", "rival": ""}

    def rows(self, _quick: bool) -> Iterator[dict[str, Any]]:
        yield from self.results("rows")

    def speed(self, _quick: bool, known: Any = ()) -> Iterator[dict[str, Any]]:
        yield from self.results("speed", known)

    def run(self, ends: float = math.inf, resumed: dict[str, Any] | None = None) -> list[str]:
        self.measured.clear()
        return command.run(list(command.PARTS), quick=False, resumed=resumed, ends=ends, say=lambda _: None)


def _stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(writing.JSON.read_text(encoding="utf-8"))
    return found


def test_a_run_stops_in_time_and_continues_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = _Work(monkeypatch, tmp_path / "gpu.json")
    assert work.run(ends=4.0) == ["speed"]
    assert work.measured == ["rows 0", "rows 1", "rows 2", "speed 0"]
    assert _stored()["finished"] == ["rows"]
    assert work.run(resumed=_stored()) == []
    assert work.measured == ["speed 1", "speed 2"]
    assert [one["name"] for one in _stored()["speed"]] == ["speed 0", "speed 1", "speed 2"]
    assert work.run(resumed=_stored()) == []
    assert work.measured == []
    assert work.run() == []
    assert len(work.measured) == 6


def test_a_part_that_is_not_finished_runs_again_as_a_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = _Work(monkeypatch, tmp_path / "gpu.json")
    assert work.run(ends=2.0) == ["rows", "speed"]
    assert work.run(resumed=_stored()) == []
    assert work.measured[:3] == ["rows 0", "rows 1", "rows 2"]
    assert len(_stored()["rows"]) == 3


def test_comparisons_from_before_the_run_are_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = _Work(monkeypatch, tmp_path / "gpu.json")
    assert work.run() == []
    assert work.run(ends=work.now + 2) == ["rows", "speed"]  # a new run, perhaps on another machine
    assert len(_stored()["speed"]) == 3
    assert work.run(resumed=_stored()) == []
    assert work.measured[3:] == ["speed 0", "speed 1", "speed 2"]


def test_the_other_parts_run_if_one_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = _Work(monkeypatch, tmp_path / "gpu.json")

    def refused(_quick: bool) -> Iterator[dict[str, Any]]:
        yield from work.results("rows")
        raise AdapterError("the model cannot be audited")

    monkeypatch.setitem(command.PARTS, "rows", refused)
    assert work.run() == ["rows (failed with AdapterError: the model cannot be audited)"]
    assert _stored()["finished"] == ["speed"]


def test_results_of_another_machine_are_not_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = _Work(monkeypatch, tmp_path / "gpu.json")
    work.run()
    machine = writing.machine()
    assert command.stored_by_the_same({**machine, "date": "another day"}) == _stored()
    with pytest.raises(SystemExit, match="the stored results come from another machine \\(gpu: ; here: H100\\)"):
        command.stored_by_the_same({**machine, "gpu": "H100"})
