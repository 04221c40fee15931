"""The linear datamodelling score and the top-k drop, against plain PyTorch on prompts without passages."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import spearmanr

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.engine.batches.logits import log_odds
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import CheckError
from attnaudit.instances import Dataset, Instance
from attnaudit.metrics.spearman import spearman
from attnaudit.registry import measures
from attnaudit.targets import Target
from tests.small_sources import TEMPLATE, rows, small_language_model

NEEDS = ["attention", "datamodel_score.32", "top_k_drop.1", "top_k_drop.2", "token_effect.live", "token_effect.held"]


def _measured(unit: Any = "sources", batch_tokens: int | None = None, needs: list[str] = NEEDS) -> Measurements:
    model, tokenizer = small_language_model()
    adapter = transformer(model, tokenizer, template=TEMPLATE, target=Target(kind="string"))
    data = Dataset(name="rows", source="test", description="", instances=tuple(rows()))
    return measure(adapter, data, needs, model="llama", seed=0, unit=unit, batch_tokens=batch_tokens)[0]


@pytest.fixture(scope="module")
def measured() -> Measurements:
    return _measured()


def _log_probability(model: Any, tokenizer: Any, row: Instance, kept: tuple[int, ...]) -> float:
    """Return log p(answer) for a prompt that is written and tokenised without the other passages."""
    passages = "".join(f"{row.passages[i]}\n" for i in kept)
    prompt = TEMPLATE.replace("{passages}", passages).replace("{text}", row.text).replace("{answer}", str(row.answer))
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, -2].double()
    return float(torch.log_softmax(logits, -1)[ids[0, -1]])


def test_the_measures_by_hand(measured: Measurements) -> None:
    model, tokenizer = small_language_model()
    for number, row in enumerate(rows()[:3]):
        count = len(row.passages)
        everything = tuple(range(count))
        log_p = {
            kept: _log_probability(model, tokenizer, row, kept)
            for size in range(count + 1)
            for kept in itertools.combinations(everything, size)
        }
        odds = {kept: one - math.log1p(-math.exp(one)) for kept, one in log_p.items()}
        attention = measured.vector("attention")[number]
        subsets = [kept for kept in log_p if kept]
        expected = spearmanr([attention[list(kept)].sum() for kept in subsets], [odds[kept] for kept in subsets])
        assert measured.scalar("datamodel_score.32")[number] == pytest.approx(expected.statistic, abs=1e-5)
        uniform = spearmanr([len(kept) for kept in subsets], [odds[kept] for kept in subsets])
        assert measured.scalar("datamodel_score.32.uniform")[number] == pytest.approx(uniform.statistic, abs=1e-5)

        def without(*gone: int, all_of: tuple[int, ...] = everything) -> tuple[int, ...]:
            return tuple(i for i in all_of if i not in gone)

        drops = [log_p[everything] - log_p[without(i)] for i in everything]
        first = int(np.argmax(attention))
        assert measured.scalar("top_k_drop.1")[number] == pytest.approx(drops[first], abs=1e-5)
        assert measured.scalar("top_k_drop.1.random")[number] == pytest.approx(np.mean(drops), abs=1e-5)
        effects = [
            (math.exp(log_p[everything]) - math.exp(log_p[without(i)]) + math.exp(log_p[(i,)]) - math.exp(log_p[()]))
            / 2
            for i in everything
        ]
        found = measured.vector("token_effect.live")[number]
        # The engine measures the class that is predicted, which is the string (index 1) if there are no decisions.
        assert np.allclose(found, effects, atol=1e-5)


def _held_probability(model: Any, tokenizer: Any, row: Instance, kept: tuple[int, ...]) -> float:
    """Return p(answer) without the other passages. In the last layer, all remaining tokens keep their weights."""
    texts = ["".join(f"{row.passages[i]}\n" for i in chosen) for chosen in (range(len(row.passages)), kept)]
    rest = TEMPLATE.replace("{passages}", "").replace("{text}", row.text).replace("{answer}", str(row.answer))
    whole, reduced = (torch.tensor([tokenizer(text + rest)["input_ids"]]) for text in texts)
    ends = np.cumsum([0, *(len(tokenizer(f"{passage}\n")["input_ids"]) for passage in row.passages)])
    places = [place for i in kept for place in range(ends[i], ends[i + 1])] + list(range(ends[-1], whole.shape[1]))
    attention, values = model.model.layers[-1].self_attn, []

    def weighted(_module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        contexts = inputs[0].clone()
        heads = values[-1].unflatten(-1, (-1, attention.head_dim)).repeat_interleave(2, dim=2)  # two heads share values
        contexts[0, -2] = torch.einsum("hk,khm->hm", weights, heads[0]).flatten()
        return (contexts,)

    with torch.no_grad():
        weights = model(input_ids=whole, output_attentions=True).attentions[-1][0, :, -2][:, places]
        handles = [
            attention.v_proj.register_forward_hook(lambda _module, _inputs, output: values.append(output)),
            attention.o_proj.register_forward_pre_hook(weighted),
        ]
        logits = model(input_ids=reduced).logits[0, -2].double()
        for handle in handles:
            handle.remove()
    return float(torch.softmax(logits, -1)[reduced[0, -1]])


def test_the_shown_weights_of_the_remaining_tokens_are_kept(measured: Measurements) -> None:
    model, tokenizer = small_language_model()
    model.set_attn_implementation("eager")
    differs = False
    for number, row in enumerate(rows()[:3]):
        everything = tuple(range(len(row.passages)))
        p = {kept: _held_probability(model, tokenizer, row, kept) for kept in ((), everything)}
        effects = []
        for i in everything:
            without = _held_probability(model, tokenizer, row, tuple(other for other in everything if other != i))
            effects.append((p[everything] - without + _held_probability(model, tokenizer, row, (i,)) - p[()]) / 2)
        assert np.allclose(measured.vector("token_effect.held")[number], effects, atol=1e-5)
        differs |= not np.allclose(measured.vector("token_effect.live")[number], effects, atol=1e-3)
    assert differs


def test_what_is_undefined(measured: Measurements) -> None:
    assert np.isnan(measured.scalar("datamodel_score.32")[3])  # one passage
    assert np.isnan(measured.scalar("top_k_drop.2")[1])  # two passages
    assert np.isfinite(measured.scalar("top_k_drop.2")[0])


def test_units_are_passages_in_their_order(measured: Measurements) -> None:
    assert [list(row) for row in measured.tokens] == [list(row.passages) for row in rows()]
    assert all(abs(row.sum() - 1) < 1e-9 for row in measured.vector("attention"))


def test_the_batch_does_not_matter(measured: Measurements) -> None:
    alone = _measured(batch_tokens=1)
    for name in ("datamodel_score.32", "top_k_drop.1", "top_k_drop.2.random"):
        assert np.allclose(alone.scalar(name), measured.scalar(name), atol=1e-5, equal_nan=True), name
    for one, other in zip(alone.vector("token_effect.held"), measured.vector("token_effect.held"), strict=True):
        assert np.allclose(one, other, atol=1e-5, equal_nan=True)


def test_tokens_can_be_units_too() -> None:
    found = _measured("tokens", needs=["datamodel_score.32"])
    assert np.isfinite(found.scalar("datamodel_score.32")).all()


@pytest.mark.parametrize(("name", "text"), [("datamodel_score", "0"), ("datamodel_score", "x"), ("top_k_drop", "")])
def test_invalid_arguments(name: str, text: str) -> None:
    with pytest.raises(CheckError, match="expected a whole number from 1 to"):
        measures.get(name)(text)


def test_spearman_against_scipy() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        first, second = generator.integers(0, 6, (2, 12)).astype(float)
        assert spearman(first, second) == pytest.approx(spearmanr(first, second).statistic, abs=1e-12)
    assert math.isnan(spearman(np.ones(4), np.arange(4.0)))


@given(
    logits=st.lists(st.floats(-40, 40), min_size=2, max_size=6),
    gap=st.floats(0, 1e4),
    chosen=st.integers(0, 5),
)
def test_log_odds_keep_the_digits_of_the_other_classes(logits: list[float], gap: float, chosen: int) -> None:
    """Also if all probabilities round to 0 and 1, and if a further class is impossible."""
    chosen %= len(logits)
    raised = np.array(logits)
    raised[chosen] += gap
    expected = raised[chosen] - logsumexp(np.delete(raised, chosen))
    index = torch.tensor([chosen])
    assert float(log_odds(torch.from_numpy(raised[None]), index)) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    impossible = torch.from_numpy(np.append(raised, -1e6)[None])
    assert float(log_odds(impossible, index)) == pytest.approx(expected, rel=1e-12, abs=1e-12)
