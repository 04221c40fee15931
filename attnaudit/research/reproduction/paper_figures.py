"""The papers' figures, from what was measured to records, and from records to shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.records import Chart, Series
from attnaudit.report.charts import Drawing, chart
from attnaudit.research.reproduction.audit_models import Measured
from attnaudit.research.reproduction.box_plots import boxes
from attnaudit.research.reproduction.figure_records import Counterfactual, Figure, Violin, Violins
from attnaudit.research.reproduction.paper_tables import MODEL, Models, RowPlan, defined
from attnaudit.research.reproduction.violin_plots import violins

BINS = 4
GRID = 41
#: A violin of fewer values would show its smoothing, not them.
FEWEST = 3
#: Texts that a reader takes in at a glance.
SHORTEST, LONGEST = 6, 24
#: Nats (of at most 0.693) from which two distributions have little in common.
FAR = 0.6


def draw(one: Figure) -> Drawing | None:
    """The shapes of a chart, of violins or of boxes; None for a figure that is drawn as text."""
    if one.boxes is not None:
        return boxes(one.boxes)
    if one.violins is not None:
        return violins(one.violins)
    return None if one.chart is None else chart(one.chart)


def by_attention(row: RowPlan, models: Models, column: str) -> Figure:
    """The violins of Jain & Wallace 2019, §4.2.1: a column of numbers by largest attention weight in four equal bins
    on [0, 1], split by predicted class."""
    audit = models[MODEL].having(column)
    return grouped(
        row,
        audit,
        audit.scalars[column],
        name="violins",
        title="change of output under permuted attention",
        caption="Median TVD over 100 permutations",
        x_label="median TVD",
    )


def grouped(
    row: RowPlan,
    audit: Measured,
    values: Sequence[float | None],
    *,
    name: str,
    title: str,
    caption: str,
    x_label: str,
) -> Figure:
    """Violins of a number per text of the audit, by the largest attention weight and the predicted class."""
    sides = audit.classes[:2]
    found = []
    for place in range(BINS):
        for side in range(len(sides)):
            inside = [
                value
                for value, peak, predicted in zip(values, audit.scalars["attention.max"], audit.predicted, strict=True)
                if value is not None
                and peak is not None
                and (len(audit.classes) > 2 or predicted == side)
                and min(int(peak * BINS), BINS - 1) == place
            ]
            if len(inside) >= FEWEST:
                found.append(_violin(place, side, inside))
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption=f"{caption}, by the largest attention weight and the predicted class; the line is the median. Violins "
        "of fewer than three texts are left out.",
        violins=Violins(
            bins=[f"{place / BINS:g} to {(place + 1) / BINS:g}" for place in range(BINS)],
            sides=sides if len(audit.classes) == 2 else ["all classes"],
            x_label=x_label,
            y_label="largest attention weight",
            violins=[one for one in found if len(audit.classes) == 2 or one.side == 0],
        ),
    )


def _violin(place: int, side: int, values: Sequence[float]) -> Violin:
    """A Gaussian kernel with Scott's width, cut at the ends of what was seen."""
    seen = np.array(values)
    width = max(float(seen.std(ddof=1)) * len(seen) ** -0.2, 0.004)
    at = np.linspace(seen.min(), seen.max(), GRID) if np.ptp(seen) > 0 else np.array([seen[0] - width, seen[0] + width])
    density = np.exp(-0.5 * ((at[:, None] - seen) / width) ** 2).sum(1)
    return Violin(
        bin=place,
        side=side,
        at=[round(float(x), 5) for x in at],
        density=[round(float(x), 4) for x in density / density.max()],
        median=float(np.median(seen)),
        n=len(seen),
    )


def shares(
    row: RowPlan,
    models: Models,
    column: str,
    *,
    name: str,
    title: str,
    x_label: str,
    low: float,
    high: float,
    bins: int,
) -> Figure:
    """A histogram of a column by predicted class, as shares of the texts of that class."""
    result = models[MODEL]
    audit = result.having(column)
    series = []
    edges = np.linspace(low, high, bins + 1)
    for index, called in enumerate(audit.classes):
        values = defined(result, column, of_class=index)
        counts, _ = np.histogram(np.clip(values, low, high), bins=edges)
        middle = (edges[:-1] + edges[1:]) / 2
        series.append(
            Series(
                name=f"predicted {called} (n={len(values):,})",
                x=[round(float(x), 6) for x in middle],
                y=[round(float(c), 5) for c in counts / max(1, len(values))],
            )
        )
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption="Shares of the texts predicted as each class.",
        chart=Chart(title=title, x_label=x_label, y_label="share of texts", kind="bar", series=series),
    )


def counterfactual(row: RowPlan, models: Models, epsilon: str) -> Figure | None:
    """Jain & Wallace 2019, figure 1: one text, the model's attention and another with the same output.

    Of the correctly predicted texts of 6 to 24 tokens whose two distributions are at least .6 nats apart, the one whose
    attention is most peaked: what seems to be pointed at, and is not needed. None where there is no such text."""
    column = f"adversarial.{epsilon}"
    audit = models[MODEL].having(f"{column}.jsd")
    attention, other = audit.per_token["attention"], audit.per_token[f"{column}.attention"]
    jsd, moved = audit.scalars[f"{column}.jsd"], audit.scalars[f"{column}.tvd"]
    peaks = audit.scalars["attention.max"]
    fit = [
        (peaks[i] or 0.0, name, i)
        for i, (found, name) in enumerate(zip(jsd, audit.ids, strict=True))
        if found is not None
        and found >= FAR
        and SHORTEST <= len(audit.tokens[i]) <= LONGEST
        and audit.labels[i] == audit.predicted[i]
    ]
    if not fit:
        return None
    _, name, i = max(fit)
    before = audit.probabilities[i][audit.predicted[i]]
    return Figure(
        name="counterfactual",
        row=row.name,
        title=f"{row.title}: the same output with other attention",
        caption=f"Chosen by rule: the most peaked attention among the correctly predicted texts of {SHORTEST} to "
        f"{LONGEST} tokens that have other attention at least {FAR:g} nats away at TVD ≤ {epsilon}.",
        counterfactual=Counterfactual(
            instance=name,
            tokens=audit.tokens[i],
            predicted=audit.classes[audit.predicted[i]],
            label=audit.classes[audit.labels[i]],
            attention=attention[i],
            adversarial=other[i],
            probability=before,
            tvd=moved[i] or 0.0,
            jsd=jsd[i] or 0.0,
        ),
    )
