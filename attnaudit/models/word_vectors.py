"""Word vectors with which an embedding is initialised, in the text format of GloVe, fastText and word2vec."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from attnaudit.errors import DataError, ModelError, require_regular_file
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import RESERVED, Vocabulary

_EXPECTED = (
    "expected a word and its numbers on each line, separated by spaces (the text format of GloVe, fastText and "
    "word2vec)"
)
_SUFFIXES = (".gz", ".txt", ".vec")


class Vectors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of word vectors. Each line contains a word and the numbers of its vector.

    In the format of word2vec, the first line contains the number of words and the number of features. This line is
    skipped. If the name of the file ends in .gz, the file is decompressed while it is read.

    Attributes:
        path: Path of the file.
        width: Number of features of a vector.
        sha256: SHA-256 hash of the file.
    """

    path: str
    width: int
    sha256: str

    @classmethod
    def from_file(cls, path: Path) -> Vectors:
        """Read the width and the hash of a file of word vectors.

        Raises:
            DataError: The file cannot be read, or it does not contain word vectors.
        """
        sha256 = _sha256(path)
        for number, line in _lines(path):
            fields = line.split()
            if number == 1 and _is_count(fields):
                continue
            if len(fields) < 2:
                break
            _parse_numbers(fields[1:], f"{path}:{number}")
            return cls(path=str(path), width=len(fields) - 1, sha256=sha256)
        raise DataError(f"{path}: no word vectors found; {_EXPECTED}.")

    @property
    def name(self) -> str:
        """The name of the file without the suffixes .gz, .txt and .vec."""
        name = Path(self.path).name
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        return name

    def read(self, words: Collection[str]) -> dict[str, NDArray[np.float32]]:
        """Read the vectors of some words.

        Args:
            words: The words to look up.

        Returns:
            Word -> (width,) vector, for the words that the file contains. If the file contains a word several times,
            the first vector counts.

        Raises:
            DataError: The line of one of the words is invalid, the file cannot be read, or it has changed since
                `from_file` read it.
        """
        path = Path(self.path)
        if _sha256(path) != self.sha256:
            raise DataError(
                f"{path}: this is no longer the file of word vectors that training started from (its sha256 differs). "
                "Restore that file, or train a new model with the changed file."
            )
        missing = {word.encode(): word for word in words}
        vectors: dict[str, NDArray[np.float32]] = {}
        for line_number, line in _lines(path):
            first, *rest = line.split(None, 1) or (b"",)
            word = missing.get(first)
            if word is None or word in vectors:
                continue
            fields = b"".join(rest).split()
            if len(fields) > self.width or (line_number == 1 and _is_count([first, *fields])):
                continue  # the line of a phrase, or the header of word2vec
            if len(fields) < self.width:
                raise DataError(
                    f"{path}:{line_number}: the line has {len(fields)} numbers for {word!r}; expected {self.width}. "
                    "Correct or remove the line."
                )
            vectors[word] = _parse_numbers(fields, f"{path}:{line_number}")
        return vectors


def start_from(vectors: Vectors, model: PooledClassifier, vocabulary: Vocabulary) -> int:
    """Initialise the embedding of a model with word vectors.

    Special tokens and words without a vector keep their random embeddings. These are scaled so that their mean square
    equals that of the word vectors.

    Args:
        vectors: The word vectors.
        model: The model, which is changed in place.
        vocabulary: The vocabulary of the model.

    Returns:
        The number of words of the vocabulary that the file contains.

    Raises:
        ModelError: The vectors do not have as many features as the embedding.
        DataError: The file cannot be read, or it contains none of the words.
    """
    weight = model.embedding.weight.data
    if weight.shape[1] != vectors.width:
        raise ModelError(
            f"{vectors.path}: its vectors have {vectors.width} numbers, but the embedding size is {weight.shape[1]}. "
            f"Use the embedding size {vectors.width}, or leave --embedding-size out."
        )
    words = vocabulary.entries[len(RESERVED) :]
    vector_of = vectors.read(words)
    if not vector_of:
        raise DataError(
            f"{vectors.path}: it contains none of the {len(words)} words of the training texts. Words are compared in "
            "lower case. Use word vectors for the language of the texts."
        )
    rows = [row for row, word in enumerate(words, len(RESERVED)) if word in vector_of]
    known = torch.from_numpy(np.stack([vector_of[vocabulary.entries[row]] for row in rows]))
    weight.mul_(known.square().mean().sqrt() / weight.square().mean().sqrt())
    weight[rows] = known
    return len(rows)


def _sha256(path: Path) -> str:
    require_regular_file(path, "word vectors", DataError)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"{path}: the word vectors cannot be read ({error.strerror}). Give a file that you may read."
        ) from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number of each line, from 1, and the line without byte order mark and trailing white space."""
    try:
        with cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").rstrip()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: the word vectors cannot be read ({error}). The file may be incomplete: download it again."
        ) from error


def _is_count(fields: list[bytes]) -> bool:
    """Return whether a line is the header of word2vec, which consists of two counts."""
    return len(fields) == 2 and all(field.isdigit() for field in fields)


def _parse_numbers(fields: list[bytes], where: str) -> NDArray[np.float32]:
    try:
        numbers = np.array(fields, dtype=np.float32)
    except ValueError as error:
        raise DataError(
            f"{where}: {_EXPECTED}. Convert a file in word2vec's .bin format to the text format first."
        ) from error
    if not np.isfinite(numbers).all():
        raise DataError(f"{where}: a number is NaN or infinite. Correct or remove the line.")
    return numbers
