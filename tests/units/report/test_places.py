"""Units with a place: the report draws them over their picture, or over a line of time."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from PIL import Image

from attnaudit.records import UnitNames
from attnaudit.report import build
from attnaudit.report.pictures import LONGEST_SIDE, EmbeddedPicture, PictureStore, data_uri
from attnaudit.report.placed_units import MOST_UNITS, STEPS, placed_row
from tests.units.report.example_places import run_with_places, write_picture


def _page(folder: Path) -> str:
    build(folder)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_a_picture_is_embedded_once_and_drawn_with_its_patches(tmp_path: Path) -> None:
    page = _page(run_with_places(tmp_path / "run"))
    assert page.count("data:image/jpeg;base64,") == 1
    assert page.count('<symbol id="picture-0"') == 1
    assert page.count('<use href="#picture-0"') > 4
    labels = re.findall(r'aria-label="Attention\. Largest values: (row \d, column \d: [\d.]+(?:; )?)', page)
    assert labels
    assert "Values as a table" in page
    assert "token-row attention" not in page


def _read(page: str) -> str:
    """Return the text that a page shows, with its tooltips and labels."""
    page = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    labels = re.findall(r'(?:title|aria-label|placeholder)="([^"]*)"', page)
    return html.unescape(" ".join([re.sub(r"<[^>]+>", " ", page), *labels]))


def test_a_report_on_pictures_names_patches_and_pictures(tmp_path: Path) -> None:
    text = _read(_page(run_with_places(tmp_path / "run", names=UnitNames(unit="patch", row="picture"))))
    assert re.findall(r"[^.]*\b(?:[Tt]okens?|[Tt]exts?)\b[^.]*", text.replace("special tokens", "")) == []
    assert "Values per patch" in text
    assert "The darker a patch" in text
    assert "Search the pictures and ids" in text
    other = _read(_page(run_with_places(tmp_path / "other")))
    assert "The darker a token" in other
    assert "Search the texts and ids" in other


def test_a_recording_is_drawn_over_a_line_of_time(tmp_path: Path) -> None:
    page = _page(run_with_places(tmp_path / "run", pictures=False))
    assert "data:image/" not in page
    assert 'class="places timeline"' in page
    assert 'preserveAspectRatio="none"' in page
    assert re.findall(r"<span[^>]*>(\d+ s)</span>", page)[:3] == ["0 s", "5 s", "10 s"]


def test_a_changed_or_missing_picture_is_not_shown(tmp_path: Path) -> None:
    folder = run_with_places(tmp_path / "run")
    Image.new("RGB", (90, 60)).save(folder / "picture.png")
    assert "was changed or moved after the audit" in _page(folder)
    (folder / "picture.png").unlink()
    page = _page(folder)
    assert "was changed or moved after the audit" in page
    assert "data:image/" not in page


def test_the_size_of_pictures_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = Image.effect_noise((4000, 3000), 80).convert("RGB")
    uri = data_uri(large)
    assert max(large.size) == LONGEST_SIDE
    assert len(uri) < 80_000
    store = PictureStore()
    files = [tmp_path / f"{number}.png" for number in range(3)]
    hashes = [write_picture(path) for path in files]
    monkeypatch.setattr("attnaudit.report.pictures.MOST_BYTES", 10)
    found = [store.of(str(path), sha256) for path, sha256 in zip(files, hashes, strict=True)]
    assert [bool(one.uri) for one in found] == [True, False, False]
    assert "many pictures" in found[1].note
    assert store.of(str(files[0]), hashes[0]) is found[0]
    assert found[2].aspect == pytest.approx(60 / 90)


def test_an_array_is_no_picture() -> None:
    found = PictureStore().of("/data/slide.npy", "")
    assert found == EmbeddedPicture(note=found.note)
    assert "slide.npy is not a picture" in found.note


def test_units_of_one_colour_are_one_path() -> None:
    boxes = [(0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 0.5, 1.0)]
    row = placed_row("Attention", [0.5, 0.5], ["left", "right"], heats=[1.0, 1.0], boxes=boxes, aspect=0.5)
    assert row.height == 50
    assert row.shades == ((1.0, "M0.00 0.00h50.00v50.00h-50.00zM50.00 0.00h50.00v50.00h-50.00z"),)
    assert row.label == "Attention. Largest values: left: 0.5000; right: 0.5000."


def test_negative_values_are_drawn_apart_and_undefined_ones_not_at_all() -> None:
    boxes = [(0.0, 0.0, 0.2, 0.2)] * 3
    row = placed_row("Effect", [0.5, -0.5, None], ["a", "b", "c"], heats=[1.0, 0.5, 0.0], boxes=boxes)
    assert [opacity for opacity, _ in row.shades] == [1.0]
    assert [opacity for opacity, _ in row.negative] == [0.5]
    assert [one.text for one in row.outlines] == ["a: 0.5000", "b: −0.5000"]


def test_many_units_stay_small() -> None:
    count = 10_000
    boxes = [((i % 100) / 100, (i // 100) / 100, 0.01, 0.01) for i in range(count)]
    row = placed_row("Attention", [1 / count] * count, ["part"] * count, heats=[1 / 6] * count, boxes=boxes)
    assert row.undrawn == count - MOST_UNITS
    assert sum(len(path) for _, path in row.shades) < 40 * MOST_UNITS
    assert len(row.shades) <= STEPS
