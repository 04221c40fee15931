"""Effects of tokens with held attention equal plain implementations, one pass per variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnaudit import checks
from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.protocol import TEXT, Site
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.planning import refusals
from attnaudit.errors import AdapterError, CheckError
from attnaudit.instances import Instance
from attnaudit.measures import token_effects
from tests.small_models import dataset
from tests.units.conformance.conformance_models import SOUND, SmallTransformer
from tests.units.measures.test_erasure_against_plain_definitions import INSTANCES, KINDS, TEXTS, UNKNOWN, centred
from tests.units.measures.test_erasure_against_plain_definitions import Plain as PlainPooled
from tests.units.measures.test_many_sites import CASES, rows_of, under
from tests.units.measures.test_many_sites import Plain as PlainTransformer

LIVE = "pointing.live"
#: The probability of the predicted class, and the centred logits, with only some units kept, given by their numbers.
Payoff = Callable[[list[int]], np.ndarray]


def outputs(output: Tensor, predicted: int) -> np.ndarray:
    """Return (1 + C,) the probability of the predicted class and the centred logits, from class probabilities (C,)."""
    centred = output.log() - output.log().mean()
    return np.array([float(output[predicted]), *centred.tolist()])


def sizes(effects: np.ndarray) -> np.ndarray:
    """Return (n, 2) from (n, 1 + C): the effects on the probability, and the lengths of those on the logits."""
    return np.stack([effects[:, 0], np.sqrt((effects[:, 1:] ** 2).sum(1))], axis=1)


def effects(payoff: Payoff, count: int) -> np.ndarray:
    """Return (n, 2) effects, one pass per term of the definition."""
    everything = list(range(count))
    return sizes(
        np.array(
            [
                (payoff(everything) - payoff([j for j in everything if j != i])) / 2 + (payoff([i]) - payoff([])) / 2
                for i in everything
            ]
        )
    )


def shapley(payoff: Payoff, count: int) -> np.ndarray:
    """Return (n, 2) Shapley values by their definition."""
    payoff_of = cache(lambda kept: payoff(list(kept)))
    total, orders = np.zeros((count, len(payoff([])))), list(permutations(range(count)))
    for order in orders:
        for k, player in enumerate(order):
            total[player] += payoff_of(tuple(sorted(order[: k + 1]))) - payoff_of(tuple(sorted(order[:k])))
    return sizes(total / len(orders))


def pooled_payoff(plain: PlainPooled, *, held: bool) -> Payoff:
    def payoff(kept: list[int]) -> np.ndarray:
        gone = {plain.real[p] for p in range(len(plain.real)) if p not in kept}
        ids = [UNKNOWN if i in gone else x for i, x in enumerate(plain.ids)]
        output, _, states = plain.run(ids, plain.special)
        return outputs(plain.decide(plain.weights, states) if held else output, plain.predicted)

    return payoff


def transformer_payoff(plain: PlainTransformer, *, held: bool, units: list[list[int]] | None = None) -> Payoff:
    units = units or [[p] for p in plain.real]

    def hold(site: Site, live: Tensor, _allowed: Tensor) -> Tensor | None:
        if site.key != plain.site.key:
            return None
        weights = live.clone()
        for head in plain.heads:
            for query in plain.queries:
                weights[0, head, query] = plain.trace.attention[site.key][0, head, query]
        return weights

    def payoff(kept: list[int]) -> np.ndarray:
        replaced = torch.zeros_like(plain.inputs.mask[TEXT])
        for number, positions in enumerate(units):
            replaced[0, positions] = number not in kept
        variant = plain.model.substitute(plain.inputs, TEXT, torch.tensor([0]), replaced)
        logits = plain.model.run(variant, intervene=hold if held else None).logits[0].double()
        return outputs(torch.softmax(logits, -1), plain.predicted)

    return payoff


def both(measurements: Measurements, name: str, row: int) -> np.ndarray:
    """Return the (n, 2) effects of one instance on the probability and on the logit."""
    return np.stack([measurements.vector(name)[row], measurements.vector(f"{name}.logits")[row]], axis=1)


def measured(model: PooledAttentionAdapter, *needs: str, **options: object) -> Measurements:
    return measure(model, dataset(TEXTS), needs, model="lstm", seed=0, **options)[0]  # type: ignore[arg-type]


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest) -> PooledAttentionAdapter:
    return KINDS[request.param]()


@pytest.mark.parametrize("kind", ["held", "live"])
def test_effects_of_a_pooled_model(model: PooledAttentionAdapter, kind: str) -> None:
    measurements = measured(model, f"token_effect.{kind}")
    for i, one in enumerate(INSTANCES):
        plain = PlainPooled(model, one)
        found, count = both(measurements, f"token_effect.{kind}", i), len(plain.real)
        if count == 1:
            assert np.isnan(found).all()
        else:
            expected = effects(pooled_payoff(plain, held=kind == "held"), count)
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=one.text)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}, {c[1]}")
def test_effects_under_every_kind_of_reading(case: tuple[str, str, int, list[int], str]) -> None:
    kind, reading, layer, heads, query = case
    model = SOUND[kind]()
    needs = [f"token_effect.held/{reading}", f"token_effect.live/{reading}"]
    measurements = under(measure(model, rows_of(model), needs, model="small", seed=3)[0], reading)
    differences = []
    for i, one in enumerate(rows_of(model).instances):
        plain = PlainTransformer(model, one, layer, heads, query)
        if len(plain.real) == 1:
            continue
        for name, held in (("held", True), ("live", False)):
            expected = effects(transformer_payoff(plain, held=held), len(plain.real))
            np.testing.assert_allclose(both(measurements, f"token_effect.{name}", i), expected, atol=2e-5)
        differences.append(measurements.vector("token_effect.held")[i] - measurements.vector("token_effect.live")[i])
    # The last layer's output is read at the first token, whose row is not among the rows of the real tokens.
    unused = (kind, reading) == ("both ways", "mean@layer=1")
    assert (max(np.abs(d).max() for d in differences) > 1e-4) != unused


def test_words_are_replaced_as_units() -> None:
    model = SmallTransformer()
    measurements = measure(model, rows_of(model), ["pointing.held"], model="small", seed=0, unit="words")[0]
    for i, one in enumerate(rows_of(model).instances):
        plain = PlainTransformer(model, one, 1, [0, 1], "cls")
        count = len(one.text.split())
        words = plain.inputs.words[TEXT][0]
        units = [[p for p in plain.real if int(words[p]) == w] for w in range(count)]
        if count > 1:
            expected = effects(transformer_payoff(plain, held=True, units=units), count)
            np.testing.assert_allclose(both(measurements, "token_effect.held", i), expected, atol=2e-5)
            largest = measurements.scalar("pointing.held.largest")[i]
            assert largest == pytest.approx(np.abs(expected[:, 0]).max(), abs=1e-5)


def test_shapley_values_of_short_texts_are_exact(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "token_effect.shapley.60")
    checked = 0
    for i, one in enumerate(INSTANCES):
        plain = PlainPooled(model, one)
        count = len(plain.real)
        if 1 < count <= 6:
            expected = shapley(pooled_payoff(plain, held=True), count)
            np.testing.assert_allclose(both(measurements, "token_effect.shapley.60", i), expected, atol=2e-5)
            checked += 1
    assert checked >= 3


def test_sampled_shapley_values_add_up_and_approach_the_exact_ones() -> None:
    model = KINDS["non-linear decoder"]()
    rows = replace(dataset(), instances=(Instance(id="a", text="not very good and not bad"),))

    def values(orders: int, seed: int = 0) -> np.ndarray:
        name = f"token_effect.shapley.{orders}"
        return both(measure(model, rows, [name], model="lstm", seed=seed)[0], name, 0)

    plain = PlainPooled(model, rows.instances[0])
    exact, payoff = values(100), pooled_payoff(plain, held=True)
    np.testing.assert_allclose(exact, shapley(payoff, 6), atol=2e-5)
    sampled = np.array([values(3, seed) for seed in range(30)])
    total = payoff(list(range(6))) - payoff([])
    np.testing.assert_allclose(sampled[..., 0].sum(1), np.full(30, total[0]), atol=2e-5)
    assert np.abs(sampled - exact).max() > 1e-3
    error = sampled.std(0, ddof=1) / np.sqrt(30)
    assert (np.abs(sampled.mean(0) - exact)[:, 0] <= 4 * error[:, 0] + 1e-5).all()
    # The length of a vector with errors is larger on average.
    assert (sampled.mean(0)[:, 1] >= exact[:, 1] - 4 * error[:, 1] - 1e-5).all()
    lengths = [
        np.abs(np.array([values(orders, seed) for seed in range(15)])[..., 1] - exact[:, 1]).mean()
        for orders in (2, 10)
    ]
    assert lengths[1] < 0.7 * lengths[0]


@pytest.mark.parametrize("kind", ["both ways", "causal", "cross"])
def test_numbers_do_not_depend_on_the_batch_size(kind: str) -> None:
    model = SOUND[kind]()
    needs = ["pointing.held", "pointing.live", "pointing.shapley.5"]
    one, many = (
        measure(model, rows_of(model), needs, model="small", seed=0, batch_tokens=size)[0] for size in (1, 10_000)
    )
    for name in needs:
        for column in ("largest", "cosine", "uniform_cosine", "drawn", "drawn_uniform"):
            np.testing.assert_allclose(
                one.scalar(f"{name}.{column}"), many.scalar(f"{name}.{column}"), atol=1e-4, err_msg=f"{name}.{column}"
            )


def test_columns_of_pointing_follow_from_attention_and_effects(model: PooledAttentionAdapter) -> None:
    measurements = measured(model, "pointing.held")
    for i, (weights, signed) in enumerate(
        zip(measurements.vector("attention"), measurements.vector("token_effect.held"), strict=True)
    ):
        effect = np.abs(signed)
        one = {name: measurements.scalar(f"pointing.held.{name}")[i] for name in ("largest", "cosine", "drawn")}
        if len(effect) == 1:
            assert np.isnan(list(one.values())).all()
            continue
        assert one["largest"] == effect.max()
        assert one["cosine"] == pytest.approx(weights @ effect / np.linalg.norm(weights) / np.linalg.norm(effect))
        assert one["drawn"] == pytest.approx(weights @ effect)
        assert measurements.scalar("pointing.held.uniform_cosine")[i] == pytest.approx(
            effect.sum() / np.sqrt(len(effect)) / np.linalg.norm(effect)
        )
        assert measurements.scalar("pointing.held.drawn_uniform")[i] == pytest.approx(effect.mean())


def test_a_model_that_ignores_the_text_has_no_effects() -> None:
    class Constant(nn.Module):
        def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
            return torch.ones((*mask.shape, 10))

    made = KINDS["two logits"]()
    made.encoder = Constant()
    measurements = measured(made, "pointing.held")
    defined = measurements.lengths > 1
    assert (measurements.scalar("pointing.held.largest")[defined] == 0).all()
    assert np.isnan(measurements.scalar("pointing.held.cosine")).all()


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_logit_effects_scale_with_the_logits_and_ignore_a_bias_and_the_names_of_the_classes(outputs: int) -> None:
    reference = checks.Pointing(severity="report", on="logits").judge(measured(centred(outputs), "pointing.held", LIVE))
    for factor in (0.1, 10.0):
        made = centred(outputs)
        with torch.no_grad():
            made.decoder.weight.mul_(factor)
            made.decoder.bias.mul_(factor)
        record = checks.Pointing(severity="report", on="logits").judge(measured(made, "pointing.held", LIVE))
        assert record.value == pytest.approx(reference.value, abs=1e-3)
    order = list(range(outputs))[::-1]
    made = centred(outputs)
    with torch.no_grad():
        if outputs == 1:
            made.decoder.weight.neg_()
            made.decoder.bias.neg_()
        else:
            made.decoder.weight.copy_(made.decoder.weight[order])
            made.decoder.bias.copy_(made.decoder.bias[order])
    renamed = measured(made, "pointing.held", LIVE)
    for on in ("logits", "probabilities"):
        record = checks.Pointing(severity="report", on=on).judge(renamed)
        own = checks.Pointing(severity="report", on=on).judge(measured(centred(outputs), "pointing.held", LIVE))
        assert record.value == pytest.approx(own.value, abs=1e-4)


def test_a_bias_changes_no_effect_on_the_logits_even_if_it_changes_predictions() -> None:
    plain_model, biased = centred(3), centred(3)
    before = measured(plain_model, "pointing.held", LIVE)
    spread = np.concatenate(before.vector("logits")).std()
    with torch.no_grad():
        biased.decoder.bias += torch.tensor([3 * spread, -spread, 0.0])
    after = measured(biased, "pointing.held", LIVE)
    assert (after.predicted != before.predicted).any()
    for i in range(len(before)):
        one, two = (both(m, "token_effect.held", i)[:, 1] for m in (before, after))
        np.testing.assert_allclose(two, one, atol=2e-5)
    check = checks.Pointing(severity="report", on="logits", classes="as_sampled")
    assert check.judge(after).value == pytest.approx(check.judge(before).value, abs=1e-4)


def test_adding_a_constant_to_the_attention_scores_changes_nothing() -> None:
    plain_model, shifted = centred(2), centred(2)
    with torch.no_grad():
        shifted.attention.score.bias += 5.0
    first, second = (measured(one, "pointing.held", LIVE) for one in (plain_model, shifted))
    for name in first.scalars:
        np.testing.assert_allclose(first.scalars[name], second.scalars[name], atol=1e-4, err_msg=name)


def test_classes_that_are_closed_in_a_row_do_not_matter() -> None:
    clean, other = [0.7, 0.2, 0.1], [0.4, 0.5, 0.1]
    found = []
    for closed in ([], [-1e4]):
        z, w = (torch.tensor([np.log(row).tolist() + closed], dtype=torch.float64) for row in (clean, other))
        flags = torch.tensor([[True] * 3 + [False]]) if closed else None
        view = SimpleNamespace(predicted=torch.tensor([0]), open_classes=flags)
        change = token_effects._outputs(view, torch.tensor([0]), z) - token_effects._outputs(view, torch.tensor([0]), w)
        found.append(token_effects._effect_sizes(change)[0])
    log_odds = np.log(clean) - np.log(other)
    assert found[0].tolist() == pytest.approx([0.3, np.linalg.norm(log_odds - log_odds.mean())])
    assert found[1].tolist() == pytest.approx(found[0].tolist())


def test_a_model_without_a_mask_token_is_refused() -> None:
    model = SmallTransformer(mask=False)
    with pytest.raises(AdapterError, match=r"token_effect\.held.* mask=False.*Implement substitute"):
        measure(model, rows_of(model), ["pointing.held"], model="small", seed=0)


def test_rollout_is_refused_because_it_has_no_single_site() -> None:
    model = SmallTransformer()
    needs = ["pointing.held/rollout@query=cls", "pointing.live/rollout@query=cls", "pointing.held"]
    refused = refusals(model, needs)
    assert list(refused) == ["pointing.held/rollout@query=cls"]
    assert "combines all layers" in str(refused[needs[0]])


@pytest.mark.parametrize("argument", ["", "none", "held.3", "shapley", "shapley.0", "shapley.x", "shapley.1000000"])
def test_other_arguments_are_refused(argument: str) -> None:
    with pytest.raises(CheckError, match=r"expected .*\.shapley\.N"):
        measured(KINDS["two logits"](), f"token_effect.{argument}".rstrip("."))
