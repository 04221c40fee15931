"""The tutorial: following it gives what it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.console_transcript import first_missing_line, run_page, steps

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def test_the_page_has_the_commands_of_a_whole_audit() -> None:
    commands = [step for step, _ in steps(PAGE) if step.startswith("$ ")]
    assert [command.split()[1] for command in commands] == [
        "python",
        "python",
        "attnaudit",
        "attnaudit",
        "pytest",
        "python",
        "pytest",
    ]


@pytest.mark.slow
def test_following_the_tutorial_gives_what_it_shows(tmp_path: Path) -> None:
    problems = run_page(PAGE, tmp_path)
    assert problems == [], "\n\n".join(problems)
    states = {}
    for path in (tmp_path / "reports").glob("*/audit.json"):
        run = json.loads(path.read_text(encoding="utf-8"))
        states[run["models"][0]["name"]] = {check["verdict"] for check in run["checks"] if check["severity"] == "gate"}
    assert states == {"sentiment": {"fail", "pass"}, "tied": {"pass"}}


@pytest.mark.parametrize(
    ("shown", "output", "missing"),
    [
        ("a\nb 0.5\n", "a\nb 0.7\n", None),
        ("2 passed, 0 failed, 1 skipped.\n", "2 passed, 0 failed, 1 skipped.\n", None),
        ("2 passed, 0 failed, 1 skipped.\n", "3 passed, 0 failed, 1 skipped.\n", "2 passed, 0 failed, 1 skipped."),
        ("a\n...\nd\n", "a\nb\nc\nd\n", None),
        ("...\nd\n...\n", "a\nd\ne\n", None),
        ("a\nb\n", "a\nc\n", "b"),
        ("a\nd\n", "a\nb\nd\n", "d"),
        ("a\n", "", "a"),
        ("a\n", "a\nb\n", "nothing, but the output continues: b"),
    ],
)
def test_a_shown_output_is_compared_line_by_line(shown: str, output: str, missing: str | None) -> None:
    assert first_missing_line(shown, output) == missing
