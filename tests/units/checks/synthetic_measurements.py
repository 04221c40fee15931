"""Synthetic measurements with every column that the built-in checks read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnaudit.engine.measurements import Measurements
from attnaudit.instances import Instance

CURVE = ("0.01", "0.02", "0.05", "0.1", "0.2")
IMPORTANCES = (
    "gradient.meister.inputs",
    "gradient.meister.hidden",
    "gradient.jain_wallace.inputs",
    "gradient.jain_wallace.hidden",
    "input_x_gradient.inputs",
    "leave_one_out.inputs",
)


def measured(n: int = 120, *, seed: int = 0, labelled: bool = True, sources: int | None = None) -> Measurements:
    """Return measurements of n instances with 3 to 8 tokens, random but fixed by the seed."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 9, n)
    ids = [f"row-{i:04d}" for i in range(n)]
    instances = [
        Instance(id=ids[i], text=f"t {i}", source=None if sources is None else f"source-{i % sources}")
        for i in range(n)
    ]
    attention = [random.dirichlet(np.ones(length)) for length in lengths]
    labels = random.integers(0, 2, n)
    predicted = np.where(random.random(n) < 0.8, labels, 1 - labels)
    m = Measurements(
        model="model",
        data="data",
        seed=seed,
        classes=("negative", "positive"),
        instances=instances,
        sources=[one.source or one.id for one in instances],
        tokens=[[f"w{j}" for j in range(length)] for length in lengths],
        labels=(labels if labelled else np.full(n, -1)).astype(np.int64),
        predicted=predicted.astype(np.int64),
    )
    m.vectors["attention"] = attention
    m.per_token.add("attention")
    m.scalars["attention.max"] = np.array([a.max() for a in attention])
    for name in IMPORTANCES:
        m.vectors[name] = [random.dirichlet(np.ones(length)) for length in lengths]
        m.per_token.add(name)
        for column in ("tau", "floor", "gradient_loo"):
            m.scalars[f"agreement.{name}.{column}"] = random.uniform(-0.2, 0.8, n)
        m.scalars[f"agreement.{name}.p_value"] = random.random(n)
        m.scalars[f"agreement.{name}.near_ties"] = np.zeros(n)
        m.scalars[f"entropy.{name}"] = random.beta(8, 2, n)
    for column in ("entropy", "own_share", "rival_share", "co_indexed_entropy"):
        m.scalars[f"influence.hidden.{column}"] = random.beta(8, 2, n)
    m.scalars["permutation.tvd"] = random.beta(1, 20, n)
    m.vectors["permutation.predicted"] = [
        np.where(random.random(20) < 0.9, p, 1 - p).astype(np.float64) for p in predicted
    ]
    add_rearrangement(m, np.random.default_rng(seed + 1))
    m.scalars["uniform.tvd"] = random.beta(1, 20, n)
    m.scalars["uniform.predicted"] = np.where(random.random(n) < 0.9, predicted, 1 - predicted).astype(np.float64)
    for epsilon in CURVE:
        jsd = random.uniform(0.4, 0.6, n)
        m.scalars[f"adversarial.{epsilon}.jsd"] = jsd
        m.scalars[f"adversarial.{epsilon}.upper"] = jsd
        m.scalars[f"adversarial.{epsilon}.most"] = np.full(n, 0.65)
        m.scalars[f"adversarial.{epsilon}.share"] = jsd / 0.65
        m.scalars[f"adversarial.{epsilon}.tvd"] = np.full(n, float(epsilon))
        m.vectors[f"adversarial.{epsilon}.attention"] = attention
        m.per_token.add(f"adversarial.{epsilon}.attention")
    m.facts["adversarial.method"] = "exact"
    add_erasure(m, random)
    add_effects(m, random)
    kept = np.random.default_rng(seed + 2)
    m.vectors["attended_tokens.change"] = [-one * kept.uniform(-0.2, 1.2) for one in m.vectors["logits"]]
    m.scalars["attended_tokens.number"] = kept.integers(1, 4, n).astype(np.float64)
    m.vectors["attended_tokens.kept"] = [(one >= np.sort(one)[-1]).astype(np.float64) for one in m.vectors["attention"]]
    m.per_token.add("attended_tokens.kept")
    return m


def add_rearrangement(m: Measurements, random: np.random.Generator) -> None:
    """Add the output of every run and the columns of rearranged attention."""
    n = len(m)
    towards = np.where(m.predicted == 1, 1.0, -1.0) * random.gamma(2, 1, n)
    m.vectors["logits"] = [np.array([-z / 2, z / 2]) for z in towards]
    m.vectors["probabilities"] = [np.array([1 / (1 + np.exp(z)), 1 / (1 + np.exp(-z))]) for z in towards]
    m.scalars["rearrangement.logits"] = random.gamma(1, 1, n)
    m.scalars["rearrangement.probabilities"] = random.beta(1, 9, n)
    m.vectors["rearrangement.centred_logits"] = [np.full(32, np.nan)] * n
    for i, row in enumerate(m.vectors["logits"]):
        moved = np.full((16, 2), np.nan)
        count = int(random.integers(2, 17))
        moved[:count, 1] = row[1] + random.normal(size=count)
        moved[:count, 0] = -moved[:count, 1]
        m.vectors["rearrangement.centred_logits"][i] = moved.ravel()
    m.scalars["rearrangement.tvd"] = random.beta(1, 20, n)
    flipped = np.where(random.random(n) < 0.3, random.random(n), 0.0)
    m.vectors["rearrangement.decisions"] = [
        np.array([1 - f, f]) if p == 0 else np.array([f, 1 - f]) for f, p in zip(flipped, m.predicted, strict=True)
    ]
    m.vectors["rearrangement.predicted"] = [
        np.where(random.random(20) < 0.9, p, 1 - p).astype(np.float64) for p in m.predicted
    ]


