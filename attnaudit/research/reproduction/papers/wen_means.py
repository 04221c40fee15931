"""Means over the rows of Wen, Subbalakshmi & Yang 2022, and figure 2: weighted τ of each kind of attention."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from attnaudit.research.reproduction.corpora import corpus
from attnaudit.research.reproduction.figures import quantity_axes as axes
from attnaudit.research.reproduction.figures.figure_records import Box, Boxes, Figure
from attnaudit.research.reproduction.paper_report import Line, Provenance, Row
from attnaudit.research.reproduction.papers.wen_claims import ALIGNMENTS, ENCODERS, MEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A rank correlation of attention and information.

    Attributes:
        detail: The name of the check's detail. None for the value of the check.
        words: The description in tables.
        label: The description in figures.
        axis: The axis of strip plots.
    """

    detail: str | None
    words: str
    label: str
    axis: axes.Axis


#: Name of a quantity -> the statistic.
STATISTICS: Mapping[str, Statistic] = {
    "tau": Statistic(
        detail=None,
        words="weighted τ between attention and information",
        label="weighted τ between attention and information",
        axis=axes.WEIGHTED_TAU,
    ),
    "tau uncorrected": Statistic(
        detail="weighted τ of uncorrected information",
        words="… with uncorrected information",
        label="weighted τ between attention and uncorrected information",
        axis=axes.WEIGHTED_TAU,
    ),
    "tau-b": Statistic(
        detail="unweighted τ-b",
        words="… unweighted (τ-b)",
        label="unweighted τ-b between attention and information",
        axis=axes.TAU_B,
    ),
}
#: Means over all data sets and 10 runs (§5).
MEANS = {
    "additive": 0.80,
    "deep": 0.74,
    "dot": 0.45,
    "bilstm/additive": 0.92,
    "cnn/additive": 0.88,
    "cnn/deep": 0.83,
    "bilstm/deep": 0.80,
}


def means_and_boxes(rows: Sequence[Row]) -> tuple[list[Row], list[Figure]]:
    """Return rows with the means that the paper reports, and figure 2 with one picture per corpus.

    All means are over the same corpora, at least two: those that have the most rows in common, which are then the rows
    of the means. The paper's mean over encoders is compared only with a mean over all encoders. A corpus on which no τ
    is defined has no picture.
    """
    names = list(dict.fromkeys(row.corpus for row in rows))
    boxes = [_boxes([row for row in rows if row.corpus == name]) for name in names]
    by_name = {row.name: row for row in rows}
    settings = [f"{encoder}/{alignment}" for alignment in ALIGNMENTS for encoder in ENCODERS]

    def common(over: Sequence[str]) -> list[str]:
        return [setting for setting in settings if all(f"{name}/{setting}" in by_name for name in over)]

    choices = [over for n in range(2, len(names) + 1) for over in itertools.combinations(names, n)]
    over = max(choices, key=lambda over: (len(over) * len(common(over)), len(over)), default=())
    measured = common(over) if over else []
    groups = [
        *((alignment, [one for one in measured if one.endswith(f"/{alignment}")]) for alignment in ALIGNMENTS),
        *((setting, [setting]) for setting in measured),
    ]
    means = [
        _mean(name, [by_name[f"{of}/{setting}"] for of in over for setting in group])
        for name, group in groups
        if len(group) > 1 or "/" in name  # the mean over one encoder is that of its setting
    ]
    return [row for row in means if row is not None], [figure for figure in boxes if figure is not None]


def _mean(name: str, rows: Sequence[Row]) -> Row | None:
    """Return a row with the means over the rows in which τ is defined.

    The result is None if these rows are of fewer than two corpora, or if they have no seed in common. If one of the
    rows does not count, neither does the mean.
    """
    ranked = [row for row in rows if any(value is not None for value in _line_of(row, "tau").values)]
    made = [row.provenance for row in ranked if row.provenance is not None]
    seeds = sorted(set.intersection(*(set(one.seeds) for one in made))) if made else []
    over = list(dict.fromkeys(row.corpus for row in ranked))
    if not seeds or len(over) < 2:
        return None
    alignment = name.rpartition("/")[2]
    encoders = [one for one in ENCODERS if any(row.name.split("/")[1] == one for row in ranked)]
    as_in_paper = "/" in name or len(encoders) == len(ENCODERS)
    which = f"{' and '.join(ENCODERS[encoder] for encoder in encoders)}, {alignment}"
    compared = name if as_in_paper else None
    return Row(
        name=f"{MEAN}/{name}",
        title=f"Mean over {', '.join(corpus(one).title for one in over)}: {which}",
        label=f"mean, {which}",
        corpus=over[0],
        lines=[_mean_line(quantity, ranked, seeds, compared) for quantity in STATISTICS],
        excluded="; ".join(f"{row.name} does not count" for row in ranked if row.excluded),
        provenance=msgspec.structs.replace(made[0], seeds=seeds, **_seconds(made)),
    )


def _line_of(row: Row, quantity: str) -> Line:
    return next(one for one in row.lines if one.quantity == quantity)


def _mean_line(quantity: str, rows: Sequence[Row], seeds: Sequence[int], name: str | None) -> Line:
    """Return a line with one value per seed: the mean over the rows in which the quantity is defined for the seed."""
    statistic = STATISTICS[quantity]
    lines = [(_line_of(row, quantity), row.provenance) for row in rows]
    counts = [line.n for line, _ in lines]
    values: list[float | None] = []
    for seed in seeds:
        found = [line.values[made.seeds.index(seed)] for line, made in lines if made is not None]
        known = [value for value in found if value is not None]
        values.append(statistics.fmean(known) if known else None)
    defined = [value for value in values if value is not None]
    return Line(
        quantity=quantity,
        words=statistic.words,
        label=statistic.label,
        axis=statistic.axis,
        paper=MEANS.get(name or "") if quantity == "tau" else None,
        ours=statistics.fmean(defined) if defined else None,
        std=statistics.stdev(defined) if len(defined) > 1 else None,
        values=values,
        n=None if None in counts else sum(count for count in counts if count is not None),
    )


def _seconds(made: Sequence[Provenance]) -> dict[str, float]:
    fields = [name for name in Provenance.__struct_fields__ if name.endswith("seconds")]
    return {name: sum(getattr(one, name) for one in made) for name in fields}


def _boxes(rows: Sequence[Row]) -> Figure | None:
    title = corpus(rows[0].corpus).title
    found = []
    for row in rows:
        _, encoder, alignment = row.name.split("/")
        line = _line_of(row, "tau")
        values = [value for value in line.values if value is not None]
        side = list(ENCODERS).index(encoder)
        found.append(Box(label=alignment, side=side, values=values, counts=not row.excluded))
    if not any(box.values for box in found):
        return None
    return Figure(
        name="boxes",
        row=rows[0].corpus,
        title=f"{title}: weighted τ between attention and information",
        caption="One dot per seed, or one ring if the row does not count for claims. The box reaches from the first to "
        "the third quartile, and the whiskers reach to the smallest and the largest value. The line is the median. All "
        "figures of this kind have the same axis.",
        boxes=Boxes(sides=list(ENCODERS.values()), x_label="weighted τ", boxes=found),
    )
