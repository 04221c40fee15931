"""Do hidden states with more attention hold more information about the output? (Wen, Subbalakshmi & Yang 2022, §3.2)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import numpy as np

from attnaudit.arrays import Floats, Integers
from attnaudit.checks.base import Check, registered
from attnaudit.checks.evidence import Detail, Evidence, number_or_none
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Chart, Direction, Reference, Series
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.half_sampling import FEWEST_TO_HALVE, from_half_samples, half_samples
from attnaudit.statistics.interval_estimate import IntervalEstimate

if TYPE_CHECKING:
    from attnaudit.arrays import RealArray
    from attnaudit.metrics.ranked_information import InformationRanking as Ranking

PRESETS = ("wen", "wen_50")
MINIMUM_INSTANCES = 10
#: The number of shuffles of the outputs that correct the information: for all instances, and for each subsample.
SHUFFLES = 100
SUBSAMPLE_SHUFFLES = 10
#: The number of shuffles of the outputs for the reference "label shuffle", which is a percentile over these shuffles.
REFERENCE_SHUFFLES = 50
#: With fewer sources, the interval is too narrow (see benchmarks/coverage.md).
ENOUGH_SOURCES = 100
FEW_SOURCES = (
    f"there are fewer than {ENOUGH_SOURCES} independent sources, so the interval may be too narrow: in simulations "
    "with 30 sources, 95% intervals of this statistic contained the true value in 91% of samples"
)
#: The reference `floor` is not computed if an iteration of its k-means would need more multiplications than this.
LARGEST_FLOOR_COST = 2e10


@registered
@dataclass(frozen=True, kw_only=True)
class InformationRanking(Check):
    """Shieh's weighted τ between the attention at each rank and the information of the hidden states at this rank.

    The hidden states of each instance are ranked by attention. For each rank, the states of all instances are clustered
    by k-means. The information of a rank is the mutual information (nats) between these clusters and the outputs of the
    model, minus its mean over shuffles of the outputs. Instances with fewer tokens than there are ranks are left out,
    and the report gives their number. In a data set with more than 10,000 instances, a random sample of 10,000 is used.
    The interval is computed from subsamples, each with half of the sources. They keep the clusters of all instances
    that are used.

    The value is undefined if there are fewer than 2 ranks or fewer than 10 instances. It is also undefined if all ranks
    have the same attention or the same information, or if the preset finds no number of clusters.

    Args:
        preset: How the number of clusters is chosen. None (the default): one twentieth of the number of instances, but
            at least 5 and at most 200. "wen": the smallest number from 50 to 200 with which every cluster has at least
            two members.
            "wen_50": 50, the smallest number that "wen" tries. Clusters with a single member are merged into the
            nearest one.
    """

    preset: Literal["wen", "wen_50"] | None = None

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "information"
    title = "Attention ranks hidden states by their information about the output"
    question = "Do positions with more attention hold hidden states with more information about the output?"
    why = (
        "If the most attended states hold no more information about the output than others, the weights do not show "
        "where the decision came from. The first rank often holds nearly all weight, so see the unweighted τ-b too."
    )
    how_to_read = (
        "The hidden states of each text are ranked by attention. At a weighted τ of 1, states on ranks with more "
        "attention always have more information about the output; at −1, they always have less. The first ranks "
        "dominate the value, so read the unweighted τ-b as well."
    )
    statistic = "weighted"
    unit = "Shieh's τ"
    value_name = "weighted τ"
    bounds = (-1.0, 1.0)

    def validate(self) -> None:
        if self.preset is not None:
            self.require_choice("preset", PRESETS)

    @property
    def subject(self) -> str:
        return "information_ranking" if self.preset is None else f"information_ranking.{self.preset}"

    def needs(self) -> tuple[str, ...]:
        return ("ranked_hidden",)

    def evidence(self, measurements: Measurements) -> Evidence:
        n, ranks = measurements.table("ranked_hidden.states").shape[:2]
        defined = measurements.table("ranked_hidden.long_enough").astype(bool)
        too_short = int((~defined).sum())
        evidence = Evidence(
            value=None,
            interval=None,
            defined=defined,
            undefined={f"fewer than {ranks} tokens": too_short} if too_short else {},
            details={
                "ranks (k)": int(ranks),
                "what limits the number of ranks": measurements.facts.get("ranked_hidden.k_rule", "unknown"),
                "instances": int(n),
            },
        )
        if ranks < 2:
            return replace(evidence, note="undefined: there is only one rank to compare")
        if n < MINIMUM_INSTANCES:
            return replace(evidence, note=f"undefined: fewer than {MINIMUM_INSTANCES} instances to cluster")
        return self._with_ranking(measurements, evidence)

    def _with_ranking(self, measurements: Measurements, evidence: Evidence) -> Evidence:
        """Return the evidence with the value, its interval, references and charts."""
        from attnaudit.metrics.ranked_information import WEN_CLUSTERS, information_ranking, ranking_agreement

        instances = measurements.table("ranked_hidden.instances").astype(np.int64)
        position = filled(len(measurements), -1, np.int64)
        position[instances] = np.arange(len(instances))
        groups = measurements.groups(position >= 0)
        # The result of k-means depends on the order of the rows, so the rows are sorted as in the groups.
        rows = position[groups.rows]
        states = cast("RealArray", measurements.table("ranked_hidden.states"))
        weights = np.asarray(measurements.table("ranked_hidden.weights"), dtype=np.float64)
        ranking = information_ranking(
            states,
            weights,
            cast("RealArray", measurements.table("ranked_hidden.outputs")),
            order=rows,
            seed=int(measurements.seed),
            preset="wen" if self.preset == "wen" else None,
            clusters=WEN_CLUSTERS[0] if self.preset == "wen_50" else None,
            shuffles=SHUFFLES,
        )
        attention = ranking.attention
        details: dict[str, Detail] = {
            **evidence.details,
            "clusters (N)": ranking.clusters,
            "weight of the first rank": float(attention[0] / attention.sum()),
            "unweighted τ-b": number_or_none(ranking.tau_b),
            "weighted τ of uncorrected information": number_or_none(
                ranking_agreement(ranking.information, attention)[0]
            ),
        }
        if ranking.clusters is None:
            note = "undefined: with any number of clusters from 50 to 200, some rank has a cluster with only one member"
            return replace(evidence, details=details, note=note)
        value, interval, note = number_or_none(ranking.weighted_tau), None, ""
        if value is None:
            tied = "have the same attention" if np.ptp(attention) == 0 else "hold the same information"
            note = f"undefined: all ranks {tied}"
        else:
            interval = ranking_interval(
                ranking,
                weights[rows],
                groups,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                shuffling=self.generator(measurements, "null"),
            )
        return replace(
            evidence,
            value=value,
            interval=interval,
            details=details,
            references=(
                self._floor(measurements, states, rows, ranking),
                self._label_shuffle(measurements, ranking),
            ),
            charts=_charts(ranking),
            note=note,
        )

    def _floor(self, measurements: Measurements, states: RealArray, rows: Integers, ranking: Ranking) -> Reference:
        """Return the weighted τ with shuffled attention. The value is None if τ is undefined or takes too long.

        Args:
            measurements: The measurements.
            states: (n, k, m) hidden states by rank.
            rows: (n,) the rows of `states` in the order of the ranking.
            ranking: The ranking.
        """
        from attnaudit.metrics.clusters import quantise_ranks
        from attnaudit.metrics.ranked_information import states_at

        n, ranks, width = states.shape
        clusters, value = ranking.clusters or 1, None
        if n * ranks * width * clusters <= LARGEST_FLOOR_COST:
            generator = self.generator(measurements, "floor")
            order = generator.permuted(np.tile(np.arange(ranks), (n, 1)), axis=1)
            labels = quantise_ranks(
                lambda rank: states_at(states, rows, order[:, rank]),
                (n, ranks, width),
                clusters,
                seed=int(measurements.seed),
            )
            information = _corrected_information(labels, ranking.outputs, generator, SHUFFLES)
            value = number_or_none(float(_weighted_taus([information], [ranking.attention])[0]))
        return Reference(
            name="floor",
            value=value,
            meaning="weighted τ if the attention of each instance is shuffled over its ranked states"
            + ("" if value is not None else "; the value is undefined or too expensive to compute"),
            n=n,
        )

    def _label_shuffle(self, measurements: Measurements, ranking: Ranking) -> Reference:
        """Return the 95th percentile of the weighted τ over shuffles of the outputs."""
        generator = self.generator(measurements, "label shuffle")
        information = [
            _corrected_information(ranking.labels, generator.permutation(ranking.outputs), generator)
            for _ in range(REFERENCE_SHUFFLES)
        ]
        taus = _weighted_taus(information, [ranking.attention] * REFERENCE_SHUFFLES)
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
    shuffling: np.random.Generator,
) -> IntervalEstimate | None:
    """Return the interval of the weighted τ, computed from subsamples.

    Each subsample contains half of the sources, and keeps the clusters of the whole sample.

    Args:
        ranking: The ranking, with its instances in the order of `groups.rows`.
        weights: (n, k) attention by rank, with the instances in the order of `groups.rows`.
        groups: The instances by source.
        confidence: The confidence of the interval.
        generator: Draws the subsamples.
        shuffling: Draws the shuffles of the outputs, with which the information is corrected.

    Returns:
        The interval; None with fewer than 4 sources, or if τ is undefined in more than a tenth of the subsamples.
    """
    if len(groups) < FEWEST_TO_HALVE:
        return None
    position = filled(int(groups.rows.max(initial=-1)) + 1, -1, np.int64)
    position[groups.rows] = np.arange(len(groups.rows))
    samples = [position[rows] for rows in half_samples(groups, generator)]
    information = [
        _corrected_information(ranking.labels[:, sample], ranking.outputs[sample], shuffling) for sample in samples
    ]
    taus = _weighted_taus(information, [weights[sample].mean(0) for sample in samples])
    estimate = from_half_samples(taus, observed=ranking.weighted_tau, confidence=confidence, bounds=(-1.0, 1.0))
    return (
        replace(estimate, coverage_warning=FEW_SOURCES)
        if estimate is not None and len(groups) < ENOUGH_SOURCES
        else estimate
    )


def _corrected_information(
    labels: Integers, outputs: Integers, generator: np.random.Generator, shuffles: int = SUBSAMPLE_SHUFFLES
) -> Floats:
    """Return the (k,) information of the ranks, from (k, n) clusters, minus its mean over shuffles of the outputs."""
    from attnaudit.metrics.ranked_information import information_by_rank

    shuffled = generator.permuted(np.tile(outputs, (shuffles, 1)), axis=1)
    information, null = information_by_rank(labels, outputs, shuffled)
    return information - null


def _weighted_taus(information: Sequence[Floats], attention: Sequence[Floats]) -> Floats:
    """Return the (S,) weighted τ of S pairs of (k,) information and (k,) attention."""
    import torch

    from attnaudit.metrics.kendall import weighted_kendall_tau

    by_information, by_attention = (torch.from_numpy(np.stack(rows)) for rows in (information, attention))
    taus: Floats = weighted_kendall_tau(by_information, by_attention, by_attention).numpy()
    return taus


def _charts(ranking: Ranking) -> tuple[Chart, ...]:
    """Return charts of the information and the attention of each rank."""
    ranks = [float(rank) for rank in range(1, len(ranking.information) + 1)]

    def series(name: str, values: Floats) -> Series:
        return Series(name=name, x=ranks, y=[float(value) for value in values])

    return (
        Chart(
            title="Information about the output by attention rank",
            x_label="rank of attention (1 = largest)",
            y_label="mutual information, nats",
            kind="line",
            series=[series("null-corrected", ranking.corrected), series("uncorrected", ranking.information)],
        ),
        Chart(
            title="Mean attention by rank",
            x_label="rank of attention (1 = largest)",
            y_label="mean attention weight",
            kind="bar",
            series=[series("attention", ranking.attention)],
        ),
    )
