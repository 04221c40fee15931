"""Language models, audited on the word that they write next."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.outputs.output_heads import label_token_ids
from attnaudit.adapters.huggingface.texts.tokenization import TextEncoder
from attnaudit.adapters.loading import load_model
from attnaudit.adapters.protocol import TEXT
from attnaudit.errors import ModelError
from attnaudit.instances import Instance
from tests import architectures
from tests.architectures import LABELS, TEMPLATE, tokenizer
from tests.slow_cases import slow_except

LANGUAGE_MODELS = ("gpt2-lm", "llama-lm", "t5-lm", "bart-lm")


def _next_words(name: str, text: str) -> torch.Tensor:
    """Return the model's own logits (V,) of the token after the text."""
    model, reader = architectures.build(name)
    given = {"input_ids": torch.tensor([reader(text)["input_ids"]])}
    if model.config.is_encoder_decoder:
        before = [reader.bos_token_id] if name == "bart-lm" else []  # The decoder of BART writes <s> first.
        given["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id, *before]])
    with torch.no_grad():
        logits: torch.Tensor = model(**given).logits[0, -1]
    return logits


@pytest.mark.parametrize(("kind", "before"), [("bytes", ["<s>"]), ("unigram", []), ("wordpiece", ["[CLS]"])])
def test_the_decoder_reads_the_special_tokens_that_it_learns_to_write_first(kind: str, before: list[str]) -> None:
    reader = tokenizer(kind)
    assert reader.convert_ids_to_tokens(TextEncoder(reader, limit=None).before_written) == before


@pytest.mark.parametrize("name", slow_except(LANGUAGE_MODELS, list(LANGUAGE_MODELS)[::2]))
def test_a_single_label_is_compared_with_every_other_word(name: str, folder: Callable[[str], Path]) -> None:
    adapter = transformer(folder(name), labels={"positive": " good"}, template="{text} it was")
    assert adapter.capabilities.classes == ("other", "positive")
    with torch.no_grad():
        (logits,) = adapter.run(adapter.collate([Instance(id="a", text="a dull film")])).logits
    own = _next_words(name, "a dull film it was").softmax(0)
    (word,) = adapter.runner.head.token_ids.values()
    torch.testing.assert_close(logits.softmax(0)[1], own[word], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_only_tokens_of_the_text_are_real(name: str, load_adapter: Callable[[str], Any]) -> None:
    adapter = load_adapter(name)
    inputs = adapter.collate([Instance(id="a", text="good")])
    strings = [t for t, real in zip(inputs.tokens[TEXT][0], inputs.real()[0].tolist(), strict=True) if real]
    assert "".join(strings).replace("▁", "") == "good"
    assert inputs.mask[TEXT].sum() > inputs.real().sum()
    if "decoder" in inputs.ids:
        assert inputs.special["decoder"].all()
        assert not inputs.real("decoder").any()


def test_settings_are_read_from_the_folder(folder: Callable[[str], Path]) -> None:
    adapter = load_model(str(folder("gpt2-lm"))).adapter
    assert adapter.capabilities.classes == tuple(LABELS)
    assert adapter.runner.builder.text_encoder.template == TEMPLATE  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "or write a file attnaudit.toml in the checkpoint folder"),
        ("[labels]\npositive = 1", "labels is .*expected a table of class names and words"),
        ('template = ["a"]', "template is .*expected a quoted text"),
        ('lables = "x"', "unknown key 'lables'. Did you mean 'labels'?"),
        ("labels", "not valid TOML"),
        ('[labels]\npositive = " unbelievably beautiful"\nnegative = " bad"', r"is \d+ tokens \(.+\)"),
        ('[labels]\npositive = " good"\nnegative = " good"', "stand for the same token"),
        ('[labels]\nother = " good"', "the name 'other' is taken"),
        ('template = "It was"\n[labels]\npositive = " good"', r"expected \{text\} once"),
    ],
)
def test_invalid_settings_are_refused(text: str, message: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder("gpt2-lm"), copy)
    (copy / "attnaudit.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        load_model(str(copy))


def test_labels_are_for_language_models_only(folder: Callable[[str], Path]) -> None:
    with pytest.raises(ModelError, match="labels and template are for language models"):
        transformer(folder("bert"), labels=LABELS)


def test_a_word_that_is_not_in_the_vocabulary() -> None:
    with pytest.raises(ModelError, match="is not in the model's vocabulary"):
        label_token_ids(tokenizer("wordpiece"), {"positive": "字"})


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_a_space_before_a_label_is_part_of_the_word(kind: str) -> None:
    made = tokenizer(kind)
    assert [made.decode([i]).strip() for i in label_token_ids(made, LABELS).values()] == ["good", "bad"]
