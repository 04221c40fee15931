"""How numbers, thresholds and text of a data set are formatted."""

from __future__ import annotations

import math

import pytest

from attnaudit.formatting import (
    decimals,
    duration,
    marked_tokens,
    number,
    plain_number,
    plural,
    printable,
    sentence,
    threshold,
    visible,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (math.nan, "—"),
        (math.inf, "∞"),
        (0.0, "0.000"),
        (-0.0, "0.000"),
        (-0.25, "−0.250"),
        (3e-7, "3.0e−07"),
        (12345, "12,345"),
        (12345.6, "12,346"),
        (2.0, "2.000"),
        (2, "2"),
    ],
)
def test_a_number_in_a_report(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_number_on_a_terminal_is_ascii_and_has_no_negative_zero() -> None:
    assert [plain_number(v) for v in (-0.25, -0.0001, 0.5)] == ["-0.250", "0.000", "0.500"]


def test_a_threshold_keeps_all_of_its_digits() -> None:
    assert [threshold(v) for v in (0.3, 1.0, 0.125, -0.05)] == ["0.30", "1.00", "0.125", "−0.05"]


def test_decimals_keep_a_number_on_its_side_of_the_threshold() -> None:
    assert decimals([0.29996, 0.29993], 0.3) == 5
    assert decimals([0.3, 0.2], 0.3) == 3
    assert decimals([0.29996], None) == 3
    assert decimals([0.3 - 1e-12], 0.3) == 6


def test_counts_and_durations() -> None:
    assert [plural(n, "instance") for n in (0, 1, 2026)] == ["0 instances", "1 instance", "2,026 instances"]
    assert [duration(s) for s in (4.21, 75, 3720)] == ["4.2 s", "1 min 15 s", "1 h 02 min"]


def test_a_clause_becomes_a_sentence() -> None:
    assert sentence("the value is undefined") == "The value is undefined."
    assert sentence("") == ""


def test_invisible_characters_are_replaced_by_visible_ones() -> None:
    assert visible("a\x00b\u202ec\u200bd\ne") == "a␀b⟨U+202E⟩c⟨U+200B⟩d\ne"
    assert visible("👩‍👩‍👧 שלום") == "👩‍👩‍👧 שלום"


def test_text_for_a_terminal_contains_no_control_characters() -> None:
    assert printable("a\x1b[2J\nb") == "a\ufffd[2J\ufffdb"


def test_tokens_are_truncated_around_the_most_attended_one_without_control_characters() -> None:
    tokens = [f"w{i}" for i in range(50)]
    tokens[30] = "bad\x1b[31m\n"
    assert marked_tokens(tokens, 30, limit=4) == "… w28 w29 «bad\ufffd[31m\ufffd» w31 …"
    assert marked_tokens(["a", "b"], None) == "a b"
    assert marked_tokens([], None) == ""
