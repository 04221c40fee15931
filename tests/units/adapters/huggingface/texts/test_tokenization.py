"""Special tokens, words, token types and truncation, for the kinds of tokenizers that models use."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from attnaudit.adapters.huggingface import transformer
from attnaudit.adapters.huggingface.texts.prompt_templates import check_template
from attnaudit.adapters.huggingface.texts.token_words import numbered, words_by_mark
from attnaudit.adapters.huggingface.texts.tokenization import TextEncoder
from attnaudit.adapters.huggingface.texts.tokenizer_ids import longest_input
from attnaudit.adapters.padding import keep_positions, substitute_positions
from attnaudit.adapters.protocol import TEXT
from attnaudit.errors import DataError, ModelError
from attnaudit.instances import Instance
from tests.architectures import SENTENCES, tokenizer

LoadAdapter = Callable[[str], Any]


def _whole_text_bpe() -> Any:
    """Make a SentencePiece BPE tokenizer like Llama 2's: spaces become letters, and the whole text is one word."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "<s>"], show_progress=False)
    made.train_from_iterator([word for s in SENTENCES for word in s.split()], trainer=trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>")


def _by_word(row: Any) -> list[str]:
    """Return each word as the concatenation of its tokens."""
    words: dict[int, str] = {}
    for token, word in zip(row.tokens, row.words, strict=True):
        if word >= 0:
            words[word] = words.get(word, "") + token
    return [words[n] for n in sorted(words)]


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "unigram", "whole text"])
def test_words_are_the_concatenation_of_their_tokens(kind: str) -> None:
    made = _whole_text_bpe() if kind == "whole text" else tokenizer(kind)
    text = "an unbelievably beautiful film"
    (row,) = TextEncoder(made, limit=None).encode([Instance(id="a", text=text)])
    assert [word.replace("▁", "") for word in _by_word(row)] == text.split()
    assert len(row.tokens) > len(text.split()) + sum(row.special)
    assert [w == -1 for w in row.words] == row.special


def test_words_are_found_by_the_marks_of_a_tokenizer_without_offsets() -> None:
    class Slow:
        is_fast = False
        tokens = ("[CLS]", "un", "##believ", "##able", "film", "[SEP]")

        def __call__(self, *texts: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": list(range(6)), "special_tokens_mask": [1, 0, 0, 0, 0, 1]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [self.tokens[i] for i in ids]

    (row,) = TextEncoder(Slow(), limit=None).encode([Instance(id="a", text="unbelievable film")])
    assert row.words == [-1, 0, 0, 0, 1, -1]
    assert row.tokens == ["[CLS]", "un", "believ", "able", "film", "[SEP]"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["un@@", "believ@@", "able", "film", "bad@@", "ly"], [0, 0, 0, 1, 2, 2]),
        (["un", "believ", "able</w>", "film</w>", "bad", "ly</w>"], [0, 0, 0, 1, 2, 2]),
        (["good", "film"], [0, 1]),
    ],
)
def test_marks_at_the_end_of_tokens(tokens: list[str], words: list[int]) -> None:
    found = words_by_mark(["<s>", *tokens, "</s>"])
    assert numbered(found, [True, *(False for _ in tokens), True]) == [-1, *words, -1]


def test_words_of_bytes_are_separated_by_white_space() -> None:
    (row,) = TextEncoder(ByT5Tokenizer(), limit=None).encode([Instance(id="a", text="voilà un\tfilm", query="ok")])
    lengths = [row.words.count(word) for word in range(max(row.words) + 1)]
    assert lengths == [6, 3, 5, 2]  # "à" has two bytes, and white space belongs to the next word


