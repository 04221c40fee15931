"""Pages with an example from start to finish: following a page in an empty folder gives what it shows."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from tests.conftest import newest_run
from tests.examples.console_transcript import run_page, steps

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Page -> the model or the data of each audit, and the names of a unit and of a row in its reports.
PAGES = {
    "bags.md": (["digit-bags on bags", "digit-bags on bags"], "vector", "bag"),
    "pictures.md": (["model on digits"], "patch", "picture"),
    "pooling.md": (["hops on test", "levels on test"], "token", "text"),
    "recordings.md": (["model on tones"], "patch", "recording"),
    "sources.md": (["checkpoint on questions"], "passage", "prompt"),
    "targets.md": (
        [
            "ratings on test",
            "label[insult] on label",
            "label[toxic] on label",
            "score on score",
            "tag on tag",
            "span on span",
            "string on string",
        ],
        "token",
        "text",
    ),
}
#: Texts about tokens that are not the units of an audit.
OTHER_TOKENS = re.compile(
    r"special tokens|allowed tokens|tokens of (?:the passages|a passage)|tokens that (?:are left|belong to)"
    r"|tokens? per word|texts\)|'text'"  # the last two are in the results of the adapter checks
)


def read(page: str) -> str:
    """Return the text that a report shows, with its labels."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    labels = re.findall(r'(?:aria-label|placeholder)="([^"]*)"', page)
    return html.unescape(" ".join([re.sub(r"<[^>]+>", " ", page), *labels]))


@pytest.mark.parametrize("page", PAGES)
def test_every_audit_of_a_page_needs_nothing_but_the_page(page: str) -> None:
    """The commands come after the files that they read, and `attnaudit init` writes the folder audits/."""
    found = list(steps((DOCS / page).read_text(encoding="utf-8")))
    files = [name for name, _ in found if not name.startswith("$ ")]
    for command in (name[2:] for name, _ in found if name.startswith("$ ")):
        first = found.index(next(step for step in found if step[0] == f"$ {command}"))
        if command.startswith("pytest"):
            assert "$ attnaudit init" in [name for name, _ in found[:first]]
        needed = re.findall(r"\S+\.(?:py|toml)\b", command)
        assert set(needed) <= set(files)
        assert all([name for name, _ in found].index(one) < first for one in needed)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_following_a_page_gives_what_it_shows(page: str, tmp_path: Path) -> None:
    problems = run_page((DOCS / page).read_text(encoding="utf-8"), tmp_path)
    assert problems == [], "\n\n".join(problems)
    audits, unit, row = PAGES[page]
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("reports/*/audit.json")]
    measured = [f"{one['model']} on {one['data']}" for run in runs for one in run["measured"]]
    assert sorted(measured) == sorted(audits)
    report = read((newest_run(tmp_path) / "report.html").read_text(encoding="utf-8"))
    assert f"Values per {unit}" in report
    assert f"Search the {row}s and ids" in report
    if unit != "token":
        assert re.findall(r".*\b(?:[Tt]okens?|[Tt]exts?)\b.*", OTHER_TOKENS.sub("", report)) == []
