"""The outputs under rearranged weights equal plain loops over all rearrangements."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attnaudit import checks
from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.engine.measuring import measure
from attnaudit.measures.rearrangements import (
    _differ,
    _numbered,
    arrangements,
    number_of_arrangements,
    number_of_orders,
    tied_ranks,
)
from attnaudit.measures.replaced_attention import _median
from tests.slow_cases import slow_except
from tests.small_models import adapter, dataset
from tests.strategies import pad_rows, weight_rows
from tests.units.conformance.conformance_models import SOUND
from tests.units.measures.test_against_plain_definitions import KINDS, Plain, measured
from tests.units.measures.test_many_sites import CASES, rows_of
from tests.units.measures.test_many_sites import Plain as PlainSites
from tests.units.measures.test_many_sites import measured as measured_sites

SHORT = ["good bad very", "dull film", "the the the film", "bad", "a dull bright story"]


def every(reading: np.ndarray) -> list[np.ndarray]:
    """Return the distinct rearrangements of a row of weights, without the row itself."""
    own = tuple(reading.tolist())
    return [np.array(row) for row in dict.fromkeys(permutations(own)) if row != own]


def outputs(plain: Plain, readings: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return centred logits (K, C) and probabilities (K, C) under other weights on the real tokens."""
    p = np.array([plain.with_reading(reading).detach().numpy() for reading in readings])
    z = np.log(p)
    return z - z.mean(1, keepdims=True), p


def expected(z: np.ndarray, p: np.ndarray, clean: tuple[np.ndarray, np.ndarray]) -> dict[str, object]:
    return {
        "logits": ((z - clean[0]) ** 2).sum(1).mean(),
        "probabilities": ((p - clean[1]) ** 2).sum(1).mean(),
        "tvd": np.median(0.5 * np.abs(p - clean[1]).sum(1)),
        "decisions": np.eye(p.shape[1])[p.argmax(1)].mean(0),
    }


@pytest.mark.parametrize("kind", list(KINDS))
def test_all_rearrangements_of_short_texts_are_measured(kind: str) -> None:
    model, rows = KINDS[kind](), dataset(SHORT)
    found = measure(model, rows, ["rearrangement"], model="lstm", seed=0)[0]
    for i, one in enumerate(rows.instances):
        plain = Plain(model, one)
        others = every(plain.reading)
        if not others:
            assert np.isnan(found.scalar("rearrangement.logits")[i])
            assert np.isnan(found.vector("rearrangement.predicted")[i]).all()
            continue
        reference = expected(*outputs(plain, others), outputs(plain, [plain.reading]))
        for name in ("logits", "probabilities", "tvd"):
            np.testing.assert_allclose(found.scalar(f"rearrangement.{name}")[i], reference[name], rtol=1e-3, atol=1e-9)
        np.testing.assert_allclose(found.vector("rearrangement.decisions")[i], reference["decisions"])
        predicted = Counter(found.vector("rearrangement.predicted")[i].tolist())
        assert sum(predicted.values()) == 100
        for c, share in enumerate(found.vector("rearrangement.decisions")[i]):
            assert abs(predicted[c] / 100 - share) <= 0.24 if len(others) > 1 else predicted[c] in (0, 100)


@pytest.mark.parametrize("kind", slow_except(KINDS, list(KINDS)[::3]))
def test_the_kept_logits_are_those_of_rearrangements(kind: str) -> None:
    """Few rearrangements are all kept, once each. Of many, 16 random ones are kept."""
    model = KINDS[kind]()
    rows = dataset([*SHORT, "not very good and bad", "not very good and not bad film"])
    found = measure(model, rows, ["rearrangement"], model="lstm", seed=0)[0]
    for i, one in enumerate(rows.instances):
        plain = Plain(model, one)
        kept = found.vector("rearrangement.centred_logits")[i].reshape(16, -1)
        kept = kept[~np.isnan(kept).any(1)]
        others = every(plain.reading)
        assert len(kept) == min(len(others), 16)
        if not others:
            continue
        z = outputs(plain, others)[0]
        distances = np.abs(kept[:, None] - z[None]).max(-1)
        np.testing.assert_allclose(distances.min(1), 0, atol=2e-4)
        if len(others) <= 16:
            assert sorted(distances.argmin(1).tolist()) == list(range(len(others)))


