"""The records of a paper's figures: the data of a drawing, without its layout."""

from __future__ import annotations

from attnaudit.records import Chart, Record


class Violin(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One half of a violin.

    Attributes:
        bin: index of the bin, which has a row of the figure.
        side: 0 for the upper half, 1 for the lower one.
        at: positions at which the density was computed.
        density: the density at these positions, scaled to a maximum of 1.
        median: median of the values.
        n: number of values.
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
        bins: labels of the rows.
        sides: names of the upper and the lower halves; a single name if the violins are not split.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        violins: the halves.
    """

    bins: list[str]
    sides: list[str]
    x_label: str
    y_label: str
    violins: list[Violin]


class Box(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of one box, such as one value per seed of a setting.

    Attributes:
        label: the label to the left of the box.
        side: index of its name in `Boxes.sides`, which selects the colour.
        values: the values.
    """

    label: str
    side: int
    values: list[float]


class Boxes(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Box plots. Boxes with the same label are adjacent, in the order of `boxes`.

    Attributes:
        sides: names of the colours in the legend.
        x_label: label of the horizontal axis.
        boxes: the boxes.
    """

    sides: list[str]
    x_label: str
    boxes: list[Box]


class Counterfactual(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text with the model's attention and with other attention that gives the same output.

    Attributes:
        instance: id of the text.
        tokens: its tokens.
        predicted: the predicted class.
        label: the correct class.
        attention: the model's attention weight of each token.
        adversarial: the other attention weight of each token.
        probability: probability of the predicted class under the model's attention.
        tvd: total variation distance between the two outputs.
        jsd: Jensen-Shannon divergence between the two distributions of attention, in nats.
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
    """One figure. Exactly one of chart, violins, counterfactual and boxes is set.

    Attributes:
        name: name of the figure.
        row: name of its row; name of the corpus if the figure shows several rows.
        title: its heading.
        caption: the text below it.
        chart: lines or bars.
        violins: split violins.
        counterfactual: one text under two distributions of attention.
        boxes: box plots.
    """

    name: str
    row: str
    title: str
    caption: str
    chart: Chart | None = None
    violins: Violins | None = None
    counterfactual: Counterfactual | None = None
    boxes: Boxes | None = None
