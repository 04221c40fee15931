"""The engine: numbers independent of batches and order, shared passes, clear errors, and recovery from low memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attnaudit.adapters import Capabilities, Encoding, Inputs, PooledAttentionAdapter, Site, Trace
from attnaudit.engine import shard_measuring
from attnaudit.engine.batches import batch, clean_pass
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.planning import resolve
from attnaudit.errors import AdapterError, AuditError, CheckError, DataError
from attnaudit.instances import Dataset, Instance
from tests.small_models import TEXTS, adapter, dataset, parts, tokenize, tokenize_with_ends

IMPORTANCES = [
    "gradient.meister.inputs",
    "gradient.meister.hidden",
    "gradient.jain_wallace.inputs",
    "gradient.jain_wallace.hidden",
    "input_x_gradient.inputs",
    "input_x_gradient.hidden",
    "leave_one_out.inputs",
    "leave_one_out.hidden",
]
EVERYTHING = [
    *(f"agreement.{name}" for name in IMPORTANCES),
    *(f"entropy.{name}" for name in IMPORTANCES),
    "influence.hidden",
    "permutation",
    "uniform",
    "adversarial.0.01",
    "adversarial.0.05",
    "ranked_hidden",
]


def measured(
    model: PooledAttentionAdapter, data: Dataset | None = None, needs: Sequence[str] = EVERYTHING, **options: Any
) -> Measurements:
    return measure(model, data or dataset(), needs, model="lstm", seed=3, **options)[0]


def assert_same(a: Measurements, b: Measurements, *, but: Sequence[str] = ()) -> None:
    assert a.ids == b.ids
    assert a.columns == b.columns
    for name in a.scalars:
        if not name.endswith(tuple(but) or ("\0",)):
            np.testing.assert_allclose(a.scalars[name], b.scalars[name], atol=2e-5, err_msg=name)
    for name in a.vectors:
        for x, y in zip(a.vectors[name], b.vectors[name], strict=True):
            np.testing.assert_allclose(x, y, atol=2e-5, err_msg=name)


#: Columns of ranks: a tie that rounding breaks changes τ by a whole step, and with it the exact p-value.
RANKS = (".tau", ".p_value", ".floor", ".gradient_loo", ".near_ties")


@pytest.mark.parametrize(
    ("batch_tokens", "outputs"),
    [
        pytest.param(size, outputs, marks=[] if (size, outputs) in ((1, 2), (12, 3), (40, 1)) else pytest.mark.slow)
        for size in (1, 12, 40)
        for outputs in (1, 2, 3)
    ],
)
def test_numbers_do_not_depend_on_the_batch_size(outputs: int, batch_tokens: int) -> None:
    needs = [n for n in EVERYTHING if outputs < 3 or not n.startswith("adversarial")]
    whole = measured(adapter(outputs, tokenize=tokenize_with_ends), needs=needs)
    parts_ = measured(adapter(outputs, tokenize=tokenize_with_ends), needs=needs, batch_tokens=batch_tokens)
    assert_same(whole, parts_, but=RANKS)


def test_numbers_do_not_depend_on_the_order_of_the_rows() -> None:
    rows = dataset()
    backwards = replace(rows, instances=tuple(reversed(rows.instances)))
    assert_same(measured(adapter()), measured(adapter(), backwards))


def test_numbers_of_an_instance_do_not_depend_on_the_others() -> None:
    rows = dataset()
    alone = measured(adapter(), replace(rows, instances=rows.instances[2:3]))
    whole = measured(adapter())
    for name in whole.scalars:
        np.testing.assert_allclose(alone.scalars[name][0], whole.scalars[name][2], atol=1e-5, err_msg=name)


def test_numbers_do_not_depend_on_what_else_is_measured() -> None:
    whole = measured(adapter())
    for need in ("permutation", "agreement.leave_one_out.hidden", "adversarial.0.01"):
        alone = measured(adapter(), needs=[need])
        for name in alone.scalars:
            np.testing.assert_allclose(alone.scalars[name], whole.scalars[name], atol=1e-6, err_msg=name)


class Counting(PooledAttentionAdapter):
    """Counts its passes and their rows."""

    def __init__(self, **made: Any) -> None:
        super().__init__(**made)
        self.calls: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()

    def run(self, inputs: Inputs, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        kind = "replaced" if intervene is not None else "variants" if embeddings is None else "clean"
        self.calls[kind] += 1
        self.rows[kind] += len(inputs.ids["text"])
        return super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)


def test_several_checks_share_their_passes() -> None:
    model = Counting(**parts())
    _, record = measure(model, dataset(), EVERYTHING, model="lstm", seed=0, batch_tokens=20)
    words = [len(t.split()) for t in TEXTS]
    assert model.rows["clean"] == len(TEXTS) + record.repeated_rows
    assert model.rows["variants"] == sum(n for n in words if n > 1)
    assert model.rows["replaced"] == 0
    assert record.passes["forward_rows"] == len(TEXTS) + model.rows["variants"]
    # One backward pass for each of the two gradients, and one for each position that a batch reaches.
    batches = record.passes["forward"] - model.calls["variants"]
    assert batches > 1
    assert record.passes["backward"] < 2 * batches + sum(words)


def test_each_text_is_tokenised_once_and_once_more_if_its_row_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many tokens to keep, texts are tokenised a third time, and the numbers are the same."""
    tokenised: Counter[str] = Counter()

    def counting(text: str) -> Encoding:
        tokenised[text] += 1
        return tokenize(text)

    needs = ("gradient.meister.inputs", "leave_one_out.inputs")
    once = measured(PooledAttentionAdapter(**{**parts(), "tokenize": counting}), needs=needs)  # type: ignore[arg-type]
    assert set(tokenised) == set(TEXTS)
    assert set(tokenised.values()) == {2}  # there are so few rows that all of them run again
    tokenised.clear()
    monkeypatch.setattr(shard_measuring, "KEPT_TOKENS", 0)
    twice = measured(PooledAttentionAdapter(**{**parts(), "tokenize": counting}), needs=needs)  # type: ignore[arg-type]
    assert set(tokenised.values()) == {3}
    assert_same(once, twice)