def test_the_kept_logits_of_enumerated_texts_are_drawn_at_random() -> None:
    """Of 23 rearrangements in lexicographic order, the first 16 would keep the first weight in its place more often."""
    model = adapter(3, attention=Given([1, 2, 3, 4]))
    rows = dataset(["good bad very film"] * 60)
    found = measure(model, rows, ["rearrangement"], model="lstm", seed=0)[0]
    plain = Plain(model, rows.instances[0])
    z = outputs(plain, every(plain.reading))[0]
    kept = np.stack(found.vector("rearrangement.centred_logits")).reshape(60, 16, 3)
    assert not np.isnan(kept).any()
    numbers = np.abs(kept[:, :, None] - z).max(-1).argmin(-1)
    assert len(np.unique(numbers)) == 23
    counts = np.bincount(numbers.ravel(), minlength=23)
    assert counts.min() > 0.4 * 60 * 16 / 23
    assert counts.max() < 1.8 * 60 * 16 / 23


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "non-linear decoder"])
def test_the_squared_change_of_the_logits_is_exact_for_long_texts_and_linear_decoders(kind: str) -> None:
    model, rows = KINDS[kind](), dataset(["not very good and not bad", "the film ends badly and well"])
    found = measure(model, rows, ["rearrangement"], model="lstm", seed=0)[0]
    for i, one in enumerate(rows.instances):
        plain = Plain(model, one)
        others = every(plain.reading)
        assert len(others) > 100
        reference = expected(*outputs(plain, others), outputs(plain, [plain.reading]))
        np.testing.assert_allclose(found.scalar("rearrangement.logits")[i], reference["logits"], rtol=1e-3)
        assert found.scalar("rearrangement.probabilities")[i] == pytest.approx(reference["probabilities"], rel=0.5)


def test_drawn_rearrangements_of_long_texts_are_unbiased() -> None:
    model, rows = KINDS["non-linear decoder"](), dataset(["not very good and not bad"] * 40)
    found = measure(model, rows, ["rearrangement"], model="lstm", seed=0)[0]
    plain = Plain(model, rows.instances[0])
    reference = expected(*outputs(plain, every(plain.reading)), outputs(plain, [plain.reading]))
    for name in ("logits", "probabilities"):
        drawn = found.scalar(f"rearrangement.{name}")
        assert drawn.mean() == pytest.approx(reference[name], abs=4.5 * drawn.std() / np.sqrt(40))
        assert drawn.std() > 0


class Given(nn.Module):
    """Attention with the same fixed weights for every text of its length."""

    def __init__(self, *rows: list[float]) -> None:
        super().__init__()
        self.rows = {len(row): torch.tensor(row) / sum(row) for row in rows}

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        weights = torch.zeros(states.shape[:2])
        for b, n in enumerate(allowed.sum(1).tolist()):
            weights[b, :n] = self.rows[n]
        return weights


def test_tied_weights_have_fewer_rearrangements() -> None:
    """One token of seven has all the weight: there are six rearrangements, not 5,039."""
    model = adapter(3, attention=Given([0, 0, 1, 0, 0, 0, 0]))
    rows = dataset(["not very good and not bad film"])
    found = measure(model, rows, ["rearrangement"], model="lstm", seed=0)[0]
    plain = Plain(model, rows.instances[0])
    others = every(plain.reading)
    assert len(others) == 6
    reference = expected(*outputs(plain, others), outputs(plain, [plain.reading]))
    for name in ("logits", "probabilities", "tvd"):
        np.testing.assert_allclose(found.scalar(f"rearrangement.{name}")[0], reference[name], rtol=1e-4)


