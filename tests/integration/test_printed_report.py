"""The report on paper: a page that decides, then the checks, on few pages."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnaudit.report.run_files import read_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MOST_PAGES = 6
MARGIN = "10mm"


@pytest.mark.parametrize("name", ["demo", "MiniLM"])
def test_a_page_decides_and_the_checks_follow(
    chromium: Any, page_of_run: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
    path = page_of_run(name)
    run = read_run(path.parent)
    page = chromium.new_page()
    page.goto(path.as_uri())
    margin = dict.fromkeys(("top", "bottom", "left", "right"), MARGIN)
    page.pdf(path=tmp_path / "report.pdf", format="A4", margin=margin)
    headline, step = page.inner_text("h1"), page.locator(".next > p").inner_text()
    page.close()
    decision, *rest = [_words(one.extract_text()) for one in pypdf.PdfReader(tmp_path / "report.pdf").pages]
    assert 1 <= len(rest) < MOST_PAGES
    assert _words(headline) in decision
    assert _words(step) in decision
    for check in run.checks:
        assert _words(check.title) in decision
    assert _words("no number here proves that an explanation is true.") in decision
    gates = [check for check in run.checks if check.severity == "gate"]
    first = min(gates, key=lambda gate: not gate.blocks)
    assert rest[0].startswith(_words(first.title))
    assert _words("How these results were produced") in rest[-1]
    assert "Explore" not in "".join((decision, *rest))


def _words(text: str) -> str:
    """Return text without white space and ligatures, because a PDF breaks lines elsewhere and joins letters."""
    return "".join(unicodedata.normalize("NFKC", text).split())
