"""remedies.json: what `attnaudit reproduce` writes and `attnaudit validate` reads."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.errors import ReportError
from attnaudit.research.reproduction.remedies_file import Remedy, first_of_each_option, read_remedies, remedies_text
from attnaudit.research.reproduction.render_reports import remedies_of
from attnaudit.research.validation.validate import ValidationOptions, validate
from tests.units.research.reproduction.synthetic_reports import reproduction
from tests.units.research.reproduction.test_jain_wallace import VECTORS

TYING = Remedy(question="used", option="tying", words='tie each "state" \\ well, δ')
MLM = Remedy(question="used", option="mlm", words="mask")


def test_what_is_written_is_read_back_one_remedy_per_line(tmp_path: Path) -> None:
    path = tmp_path / "remedies.json"
    path.write_text(remedies_text([TYING, MLM]), encoding="utf-8")
    assert read_remedies(path) == [TYING, MLM]
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4
    path.write_text(remedies_text([]), encoding="utf-8")
    assert read_remedies(path) == []


def test_the_first_remedy_for_an_option_counts() -> None:
    late = msgspec.structs.replace(TYING, words="late")
    elsewhere = msgspec.structs.replace(TYING, question="points")
    assert first_of_each_option([TYING, MLM, late, elsewhere]) == [TYING, MLM, elsewhere]


def test_remedies_measured_with_word_vectors_on_the_papers_corpora_come_first() -> None:
    def report(words: str, *, vectors: bool = False, embedded: bool = False) -> object:
        remedy = msgspec.structs.replace(TYING, words=words)
        data = {"movie-reviews" if embedded else "sst": {"train": 9}}
        return msgspec.structs.replace(
            reproduction(), remedies=(remedy,), data=data, vectors=VECTORS if vectors else None
        )

    reports = {
        "a-embedded": report("embedded with vectors", vectors=True, embedded=True),
        "b": report("random"),
        "c": report("vectors", vectors=True),
    }
    assert [remedy.words for remedy in remedies_of(reports)] == ["vectors"]  # type: ignore[arg-type]
    del reports["c"]
    assert [remedy.words for remedy in remedies_of(reports)] == ["random"]  # type: ignore[arg-type]


def test_a_file_that_is_missing_or_holds_something_else_stops_a_validation_before_it_measures(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"paper": "meister"}', encoding="utf-8")
    for name, problem in (("nothing", "cannot be read"), ("other", "the file is not a list of remedies")):
        options = ValidationOptions(population=tmp_path, out=tmp_path, remedies=[tmp_path / f"{name}.json"])
        with pytest.raises(ReportError, match=rf"{name}\.json: {problem}.*`attnaudit reproduce` writes"):
            validate(options)