def add_effects(
    m: Measurements, random: np.random.Generator, kinds: Sequence[str] = ("held", "live", "shapley.20")
) -> None:
    """Add the columns of the pointing checks: effects that grow with the attention, and differ in size by text."""
    for kind in kinds:
        for suffix, size in (("", 1.0), (".logits", 4.0)):
            effects = [
                size * random.random() * (0.7 * weights + 0.3 * random.dirichlet(np.ones(len(weights))))
                for weights in m.vectors["attention"]
            ]
            set_effects(m, f"{kind}{suffix}", effects)


def set_effects(m: Measurements, name: str, effects: Sequence[np.ndarray]) -> None:
    """Set the effects of one kind, such as "held", and the columns of `pointing` that follow from them."""
    m.vectors[f"token_effect.{name}"] = list(effects)
    m.per_token.add(f"token_effect.{name}")
    columns = []
    for weights, signed in zip(m.vectors["attention"], effects, strict=True):
        effect = np.abs(signed)
        length = np.linalg.norm(effect) or np.nan
        columns.append(
            {
                "largest": effect.max(),
                "cosine": weights @ effect / np.linalg.norm(weights) / length,
                "uniform_cosine": effect.sum() / np.sqrt(len(effect)) / length,
                "drawn": weights @ effect,
                "drawn_uniform": effect.mean(),
            }
        )
    for column in ("largest", "cosine", "uniform_cosine", "drawn", "drawn_uniform"):
        m.scalars[f"pointing.{name}.{column}"] = np.array([row[column] for row in columns])


def add_erasure(m: Measurements, random: np.random.Generator) -> None:
    """Add the columns of the erasure, state and randomisation checks."""
    n = len(m)
    for metric, attention, chance, best in (("comprehensiveness", 5, 2, 7), ("sufficiency", 2, 5, 1)):
        for operator in ("deletion", "mask"):
            for decision in ("", ".decision"):
                name = f"{metric}.{operator}{decision}"
                for order, height in (("attention", attention), ("random", chance), ("loo", best)):
                    curve = random.beta(height, 10 - height, (n, 5))
                    m.scalars[f"{name}.{order}"] = curve.mean(1)
                    m.vectors[f"{name}.{order}.curve"] = list(curve)
                m.scalars[f"{name}.shuffled"] = random.beta(chance, 10 - chance, n)
    for order, height in (
        ("attention", 5),
        ("random", 8),
        ("shuffled", 8),
        ("gradient", 4),
        ("attention_x_gradient", 3),
    ):
        m.scalars[f"flip.{order}"] = random.beta(height, 10 - height, n)
    m.scalars["top_token.attention"] = (random.random(n) < 0.4).astype(np.float64)
    m.scalars["top_token.random"] = random.beta(1, 9, n)
    m.scalars["top_token.any"] = np.maximum(m.scalars["top_token.attention"], random.random(n) < 0.3)
    for operator in ("deletion", "mask"):
        m.scalars[f"polarity.{operator}.attention"] = (random.random(n) < 0.2).astype(np.float64)
        m.scalars[f"polarity.{operator}.random"] = random.beta(4, 6, n)
        for name in ("comprehensiveness", "sufficiency", "random", "highest"):
            m.scalars[f"normalised_aopc.{operator}.{name}"] = random.beta(6, 4, n)
        m.scalars[f"normalised_aopc.{operator}.lowest"] = -random.beta(1, 9, n)
        m.scalars[f"normalised_aopc.{operator}.searched"] = (random.random(n) < 0.3).astype(np.float64)
    m.scalars["token_probability"] = random.beta(6, 4, n)
    m.scalars["token_probability.whole"] = random.beta(9, 1, n)
    m.scalars["conicity"] = random.beta(5, 5, n)
    m.scalars["conicity.orthogonal"] = m.lengths**-0.5
    for of in ("attention", "gradient"):
        m.scalars[f"randomised.{of}.tau"] = random.uniform(-0.5, 0.7, n)
        m.scalars[f"randomised.{of}.tau.floor"] = random.uniform(-0.5, 0.5, n)
        m.scalars[f"randomised.{of}.jsd"] = random.uniform(0, 0.6, n)
        for copy, shift in ((1, -0.01), (2, 0.0), (3, 0.01)):
            for name in ("tau", "jsd"):
                m.scalars[f"randomised.{of}.{name}.{copy}"] = m.scalars[f"randomised.{of}.{name}"] + shift
        m.scalars[f"randomised.{of}.jsd.floor"] = random.uniform(0, 0.6, n)
    own = np.random.default_rng(n)  # other numbers are drawn from `random` after these
    for name, reference in (("datamodel_score.32", "uniform"), ("top_k_drop.1", "random")):
        m.scalars[name] = own.uniform(0.1, 0.9, n)
        m.scalars[f"{name}.{reference}"] = own.uniform(-0.2, 0.4, n)


def reordered(m: Measurements, order: np.ndarray) -> Measurements:
    """Return the same measurements with the instances in another order."""
    return Measurements(
        model=m.model,
        data=m.data,
        seed=m.seed,
        classes=m.classes,
        instances=[m.instances[i] for i in order],
        sources=[m.sources[i] for i in order],
        tokens=[m.tokens[i] for i in order],
        labels=m.labels[order],
        predicted=m.predicted[order],
        scalars={name: column[order] for name, column in m.scalars.items()},
        vectors={name: [column[i] for i in order] for name, column in m.vectors.items()},
        per_token=set(m.per_token),
        tables=dict(m.tables),
        facts=m.facts,
    )
