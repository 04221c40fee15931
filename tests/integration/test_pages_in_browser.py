"""Every page in Chromium: it fits three widths and paper, logs nothing, and violates no WCAG rule of level A or AA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import axe
from tests.browser import unfold, watch
from tests.opened_runs import RUNS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WIDTHS = (1440, 768, 390)
PAPER = 718  # CSS pixels between the margins of an A4 page, at 96 per inch


@pytest.fixture(scope="module", params=list(RUNS))
def path(request: pytest.FixtureRequest, page_of_run: Callable[[str], Path]) -> Path:
    return page_of_run(request.param)


@pytest.fixture
def opened(chromium: Any, path: Path) -> Iterator[Callable[..., Any]]:
    """Open the page, with an instance in its explorer. Nothing may be logged by the end of the test."""
    contexts: list[Any] = []
    events: list[str] = []

    def open_page(width: int, scheme: str = "light", media: str = "screen") -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        watch(page, events)
        page.goto(path.as_uri())
        if page.locator("#explorer").count():
            page.wait_for_selector("#explorer[data-state=ready]")
            page.locator("#explorer [role=option]").first.click()
            page.wait_for_selector("#explorer .gloss td[data-i]", state="attached")
        page.emulate_media(media=media)
        unfold(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert events == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_can_be_used_by_everyone(opened: Callable[..., Any], width: int, scheme: str) -> None:
    page = opened(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert axe.violations(page) == []


def test_it_fits_paper(opened: Callable[..., Any]) -> None:
    page = opened(PAPER, media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    assert axe.violations(page) == []


def test_axe_finds_a_violation(chromium: Any) -> None:
    page = chromium.new_page()
    page.set_content("<html lang='en'><title>t</title><main><img src='data:,'><p style='color:#aaa'>faint</p></main>")
    assert {one["rule"] for one in axe.violations(page)} == {"image-alt", "color-contrast"}
    page.close()
