"""The instance explorer in a real browser: search, filters, order, links, keys, and data in files next to the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from attnaudit.formatting import number, visible
from attnaudit.report import build
from attnaudit.report.explorer import explorer_page
from tests.browser import CONTRAST, becomes, watch
from tests.units.report.example_runs import HOSTILE, hostile
from tests.units.report.explorer_runs import HOSTILE_TEXTS, explorable

pytestmark = pytest.mark.browser

SPLIT = "beaut iful"  # a word of two tokens
LONG = " ".join(f"word{i}" for i in range(400))
TEXTS = (
    *(f"text {i} about {'cats' if i % 5 == 0 else 'dogs'} and more" for i in range(40)),
    LONG,
    *HOSTILE_TEXTS,
    SPLIT,
)
NARROW, WIDE = 390, 1440


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("explorer")
    folders = {
        "one": explorable(root / "one", TEXTS),
        "two": explorable(root / "two", TEXTS, second_model=True),
        "heads": explorable(root / "heads", TEXTS, heads=3),
        "hostile": hostile(root / "hostile"),
    }
    for folder in folders.values():
        build(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explorer_page, "MOST_IN_PAGE", 0)
        patch.setattr("attnaudit.report.explorer.explorer_data.PART_BYTES", 600)
        folders["files"] = explorable(root / "files", TEXTS)
        build(folders["files"])
    return {name: folder / "report.html" for name, folder in folders.items()}


@pytest.fixture
def explore(chromium: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Open the explorer of a page. No error or message may appear in the console by the end of the test."""
    contexts: list[Any] = []
    events: list[str] = []

    def open_page(name: str, fragment: str = "explorer", *, width: int = WIDE, scheme: str = "light") -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        watch(page, events)
        page.goto(f"{pages[name].as_uri()}#{fragment}")
        page.wait_for_selector("#explorer[data-state=ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert events == []


def listed(page: Any) -> list[str]:
    return page.locator("#explorer [role=option] .id").all_inner_texts()


def status(page: Any) -> str:
    return page.inner_text("#explorer .status")


def opened(page: Any) -> str:
    return page.inner_text("#explorer-instance") if page.is_visible("#explorer .opened") else ""


def choose(page: Any, name: str, value: str) -> None:
    page.select_option(f"#explorer [name={name}]", value)


@pytest.mark.parametrize("name", ["one", "files"])
def test_search_finds_words_phrases_and_ids(explore: Callable[..., Any], name: str) -> None:
    page = explore(name)
    for query, count in (
        ("CATS", 8),
        ("cats text", 8),
        ('"dogs and more"', 32),
        ("r39", 1),
        ("word399", 1),
        ("שלום", 1),
        ("beautiful", 1),
    ):
        page.fill("#explorer [name=search]", query)
        becomes(lambda: status(page), f"{count} of {len(TEXTS)} instances")
    page.fill("#explorer [name=search]", "nothing has this")
    becomes(lambda: (status(page), listed(page)), (f"0 of {len(TEXTS)} instances", []))
    page.click("#explorer .reset")
    becomes(lambda: status(page), f"{len(TEXTS)} instances")


def test_filters_leave_what_they_name(explore: Callable[..., Any]) -> None:
    page = explore("one")
    wrong = (len(TEXTS) + 1) // 2  # the label is always "positive", and every other prediction is "negative"
    for name, value, count in (
        ("wrong", "wrong", wrong),
        ("wrong", "right", len(TEXTS) - wrong),
        ("confidence", "at least 0.9", len(TEXTS) - 40),
        ("confidence", "below 0.6", 10),
        ("class", "pnegative", wrong),
        ("class", "lpositive", len(TEXTS)),
        ("worst", "0", 3),
    ):
        page.click("#explorer .reset")
        choose(page, name, value)
        expected = f"{count} of {len(TEXTS)} instances" if count < len(TEXTS) else f"{len(TEXTS)} instances"
        becomes(lambda expected=expected: status(page), expected)
    becomes(lambda: listed(page), ["r2", "r0", "r1"])
    page.click("#explorer .reset")
    choose(page, "length", "long")
    lengths = sorted(len(text.split(" ")) for text in TEXTS)
    long = sum(length >= lengths[int(len(TEXTS) * 0.9)] for length in lengths)
    becomes(lambda: status(page), f"{long} of {len(TEXTS)} instances")


def test_the_list_is_sorted_by_any_measure(explore: Callable[..., Any]) -> None:
    page = explore("one")
    choose(page, "sort", "=uniform.tvd")
    order = sorted(range(len(TEXTS)), key=lambda i: i * 37 % 101)
    becomes(lambda: listed(page)[:5], [f"r{i}" for i in order[:5]])
    choose(page, "order", "down")
    becomes(lambda: listed(page)[:5], [f"r{i}" for i in order[::-1][:5]])
    last = page.locator("#explorer [role=option]").first.locator(".number").last
    assert last.inner_text() == number(order[-1] * 37 % 101 / 100)


@pytest.mark.parametrize("name", ["one", "files"])
def test_a_link_opens_its_instance(explore: Callable[..., Any], name: str) -> None:
    page = explore(name, "instance=r7")
    becomes(lambda: opened(page), "r7")
    assert page.locator("#explorer .opened").bounding_box()["y"] < 900
    shown = page.locator("#explorer .gloss thead th bdi").all_inner_texts()
    assert shown == TEXTS[7].split(" ")
    rows = page.locator("#explorer .gloss").first.locator("th[scope=row] span").all_inner_texts()
    assert rows == ["Attention", "Gradient norm", "Leave-one-out", "Effect", "Adversarial"]
    page.click("#explorer .step-on")
    becomes(lambda: (opened(page), page.url.split("#")[1]), ("r8", "instance=r8"))
    page.go_back()
    becomes(lambda: opened(page), "r7")
    page.evaluate("location.hash = 'instance=nobody'")
    becomes(lambda: status(page), "This run has no instance nobody.")


def test_the_report_links_to_the_explorer(explore: Callable[..., Any]) -> None:
    page = explore("two")
    page.locator(".map .explorer-link").first.click()
    becomes(lambda: opened(page), "r2")


def test_everything_can_be_done_with_keys(explore: Callable[..., Any]) -> None:
    page = explore("one")
    keys = page.keyboard
    assert page.evaluate("document.activeElement.className") == "list"
    active = "document.querySelector('#explorer [role=option][aria-selected=true] .id').textContent"
    for key, expected in (("ArrowDown", "r1"), ("j", "r2"), ("k", "r1"), ("End", f"r{len(TEXTS) - 1}"), ("Home", "r0")):
        keys.press(key)
        assert page.evaluate(active) == expected
        assert page.evaluate("document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))")
    keys.press("j")
    keys.press("Enter")
    becomes(lambda: (opened(page), page.evaluate("document.activeElement.id")), ("r1", "explorer-instance"))
    keys.press("j")
    becomes(lambda: opened(page), "r2")
    page.locator("#explorer .gloss th[tabindex='0']").focus()
    keys.press("ArrowRight")
    assert page.inner_text("#explorer .readout").startswith("Token 2 of 6 2: Attention ")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    keys.press("/")
    assert page.evaluate("document.activeElement.name") == "search"
    keys.type("cats/j")
    assert page.input_value("#explorer [name=search]") == "cats/j"
    page.fill("#explorer [name=search]", "")
    keys.press("Escape")
    assert page.evaluate("document.activeElement.className") == "list"
    page.click("#explorer .close")
    becomes(lambda: opened(page), "")


def test_keys_outside_the_explorer_are_left_alone(explore: Callable[..., Any]) -> None:
    page = explore("one", "")
    page.locator("#verdicts a").first.focus()
    page.keyboard.press("/")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('#explorer')") is None


def test_the_slider_goes_over_the_measured_values_of_epsilon(explore: Callable[..., Any]) -> None:
    page = explore("one", "instance=r3")
    becomes(lambda: opened(page), "r3")
    slider = page.locator("#explorer [name=epsilon]")
    assert (slider.get_attribute("max"), slider.get_attribute("aria-valuetext")) == ("1", "TVD 0.01")
    becomes(lambda: "JSD of 0.250" in page.inner_text("#explorer .adversary"), True)
    row = page.locator("#explorer .gloss tr.adversarial td")
    before = row.all_text_contents()
    slider.fill("1")
    becomes(lambda: slider.get_attribute("aria-valuetext"), "TVD 0.1")
    becomes(lambda: row.all_text_contents() != before, True)


def test_a_cell_of_the_matrix_shows_the_text_under_its_head(explore: Callable[..., Any]) -> None:
    page = explore("heads", "instance=r3")
    becomes(lambda: opened(page), "r3")
    cells = page.locator("#explorer .heads button")
    assert cells.count() == 9
    row = page.locator("#explorer .gloss tr.attention td")
    before = row.all_text_contents()
    page.locator("#explorer .heads button[data-layer='2'][data-head='1']").click()
    becomes(lambda: page.input_value("#explorer [name=reading]"), "own@layer=2,heads=1")
    becomes(lambda: row.all_text_contents() != before, True)
    assert page.inner_text("#explorer .readout").startswith("Token 1 of 6 text: Attention, own@layer=2,heads=1 ")
    assert not page.is_visible("#explorer [name=epsilon]")  # the adversary was measured for another reading
    pressed = page.locator("#explorer .heads [aria-pressed=true]")
    becomes(lambda: pressed.get_attribute("data-layer"), "2")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.layer") == "1"


def test_two_models_are_shown_over_the_same_text(explore: Callable[..., Any]) -> None:
    page = explore("two", "instance=r3&model=other&data=movie-reviews&seed=0")
    becomes(lambda: opened(page), "r3")
    models = page.locator("#explorer .gloss").first.locator("th[scope=row] small").all_inner_texts()
    assert models == ["other", "demo"] * 5
    page.evaluate("location.hash = location.hash.replace('r3', 'r6')")
    becomes(
        lambda: page.locator("#explorer .texts h4").all_inner_texts(),
        ["other on movie-reviews", "demo on movie-reviews"],
    )
    tables = page.locator("#explorer .gloss")
    assert [tables.nth(i).locator("thead th").count() for i in (0, 1)] == [7, 6]
    page.check("#explorer [name=disagree]")
    differ = sum((i % 2 == 0) != (i % 3 == 2) for i in range(len(TEXTS)))
    becomes(lambda: status(page), f"{differ} of {len(TEXTS)} instances")
    choose(page, "compare", "")
    becomes(lambda: page.locator("#explorer .gloss").first.locator("th[scope=row]").count(), 5)


def test_a_long_text_is_folded(explore: Callable[..., Any]) -> None:
    page = explore("one", "instance=r40", width=NARROW)
    becomes(lambda: opened(page), "r40")
    tokens = page.locator("#explorer .gloss thead th[data-i]")
    assert tokens.count() == 100
    slider = page.locator("#explorer .folded input")
    slider.fill("300")
    assert tokens.first.inner_text() == "word300"
    assert "Tokens 301 to 400 of 400" in page.inner_text("#explorer .where")
    page.locator("#explorer .gloss th[data-i='300']").click()
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#explorer .readout").startswith("Token 300 of 400 word299:")
    page.click("#explorer .where button")
    assert tokens.count() == 400


def test_hostile_text_is_shown_as_text(explore: Callable[..., Any]) -> None:
    page = explore("hostile", f"instance={quote(HOSTILE, safe='')}")
    becomes(lambda: opened(page) != "", True)
    assert page.evaluate("document.getElementById('explorer-instance').textContent") == visible(HOSTILE)
    page.evaluate("document.querySelectorAll('#explorer details').forEach(one => { one.open = true; })")
    page.wait_for_timeout(200)
    assert page.evaluate("typeof window.marker") == "undefined"
    assert page.locator("#explorer :is(script, img, iframe, style, svg, a)").count() == 0


def test_right_to_left_text_runs_from_right_to_left(explore: Callable[..., Any]) -> None:
    hebrew = TEXTS.index(HOSTILE_TEXTS[3])
    page = explore("one", f"instance=r{hebrew}")
    becomes(lambda: opened(page), f"r{hebrew}")
    left = page.locator("#explorer .gloss thead th[data-i]").evaluate_all(
        "all => all.map(th => th.getBoundingClientRect().x)"
    )
    assert left == sorted(left, reverse=True)
    assert len(left) == 4


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (WIDE, "light"),
        (NARROW, "dark"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((WIDE, "dark"), (768, "light"), (768, "dark"), (NARROW, "light"))
        ),
    ],
)
def test_the_explorer_fits_its_window_and_can_be_read(explore: Callable[..., Any], width: int, scheme: str) -> None:
    page = explore("two", "instance=r3", width=width, scheme=scheme)
    becomes(lambda: opened(page), "r3")
    page.evaluate("document.querySelectorAll('#explorer details').forEach(one => { one.open = true; })")
    page.check("#explorer [name=numbers]")
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lowest = page.evaluate(CONTRAST)
    assert lowest[0][0] >= 4.5, lowest


def test_a_missing_file_is_named(
    explore: Callable[..., Any], pages: dict[str, Path], tmp_path: Path, chromium: Any
) -> None:
    copy = tmp_path / "report.html"
    copy.write_bytes(pages["files"].read_bytes())
    page = chromium.new_page()
    page.goto(copy.as_uri())
    page.wait_for_selector("#explorer[data-state=failed]")
    assert status(page) == (
        "The file explorer/case0-index.js is missing. Copy the folder explorer together with this page."
    )
    (tmp_path / "explorer").mkdir()
    old = (pages["files"].parent / "explorer" / "case0-index.js").read_text().replace('Part("', 'Part("old')
    (tmp_path / "explorer" / "case0-index.js").write_text(old)
    page.reload()
    page.wait_for_selector("#explorer[data-state=failed]")
    assert "belongs to another report" in status(page)
    page.close()


def test_without_javascript_the_report_is_complete(chromium: Any, pages: dict[str, Path]) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["one"].as_uri())
    assert not page.is_visible("#explorer")
    text = page.inner_text("body")
    assert "The instance explorer needs JavaScript." in text
    assert "Verdicts" in text
    assert "Worst instances" in text
    context.close()
