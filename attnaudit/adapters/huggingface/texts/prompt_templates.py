"""Templates of prompts: their placeholders, and a check of their form."""

from __future__ import annotations

import re

from attnaudit.errors import ModelError

PLACEHOLDERS = re.compile(r"\{(text|query|answer|passages)\}")


def check_template(template: str, *, answer: str = "none") -> None:
    """Check that a template has {text} once, {query} and {passages} at most once, and no other placeholders.

    Args:
        template: The template.
        answer: "none": {answer} is not allowed. "last": {answer} must occur once, after the other placeholders, as for
            a causal language model, which reads only what comes before. "any": it may occur once.

    Raises:
        ModelError: The template is invalid.
    """
    placeholders = PLACEHOLDERS.findall(template)
    unknown = re.findall(r"\{([^{}]*)\}", PLACEHOLDERS.sub("", template))
    answers = placeholders.count("answer")
    repeated = placeholders.count("query") > 1 or placeholders.count("passages") > 1
    if placeholders.count("text") != 1 or repeated or unknown or (answers and answer == "none"):
        raise ModelError(
            f"template {template!r}: expected {{text}} once, {{query}} and {{passages}} at most once and no other "
            "braces, as in '{text} It was'."
        )
    if answers > 1 or (answer == "last" and placeholders[-1] != "answer"):
        raise ModelError(
            f"template {template!r}: expected {{answer}} once"
            + (", after {text} and {query}, as in '{text} {answer}'." if answer == "last" else ".")
        )
