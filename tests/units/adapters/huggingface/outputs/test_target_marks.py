"""The tokens of answers, words, spans and passages, from the offsets of a tokenizer alone."""

from __future__ import annotations

import pytest

from attnaudit.adapters.huggingface.outputs.target_marks import END, START, answer_tokens, mark_span, mark_word
from attnaudit.adapters.huggingface.texts.passage_tokens import passage_of_tokens
from attnaudit.errors import DataError
from attnaudit.instances import Instance

TEXT = "a \u200b good film"
#: A tokenizer that ignores the invisible second word.
OFFSETS = [(0, 1), (4, 8), (9, 13)]
ALL = [True] * 3


def row(**fields: object) -> Instance:
    return Instance(id="7", text=TEXT, where="rows.jsonl:7", **fields)  # type: ignore[arg-type]


def test_marks() -> None:
    assert mark_word(row(position=2), OFFSETS, ALL) == [0, 1, 0]
    assert mark_span(row(answer="good film"), OFFSETS, ALL) == [0, START, END]
    assert mark_span(row(answer="film"), OFFSETS, ALL) == [0, 0, START + END]
    assert mark_span(row(), OFFSETS, ALL) == [0, 0, 0]
    assert answer_tokens(row(), "it is good", [(0, 2), (2, 5), (5, 10)], 6, 10) == [False, False, True]


@pytest.mark.parametrize("mark", [mark_word, mark_span])
def test_a_word_without_tokens_is_refused(mark: object) -> None:
    instance = row(position=1) if mark is mark_word else row(answer="\u200b")
    with pytest.raises(
        DataError, match=r"^rows\.jsonl:7: .* is not among the tokens .*ignores these characters"
    ) as caught:
        mark(instance, OFFSETS, ALL)  # type: ignore[operator]
    assert "remove them" in str(caught.value)


def test_an_answer_of_no_tokens_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"^rows\.jsonl:7: the tokenizer gives no token for the answer '\\u200b'\. Choose"
    ):
        answer_tokens(row(), "it is \u200b", [(0, 2), (3, 5)], 6, 7)


@pytest.mark.parametrize(
    ("answer", "position", "message"),
    [
        ("bad", None, "the text does not contain 'bad'"),
        ("a", 1, "the text does not contain 'a' from word 1 on"),
        ("film", 10**30, "the text does not contain 'film' from word 1"),
        ("film and more", None, "the text does not contain 'film and more'"),
    ],
)
def test_spans_out_of_range_are_refused(answer: str, position: int | None, message: str) -> None:
    with pytest.raises(DataError, match=rf"^rows\.jsonl:7: column 'answer': {message}.*Copy the answer"):
        mark_span(row(answer=answer, position=position), OFFSETS, ALL)


def test_a_position_out_of_range_is_refused() -> None:
    with pytest.raises(DataError, match=r"column 'position' is 4, but the text has 4 words.*Correct the position"):
        mark_word(row(position=4), OFFSETS, ALL)


def test_many_passages() -> None:
    count = 20_000
    prompt = "x\n" * count + "end"
    offsets = [(2 * n, 2 * n + 1) for n in range(count)] + [(2 * count, 2 * count + 3)]
    instance = row(passages=("x",) * count)
    found = passage_of_tokens(instance, prompt, offsets, [False] * (count + 1), 0)
    assert found == [*range(count), -1]


def test_a_passage_without_tokens_is_named() -> None:
    with pytest.raises(DataError, match=r"^rows\.jsonl:7: passage 2, '\\u200b', gets no token .*Remove this passage"):
        passage_of_tokens(row(passages=("x", "\u200b")), "x\n\u200b\nend", [(0, 1), (4, 7)], [False, False], 0)
