"""The records of a paper's figures: what is drawn, without how it is drawn."""

from __future__ import annotations

from attnaudit.records import Chart, Record


class Violin(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One half of a violin.

    Attributes:
        bin: index of the bin, which is the row that the half is drawn in.
        side: 0 for the upper half, 1 for the lower one.
        at: positions at which the density was computed.
        density: the density there, scaled to at most 1.
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
        sides: what the upper and the lower halves are; a single name where they are not split.
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
    """The values of one setting, such as one value per seed.

    Attributes:
        label: the label that the box is drawn next to.
        side: index of its colour.
        values: the values.
    """

    label: str
    side: int
    values: list[float]


class Boxes(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Box plots, those with the same label drawn together in the order of their sides.

    Attributes:
        sides: name of each colour.
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
        attention: the model's weight of each token.
        adversarial: the other weight of each token.
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
    """One picture. Exactly one of chart, violins, counterfactual and boxes is set.

    Attributes:
        name: name of the figure.
        row: name of its row; the corpus, where the picture shows several rows.
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
