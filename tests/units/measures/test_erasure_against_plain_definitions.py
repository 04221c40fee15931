"""Erasure, flips, states and randomisation equal plain implementations of their definitions.

The plain implementations run one instance and one subset at a time, without padding or sharing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.checks.builtin import erasure as check
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Instance
from attnaudit.measures.erasure_curves import DRAWS, PERCENTS
from tests.small_models import adapter, dataset, tokenize_with_ends

Row = NDArray[np.float64]
UNKNOWN = 1
TEXTS = [
    "the film is good",
    "bad",
    "a dull story and ends badly",
    "not very good and not bad is the story",
    "bright",
    "the story is very very dull and the film ends",
    "good bad",
    "a bright film and a dull story",
]


def decoder(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return nn.Sequential(*layers)


def centred(outputs: int, **changes: object) -> PooledAttentionAdapter:
    """Return a model whose large decoder is centred on these texts, so that it predicts more than one class."""
    made = adapter(outputs, **{"mask_id": UNKNOWN, **changes})
    last = made.decoder[-1] if isinstance(made.decoder, nn.Sequential) else made.decoder
    with torch.no_grad():
        last.weight.mul_(20)
        logits = made.run(made.collate(dataset(TEXTS).instances)).logits
        last.bias -= logits.quantile(0.5, dim=0)
    return made


KINDS = {
    "sigmoid": lambda: centred(1),
    "two logits": lambda: centred(2),
    "three classes": lambda: centred(3),
    "special tokens": lambda: centred(2, tokenize=tokenize_with_ends),
    "attended special tokens": lambda: centred(2, tokenize=tokenize_with_ends, attend_special=True),
    "non-linear decoder": lambda: centred(2, decoder=decoder(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))),
}
INSTANCES = sorted(dataset(TEXTS).instances, key=lambda one: one.id)


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest) -> PooledAttentionAdapter:
    return KINDS[request.param]()


def measured(model: PooledAttentionAdapter, *needs: str) -> Measurements:
    return measure(model, dataset(TEXTS), needs, model="lstm", seed=0)[0]


class Plain:
    """A plain implementation that runs one instance alone."""

    def __init__(self, model: PooledAttentionAdapter, one: Instance) -> None:
        self.model, self.words = model, one.text.split()
        encoding = model.tokenize(one.text)
        self.ids = list(encoding.ids)
        self.special = list(encoding.special or [False] * len(self.ids))
        self.real = [i for i, special in enumerate(self.special) if not special]
        self.p, self.weights, self.states = self.run(self.ids, self.special)
        self.predicted = int(self.p.argmax())
        self.reading = self.weights[self.real] / self.weights[self.real].sum()

    def run(self, ids: Sequence[int], special: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        row, mask = torch.tensor([list(ids)]), torch.ones((1, len(ids)), dtype=torch.bool)
        allowed = mask if self.model.attend_special else ~torch.tensor([list(special)])
        with torch.no_grad():
            states = self.model.encoder(self.model.embedding(row), mask)
            weights = self.model.attention(states, allowed)[0]
            return self.decide(weights, states[0]), weights.double(), states[0]

    def decide(self, weights: Tensor, states: Tensor | None = None) -> Tensor:
        states = self.states if states is None else states
        logits = self.model.decoder((weights.float()[:, None] * states).sum(0)).double()
        return torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)]) if len(logits) == 1 else logits.softmax(0)

    def without(self, places: Sequence[int], operator: str) -> Tensor:
        """Return the class probabilities without some real tokens, given by their numbers among the real tokens."""
        gone = {self.real[p] for p in places}
        if operator == "deletion":
            kept = [i for i in range(len(self.ids)) if i not in gone]
            return self.run([self.ids[i] for i in kept], [self.special[i] for i in kept])[0]
        return self.run([UNKNOWN if i in gone else x for i, x in enumerate(self.ids)], self.special)[0]

    def aopc(self, order: Sequence[int], operator: str, *, keeps: bool) -> tuple[Row, Row]:
        falls, changes = [], []
        n = len(order)
        for percent in (1, 5, 10, 20, 50):
            k = max(1, math.ceil(round(percent * n / 100, 9)))
            gone = order[k:] if keeps else order[:k]
            p = self.without(gone, operator)
            falls.append(float(self.p[self.predicted] - p[self.predicted]))
            changes.append(float(int(p.argmax()) != self.predicted))
        return np.array(falls), np.array(changes)

    def after_removal(self, places: Sequence[int]) -> int | None:
        """Return the predicted class with some weights set to 0 and the rest renormalised; None if none is left."""
        left = self.weights.clone()
        left[[self.real[p] for p in places]] = 0
        return int(self.decide(left / left.sum()).argmax()) if left.sum() > 0 else None

    def fraction(self, order: Sequence[int]) -> float:
        for k in range(1, len(order)):
            decision = self.after_removal(order[:k])
            if decision is not None and decision != self.predicted:
                return k / len(order)
        return 1.0


def descending(scores: Tensor | Row) -> list[int]:
    return np.argsort(-np.array(scores.tolist()), kind="stable").tolist()


def signed_leave_one_out(plain: Plain, operator: str) -> Row:
    return np.array(
        [float((plain.p - plain.without([i], operator))[plain.predicted]) for i in range(len(plain.reading))]
    )


def test_the_models_decide_for_different_classes(model: PooledAttentionAdapter) -> None:
    assert len({Plain(model, one).predicted for one in INSTANCES}) > 1


@pytest.mark.parametrize("operator", ["deletion", "mask"])
@pytest.mark.parametrize("name", ["comprehensiveness", "sufficiency"])
def test_erasure_by_attention_and_by_signed_leave_one_out(
    model: PooledAttentionAdapter, name: str, operator: str
) -> None:
    column = f"{name}.{operator}"
    measurements = measured(model, column)
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        if len(plain.reading) < 2:
            assert np.isnan(measurements.scalar(f"{column}.attention")[i])
            continue
        for order, scores in (("attention", plain.reading), ("loo", signed_leave_one_out(plain, operator))):
            falls, changes = plain.aopc(descending(scores), operator, keeps=name == "sufficiency")
            np.testing.assert_allclose(
                measurements.vector(f"{column}.{order}.curve")[i], falls, atol=1e-4, err_msg=one.text
            )
            np.testing.assert_allclose(measurements.scalar(f"{column}.{order}")[i], falls.mean(), atol=1e-4)
            assert measurements.scalar(f"{column}.decision.{order}")[i] == pytest.approx(changes.mean())
            assert measurements.vector(f"{column}.decision.{order}.curve")[i].tolist() == changes.tolist()


@pytest.mark.parametrize("operator", ["deletion", "mask"])
@pytest.mark.parametrize("name", ["comprehensiveness", "sufficiency"])
def test_random_orders_of_three_tokens_lie_among_all_six(operator: str, name: str) -> None:
    model = centred(2)
    rows = replace(dataset(), instances=(Instance(id="a", text="good bad very"),))
    column = f"{name}.{operator}"
    measurements = measure(model, rows, [column], model="lstm", seed=0)[0]
    plain = Plain(model, rows.instances[0])
    every = [plain.aopc(order, operator, keeps=name == "sufficiency")[0].mean() for order in permutations(range(3))]
    assert min(abs(measurements.scalar(f"{column}.shuffled")[0] - value) for value in every) < 1e-5
    assert min(every) - 1e-5 <= measurements.scalar(f"{column}.random")[0] <= max(every) + 1e-5
    assert measurements.vector(f"{column}.random.curve")[0].shape == (len(PERCENTS),)


def test_the_check_charts_the_measured_percentages() -> None:
    assert check.PERCENTAGES == PERCENTS
    assert DRAWS > 1


def test_flips_by_attention_gradient_and_their_product(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "flip")
    flipped = 0
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        if len(plain.reading) < 2:
            assert np.isnan(measurements.scalar("flip.attention")[i])
            continue
        free = plain.weights.clone().float().requires_grad_(True)
        (slope,) = torch.autograd.grad(plain.decide(free)[plain.predicted], free)
        orders = {
            "attention": plain.reading,
            "gradient": slope[plain.real],
            "attention_x_gradient": (slope * plain.weights)[plain.real],
        }
        for order, scores in orders.items():
            expected = plain.fraction(descending(scores))
            assert measurements.scalar(f"flip.{order}")[i] == pytest.approx(expected), (one.text, order)
            flipped += expected < 1
    assert flipped >= 3


def test_flips_in_random_order_lie_among_all_orders() -> None:
    model = centred(2)
    rows = replace(
        dataset(),
        instances=tuple(
            Instance(id=str(i), text=" ".join(o)) for i, o in enumerate(permutations(["good", "bad", "very", "dull"]))
        ),
    )
    measurements = measure(model, rows, ["flip"], model="lstm", seed=0)[0]
    seen = []
    for one in rows.instances:
        j = measurements.ids.index(one.id)
        plain = Plain(model, one)
        every = [plain.fraction(order) for order in permutations(range(4))]
        assert measurements.scalar("flip.shuffled")[j] in every
        assert min(every) <= measurements.scalar("flip.random")[j] <= max(every)
        seen.append((measurements.scalar("flip.random")[j], np.mean(every)))
    drawn, expected = np.mean(seen, axis=0)
    assert drawn == pytest.approx(expected, abs=0.05)


def test_top_token_erasure(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "top_token")
    some = 0.0
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        n = len(plain.reading)
        if n < 2:
            assert np.isnan(measurements.scalar("top_token.attention")[i])
            continue
        moved = np.array([plain.after_removal([p]) != plain.predicted for p in range(n)], dtype=float)
        top = int(plain.reading.argmax())
        assert measurements.scalar("top_token.attention")[i] == moved[top]
        assert measurements.scalar("top_token.random")[i] == pytest.approx(np.delete(moved, top).mean())
        assert measurements.scalar("top_token.any")[i] == moved.max()
        some += moved.sum()
    assert some > 0


def test_per_token_probability(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "token_probability")
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        alone = [
            plain.decide(torch.eye(len(plain.ids), dtype=torch.float64)[place])[plain.predicted] for place in plain.real
        ]
        np.testing.assert_allclose(measurements.vectors["token_probability.alone"][i], alone, atol=1e-5)
        np.testing.assert_allclose(
            measurements.scalar("token_probability")[i], float(sum(alone)) / len(alone), atol=1e-5
        )
        np.testing.assert_allclose(
            measurements.scalar("token_probability.whole")[i], plain.p[plain.predicted], atol=1e-5
        )


def test_conicity(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "conicity")
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        states = plain.states[plain.real].double().numpy()
        if len(states) < 2:
            assert np.isnan(measurements.scalar("conicity")[i])
            continue
        mean = states.mean(0)
        cosines = [h @ mean / np.linalg.norm(h) / np.linalg.norm(mean) for h in states]
        np.testing.assert_allclose(measurements.scalar("conicity")[i], np.mean(cosines), atol=1e-5)
        assert measurements.scalar("conicity.orthogonal")[i] == pytest.approx(len(states) ** -0.5)


def test_zero_states_have_no_direction() -> None:
    class HalfZero(nn.Module):
        def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
            states = torch.zeros((*mask.shape, 10))
            states[:, ::2, 0] = 1.0
            return states

    model = adapter(encoder=HalfZero(), modules=(nn.Linear(1, 1),))
    assert measured(model, "conicity").scalar("conicity")[6] == pytest.approx(0.5)
