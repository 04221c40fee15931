"""Data sets as batches of token ids and class indices, for training and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnaudit.adapters.padding import pad
from attnaudit.adapters.pooled.token_streams import Encoding
from attnaudit.data.row_parsing import ordered_classes
from attnaudit.errors import DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.models.pooled_classifier import Query
from attnaudit.models.vocabulary import PAD, Vocabulary, mentioned_classes


def training_classes(training: Dataset) -> tuple[str, ...]:
    """Return the different labels of the training data, sorted. They are sorted as numbers if all are integers.

    Raises:
        DataError: There are fewer than two different labels, or there are none.
    """
    classes = ordered_classes(training.instances)
    if not classes:
        raise DataError(
            f"{training.source}: column 'label' is missing or empty. Training needs a label in every row, and at least "
            "two classes. Add the column."
        )
    if len(classes) < 2:
        raise DataError(
            f"{training.source}: the labels name one class, {classes[0]!r}; training needs at least two. Add labelled "
            "rows of another class."
        )
    return classes


class EncodedText(NamedTuple):
    """The ids of the tokens of one text, and whether each token is special.

    Unlike `Encoding`, it does not contain the tokens themselves, which saves memory during training.
    """

    ids: NDArray[np.int32]
    special: NDArray[np.bool_]

    @classmethod
    def from_encoding(cls, encoding: Encoding) -> EncodedText:
        special = encoding.special or np.zeros(len(encoding.ids), dtype=bool)
        return cls(np.asarray(encoding.ids, dtype=np.int32), np.asarray(special, dtype=bool))


class EncodedRows:
    """A data set as token ids and class indices.

    Args:
        data: The rows. Every row needs a label.
        vocabulary: The vocabulary, which gives each word its id.
        classes: Class names. The position of a label among them is its class index.
        form: The form of the model that reads the rows: "text", "pair" or "question".

    Raises:
        DataError: There are no rows, or a row cannot be used. The message about a row names the row.
    """

    def __init__(self, data: Dataset, vocabulary: Vocabulary, classes: tuple[str, ...], form: str = "text") -> None:
        instances = data.instances
        if not instances:
            raise DataError(
                f"{data.source}: there is no row to train or evaluate on. Give a file with at least one row."
            )
        self.classes = classes
        self.form = form
        self.encodings = [_encode_text(instance, vocabulary) for instance in instances]
        self.labels = [_class_index(instance, classes) for instance in instances]
        self.queries = [] if form == "text" else [_encode_query(instance, vocabulary, form) for instance in instances]
        self.open_classes = [_open_classes(one, classes) for one in instances] if form == "question" else []
        with_query = next((instance for instance in instances if instance.query is not None), None)
        if form == "text" and with_query is not None:
            raise DataError(
                f"{with_query.where or with_query.id}: the row has a query, but form 'text' reads a single text. Use "
                "--form pair (or question), or remove the column 'query'."
            )

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Query | None]:
        """Return the inputs of `PooledClassifier` for these rows.

        Returns:
            The ids, the mask and the flags of special tokens, each (B, T) and padded on the right; and the queries,
            which are None for the form "text".
        """
        ids, mask, special = _pad_texts([self.encodings[row] for row in rows])
        if not self.queries:
            return ids, mask, special, None
        query_ids, query_mask, _ = _pad_texts([self.queries[row] for row in rows])
        flags = torch.tensor([self.open_classes[row] for row in rows]) if self.open_classes else None
        return ids, mask, special, Query(ids=query_ids, mask=query_mask, open_classes=flags)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each text."""
        return [len(encoding.ids) for encoding in self.encodings]


def _pad_texts(texts: Sequence[EncodedText]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ids, the mask and the flags of special tokens of texts, each (B, T) and padded on the right."""
    device = torch.device("cpu")
    ids, mask = pad([text.ids for text in texts], value=PAD, device=device)
    special, _ = pad([text.special for text in texts], value=False, device=device)
    return ids, mask, special


def _encode_text(instance: Instance, vocabulary: Vocabulary) -> EncodedText:
    encoding = vocabulary.encode(instance.text)
    if all(encoding.special or ()):
        raise DataError(
            f"{instance.where or instance.id}: the text contains neither a word nor a punctuation mark. Remove the row."
        )
    return EncodedText.from_encoding(encoding)


def _encode_query(instance: Instance, vocabulary: Vocabulary, form: str) -> EncodedText:
    if instance.query is None:
        raise DataError(
            f"{instance.where or instance.id}: the row has no query, but form '{form}' reads a text and a query. Fill "
            "in the column 'query', or use --form text."
        )
    return EncodedText.from_encoding(vocabulary.encode(instance.query))


def _open_classes(instance: Instance, classes: tuple[str, ...]) -> list[bool]:
    """Return, for each class, whether it is a possible answer for this row.

    Raises:
        DataError: The label of the row is not a possible answer.
    """
    flags = mentioned_classes(classes, instance)
    if not flags[_class_index(instance, classes)]:
        raise DataError(
            f"{instance.where or instance.id}: the text does not mention its label {instance.label!r}, but form "
            "'question' answers with a class that the text mentions. Correct the row, or use --form pair."
        )
    return flags


def _class_index(instance: Instance, classes: tuple[str, ...]) -> int:
    if instance.label not in classes:
        label = "missing" if instance.label is None else repr(instance.label)
        raise DataError(
            f"{instance.where or instance.id}: the label is {label}, expected one of the training classes "
            f"{', '.join(map(repr, classes))}. Correct the label, or remove the row."
        )
    return classes.index(instance.label)
