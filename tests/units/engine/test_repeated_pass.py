"""A model that does not stay the same while it is measured is refused; one that does gives the same numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attnaudit.adapters import PooledAttentionAdapter, Trace
from attnaudit.adapters.protocol import TEXT
from attnaudit.engine import repeated_pass
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import ChangedModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.records import MeasureRecord
from tests.small_models import WORDS, Encoder, dataset, parts, tokenize_with_ends
from tests.strategies import seeds, texts, with_permutation
from tests.units.conformance.conformance_models import PLAIN, SOUND, SmallTransformer

#: Needs with few passes, so that only a sample of the rows runs again.
CHEAP = ("uniform",)


def measured(model: Any, data: Dataset, *needs: str, **options: Any) -> tuple[Measurements, MeasureRecord]:
    return measure(model, data, needs or CHEAP, model="lstm", **{"seed": 3, **options})


def many(count: int, longest: int = 9) -> Dataset:
    """Return rows of random words that all differ in their ids."""
    choose = random.Random(0)
    return dataset([" ".join(choose.choices(WORDS[1:], k=choose.randint(1, longest))) for _ in range(count)])


class Troubled(PooledAttentionAdapter):
    """Calls `trouble`, which may change the trace, in each pass without replaced attention."""

    trouble: Callable[[Troubled, Any, Trace], Trace]

    def __init__(self, trouble: Callable[[Troubled, Any, Trace], Trace], **changes: Any) -> None:
        made: dict[str, Any] = parts()
        decoder = made["decoder"]
        made["modules"] = tuple(made[name] for name in ("embedding", "encoder", "attention", "decoder"))
        # An engine that knows a linear decoder would compute its output without the model and find the difference.
        made["decoder"] = lambda context: decoder(context)
        super().__init__(**{**made, **changes})
        self.trouble = trouble
        self.calls = 0

    def run(self, inputs: Any, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        self.calls += 1
        trace = super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)
        return trace if intervene is not None else self.trouble(self, inputs, trace)


def first_words(inputs: Any) -> Tensor:
    return inputs.ids[TEXT][:, 0]


def random_on_some_rows(_model: Troubled, inputs: Any, trace: Trace) -> Trace:
    """Add noise to the rows that begin with one of two of the 15 words: 13% of the rows."""
    some = (first_words(inputs) < 3) & (first_words(inputs) > 0)
    return replace(trace, logits=trace.logits + 0.01 * torch.randn_like(trace.logits) * some[:, None])


def random_with_its_own_seed(_model: Troubled, inputs: Any, trace: Trace) -> Trace:
    """Reseed torch before the noise of the same rows, so that equal batches give equal results."""
    torch.manual_seed(0)
    return random_on_some_rows(_model, inputs, trace)


def random_attention(_model: Troubled, inputs: Any, trace: Trace) -> Trace:
    """Return other weights than those used, at the two first tokens of longer rows."""
    weights = trace.attention["attention"].clone()
    if weights.shape[-1] == 1:
        return trace
    moved = 0.01 * torch.rand(len(weights)) * weights[:, 0, 0, 0]
    weights[:, 0, 0, 0] -= moved
    weights[:, 0, 0, 1] += moved
    single = inputs.mask[TEXT].sum(1) < 2
    return replace(
        trace, attention={"attention": torch.where(single[:, None, None, None], trace.attention["attention"], weights)}
    )


def counts_calls(model: Troubled, _inputs: Any, trace: Trace) -> Trace:
    """Add a drift that a parameter hash cannot see."""
    return replace(trace, logits=trace.logits + 0.001 * model.calls)


def larger_in_large_batches(_model: Troubled, _inputs: Any, trace: Trace) -> Trace:
    """Change the results in batches of more than eight rows. Both passes over many rows have such batches."""
    return replace(trace, logits=trace.logits * 1.5) if len(trace.logits) > 8 else trace


def becomes_nan(model: Troubled, _inputs: Any, trace: Trace) -> Trace:
    return replace(trace, logits=trace.logits * torch.nan) if model.calls > 1 else trace


@pytest.mark.parametrize(
    ("trouble", "what"),
    [
        (random_on_some_rows, r"its logits differed by"),
        (random_with_its_own_seed, r"its logits differed by"),
        (random_attention, r"its weighted sum of the attention weights differed by"),
        (counts_calls, r"its logits differed by"),
        (larger_in_large_batches, r"its logits differed by"),
        (becomes_nan, r"its logits differed by inf relative to their size"),
    ],
)
@pytest.mark.parametrize("rows", [40, 300])
def test_a_model_that_gives_another_result_is_refused_with_its_row(trouble: Any, what: str, rows: int) -> None:
    with pytest.raises(
        ChangedModelError, match=rf"^films\.csv:\d+: when this row was measured a second time, {what}"
    ) as raised:
        measured(Troubled(trouble), many(rows), batch_tokens=100_000)
    assert "eval() does not switch off" in str(raised.value)


@pytest.mark.parametrize("size", [1e-6, 1e-3])
def test_the_tolerance_lies_between_rounding_and_noise(size: float) -> None:
    def noisy(_model: Troubled, _inputs: Any, trace: Trace) -> Trace:
        return replace(trace, logits=trace.logits * (1 + size * torch.sign(torch.randn_like(trace.logits))))

    if size < 1e-4:
        assert 0 < measured(Troubled(noisy), many(40))[1].repeated_difference < 1e-5
    else:
        with pytest.raises(ChangedModelError):
            measured(Troubled(noisy), many(40))


def test_random_numbers_that_change_nothing_are_accepted() -> None:
    def draws(_model: Troubled, _inputs: Any, trace: Trace) -> Trace:
        torch.rand(3)
        return trace

    assert measured(Troubled(draws), many(40))[1].repeated_rows == 40


def changes_a_weight(model: Troubled, _inputs: Any, trace: Trace) -> Trace:
    with torch.no_grad():
        next(model.modules[0].parameters()).mul_(1 + 1e-6)
    return trace


def counts_in_a_buffer(model: Troubled, _inputs: Any, trace: Trace) -> Trace:
    model.modules[1].get_buffer("calls").add_(1)
    return trace


def switches_to_training(model: Troubled, _inputs: Any, trace: Trace) -> Trace:
    model.modules[1].train()
    return trace


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (changes_a_weight, "parameters or buffers changed while it ran: their SHA-256 hash was [0-9a-f]{12}"),
        (counts_in_a_buffer, "parameters or buffers changed while it ran"),
        (switches_to_training, r"^Encoder \(Encoder\), Encoder.rnn \(LSTM\): the model switched to training mode"),
    ],
)
def test_a_model_that_changes_itself_is_refused(trouble: Any, message: str) -> None:
    model = Troubled(trouble)
    model.modules[1].register_buffer("calls", torch.zeros(1))
    with pytest.raises(ChangedModelError, match=message):
        measured(model, many(20))


def test_dropout_in_a_module_that_is_not_listed_is_refused() -> None:
    dropout = nn.Dropout(0.1)
    encoder = Encoder()

    def encode(embeddings: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = dropout(encoder(embeddings, mask))
        return states

    model = PooledAttentionAdapter(**{**parts(), "encoder": encode, "modules": (encoder,)})  # type: ignore[arg-type]
    with pytest.raises(ChangedModelError, match="measured a second time"):
        measured(model, many(20))


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_transformer_is_accepted_at_every_site(name: str) -> None:
    model = SOUND[name]()
    rows = tuple(replace(one, query=one.query or "good film") for one in PLAIN) if model.cross else tuple(PLAIN)
    data = Dataset(name="films", source="synthetic", description="", instances=rows)
    _, record = measured(model, data)
    assert record.repeated_rows == len(rows)
    assert record.repeated_difference < 1e-5


def test_attention_that_is_random_at_a_site_that_is_not_shown_is_refused() -> None:
    class Restless(SmallTransformer):
        def run(self, inputs: Any, **options: Any) -> Trace:
            trace = super().run(inputs, **options)
            first = trace.attention["layer 0"]
            shifted = first + 0.05 * torch.rand(1) * (first.flip(-1) - first) * trace.allowed["layer 0"]
            shifted = shifted * trace.allowed["layer 0"]
            return replace(
                trace, attention={**trace.attention, "layer 0": shifted / shifted.sum(-1, keepdim=True).clamp_min(1e-9)}
            )

    data = Dataset(name="films", source="synthetic", description="", instances=tuple(PLAIN))
    with pytest.raises(ChangedModelError, match=r"its weighted sum of the attention weights differed by"):
        measured(Restless(), data)


def test_a_closed_class_does_not_widen_the_tolerance() -> None:
    logits = np.array([[2.0, -1e4, 0.0], [-3.0, 4.0, -1e4]])
    np.testing.assert_array_equal(repeated_pass.logit_sizes(logits, 1e-4), [[3, 1e4, 3], [3, 4, 1e4]])
    negative = np.array([[-3.0, 0.5], [-4.0, 1.0], [-9.0, -0.1]])
    np.testing.assert_array_equal(repeated_pass.logit_sizes(negative, 1e-4), [[4, 4], [4, 4], [9, 4]])


@settings(max_examples=20)
@given(st.floats(-9, 4), st.booleans())
def test_noise_is_refused_whatever_the_logits_are_multiplied_by(exponent: float, noisy: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def trouble(_model: Troubled, _inputs: Any, trace: Trace) -> Trace:
        noise = 0.05 * torch.randn(trace.logits.shape, generator=generator) if noisy else torch.zeros(())
        return replace(trace, logits=10**exponent * trace.logits * (1 + noise))

    model = Troubled(trouble)
    if noisy:
        with pytest.raises(ChangedModelError, match="its logits differed"):
            measured(model, many(20))
    else:
        assert measured(model, many(20))[1].repeated_rows == 20


def test_a_sample_runs_again_where_passes_are_few_and_all_rows_where_they_are_many() -> None:
    data = many(80, longest=60)
    assert measured(Troubled(lambda _m, _i, trace: trace), data)[1].repeated_rows == 64
    _, record = measured(Troubled(lambda _m, _i, trace: trace), data, "comprehensiveness.deletion")
    assert record.passes["forward_rows"] > 20 * 80
    assert record.repeated_rows == 80


instances_in_two_orders = with_permutation(
    st.lists(st.uuids().map(str), min_size=1, max_size=90, unique=True).map(
        lambda ids: [Instance(id=one, text=one) for one in ids]
    )
)


@given(instances_in_two_orders, seeds, st.integers(0, 3000), st.integers(0, 3000))
def test_the_sample_depends_on_the_seed_and_the_ids_only(
    orders: tuple[list[Instance], list[Instance]], seed: int, passes: int, more: int
) -> None:
    first, second = orders
    chosen = [
        {rows[i].id for i in repeated_pass.rows_to_repeat([row.id for row in rows], passes, seed)}
        for rows in (first, second)
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == min(len(first), max(64, passes // 20))
    larger = repeated_pass.rows_to_repeat([row.id for row in first], passes + more, seed)
    assert chosen[0] <= {first[i].id for i in larger}


class Recording(PooledAttentionAdapter):
    """Records the texts of the passes that follow the first pass over every row."""

    def __init__(self, **made: Any) -> None:
        super().__init__(**made)
        self.passes: list[list[str]] = []

    def run(self, inputs: Any, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        if embeddings is not None and intervene is None:
            self.passes.append([" ".join(row) for row in inputs.tokens[TEXT]])
        return super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)

    def repeated(self, rows: int) -> list[list[str]]:
        seen = 0
        for number, texts_of_pass in enumerate(self.passes):
            if seen == rows:
                return self.passes[number:]
            seen += len(texts_of_pass)
        return []


@settings(max_examples=20)
@given(
    with_permutation(st.lists(texts(WORDS[1:], max_words=8), min_size=2, max_size=70, unique=True)),
    st.integers(1, 200),
    seeds,
)
def test_the_same_rows_run_again_in_any_order_and_batch_size(
    orders: tuple[list[str], list[str]], batch_tokens: int, seed: int
) -> None:
    """And the measurements are those of one large batch, which the second pass does not touch."""
    results = []
    for rows, tokens in ((orders[0], 100_000), (orders[1], batch_tokens)):
        instances = tuple(Instance(id=text, text=text) for text in rows)
        data = Dataset(name="films", source="", description="", instances=instances)
        model = Recording(**{**parts(), "tokenize": tokenize_with_ends, "attend_special": True})
        measurements, record = measured(model, data, "uniform", "permutation", seed=seed, batch_tokens=tokens)
        again = model.repeated(len(rows))
        assert record.repeated_rows == sum(map(len, again)) == min(len(rows), 64)
        assert record.repeated_difference < 1e-5
        assert len(again) > 1 or len(again[0]) == 1
        assert not any(one in model.passes[: -len(again)] for one in again if len(one) > 1)
        results.append((measurements, {text for texts_of_pass in again for text in texts_of_pass}))
    assert results[0][1] == results[1][1]
    for name, column in results[0][0].scalars.items():
        np.testing.assert_allclose(column, results[1][0].scalars[name], atol=2e-5, err_msg=name)


@given(st.integers(0, 5), st.integers(0, 5), seeds)
def test_padding_does_not_change_a_summary(left: int, right: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand((2, 3, 4, 4), generator=generator)
    site = SmallTransformer().sites()[0]

    def summary(values: Tensor, mask: Tensor) -> Tensor:
        inputs: Any = type("Inputs", (), {"mask": {TEXT: mask}})
        whole = repeated_pass.SiteSummary(site, inputs, all_queries=True)
        whole.add(values, 0)
        in_blocks = repeated_pass.SiteSummary(site, inputs, all_queries=True)
        for first in range(0, values.shape[2], 3):
            in_blocks.add(values[:, :, first : first + 3], first)
        torch.testing.assert_close(in_blocks.value(), whole.value(), atol=1e-6, rtol=0)
        return whole.value()

    mask = torch.ones((2, 4), dtype=torch.bool)
    padded = nn.functional.pad(weights, (left, right, left, right), value=0.7)
    torch.testing.assert_close(
        summary(weights, mask), summary(padded, nn.functional.pad(mask, (left, right))), atol=1e-6, rtol=0
    )
    weights[1, 2, 3, 0] += 0.01
    changed = (summary(weights, mask) - summary(padded, nn.functional.pad(mask, (left, right)))).abs() > 1e-4
    assert changed.nonzero().tolist() == [[1, 2]]
