"""The reproductions that are kept with the code: whole, none of them quick, and their pages those of their records."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.reproduction import pages
from attnaudit.reproduction.papers import PAPERS

FOLDER = Path(__file__).parents[3] / "reports" / "papers"
REPORTS = sorted(FOLDER.glob("*.json"))


def test_there_are_some() -> None:
    assert set(PAPERS) <= {path.stem for path in REPORTS}


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_a_reproduction_is_whole_and_its_page_is_of_it(path: Path) -> None:
    one = pages.read_if_there(path)
    assert one is not None
    assert path.stem == (f"{one.paper}-{one.vectors.name}" if one.vectors else one.paper)
    assert not one.quick
    assert any(row.lines for table in one.tables for row in table.rows)
    assert all(not row.made.quick for table in one.tables for row in table.rows if row.made)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == pages.markdown(one)


def test_the_claims_together_are_of_the_reproductions() -> None:
    assert (FOLDER / pages.TOGETHER).read_text(encoding="utf-8") == pages.together(FOLDER)
