"""`attnaudit explore`: the address of the explorer, with and without a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

from attnaudit import cli
from attnaudit.report import build
from tests.units.report.example_runs import realistic


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = realistic(tmp_path / "reports" / "20260101-000000-0000")
    build(folder)
    (tmp_path / "reports" / "latest.txt").write_text(f"{folder.name}\n", encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was told to open. A browser that opened none is not there."""
    found: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(found.append(address) or "absent" not in address))
    return found


def test_the_newest_run_is_opened(run_folder: Path, addresses: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", str(run_folder.parent)]) == 0
    expected = f"{(run_folder / 'report.html').as_uri()}#explorer"
    assert capsys.readouterr().out == f"{expected}\n"
    assert addresses == [expected]


def test_an_instance_is_printed_and_nothing_opened(
    run_folder: Path, addresses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explore", str(run_folder), "--print", "--instance", "a/b #1"]) == 0
    assert capsys.readouterr().out.endswith("report.html#instance=a%2Fb%20%231\n")
    assert addresses == []


def test_without_a_browser_the_address_can_be_copied(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", str(run_folder), "--instance", "absent"]) == 1
    captured = capsys.readouterr()
    assert captured.out.endswith("#instance=absent\n")
    assert "no browser could be started" in captured.err


@pytest.mark.parametrize(
    ("missing", "message"),
    [("report.html", "Build it with `attnaudit report"), ("measurements.parquet", "no instances to explore")],
)
def test_a_missing_file_is_one_error(
    run_folder: Path, missing: str, message: str, addresses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / missing).unlink()
    assert cli.main(["explore", str(run_folder)]) == 1
    assert message in capsys.readouterr().err
    assert addresses == []
