"""The figures of papers. Compute the record of a figure from measured models, and draw a record as shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.records import Chart, Series
from attnaudit.report.charts import Drawing, chart
from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.figures.box_plots import box_plots
from attnaudit.research.reproduction.figures.curve_plots import curve_plots
from attnaudit.research.reproduction.figures.figure_records import Counterfactual, Figure, Violin, Violins
from attnaudit.research.reproduction.figures.strip_plots import strip_plots
from attnaudit.research.reproduction.figures.violin_plots import violin_plots
from attnaudit.research.reproduction.paper_tables import MODEL, Models, RowPlan, defined

#: The number of bins of the largest attention weight.
BINS = 4
#: The number of positions at which the density of a violin is computed.
POSITIONS = 41
#: The smallest number of values for a violin. With fewer values, a violin would mainly show its smoothing.
FEWEST = 3
#: The shortest and the longest text of a counterfactual figure, in tokens. Such a text can be read at a glance.
SHORTEST, LONGEST = 6, 24
#: The smallest JSD of a counterfactual figure, in nats. The maximum is 0.693, so the two distributions differ clearly.
FAR = 0.6


def draw(figure: Figure, *, highest: float = 0.0) -> Drawing | None:
    """Draw a figure with shapes.

    Args:
        figure: The figure.
        highest: A value that the axis of violins or bars must reach, so that several figures have the same axis.

    Returns:
        The drawing. None for a counterfactual, and for an empty figure.
    """
    if figure.strips is not None:
        return strip_plots(figure.strips)
    if figure.curves is not None:
        return curve_plots(figure.curves)
    if figure.boxes is not None:
        return box_plots(figure.boxes)
    if figure.violins is not None:
        return violin_plots(figure.violins, highest=highest)
    return None if figure.chart is None else chart(figure.chart, highest=highest)


def permutation_violins(row: RowPlan, models: Models, column: str) -> Figure:
    """Compute the violins of Jain & Wallace 2019, §4.2.1: the change of output under permuted attention.

    The texts are grouped by the largest attention weight (four equal bins on [0, 1]) and by the predicted class.

    Args:
        row: The row that the figure belongs to.
        models: The models of the row.
        column: The name of the measured column with the change of output.

    Raises:
        CheckError: The column was not measured.
    """
    audit = models[MODEL].having(column)
    return violins_by_attention(
        row,
        audit,
        audit.scalars[column],
        name="violins",
        title="change of output under permuted attention",
        caption="Median TVD over 100 permutations",
        x_label="median TVD",
    )


def violins_by_attention(
    row: RowPlan,
    audit: AuditedModel,
    values: Sequence[float | None],
    *,
    name: str,
    title: str,
    caption: str,
    x_label: str,
) -> Figure:
    """Compute the violins of one number per text.

    The texts are grouped by the largest attention weight. If there are two classes, they are also grouped by the
    predicted class.

    Args:
        row: The row that the figure belongs to.
        audit: The audit with the texts.
        values: One number per text of the audit. The number is None where it is undefined.
        name: The name of the figure.
        title: The title of the figure. It is shown after the title of the row.
        caption: The first words of the caption. They say what the numbers are.
        x_label: The label of the horizontal axis.
    """
    sides = audit.classes[:2]
    violins = []
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
                violins.append(_violin(place, side, inside))
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption=f"{caption}, by the largest attention weight and the predicted class. The line is the median. Violins "
        "of fewer than three texts are left out.",
        violins=Violins(
            bins=[f"{place / BINS:g} to {(place + 1) / BINS:g}" for place in range(BINS)],
            sides=sides if len(audit.classes) == 2 else ["all classes"],
            x_label=x_label,
            y_label="largest attention weight",
            violins=[violin for violin in violins if len(audit.classes) == 2 or violin.side == 0],
        ),
    )


def _violin(place: int, side: int, values: Sequence[float]) -> Violin:
    """Compute the violin of one group of values.

    The density is a Gaussian kernel density estimate with a bandwidth by Scott's rule. It is computed from the smallest
    to the largest value.

    Args:
        place: The index of the bin.
        side: The index of the side.
        values: The values.
    """
    observed = np.array(values)
    width = max(float(observed.std(ddof=1)) * len(observed) ** -0.2, 0.004)
    constant = np.ptp(observed) == 0
    at = (
        np.array([observed[0] - width, observed[0] + width])
        if constant
        else np.linspace(observed.min(), observed.max(), POSITIONS)
    )
    density = np.exp(-0.5 * ((at[:, None] - observed) / width) ** 2).sum(1)
    return Violin(
        bin=place,
        side=side,
        at=[round(float(x), 5) for x in at],
        density=[round(float(x), 4) for x in density / density.max()],
        median=float(np.median(observed)),
        n=len(observed),
    )


def class_histogram(
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
    """Compute one histogram of a measured column for each predicted class.

    A bar is the share of the texts predicted as the class whose values lie in the bin.

    Args:
        row: The row that the figure belongs to.
        models: The models of the row.
        column: The name of the column.
        name: The name of the figure.
        title: The title of the figure. It is shown after the title of the row.
        x_label: The label of the horizontal axis.
        low: The left edge of the first bin. The first bin also counts smaller values.
        high: The right edge of the last bin. The last bin also counts larger values.
        bins: The number of bins.

    Raises:
        CheckError: The column was not measured.
    """
    result = models[MODEL]
    audit = result.having(column)
    series = []
    edges = np.linspace(low, high, bins + 1)
    for index, class_name in enumerate(audit.classes):
        values = defined(result, column, of_class=index)
        counts, _ = np.histogram(np.clip(values, low, high), bins=edges)
        middle = (edges[:-1] + edges[1:]) / 2
        series.append(
            Series(
                name=f"predicted {class_name} (n={len(values):,})",
                x=[round(float(x), 6) for x in middle],
                y=[round(float(count), 5) for count in counts / max(1, len(values))],
            )
        )
    return Figure(
        name=name,
        row=row.name,
        title=f"{row.title}: {title}",
        caption="Shares of the texts predicted as each class.",
        chart=Chart(title=title, x_label=x_label, y_label="share of texts", kind="bar", series=series),
    )


def counterfactual_text(row: RowPlan, models: Models, epsilon: str) -> Figure | None:
    """Compute a figure like figure 1 of Jain & Wallace 2019.

    The figure shows one text twice: with the attention of the model, and with other attention that gives almost the
    same output. The candidates are the correctly predicted texts of 6 to 24 tokens for which the two attention
    distributions have a JSD of at least 0.6 nats. Among them, the text with the largest attention weight is chosen. It
    shows most clearly that the output does not need the most attended token.

    Args:
        row: The row that the figure belongs to.
        models: The models of the row.
        epsilon: The largest change of output (TVD), as text. The name of the measured column contains it.

    Returns:
        The figure. It is None if there is no candidate.

    Raises:
        CheckError: The column was not measured.
    """
    column = f"adversarial.{epsilon}"
    audit = models[MODEL].having(f"{column}.jsd")
    attention, other = audit.per_token["attention"], audit.per_token[f"{column}.attention"]
    distances, changes = audit.scalars[f"{column}.jsd"], audit.scalars[f"{column}.tvd"]
    peaks = audit.scalars["attention.max"]
    candidates = [
        (peaks[i] or 0.0, name, i)
        for i, (distance, name) in enumerate(zip(distances, audit.ids, strict=True))
        if distance is not None
        and distance >= FAR
        and SHORTEST <= len(audit.tokens[i]) <= LONGEST
        and audit.labels[i] == audit.predicted[i]
    ]
    if not candidates:
        return None
    _, name, i = max(candidates)
    return Figure(
        name="counterfactual",
        row=row.name,
        title=f"{row.title}: the same output with other attention",
        caption=f"The text was chosen by a rule: of the correctly predicted texts of {SHORTEST} to {LONGEST} tokens, "
        "it is the one with the largest attention weight. Only texts count for which other attention with a JSD of at "
        f"least {FAR:g} nats changes the output by a TVD of at most {epsilon}.",
        counterfactual=Counterfactual(
            instance=name,
            tokens=audit.tokens[i],
            predicted=audit.classes[audit.predicted[i]],
            label=audit.classes[audit.labels[i]],
            attention=attention[i],
            adversarial=other[i],
            probability=audit.probabilities[i][audit.predicted[i]],
            tvd=changes[i] or 0.0,
            jsd=distances[i] or 0.0,
        ),
    )