def test_word_numbers_continue_in_the_second_text() -> None:
    (row,) = TextEncoder(tokenizer("wordpiece"), limit=None).encode(
        [Instance(id="a", text="good film", query="bad film")]
    )
    assert row.words == [-1, 0, 1, -1, 2, 3, -1]
    assert row.types == [0, 0, 0, 0, 1, 1, 1]
    assert row.tokens == ["[CLS]", "good", "film", "[SEP]", "bad", "film", "[SEP]"]


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "unigram"])
def test_tokens_are_readable(kind: str) -> None:
    (row,) = TextEncoder(tokenizer(kind), limit=None).encode([Instance(id="a", text="the film is good")])
    shown = [t for t, special in zip(row.tokens, row.special, strict=True) if not special]
    assert "".join(shown).replace("▁", "") == "thefilmisgood"


def test_each_token_of_a_letter_that_takes_several_has_a_string() -> None:
    (row,) = TextEncoder(tokenizer("bytes"), limit=None).encode([Instance(id="a", text="good 字")])
    assert len(row.tokens) == len(row.ids)
    assert all(row.tokens)


def test_a_long_text_is_truncated_and_marked(load_adapter: LoadAdapter) -> None:
    inputs = load_adapter("bert").collate([Instance(id="a", text="good " * 100), Instance(id="b", text="good")])
    assert inputs.ids[TEXT].shape == (2, 64)
    assert inputs.extra["truncated"].tolist() == [True, False]
    assert inputs.tokens[TEXT][0][-1] == "[SEP]"


def test_a_long_pair_is_truncated(load_adapter: LoadAdapter) -> None:
    inputs = load_adapter("bert").collate([Instance(id="a", text="good " * 60, query="bad " * 60)])
    assert inputs.ids[TEXT].shape == (1, 64)
    assert inputs.extra["truncated"].tolist() == [True]
    assert inputs.extra["token_types"].sum() > 20


def test_a_text_of_special_tokens_alone_has_no_real_token(load_adapter: LoadAdapter) -> None:
    inputs = load_adapter("bert").collate([Instance(id="a", text=""), Instance(id="b", text="good")])
    assert inputs.real().sum(1).tolist() == [0, 1]
    assert load_adapter("bert").run(inputs).logits.isfinite().all()


def test_the_tokens_of_a_template_are_special_and_those_of_its_text_are_not() -> None:
    encoder = TextEncoder(tokenizer("bytes"), limit=None, template="the movie: {text} it was")
    (row,) = encoder.encode([Instance(id="a", text="good and bad")])
    shown = [t for t, special in zip(row.tokens, row.special, strict=True) if not special]
    assert "".join(shown) == "goodandbad"
    assert row.tokens[-3:] == ["it", "was", "</s>"]
    assert all(row.special[-3:])
    assert [w for w in row.words if w >= 0] == sorted({w for w in row.words if w >= 0})


def test_a_template_is_not_truncated_with_its_text() -> None:
    encoder = TextEncoder(tokenizer("bytes"), limit=12, template="{text} it was")
    (row,) = encoder.encode([Instance(id="a", text="good and bad " * 10)])
    assert len(row.ids) == 12
    assert row.truncated
    assert row.tokens[-3:] == ["it", "was", "</s>"]


def test_a_template_that_is_too_long_for_the_model_is_refused() -> None:
    encoder = TextEncoder(tokenizer("bytes"), limit=5, template="the movie is good, {text} it was")
    with pytest.raises(DataError, match=r"the template alone is \d+ tokens long, but the model takes at most 5"):
        encoder.encode([Instance(id="a", text="good")])


def test_a_template_may_contain_the_query() -> None:
    encoder = TextEncoder(tokenizer("bytes"), limit=None, template="{query} {text}")
    (row,) = encoder.encode([Instance(id="a", text="good", query="bad")])
    assert encoder.takes_query
    assert [t for t, special in zip(row.tokens, row.special, strict=True) if not special] == ["good"]


def test_a_template_with_a_query_needs_one_in_every_row() -> None:
    encoder = TextEncoder(tokenizer("bytes"), limit=None, template="{query} {text}")
    with pytest.raises(DataError, match=r"rows.csv:7: the row has no query, but the template .* has \{query\}. Fill"):
        encoder.encode([Instance(id="0", text="good", where="rows.csv:7")])


