"""Find the tokens of a target in an encoded text: those of an answer, of a tagged word, or of a span.

Each token has a mark, which is a number. It is 0 for tokens that do not belong to the target. The tokens of an answer
are marked by their id plus 1, the first token of a tagged word by 1, the first token of a span by `START` and its last
token by `END`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from attnaudit.errors import DataError
from attnaudit.instances import Instance
from attnaudit.targets import Target

#: The marks of the first and the last token of a span. A span of one token has both marks, which are added.
START, END = 1, 2
_WORD = re.compile(r"\S+")

Offsets = Sequence[tuple[int, int]]


def answer_of(instance: Instance, target: Target) -> str:
    """Return the string whose probability is explained for an instance.

    Raises:
        DataError: The instance has no answer.
    """
    answer = target.name or instance.answer
    if not answer:
        raise DataError(
            f"{_place(instance)}: column 'answer' is empty, but the target is the probability of the row's answer. "
            "Fill the column, or set 'name' under [target] if the string is the same for every row."
        )
    return answer


def answer_tokens(instance: Instance, prompt: str, offsets: Offsets, start: int, end: int) -> list[bool]:
    """Return, for each token of a prompt, whether it belongs to the answer.

    White space before the answer may belong to its first token.

    Args:
        instance: The instance, for messages.
        prompt: The filled template.
        offsets: The position of the first character of each token, and the position after its last character.
        start: The position of the first character of the answer in the prompt.
        end: The position after its last character.

    Raises:
        DataError: No token contains the answer, or a token of the answer also contains other characters.
    """
    inside = [bool(prompt[max(a, start) : min(b, end)].strip()) if a < end and b > start else False for a, b in offsets]
    if not any(inside):
        raise DataError(
            f"{_place(instance)}: the tokenizer gives no token for the answer {prompt[start:end]!r}. Choose another "
            "answer."
        )
    for (a, b), is_answer in zip(offsets, inside, strict=True):
        other = prompt[a : max(a, start)] + prompt[min(b, end) : b]
        if is_answer and other.strip():
            raise DataError(
                f"{_place(instance)}: the token {prompt[a:b]!r} contains a part of the answer {prompt[start:end]!r} "
                "and other characters, so the probability of the answer is undefined. Separate the answer from the "
                "text, as in the template '{text} {answer}'."
            )
    return inside


def mark_word(instance: Instance, offsets: Offsets, in_text: Sequence[bool]) -> list[int]:
    """Mark the first token of the word whose tag is explained; mark no token if the row has no position.

    Args:
        instance: The instance.
        offsets: As in `answer_tokens`, in the text.
        in_text: Whether each token belongs to the text.

    Raises:
        DataError: The text has no such word, or the model does not read it.
    """
    marks = [0] * len(offsets)
    if instance.position is None:
        return marks
    words = len(instance.text.split())
    if instance.position >= words:
        raise DataError(
            f"{_place(instance)}: column 'position' is {instance.position}, but the text has {words} words, separated "
            "by white space and counted from 0. Correct the position."
        )
    first = first_tokens(instance, offsets, in_text)
    if instance.position not in first:
        raise _unread(instance, f"word {instance.position}")
    marks[first[instance.position]] = 1
    return marks


def first_tokens(instance: Instance, offsets: Offsets, in_text: Sequence[bool]) -> dict[int, int]:
    """Return word -> the position of its first token, for all words that were not truncated.

    The arguments are the same as in `mark_word`.
    """
    starts = [found.start() for found in _WORD.finditer(instance.text)]
    first: dict[int, int] = {}
    for position, (a, b) in enumerate(offsets):
        characters = instance.text[a:b] if in_text[position] else ""
        if characters.strip():
            letter = a + len(characters) - len(characters.lstrip())
            first.setdefault(bisect_right(starts, letter) - 1, position)
    return first


def mark_span(instance: Instance, offsets: Offsets, in_text: Sequence[bool]) -> list[int]:
    """Mark the first and the last token of the answer in the text; mark no token if the row has no answer.

    If the text contains the answer several times, the first occurrence is marked. If the row has a position, the search
    starts at the word with this index. The arguments are the same as in `mark_word`.

    Raises:
        DataError: The text does not contain the answer, or the model does not read it.
    """
    marks = [0] * len(offsets)
    if instance.answer is None:
        return marks
    answer, first = instance.answer.strip(), 0
    if instance.position is not None:
        words = [found.span() for found in _WORD.finditer(instance.text)]
        first = words[instance.position][0] if instance.position < len(words) else len(instance.text)
    start = instance.text.find(answer, first)
    if start < 0:
        where = f" from word {instance.position} on" if instance.position is not None else ""
        raise DataError(
            f"{_place(instance)}: column 'answer': the text does not contain {answer!r}{where}. Copy the answer from "
            "the text. If you leave it out, the audit explains the span that the model predicts."
        )
    end = start + len(answer)
    inside = [
        position
        for position, (a, b) in enumerate(offsets)
        if in_text[position] and max(a, start) < min(b, end) and instance.text[max(a, start) : min(b, end)].strip()
    ]
    if not inside or instance.text[offsets[inside[-1]][1] : end].strip():
        raise _unread(instance, f"the answer {answer!r}")
    marks[inside[0]] += START
    marks[inside[-1]] += END
    return marks


def _unread(instance: Instance, what: str) -> DataError:
    return DataError(
        f"{_place(instance)}: {what} is not among the tokens that the model reads. If the text was truncated, "
        "shorten or split it. If the tokenizer ignores these characters, as it may ignore invisible ones, remove them."
    )


def _place(instance: Instance) -> str:
    return instance.where or instance.id
