"""Read and write remedies.json.

The file lists training options that help a model whose attention fails an audit, according to reproductions of papers.
`attnaudit reproduce` writes the file next to its reports, and `attnaudit validate --remedies` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError, require_regular_file
from attnaudit.records import Record

REMEDIES = "remedies.json"


class Remedy(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training option that may help a model that fails a question of the policy.

    Attributes:
        question: The name of the question, such as "used".
        option: The name of the training option, such as "tying".
        words: The advice, with its measured effect. The policy lists this text in the `remedies` of the question.
    """

    question: str
    option: str
    words: str


def first_of_each_option(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Return the remedies without duplicates. Of several with the same question and option, the first is kept."""
    found: dict[tuple[str, str], Remedy] = {}
    for remedy in remedies:
        found.setdefault((remedy.question, remedy.option), remedy)
    return list(found.values())


def remedies_text(remedies: Sequence[Remedy]) -> str:
    """Return the content of remedies.json, with one remedy per line."""
    lines = ",\n".join(msgspec.json.encode(one).decode() for one in remedies)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def read_remedies(path: Path) -> list[Remedy]:
    """Read a remedies.json.

    Raises:
        ReportError: The file cannot be read, or is not a list of remedies.
    """
    require_regular_file(path, "remedies", ReportError)
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Remedy])
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be read ({error.strerror}). Expected the {REMEDIES} that `attnaudit reproduce` writes "
            f"next to its reports."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(
            f"{path}: the file is not a list of remedies ({error}). Expected the {REMEDIES} that `attnaudit "
            "reproduce` writes next to its reports."
        ) from error
