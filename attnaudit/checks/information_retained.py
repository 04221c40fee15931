"""Does a hidden state still tell which word it stands at? (Tutek & Šnajder 2020, §3.4)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attnaudit.checks.base import Check, Description, registered
from attnaudit.checks.evidence import Evidence
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.half_sampling import subsampling_interval

SHUFFLES = 20
SUBSAMPLE_SHUFFLES = 2
REFERENCE_SHUFFLES = 100

Labels = NDArray[np.int64]


@registered
@dataclass(frozen=True, kw_only=True)
class InformationRetained(Check):
    """Share of the information about a token's embedding that its hidden state retains, corrected for chance:
    (MI(e; h) - null) / (H(e) - null), 1 where the state tells the embedding, 0 at chance.

    Both sides are quantised by mini-batch k-means over occurrences of up to 1000 words; MI is plug-in, in nats, and
    null its mean over shuffled states. T's 1000 clusters belong to a million occurrences; with fewer there are
    ⌊√occurrences⌋ clusters (as many cells of the joint table as occurrences), and at most 50,000 occurrences are kept.
    words: "frequent", the most frequent (MF), or "sampled" ∝ frequency^0.75 (RS). Undefined with fewer than 100
    occurrences or where all embeddings fall together. Interval: subsampling over sources, k-means fitted once. Needs
    retained.<words>; tables retained.<words>.embeddings, .states, .instances."""

    words: Literal["frequent", "sampled"] = "frequent"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    def validate(self) -> None:
        self.choose("words", ("frequent", "sampled"))

    @property
    def subject(self) -> str:
        return f"information_retained.{self.words}"

    def needs(self) -> tuple[str, ...]:
        return (f"retained.{self.words}",)

    @property
    def description(self) -> Description:
        return Description(
            family="states",
            title=f"Hidden states retain their own word ({self.words} words)",
            question="Does the hidden state at a token still tell which word it is?",
            why="A weight on a hidden state is shown as a weight on the word at its place. Where the state has lost "
            "that word, the weight is about something else.",
            how_to_read="At 1, a hidden state determines which word it stands at; at 0, it tells no more about that "
            "word than chance does. The lower the value, the less a weight on a state is a weight on the word there.",
            statistic="ratio",
            unit="share of information",
            value_name="information retained",
            low=-1.0,
            high=1.0,
        )

    def evidence(self, measurements: Measurements) -> Evidence:
        name = f"retained.{self.words}"
        embeddings = measurements.table(f"{name}.embeddings").astype(np.int64)
        states = measurements.table(f"{name}.states").astype(np.int64)
        instances = measurements.table(f"{name}.instances").astype(np.int64)
        defined = np.zeros(len(measurements), dtype=bool)
        defined[instances] = True
        absent = int((~defined).sum())
        found = Evidence(
            value=None,
            interval=None,
            defined=defined,
            undefined={"no occurrence of a chosen word": absent} if absent else {},
            details={"sizes": measurements.facts.get(f"{name}.sizes", "unknown")},
        )
        if not len(embeddings):
            return replace(found, note="undefined: too few occurrences to cluster")
        generator = self.generator(measurements, "null")
        information, null, entropy = retained(embeddings, states, SHUFFLES, generator)
        if entropy - null <= 1e-9:
            return replace(found, note="undefined: all embeddings fall together")
        value = (information - null) / (entropy - null)
        order = np.argsort(instances, kind="stable")
        starts = np.searchsorted(instances[order], np.arange(len(measurements) + 1))

        def again(chosen: Labels) -> float:
            rows = np.concatenate([order[starts[i] : starts[i + 1]] for i in np.sort(chosen)])
            part = retained(embeddings[rows], states[rows], SUBSAMPLE_SHUFFLES, generator)
            return (part[0] - part[1]) / (part[2] - part[1]) if part[2] - part[1] > 1e-9 else float("nan")

        by_chance = [
            retained(embeddings, generator.permutation(states), 0, generator)[0] for _ in range(REFERENCE_SHUFFLES)
        ]
        return replace(
            found,
            value=value,
            interval=subsampling_interval(
                again,
                Groups.of(measurements.instances, defined),
                observed=value,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=(-1.0, 1.0),
            ),
            references=(
                Reference(
                    name="floor",
                    value=float((np.quantile(by_chance, 0.95) - null) / (entropy - null)),
                    meaning=f"95th percentile over {REFERENCE_SHUFFLES} shuffles of the states",
                    n=len(embeddings),
                ),
                Reference(name="ceiling", value=1.0, meaning="the state tells the embedding", n=len(embeddings)),
            ),
            details={
                **found.details,
                "MI(e; h), nats, plug-in": information,
                "the same of shuffled states (null), nats": null,
                "entropy of the embeddings, nats": entropy,
            },
        )


def retained(
    embeddings: Labels, states: Labels, shuffles: int, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Plug-in MI (nats) of two label sequences (N,), its mean over shuffled states (0 without shuffles), and the
    entropy of the first."""
    width = int(states.max()) + 1
    first, second = _entropy(embeddings), _entropy(states)

    def information(other: Labels) -> float:
        return first + second - _entropy(embeddings * width + other)

    null = [information(generator.permutation(states)) for _ in range(shuffles)]
    return information(states), float(np.mean(null)) if null else 0.0, first


def _entropy(labels: Labels) -> float:
    counts = np.bincount(labels)
    share = counts[counts > 0] / len(labels)
    return float(-(share * np.log(share)).sum())
