"""Does attention rank hidden states by what they tell about the output? (Wen, Subbalakshmi & Yang 2022, §3.2)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.evidence import Detail, Evidence
from attnaudit.checks.intervals import Groups, subsampling_interval
from attnaudit.measurement.measurements import Floats, Measurements, Table
from attnaudit.records import Chart, Reference, Series

FEWEST = 10
SHUFFLES = 100
SUBSAMPLE_SHUFFLES = 10
REFERENCE_SHUFFLES = 50
#: Fitting k-means again for the floor is left out beyond this many multiplications per iteration.
FLOOR_COST = 2e10

Labels = NDArray[np.int64]


@registered
@dataclass(frozen=True, kw_only=True)
class InformationRanking(Check):
    """Shieh's weighted τ between mean attention by rank and the mutual information (nats) of that rank's hidden states
    with the output, corrected by a label-shuffle null.

    Undefined with fewer than two ranks, fewer than 10 instances, or when no two ranks differ. Instances shorter than
    the number of ranks are left out and counted. Interval: subsampling over sources, k-means fitted once.
    """

    @property
    def id(self) -> str:
        return "information_ranking"

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
            statistic="weighted",
            unit="Shieh's τ",
            measured="weighted τ",
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
        from attnaudit.metrics.information_ranking import default_clusters, quantise, quantise_outputs
        from attnaudit.metrics.mutual_information import mutual_information, shuffled_information

        groups = Groups.of(measurements.instances, found.defined)
        # k-means depends on the order of its rows, so they are put in an order of their own.
        place = np.full(len(measurements), -1)
        place[measurements.table("ranked_hidden.instances").astype(np.int64)] = np.arange(len(groups.rows))
        rows, seed = place[groups.rows], int(measurements.seed)
        states = measurements.table("ranked_hidden.states")
        weights = np.asarray(measurements.table("ranked_hidden.weights"), dtype=np.float64)[rows]
        outputs = quantise_outputs(measurements.table("ranked_hidden.outputs")[rows], seed=seed)
        clusters = default_clusters(len(rows))
        labels = np.stack([quantise(states[rows, r], clusters, seed=seed) for r in range(states.shape[1])])
        attention = weights.mean(0)

        raw = np.array([mutual_information(rank, outputs) for rank in labels])
        null = [shuffled_information(rank, outputs, shuffles=SHUFFLES, seed=seed).mean() for rank in labels]
        information = raw - np.array(null)
        value = weighted_tau(information, attention)
        spot = np.full(len(measurements), -1)
        spot[groups.rows] = np.arange(len(groups.rows))

        generator = self.generator(measurements, "null")

        def again(chosen: NDArray[np.int64]) -> float:
            part = spot[chosen]
            few = corrected_information(labels[:, part], outputs[part], SUBSAMPLE_SHUFFLES, generator)
            return weighted_tau(few, weights[part].mean(0))

        known = not np.isnan(value)
        details: dict[str, Detail] = {
            **found.details,
            "clusters (N)": int(clusters),
            "weight of the first rank": float(attention[0] / attention.sum()),
            "unweighted τ-b": _tau_b(information, attention),
        }
        return replace(
            found,
            value=value if known else None,
            interval=subsampling_interval(
                again,
                groups,
                observed=value,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(-1.0, 1.0),
            )
            if known
            else None,
            details=details,
            references=(
                self._floor(measurements, states, rows, attention, outputs, clusters),
                self._label_shuffle(measurements, labels, outputs, attention),
            ),
            charts=_charts(raw, information, attention),
            note="" if known else "undefined: all ranks hold the same information",
        )

    def _floor(
        self,
        measurements: Measurements,
        states: Table,
        rows: Labels,
        attention: Floats,
        outputs: Labels,
        clusters: int,
    ) -> Reference:
        from attnaudit.metrics.information_ranking import quantise

        ranks, width = states.shape[1:]
        value = None
        if len(rows) * ranks * width * clusters <= FLOOR_COST:
            generator = self.generator(measurements, "floor")
            order = generator.permuted(np.tile(np.arange(ranks), (len(rows), 1)), axis=1)
            labels = np.stack(
                [quantise(states[rows, order[:, r]], clusters, seed=int(measurements.seed)) for r in range(ranks)]
            )
            value = _or_none(weighted_tau(corrected_information(labels, outputs, SHUFFLES, generator), attention))
        return Reference(
            name="floor",
            value=value,
            meaning="weighted τ with each instance's attention shuffled over its ranked states"
            + ("" if value is not None else "; undefined or too large to fit again"),
            n=len(rows),
        )

    def _label_shuffle(
        self, measurements: Measurements, labels: Labels, outputs: Labels, attention: Floats
    ) -> Reference:
        generator = self.generator(measurements, "label shuffle")
        taus = np.array(
            [
                weighted_tau(
                    corrected_information(labels, generator.permutation(outputs), SUBSAMPLE_SHUFFLES, generator),
                    attention,
                )
                for _ in range(REFERENCE_SHUFFLES)
            ]
        )
        taus = taus[~np.isnan(taus)]
        return Reference(
            name="label shuffle",
            value=float(np.quantile(taus, 0.95)) if len(taus) else None,
            meaning=f"95th percentile of the weighted τ over {REFERENCE_SHUFFLES} shuffles of the outputs: "
            "what chance alone reaches",
            n=len(outputs),
        )


def corrected_information(labels: Labels, outputs: Labels, shuffles: int, generator: np.random.Generator) -> Floats:
    """(k,) plug-in MI (nats) of each row of labels (k, n) with outputs (n,), minus its mean over shuffled outputs.

    The entropies of the two sequences cancel in the difference, so only joint counts are needed, all shuffles at once.
    """
    n, width = len(outputs), int(outputs.max()) + 1
    counts = np.arange(n + 1, dtype=np.float64)
    weigh = counts * np.log(np.maximum(counts, 1.0))
    shuffled = generator.permuted(np.tile(outputs, (shuffles, 1)), axis=1)
    rows = np.concatenate([outputs[None], shuffled])
    found = np.empty(len(labels))
    for r, rank in enumerate(labels):
        cells = (int(rank.max()) + 1) * width
        joint = rank * width + rows + cells * np.arange(shuffles + 1)[:, None]
        tables = np.bincount(joint.ravel(), minlength=cells * (shuffles + 1)).reshape(shuffles + 1, cells)
        sums = weigh[tables].sum(1) / n
        found[r] = sums[0] - sums[1:].mean()
    return found


def weighted_tau(information: Floats, attention: Floats) -> float:
    """Shieh's weighted τ of two (k,) sequences with the attention as weights: ties count 0; NaN if all are tied.

    Σ_{i<j} w_i w_j sgn(m_i - m_j) sgn(a_i - a_j) / Σ_{i<j} w_i w_j, with w = a.
    """
    first, second = np.triu_indices(len(attention), 1)
    m, a = np.sign(information[first] - information[second]), np.sign(attention[first] - attention[second])
    pair = attention[first] * attention[second]
    if not (pair * np.abs(m)).any() or not (pair * np.abs(a)).any():
        return float("nan")
    return float((pair * m * a).sum() / pair.sum())


def _tau_b(information: Floats, attention: Floats) -> float | None:
    from scipy.stats import kendalltau

    return _or_none(float(kendalltau(information, attention).statistic))


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
