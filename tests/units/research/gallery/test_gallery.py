"""The gallery: its committed pages are those of its data, and its pictures show what was measured."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from attnaudit import cli
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import ReportError
from attnaudit.instances import Instance
from attnaudit.research.gallery.exhibit_drawing import BLUE, check_svg, exhibit_svg, values_by_outcome
from attnaudit.research.gallery.gallery_pages import gallery_files
from attnaudit.research.gallery.gallery_records import DATA_FILE, Gallery, read_gallery
from attnaudit.research.gallery.measure_exhibits import choose, outcome_of, shown_kinds, shown_text
from attnaudit.research.planted.kind import kinds
from attnaudit.research.validation.population_schema import Entry

FOLDER = Path(__file__).resolve().parents[4] / "docs" / "gallery"
LARGEST = 1_500_000


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    return read_gallery(FOLDER)


def test_the_committed_pages_are_those_of_the_data(gallery: Gallery) -> None:
    committed = {
        path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8")
        for path in FOLDER.rglob("*")
        if path.is_file() and path.name != DATA_FILE
    }
    rendered = gallery_files(gallery)
    assert sorted(committed) == sorted(rendered)
    assert [name for name, text in rendered.items() if committed[name] != text] == []


def test_the_gallery_is_small_and_complete(gallery: Gallery) -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < LARGEST
    pooled = {exhibit.mechanism for exhibit in gallery.exhibits if exhibit.family == "pooled attention"}
    assert pooled == {kind.mechanism for kind in kinds().values() if kind.truth != "trend"}
    assert len({exhibit.mechanism for exhibit in gallery.exhibits if exhibit.family == "transformer"}) >= 19
    assert {paper.name for paper in gallery.papers} == {
        "jain-wallace",
        "meister",
        "tutek-snajder",
        "wen",
        "wiegreffe-pinter",
    }


def test_a_share_of_the_evidence_is_not_called_a_share_of_the_texts(gallery: Gallery) -> None:
    pages = gallery_files(gallery)
    page = pages["attention-right-on-a-part-of-the-evidence.md"].partition("## Right in part")[2].partition("\n## ")[0]
    assert "attention is right on 20% of the evidence in each text" in page
    assert "of the texts" not in page
    assert "right on 20% of the texts" in pages["attention-right-on-a-share-of-the-texts.md"]


def test_every_picture_is_xml_with_its_numbers_in_the_title(gallery: Gallery) -> None:
    for name, text in gallery_files(gallery).items():
        if name.endswith(".svg"):
            title = ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title")
            assert title is not None, name
            assert any(letter.isdigit() for letter in title.text or ""), name


def test_tokens_cannot_become_markup(gallery: Gallery) -> None:
    exhibit = gallery.exhibits[0]
    tokens = ["<script>alert(1)</script>", "](x)", "a|b", *exhibit.text.tokens[3:]]
    changed = msgspec.structs.replace(exhibit, text=msgspec.structs.replace(exhibit.text, tokens=tokens))
    svg = exhibit_svg(changed, {check.check: check.family for check in gallery.checks})
    assert {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()} == {
        "svg",
        "title",
        "rect",
        "text",
        "circle",
    }


def test_bars_are_as_long_as_the_weights(gallery: Gallery) -> None:
    exhibit = gallery.exhibits[0]
    root = ElementTree.fromstring(exhibit_svg(exhibit, {check.check: check.family for check in gallery.checks}))
    widths = [float(bar.attrib["width"]) for bar in root if bar.tag.endswith("rect") and bar.attrib["fill"] == BLUE]
    largest = max(exhibit.text.attention)
    expected = [max(0.5, 175 * value / largest) for value in exhibit.text.attention]
    np.testing.assert_allclose(widths, expected, atol=0.051)


def test_a_chart_has_a_dot_for_every_value(gallery: Gallery) -> None:
    for check in gallery.checks:
        found = values_by_outcome(gallery, check.check)
        svg = check_svg(gallery, check.check)
        assert svg.count("<circle") == sum(map(len, found.values())) > 0


def entry(mechanism: str, kind: str, truth: str, fails: tuple[str, ...] = ("used", "points")) -> Entry:
    row = {"folder": kind, "kind": kind, "truth": truth, "data": "x.csv", "mechanism": mechanism, "fails": fails}
    return msgspec.convert(row | {"share": 0.4} if truth == "graded" else row, Entry)


def test_one_entry_of_each_mechanism_and_outcome_is_shown() -> None:
    entries = [
        entry("b", "b1", "unfaithful", ("points",)),
        entry("b", "b2", "faithful"),
        entry("b", "b3", "faithful"),
        entry("a", "a1", "trend"),
        entry("a", "a2", "unfaithful"),
        entry("a", "a3", "graded"),
    ]
    assert [one.kind for one in choose(entries)] == ["a3", "a2", "b2", "b1"]
    assert [outcome_of(one) for one in entries] == ["elsewhere", "right", "right", None, "unused", "partly"]


def test_the_planted_kinds_show_every_mechanism_and_outcome() -> None:
    planted = [kinds()[name] for name in shown_kinds()]
    assert len({(kind.mechanism, kind.truth, kind.fails) for kind in planted}) == len(planted)
    assert {kind.mechanism for kind in planted} == {
        kind.mechanism for kind in kinds().values() if kind.truth != "trend"
    }


def test_the_shown_text_is_a_typical_short_one() -> None:
    weights = [[1.0, 0, 0, 0, 0], [0.6, 0.4, 0, 0, 0], [0, 0, 0, 0, 1.0], [0.0] * 19 + [1.0]]
    effects = [[2.0] + [0.0] * (len(row) - 1) for row in weights]
    measurements = Measurements(
        model="m",
        data="d",
        seed=0,
        classes=("no", "yes"),
        instances=[Instance(id=str(i), text="t") for i in range(4)],
        sources=list("0123"),
        tokens=[[f"w{k}" for k in range(len(row))] for row in weights],
        labels=np.zeros(4, dtype=np.int64),
        predicted=np.ones(4, dtype=np.int64),
        vectors={
            "attention": [np.array(row) for row in weights],
            "token_effect.held.logits": [np.array(row) for row in effects],
            "probabilities": [np.array([0.25, 0.75])] * 4,
            "rearrangement.centred_logits": [np.array([0.0, 0.0, np.log(3.0), 0.0])] * 4,
        },
    )
    shown = shown_text(measurements)
    assert shown.attention == [0.6, 0.4, 0, 0, 0]
    assert (shown.predicted, shown.probability, shown.shuffled) == ("yes", 0.75, (0.25, 0.5))


def test_a_missing_or_broken_data_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read"):
        read_gallery(tmp_path)
    (tmp_path / DATA_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(ReportError, match="does not contain the data of a gallery"):
        read_gallery(tmp_path)


def test_render_rebuilds_the_pages_and_deletes_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / DATA_FILE).write_bytes((FOLDER / DATA_FILE).read_bytes())
    (tmp_path / "gone.md").write_text("old", encoding="utf-8")
    assert cli.main(["gallery", "--render", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "gone.md").exists()
    assert (tmp_path / "index.md").read_bytes() == (FOLDER / "index.md").read_bytes()
    assert "Wrote" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_plants_audits_and_writes_pages(tmp_path: Path) -> None:
    names = ["first_word_attended", "first_word_bypass", "looks_without_moving"]
    options = [part for name in names for part in ("--kind", name)]
    folders = ["--out", str(tmp_path / "pages"), "--models", str(tmp_path / "models")]
    assert cli.main(["gallery", *options, *folders, "--papers", str(FOLDER.parents[1] / "reports" / "papers")]) == 0
    made = read_gallery(tmp_path / "pages")
    found = {(exhibit.family, exhibit.outcome): exhibit for exhibit in made.exhibits}
    verdicts = {key: {gate.verdict for gate in one.checks if gate.threshold is not None} for key, one in found.items()}
    assert verdicts["pooled attention", "right"] == {"pass"}
    assert "fail" in verdicts["pooled attention", "unused"]
    assert "fail" in verdicts["transformer", "unused"]
    assert (tmp_path / "pages" / "images" / "position-right.svg").is_file()


def test_an_unknown_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["gallery", "--kind", "first_word_attendd", "--out", str(tmp_path), "--models", str(tmp_path)])
    assert status == 2
    assert "first_word_attended" in capsys.readouterr().err
