"""Normalised AOPC equals a plain implementation that tries every permutation of the tokens."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import numpy as np
import pytest
import torch

from attnaudit import checks
from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.checks.builtin import normalised_aopc
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.measures import normalised_erasure
from tests.slow_cases import slow_except
from tests.small_models import WORDS, dataset
from tests.units.measures.test_erasure_against_plain_definitions import INSTANCES, KINDS, Plain, measured

COLUMNS = ("comprehensiveness", "sufficiency", "random", "lowest", "highest")
OPERATORS = pytest.mark.parametrize("operator", ["deletion", "mask"])


def aopc_of_every_order(plain: Plain, operator: str) -> dict[tuple[int, ...], float]:
    """Return the AOPC of each permutation of the real tokens."""
    count = len(plain.real)

    @cache
    def fall(erased: frozenset[int]) -> float:
        return float((plain.p - plain.without(sorted(erased), operator))[plain.predicted])

    return {
        order: float(np.mean([fall(frozenset(order[:k])) for k in range(1, count)]))
        for order in permutations(range(count))
    }


def expected(plain: Plain, operator: str) -> list[float]:
    every = aopc_of_every_order(plain, operator)
    lowest, highest = min(every.values()), max(every.values())
    most_first = tuple(np.argsort(-plain.reading.numpy(), kind="stable").tolist())

    def normalised(aopc: float) -> float:
        return (aopc - lowest) / (highest - lowest)

    return [
        normalised(every[most_first]),
        1 - normalised(every[most_first[::-1]]),
        normalised(float(np.mean(list(every.values())))),
        lowest,
        highest,
    ]


def found(measurements: Measurements, operator: str, row: int) -> list[float]:
    return [float(measurements.scalar(f"normalised_aopc.{operator}.{name}")[row]) for name in COLUMNS]


@pytest.fixture(params=list(KINDS))
def model(request: pytest.FixtureRequest) -> PooledAttentionAdapter:
    return KINDS[request.param]()


@OPERATORS
def test_short_texts_equal_every_permutation(model: PooledAttentionAdapter, operator: str) -> None:
    measurements = measured(model, f"normalised_aopc.{operator}")
    compared = 0
    for i, one in enumerate(INSTANCES):
        count = len(one.text.split())
        if count == 1:
            assert np.isnan(found(measurements, operator, i)).all()
        elif count < 7:
            plain = Plain(model, one)
            assert found(measurements, operator, i) == pytest.approx(expected(plain, operator), abs=2e-4), one.text
            assert measurements.scalar(f"normalised_aopc.{operator}.searched")[i] == 0
            compared += 1
    assert compared >= 3


@OPERATORS
def test_the_search_is_close_to_the_exact_bounds(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = KINDS["three classes"]()
    searched = measured(model, f"normalised_aopc.{operator}")
    monkeypatch.setattr(normalised_erasure, "EXACT", 10)
    exact = measured(model, f"normalised_aopc.{operator}")
    longer = np.flatnonzero(searched.scalar(f"normalised_aopc.{operator}.searched") == 1)
    assert [len(INSTANCES[i].text.split()) for i in longer] == [9, 10]
    for i in longer:
        *_, low, high = found(searched, operator, i)
        *_, lowest, highest = found(exact, operator, i)
        assert lowest - 1e-5 <= low <= lowest + 0.1 * (highest - lowest)
        assert highest - 0.1 * (highest - lowest) <= high <= highest + 1e-5


def test_a_wide_beam_finds_the_exact_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beam that holds every set is dynamic programming, so it has the result of the exact method."""
    model = KINDS["two logits"]()
    exact = measured(model, "normalised_aopc.deletion")
    monkeypatch.setattr(normalised_erasure, "EXACT", 1)
    monkeypatch.setattr(normalised_erasure, "BEAM", 1000)
    searched = measured(model, "normalised_aopc.deletion")
    for name in ("comprehensiveness", "sufficiency", "lowest", "highest"):
        column = f"normalised_aopc.deletion.{name}"
        short = searched.lengths <= 8
        np.testing.assert_allclose(searched.scalar(column)[short], exact.scalar(column)[short], atol=1e-6)
    assert (searched.scalar("normalised_aopc.deletion.searched")[searched.lengths > 1] == 1).all()


@pytest.mark.parametrize("name", slow_except(KINDS, ["two logits"]))
def test_values_do_not_depend_on_the_batch(name: str) -> None:
    model = KINDS[name]()
    needs = ["normalised_aopc.deletion", "normalised_aopc.mask"]
    whole = measured(model, *needs)
    single = measure(model, dataset([one.text for one in INSTANCES]), needs, model="m", seed=0, batch_tokens=12)[0]
    for column in whole.scalars:
        np.testing.assert_allclose(whole.scalar(column), single.scalar(column), atol=2e-4, err_msg=column)


def test_texts_in_which_all_orders_are_equal_are_undefined_in_any_batch() -> None:
    """Without k of several equal words, the text is the same, whichever words they are. Only rounding differs."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
    from attnaudit.adapters.huggingface import transformer
    from tests import architectures

    adapter = transformer(*architectures.build("bert"))
    texts = [" ".join([word] * count) for word in ("good", "film") for count in (3, 9)]
    for tokens in (None, 12):
        rows = measure(
            adapter,
            dataset([*texts, "a good film"]),
            ["normalised_aopc.deletion"],
            model="m",
            seed=0,
            batch_tokens=tokens,
        )[0]
        defined = ~np.isnan(rows.scalar("normalised_aopc.deletion.comprehensiveness"))
        assert defined.tolist() == [False] * len(texts) + [True]


def test_undefined_texts_have_a_reason() -> None:
    longest = normalised_aopc.MOST_TOKENS
    assert longest == normalised_erasure.MOST
    texts = ["bad", "good bad story", " ".join(WORDS[1 + i % 14] for i in range(longest + 1))]
    model = KINDS["two logits"]()
    measurements = measure(model, dataset(texts), ["normalised_aopc.deletion", "attention"], model="m", seed=0)[0]
    record = checks.NormalisedAOPC(severity="report").judge(measurements)
    assert record.undefined == {"a single token": 1, f"more than {longest} tokens": 1}
    assert record.details["share of instances with exact bounds"] == 1
    with torch.no_grad():
        model.attention.score.weight.zero_()
    measurements = measure(model, dataset(texts), ["normalised_aopc.deletion", "attention"], model="m", seed=0)[0]
    record = checks.NormalisedAOPC(severity="report").judge(measurements)
    assert record.undefined["all attention weights are equal, or every order of erasure has the same effect"] == 1


def test_an_output_that_ignores_the_text_is_undefined() -> None:
    model = KINDS["two logits"]()
    with torch.no_grad():
        model.decoder.weight.zero_()
    measurements = measured(model, "normalised_aopc.mask", "attention")
    record = checks.NormalisedAOPC(severity="report", operator="mask", measure="sufficiency").judge(measurements)
    assert record.value is None
    assert record.undefined["all attention weights are equal, or every order of erasure has the same effect"] == 6
