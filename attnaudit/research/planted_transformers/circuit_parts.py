"""The parts of a circuit: heads, labelled readings, and the design of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from attnaudit.research.planted_transformers.feature_space import Features

Family = Literal["bert", "gpt2", "llama", "vit", "deit"]
#: The causal families, in which the output is read from the last token. In all others, it is read from [CLS].
CAUSAL: tuple[Family, ...] = ("gpt2", "llama")
#: The number of a head, or the mean over all heads of the layer.
Heads = int | Literal["mean"]
Truth = Literal["faithful", "unfaithful", "graded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitPlan:
    """One model to build with a circuit.

    Attributes:
        mechanism: The name of the mechanism of the circuit.
        family: The family of the model.
        seed: The seed. It decides all details of the model and of its rows.
        parameter: The parameter of the circuit, such as the share of rows with a marker.
    """

    mechanism: str
    family: Family
    seed: int
    parameter: float = 0.0

    @property
    def name(self) -> str:
        """The name of the model, and of its folder."""
        part = f"-{self.parameter:g}" if self.parameter else ""
        return f"{self.mechanism}-{self.family}-{self.seed}{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """One attention head.

    Attributes:
        looks: Key feature -> score. The queries that `rows` names attend to the tokens with these features.
        rows: Which queries attend to the tokens in `looks`. "all": every query. "read": only the query that the output
            is read from. "marker": only the queries whose token has the feature "marker". The other queries look at the
            sink.
        if_flagged: The features that the query "read" looks at instead, if its own feature "flag" is set. None to
            ignore the flag.
        previous: Whether every query attends to the token before it. `looks` is then ignored.
        moves: (source feature, target feature, gain). The head writes the weighted mean of the source into the target.
    """

    looks: Features = field(default_factory=dict)
    rows: Literal["all", "read", "marker"] = "all"
    if_flagged: Features | None = None
    previous: bool = False
    moves: tuple[tuple[str, str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledReading:
    """A reading whose faithfulness is known by construction.

    Attributes:
        role: What the reading shows. The name of the kind is the name of the mechanism, a dot and the role.
        layer: The layer.
        heads: The number of the head, or "mean".
        truth: "faithful", "unfaithful", or "graded" if the reading is right on a known share of the rows or heads.
        share: The share of the rows or heads on which the reading is right.
        fails: The questions that an unfaithful reading fails.
        parts: For a mean over heads: the numbers of the heads that are right. The truth is verified on these heads,
            because interchange interventions cannot tell apart the heads of a mean. None for other readings.
    """

    role: str
    layer: int
    heads: Heads
    truth: Truth
    share: float = -1.0
    fails: tuple[str, ...] = ("used", "points")
    parts: tuple[int, ...] | None = None

    @property
    def known_share(self) -> float:
        """The share of rows or heads on which the reading is right: 1 if it is faithful, 0 if it is unfaithful."""
        return {"faithful": 1.0, "unfaithful": 0.0}.get(self.truth, self.share)

    def text(self, family: Family) -> str:
        """Return the text form of the reading for a family of models."""
        return f"{'last' if family in CAUSAL else 'cls'}@layer={self.layer},heads={self.heads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The design of one model, which `compile_model` compiles.

    Attributes:
        layers: The heads of every layer. All layers have the same number of heads.
        readings: The readings whose truth is known.
        lexicon: Word -> the features of its embedding.
        texts: The kind of texts that the model is for, as in `circuit_texts`.
        classes: The number of classes.
        logit_scale: The logit of a class for one unit of the feature "moved", the evidence that heads have moved.
        default_class: A class that is predicted if nothing is moved. None for no such class.
        marker_share: The share of the texts that have a marker word. It is used only if `texts` is "marked".
    """

    layers: tuple[tuple[Head, ...], ...]
    readings: tuple[LabelledReading, ...]
    lexicon: Mapping[str, Features]
    texts: str
    classes: int
    logit_scale: float
    default_class: int | None = None
    marker_share: float = 0.0
