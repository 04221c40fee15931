"""How numbers, thresholds and text of a data set are formatted."""

from __future__ import annotations

import math
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.formatting import (
    decimals,
    duration,
    marked_tokens,
    number,
    plain_number,
    plural,
    sentence,
    terminal_safe,
    threshold,
    visible,
    without_commands,
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


def test_a_number_without_an_exponent_is_rounded_to_zero_without_a_sign() -> None:
    values = (-2.5e-4, 2.5e-4, 0.0, -6e-4, 5e-5, None)
    assert [number(v, exponent=False) for v in values] == ["0.000", "0.000", "0.000", "−0.001", "0.000", "—"]
    assert number(0.04, digits=1, exponent=False) == "0.0"


def test_a_number_on_a_terminal_is_ascii_and_has_the_digits_of_the_report() -> None:
    values = (-0.25, -8e-5, -0.0, 0.5, 12345.6, float("inf"), float("-inf"), float("nan"))
    assert [plain_number(v) for v in values] == [
        "-0.250",
        "-8.0e-05",
        "0.000",
        "0.500",
        "12,346",
        "inf",
        "-inf",
        "nan",
    ]


def test_a_threshold_keeps_all_of_its_digits() -> None:
    assert [threshold(v) for v in (0.3, 1.0, 0.125, -0.05)] == ["0.30", "1.00", "0.125", "−0.05"]


def test_decimals_keep_a_number_on_its_side_of_the_threshold() -> None:
    assert decimals([0.29996, 0.29993], 0.3) == 5
    assert decimals([0.3, 0.2], 0.3) == 3
    assert decimals([0.29996]) == 3
    assert decimals([0.3 - 1e-12], 0.3) == 6


def test_decimals_keep_neighbours_apart() -> None:
    assert decimals([0.0312, 0.0313]) == 4
    assert decimals([0.5, 0.5]) == 3
    assert decimals([6.9e-5, 9.5e-5], 0.092) == 3  # numbers with an exponent keep two digits
    assert decimals([0.2, 0.3, 0.30004]) == 5


def test_counts_and_durations() -> None:
    assert [plural(n, "instance") for n in (0, 1, 2026)] == ["0 instances", "1 instance", "2,026 instances"]
    assert [duration(s) for s in (4.21, 75, 3720)] == ["4.2 s", "1 min 15 s", "1 h 02 min"]


def test_a_clause_becomes_a_sentence() -> None:
    assert sentence("the value is undefined") == "The value is undefined."
    assert sentence("") == ""


def test_invisible_characters_are_replaced_by_visible_ones() -> None:
    assert visible("a\x00b\u202ec\u200bd\ne") == "a␀b⟨U+202E⟩c⟨U+200B⟩d\ne"
    assert visible("👩‍👩‍👧 שלום") == "👩‍👩‍👧 שלום"


#: Pieces that commands and control sequences are made of, so that Hypothesis puts them together often.
PIECES = [
    ":",
    "::",
    "#",
    "##",
    "[",
    "]",
    "error",
    "vso",
    "\n",
    "\r",
    " ",
    "\t",
    "\u2028",
    "\x85",
    "\x1b[2J",
    "\x9b",
    "\\",
]
PIECES += ["\u200d", "\ufe0f", "\u00a0", "\u3000", "\u202e", "\ud800", "\U000e0041", "\ufeff", "\x00", "a"]
any_character = st.characters(codec=None)
any_text = st.text(any_character, max_size=40) | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
#: The format characters that stay: joiners, and the visible signs of Arabic, Mongolian, Kaithi and Egyptian.
SCRIPT_SIGNS = (
    "\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\u180e\U000110bd\U000110cd"
)
SCRIPT_SIGNS += "".join(map(chr, range(0x13430, 0x13440)))


def ignoring_joiners(line: str) -> str:
    """A line as GitHub's runner compares it: without the characters that its comparison ignores, and trimmed."""
    kept = (
        c for c in line if unicodedata.category(c) != "Cf" and not re.match("[\ufe00-\ufe0f\U000e0100-\U000e01ef]", c)
    )
    return "".join(kept).strip()


@given(text=any_text)
@pytest.mark.parametrize("keep_lines", [False, True])
def test_text_for_a_terminal_contains_no_control_characters(text: str, keep_lines: bool) -> None:
    shown = terminal_safe(text, keep_lines=keep_lines)
    rest = [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in SCRIPT_SIGNS]
    assert set(rest) <= ({"\n", "\t"} if keep_lines else set())
    shown.encode("utf-8")
    if not keep_lines:
        assert shown.splitlines() in ([], [shown])


@given(text=any_text)
@pytest.mark.parametrize("keep_lines", [False, True])
def test_no_line_for_a_terminal_is_a_command_of_a_ci_system(text: str, keep_lines: bool) -> None:
    for line in map(ignoring_joiners, terminal_safe(text, keep_lines=keep_lines).split("\n")):
        assert not line.startswith("::")
        assert not re.search(r"##[A-Za-z]*\[", line)


@given(text=any_text)
@pytest.mark.parametrize("keep_lines", [False, True])
def test_text_that_was_made_safe_stays_as_it_is(text: str, keep_lines: bool) -> None:
    once = terminal_safe(text, keep_lines=keep_lines)
    assert terminal_safe(once, keep_lines=keep_lines) == once
    assert without_commands(once) == once


@given(any_text.map(lambda text: text.replace("\r\n", "\r")))
def test_only_new_lines_make_lines(text: str) -> None:
    assert terminal_safe(text, keep_lines=True).count("\n") == text.count("\n")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters=":#\u115f\u1160\u3164\uffa0")))
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert terminal_safe(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "naïve café, 12:30:45, a::b, C:\\models, #1, ## heading, [x]",
        "audits/test_audit.py::test_faithful[tiny-rows-uniform]",
        "שלום עולם, مرحبا بالعالم, می\u200cخواهم, नमस्ते क्\u200dष",
        "影评 映画\u3000評論 영화, 葛\U000e0100",
        "👩‍👩‍👧 ❤️ 👍🏽 🇩🇪",
        "",
    ],
)
def test_text_of_any_script_is_unchanged(text: str) -> None:
    assert terminal_safe(text) == text


