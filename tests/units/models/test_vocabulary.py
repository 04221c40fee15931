"""The tokenizer and the vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.models.vocabulary import END, RESERVED, START, UNKNOWN, Vocabulary, words


def test_words_are_lower_cased_and_punctuation_stands_alone() -> None:
    assert words("It isn't GREAT, but 3½ stars -- okay!") == [
        *("it", "isn't", "great", ",", "but", "3½", "stars", "-", "-", "okay", "!")
    ]


def test_quotes_around_a_word_are_not_part_of_it_and_curly_apostrophes_are_straight_ones() -> None:
    assert words("'new' can’t snake_case") == ["'", "new", "'", "can't", "snake", "_", "case"]


@given(st.text())
def test_tokens_keep_every_character_but_white_space(text: str) -> None:
    import unicodedata

    normal = unicodedata.normalize("NFC", text).lower().replace("’", "'")
    assert "".join(words(text)) == "".join(normal.split())


@given(st.text())
def test_tokenizing_the_joined_tokens_again_changes_nothing(text: str) -> None:
    once = words(text)
    assert words(" ".join(once)) == [token for word in once for token in words(word)]


@given(st.text())
def test_no_text_can_write_a_special_token(text: str) -> None:
    vocabulary = Vocabulary([*RESERVED, "<", ">", "pad"])
    inner = vocabulary.encode("<pad>" + text + "<eos>").ids[1:-1]
    assert not {0, START, END} & set(inner)


def test_an_encoding_has_special_ends_and_keeps_the_spelling_of_unknown_words() -> None:
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
def test_every_word_of_a_known_text_has_an_id_of_its_own(texts: list[str]) -> None:
    vocabulary = Vocabulary.build(texts)
    for text in texts:
        encoding = vocabulary.encode(text)
        assert [vocabulary.entries[i] for i in encoding.ids] == list(encoding.tokens)


def test_a_vocabulary_without_the_reserved_entries_or_with_a_double_is_refused() -> None:
    with pytest.raises(ValueError, match="starts with"):
        Vocabulary(["good"])
    with pytest.raises(ValueError, match="'good' twice"):
        Vocabulary([*RESERVED, "good", "good"])