@pytest.mark.parametrize("template", ["It was", "{text} {text}", "{text} {label}", "{query}"])
def test_an_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(ModelError, match=r"expected \{text\} once"):
        check_template(template)


def test_a_template_needs_a_fast_tokenizer() -> None:
    slow = type("Slow", (), {"is_fast": False})()
    with pytest.raises(ModelError, match="Use a fast tokenizer"):
        TextEncoder(slow, limit=None, template="{text} it was")


@pytest.mark.parametrize(
    ("reported", "positions", "offset", "expected"),
    [(512, 514, 2, 512), (10**30, 514, 2, 512), (10**30, None, 0, None), (256, 512, 0, 256)],
)
def test_the_longest_input(reported: int, positions: int | None, offset: int, expected: int | None) -> None:
    made = type("T", (), {"model_max_length": reported})()
    assert longest_input(made, type("C", (), {"max_position_embeddings": positions})(), offset) == expected


def test_the_longest_input_of_configurations_with_other_names() -> None:
    made = type("T", (), {"model_max_length": 10**30})()
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 32}
    for settings, expected in (
        ({"max_seq_len": 40}, 40),
        ({"encoder": SimpleNamespace(max_position_embeddings=24)}, 24),
        ({"text_config": SimpleNamespace(max_position_embeddings=48)}, 48),
        ({"max_position_embeddings": 64, "rope_parameters": rope}, 32),
        ({"max_position_embeddings": 64, "keep_window_size": 16}, 16),
        ({"max_position_embeddings": 64, "rope_parameters": {**rope, "rope_type": "yarn"}}, 64),
    ):
        assert longest_input(made, SimpleNamespace(**settings), 0) == expected


def test_token_types_and_words_move_with_their_tokens(load_adapter: LoadAdapter) -> None:
    adapter = load_adapter("bert")
    rows = [Instance(id="a", text="good film", query="bad film"), Instance(id="b", text="dull", query="good")]
    inputs = adapter.collate(rows)
    shorter = adapter.delete(inputs, TEXT, [(0, 1), (1, 3)])
    assert shorter.extra["token_types"].tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0]]
    assert shorter.words[TEXT].tolist() == [[-1, 1, -1, 2, 3, -1], [-1, 0, -1, -1, -1, -1]]
    assert shorter.extra["truncated"].tolist() == [False, False]
    expected = adapter.collate([Instance(id="a", text="film", query="bad film")])
    with torch.no_grad():
        torch.testing.assert_close(adapter.run(shorter).logits[0], adapter.run(expected).logits[0], atol=1e-5, rtol=0)


def test_masking_a_token_moves_nothing(load_adapter: LoadAdapter) -> None:
    adapter = load_adapter("bert")
    inputs = adapter.collate([Instance(id="a", text="good film", query="bad film")])
    masked = adapter.substitute(inputs, TEXT, torch.tensor([0]), inputs.ids[TEXT] == inputs.ids[TEXT][0, 1])
    assert masked.ids[TEXT][0, 1] == adapter.runner.builder.tokenizer.mask_token_id
    assert torch.equal(masked.words[TEXT], inputs.words[TEXT])
    assert torch.equal(masked.extra["token_types"], inputs.extra["token_types"])


def test_only_entries_per_token_move_with_their_tokens(load_adapter: LoadAdapter) -> None:
    inputs = load_adapter("bert").collate([Instance(id="a", text="good film", query="bad film")])
    kept = keep_positions(inputs, TEXT, torch.tensor([0, 0]), inputs.mask[TEXT][[0, 0]], pad_id=0)
    assert kept.extra["token_types"].shape == (2, inputs.ids[TEXT].shape[1])
    none = torch.zeros_like(inputs.mask[TEXT])
    assert substitute_positions(inputs, TEXT, torch.tensor([0]), none, mask_id=1).words


def test_a_tokenizer_of_another_model_is_refused(load_adapter: LoadAdapter) -> None:
    with pytest.raises(ModelError, match=r"gives ids up to \d+, but the model has only \d+ embeddings"):
        transformer(load_adapter("bert").model, tokenizer("bytes"))