def test_a_need_named_twice_is_measured_once() -> None:
    once, twice = Counting(**parts()), Counting(**parts())
    measure(once, dataset(), ["agreement.leave_one_out.inputs"], model="lstm", seed=0)
    measure(twice, dataset(), ["agreement.leave_one_out.inputs"] * 2 + ["leave_one_out.inputs"], model="lstm", seed=0)
    assert once.rows == twice.rows


def test_no_gradient_is_computed_when_none_is_needed() -> None:
    _, record = measure(adapter(), dataset(), ["permutation", "uniform"], model="lstm", seed=0)
    assert "backward" not in record.passes


class Cramped(PooledAttentionAdapter):
    """An adapter that runs out of memory for more than `most` rows."""

    most = 2

    def run(self, inputs: Inputs, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        if len(inputs.ids["text"]) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)


def test_running_out_of_memory_halves_the_batch_and_changes_no_number() -> None:
    cramped, record = measure(Cramped(**parts()), dataset(), EVERYTHING, model="lstm", seed=3)
    assert record.batch_size <= 2
    assert_same(measured(adapter()), cramped, but=RANKS)


def test_an_instance_that_never_fits_is_named() -> None:
    model = Cramped(**parts())
    model.most = 0
    with pytest.raises(
        AuditError, match=r"films.csv:\d+: there is not enough memory on cpu, even for this instance alone"
    ):
        measured(model)


