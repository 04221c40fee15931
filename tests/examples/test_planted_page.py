"""docs/planted.md says how many models of each kind are built, and which kinds are trained."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from attnaudit.research.planted.planted_population import kinds, plans

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "planted.md").read_text(encoding="utf-8")


def names(beginning: str, end: str) -> list[str]:
    return re.findall(r"`(\w+)`", PAGE.partition(beginning)[2].partition(end)[0])


def test_the_page_lists_the_trained_kinds() -> None:
    known = kinds().values()
    trained = sorted(kind.name for kind in known if not kind.compiled and kind.truth != "trend")
    assert names("The trained kinds are", "The kinds of unknown truth") == trained
    flat = " ".join(PAGE.split())
    trend = re.findall(r"`(\w+)`", flat.partition("are trained as well: ")[2].partition(" All other kinds")[0])
    assert trend == sorted(kind.name for kind in known if kind.truth == "trend")


@pytest.mark.parametrize(("options", "seeds"), [("", 6), (" --quick", 2)])
def test_the_page_says_how_many_models_are_built(options: str, seeds: int) -> None:
    (line,) = re.findall(rf"^attnaudit plant --out DIR{options} +# (.*)$", PAGE, re.MULTILINE)
    built = Counter(plan.kind for plan in plans(seeds=seeds))
    found = {kind.compiled if kind.truth != "trend" else None: built[kind.name] for kind in kinds().values()}
    assert f"{found[True]} models of each compiled kind" in line
    others = f"{found[False]} of each trained kind, {found[None]} of each of unknown truth"
    assert others in line or (found[False] == found[None] and f"{found[False]} of each other kind" in line)


def test_the_example_of_one_kind_names_its_number_of_models() -> None:
    (kind, number) = re.findall(r"^attnaudit plant --out DIR --kind (\w+) .*# (\d+) models", PAGE, re.MULTILINE)[0]
    assert len(plans(seeds=6, only=[kind])) == int(number)
