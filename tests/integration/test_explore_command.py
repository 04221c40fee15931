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
    """The addresses to open in a browser. Opening the page of the instance r2 fails, as on a machine without one."""
    found: list[str] = []
    monkeypatch.setattr(
        webbrowser, "open", lambda address: bool(found.append(address) or "#instance=r2" not in address)
    )
    return found


def test_the_newest_run_is_opened(run_folder: Path, addresses: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", str(run_folder.parent)]) == 0
    expected = f"{(run_folder / 'report.html').as_uri()}#explorer"
    assert capsys.readouterr().out == f"{expected}\n"
    assert addresses == [expected]


def test_an_instance_is_printed_and_nothing_opened(
    run_folder: Path, addresses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explore", str(run_folder), "--print", "--instance", "r1"]) == 0
    assert capsys.readouterr().out.endswith("report.html#instance=r1\n")
    assert addresses == []


def test_without_a_browser_the_address_can_be_copied(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", str(run_folder), "--instance", "r2"]) == 1
    captured = capsys.readouterr()
    assert captured.out.endswith("#instance=r2\n")
    assert "no browser could be started" in captured.err


def test_an_instance_that_was_not_measured_is_refused_with_similar_ones(
    run_folder: Path, addresses: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explore", str(run_folder), "--instance", "rr1"]) == 2
    message = "attnaudit: --instance rr1: none of the 5 instances of this run has this id. Did you mean 'r1'"
    assert capsys.readouterr().err.startswith(message)
    assert addresses == []


@pytest.mark.parametrize("command", ["explore", "report", "verify", "evidence", "compare", "baseline"])
def test_a_folder_that_does_not_exist_is_refused_with_similar_ones(
    command: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = str(run_folder.parent.with_name("reprots"))
    others = {
        "verify": ["--model", "demo"],
        "evidence": ["--subject", str(run_folder)],
        "compare": [str(run_folder)],
        "baseline": ["--out", str(run_folder)],
    }
    words = ["baseline", "accept", given] if command == "baseline" else [command, given]
    assert cli.main([*words, *others.get(command, [])]) in (1, 2)
    captured = capsys.readouterr()
    suggestions = [line for line in (captured.out + captured.err).splitlines() if "Did you mean" in line]
    assert len(suggestions) == 1  # verify adds a line with the number of reasons
    assert f"{given}: there is no such folder. Did you mean '{run_folder.parent}'" in suggestions[0]


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
