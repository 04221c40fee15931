"""Does attention point at the tokens that the prediction depends on, better than uniform weights?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Detail, Mask, no_real_attention, single_token
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.interval_estimate import IntervalEstimate
from attnaudit.statistics.intervals import ratio_interval

#: What the effects are on -> the suffix of the columns.
SUFFIXES = {"probabilities": "", "logits": ".logits"}
#: Most sampled orders per instance.
MOST_ORDERS = 100_000
#: Uniform weights count as perfect if their distance from 1, summed over all texts, is less than this share.
ROUNDING = 1e-9


@registered
@dataclass(frozen=True, kw_only=True)
class Pointing(PerInstanceCheck):
    """Cosine between attention and the effects of the tokens, above that of uniform weights.

    The effect e_i of token i is half its last-in plus half its first-in contribution to the support f of the predicted
    class: ½ [f(x) - f(x without i)] + ½ [f(i alone) - f(nothing)]. Tokens are replaced by the mask or unknown token,
    while the attention α of the reading is held, so that only what it weights changes. With m_x = max |e_i|,

        c(α) = Σ_x m_x cos(α, |e|) / Σ_x m_x        C = (c(α) - c(uniform)) / (1 - c(uniform))

    which equals Σ_x m_x (cos(α, |e|) - cos(uniform, |e|)) / Σ_x m_x (1 - cos(uniform, |e|)), a ratio of means. Texts in
    which no token has an effect have no weight. C is undefined if no token of any text has an effect, or if all tokens
    of every text have the same effect.

    Args:
        on: The support. "probabilities": the probability of the class, so that texts whose prediction nothing changes
            have no weight. "logits": its logit minus the mean over the classes, so that the value does not depend on
            the scale of the logits or on a bias per class.
        shapley_orders: 0 for none. Otherwise, the details compare the effects with Shapley values, estimated from this
            number of random orders per text (exact for short texts).
    """

    on: Literal["probabilities", "logits"] = "probabilities"
    shapley_orders: int = 0

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)
    lists_classes: ClassVar[bool] = False

    family = "pointing"
    title = "Attention points at the tokens that the prediction depends on"
    question = "Is attention larger on the tokens whose replacement changes the prediction more?"
    why = (
        "Attention is read as marking the words behind a decision. If replacing the attended words changes the "
        "prediction no more than replacing others, it marks the wrong ones."
    )
    how_to_read = (
        "At 1, every token gets attention in proportion to its effect on the prediction. At 0, attention points at the "
        "influential tokens no better than equal weights do; below 0, it does worse. The details give the mean effect "
        "of a token drawn according to attention, as a share of the effect of the most influential token."
    )
    statistic = "ratio of means"
    unit = "cosine above uniform weights"
    value_name = "cosine with the effects, above uniform weights"
    values_label = "largest effect × (1 - cosine) per instance"
    bounds = (-math.inf, 1.0)
    worst = "highest"

    @property
    def subject(self) -> str:
        return f"pointing.{self.on}" + (f".shapley.{self.shapley_orders}" if self.shapley_orders else "")

    @property
    def values_range(self) -> tuple[float, float] | None:
        return (0.0, 1.0) if self.on == "probabilities" else None

    @property
    def token_columns(self) -> tuple[str, ...]:
        return ("attention", self._effects("held"), self._effects("live"))

    def validate(self) -> None:
        self.require_choice("on", SUFFIXES)
        self.require_count("shapley_orders", 0, MOST_ORDERS)

    def needs(self) -> tuple[str, ...]:
        needs = ("pointing.held", "pointing.live")
        if not self.shapley_orders:
            return needs
        shapley = f"shapley.{self.shapley_orders}"
        return (*needs, f"pointing.{shapley}", "token_effect.held", f"token_effect.{shapley}")

    def _column(self, kind: str = "held") -> str:
        """Return how the names of the columns of one kind of effect begin, such as "pointing.held.logits"."""
        return f"pointing.{kind}{SUFFIXES[self.on]}"

    def _effects(self, kind: str) -> str:
        """Return the column of the effects of one kind, such as "token_effect.held"."""
        return f"token_effect.{kind}{SUFFIXES[self.on]}"

    def values(self, measurements: Measurements) -> Floats:
        """Return the largest effect times the distance of the cosine from 1: what an instance contributes to 1 - c."""
        largest = measurements.scalar(f"{self._column()}.largest")
        values: Floats = largest * np.maximum(1 - measurements.scalar(f"{self._column()}.cosine"), 0.0)
        return values

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        largest = measurements.scalar(f"{self._column()}.largest")
        return (
            single_token(measurements),
            no_real_attention(measurements),
            ("replacing tokens does not change the output", largest == 0),
            ("not measured", undefined),
        )

    def value(self, measurements: Measurements, values: Floats, groups: Groups) -> float | None:
        return _above_uniform(measurements, self._column(), groups.rows)

    def interval(self, measurements: Measurements, values: Floats, groups: Groups) -> IntervalEstimate | None:
        if _above_uniform(measurements, self._column(), groups.rows) is None:
            return None
        gain, room = _gain_and_room(measurements, self._column())
        return ratio_interval(
            gain,
            room,
            groups,
            confidence=self.confidence,
            generator=self.generator(measurements, "interval"),
            bounds=self.bounds,
            extremes=(-1.0, 1.0) if self.on == "probabilities" else (-math.inf, math.inf),
        )

    def no_interval(self, value: float | None, groups: Groups) -> str:
        if value is None or len(groups) < 2:
            return ""
        return "too few texts have effects that differ between tokens, so the denominator is not clearly above 0"

    def note(self, measurements: Measurements, values: Floats) -> str:
        defined = np.flatnonzero(~np.isnan(values))
        if not len(defined) or _above_uniform(measurements, self._column(), defined) is not None:
            return ""
        return "undefined: in every text, all tokens have the same effect, so uniform weights point perfectly"

    def references(self, measurements: Measurements, values: Floats) -> Sequence[Reference]:
        count = int(np.count_nonzero(~np.isnan(values)))
        return (
            Reference(name="uniform", value=0.0, meaning="uniform weights, by definition", n=count),
            Reference(name="proportional", value=1.0, meaning="attention in proportion to the effects", n=count),
        )

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        rows = np.flatnonzero(~np.isnan(values))
        if not len(rows):
            return {}
        largest, cosine, uniform, drawn, drawn_uniform = (
            measurements.scalar(f"{self._column()}.{name}")[rows]
            for name in ("largest", "cosine", "uniform_cosine", "drawn", "drawn_uniform")
        )
        total = largest.sum()
        other = "logits" if self.on == "probabilities" else "probabilities"
        precision, by_chance = float(drawn.sum() / total), float(drawn_uniform.sum() / total)
        every = np.arange(len(values))
        details: dict[str, Detail] = {
            "in words": (
                f"A token drawn according to attention carries on average {precision:.0%} of the most influential "
                f"token's effect; drawn at random, {by_chance:.0%}."
            ),
            "mean cosine, weighted by the largest effect": float((largest * cosine).sum() / total),
            "the same with uniform weights": float((largest * uniform).sum() / total),
            "precision: share of the largest effect, drawn by attention": precision,
            "the same, drawn at random": by_chance,
            "mean largest effect of a token": float(largest.mean()),
            "instances that carry half of the weight": _half_of(largest),
            f"value on {other}": _above_uniform(measurements, f"pointing.held{SUFFIXES[other]}", every),
            "value with live attention": _above_uniform(measurements, self._column("live"), every),
        }
        if self.shapley_orders:
            details |= self._against_shapley(measurements, rows)
        for index, name in enumerate(measurements.classes):
            of_class = rows[measurements.predicted[rows] == index]
            details[f"value where '{name}' is predicted"] = _above_uniform(measurements, self._column(), of_class)
        return details

    def _against_shapley(self, measurements: Measurements, rows: Integers) -> dict[str, Detail]:
        """Return the value with Shapley values as effects, and how similar these are to the effects."""
        kind = f"shapley.{self.shapley_orders}"
        effects, shapley = (measurements.vector(self._effects(each)) for each in ("held", kind))
        weighted = weights = 0.0
        for row in rows.tolist():
            a, b = np.abs(effects[row]), np.abs(shapley[row])
            if b.any():
                weighted += a.max() * float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
                weights += a.max()
        return {
            "value with Shapley values": _above_uniform(measurements, self._column(kind), rows),
            "cosine of the effects and Shapley values": float(weighted / weights) if weights else None,
        }


def _gain_and_room(measurements: Measurements, column: str) -> tuple[Floats, Floats]:
    """Return m_x (cos(α, |e|) - cos(uniform, |e|)) and m_x (1 - cos(uniform, |e|)), each (n,); NaN where undefined."""
    largest, cosine, uniform = (
        measurements.scalar(f"{column}.{name}") for name in ("largest", "cosine", "uniform_cosine")
    )
    gain: Floats = largest * (cosine - uniform)
    room: Floats = np.where(np.isnan(gain), np.nan, largest * np.maximum(1 - uniform, 0.0))
    return gain, room


def _above_uniform(measurements: Measurements, column: str, rows: Integers) -> float | None:
    """Return C over some rows; None if it is undefined."""
    gain, room = (np.nansum(part[rows]) for part in _gain_and_room(measurements, column))
    least = ROUNDING * np.nansum(measurements.scalar(f"{column}.largest")[rows])
    return float(gain / room) if room > least else None


def _half_of(weights: Floats) -> int:
    """Return the smallest number of instances that together have half of the total weight."""
    return int(np.searchsorted(np.cumsum(-np.sort(-weights)), weights.sum() / 2) + 1)
