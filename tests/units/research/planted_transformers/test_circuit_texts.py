"""The texts of planted Transformers: their lengths, labels and roles, and the tokenizer."""

from __future__ import annotations

import pytest

from attnaudit.research.planted_transformers.circuit_texts import (
    CLASS_NAMES,
    CLASS_WORDS,
    LONGEST,
    MARKER,
    TRIGGER,
    as_csv,
    build_tokenizer,
    lexicon,
    make_rows,
    review_cues,
)

KINDS = ("cues", "after_first", "groups", "uneven", "weighted", "trigger", "needle", "marked", "closed", "reviews")


def classes_of(text: str) -> list[int]:
    """The classes of the cue words of a text, in order."""
    return [c for word in text.split() for c, group in enumerate(CLASS_WORDS) if word in group]


@pytest.mark.parametrize("texts", KINDS)
def test_texts_have_4_to_40_tokens_and_are_the_same_each_time(texts: str) -> None:
    rows = make_rows(texts, classes=2, count=80, seed=1)
    assert len(rows) == 80
    assert all(4 <= len(text.split()) <= LONGEST for text, _ in rows)
    assert rows == make_rows(texts, classes=2, count=80, seed=1)
    assert rows != make_rows(texts, classes=2, count=80, seed=2)


@pytest.mark.parametrize(("texts", "classes"), [("cues", 2), ("cues", 5), ("groups", 3), ("marked", 3), ("closed", 3)])
def test_all_cue_words_are_of_the_label(texts: str, classes: int) -> None:
    rows = make_rows(texts, classes=classes, count=60, seed=0)
    assert {label for _, label in rows} == set(CLASS_NAMES[:classes])
    for text, label in rows:
        assert classes_of(text)
        assert set(classes_of(text)) == {CLASS_NAMES.index(label)}


def test_the_word_after_the_trigger_decides() -> None:
    for text, label in make_rows("trigger", classes=3, count=60, seed=0):
        words = text.split()
        assert words.count(TRIGGER) == 1
        assert words[words.index(TRIGGER) + 1] in CLASS_WORDS[CLASS_NAMES.index(label)]
        assert len(set(classes_of(text))) == 2


def test_markers_and_needles_have_their_shares() -> None:
    marked = make_rows("marked", classes=2, count=200, seed=0, marker_share=0.4)
    assert sum(MARKER in text.split() for text, _ in marked) / 200 == pytest.approx(0.4, abs=0.03)
    needles = make_rows("needle", classes=2, count=210, seed=0)
    assert sum(label == "positive" for _, label in needles) == 30
    assert all(classes_of(text) == ([1] if label == "positive" else []) for text, label in needles)


def test_the_marker_closes_every_text_with_two_to_four_cue_words() -> None:
    rows = make_rows("closed", classes=2, count=200, seed=0)
    assert all(text.split().index(MARKER) == len(text.split()) - 1 for text, _ in rows)
    assert {len(classes_of(text)) for text, _ in rows} == {2, 3, 4}


def test_the_first_word_is_no_cue_where_it_must_not_be() -> None:
    assert all(not classes_of(text.split()[0]) for text, _ in make_rows("after_first", classes=5, count=200, seed=0))


def test_the_cues_of_the_reviews_agree_with_the_label() -> None:
    negative, positive = review_cues()
    assert not negative & positive
    for text, label in make_rows("reviews", classes=2, count=60, seed=0):
        words = text.split()
        balance = sum(word in positive for word in words) - sum(word in negative for word in words)
        assert (balance > 0) == (label == "positive")
        assert balance != 0


def test_the_tokenizer_keeps_every_role_and_adds_special_tokens() -> None:
    roles = lexicon("weighted", 3)
    tokenizer = build_tokenizer(roles)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("Superb unheardofword dreadful")["input_ids"])
    assert tokens == ["[CLS]", "superb", "[UNK]", "dreadful", "[SEP]"]
    assert all(tokenizer.convert_tokens_to_ids(word) != tokenizer.unk_token_id for word in roles)
    assert roles["dreadful"]["cue"] == 1.0
    assert (roles["clumsy"]["cue"], roles["clumsy"]["weak"]) == (0.0, 1.0)


def test_csv_has_a_header_and_one_line_per_text() -> None:
    assert as_csv([("a, b", "negative")]) == b'id,text,label\n0,"a, b",negative\n'
