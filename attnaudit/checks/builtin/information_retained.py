"""Can the word still be read from its hidden state? (Tutek & Šnajder 2020, §3.4)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from attnaudit.arrays import Integers
from attnaudit.checks.base import Check, registered
from attnaudit.checks.evidence import Evidence
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction, Reference
from attnaudit.statistics.half_sampling import subsampling_interval

#: The number of shuffles of the states that correct the information: for all occurrences, and for each subsample.
SHUFFLES = 20
SUBSAMPLE_SHUFFLES = 2
#: The number of shuffles of the states for the reference `floor`, which is a percentile over these shuffles.
REFERENCE_SHUFFLES = 100


@registered
@dataclass(frozen=True, kw_only=True)
class InformationRetained(Check):
    """Share of the information about a token's embedding that its hidden state retains, corrected for chance.

    The value is (MI(e; h) - null) / (H(e) - null) for embeddings e and hidden states h. MI is the plug-in mutual
    information in nats, null is the mean of MI over shuffled states, and H is the entropy. The value is 1 if the state
    determines the embedding, and 0 if MI is as expected by chance.

    Up to 50,000 occurrences of up to 1,000 words are used. Mini-batch k-means clusters their embeddings and,
    separately, their states. The number of clusters is ⌊√occurrences⌋, but at most 1,000. The paper uses 1,000 clusters
    for a million occurrences. A text that occurs several times in the data counts once. The interval is computed from
    subsamples, each with half of the sources. They keep the clusters of the whole sample.

    The value is undefined with fewer than 100 occurrences, or if all embeddings fall into one cluster.

    Args:
        words: Which words are used: "frequent" for the most frequent words, "sampled" for words that are drawn with
            probabilities proportional to frequency^0.75.
    """

    words: Literal["frequent", "sampled"] = "frequent"

    directions: ClassVar[tuple[Direction, ...]] = ("at_least",)

    family = "states"
    question = "Does the hidden state of a token still determine which word the token is?"
    why = (
        "A weight on a hidden state is shown as a weight on the word at its position. If the state no longer contains "
        "this word, the weight says little about the word."
    )
    how_to_read = (
        "At 1, a hidden state determines the word at its position; at 0, it carries no more information about that "
        "word than expected by chance. The lower the value, the less a weight on a state says about the word at its "
        "position."
    )
    statistic = "ratio"
    unit = "share of information"
    value_name = "information retained"
    bounds = (-1.0, 1.0)

    def validate(self) -> None:
        self.require_choice("words", ("frequent", "sampled"))

    @property
    def subject(self) -> str:
        return f"information_retained.{self.words}"

    @property
    def title(self) -> str:
        return f"Hidden states retain their own word ({self.words} words)"

    def needs(self) -> tuple[str, ...]:
        return (f"retained.{self.words}",)

    def evidence(self, measurements: Measurements) -> Evidence:
        name = f"retained.{self.words}"
        embeddings = measurements.table(f"{name}.embeddings").astype(np.int64)
        states = measurements.table(f"{name}.states").astype(np.int64)
        instances = measurements.table(f"{name}.instances").astype(np.int64)
        first = measurements.table(f"{name}.first").astype(np.int64)
        defined = filled(len(measurements), False, np.bool_)
        defined[instances] = True
        absent = int((~defined).sum())
        evidence = Evidence(
            value=None,
            interval=None,
            defined=defined,
            undefined={"no occurrence of a chosen word": absent} if absent else {},
            details={"sizes": measurements.facts.get(f"{name}.sizes", "unknown")},
        )
        if not len(embeddings):
            return replace(evidence, note="undefined: too few occurrences to cluster")
        generator = self.generator(measurements, "null")
        order = np.argsort(instances, kind="stable")
        starts = np.searchsorted(instances[order], np.arange(len(measurements) + 1))
        counted = np.flatnonzero(first == np.arange(len(first)))  # copies count once
        information, null, entropy = information_and_null(embeddings[counted], states[counted], SHUFFLES, generator)
        if entropy - null <= 1e-9:
            return replace(evidence, note="undefined: all embeddings fall into one cluster")
        value = (information - null) / (entropy - null)

        def value_of_sample(sample: Integers) -> float:
            rows = first[np.concatenate([order[starts[i] : starts[i + 1]] for i in np.sort(sample)])]
            rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
            observed, chance, largest = information_and_null(
                embeddings[rows], states[rows], SUBSAMPLE_SHUFFLES, generator
            )
            return (observed - chance) / (largest - chance) if largest - chance > 1e-9 else float("nan")

        by_chance = [
            information_and_null(embeddings[counted], generator.permutation(states[counted]), 0, generator)[0]
            for _ in range(REFERENCE_SHUFFLES)
        ]
        return replace(
            evidence,
            value=value,
            interval=subsampling_interval(
                value_of_sample,
                measurements.groups(defined),
                observed=value,
                confidence=self.confidence,
                generator=self.generator(measurements, "interval"),
                bounds=self.bounds,
            ),
            references=(
                Reference(
                    name="floor",
                    value=float((np.quantile(by_chance, 0.95) - null) / (entropy - null)),
                    meaning=f"95th percentile over {REFERENCE_SHUFFLES} shuffles of the states",
                    n=len(counted),
                ),
                Reference(name="maximum", value=1.0, meaning="the state determines the embedding", n=len(counted)),
            ),
            details={
                **evidence.details,
                "mutual information of embedding and state, plug-in estimate, nats": information,
                "the same with shuffled states, nats": null,
                "entropy of the embeddings, nats": entropy,
            },
        )


def information_and_null(
    embeddings: Integers, states: Integers, shuffles: int, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Estimate the mutual information between clusters of embeddings and clusters of hidden states.

    Args:
        embeddings: (N,) clusters of the embeddings.
        states: (N,) clusters of the hidden states.
        shuffles: The number of shuffles.
        generator: Draws the shuffles.

    Returns:
        The plug-in mutual information, its mean over shuffled states (0 if `shuffles` is 0), and the entropy of the
        clusters of the embeddings. All three are in nats.
    """
    width = int(states.max()) + 1
    entropy, entropy_of_states = _entropy(embeddings), _entropy(states)

    def information(of_states: Integers) -> float:
        return entropy + entropy_of_states - _entropy(embeddings * width + of_states)

    null = [information(generator.permutation(states)) for _ in range(shuffles)]
    return information(states), float(np.mean(null)) if null else 0.0, entropy


def _entropy(labels: Integers) -> float:
    """Return the plug-in entropy of labels, in nats."""
    counts = np.bincount(labels)
    shares = counts[counts > 0] / len(labels)
    return float(-(shares * np.log(shares)).sum())
