"""The benchmark of the CPU's work in passes on a GPU."""

from __future__ import annotations

import pytest

from benchmarks import host_time
from benchmarks.speed import subjects

pytest.importorskip("transformers")
pytest.importorskip("captum")


@pytest.mark.slow
def test_both_programs_give_the_same_numbers_and_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_time, "TEXTS", {"n≈20": (8, None)})
    monkeypatch.setattr(host_time, "WAITING_TEXTS", {"n≈20": (8, None)})
    sizes = dict(subjects.MINILM)
    assert host_time.main(["--repeats", "1"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    rows = [line.split(" | ") for line in first.splitlines()[2:]]
    assert [row[0] for row in rows] == [
        f"| {model}: {what}, n≈20" for model in ("BERT", "GPT-2") for what in ("forward pass", "gradient")
    ]
    assert all(float(row[2]) > 0 and float(row[3]) > 0 for row in rows)
    waits = [line.split(" | ") for line in second.splitlines()[2:]]
    assert [(row[0], row[2]) for row in waits] == [("| n≈20", "1 µs"), ("| n≈20", "4 µs")]
    assert all(float(row[3]) > 0 and float(row[4]) > 0 for row in waits)
    assert sizes == subjects.MINILM