def test_an_error_that_is_not_about_memory_is_not_swallowed() -> None:
    def decoder(context: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    raised_in = r"films\.csv:\d+.*: measuring raised RuntimeError at test_engine\.py:\d+ in decoder: mat1 and mat2"
    with pytest.raises(AuditError, match=raised_in) as raised:
        measured(adapter(decoder=decoder))
    assert isinstance(raised.value.__cause__, RuntimeError)


@pytest.mark.parametrize("part", ["tokenize", "encoder"])
def test_a_row_that_makes_the_model_raise_is_named(part: str) -> None:
    def spoilt(text: str) -> Encoding:
        if "bright film" in text:
            raise ValueError("no such word")
        return tokenize(text)

    def encoder(embeddings: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if bool((mask.sum(1) == 7).any()):
            raise ValueError("no such word")
        return torch.cat([embeddings, embeddings], dim=-1)[..., :10]

    model = adapter(tokenize=spoilt) if part == "tokenize" else adapter(encoder=encoder)
    row = next(i for i, text in enumerate(TEXTS) if "bright film" in text)
    with pytest.raises(AuditError, match=rf"^films\.csv:{row + 2}: measuring raised ValueError at .*: no such word"):
        measured(model)


def test_measurements_are_read_only() -> None:
    measurements = measured(adapter())
    for array in (measurements.scalar("attention.max"), measurements.vector("attention")[0], measurements.predicted):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_progress_ends_at_the_number_of_instances() -> None:
    seen: list[tuple[int, int, str]] = []
    measured(adapter(), batch_tokens=20, progress=lambda *report: seen.append(report))
    done = [count for count, total, doing in seen if doing == "measuring lstm on films" and total == len(TEXTS)]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(TEXTS))


def test_progress_has_no_end_if_it_is_unknown_how_many_rows_will_be_needed() -> None:
    seen: list[tuple[int, int | None, str]] = []
    measured(adapter(), rows_before=250, progress=lambda *report: seen.append(report))
    assert {total for _, total, _ in seen} == {None}
    assert (seen[0][0], seen[-1][0]) == (250, 250 + len(TEXTS))


@pytest.mark.parametrize("reach", [{}, {"reach": 0}], ids=["encoded again", "resumed"])
def test_a_long_text_is_erased_in_chunks_that_report_progress(
    reach: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(TEXTS).split()
    long = replace(dataset(), instances=(Instance(id="long", text=" ".join(words)), *dataset().instances[:2]))
    needs = ["agreement.leave_one_out.inputs", "influence.hidden"]
    model = adapter(encoder=lambda embedded, mask: torch.tanh(torch.cat([embedded] * 2, -1)[..., :10]), **reach)
    whole = measured(model, long, needs)
    monkeypatch.setattr(batch, "LEAVE_ONE_OUT_TOKENS", 3 * len(words))
    monkeypatch.setattr(clean_pass, "PROGRESS_AFTER_SECONDS", -1.0)
    seen: list[tuple[int, int, str]] = []
    parts_ = measured(model, long, needs, batch_tokens=len(words), progress=lambda *report: seen.append(report))
    assert_same(whole, parts_, but=RANKS)
    erased = [(done, total) for done, total, doing in seen if doing == batch.ERASING]
    first = erased[: erased.index((len(words), len(words))) + 1]
    assert len(first) >= len(words) / 3
    assert first == sorted(first)
    assert (len(words), len(words), "influences on hidden states") in seen


def test_unlabelled_rows_are_minus_one_and_labels_follow_their_rows() -> None:
    rows = dataset()
    assert measured(adapter(), needs=["uniform"]).labels.tolist() == [-1] * len(TEXTS)
    backwards = replace(rows, instances=tuple(reversed(rows.instances)))
    measurements = measured(adapter(), backwards, needs=["uniform"], labels=list(range(len(TEXTS))))
    assert measurements.labels.tolist() == list(reversed(range(len(TEXTS))))


def test_special_tokens_enter_no_statistic() -> None:
    model = adapter(tokenize=tokenize_with_ends, attend_special=True)
    measurements = measured(model, needs=["agreement.leave_one_out.inputs"])
    assert [len(v) for v in measurements.vector("attention")] == [len(t.split()) for t in TEXTS]
    assert [list(t) for t in measurements.tokens] == [t.split() for t in TEXTS]
    np.testing.assert_allclose([v.sum() for v in measurements.vector("attention")], 1)
    assert (measurements.scalar("attention.special_mass") > 0).all()


class Refused:
    """Adapters that are refused."""

    @staticmethod
    def nan_logits() -> PooledAttentionAdapter:
        class NotFinite(PooledAttentionAdapter):
            def decode(self, hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
                logits = super().decode(hidden, weights)
                return torch.where(torch.arange(len(logits))[:, None, None] == 0, torch.nan, logits)

        return NotFinite(**parts())  # type: ignore[arg-type]

    @staticmethod
    def unnormalised() -> PooledAttentionAdapter:
        return adapter(attention=lambda h, allowed: allowed.float() / 2)

    @staticmethod
    def wrong_width() -> PooledAttentionAdapter:
        return adapter(decoder=nn.Linear(10, 4))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Refused.nan_logits, r"films.csv:\d+: the model's logits are not finite"),
        (Refused.unnormalised, r"films.csv:\d+: attention at site 'attention' sums to"),
        (Refused.wrong_width, r"The model gives 4 logits for 2 classes \(negative, positive\)"),
    ],
)
def test_an_invalid_output_is_refused_with_its_row(model: Any, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        measured(model())


def test_text_without_tokens_names_its_row() -> None:
    with pytest.raises(DataError, match=r"films.csv:3: the text '   ' has no real tokens"):
        measured(adapter(), dataset(["good film", "   "]))


def test_a_row_without_one_string_per_token_is_refused() -> None:
    class OneStringMissing(PooledAttentionAdapter):
        def collate(self, instances: Sequence[Instance]) -> Inputs:
            inputs = super().collate(instances)
            return replace(inputs, tokens={name: [*rows[:-1], rows[-1][1:]] for name, rows in inputs.tokens.items()})

    with pytest.raises(AdapterError, match=r"films.csv:3: Inputs.tokens has 1 strings, but the row has 2 tokens"):
        measured(OneStringMissing(**parts()), dataset(["good film", "bad film"]))


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="has no instances"):
        measured(adapter(), dataset([]))


