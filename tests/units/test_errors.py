"""How the message of an error is shown."""

from __future__ import annotations

import pickle

import pytest

from attnaudit.errors import AuditError, shown_error


def test_an_audit_error_is_one_line_and_its_own_lines() -> None:
    error = AuditError("m: a\n::error::b\r\n  c", lines=["  x: 1\n::error::2", "", "y"])
    assert shown_error(error) == "m: a ::error::b c\n  x: 1 ::error::2\n\ny"
    assert str(error) == "m: a\n::error::b\r\n  c\n  x: 1\n::error::2\n\ny"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("", ""),
        ("::error::x", "\\::error::x"),
        ("\n a \n\n b\n", " a b"),
        ("a\x0bb\u2028c", "a b c"),
        ("\x1b[2J", "␛[2J"),
    ],
)
def test_the_message_of_an_error_is_one_line(message: str, shown: str) -> None:
    assert shown_error(AuditError(message)) == shown
    assert shown_error(ValueError(message)) == shown


def test_an_audit_error_keeps_its_lines_when_it_is_pickled() -> None:
    copy = pickle.loads(pickle.dumps(AuditError("a", lines=["b"])))
    assert (str(copy), copy.lines) == ("a\nb", ("b",))
