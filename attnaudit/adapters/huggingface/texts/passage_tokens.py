"""Find the tokens of each passage in a prompt."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from attnaudit.errors import DataError
from attnaudit.instances import Instance


def passage_of_tokens(
    instance: Instance, prompt: str, offsets: Sequence[tuple[int, int]], special: Sequence[bool], start: int
) -> list[int]:
    """Return, for each token of a prompt, the index of its passage; -1 for tokens outside all passages.

    A passage ends with a line break. If the passage is removed, so is this line break. A token that contains letters of
    two passages belongs to the first of them.

    Args:
        instance: The instance, with its passages.
        prompt: The filled template.
        offsets: The position of the first character of each token, and the position after its last character.
        special: True for special tokens, such as [CLS], which belong to no passage.
        start: The position of the first passage in the prompt.

    Raises:
        DataError: A passage has no token of its own, or a token contains characters of both a passage and the template.
    """
    ends = [start + length for length in accumulate(len(passage) + 1 for passage in instance.passages)]
    starts = [start, *ends[:-1]]
    place = instance.where or instance.id
    found = []
    for (a, b), is_special in zip(offsets, special, strict=True):
        if is_special:
            found.append(-1)
            continue
        # White space at the ends of a token does not count, so that " word" belongs to the passage of "word".
        inner = prompt[a:b]
        first = a + len(inner) - len(inner.lstrip()) if inner.strip() else a
        found.append(bisect_right(starts, first) - 1 if first < ends[-1] else -1)
        outside = prompt[a : min(b, start)] + prompt[max(a, ends[-1]) : b]
        inside = prompt[max(a, start) : min(b, ends[-1])]
        if a < b and inside.strip() and outside.strip():
            raise DataError(
                f"{place}: the token {prompt[a:b]!r} contains a part of a passage and a part of the template, so the "
                "passage cannot be removed alone. Put a line break before {passages} in the template."
            )
    absent = sorted(set(range(len(instance.passages))) - set(found))
    if absent:
        raise DataError(
            f"{place}: passage {absent[0] + 1}, {instance.passages[absent[0]][:40]!r}, gets no token of its own from "
            "the tokenizer. Remove this passage, or join it with another one."
        )
    return found
