"""Each measure equals a plain implementation of its definition: one instance at a time, without padding or sharing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, kendalltau
from torch import Tensor, nn

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.instances import Instance
from attnaudit.measures.rearrangements import random_orders
from attnaudit.seeding import keyed_generator, keyed_integer
from tests.small_models import adapter, dataset, tokenize_with_ends

Row = NDArray[np.float64]
INSTANCES = sorted(dataset().instances, key=lambda one: one.id)
KINDS = {
    "sigmoid": lambda: adapter(1),
    "two logits": lambda: adapter(2),
    "three classes": lambda: adapter(3),
    "special tokens": lambda: adapter(2, tokenize=tokenize_with_ends),
    "attended special tokens": lambda: adapter(2, tokenize=tokenize_with_ends, attend_special=True),
    "non-linear decoder": lambda: adapter(2, decoder=seeded(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))),
}


def seeded(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return nn.Sequential(*layers)


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest) -> PooledAttentionAdapter:
    return KINDS[request.param]()


def measured(model: PooledAttentionAdapter, *needs: str) -> Measurements:
    return measure(model, dataset(), needs, model="lstm", seed=0)[0]


class Plain:
    """A plain implementation that runs one instance alone."""

    def __init__(self, model: PooledAttentionAdapter, one: Instance) -> None:
        self.model = model
        inputs = model.collate([one])
        self.real = inputs.real()[0]
        self.mask = inputs.mask["text"]
        self.allowed = self.mask if model.attend_special else inputs.real()
        self.ids = inputs.ids["text"]
        self.embedded = model.embedding(self.ids).detach().requires_grad_(True)
        self.states = model.encoder(self.embedded, self.mask)
        self.weights = model.attention(self.states, self.allowed)[0]
        self.p = self.output(self.weights)

    def output(self, weights: Tensor, states: Tensor | None = None) -> Tensor:
        context = (weights[:, None] * (self.states if states is None else states)[0].to(weights.dtype)).sum(0)
        logits = self.model.decoder(context.float()).double()
        return torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)]) if len(logits) == 1 else logits.softmax(0)

    @property
    def reading(self) -> Row:
        kept = self.weights.detach().double()[self.real].numpy()
        return kept / kept.sum()

    def with_reading(self, reading: Row) -> Tensor:
        weights = self.weights.detach().double().clone()
        weights[self.real] = torch.tensor(reading) * weights[self.real].sum()
        return self.output(weights)

    def tvd(self, p: Tensor) -> float:
        return float((0.5 * (p - self.p).abs().sum()).detach())


def shares(scores: Tensor, real: Tensor) -> Row:
    kept = scores.detach().double()[real].numpy()
    return kept / kept.sum()


def gradient_norm(plain: Plain, at: str) -> Row:
    leaf = plain.embedded if at == "inputs" else plain.states
    (slope,) = torch.autograd.grad(plain.p.max(), leaf, retain_graph=True)
    return shares(slope[0].norm(dim=-1), plain.real)


def input_x_gradient(plain: Plain, at: str) -> Row:
    leaf = plain.embedded if at == "inputs" else plain.states
    (slope,) = torch.autograd.grad(plain.p.max(), leaf, retain_graph=True)
    return shares((slope * leaf)[0].sum(-1).abs(), plain.real)


def detached(plain: Plain, at: str) -> Row:
    leaf = plain.embedded if at == "inputs" else plain.states
    (slope,) = torch.autograd.grad(plain.output(plain.weights.detach()).max(), leaf, retain_graph=True)
    return shares((slope * leaf)[0].sum(-1).abs(), plain.real)


def leave_one_out(plain: Plain, at: str) -> Row:
    moved = torch.zeros(len(plain.real))
    for i in plain.real.nonzero()[:, 0].tolist():
        keep = torch.arange(len(plain.real)) != i
        if at == "inputs":
            states = plain.model.encoder(plain.embedded[:, keep], plain.mask[:, keep])
            weights = plain.model.attention(states, plain.allowed[:, keep])[0]
            moved[i] = plain.tvd(plain.output(weights, states))
        else:
            weights = plain.weights * keep
            moved[i] = plain.tvd(plain.output(weights / weights.sum()))
    return shares(moved, plain.real)


@pytest.mark.parametrize("at", ["inputs", "hidden"])
@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("gradient.meister", gradient_norm),
        ("gradient.jain_wallace", detached),
        ("input_x_gradient", input_x_gradient),
        ("leave_one_out", leave_one_out),
    ],
)
def test_feature_importance(
    model: PooledAttentionAdapter, name: str, definition: Callable[[Plain, str], Row], at: str
) -> None:
    rows = measured(model, f"{name}.{at}").vector(f"{name}.{at}")
    for one, row in zip(INSTANCES, rows, strict=True):
        if name == "leave_one_out" and len(row) == 1:
            assert np.isnan(row).all()
            continue
        np.testing.assert_allclose(row, definition(Plain(model, one), at), atol=2e-4, err_msg=one.text)


@pytest.mark.filterwarnings("ignore:One or more sample arguments is too small")
def test_agreement_is_scipys_kendall_tau_of_the_columns(model: PooledAttentionAdapter) -> None:
    name = "gradient.meister.inputs"
    measurements = measured(model, f"agreement.{name}")
    pairs = zip(
        measurements.vector("attention"),
        measurements.vector(name),
        measurements.vector("leave_one_out.inputs"),
        strict=True,
    )
    for i, (attention, gradient, rival) in enumerate(pairs):
        observed = kendalltau(attention, gradient)
        np.testing.assert_allclose(measurements.scalar(f"agreement.{name}.tau")[i], observed.statistic, atol=1e-12)
        np.testing.assert_allclose(measurements.scalar(f"agreement.{name}.p_value")[i], observed.pvalue, atol=1e-9)
        gradient_loo = np.nan if np.isnan(rival).any() else kendalltau(gradient, rival).statistic
        np.testing.assert_allclose(measurements.scalar(f"agreement.{name}.gradient_loo")[i], gradient_loo, atol=1e-12)


def test_the_floor_shuffles_the_real_tokens(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "agreement.gradient.meister.inputs")
    floor = measurements.scalar("agreement.gradient.meister.inputs.floor")
    tau = measurements.scalar("agreement.gradient.meister.inputs.tau")
    defined = ~np.isnan(tau)
    assert (np.isnan(floor) == np.isnan(tau)).all()
    assert np.abs(floor[defined]).max() <= 1
    assert not np.allclose(floor[defined], tau[defined])


def test_entropy_is_scipys_over_log_n(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "entropy.gradient.meister.inputs")
    for i, row in enumerate(measurements.vector("gradient.meister.inputs")):
        expected = entropy(row) / np.log(len(row)) if len(row) > 1 else np.nan
        np.testing.assert_allclose(measurements.scalar("entropy.gradient.meister.inputs")[i], expected, atol=1e-12)


def test_influence_on_hidden_states(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "influence.hidden")
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        places = plain.real.nonzero()[:, 0].tolist()
        table, on_own = [], []
        for p in places:
            (slope,) = torch.autograd.grad(plain.states[0, p].norm(), plain.embedded, retain_graph=True)
            table.append(shares(slope[0].norm(dim=-1), plain.real))
            on_own.append(slope[0, p].norm().item())
        grid = np.stack(table)
        if len(places) == 1:
            assert np.isnan(measurements.scalar("influence.hidden.entropy")[i])
            continue
        expected = np.mean([entropy(row) / np.log(len(row)) for row in grid])
        np.testing.assert_allclose(measurements.scalar("influence.hidden.entropy")[i], expected, atol=1e-4)
        np.testing.assert_allclose(
            measurements.scalar("influence.hidden.own_share")[i], np.diag(grid).mean(), atol=1e-4
        )
        rival = np.mean([np.delete(row, p).max() for p, row in enumerate(grid)])
        np.testing.assert_allclose(measurements.scalar("influence.hidden.rival_share")[i], rival, atol=1e-4)
        co_indexed = entropy(on_own) / np.log(len(on_own))  # scipy normalises its argument
        np.testing.assert_allclose(measurements.scalar("influence.hidden.co_indexed_entropy")[i], co_indexed, atol=1e-4)


def test_uniform_attention(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "uniform")
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        output = plain.with_reading(np.full(len(plain.reading), 1 / len(plain.reading)))
        np.testing.assert_allclose(measurements.scalar("uniform.tvd")[i], plain.tvd(output), atol=1e-5)
        assert measurements.scalar("uniform.predicted")[i] == int(output.argmax())


def test_the_permutation_median_is_close_to_that_of_all_orders(model: PooledAttentionAdapter) -> None:
    """Three tokens have six orders, and the median over 100 random orders must be close to the median over the six."""
    from itertools import permutations

    rows = dataset(["good bad very", "dull film"])
    measurements = measure(model, rows, ["permutation"], model="lstm", seed=0)[0]
    for i, one in enumerate(rows.instances):
        plain = Plain(model, one)
        moved = [plain.tvd(plain.with_reading(np.array(order))) for order in permutations(plain.reading)]
        assert min(moved) - 1e-5 <= measurements.scalar("permutation.tvd")[i] <= max(moved) + 1e-5
        expected = np.quantile(moved, [0.25, 0.75])
        assert expected[0] - 1e-5 <= measurements.scalar("permutation.tvd")[i] <= expected[1] + 1e-5
        assert set(measurements.vector("permutation.predicted")[i]) <= {0, 1, 2}


def test_permutation_of_one_token_moves_nothing(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "permutation")
    single = [i for i, one in enumerate(INSTANCES) if len(one.text.split()) == 1]
    assert single
    np.testing.assert_allclose(measurements.scalar("permutation.tvd")[single], 0, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.01, 0.05])
def test_adversarial_attention_is_feasible_and_its_divergence_is_correct(
    model: PooledAttentionAdapter, epsilon: float
) -> None:
    name = f"adversarial.{epsilon}"
    measurements = measured(model, name)
    for i, one in enumerate(INSTANCES):
        plain = Plain(model, one)
        attention = measurements.vector(f"{name}.attention")[i]
        np.testing.assert_allclose(attention.sum(), 1, atol=1e-9)
        assert plain.tvd(plain.with_reading(attention)) <= epsilon + 1e-5
        assert measurements.scalar(f"{name}.tvd")[i] <= epsilon + 1e-5
        if len(attention) < 2:
            columns = ("jsd", "most", "share", "upper")
            assert all(np.isnan(measurements.scalar(f"{name}.{column}")[i]) for column in columns), "there is no other"
            continue
        expected = jensenshannon(attention, plain.reading) ** 2
        np.testing.assert_allclose(measurements.scalar(f"{name}.jsd")[i], np.nan_to_num(expected), atol=1e-6)
        assert measurements.scalar(f"{name}.upper")[i] >= measurements.scalar(f"{name}.jsd")[i] or np.isnan(
            measurements.scalar(f"{name}.upper")[i]
        )
        assert (
            np.isnan(measurements.scalar(f"{name}.share")[i])
            or 0 <= measurements.scalar(f"{name}.share")[i] <= 1 + 1e-9
        )


def test_a_fact_names_the_method_of_the_adversary() -> None:
    forms = {name: measured(make(), "adversarial.0.01").facts["adversarial.method"] for name, make in KINDS.items()}
    assert forms == {
        "sigmoid": "exact",
        "two logits": "exact",
        "three classes": "bracketed",
        "special tokens": "exact",
        "attended special tokens": "exact",
        "non-linear decoder": "searched",
    }


def test_the_exact_adversary_is_never_below_the_searched_one() -> None:
    class Unknown(PooledAttentionAdapter):
        @property
        def capabilities(self) -> object:  # type: ignore[override]
            return replace(super().capabilities, linear_decoder=False)

    sound = adapter(2)
    unknown = Unknown(
        embedding=sound.embedding,
        encoder=sound.encoder,
        attention=sound.attention,
        decoder=sound.decoder,
        tokenize=sound.tokenize,
        classes=("negative", "positive"),
    )
    exact, searched = measured(sound, "adversarial.0.01"), measured(unknown, "adversarial.0.01")
    assert searched.facts["adversarial.method"] == "searched"
    several = exact.lengths > 1
    ours, theirs = (measurements.scalar("adversarial.0.01.jsd")[several] for measurements in (exact, searched))
    assert (ours >= theirs - 1e-6).all()
    assert theirs.mean() > 0.5 * ours.mean()


def test_hidden_states_are_ranked_by_attention(model: PooledAttentionAdapter) -> None:
    rows = replace(dataset(), instances=tuple(i for i in dataset().instances if len(i.text.split()) > 1))
    measurements = measure(model, rows, ["ranked_hidden"], model="lstm", seed=0)[0]
    states, weights = measurements.table("ranked_hidden.states"), measurements.table("ranked_hidden.weights")
    kept = measurements.table("ranked_hidden.instances").astype(int)
    assert states.shape[:2] == weights.shape
    for row, i in enumerate(kept):
        plain = Plain(model, measurements.instances[i])
        order = np.argsort(-plain.reading, kind="stable")[: weights.shape[1]]
        np.testing.assert_allclose(weights[row], plain.reading[order], atol=1e-6)
        np.testing.assert_allclose(states[row], plain.states[0][plain.real].detach().numpy()[order], atol=1e-5)


@given(length=st.integers(0, 1100), seed=st.integers(0, 2**31), first=st.integers(0, 2))
def test_random_orders_sort_the_draws_of_the_generator(length: int, seed: int, first: int) -> None:
    draws = keyed_generator(seed, "orders").random((20, length))
    orders = random_orders(keyed_generator(seed, "orders"), 20, length, first)
    np.testing.assert_array_equal(orders, first + draws.argsort(axis=1))


class SameUpperBits:
    """Takes the place of a generator, with numbers that differ only in the lower half of their bits."""

    def __init__(self) -> None:
        self.bit_generator = self

    def random_raw(self, shape: tuple[int, int]) -> NDArray[np.uint64]:
        return np.random.default_rng(0).integers(0, 2**32, shape, dtype=np.uint64)


def test_draws_that_differ_only_in_the_lower_bits_are_sorted_by_all_53_bits() -> None:
    expected = (SameUpperBits().random_raw((5, 9)) >> np.uint64(11)).argsort(axis=1, kind="stable")
    np.testing.assert_array_equal(random_orders(SameUpperBits(), 5, 9), expected)  # type: ignore[arg-type]


@given(seed=st.integers(0, 2**63), key=st.text())
def test_a_keyed_generator_is_a_philox_generator_with_this_key(seed: int, key: str) -> None:
    plain = np.random.Generator(np.random.Philox(key=keyed_integer(seed, key)))
    np.testing.assert_array_equal(keyed_generator(seed, key).random(9), plain.random(9))
