"""Leave-one-out of causal models in place, from the prefix that a text shares with its variants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from tokenizers.processors import TemplateProcessing

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.passes import prefix_cache
from attnaudit.adapters.huggingface.probes import probe
from attnaudit.adapters.protocol import TEXT
from attnaudit.engine.batches.batch import Batch
from attnaudit.errors import DataError
from attnaudit.instances import Instance
from tests import architectures
from tests.architectures import ARCHITECTURES, SENTENCES

CAUSAL = ("gpt2", "llama", "qwen3", "gpt2-lm", "llama-lm")
WINDOWED = ("mistral", "gemma2", "gpt-oss")
INSTANCES = [Instance(id=str(n), text=text) for n, text in enumerate(SENTENCES[:7])]


def _batch(
    adapter: Any, *, shares_states: bool, budget: int = 128, instances: list[Instance] = INSTANCES, **rest: Any
) -> Batch:
    adapter = copy(adapter)
    adapter._capabilities = replace(adapter.capabilities, shares_states=shares_states)
    return Batch(
        adapter,
        instances,
        range(len(instances)),
        seed=0,
        keep_graph=False,
        budget=budget,
        pass_counts=Counter(),
        **rest,
    )


def _with_window(monkeypatch: pytest.MonkeyPatch, name: str, window: int) -> Any:
    architecture = ARCHITECTURES[name]
    settings = {**architecture.settings, "sliding_window": window}
    monkeypatch.setitem(ARCHITECTURES, name, replace(architecture, settings=settings))
    return transformer(*architectures.build(name))


def _require_equal(adapter: Any, **rest: Any) -> None:
    in_place, plain = (_batch(adapter, shares_states=one, **rest) for one in (True, False))
    torch.testing.assert_close(
        in_place.leave_one_out("deletion"), plain.leave_one_out("deletion"), atol=2e-6, rtol=0, equal_nan=True
    )
    assert in_place.pass_counts["resumed_rows"] > 0
    assert plain.pass_counts["resumed_rows"] == 0
    few = in_place.real & (torch.rand(in_place.real.shape, generator=torch.Generator().manual_seed(0)) < 0.6)
    rows = torch.arange(len(few))
    logits, expected = (one.erase(rows, few, "deletion") for one in (in_place, plain))
    torch.testing.assert_close(logits, expected, atol=2e-6, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("unit", ["tokens", "words"])
def test_in_place_equals_deletion(name: str, unit: str, load_adapter: Callable[[str], Any]) -> None:
    adapter = load_adapter(name)
    assert adapter.capabilities.shares_states
    _require_equal(adapter, unit=unit)
    _require_equal(adapter, unit=unit, budget=4096)


@pytest.mark.parametrize("name", WINDOWED)
def test_prefixes_are_shared_in_texts_shorter_than_the_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _require_equal(_with_window(monkeypatch, name, 100))


@pytest.mark.parametrize("name", WINDOWED)
def test_texts_longer_than_the_window_are_run_in_full(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = _with_window(monkeypatch, name, 16)
    assert adapter.capabilities.shares_states, "the synthetic texts are shorter than the window"
    inputs = adapter.collate(INSTANCES)
    assert inputs.mask[TEXT].shape[1] > 16
    assert prefix_cache.share(adapter.runner, inputs).layers is None
    _require_equal(adapter)


@pytest.mark.parametrize("name", WINDOWED)
def test_prefixes_are_not_shared_if_the_window_is_shorter_than_the_synthetic_texts(
    name: str, load_adapter: Callable[[str], Any]
) -> None:
    assert not load_adapter(name).capabilities.shares_states


@pytest.mark.parametrize("name", ["bert", "t5", "bart-lm", "xlnet"])
def test_models_that_are_not_causal_share_no_prefixes(name: str, load_adapter: Callable[[str], Any]) -> None:
    assert not load_adapter(name).capabilities.shares_states


@pytest.mark.parametrize(
    ("accepted", "argument"),
    [
        ({"use_cache", "past_key_values"}, "past_key_values"),
        ({"use_cache", "cache"}, "cache"),
        ({"use_cache", "cache", "past_key_values"}, "cache"),
        ({"past_key_values"}, ""),
        ({"use_cache"}, ""),
    ],
)
def test_the_argument_for_the_cache_is_found_in_every_version(accepted: set[str], argument: str) -> None:
    assert prefix_cache.cache_argument(accepted) == argument


def test_prefixes_are_not_shared_if_the_cache_gives_other_logits(load_adapter: Callable[[str], Any]) -> None:
    adapter = transformer(*architectures.build("llama"))
    attention = adapter.model.model.layers[1].self_attn

    def without_the_prefix(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, next(name for name in prefix_cache.CACHE_ARGUMENTS if name in kwargs): None}

    attention.register_forward_pre_hook(without_the_prefix, with_kwargs=True)
    assert not probe.shares_prefixes_exactly(adapter.runner)


def test_a_variant_is_run_from_its_first_missing_token_on(load_adapter: Callable[[str], Any]) -> None:
    adapter = load_adapter("gpt2")
    inputs = adapter.collate(INSTANCES[:1])
    length = int(inputs.mask[TEXT].sum())
    keep = inputs.mask[TEXT].repeat(3, 1)
    keep[0, 0] = False
    keep[1, 4] = False
    keep[2, length - 1] = False
    costs = adapter.variant_cost(inputs, adapter.share(inputs), torch.zeros(3, dtype=torch.long), keep)
    # The last kept token is always run again, because the logits are read there.
    assert costs.tolist() == [length, length - 4, 1]


def _without_end_token() -> Any:
    model, tokenizer = architectures.build("gpt2")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    return transformer(model, tokenizer)


def test_variants_that_end_with_the_padding_token_equal_deletion() -> None:
    adapter = _without_end_token()
    instances = [Instance(id="0", text="a fine<pad>m"), Instance(id="1", text="a<pad>d good<pad>m")]
    ids = adapter.collate(instances).ids[TEXT][0]
    assert ids[ids != adapter.runner.builder.pad_id][-1] == ids[-1]
    assert ids[-2] == adapter.runner.builder.pad_id
    in_place, plain = (_batch(adapter, instances=instances, budget=1, shares_states=one) for one in (True, False))
    torch.testing.assert_close(
        in_place.leave_one_out("deletion"), plain.leave_one_out("deletion"), atol=2e-6, rtol=0, equal_nan=True
    )


def test_a_text_that_ends_with_the_padding_token_is_refused_if_the_model_skips_it() -> None:
    adapter = _without_end_token()
    assert adapter.facts.skips_padding_token
    rows = [Instance(id="0", text="a fine film"), Instance(id="1", text="a plot<pad>", where="reviews.jsonl, line 2")]
    adapter.collate(rows[:1])
    with pytest.raises(
        DataError, match=r"^reviews.jsonl, line 2: the encoded text ends with '<pad>'.*another padding token"
    ):
        adapter.collate(rows)


@pytest.mark.parametrize("pad_token", [None, "</s>"])
def test_an_end_token_is_read_as_by_the_model_alone_if_its_config_has_no_padding_id(pad_token: str | None) -> None:
    model, tokenizer = architectures.build("llama")
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", end)]
    )
    tokenizer.pad_token, model.config.pad_token_id = pad_token, None
    ids = [tokenizer(one.text, return_tensors="pt")["input_ids"] for one in INSTANCES]
    assert all(int(one[0, -1]) == end for one in ids)
    with torch.no_grad():
        expected = torch.cat([model(one).logits for one in ids])
    adapter: Any = transformer(model, tokenizer)
    assert adapter.facts.read_tokens == "last"
    torch.testing.assert_close(adapter.runner.logits(adapter.collate(INSTANCES)), expected, atol=2e-6, rtol=0)
