"""Models that differ only in their tokenizer have different hashes; saving a tokenizer does not change its settings.

A tokenizer without ordinary tokens is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertTokenizerFast, BertweetTokenizer

from attnaudit.adapters.huggingface.texts.configuration import _tokenizer
from attnaudit.adapters.loading import load_model
from attnaudit.errors import ModelError
from tests import architectures


@pytest.mark.parametrize(
    "change",
    [
        {"truncation_side": "left"},
        {"model_input_names": ["input_ids", "attention_mask"]},
        {"split_special_tokens": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_hash_of_a_model_follows_tokenizer_config(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = architectures.save("bert", tmp_path / "bert")
    before = load_model(str(folder)).sha256
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    assert load_model(str(folder)).sha256 != before
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    assert load_model(str(folder)).sha256 != before


def test_the_arguments_of_a_tokenizer_without_tokenizer_json_count(tmp_path: Path) -> None:
    vocabulary, merges = tmp_path / "vocab.txt", tmp_path / "bpe.codes"
    vocabulary.write_text("good 1\nbad 2\n", encoding="utf-8")
    merges.write_text("#version\ng o\n", encoding="utf-8")
    plain, normalised = (
        BertweetTokenizer(str(vocabulary), str(merges), normalization=normalises) for normalises in (False, True)
    )
    assert _tokenizer(plain) != _tokenizer(normalised)
    normalised.save_pretrained(tmp_path / "saved")
    assert _tokenizer(AutoTokenizer.from_pretrained(tmp_path / "saved")) == _tokenizer(normalised)


def test_a_tokenizer_of_special_tokens_is_refused(tmp_path: Path) -> None:
    folder = architectures.save("bert", tmp_path / "bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"contains only special tokens\. Save the model's own tokenizer"):
        load_model(str(folder))
