"""The records of a paper's figures. A record holds the data of a figure, without its layout."""

from __future__ import annotations

from attnaudit.records import Chart, Record


class Violin(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One half of a violin.

    Attributes:
        bin: The index of the bin. Each bin has one row of the figure.
        side: 0 for the upper half, 1 for the lower half.
        at: The positions at which the density was computed.
        density: The density at these positions, scaled to a maximum of 1.
        median: The median of the values.
        n: The number of values.
    """

    bin: int
    side: int
    at: list[float]
    density: list[float]
    median: float
    n: int


class Violins(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Split violins, one row per bin.

    Attributes:
        bins: The labels of the rows.
        sides: The names of the upper halves and of the lower halves. If the violins are not split, there is only one
            name.
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        violins: The halves of the violins.
    """

    bins: list[str]
    sides: list[str]
    x_label: str
    y_label: str
    violins: list[Violin]


class Box(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of one box, such as one value per seed of a setting.

    Attributes:
        label: The label to the left of the box.
        side: The index of a name in `Boxes.sides`. It also selects the colour of the box.
        values: The values.
        counts: Whether the values count for claims.
    """

    label: str
    side: int
    values: list[float]
    counts: bool = True


class Boxes(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Box plots, drawn in the order of `boxes`. Boxes with the same label are adjacent.

    Attributes:
        sides: The names of the colours. The legend shows those that are drawn.
        x_label: The label of the horizontal axis.
        boxes: The boxes.
        low: A number that the axis must cover.
        high: Another number that the axis must cover.
    """

    sides: list[str]
    x_label: str
    boxes: list[Box]
    low: float = 0.0
    high: float = 1.0


class Strip(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lane of a strip plot: the values of one row of a table.

    Attributes:
        label: The title of the row of the table.
        values: The measured values, one per seed.
        paper: The number of the paper. None if it has none.
        counts: Whether the row may decide a claim.
        seeds: The seed of each value. It is empty if a value does not belong to one seed.
    """

    label: str
    values: list[float]
    paper: float | None
    counts: bool
    seeds: tuple[int, ...] = ()


class Strips(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strip plot of one quantity.

    Attributes:
        x_label: The label of the horizontal axis.
        low: The smallest number that the axis must cover.
        high: The largest number that the axis must cover.
        strips: The lanes.
        compared_with: Whose numbers the marks show: "paper" or "other paper".
    """

    x_label: str
    low: float
    high: float
    strips: list[Strip]
    compared_with: str = "paper"


class CurvePoint(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point of a curve.

    Attributes:
        label: The label of the point, such as "λ=0.5".
        x: The horizontal coordinate.
        y: The vertical coordinate.
    """

    label: str
    x: float
    y: float


class Curve(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A curve with one line per seed.

    Attributes:
        name: The name in the legend.
        seeds: For each seed, the points of its line.
    """

    name: str
    seeds: list[list[CurvePoint]]


class Curves(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Curves on common axes. The points of the first curve are labelled.

    Attributes:
        x_label: The label of the horizontal axis.
        y_label: The label of the vertical axis.
        x_low: The smallest number that the horizontal axis must cover.
        x_high: The largest number that the horizontal axis must cover.
        y_low: The smallest number that the vertical axis must cover.
        y_high: The largest number that the vertical axis must cover.
        curves: The curves.
        published: Curves with numbers that others have published. Their points are squares, and are labelled too.
    """

    x_label: str
    y_label: str
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    curves: list[Curve]
    published: tuple[Curve, ...] = ()


class Counterfactual(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text with the attention of the model, and with other attention that gives almost the same output.

    Attributes:
        instance: The id of the text.
        tokens: The tokens of the text.
        predicted: The predicted class.
        label: The correct class.
        attention: For each token, its weight in the attention of the model. None if it is undefined.
        adversarial: For each token, its weight in the other attention. None if it is undefined.
        probability: The probability of the predicted class with the attention of the model.
        tvd: The total variation distance between the two outputs.
        jsd: The Jensen-Shannon divergence between the two attention distributions, in nats.
    """

    instance: str
    tokens: list[str]
    predicted: str
    label: str
    attention: list[float | None]
    adversarial: list[float | None]
    probability: float
    tvd: float
    jsd: float


class Figure(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One figure. Exactly one of `chart`, `violins`, `counterfactual`, `boxes`, `strips` and `curves` is set.

    Attributes:
        name: The name of the figure.
        row: The name of the row that the figure shows. If it shows several rows, the name of their corpus, or "".
        title: The heading of the figure.
        caption: The text below the figure.
        chart: A chart with lines or bars.
        violins: Split violins.
        counterfactual: One text with two attention distributions.
        boxes: Box plots.
        strips: A strip plot.
        curves: Curves with one line per seed.
    """

    name: str
    row: str
    title: str
    caption: str
    chart: Chart | None = None
    violins: Violins | None = None
    counterfactual: Counterfactual | None = None
    boxes: Boxes | None = None
    strips: Strips | None = None
    curves: Curves | None = None
