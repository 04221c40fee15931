"""The rows and the pictures of a long table are folded, in one group per corpus."""

from __future__ import annotations

import re

import msgspec
import pytest

from attnaudit.research.reproduction.figures.figure_records import Figure, Strip, Strips
from attnaudit.research.reproduction.pages.page_parts import MOST_ROWS, MOST_SHOWN
from attnaudit.research.reproduction.pages.paper_pages import html
from tests.units.research.reproduction.synthetic_reports import reproduction, row


def page(*, rows: int, figures: int) -> str:
    """A page with as many rows of SST and as many figures of them, one row of IMDb, and a figure of all rows."""
    names = [f"sst/{n}" for n in range(rows)]
    one = reproduction(t=[*(row(name, {"tau": [0.5]}) for name in names), row("imdb/0", {"tau": [0.5]})])
    strips = Strips(x_label="a", low=0, high=1, strips=[Strip(label="a", values=[0.2], paper=0.1, counts=True)])
    drawn = [
        Figure(name=f"f {n}", row=name, title=f"Figure {n} of {name}", caption="C.", strips=strips)
        for n, name in enumerate(["", *(f"sst/{n}" for n in range(figures)), "imdb/0"])
    ]
    table = msgspec.structs.replace(one.tables[0], figures=drawn)
    return html({"synthetic": msgspec.structs.replace(one, tables=[table])})


def folded(content: str, kind: str) -> list[tuple[str, str]]:
    """The attributes and the summary of each group of a kind."""
    return re.findall(rf'<details class="{kind}"( open)?>\s*<summary>(.*?)</summary>', content)


def test_few_rows_and_few_figures_are_shown() -> None:
    content = page(rows=MOST_ROWS - 1, figures=MOST_SHOWN - 1)
    assert folded(content, "rows") == folded(content, "figures") == []


def test_the_first_corpus_of_many_rows_is_open() -> None:
    content = page(rows=MOST_ROWS, figures=0)
    assert folded(content, "rows") == [(" open", f"SST: {MOST_ROWS} rows"), ("", "IMDb: 1 row")]


@pytest.mark.parametrize("figures", [MOST_SHOWN, 30])
def test_figures_of_single_rows_are_folded_and_the_others_are_shown(figures: int) -> None:
    content = page(rows=1, figures=figures)
    assert folded(content, "figures") == [
        ("", f"SST: {figures} figures of single models"),
        ("", "IMDb: 1 figure of single models"),
    ]
    first = content.index('<details class="figures"')
    assert [int(n) for n in re.findall(r">Figure (\d+) of", content[:first])] == [0]
    assert len(re.findall(r">Figure \d+ of", content[first:])) == figures + 1  # each once
