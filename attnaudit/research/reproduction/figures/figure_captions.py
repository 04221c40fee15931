"""Add to the captions of stored figures which seeds they show.

A figure that was drawn when its row had a single model keeps the texts of this model, although the row may have got
more seeds since then. The numbers of texts in the figure show whether this is the case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from attnaudit.research.reproduction.figures.figure_records import Figure
from attnaudit.research.reproduction.paper_report import Row, Table

#: The number of values in the name of a series (see `class_histogram` and `overlaid_histograms`).
COUNT = re.compile(r"\(n=([\d,]+)\)$")
#: The start of the name of a series that shows only the texts of one predicted class.
OF_CLASS = "predicted "
#: Captions that contain one of these say already which seeds the figure shows.
KNOWN = ("first seed", "all seeds")


def full_caption(figure: Figure, table: Table, data: Mapping[str, Mapping[str, int]]) -> str:
    """Return the caption of a figure, with a sentence about its seeds if the row of the figure has several.

    Args:
        figure: The figure.
        table: The table of the figure.
        data: Name of a corpus -> part -> number of texts.
    """
    row = next((one for one in table.rows if one.name == figure.row), None)
    texts = 0 if row is None else _texts(row, data)
    if row is None or not texts or any(words in figure.caption for words in KNOWN):
        return figure.caption
    return f"{figure.caption} {_about_seeds(row, _count(figure), texts)}".rstrip()


def _about_seeds(row: Row, count: int, texts: int) -> str:
    """Return a sentence about the seeds of a figure. Return "" if there is nothing to say, or if it is not known.

    Args:
        row: The row of the figure.
        count: The number of texts in the figure. 0 if it is not known.
        texts: The number of audited texts for each seed.
    """
    seeds = row.provenance.seeds if row.provenance is not None else []
    if count == 0 or len(seeds) < 2:
        return ""
    if count <= texts and all(len(line.values) == 1 for line in row.lines):
        return f"The texts are shown once, with the model of the first seed ({seeds[0]})."
    # A few texts may be left out, because their value is undefined or because their group is too small.
    pooled = math.ceil(count / texts)
    if pooled == 1:
        return f"Only the model of the first seed ({seeds[0]}) is shown; the table has {len(seeds)} seeds."
    if pooled < len(seeds):
        return ""
    # More seeds than in the table: seeds that were added after the plan are dropped from the numbers.
    return f"The texts of {'all ' if pooled == len(seeds) else ''}{pooled} seeds are pooled."


def _texts(row: Row, data: Mapping[str, Mapping[str, int]]) -> int:
    """Return the number of texts that the audits of a row use for each seed. Return 0 if it is not known."""
    texts = data.get(row.corpus, {}).get("test", 0)
    sampled = row.provenance.instances if row.provenance is not None else None
    return texts if sampled is None else min(sampled, texts)


def _count(figure: Figure) -> int:
    """Return the number of texts in a figure, where several seeds count as several texts. Return 0 if not known."""
    if figure.violins is not None:
        return sum(violin.n for violin in figure.violins.violins)
    if figure.chart is None:
        return 0
    counts = [
        (series.name.startswith(OF_CLASS), int(found[1].replace(",", "")))
        for series in figure.chart.series
        if (found := COUNT.search(series.name))
    ]
    # The classes divide the texts. Other series are several measures of the same texts.
    return max([sum(count for by_class, count in counts if by_class), *(n for by_class, n in counts if not by_class)])
