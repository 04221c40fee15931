"""The tokenizer and the vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.models.vocabulary import END, RESERVED, START, UNKNOWN, Vocabulary, words


def test_words_are_lower_cased_and_punctuation_marks_are_tokens() -> None:
    assert words("It isn't GREAT, but 3½ stars -- okay!") == [
        *("it", "isn't", "great", ",", "but", "3½", "stars", "-", "-", "okay", "!")
    ]


def test_quotes_are_separate_tokens_and_curly_apostrophes_become_straight() -> None:
    assert words("'new' can’t snake_case") == ["'", "new", "'", "can't", "snake", "_", "case"]


@given(st.text())
def test_tokens_contain_every_character_except_white_space(text: str) -> None:
    import unicodedata

    normal = unicodedata.normalize("NFC", text).lower().replace("’", "'")
    assert "".join(words(text)) == "".join(normal.split())


@given(st.text())
def test_tokenizing_the_joined_tokens_again_changes_nothing(text: str) -> None:
    once = words(text)
    assert words(" ".join(once)) == [token for word in once for token in words(word)]


@given(st.text())
def test_no_text_can_contain_a_special_token(text: str) -> None:
    vocabulary = Vocabulary([*RESERVED, "<", ">", "pad"])
    inner = vocabulary.encode("<pad>" + text + "<eos>").ids[1:-1]
    assert not {0, START, END} & set(inner)


def test_an_encoding_has_start_and_end_and_the_spelling_of_unknown_words() -> None:
    vocabulary = Vocabulary.build(["good film", "good"], min_count=2)
    encoding = vocabulary.encode("Good zither")
    assert list(encoding.ids) == [START, 4, UNKNOWN, END]
    assert list(encoding.tokens) == ["<sos>", "good", "zither", "<eos>"]
    assert list(encoding.special or ()) == [True, False, False, True]


def test_a_vocabulary_is_ordered_by_count_then_spelling_and_limited() -> None:
    texts = ["b b a a c", "d"]
    assert Vocabulary.build(texts).entries[4:] == ("a", "b", "c", "d")
    assert Vocabulary.build(texts, min_count=2).entries[4:] == ("a", "b")
    assert Vocabulary.build(texts, limit=1).entries[4:] == ("a",)


@given(st.lists(st.text()))
def test_every_word_of_a_known_text_has_its_own_id(texts: list[str]) -> None:
    vocabulary = Vocabulary.build(texts)
    for text in texts:
        encoding = vocabulary.encode(text)
        assert [vocabulary.entries[i] for i in encoding.ids] == list(encoding.tokens)


def test_a_vocabulary_without_reserved_entries_or_with_duplicates_is_refused() -> None:
    with pytest.raises(ValueError, match="starts with"):
        Vocabulary(["good"])
    with pytest.raises(ValueError, match="'good' twice"):
        Vocabulary([*RESERVED, "good", "good"])
