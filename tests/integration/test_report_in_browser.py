"""The report in a real browser: it runs no text of the data, fetches nothing, fits its window and can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnaudit.report import build
from tests.browser import CONTRAST, unfold, watch
from tests.slow_cases import slow_except
from tests.units.report.example_comparisons import hostile_comparison, realistic_comparison
from tests.units.report.example_runs import hostile, realistic

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("reports")
    folders = {
        "one": realistic(root / "one"),
        "two": realistic(root / "two", second_model=True),
        "hostile": hostile(root / "hostile"),
    }
    for folder in folders.values():
        build(folder)
    pages = {name: folder / "report.html" for name, folder in folders.items()}
    pages["comparison"] = realistic_comparison(root / "comparison")
    pages["hostile comparison"] = hostile_comparison(root / "hostile comparison")
    return pages


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    contexts = []

    def open_page(path: Path, *, width: int = 1280, scheme: str = "light", events: list[str] | None = None) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        if events is not None:
            watch(page, events, requests=True)
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["hostile", "hostile comparison"])
def test_nothing_in_hostile_text_runs_or_is_fetched(
    opened: Callable[..., Any], reports: dict[str, Path], name: str
) -> None:
    events: list[str] = []
    page = opened(reports[name], events=events)
    unfold(page)
    for token in page.locator(".tokens span").all()[:20]:
        token.hover(force=True, timeout=2000)
    page.wait_for_timeout(300)
    assert page.evaluate("typeof window.marker") == "undefined"
    page_url = reports[name].as_uri()
    assert [event for event in events if event not in (f"request: {page_url}", "request: data:,")] == []
    assert page.locator("script[src], img, iframe, [onload], [onerror], [onmouseover]").count() == 0
    assert page.locator("script:not([type='text/plain'])").count() == 1  # that of the explorer
    assert page.locator("body").is_visible()
    assert "<script>window.marker=1" in page.inner_text("body")


def test_the_events_of_a_page_that_runs_scripts_are_seen(opened: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text("<script>window.marker=1;alert(1)</script><img src=x onerror='console.log(2)'>")
    events: list[str] = []
    page = opened(tmp_path / "bad.html", events=events)
    page.wait_for_timeout(300)
    assert page.evaluate("window.marker") == 1
    assert {event.split(":")[0] for event in events} >= {"dialog", "request", "console"}


def test_the_content_security_policy_stops_an_injected_script(
    opened: Callable[..., Any], reports: dict[str, Path], tmp_path: Path
) -> None:
    source = reports["one"].read_text(encoding="utf-8")
    bad = "<script>window.marker=1</script><img src='https://example.invalid/x.png'>"
    (tmp_path / "bad.html").write_text(source.replace("</main>", f"{bad}</main>"), encoding="utf-8")
    page = opened(tmp_path / "bad.html")
    assert page.evaluate("typeof window.marker") == "undefined"


@pytest.mark.parametrize(
    "name", slow_except(["one", "two", "hostile", "comparison", "hostile comparison"], ["one", "comparison"])
)
def test_the_page_fits_any_window_without_errors(
    opened: Callable[..., Any], reports: dict[str, Path], name: str
) -> None:
    events: list[str] = []
    page = opened(reports[name], events=events)
    unfold(page)
    for width in (1440, 1280, 768, 390, 375):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
    assert [event for event in events if not event.startswith("request: ")] == []


@pytest.mark.parametrize(
    ("name", "scheme"), [pytest.param("two", "light", marks=pytest.mark.slow), ("two", "dark"), ("comparison", "dark")]
)
def test_all_text_can_be_read(opened: Callable[..., Any], reports: dict[str, Path], name: str, scheme: str) -> None:
    page = opened(reports[name], scheme=scheme)
    unfold(page)
    lowest = page.evaluate(CONTRAST)
    assert lowest[0][0] >= 4.5, lowest


def test_light_and_dark_differ(opened: Callable[..., Any], reports: dict[str, Path]) -> None:
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    assert opened(reports["one"]).evaluate(paper) != opened(reports["one"], scheme="dark").evaluate(paper)


@pytest.mark.parametrize("width", [1280, 375])
def test_no_number_wraps_onto_a_second_line(opened: Callable[..., Any], reports: dict[str, Path], width: int) -> None:
    page = opened(reports["two"], width=width)
    lines = """cells => cells.map(cell => {
      const range = document.createRange(); range.selectNodeContents(cell);
      return [cell.textContent, new Set([...range.getClientRects()].map(r => r.bottom)).size]; })"""
    cells = page.locator(".facts .right").evaluate_all(lines)
    assert len(cells) > 20
    assert [text for text, count in cells if count != 1] == []


@pytest.mark.parametrize("name", [pytest.param("two", marks=pytest.mark.slow), "comparison"])
def test_links_lead_to_the_section_they_name(opened: Callable[..., Any], reports: dict[str, Path], name: str) -> None:
    page = opened(reports[name])
    for link in page.locator("a[href^='#']:not([href^='#instance='])").all():
        target = link.get_attribute("href")
        assert page.locator(target).count() == 1, target
