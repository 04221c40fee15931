"""Data sets as ids and class indices, in batches: what training and evaluation read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.adapters.padding import pad
from attnaudit.adapters.pooled.pooled_adapter import Encoding
from attnaudit.data.row_parsing import ordered_classes
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.models.pooled_classifier import Query
from attnaudit.models.vocabulary import PAD, Vocabulary, open_classes


def classes_of(training: Dataset) -> tuple[str, ...]:
    """The labels of the training data, sorted, as numbers when all are integers. Raises DataError below two."""
    classes = ordered_classes(training.instances)
    if len(classes) < 2:
        raise DataError(
            f"{training.source}: {len(classes)} class{'' if len(classes) == 1 else 'es'} among the labels"
            f"{' (' + repr(classes[0]) + ')' if classes else ''}; training needs at least two. "
            "Add labelled rows of another class."
        )
    return classes


class Text(NamedTuple):
    """ids and special flags of one text, without its words: a large data set is held for as long as it trains."""

    ids: NDArray[np.int32]
    special: NDArray[np.bool_]

    @classmethod
    def of(cls, encoding: Encoding) -> Text:
        special = encoding.special or np.zeros(len(encoding.ids), dtype=bool)
        return cls(np.asarray(encoding.ids, dtype=np.int32), np.asarray(special, dtype=bool))


class Rows:
    """A data set as ids and class indices. Raises DataError naming the first row that cannot be used."""

    def __init__(self, data: Dataset, vocabulary: Vocabulary, classes: tuple[str, ...], form: str = "text") -> None:
        if not data.instances:
            raise DataError(f"{data.source}: no row to train or evaluate on. Give a file with at least one row.")
        self.classes = classes
        self.form = form
        self.encodings = [_encoding(one, vocabulary) for one in data.instances]
        self.labels = [_label(one, classes) for one in data.instances]
        self.queries = [_query(one, vocabulary, form) for one in data.instances] if form != "text" else []
        self.open = [_open(one, classes) for one in data.instances] if form == "question" else []
        asking = next((one for one in data.instances if one.query is not None), None)
        if form == "text" and asking is not None:
            raise DataError(
                f"{asking.where or asking.id}: the row has a query, but form 'text' reads a single text. Give --form "
                "pair (or question), or remove the column 'query'."
            )

    def batch(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Query | None]:
        """ids, mask and special of these rows, padded on the right, and their queries."""
        ids, mask, special = _padded([self.encodings[row] for row in chosen])
        if not self.queries:
            return ids, mask, special, None
        asked = _padded([self.queries[row] for row in chosen])
        flags = torch.tensor([self.open[row] for row in chosen]) if self.open else None
        return ids, mask, special, Query(ids=asked[0], mask=asked[1], open=flags)

    @property
    def lengths(self) -> list[int]:
        return [len(one.ids) for one in self.encodings]


def _padded(texts: Sequence[Text]) -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask and special (B, T), padded on the right."""
    device = torch.device("cpu")
    ids, mask = pad([one.ids for one in texts], value=PAD, device=device)
    special, _ = pad([one.special for one in texts], value=False, device=device)
    return ids, mask, special


def _encoding(one: Instance, vocabulary: Vocabulary) -> Text:
    encoding = vocabulary.encode(one.text)
    if all(encoding.special or ()):
        raise DataError(f"{one.where or one.id}: the text has no word and no punctuation mark. Remove the row.")
    return Text.of(encoding)


def _query(one: Instance, vocabulary: Vocabulary, form: str) -> Text:
    if one.query is None:
        raise DataError(
            f"{one.where or one.id}: the row has no query, but form '{form}' reads a text and a query. Fill the column "
            "'query', or give --form text."
        )
    return Text.of(vocabulary.encode(one.query))


def _open(one: Instance, classes: tuple[str, ...]) -> list[bool]:
    flags = open_classes(classes, one)
    if not flags[_label(one, classes)]:
        raise DataError(
            f"{one.where or one.id}: the text does not mention its label {one.label!r}, but form 'question' answers "
            "with a class that the text mentions. Correct the row, or give --form pair."
        )
    return flags


def _label(one: Instance, classes: tuple[str, ...]) -> int:
    if one.label not in classes:
        raise DataError(
            f"{one.where or one.id}: label {one.label!r}; expected one of the training classes "
            f"{', '.join(map(repr, classes))}. Label the row or remove it."
        )
    return classes.index(one.label)
