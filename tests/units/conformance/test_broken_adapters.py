"""A sound adapter passes; each broken adapter fails the check for its fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters import Capabilities, Encoding, Inputs, PooledAttentionAdapter, Trace
from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance import CHECKS, full, quick, sample_texts
from attnaudit.conformance.contract import BrokenContractError, require_same_logits
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from tests.small_models import Encoder, adapter, dataset, parts, tokenize, tokenize_with_ends

INSTANCES = dataset().instances


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("tokenized", ["plain", "with special tokens"])
def test_a_sound_adapter_passes_every_check(outputs: int, tokenized: str) -> None:
    changes = {"tokenize": tokenize_with_ends, "mask_id": 1} if tokenized != "plain" else {}
    results = quick(adapter(outputs, **changes), INSTANCES)
    left_out = {
        "left_padding",
        "logits_without",
        "logits_masked",
        "influence",
        "batched_gradients",
        "replay",
        "selected_sites",
        "selected_queries",
        "query_blocks",
        "original_model",
        "half_precision",
        "target",
    } | ({"substitution"} if tokenized == "plain" else set())
    assert [r.check for r in results] == [c.name for c in CHECKS if c.quick and c.name not in left_out]
    assert {r.outcome for r in results} == {"pass"}


def test_a_non_linear_decoder_passes() -> None:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))
    sound = adapter(2, decoder=decoder)
    assert not sound.capabilities.linear_decoder
    assert {r.outcome for r in quick(sound, INSTANCES)} == {"pass"}


def test_a_space_in_front_of_every_text_is_no_special_token() -> None:
    def spaced(text: str) -> Encoding:
        plain = tokenize(text)
        return Encoding([1, *plain.ids], ["▁", *plain.tokens])

    found = {one.check: one.outcome for one in full(adapter(tokenize=spaced), INSTANCES)}
    assert found["special_tokens"] == "pass"


class IgnoresIntervention(PooledAttentionAdapter):
    def run(self, inputs: Inputs, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        return super().run(inputs, embeddings=embeddings, hidden=hidden)


class ShowsButDoesNotUse(PooledAttentionAdapter):
    """The trace contains the replaced weights, but the logits are computed from the live weights."""

    def run(self, inputs: Inputs, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        live = super().run(inputs, embeddings=embeddings, hidden=hidden)
        shown = super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)
        return replace(shown, logits=live.logits)


class MovesWhenReplaced(PooledAttentionAdapter):
    def run(self, inputs: Inputs, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        trace = super().run(inputs, embeddings=embeddings, intervene=intervene, hidden=hidden)
        return trace if intervene is None else replace(trace, logits=trace.logits + 0.5)


class MovesLongTextsWhenReplaced(MovesWhenReplaced):
    """Takes another path for long texts if attention is not replaced."""

    def run(self, inputs: Inputs, **given: Any) -> Trace:
        return (super() if inputs.ids[TEXT].shape[1] > 300 else super(MovesWhenReplaced, self)).run(inputs, **given)


class CutsLongTexts(PooledAttentionAdapter):
    """Gives texts of more than 300 positions, with their padding, another result."""

    def run(self, inputs: Inputs, **given: Any) -> Trace:
        trace = super().run(inputs, **given)
        return trace if inputs.ids[TEXT].shape[1] < 302 else replace(trace, logits=trace.logits + 0.5)


class DetachesEmbeddings(PooledAttentionAdapter):
    def run(self, inputs: Inputs, *, embeddings: Any = None, intervene: Any = None, hidden: bool = False) -> Trace:
        return super().run(inputs, intervene=intervene, hidden=hidden)


class DeletesTheNext(PooledAttentionAdapter):
    def delete(self, inputs: Inputs, stream: str, drop: Sequence[tuple[int, int]]) -> Inputs:
        last = inputs.mask[stream].sum(1) - 1
        return super().delete(inputs, stream, [(r, min(p + 1, int(last[r]))) for r, p in drop])


class KeepsOneTooFew(PooledAttentionAdapter):
    def keep(self, inputs: Inputs, stream: str, rows: Tensor, keep: Tensor) -> Inputs:
        return super().keep(inputs, stream, rows, keep & keep.roll(1, 1))


class SubstitutesTheNext(PooledAttentionAdapter):
    def substitute(self, inputs: Inputs, stream: str, rows: Tensor, replaced: Tensor) -> Inputs:
        return super().substitute(inputs, stream, rows, replaced.roll(1, 1))


class IgnoresGivenWeights(PooledAttentionAdapter):
    def logits_masked(
        self, inputs: Inputs, shared: object, rows: Tensor, keep: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        return super().logits_masked(inputs, shared, rows, keep)


class WrongDecoderWeights(PooledAttentionAdapter):
    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        weight, bias = super().decoder_weights()
        return 2 * weight, bias


class NoSites(PooledAttentionAdapter):
    def sites(self) -> tuple[Any, ...]:
        return ()


class NoStrings(PooledAttentionAdapter):
    def collate(self, instances: Any) -> Inputs:
        return replace(super().collate(instances), tokens={"text": [["?"]] * len(instances)})


class AveragesWithBatchMates(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.inner(embeddings, mask)
        return states - states.mean(0, keepdim=True)


class ReadsPadding(nn.Module):
    """A plain bidirectional LSTM: the backward direction starts in the padding."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.rnn = inner.rnn

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        return self.rnn(embeddings)[0]


