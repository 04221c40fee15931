"""A batch of texts is encoded by one call of the tokenizer, and rows are selected from it instead of encoded again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface.texts.encoded_texts import EncodedTexts, TokenizedText, flat
from attnaudit.adapters.huggingface.texts.input_builder import padded_left
from attnaudit.adapters.huggingface.texts.token_words import numbered, numbered_words, words_of
from attnaudit.adapters.huggingface.texts.tokenization import TextEncoder
from attnaudit.adapters.padding import pad, pad_flat, select_rows
from attnaudit.adapters.protocol import TEXT, Inputs
from attnaudit.engine.measuring import measure
from attnaudit.engine.repeated_pass import ROWS_ALONE
from attnaudit.instances import Dataset, Instance
from tests.architectures import SENTENCES, tokenizer

LoadAdapter = Callable[[str], Any]


def _instances(count: int) -> tuple[Instance, ...]:
    texts = (f"{SENTENCES[n % len(SENTENCES)]} {'good ' * (n % 7)}film" for n in range(count))
    return tuple(Instance(id=f"{n:04d}", text=text) for n, text in enumerate(texts))


class _Counting:
    """A tokenizer that counts its calls and the texts that it encodes."""

    is_fast = True

    def __init__(self, own: Any) -> None:
        self._own = own
        self.calls, self.texts = 0, 0

    def __call__(self, text: Any, *others: Any, **settings: Any) -> Any:
        self.calls += 1
        self.texts += 1 if isinstance(text, str) else len(text)
        return self._own(text, *others, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


@pytest.mark.parametrize("needs", [("prediction", "attention"), ("gradient.meister.inputs",)])
@pytest.mark.parametrize("name", ["bert", "gpt2", pytest.param("t5", marks=pytest.mark.slow)])
def test_each_text_is_encoded_once_and_once_more_if_its_row_runs_again(
    load_adapter: LoadAdapter, name: str, needs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load_adapter(name)
    counting = _Counting(adapter.runner.builder.text_encoder.tokenizer)
    monkeypatch.setattr(adapter.runner.builder.text_encoder, "tokenizer", counting)
    data = Dataset(name="films", source="synthetic", description="", instances=_instances(300))
    _, record = measure(adapter, data, needs, model="m", seed=0)
    assert 300 < 300 + record.repeated_rows == counting.texts
    assert counting.calls < 20 + ROWS_ALONE  # one call for each batch


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "unigram"])
@pytest.mark.parametrize("template", [None, "the film: {text} it was"])
def test_a_text_is_encoded_as_it_would_be_alone(kind: str, template: str | None) -> None:
    encoder = TextEncoder(tokenizer(kind), limit=30, template=template)
    instances = [*_instances(12), Instance(id="long", text="good bad " * 40), Instance(id="empty", text="")]
    if template is None:
        instances += [Instance(id="pair", text="good film", query="bad film")]
        instances += [
            Instance(id="long pair", text="good " * 40, query="bad film"),
            Instance(id="q", text="a", query=""),
        ]
    instances += [Instance(id="special", text="good </s> [SEP] film")]
    together = encoder.encode(instances)
    alone = [encoder.encode([one])[0] for one in instances]
    for row, (found, expected) in enumerate(zip(together, alone, strict=True)):
        # A text without token types gets zeros next to texts that have them.
        types = expected.types or [0] * len(found.types)
        assert found == replace(expected, types=types), instances[row].id
    assert together[-1] == together[len(instances) - 1]
    assert EncodedTexts.joined(together).tokens == together.tokens
    with pytest.raises(IndexError):
        together[len(instances)]


def test_a_query_that_is_empty_is_no_second_text() -> None:
    encoder = TextEncoder(tokenizer("wordpiece"), limit=None)
    with_query, without = encoder.encode([Instance(id="a", text="good", query=""), Instance(id="b", text="good")])
    assert with_query == without


_TOKEN = st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from([None, 0, 1, 2, 7]), st.booleans())


@given(st.lists(st.lists(_TOKEN, max_size=8), min_size=1, max_size=4))
def test_words_of_a_batch_are_numbered_as_those_of_each_row(rows: list[list[tuple[Any, Any, bool]]]) -> None:
    texts = [
        TokenizedText(
            ids=[0] * len(row),
            added=[0] * len(row),
            types=[],
            words=[word for _, word, _ in row],
            texts=[text for text, _, _ in row] if any(text != 0 for row in rows for text, _, _ in row) else [],
            offsets=[],
        )
        for row in rows
    ]
    special = [[flag for _, _, flag in row] for row in rows]
    named = [one._replace(texts=one.texts or [0] * len(one.ids)) for one in texts]
    expected = [numbered(words_of(one), flags) for one, flags in zip(named, special, strict=True)]
    found = numbered_words(texts, flat(special, np.bool_))
    assert found.tolist() == flat(expected, np.int64).tolist()


def test_fields_that_are_padded_together_equal_fields_that_are_padded_alone() -> None:
    rows, flags = [[4, 5, 6], [], [7]], [[True, False, True], [], [True]]
    (numbers, marks), mask = pad_flat(
        np.array([3, 0, 1]),
        [(np.array([4, 5, 6, 7]), 9), (np.array([True, False, True, True]), False)],
        device=torch.device("cpu"),
    )
    expected, expected_mask = pad(rows, value=9, device=torch.device("cpu"))
    assert torch.equal(numbers, expected)
    assert torch.equal(mask, expected_mask)
    assert torch.equal(marks, pad(flags, value=False, device=torch.device("cpu"))[0])
    assert (numbers.dtype, marks.dtype, mask.dtype) == (torch.int64, torch.bool, torch.bool)


def _same(found: Inputs, expected: Inputs) -> None:
    for name in ("ids", "mask", "special", "words", "passages", "extra"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.keys() == theirs.keys(), name
        for key in theirs:
            assert torch.equal(ours[key], theirs[key]), (name, key)
    assert found.tokens == expected.tokens


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "bart"])
@pytest.mark.parametrize("rows", [(3, 1), (0,), (4, 2, 0)])
def test_selected_rows_equal_rows_that_are_encoded_again(
    load_adapter: LoadAdapter, name: str, rows: tuple[int, ...]
) -> None:
    adapter, instances = load_adapter(name), [*_instances(5)]
    if name == "bert":
        instances[1] = replace(instances[1], query="a bad film")
    _same(adapter.select_rows(adapter.collate(instances), rows), adapter.collate([instances[row] for row in rows]))


def test_rows_are_selected_from_a_batch_that_is_padded_on_the_left(load_adapter: LoadAdapter) -> None:
    adapter, instances = load_adapter("gpt2"), _instances(5)
    left = replace(adapter.runner.builder, pads_left=True)
    inputs = left.collate(instances)
    assert not bool(inputs.mask[TEXT][:, 0].all())
    _same(left.select_rows(inputs, [3, 1]), left.collate([instances[3], instances[1]]))


def test_passages_move_with_their_tokens_if_padding_moves_to_the_left() -> None:
    ids, mask = pad([[5, 6, 7], [8]], value=0, device=torch.device("cpu"))
    passages = torch.tensor([[-1, 0, 1], [2, -1, -1]])
    inputs = Inputs(ids={TEXT: ids}, mask={TEXT: mask}, special={TEXT: ~mask}, passages={TEXT: passages})
    moved = padded_left(inputs)
    assert moved.passages[TEXT].tolist() == [[-1, 0, 1], [-1, -1, 2]]
    selected = select_rows(moved, [1], left=(TEXT,))
    assert (selected.ids[TEXT].tolist(), selected.passages[TEXT].tolist()) == ([[8]], [[2]])