def test_control_characters_have_distinct_symbols() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if visible(chr(code)) != chr(code)]
    assert len({visible(c) for c in characters}) == len(characters) > 2_000  # most of them are surrogates


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("::error::x", "\\::error::x"),
        ("  \t::error::x", "  ␉::error::x"),
        (" \u00a0::error::x", " \u00a0\\::error::x"),
        ("\u200d:\ufe0f:error::x", "\u200d\\:\ufe0f:error::x"),
        ("ok ##[error]x", "ok ##\\[error]x"),
        ("ok ##vso[task.complete]", "ok ##vso\\[task.complete]"),
        ("##teamcity[buildStop]", "##teamcity\\[buildStop]"),
        ("a\r\n::error::x", "a␍␊::error::x"),
        ("\x1b]8;;http://x\x07link", "␛]8;;http://x␇link"),
        ("\U0001f3f4\U000e0067", "\U0001f3f4⟨U+E0067⟩"),
    ],
)
def test_commands_and_control_characters_become_visible(text: str, shown: str) -> None:
    assert terminal_safe(text) == shown


def test_lines_are_kept_on_request() -> None:
    assert terminal_safe("a\r\n\t::error::x\rb", keep_lines=True) == "a\n\t\\::error::x␍b"


def test_tokens_are_truncated_around_the_most_attended_one_without_control_characters() -> None:
    tokens = [f"w{i}" for i in range(50)]
    tokens[30] = "bad\x1b[31m\n"
    assert marked_tokens(tokens, 30, limit=4) == "… w28 w29 «bad␛[31m␊» w31 …"
    assert marked_tokens(["a", "b"], None) == "a b"
    assert marked_tokens([], None) == ""
