"""The ten questions of docs/reading_the_report.md: the first screen answers each, or at most three clicks do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnaudit.formatting import number, plural
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.report.run_files import read_run
from tests.browser import becomes, watch

pytestmark = pytest.mark.browser

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reading_the_report.md"
SCREENS = ((1440, 900), (768, 1024), (390, 844))
MOST_CLICKS = 3


class Visit:
    """A reader who opens a report, and clicks at most three times."""

    def __init__(self, page: Any, run: RunRecord, size: tuple[int, int]) -> None:
        self.page = page
        self.run = run
        self.width, self.height = size
        self.clicks = 0

    def click(self, selector: str, *, text: str = "", position: Any = None) -> None:
        """Click on the first element that is visible and matches, at a position in it or in its middle."""
        self.clicks += 1
        assert self.clicks <= MOST_CLICKS
        self.page.locator(selector, has_text=text or None).locator("visible=true").first.click(position=position)

    def on_first_screen(self, selector: str) -> str:
        """Return the text of an element that is wholly in view before the reader scrolls."""
        assert self.page.evaluate("scrollY") == 0
        box = self.page.locator(selector).first.bounding_box()
        assert box["x"] >= 0
        assert box["y"] >= 0
        assert box["x"] + box["width"] <= self.width
        assert box["y"] + box["height"] <= self.height
        found: str = self.page.inner_text(selector)
        return found

    def read(self, selector: str) -> str:
        """Return the text of a visible element, to which the reader may have to scroll."""
        found = self.page.locator(selector).first
        assert found.is_visible()
        text: str = found.inner_text()
        return text

    def gate(self, verdict: str) -> CheckRecord:
        return next(one for one in self.run.checks if one.severity == "gate" and one.verdict == verdict)

    def section(self) -> str:
        """Return a selector of the section that the last click led to, whose heading is in view."""
        anchor: str = self.page.evaluate("location.hash")
        becomes(lambda: 0 <= self.page.locator(f"{anchor} h2").bounding_box()["y"] < self.height, True)
        return anchor


@pytest.fixture(params=SCREENS, ids=[str(width) for width, _ in SCREENS])
def visit(
    request: pytest.FixtureRequest, chromium: Any, page_of_run: Callable[[str], Path]
) -> Iterator[Callable[[str], Visit]]:
    """Open the report of a run on a screen. Nothing may be logged by the end of the test."""
    width, height = request.param
    context = chromium.new_context(viewport={"width": width, "height": height})
    events: list[str] = []

    def start(name: str) -> Visit:
        path = page_of_run(name)
        page = context.new_page()
        watch(page, events)
        page.goto(path.as_uri())
        page.wait_for_selector("#explorer[data-state=ready]", state="attached")
        return Visit(page, read_run(path.parent), (width, height))

    yield start
    context.close()
    assert events == []


def test_the_documentation_answers_ten_questions() -> None:
    numbered = re.findall(r"^### (\d+)\. (.+\?)", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [int(place) for place, _ in numbered] == list(range(1, 11))
    tested = {name.split("_")[2] for name in globals() if name.startswith("test_question_")}
    assert tested == {place for place, _ in numbered}


@pytest.mark.slow
def test_question_1_may_it_be_released_and_why_not(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    headline = reader.on_first_screen("h1")
    gate = reader.gate("fail")
    assert headline.startswith(f"Blocked. {gate.when_failed}")
    value = reader.on_first_screen("h1 + p")
    assert number(gate.value) in value
    assert gate.requirement is not None
    assert f"{gate.requirement.value:g}" in value
    assert reader.on_first_screen("ul.counts").split("\n")[:2] == ["2 passed", "1 failed"]


@pytest.mark.slow
def test_question_2_what_to_do_next_and_at_what_cost(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    step = reader.on_first_screen(".next")
    assert "attnaudit train" in step
    assert re.search(r"accuracy 0\.\d+ → 0\.\d+", step)
    reader.click(".next summary")
    assert len(reader.page.locator(".next details p").all_inner_texts()) == 2
    assert all("accuracy" in other for other in reader.page.locator(".next details p").all_inner_texts())


@pytest.mark.slow
def test_question_3_how_accurate_on_how_many_texts(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    (measured,) = reader.run.measured
    scores = reader.on_first_screen(".scores")
    assert f"Accuracy {number(measured.accuracy)}, macro F1 {number(measured.macro_f1)}" in scores
    assert f"on {plural(measured.labelled, 'labelled text')}" in scores


@pytest.mark.slow
def test_question_4_could_more_data_change_the_verdict(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    gate = reader.gate("fail")
    reader.click(".verdicts th a", text=gate.title)
    finding = reader.read(f"{reader.section()} .finding")
    assert gate.interval is not None
    assert f"the 95% interval runs from {number(gate.interval.low)} to {number(gate.interval.high)}" in finding
    assert "With 80% probability, the check fails if the true value is at least" in finding


@pytest.mark.slow
def test_question_4_where_the_verdict_is_open_the_first_screen_says_how_many_rows_decide(
    visit: Callable[[str], Visit],
) -> None:
    reader = visit("inconclusive")
    assert "would probably decide" in reader.on_first_screen(".next")
    assert re.search(r"about [\d,]+ instances", reader.on_first_screen(".next"))


@pytest.mark.slow
def test_question_5_which_kinds_of_texts_cause_the_failure(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    gate = reader.gate("fail")
    reader.click(".verdicts th a", text=gate.title)
    section = reader.section()
    captions = reader.page.locator(f"{section} .breakdowns caption").all_inner_texts()
    assert captions == ["By confidence", "By length", "By predicted class", "By label"]
    parts = [part for breakdown in gate.breakdowns for part in breakdown.parts]
    rows = reader.page.locator(f"{section} .breakdowns tbody tr").all_inner_texts()
    assert [row.split("\t")[-1] for row in rows] == [number(part.n) for part in parts]


@pytest.mark.slow
def test_question_6_a_text_with_its_prediction_before_and_after(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    gate = reader.gate("fail")
    reader.click(".verdicts th a", text=gate.title)
    card = f"{reader.section()} .instances .map"
    assert gate.typical[0].instance in reader.read(f"{card} .caption")
    assert re.search(r"probability [\d.]+; with rearranged weights [\d.]+", reader.read(f"{card} .caption"))
    reader.click(f"{card} .explorer-link")
    becomes(lambda: reader.page.inner_text("#explorer-instance"), gate.typical[0].instance)


@pytest.mark.slow
def test_question_7_what_the_verdict_is_about_and_how_to_repeat_it(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    run = reader.run
    reader.click(".jumps a", text="How these results were produced")
    section = reader.read(reader.section())
    assert run.effective_policy is not None
    for known in (run.models[0].sha256, run.data[0].sha256, run.effective_policy.sha256, run.attnaudit):
        assert known in section
    assert "--audit-max-instances" in reader.read("#provenance .command")


@pytest.mark.slow
def test_question_8_where_attention_was_in_wrong_predictions(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    (measured,) = reader.run.measured
    assert measured.accuracy is not None
    wrong = measured.labelled - round(measured.accuracy * measured.labelled)
    reader.on_first_screen(".scores a")
    reader.click(".scores a", text=plural(wrong, "wrong prediction"))
    becomes(lambda: reader.page.inner_text("#explorer .status"), f"{wrong} of {measured.labelled} instances")
    reader.click("#explorer [role=option]")
    becomes(lambda: "wrong" in reader.page.inner_text("#explorer .facts-line"), True)
    assert len(reader.page.locator("#explorer .gloss tr.attention td").all()) >= 1


@pytest.mark.slow
def test_question_9_attention_and_other_measures_of_one_text(visit: Callable[[str], Visit]) -> None:
    reader = visit("demo")
    reader.click(".jumps a", text="Explore")
    reader.click("#explorer [role=option]")
    becomes(lambda: "JSD of" in reader.page.inner_text("#explorer .adversary"), True)
    names = reader.page.locator("#explorer .gloss").first.locator("th[scope=row]").all_inner_texts()
    shown = [name.split("\n")[0] for name in names]
    assert shown == ["Attention", "Gradient norm", "Leave-one-out", "Effect", "Adversarial"]
    before = reader.page.inner_text("#explorer .adversary")
    slider = reader.page.locator("#explorer [name=epsilon]").bounding_box()
    reader.click("#explorer [name=epsilon]", position={"x": slider["width"] - 4, "y": slider["height"] / 2})
    becomes(lambda: reader.page.inner_text("#explorer .adversary") not in ("", before), True)


@pytest.mark.slow
def test_question_10_which_head_differs_and_what_it_attends_to(visit: Callable[[str], Visit]) -> None:
    reader = visit("MiniLM")
    sweep = next(one for one in reader.run.checks if one.matrix is not None)
    reader.click(".verdicts th a", text=sweep.title)
    cells = reader.page.locator(f"{reader.section()} svg .cell-number").all_text_contents()
    assert len(cells) == 6 * 12
    assert len(set(cells)) > 6

    reader = visit("MiniLM")
    reader.click(".jumps a", text="Explore")
    reader.click("#explorer [role=option]")
    becomes(lambda: reader.page.locator("#explorer .heads button").count(), 6 * 12)
    row = reader.page.locator("#explorer .gloss tr.attention td")
    before = row.all_text_contents()
    reader.click("#explorer .heads button[data-layer='0'][data-head='3']")
    becomes(lambda: row.all_text_contents() != before, True)
    assert "layer=0,heads=3" in reader.page.inner_text("#explorer .readout")