def test_a_query_for_a_model_of_single_texts_is_refused() -> None:
    rows = dataset()
    with_query = Instance(id="q", text="good", query="which?", where="pairs.csv:2")
    with pytest.raises(DataError, match=r"pairs\.csv:2: the row has a query"):
        measured(adapter(), replace(rows, instances=(with_query,)))


class Declares(PooledAttentionAdapter):
    declared: dict[str, Any] = {}  # noqa: RUF012

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, **self.declared)


@pytest.mark.parametrize(
    ("declared", "needs", "message"),
    [
        ({"task": "multi_label"}, ["uniform"], "cannot audit multi-label or regression models"),
        ({"task": "regression"}, ["uniform"], "task is 'regression'"),
        ({"differentiable": False}, ["gradient.meister.inputs"], "gradient.meister.inputs needs gradients"),
        ({"deletion": False}, ["leave_one_out.inputs"], "leave_one_out.inputs needs token deletion"),
    ],
)
def test_a_model_that_lacks_a_capability_is_refused(declared: dict[str, Any], needs: list[str], message: str) -> None:
    model = Declares(**parts())  # type: ignore[arg-type]
    model.declared = declared
    with pytest.raises(AdapterError, match=message):
        measured(model, needs=needs)


def test_a_model_with_several_sites_and_no_reading_is_refused() -> None:
    class Two(PooledAttentionAdapter):
        def sites(self) -> tuple[Site, ...]:
            return (Site(key="a", kind="self"), Site(key="b", kind="self"))

    with pytest.raises(AdapterError, match="2 attention sites"):
        measured(Two(**parts()))  # type: ignore[arg-type]


def test_an_adapter_without_fast_decoding_gives_the_same_numbers() -> None:
    slow = Declares(**parts())  # type: ignore[arg-type]
    slow.declared = {"decodes": False, "linear_decoder": False}
    needs = [n for n in EVERYTHING if not n.startswith("adversarial")]
    assert_same(measured(adapter(), needs=needs), measured(slow, needs=needs), but=RANKS)


@pytest.mark.parametrize(
    ("need", "message"),
    [
        ("gradent.meister.inputs", "Did you mean 'gradient'"),
        ("gradient.mister.inputs", "unknown preset 'mister'. Did you mean 'meister'"),
        ("gradient.meister.input", "Did you mean 'inputs'"),
        ("leave_one_out.middle", "expected .inputs or .hidden"),
        ("adversarial.two", "expected a total variation between 0 and 1"),
        ("permutation.tvd", "is not a place where attention can be replaced"),
        ("flip.tvd", "takes no argument"),
        ("agreement.gradient.meister", "expected agreement"),
        ("influence.inputs", r"expected \.hidden, but got .\.inputs"),
    ],
)
def test_an_invalid_need_is_named(need: str, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        resolve([need])


def test_numbers_are_measured_in_full_precision_whatever_the_process_has_set() -> None:
    expected = measured(adapter(), needs=["permutation", "gradient.meister.inputs"])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            measurements = measured(adapter(), needs=["permutation", "gradient.meister.inputs"])
            assert torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    for name in expected.scalars:
        np.testing.assert_array_equal(measurements.scalars[name], expected.scalars[name], err_msg=name)
