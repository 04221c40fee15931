"""Erasure and randomisation: ties, degenerate cases, shared passes, and independence of the batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau
from torch import Tensor

from attnaudit.adapters import Capabilities, Inputs, PooledAttentionAdapter, Trace
from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.planning import resolve
from attnaudit.errors import CheckError
from attnaudit.instances import Instance
from attnaudit.measures.erasure_curves import DRAWS, counts_at, first, random_orders, ranked
from attnaudit.measures.randomised_parameters import COPIES, parameters_of, redrawn, redrawn_values
from tests.small_models import TEXTS, WORDS, adapter, dataset, parts, tokenize_with_ends
from tests.units.measures.measured_texts import NEEDS, measured

RANKS = (".tau", ".tau.floor")


def assert_same(a: Measurements, b: Measurements) -> None:
    assert a.columns == b.columns
    for name in a.scalars:
        if not name.endswith(RANKS):
            np.testing.assert_allclose(a.scalars[name], b.scalars[name], atol=2e-5, err_msg=name)
    for name in a.vectors:
        for x, y in zip(a.vectors[name], b.vectors[name], strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5, err_msg=name)


def view(model: PooledAttentionAdapter, texts: list[str] = TEXTS, *, budget: int = 4096) -> AttentionView:
    instances = dataset(texts).instances
    batch = Batch(
        model, instances, range(len(instances)), seed=3, keep_graph=False, budget=budget, pass_counts=Counter()
    )
    return AttentionView(batch)


@pytest.mark.parametrize(
    ("batch_tokens", "outputs"),
    [(1, 1), (12, 3), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((1, 3), (12, 1), (40, 1), (40, 3)))],
)
def test_numbers_do_not_depend_on_the_batch_size(outputs: int, batch_tokens: int) -> None:
    def model() -> PooledAttentionAdapter:
        return adapter(outputs, tokenize=tokenize_with_ends, mask_id=1)

    assert_same(measured(model()), measured(model(), batch_tokens=batch_tokens))


def test_numbers_of_an_instance_do_not_depend_on_the_others() -> None:
    whole = measured(adapter(mask_id=1))
    rows = replace(dataset(), instances=dataset().instances[3:4])
    alone = measure(adapter(mask_id=1), rows, NEEDS, model="lstm", seed=3)[0]
    for name in whole.scalars:
        np.testing.assert_allclose(alone.scalars[name][0], whole.scalars[name][3], atol=2e-5, err_msg=name)


def test_another_seed_draws_different_orders() -> None:
    longer = [t + " and a bright good film" for t in TEXTS]
    one = measure(adapter(), dataset(longer), ["comprehensiveness.deletion"], model="lstm", seed=3)[0]
    other = measure(adapter(), dataset(longer), ["comprehensiveness.deletion"], model="lstm", seed=4)[0]
    name = "comprehensiveness.deletion"
    assert not np.allclose(one.scalar(f"{name}.random"), other.scalar(f"{name}.random"))
    np.testing.assert_array_equal(one.scalar(f"{name}.attention"), other.scalar(f"{name}.attention"))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 4))
@settings(max_examples=25)
def test_orders_begin_with_the_real_tokens_each_once(lengths: list[int], seed: int) -> None:
    texts = [" ".join(WORDS[1 : 1 + n]) for n in lengths]
    some = view(adapter(tokenize=tokenize_with_ends), texts)
    some.seed = seed
    scores = torch.rand(some.real.shape, generator=torch.Generator().manual_seed(seed)).round(decimals=1)
    for order in (ranked(some, scores), *random_orders(some, 3, "any").unbind(1)):
        for b, n in enumerate(lengths):
            assert sorted(order[b, :n].tolist()) == some.real[b].nonzero()[:, 0].tolist()
    for b, n in enumerate(lengths):
        along = scores[b, ranked(some, scores)[b, :n]]
        assert (along[:-1] >= along[1:]).all()


@given(st.integers(1, 300))
def test_token_counts_are_rounded_up_and_never_take_every_token(n: int) -> None:
    counts = counts_at(torch.tensor([n]))[0].tolist()
    assert counts == [max(1, -(-n * p // 100)) for p in (1, 5, 10, 20, 50)]
    assert n == 1 or max(counts) < n


def test_first_marks_the_beginning_of_an_order() -> None:
    marked = first(torch.tensor([[2, 0, 1]]), torch.tensor([[1, 2, 3]]))
    assert marked.int().tolist() == [[[0, 0, 1], [1, 0, 1], [1, 1, 1]]]


def test_ties_are_broken_at_random_and_not_by_position() -> None:
    long = [" ".join(["good"] * 8) for _ in range(40)]
    some = view(adapter(), long)
    tied = torch.zeros(some.real.shape)
    tied[:, 5] = 1.0
    order = ranked(some, tied)
    assert (order[:, 0] == 5).all()
    assert order[:, 1].unique().tolist() == [0, 1, 2, 3, 4, 6, 7]


class Uniform(torch.nn.Module):
    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        return allowed / allowed.sum(1, keepdim=True)


class OneHot(torch.nn.Module):
    """All attention on the first allowed token."""

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        return (allowed & (allowed.cumsum(1) == 1)).float()


class FirstTwo(torch.nn.Module):
    """Two unequal weights, the rest zero."""

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        place = allowed.cumsum(1)
        weights = 0.75 * (allowed & (place == 1)) + 0.25 * (allowed & (place == 2))
        return weights / weights.sum(1, keepdim=True)


def test_uniform_attention_orders_nothing_and_is_undefined() -> None:
    measurements = measured(adapter(attention=Uniform(), mask_id=1))
    for name in NEEDS[:6]:
        for column in (c for c in measurements.scalars if c.startswith(name)):
            assert np.isnan(measurements.scalars[column]).all(), column
    assert not np.isnan(measurements.scalar("token_probability")).any()


def test_attention_on_one_token_leaves_nothing_to_renormalise_but_can_be_erased() -> None:
    measurements = measured(adapter(attention=OneHot(), mask_id=1))
    assert np.isnan(measurements.scalar("flip.attention")).all()
    assert np.isnan(measurements.scalar("top_token.attention")).all()
    several = measurements.lengths > 1
    assert not np.isnan(measurements.scalar("comprehensiveness.deletion.attention")[several]).any()
    assert not np.isnan(measurements.scalar("sufficiency.mask.loo")[several]).any()


def test_a_decision_that_holds_until_no_weight_is_left_never_flips() -> None:
    measurements = measured(adapter(attention=FirstTwo()), ["flip", "top_token"])
    shares = measurements.scalar("flip.attention")[measurements.lengths > 1]
    lengths = measurements.lengths[measurements.lengths > 1]
    assert all(share == 1 or share == pytest.approx(1 / n) for share, n in zip(shares, lengths, strict=True))


def test_without_a_mask_token_the_columns_are_undefined_and_a_fact_says_so() -> None:
    measurements = measured(adapter(), NEEDS[:4])
    assert np.isnan(measurements.scalar("comprehensiveness.mask.attention")).all()
    assert not np.isnan(measurements.scalar("comprehensiveness.deletion.attention")[measurements.lengths > 1]).any()
    assert measurements.facts == {"erasure.mask": "not possible"}


class CannotDelete(PooledAttentionAdapter):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, deletion=False)


def test_without_deletion_only_masking_is_measured() -> None:
    measurements = measured(CannotDelete(**parts(), mask_id=1), NEEDS[:4])  # type: ignore[arg-type]
    assert np.isnan(measurements.scalar("sufficiency.deletion.attention")).all()
    assert not np.isnan(measurements.scalar("sufficiency.mask.attention")[measurements.lengths > 1]).any()
    assert measurements.facts == {"erasure.deletion": "not possible"}


class Counting(PooledAttentionAdapter):
    def __init__(self, **made: Any) -> None:
        super().__init__(**made)
        self.rows: list[int] = []
        self.widest = 0

    def run(self, inputs: Inputs, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        if embeddings is None:
            self.rows.append(len(inputs.ids["text"]))
            self.widest = max(self.widest, inputs.ids["text"].numel())
        return super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)


def test_equal_variants_run_once_and_within_the_budget() -> None:
    model = Counting(**parts())
    some = view(model, ["good bad very dull", "a bright film"], budget=8)
    keep = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]]).bool()
    rows = torch.tensor([0, 0, 0, 1, 1])
    output = some.batch.erase(rows, keep, "deletion")
    # One variant runs by itself; those that lack a single token come from the seven leave-one-out variants.
    assert sum(model.rows) == 1 + 7
    assert some.pass_counts["forward_rows"] == 2 + 1 + 7
    assert model.widest <= 8
    torch.testing.assert_close(output[0], output[1])
    torch.testing.assert_close(output[2], some.batch.leave_one_out("deletion")[0, 0])
    torch.testing.assert_close(output[3], some.batch.leave_one_out("deletion")[1, 0])
    assert output[4].isnan().all()


def test_erasure_runs_no_more_than_leave_one_out_and_its_own_subsets() -> None:
    model = Counting(**parts())
    needs = ["leave_one_out.inputs", "comprehensiveness.deletion", "sufficiency.deletion"]
    measure(model, dataset(), needs, model="lstm", seed=0)
    lengths = [len(t.split()) for t in TEXTS if len(t.split()) > 1]
    sets = [len(set(counts_at(torch.tensor([n]))[0].tolist())) for n in lengths]
    assert sum(model.rows) <= sum(lengths) + sum(2 * (2 + DRAWS) * k for k in sets)


# -- parameter randomisation --------------------------------------------------------------------------------------


def test_randomisation_restores_the_model() -> None:
    model = adapter(2)
    pointers = {name: p.data_ptr() for name, p in parameters_of(model).items()}
    before = {name: p.detach().clone() for name, p in parameters_of(model).items()}
    logits = model.run(model.collate(dataset().instances)).logits.detach()
    measured(model, ["randomised"])
    for name, parameter in parameters_of(model).items():
        assert torch.equal(parameter, before[name])
        assert parameter.data_ptr() == pointers[name]
    assert torch.equal(model.run(model.collate(dataset().instances)).logits, logits)


def test_randomisation_restores_the_model_after_an_error() -> None:
    model = adapter(2)
    before = {name: p.detach().clone() for name, p in parameters_of(model).items()}
    values = {name: torch.zeros_like(p) for name, p in parameters_of(model).items()}

    def fail_inside() -> None:
        with redrawn(model, values):
            assert not any(p.any() for p in parameters_of(model).values())
            raise RuntimeError("in the copy")

    with pytest.raises(RuntimeError, match="in the copy"):
        fail_inside()
    assert all(torch.equal(p, before[name]) for name, p in parameters_of(model).items())


def test_randomisation_does_not_change_the_gradients_of_other_measures() -> None:
    needs = ["gradient.jain_wallace.inputs", "influence.hidden", "gradient.meister.hidden"]
    alone, together = measured(adapter(2), needs), measured(adapter(2), ["randomised", *needs])
    for name in needs[::2]:
        for x, y in zip(alone.vector(name), together.vector(name), strict=True):
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(alone.scalar("influence.hidden.entropy"), together.scalar("influence.hidden.entropy"))


def test_randomised_columns_compare_with_models_that_have_the_redrawn_parameters() -> None:
    measurements = measured(adapter(2), ["randomised"])
    base = measured(adapter(2), ["gradient.meister.inputs"])
    copies = []
    for copy in range(COPIES):
        other = adapter(2)
        for name, parameter in parameters_of(other).items():
            parameter.data = redrawn_values(name, parameter, seed=3, copy=copy)
        copies.append(measured(other, ["gradient.meister.inputs"]))
    for i, n in enumerate(measurements.lengths):
        for what, column in (("attention", "attention"), ("gradient", "gradient.meister.inputs")):
            if n < 2:
                assert np.isnan(measurements.scalar(f"randomised.{what}.tau")[i])
                continue
            expected = np.mean([kendalltau(base.vector(column)[i], c.vector(column)[i]).statistic for c in copies])
            np.testing.assert_allclose(measurements.scalar(f"randomised.{what}.tau")[i], expected, atol=1e-9)
            assert measurements.scalar(f"randomised.{what}.jsd")[i] > 0


def test_parameters_are_redrawn_by_seed_copy_and_name_at_their_own_scale() -> None:
    one = torch.full((400, 50), 3.0) + 0.5 * torch.randn((400, 50), generator=torch.Generator().manual_seed(1))
    drawn = redrawn_values("0.weight", one, seed=1, copy=0)
    assert torch.equal(drawn, redrawn_values("0.weight", one, seed=1, copy=0))
    for other in (("0.weight", 2, 0), ("0.weight", 1, 1), ("1.weight", 1, 0)):
        assert not torch.equal(drawn, redrawn_values(other[0], one, seed=other[1], copy=other[2]))
    assert (drawn.mean().item(), drawn.std().item()) == pytest.approx((3.0, 0.5), abs=0.02)
    assert torch.equal(redrawn_values("b", torch.full((4,), 2.0), seed=1, copy=0), torch.full((4,), 2.0))
    assert redrawn_values("b", torch.tensor([2.0]), seed=1, copy=0).abs().item() == 2.0


def test_attention_without_parameters_is_the_same_in_every_copy() -> None:
    measurements = measured(adapter(attention=FirstTwo()), ["randomised"])
    several = measurements.lengths > 1
    assert measurements.scalar("randomised.attention.tau")[several] == pytest.approx(1)
    assert measurements.scalar("randomised.attention.jsd")[several] == pytest.approx(0, abs=1e-12)
    assert measurements.scalar("randomised.attention.tau.floor")[several] == pytest.approx(1)


class NotDifferentiable(PooledAttentionAdapter):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, differentiable=False, decodes=False, linear_decoder=False)


def test_without_gradients_the_other_orders_are_still_measured() -> None:
    measurements = measured(NotDifferentiable(**parts()), ["flip"])  # type: ignore[arg-type]
    assert np.isnan(measurements.scalar("flip.gradient")).all()
    np.testing.assert_allclose(
        measurements.scalar("flip.attention"), measured(adapter(), ["flip"]).scalar("flip.attention")
    )


@pytest.mark.parametrize(
    ("need", "message"),
    [
        ("comprehensiveness", "expected .deletion or .mask"),
        ("sufficiency.deletoin", "Did you mean 'deletion'"),
        ("flip.attention", "takes no argument"),
        ("top_token.x", "takes no argument"),
        ("conicity.x", "takes no argument"),
        ("token_probability.x", "takes no argument"),
        ("randomised.x", "takes no argument"),
        ("retained", "expected .frequent or .sampled"),
    ],
)
def test_an_invalid_need_is_named(need: str, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        resolve([need])


def test_an_instance_without_attention_on_real_tokens_is_undefined() -> None:
    class OnTheStart(torch.nn.Module):
        def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
            return (torch.arange(allowed.shape[1]) == 0).float().expand(allowed.shape)

    model = adapter(2, tokenize=tokenize_with_ends, attend_special=True, attention=OnTheStart(), mask_id=1)
    measurements = measured(model, NEEDS[:6])
    assert np.isnan(measurements.scalar("comprehensiveness.deletion.attention")).all()
    assert np.isnan(measurements.scalar("flip.attention")).all()


def test_only_keeps_the_chosen_rows() -> None:
    measurements = measured(adapter(), ["conicity", "retained.frequent"])
    chosen = np.arange(len(measurements)) % 2 == 1
    part = measurements.only(chosen)
    assert part.ids == [i for i, c in zip(measurements.ids, chosen, strict=True) if c]
    np.testing.assert_array_equal(part.scalar("conicity"), measurements.scalar("conicity")[chosen])
    assert [len(v) for v in part.vector("attention")] == part.lengths.tolist()
    assert part.tables == {}


def test_with_one_token_only_its_own_probability_is_defined() -> None:
    rows = replace(dataset(), instances=(Instance(id="only", text="good"),))
    measurements = measure(adapter(mask_id=1), rows, NEEDS, model="lstm", seed=0)[0]
    undefined = {name for name, column in measurements.scalars.items() if np.isnan(column).all()}
    defined = {n for n in measurements.scalars if n.startswith(("attention.", "token_probability"))}
    assert undefined == set(measurements.scalars) - defined
