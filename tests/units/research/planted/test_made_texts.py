"""Texts made from real sentences: labels, places and numbers of the inserted words."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from attnaudit.data import load
from attnaudit.models.vocabulary import words
from attnaudit.research.planted.made_texts import TextPlan, cue_words, made_texts, partner_words

SENTENCES = load("movie-reviews")


@functools.cache
def groups_of(plan: TextPlan) -> dict[str, frozenset[str]]:
    """Return the cue words of each class."""
    return {name: frozenset(group) for name, group in cue_words(plan, SENTENCES).items()}


def cues_of(text: str, plan: TextPlan) -> list[str]:
    """Return the class of each cue word of a text, in order."""
    return [name for word in words(text) for name, group in groups_of(plan).items() if word in group]


@pytest.mark.parametrize(
    "plan",
    [
        TextPlan(rows=60),
        TextPlan(cues=(2, 4), rows=60),
        TextPlan(classes=tuple("abcdefghijklmnopqrst"), rows=60),
        TextPlan(length=(2, 5), rows=60),
        TextPlan(length=(60, 500), cues=(1, 6), rows=20),
    ],
)
def test_every_text_has_cue_words_of_its_class_only(plan: TextPlan) -> None:
    low, high = plan.length or (1, 10_000)
    for instance in made_texts(plan, SENTENCES, 1).instances:
        found = cues_of(instance.text, plan)
        assert set(found) == {instance.label}
        assert plan.cues[0] <= len(found) <= plan.cues[1]
        assert low <= len(words(instance.text)) <= high


@pytest.mark.slow
def test_classes_have_their_shares_and_the_absent_class_has_no_cue_word() -> None:
    plan = TextPlan(classes=("ordinary", "rare"), shares=(0.98, 0.02), absence="ordinary", rows=1000)
    found = made_texts(plan, SENTENCES, 0).instances
    assert Counter(instance.label for instance in found)["rare"] == pytest.approx(20, abs=1)
    assert all(bool(cues_of(instance.text, plan)) == (instance.label == "rare") for instance in found)


def test_the_first_word_decides_and_others_of_any_class_follow() -> None:
    plan = TextPlan(cues=(3, 3), first=True, rows=60)
    found = [(cues_of(instance.text, plan), instance) for instance in made_texts(plan, SENTENCES, 0).instances]
    assert all(cues[0] == instance.label and cues_of(words(instance.text)[0], plan) for cues, instance in found)
    assert any(set(cues) == set(plan.classes) for cues, _ in found)


def test_without_a_cue_first_the_first_word_is_never_a_cue() -> None:
    plan = TextPlan(rows=60)
    assert not any(cues_of(words(one.text)[0], plan) for one in made_texts(plan, SENTENCES, 0).instances)


def test_every_text_has_as_many_partner_words_of_its_class_as_cue_words() -> None:
    plan = TextPlan(cues=(2, 3), partners=True, rows=60)
    partners = partner_words(plan, SENTENCES)
    for instance in made_texts(plan, SENTENCES, 2).instances:
        found = [name for word in words(instance.text) for name, group in partners.items() if word in group]
        assert found == [instance.label] * len(cues_of(instance.text, plan))
    assert not set().union(*partners.values()) & set().union(*groups_of(plan).values())
    assert set(partner_words(TextPlan(), SENTENCES).values()) == {()}


def test_the_same_seed_gives_the_same_texts() -> None:
    plan = TextPlan(rows=30)
    assert made_texts(plan, SENTENCES, 4) == made_texts(plan, SENTENCES, 4)
    assert made_texts(plan, SENTENCES, 4) != made_texts(plan, SENTENCES, 5)
