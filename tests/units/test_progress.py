"""Progress: a bar in a terminal, lines in a log; names are text, not markup of rich, control sequences or commands."""

from __future__ import annotations

import re
import time

import pytest

from attnaudit import progress as progress_module
from attnaudit.progress import progress_bar
from attnaudit.records import UnitNames
from attnaudit.run.text_progress import TextProgress

NOTE = "measuring [/x] [red]a\x1b[2J\n::error::b"
SHOWN = "measuring [/x] [red]a␛[2J␊::error::b"


def test_a_note_is_plain_text_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with progress_bar() as progress:
        progress(1, 2, NOTE)
    assert SHOWN in capsys.readouterr().err


@pytest.mark.parametrize("print_notes", [False, True])
def test_a_note_is_plain_text_in_a_log(
    print_notes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # rich would wrap the note, and a later word would begin a line
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bar(print_notes=print_notes) as progress:
        progress(2, 2, NOTE)
    assert capsys.readouterr().err == (f"{SHOWN}\n" if print_notes else f"{SHOWN}: 2 of 2\n")


def test_work_of_unknown_length_shows_only_how_much_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with progress_bar() as progress:
        progress(250, None, "measuring")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with progress_bar() as progress:
        progress(250, None, "measuring")
    assert re.search(r"measuring .* 250 ", capsys.readouterr().err)


def test_a_log_has_a_line_for_every_tenth_even_if_the_work_skips_some(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("training", unit="texts") as progress:
        for done in (0, 1, 3, 7, 11, 12, 20):
            progress(done, 20, "epoch 1")
    counts = re.findall(r"^training: (\d+) of 20 texts(?:, about \S+ s left)?$", capsys.readouterr().err, re.MULTILINE)
    assert counts == ["3", "7", "11", "12", "20"]


def test_a_log_has_a_line_each_minute_although_the_work_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "HEARTBEAT_SECONDS", 0.05)
    with progress_bar(unit="texts", print_tenths=False) as progress:
        time.sleep(0.2)
        progress(0, 400, "measuring")
        time.sleep(0.01)
        progress(100, 400, "measuring")
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "starting"
    assert re.fullmatch(r"measuring: 100 of 400 texts, about [\d.]+ s left", lines[-1])
    assert 3 <= len(lines) <= 9


def test_steps_within_a_batch_are_a_remark_and_not_counted() -> None:
    seen: list[tuple[int, int | None, str]] = []
    progress = TextProgress(lambda *report: seen.append(report), model="m", data="d", before=10, pairs=2)
    progress.phase("loading m")
    progress(6, None, "measuring m on d")  # a block of rows
    progress(0, 20, "measuring m on d")
    progress(200, 400, "texts with tokens erased")
    progress(8, 20, "measuring m on d")
    progress(20, 20, "measuring m on d")
    assert seen == [
        (10, None, "loading m"),
        (16, None, "measuring m on d"),
        (10, 50, "measuring m on d"),
        (10, 50, "measuring m on d (texts with tokens erased: 50%)"),
        (18, 50, "measuring m on d"),
        (30, 50, "measuring m on d (checking the results)"),
    ]


def test_progress_names_the_rows_and_units_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["texts"]
    with progress_bar(unit=lambda: rows[0]) as shown:
        progress = TextProgress(shown, model="text model", data="d", before=0, pairs=1)
        progress.phase("loading text model")
        progress.names = UnitNames(unit="patch", row="picture")
        progress.phase("testing the adapter of text model")
        rows[0] = "pictures"
        progress(0, 400, "measuring text model on d")
        progress(200, 400, "measuring text model on d")
        notes: list[str] = []
        other = TextProgress(
            lambda done, total, note: notes.append(note), model="text model", data="d", before=0, pairs=1
        )
        other.names = UnitNames(unit="patch", row="picture")
        other(1, 2, "texts with tokens erased")
    assert "200 of 400 pictures" in capsys.readouterr().err
    assert notes[-1] == "measuring text model on d (pictures with patches erased: 50%)"
