"""Check records for tests: a failed check, and a realistic list with one check of each kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnaudit.records import Chart, CheckRecord, Histogram, Interval, RankedInstance, Reference, Requirement, Series


def check_record(**changes: Any) -> CheckRecord:
    """Return a failed agreement check; `changes` replace its fields."""
    values = 0.21 + 0.3 * np.random.default_rng(0).standard_normal(1981)
    counts, edges = np.histogram(np.clip(values, -1, 1), bins=24, range=(-1, 1))
    fields: dict[str, Any] = {
        "check": "agreement.gradient.meister.inputs",
        "family": "agreement",
        "model": "demo",
        "data": "movie-reviews",
        "seed": 0,
        "title": "Attention agrees with the gradient",
        "question": "Does attention order the tokens as the gradient of the predicted probability orders them?",
        "why": "A reader takes the heaviest token for the most important one. If a one-step change of other tokens "
        "moves the output more, that reading misleads.",
        "how_to_read": "1 is the same order, 0 no relation, and −1 the opposite order.",
        "parameters": {"importance": "gradient", "preset": "meister", "at": "inputs"},
        "needs": ["attention", "agreement.gradient.meister.inputs"],
        "verdict": "fail",
        "reason": "the whole 95% interval is below the required value",
        "severity": "gate",
        "inconclusive": "fail",
        "statistic": "mean",
        "unit": "Kendall's τ-b",
        "value_name": "mean Kendall's τ-b",
        "value": 0.213,
        "requirement": Requirement(direction="at_least", value=0.3),
        "interval": Interval(low=0.199, high=0.226, confidence=0.95, method="bootstrap of sources, 2,000 resamples"),
        "n": 2026,
        "n_defined": 1981,
        "undefined": {"fewer than two tokens": 31, "all weights tied": 14},
        "references": [
            Reference(name="floor", value=0.001, meaning="τ of the same attention, shuffled", n=1981),
            Reference(name="gradient_loo", value=0.61, meaning="τ between gradient and leave-one-out", n=1981),
        ],
        "details": {
            "significant at p ≤ .05": 0.274,
            "largest change of an output that was run through the model again": 0.012,
            "method": "exact",
            "standard deviation": 0.301,
        },
        "distribution": Histogram(edges=edges.tolist(), counts=counts.tolist(), label="Kendall's τ-b"),
        "charts": [],
        "worst": [RankedInstance(instance=f"r{i}", value=-0.81 + i / 20) for i in range(5)],
        "worst_first": "lowest",
        "token_columns": ["attention", "gradient.meister.inputs"],
        "note": "",
        "blocks": True,
    }
    return CheckRecord(**{**fields, **changes})


def interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, confidence=0.95, method="bootstrap of sources, 2,000 resamples")


def histogram(centre: float, spread: float, low: float, high: float, label: str) -> Histogram:
    values = np.clip(centre + spread * np.random.default_rng(1).standard_normal(2000), low, high)
    counts, edges = np.histogram(values, bins=20, range=(low, high))
    return Histogram(edges=edges.tolist(), counts=counts.tolist(), label=label)


def seven_checks(model: str = "demo", data: str = "movie-reviews", shift: float = 0.0) -> list[CheckRecord]:
    """Return one record per family of checks, with every verdict among them."""
    tokens = ["attention"]
    same = {"model": model, "data": data}
    passing = {"verdict": "pass", "blocks": False}
    return [
        check_record(**same),
        check_record(
            **same,
            check="agreement.leave_one_out.inputs",
            title="Attention agrees with leave-one-out",
            question="Does attention order the tokens as their deletion does?",
            verdict="inconclusive",
            value=0.204 + shift,
            interval=interval(0.191 + shift, 0.218 + shift),
            requirement=Requirement(direction="at_least", value=0.2),
            distribution=histogram(0.2, 0.3, -1, 1, "Kendall's τ-b"),
            token_columns=["attention", "leave_one_out.inputs"],
        ),
        check_record(
            **same,
            **passing,
            check="influence_entropy.hidden",
            family="influence",
            title="Hidden states stay with their token",
            question="How widely is each hidden state's dependence spread over the input tokens?",
            why="Attention weighs hidden states, and is shown over tokens.",
            unit="normalised entropy",
            value=0.71 - shift,
            interval=interval(0.704 - shift, 0.717 - shift),
            requirement=Requirement(direction="at_most", value=0.8),
            references=[],
            distribution=histogram(0.71, 0.08, 0, 1, "normalised entropy of the input influence"),
            token_columns=[],
        ),
        check_record(
            **same,
            **passing,
            check="permutation.tvd",
            family="fragility",
            title="Shuffled attention changes the output",
            question="How far does the output move when the same weights sit on other tokens?",
            why="If shuffling changes nothing, the model does not use which tokens it attends to.",
            statistic="median",
            unit="total variation distance",
            value=0.134 + shift,
            interval=interval(0.127 + shift, 0.141 + shift),
            requirement=Requirement(direction="at_least", value=0.05),
            references=[],
            distribution=histogram(0.13, 0.1, 0, 0.6, "median TVD over 100 permutations"),
            charts=[
                Chart(
                    title="Median TVD by the largest weight",
                    x_label="largest attention weight",
                    y_label="median TVD",
                    kind="bar",
                    series=[
                        Series(name="negative", x=[0.125, 0.375, 0.625, 0.875], y=[0.06, 0.1, 0.19, 0.31]),
                        Series(name="positive", x=[0.125, 0.375, 0.625, 0.875], y=[0.04, 0.12, None, 0.36]),
                    ],
                )
            ],
            token_columns=tokens,
        ),
        check_record(
            **same,
            check="uniform.f1_drop",
            family="fragility",
            title="Uniform attention costs accuracy",
            verdict="undefined",
            value=None,
            interval=None,
            n_defined=0,
            undefined={"no labels": 2026},
            unit="drop in F1",
            references=[],
            distribution=None,
            worst=[],
            token_columns=[],
        ),
        check_record(
            **same,
            severity="report",
            verdict="inconclusive",
            blocks=False,
            check="adversarial.0.01",
            family="adversarial",
            title="Other attention gives the same output",
            question="How different can attention be while the output stays within TVD 0.01?",
            why="If quite another picture explains the same output, the picture shown is one among many.",
            unit="Jensen–Shannon divergence, nats",
            value=0.628,
            interval=interval(0.622, 0.633),
            requirement=None,
            references=[Reference(name="largest possible", value=0.688, meaning="without the constraint", n=1981)],
            distribution=histogram(0.63, 0.05, 0, 0.7, "JSD in nats"),
            charts=[
                Chart(
                    title="JSD against the allowed change",
                    x_label="TVD allowed",
                    y_label="mean JSD, nats",
                    kind="line",
                    series=[Series(name="exact", x=[0.005, 0.01, 0.02, 0.05, 0.1], y=[0.61, 0.628, 0.64, 0.655, 0.66])],
                )
            ],
            token_columns=["attention", "adversarial.0.01.attention"],
        ),
        check_record(
            **same,
            **passing,
            check="information_ranking",
            family="information",
            title="Attention ranks by information",
            statistic="Shieh's weighted τ",
            unit="weighted τ",
            value=0.83,
            interval=interval(0.55, 0.97),
            requirement=Requirement(direction="at_least", value=0.5),
            distribution=None,
            charts=[
                Chart(
                    title="Mutual information by rank",
                    x_label="rank of the attention weight",
                    y_label="nats",
                    kind="line",
                    series=[
                        Series(name="corrected", x=[1, 2, 3, 4, 5], y=[0.31, 0.22, None, 0.14, 0.12]),
                        Series(name="label shuffle", x=[1, 2, 3, 4, 5], y=[0.02, 0.01, 0.01, 0.02, 0.01]),
                    ],
                )
            ],
            worst=[],
            token_columns=[],
        ),
    ]