class FunctionalDropout(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        return nn.functional.dropout(self.inner(states, allowed), 0.3, training=True)


class Unmasked(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        return self.inner(states, torch.ones_like(allowed))


class Halved(Unmasked):
    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        return self.inner(states, allowed) / 2


class SelectsTheNextRow(PooledAttentionAdapter):
    def select_rows(self, inputs: Inputs, rows: Sequence[int]) -> Inputs:
        return super().select_rows(inputs, [(row + 1) % len(inputs.ids[TEXT]) for row in rows])


class EncodesTheNextRow(PooledAttentionAdapter):
    encodes_on_cpu = True
    input_device = torch.device("cpu")

    def encode_on_cpu(self, instances: Sequence[Instance]) -> Inputs:
        return super().collate([*instances[1:], instances[0]])


class EncodesForAnotherDevice(EncodesTheNextRow):
    input_device = torch.device("meta")


def built(kind: type[PooledAttentionAdapter], **changes: Any) -> PooledAttentionAdapter:
    return kind(**{**parts(), **changes})  # type: ignore[arg-type]


def with_lstm(kind: type[PooledAttentionAdapter]) -> PooledAttentionAdapter:
    encoder = Encoder()
    return built(kind, encoder=encoder, lstm=encoder.rnn, mask_id=1)


BROKEN = {
    "sites": lambda: built(NoSites),
    "shapes": lambda: built(NoStrings),
    "evaluation_mode": lambda: built(PooledAttentionAdapter, attention=FunctionalDropout(parts()["attention"])),
    "sums (masking)": lambda: built(PooledAttentionAdapter, attention=Unmasked(parts()["attention"])),
    "sums (normalising)": lambda: built(PooledAttentionAdapter, attention=Halved(parts()["attention"])),
    "self_replacement": lambda: built(MovesWhenReplaced),
    "intervention": lambda: built(IgnoresIntervention),
    "decode": lambda: built(ShowsButDoesNotUse),
    "decode (linear)": lambda: built(WrongDecoderWeights),
    "padding": lambda: built(PooledAttentionAdapter, encoder=ReadsPadding(parts()["encoder"])),
    "batch_mates": lambda: built(PooledAttentionAdapter, encoder=AveragesWithBatchMates(parts()["encoder"])),
    "batch_mates (rows)": lambda: built(SelectsTheNextRow),
    "batch_mates (on the CPU)": lambda: built(EncodesTheNextRow),
    "batch_mates (of another device)": lambda: built(EncodesForAnotherDevice),
    "gradients": lambda: built(DetachesEmbeddings),
    "deletion": lambda: built(DeletesTheNext),
    "deletion (several)": lambda: built(KeepsOneTooFew),
    "substitution": lambda: built(SubstitutesTheNext, mask_id=1),
    "logits_without": lambda: built(PooledAttentionAdapter, lstm=nn.LSTM(6, 5, batch_first=True, bidirectional=True)),
    "logits_masked (given weights)": lambda: with_lstm(IgnoresGivenWeights),
}


@pytest.mark.parametrize("fault", list(BROKEN))
def test_a_broken_adapter_is_refused_by_the_check_meant_for_it(fault: str) -> None:
    with pytest.raises(AdapterError, match="breaks the adapter contract") as caught:
        quick(BROKEN[fault](), INSTANCES)
    assert f"  {fault.split(' ')[0]}: " in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder": nn.Sequential(nn.Linear(10, 2), nn.Softmax(-1))}, "sum to 1, as probabilities do"),
        ({"tokenize": lambda text: Encoding([], [])}, "no text has a real token"),
        ({"encoder": lambda embedded, mask: nn.GRU(6, 10, batch_first=True)(embedded)}, "encoder returned a tuple"),
    ],
)
def test_likely_mistakes_are_reported_with_advice(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(AdapterError, match=words):
        quick(built(PooledAttentionAdapter, **changes), INSTANCES)


def test_a_failure_of_a_basic_check_is_reported_once() -> None:
    def encoder(embeddings: Tensor, mask: Tensor) -> Tensor:
        raise ValueError("expected 3 axes")

    results = full(adapter(encoder=encoder), INSTANCES)
    assert [one.check for one in results if "expected 3 axes" in one.detail] == ["sites"]
    assert {one.detail for one in results if one.check != "sites"} == {"not run, because 'sites' fails."}


def test_weights_that_are_nan_are_not_called_random() -> None:
    results = {
        one.check: one for one in full(adapter(attention=lambda states, _: states[..., 0] * torch.nan), INSTANCES)
    }
    assert "contain nan for films.csv:3, 'bad'" in results["shapes"].detail
    assert results["evaluation_mode"].detail == "not run, because 'shapes' fails."


class NanBesidesTheChosenWeights(nn.Module):
    """Attention whose weights are finite. Their gradients are NaN, because a NaN takes part in torch.where()."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        weights = self.attention(states, allowed)
        is_long = (allowed.sum(1) == 99)[:, None]
        return torch.where(is_long, weights * torch.nan, weights)


def test_a_gradient_that_is_not_finite_names_the_row_and_the_likely_cause() -> None:
    broken = adapter(attention=NanBesidesTheChosenWeights(parts()["attention"]))  # type: ignore[arg-type]
    results = {one.check: one for one in full(broken, INSTANCES)}
    assert "NaN or infinite for films.csv:3, 'bad', although the logits are finite" in results["gradients"].detail
    assert "detach" not in results["gradients"].detail
    expected = "the gradients are not finite, so there is nothing to compare. Fix what the check 'gradients' reports."
    assert results["finite_differences"].detail == expected


def test_finite_differences_refer_to_the_check_of_gradients() -> None:
    given = parts()
    encoder = given["encoder"]
    detached = adapter(encoder=lambda embedded, mask: encoder(embedded.detach(), mask), modules=(encoder,))  # type: ignore[operator,arg-type]
    results = {one.check: one for one in full(detached, INSTANCES)}
    assert results["gradients"].outcome == results["finite_differences"].outcome == "fail"
    assert results["finite_differences"].detail == (
        "no gradient reaches the embeddings, so there is nothing to compare. Fix what the check 'gradients' reports."
    )
    assert not [one.check for one in results.values() if "allow_unused" in one.detail]


def test_a_module_that_is_not_listed_is_found_by_its_parameters() -> None:
    given = parts()
    with pytest.raises(AdapterError, match=r"modules: the logits depend on \d+ parameters that belong to none"):
        quick(PooledAttentionAdapter(**{**given, "modules": (given["decoder"],)}), INSTANCES)  # type: ignore[arg-type]


def test_half_precision_is_named_as_what_is_wrong() -> None:
    model = built(PooledAttentionAdapter)
    for module in model.modules:
        module.bfloat16()
    with pytest.raises(AdapterError, match=r"the logits are bfloat16.*model\.float\(\)"):
        quick(model, INSTANCES)


def test_replaced_attention_without_effect_is_caught_even_without_fast_decoding() -> None:
    class Slow(ShowsButDoesNotUse):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, decodes=False, linear_decoder=False)

    with pytest.raises(AdapterError, match="no gradient reaches the weights that intervene returns"):
        quick(built(Slow), INSTANCES)


def test_an_exception_inside_the_adapter_becomes_a_clear_error() -> None:
    def encoder(embeddings: Tensor, mask: Tensor) -> Tensor:
        raise ValueError("expected 3 axes")

    with pytest.raises(
        AdapterError,
        match=r"sites: the adapter raised ValueError at test_broken_adapters\.py:\d+ in encoder: expected 3 axes",
    ):
        quick(adapter(encoder=encoder), INSTANCES)


@pytest.mark.parametrize(
    ("kind", "check"), [(MovesLongTextsWhenReplaced, "self_replacement"), (CutsLongTexts, "padding")]
)
def test_a_long_text_is_tested_although_short_ones_are_preferred(
    kind: type[PooledAttentionAdapter], check: str
) -> None:
    broken = kind(**parts(2))
    assert {one.outcome for one in quick(broken, INSTANCES)} == {"pass"}
    long = replace(INSTANCES[0], id="long", text="good " * (300 if check == "padding" else 320))
    found = "in a text of 320 words" if check == "self_replacement" else "3 more padding tokens"
    with pytest.raises(AdapterError, match=rf"is not audited \({check}\):\n.*{found}"):
        quick(broken, [*INSTANCES, long])


def test_the_long_text_is_chosen_by_the_number_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [replace(INSTANCES[0], id=str(n), text="good " * n) for n in (300, 310, 320)]
    chosen = []
    for most in (320, 315, 305, 299):
        monkeypatch.setattr(sample_texts, "LONG_WEIGHTS", most)
        long = sample_texts.examples(adapter(2), [*INSTANCES, *texts]).long
        chosen.append(long and len(long.instances[0].text.split()))
    assert chosen == [320, 310, 300, None]


def test_rounding_errors_of_masked_texts_are_compared_with_the_logits_of_whole_texts() -> None:
    expected, rounded = torch.tensor([[0.2, -0.2]]), torch.tensor([[0.2 + 2.2e-5, -0.2]])
    with pytest.raises(BrokenContractError, match=r"differ by 2\.\de-05; expected at most 2e-05"):
        require_same_logits(rounded, expected, "the logits differ", "")
    assert require_same_logits(rounded, expected, "the logits differ", "", whole=10 * expected) < 3e-5
    with pytest.raises(BrokenContractError, match=r"expected at most 0\.0002"):
        require_same_logits(expected + 1e-3, expected, "the logits differ", "", whole=10 * expected)
