"""Texts of records with the names of units and rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from attnaudit.adapters.protocol import Capabilities
from attnaudit.checks import Agreement, PermutationFragility, Pointing, TotalEffect, UniformFragility
from attnaudit.errors import AdapterError
from attnaudit.records import UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, common_names, names_of, recorded

PATCHES = UnitNames(unit="patch", row="picture")
PASSAGES = UnitNames(unit="passage", row="prompt", parts="token")
EVENTS = UnitNames(unit="event", row="input")
SLICES = UnitNames(unit="user", row="MRI slice")
CHECKS = (
    TotalEffect(severity="report"),
    TotalEffect(classes="smallest", severity="report"),
    Pointing(severity="report"),
    Pointing(measure="share", severity="report"),
    PermutationFragility(severity="report"),
    UniformFragility(measure="f1_drop", severity="report"),
    Agreement(severity="report"),
)


def test_the_names_of_texts_change_nothing() -> None:
    assert TOKENS_OF_TEXTS.named("A token of a text.") == "A token of a text."
    assert recorded(TOKENS_OF_TEXTS) is msgspec.UNSET
    assert names_of(msgspec.UNSET) == TOKENS_OF_TEXTS


@pytest.mark.parametrize(
    ("names", "text", "expected"),
    [
        (
            PATCHES,
            "Texts whose tokens differ; the token's own text.",
            "Pictures whose patches differ; the patch's own picture.",
        ),
        (
            PATCHES,
            "8% of its weight is on special tokens, or on a mask token",
            "8% of its weight is on special tokens, or on a mask token",
        ),
        (PATCHES, "mean where 'text' is predicted", "mean where 'text' is predicted"),
        (PATCHES, "the state's own token, the text's own words", "the state's own patch, the picture's own patches"),
        (PATCHES, "another_text: model.text.layer (text-only)", "another_text: model.text.layer (text-only)"),
        (PATCHES, "wrong words. Tokenisation of contexts.", "wrong patches. Tokenisation of contexts."),
        (EVENTS, "a token of a text; A token", "an event of an input; An event"),
        (SLICES, "Texts with a token. On such a text.", "MRI slices with a user. On such an MRI slice."),
        (PASSAGES, "replacing the text with another text", "replacing the prompt with another prompt"),
        (
            PASSAGES,
            "tokens whose replacement changes it; if replacing other words",
            "passages whose removal changes it; if removing other passages",
        ),
        (PASSAGES, "over the tokens of a text", "over the passages of a prompt"),
    ],
)
def test_tokens_and_texts_are_renamed(names: UnitNames, text: str, expected: str) -> None:
    assert names.named(text) == expected


def test_names_of_classes_stay_unchanged() -> None:
    text = "mean where 'nine's text' is predicted, per text; mean where 'text' is predicted"
    assert PATCHES.named(text, kept=["'text'", "'nine's text'"]) == (
        "mean where 'nine's text' is predicted, per picture; mean where 'text' is predicted"
    )


@pytest.mark.parametrize("name", ["", " ", "patch ", "a\nb", "\x1b[1m", "\ud800", "p" * 41, 3, None, b"patch"])
@pytest.mark.parametrize("argument", ["unit_name", "row_name"])
def test_names_that_cannot_be_shown_are_refused(argument: str, name: Any) -> None:
    with pytest.raises(AdapterError) as error:
        Capabilities(classes=("a", "b"), **{argument: name})
    assert str(error.value).startswith(f"{argument} is {ascii(name)[:60]}; expected a noun in the singular, such as ")


def test_weights_of_passages_are_those_of_their_tokens() -> None:
    assert PASSAGES.named("over the tokens of a text", of_weights=True) == "over the tokens of the passages of a prompt"
    assert PATCHES.named("over the tokens of a text", of_weights=True) == "over the patches of a picture"
    assert [check.replaces_weights for check in CHECKS] == [True, True, False, False, True, True, False]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_no_text_of_a_check_names_a_token_of_a_picture(check: Pointing) -> None:
    for text in (check.title, check.question, check.why, check.how_to_read, check.when_failed, check.value_name):
        named = PATCHES.named(text, of_weights=check.replaces_weights).lower().replace("attention", "")
        assert not {"token", "tokens", "text", "texts", "word", "words"} & set(named.replace(".", " ").split())


class Measured(msgspec.Struct):
    unit_names: UnitNames | msgspec.UnsetType = msgspec.UNSET


def test_the_names_of_a_page_are_those_of_all_models() -> None:
    assert common_names([Measured(PATCHES), Measured(PATCHES)]) == PATCHES
    assert common_names([Measured(PATCHES), Measured()]) == TOKENS_OF_TEXTS
    assert common_names([]) == TOKENS_OF_TEXTS
    assert PATCHES.count_of_units(1) == "1 patch"
    assert PATCHES.count_of_rows(1200, which="labelled") == "1,200 labelled pictures"
