"""Does attention rank hidden states by what they tell about the output? (Wen, Subbalakshmi & Yang 2022, §3.2)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.arrays import Floats, Table
from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.evidence import Detail, Evidence
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Chart, Reference, Series
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.half_sampling import FEWEST_TO_HALVE, from_half_samples, half_samples
from attnaudit.statistics.interval_estimate import IntervalEstimate

if TYPE_CHECKING:
    from attnaudit.metrics.ranked_information import InformationRanking as Ranking

FEWEST = 10
SHUFFLES = 100
SUBSAMPLE_SHUFFLES = 10
REFERENCE_SHUFFLES = 50
PRESETS = ("wen",)
#: With fewer, benchmarks/coverage.md finds the interval short.
ENOUGH_SOURCES = 100
FEW_SOURCES = (
    f"there are fewer than {ENOUGH_SOURCES} sources: with 30, a 95% interval of this statistic was measured to hold "
    "the truth in 91% of samples"
)
#: Fitting k-means again for the floor is left out beyond this many multiplications per iteration.
FLOOR_COST = 2e10

Labels = NDArray[np.int64]


@registered
@dataclass(frozen=True, kw_only=True)
class InformationRanking(Check):
    """Shieh's weighted τ between mean attention by rank and the mutual information (nats) of that rank's hidden states
    with the output, corrected by a label-shuffle null.

    preset: how the number of clusters is chosen, one twentieth of the instances (5 to 200) or, with "wen", the least of
    50 to 200 at which no cluster has one member. Undefined with fewer than two ranks, fewer than 10 instances, when no
    two ranks differ, or no such number exists. Instances shorter than the number of ranks are left out and counted.
    Interval: subsampling over sources, k-means fitted once.
    """

    preset: Literal["wen"] | None = None

    def validate(self) -> None:
        if self.preset is not None:
            self.choose("preset", PRESETS)

    @property
    def subject(self) -> str:
        return "information_ranking" if self.preset is None else f"information_ranking.{self.preset}"

    def needs(self) -> tuple[str, ...]:
        return ("ranked_hidden",)

    @property
    def description(self) -> Description:
        return Description(
            family="information",
            title="Attention ranks hidden states by their information about the output",
            question="Do positions with more attention hold hidden states that tell more about the output?",
            why="If the most attended states tell no more about the output than others, the weights do not show where "
            "the decision came from. The first rank often carries nearly all the weight: see the unweighted τ-b.",
            how_to_read="The weighted τ runs from −1 to 1: at 1, ranks with more attention hold hidden states with "
            "more information about the output. The first ranks dominate it, so read the unweighted τ-b as well.",
            statistic="weighted",
            unit="Shieh's τ",
            value_name="weighted τ",
            low=-1.0,
            high=1.0,
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        states = measurements.table("ranked_hidden.states")
        kept = measurements.table("ranked_hidden.instances").astype(np.int64)
        n, ranks = states.shape[:2]
        defined = np.zeros(len(measurements), dtype=bool)
        defined[kept] = True
        dropped = int((~defined).sum())
        found = Evidence(
            value=None,
            interval=None,
            defined=defined,
            undefined={f"fewer than {ranks} tokens": dropped} if dropped else {},
            details={
                "ranks (k)": int(ranks),
                "rule that chose k": measurements.facts.get("ranked_hidden.k_rule", "unknown"),
                "instances": int(n),
            },
        )
        if ranks < 2:
            return replace(found, note="undefined: there is only one rank to compare")
        if n < FEWEST:
            return replace(found, note=f"undefined: fewer than {FEWEST} instances to cluster")
        return self._ranked(measurements, found)

    def _ranked(self, measurements: Measurements, found: Evidence) -> Evidence:
        from attnaudit.metrics.ranked_information import information_ranking, ranking_agreement

        groups = Groups.of(measurements.instances, found.defined)
        # k-means depends on the order of its rows, so they are put in an order of their own.
        place = np.full(len(measurements), -1)
        place[measurements.table("ranked_hidden.instances").astype(np.int64)] = np.arange(len(groups.rows))
        rows = place[groups.rows]
        states = measurements.table("ranked_hidden.states")
        weights = np.asarray(measurements.table("ranked_hidden.weights"), dtype=np.float64)[rows]
        outputs = measurements.table("ranked_hidden.outputs")[rows]
        ranking = information_ranking(
            states[rows], weights, outputs, seed=int(measurements.seed), preset=self.preset, shuffles=SHUFFLES
        )
        value, attention = ranking.weighted_tau, ranking.attention
        known = not np.isnan(value)
        details: dict[str, Detail] = {
            **found.details,
            "clusters (N)": ranking.clusters,
            "weight of the first rank": float(attention[0] / attention.sum()),
            "unweighted τ-b": _or_none(ranking.tau_b),
            "weighted τ of uncorrected information": _or_none(ranking_agreement(ranking.information, attention)[0]),
        }
        if ranking.clusters is None:
            note = "undefined: with each number of clusters from 50 to 200, some cluster of some rank has one member"
            return replace(found, details=details, note=note)
        return replace(
            found,
            value=value if known else None,
            interval=ranking_interval(
                ranking,
                weights,
                groups,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                null=self.generator(measurements, "null"),
            )
            if known
            else None,
            details=details,
            references=(
                self._floor(measurements, states, rows, ranking),
                self._label_shuffle(measurements, ranking),
            ),
            charts=_charts(ranking.information, ranking.corrected, attention),
            note="" if known else f"undefined: {_same(attention)}",
        )

    def _floor(self, measurements: Measurements, states: Table, rows: Labels, ranking: Ranking) -> Reference:
        from attnaudit.metrics.ranked_information import quantise

        ranks, width = states.shape[1:]
        clusters, value = ranking.clusters or 1, None
        if len(rows) * ranks * width * clusters <= FLOOR_COST:
            generator = self.generator(measurements, "floor")
            order = generator.permuted(np.tile(np.arange(ranks), (len(rows), 1)), axis=1)
            labels = np.stack(
                [quantise(states[rows, order[:, r]], clusters, seed=int(measurements.seed)) for r in range(ranks)]
            )
            information = _corrected(labels, ranking.outputs, generator, SHUFFLES)
            value = _or_none(float(_weighted([information], [ranking.attention])[0]))
        return Reference(
            name="floor",
            value=value,
            meaning="weighted τ with each instance's attention shuffled over its ranked states"
            + ("" if value is not None else "; undefined or too large to fit again"),
            n=len(rows),
        )

    def _label_shuffle(self, measurements: Measurements, ranking: Ranking) -> Reference:
        generator = self.generator(measurements, "label shuffle")
        information = [
            _corrected(ranking.labels, generator.permutation(ranking.outputs), generator)
            for _ in range(REFERENCE_SHUFFLES)
        ]
        taus = _weighted(information, [ranking.attention] * REFERENCE_SHUFFLES)
        taus = taus[~np.isnan(taus)]
        return Reference(
            name="label shuffle",
            value=float(np.quantile(taus, 0.95)) if len(taus) else None,
            meaning=f"95th percentile of the weighted τ over {REFERENCE_SHUFFLES} shuffles of the outputs: "
            "what chance alone reaches",
            n=ranking.n,
        )


def ranking_interval(
    ranking: Ranking,
    weights: Floats,
    groups: Groups,
    *,
    confidence: float,
    generator: np.random.Generator,
    null: np.random.Generator,
) -> IntervalEstimate | None:
    """Interval of the weighted τ by subsampling half of the sources, the clusters kept.

    weights: (n, k), their rows and those of the ranking in the order of groups.rows. null: for the shuffles.
    """
    spot = np.full(int(groups.rows.max(initial=-1)) + 1, -1)
    spot[groups.rows] = np.arange(len(groups.rows))

    if len(groups) < FEWEST_TO_HALVE:
        return None
    parts = [spot[rows] for rows in half_samples(groups, generator)]
    information = [_corrected(ranking.labels[:, part], ranking.outputs[part], null) for part in parts]
    found = _weighted(information, [weights[part].mean(0) for part in parts])
    estimate = from_half_samples(found, observed=ranking.weighted_tau, confidence=confidence, bounds=(-1.0, 1.0))
    return replace(estimate, caution=FEW_SOURCES) if estimate is not None and len(groups) < ENOUGH_SOURCES else estimate


def _corrected(
    labels: Labels, outputs: Labels, generator: np.random.Generator, shuffles: int = SUBSAMPLE_SHUFFLES
) -> Floats:
    """(k,) information of labels (k, n) that are clustered already, less that of shuffled outputs."""
    from attnaudit.metrics.ranked_information import information_by_rank

    shuffled = generator.permuted(np.tile(outputs, (shuffles, 1)), axis=1)
    information, null = information_by_rank(labels, outputs, shuffled)
    return information - null


def _weighted(information: Sequence[Floats], attention: Sequence[Floats]) -> Floats:
    """(S,) weighted τ of S rows of information and attention, each (k,)."""
    import torch

    from attnaudit.metrics.kendall import weighted_kendall_tau

    m, a = (torch.from_numpy(np.stack(rows)) for rows in (information, attention))
    found: Floats = weighted_kendall_tau(m, a, a).numpy()
    return found


def _same(attention: Floats) -> str:
    return "all ranks have the same attention" if np.ptp(attention) == 0 else "all ranks hold the same information"


def _or_none(x: float) -> float | None:
    return None if np.isnan(x) else x


def _charts(raw: Floats, information: Floats, attention: Floats) -> tuple[Chart, ...]:
    ranks = [float(r) for r in range(1, len(raw) + 1)]

    def series(name: str, values: Sequence[float]) -> Series:
        return Series(name=name, x=ranks, y=[float(v) for v in values])

    return (
        Chart(
            title="Information about the output by attention rank",
            x_label="rank of attention (1 = largest)",
            y_label="mutual information, nats",
            kind="line",
            series=[series("null-corrected", information.tolist()), series("uncorrected", raw.tolist())],
        ),
        Chart(
            title="Mean attention by rank",
            x_label="rank of attention (1 = largest)",
            y_label="mean attention weight",
            kind="bar",
            series=[series("attention", attention.tolist())],
        ),
    )
