"""The reproductions that are kept with the code: whole, none of them quick, and their pages those of their records."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.checks.policy import load_policy
from attnaudit.research.reproduction import reproduction_pages
from attnaudit.research.reproduction.papers import PAPERS
from attnaudit.research.validation.validate import _reproduced

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "reports" / "papers"
#: Reports whose remedies the default policy names (docs/validation.md).
NAMED = ("jain-wallace-glove.6B.50d", "tutek-snajder-glove.6B.50d", "tutek-snajder")
REPORTS = sorted(FOLDER.glob("*.json"))


def test_there_are_some() -> None:
    assert set(PAPERS) <= {path.stem for path in REPORTS}


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_a_reproduction_is_whole_and_its_page_is_of_it(path: Path) -> None:
    one = reproduction_pages.read_if_there(path)
    assert one is not None
    assert path.stem == (f"{one.paper}-{one.vectors.name}" if one.vectors else one.paper)
    assert not one.quick
    assert any(row.lines for table in one.tables for row in table.rows)
    assert all(not row.made.quick for table in one.tables for row in table.rows if row.made)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == reproduction_pages.markdown(one)


def test_the_default_policy_names_the_remedies_of_these_reports() -> None:
    policy = load_policy(ROOT / "audits" / "policy.toml").record
    named = {question.name: question.remedies for question in policy.questions}
    remedies = _reproduced([FOLDER / f"{stem}.json" for stem in NAMED])
    assert {remedy.option for remedy in remedies} >= {"vectors", "tying"}
    assert all(remedy.words in named[remedy.question] for remedy in remedies)
    assert sum("done again" in words for words in named["used"]) == len(remedies)


def test_the_claims_together_are_of_the_reproductions() -> None:
    assert (FOLDER / reproduction_pages.TOGETHER).read_text(encoding="utf-8") == reproduction_pages.together(FOLDER)