def test_texts_whose_weights_are_all_equal_are_counted() -> None:
    model = adapter(2, attention=Given([1], [1, 1 + 1e-7], [1, 2, 3], [1] * 4))
    rows = dataset(["bad", "good bad", "dull film ends", "very good film ends", "bright", "the bad film"])
    for check in (
        checks.TotalEffect(severity="report"),
        checks.TotalEffect(severity="report", on="logits"),
        checks.PermutationFragility(severity="report", draws="distinct"),
    ):
        measurements = measure(model, rows, check.needs(), model="lstm", seed=0)[0]
        record = check.judge(measurements)
        if isinstance(check, checks.TotalEffect):
            assert record.undefined == {"a single token": 2}
            assert "2 texts whose attention weights are all equal count as unchanged" in record.note
        else:
            assert record.undefined == {"a single token, or equal attention weights": 4}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}, {c[1]}")
@pytest.mark.parametrize("where", ["reading", "layer", "everywhere.frozen"])
def test_models_with_many_sites(case: tuple[str, str, int, list[int], str], where: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    kind, reading, layer, heads, query = case
    for name in ("PERMUTATIONS", "LAYER_PERMUTATIONS"):
        monkeypatch.setattr(f"attnaudit.measures.replaced_attention.{name}", 24)
    model = SOUND[kind]()
    need = "rearrangement" + ("" if where == "reading" else f".{where}") + f"/{reading}"
    found = measured_sites(model, need)
    found = found.under(found.readings_of(reading)[0])
    prefix = need.partition("/")[0]
    compared = 0
    for i, one in enumerate(rows_of(model).instances):
        plain = PlainSites(model, one, layer, heads, query)
        n = len(plain.real)
        if not 2 <= n <= 3:
            continue
        squares = []
        for order in list(permutations(range(n)))[1:]:
            draws = np.argsort(order).astype(float)
            output = plain.under(plain.permuted(draws), where.partition(".")[0], where.endswith("frozen")).detach()
            squares.append(((output - plain.output) ** 2).sum().item())
        moving = np.array(squares)
        np.testing.assert_allclose(found.scalar(f"{prefix}.probabilities")[i], moving.mean(), rtol=2e-3, atol=1e-9)
        compared += 1
    assert compared


@pytest.mark.parametrize("kind", ["sigmoid", "three classes", "non-linear decoder", "attended special tokens"])
def test_neither_batches_nor_other_measures_change_the_numbers(kind: str) -> None:
    model = KINDS[kind]()
    together = measured(model, "rearrangement", "permutation")
    for other in (
        measured(model, "rearrangement"),
        measure(model, dataset(), ["rearrangement"], model="lstm", seed=0, batch_tokens=8)[0],
    ):
        for name in ("logits", "probabilities", "tvd"):
            column = f"rearrangement.{name}"
            np.testing.assert_allclose(other.scalar(column), together.scalar(column), rtol=1e-4, atol=1e-10)
        kept = (np.stack(m.vector("rearrangement.centred_logits")) for m in (other, together))
        np.testing.assert_allclose(*kept, atol=1e-5)
    alone = measured(model, "permutation")
    np.testing.assert_array_equal(alone.scalar("permutation.tvd"), together.scalar("permutation.tvd"))


def test_both_measures_share_their_passes() -> None:
    for make in (KINDS["non-linear decoder"], SOUND["both ways"]):
        model = make()
        rows = dataset() if isinstance(model, PooledAttentionAdapter) else rows_of(model)
        counts = [
            measure(model, rows, needs, model="m", seed=0)[1].passes
            for needs in (["permutation"], ["rearrangement"], ["permutation", "rearrangement"])
        ]
        assert counts[0] == counts[1] == counts[2]


# -- invariances -------------------------------------------------------------------------------------------------------


def index_of(model: PooledAttentionAdapter, on: str = "logits", seed: int = 0) -> float:
    measurements = measure(model, dataset(), ["rearrangement"], model="lstm", seed=seed)[0]
    # Scale and bias can change predictions, and with them the weights of texts without labels.
    check = checks.TotalEffect(on=on, severity="report", classes="as_sampled")  # type: ignore[arg-type]
    value = check.judge(measurements).value
    assert value is not None
    return value


@settings(max_examples=15)
@given(
    factor=st.floats(1e-3, 1e4),
    bias=st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    order=st.permutations(range(3)),
    constant=st.floats(-5, 5),
)
def test_the_index_of_the_logits_does_not_depend_on_scale_bias_class_names_or_shifted_scores(
    factor: float, bias: list[float], order: list[int], constant: float
) -> None:
    model, changed = adapter(3), adapter(3)
    with torch.no_grad():
        changed.decoder.bias.add_(torch.tensor(bias))  # type: ignore[union-attr, operator]
        for parameter in changed.decoder.parameters():
            parameter.mul_(factor)
        for parameter in changed.decoder.parameters():
            parameter.copy_(parameter[order].clone())
        changed.attention.score.bias.add_(constant)  # type: ignore[union-attr, operator]
    for on in ("logits", "standardised"):
        assert index_of(changed, on) == pytest.approx(index_of(model, on), rel=1e-3)


@pytest.mark.parametrize("bias", [-1e4, -1e6, 1e6])
def test_a_very_large_bias_of_one_class_changes_the_index_only_by_the_rounding_of_this_class(bias: float) -> None:
    model, changed = adapter(3), adapter(3)
    for one in (model, changed):
        with torch.no_grad():
            one.decoder.weight.mul_(50)  # type: ignore[union-attr, operator]
    with torch.no_grad():
        changed.decoder.bias[1] += bias  # type: ignore[union-attr, index]
    for on in ("logits", "standardised"):
        assert index_of(changed, on) == pytest.approx(index_of(model, on), rel=1e-2)


@settings(max_examples=15)
@given(order=st.permutations(range(3)), constant=st.floats(-5, 5))
def test_the_index_of_the_probabilities_does_not_depend_on_class_names_or_shifted_scores(
    order: list[int], constant: float
) -> None:
    model, changed = adapter(3), adapter(3)
    with torch.no_grad():
        for parameter in changed.decoder.parameters():
            parameter.copy_(parameter[order].clone())
        changed.attention.score.bias.add_(constant)  # type: ignore[union-attr, operator]
    assert index_of(changed, "probabilities") == pytest.approx(index_of(model, "probabilities"), rel=1e-3)


def squared_change(weights: np.ndarray, logits: np.ndarray) -> float:
    """Return the mean squared change of Σ α_i w_i over all rearrangements, by the definition."""
    return float(np.mean([(((row - weights) @ logits) ** 2).sum() for row in every(weights)]))


@given(idle=st.integers(0, 4), seed=st.integers(0, 10_000))
def test_idle_tokens_do_not_matter_where_one_token_has_all_the_weight(idle: int, seed: int) -> None:
    """Every rearrangement moves the weight to a token without effect, whatever the number of such tokens."""
    random = np.random.default_rng(seed)
    cue, neutral = random.normal(size=(2, 3))
    weights, logits = np.eye(idle + 2)[0], np.array([cue] + [neutral] * (idle + 1))
    assert squared_change(weights, logits) == pytest.approx(((cue - neutral) ** 2).sum())


@given(n=st.integers(3, 6), seed=st.integers(0, 10_000), moved=st.floats(0, 1e-3))
def test_weight_below_a_thousandth_changes_the_effect_of_n_tokens_by_at_most_1_over_n(
    n: int, seed: int, moved: float
) -> None:
    """The root of the effect moves by twice the moved weight, and ties that break or arise by a factor from 1 - 1/n."""
    random = np.random.default_rng(seed)
    weights, logits = random.dirichlet(np.full(n, 0.1)).round(4), random.normal(size=(n, 3))
    changed = weights.copy()
    target, source = random.choice(n, 2, replace=False)
    amount = min(moved, weights[source])
    changed[target] += amount
    changed[source] -= amount
    if not every(weights) or not every(changed):
        return
    farthest = max(np.linalg.norm(a - b) for a in logits for b in logits)
    before, after = squared_change(weights, logits), squared_change(changed, logits)
    shift = 2 * amount * farthest
    low, high = np.sqrt(before * (1 - 1 / n)) - shift, np.sqrt(before / (1 - 1 / n)) + shift / np.sqrt(1 - 1 / n)
    assert low - 1e-9 <= np.sqrt(after) <= high + 1e-9


# -- enumeration and ties ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda counts: sum(counts) <= 6))
def test_arrangements_are_the_distinct_permutations(counts: list[int]) -> None:
    items = [value for value, count in enumerate(counts) for _ in range(count)]
    plain = sorted(set(permutations(items)))
    assert list(map(tuple, arrangements(tuple(counts)).tolist())) == plain
    assert number_of_arrangements(np.array(counts)) == len(plain)


def test_the_number_of_arrangements_of_long_texts() -> None:
    assert number_of_arrangements(np.array([], dtype=np.int64)) == 1
    assert number_of_arrangements(np.ones(15, dtype=np.int64)) == factorial(15)
    assert number_of_arrangements(np.array([1, 4999])) == 5000
    assert number_of_arrangements(np.ones(500, dtype=np.int64)) == np.inf


@pytest.mark.parametrize("size", [0, 1, 2, 5, 20, 124, 199, 200, 201, 500])
def test_the_number_of_orders_of_different_values(size: int) -> None:
    assert number_of_orders(size) == number_of_arrangements(np.ones(size, dtype=np.int64))


@given(
    size=st.integers(1, 9),
    numbers=st.lists(st.sampled_from([0.0, 0.25, 1e-300, 0.1, 0.7, 1.0, np.nan]), min_size=9, max_size=27),
)
def test_the_median_is_that_of_quantile(size: int, numbers: list[float]) -> None:
    rows = torch.tensor(numbers[: len(numbers) // size * size], dtype=torch.float64).reshape(-1, size)
    torch.testing.assert_close(_median(rows), rows.quantile(0.5, dim=1), rtol=0, atol=0, equal_nan=True)


@given(rows=st.lists(weight_rows(), min_size=1, max_size=4), noise=st.floats(0, 4e-7))
def test_weights_within_rounding_share_a_rank(rows: list[list[float]], noise: float) -> None:
    values, mask = pad_rows(rows)
    clean = tied_ranks(values[:, None], mask[:, None])[:, 0]
    for row, ranks in zip(rows, clean, strict=True):
        shown = ranks[: len(row)]
        assert (ranks[len(row) :] == 0).all()
        for a, b in [(a, b) for a in range(len(row)) for b in range(len(row))]:
            gap = row[a] - row[b]
            assert gap != 0 or shown[a] == shown[b]
            assert gap <= 2e-6 * max(row) or shown[a] > shown[b]
    signs = torch.where(torch.arange(values.shape[1]) % 2 == 0, 1.0, -1.0)
    grid = values.masked_fill(~mask, 0).mul(50).round() / 50
    if (grid.amax(1) > 0).all():
        noisy = grid + noise * grid.amax(1, keepdim=True) * signs
        same = tied_ranks(grid[:, None], mask[:, None]), tied_ranks(noisy[:, None], mask[:, None])
        assert torch.equal(*same)


def test_a_long_chain_of_close_weights_is_not_one_tie() -> None:
    weights = 1 + torch.arange(5000, dtype=torch.float64)[None, None] * 5e-7
    ranks = tied_ranks(weights, torch.ones_like(weights, dtype=torch.bool))
    assert ranks.unique().numel() > 1000


@given(st.lists(st.integers(-3, 30), max_size=12))
def test_keys_are_numbered_as_by_numpy(keys: list[int]) -> None:
    numbers, counts = _numbered(np.array(keys, dtype=np.int64))
    _, expected, expected_counts = np.unique(np.array(keys, dtype=np.int64), return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(counts, expected_counts)


@given(st.lists(st.permutations(range(4)), min_size=1, max_size=9))
def test_orders_that_differ_are_found(orders: list[list[int]]) -> None:
    found = _differ(np.array(orders), np.arange(4))
    assert found.tolist() == [order != [0, 1, 2, 3] for order in orders]
