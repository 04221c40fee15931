"""Names in a progress bar are text, not markup of rich, control sequences or commands."""

from __future__ import annotations

import pytest

from attnaudit.progress import progress_bar

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
