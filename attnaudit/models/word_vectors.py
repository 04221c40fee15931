"""Word vectors that an embedding starts from, in the text format of GloVe, fastText and word2vec."""

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

from attnaudit.errors import DataError, ModelError
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import RESERVED, Vocabulary

_EXPECTED = "expected a word and its numbers, between spaces (the text format of GloVe, fastText and word2vec)"
_ENDINGS = (".gz", ".txt", ".vec")


class Vectors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with a word and its `width` numbers a line; a first line that counts words and numbers is passed over. One
    whose name ends in .gz is unpacked as it is read. sha256: of the file's bytes."""

    path: str
    width: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Vectors:
        """Raises DataError for a file that cannot be read or holds something else."""
        sha256 = _sha256(path)
        for number, line in _lines(path):
            fields = line.split()
            if number == 1 and _counts(fields):
                continue
            if len(fields) < 2:
                break
            _numbers(fields[1:], f"{path}:{number}")
            return cls(path=str(path), width=len(fields) - 1, sha256=sha256)
        raise DataError(f"{path}: no word vectors; {_EXPECTED}.")

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        name = Path(self.path).name
        for ending in _ENDINGS:
            name = name.removesuffix(ending)
        return name

    def read(self, words: Collection[str]) -> dict[str, NDArray[np.float32]]:
        """Those of the words that the file has -> (width,); the first where it has one twice.

        Raises DataError for a line that cannot be read, and for a file that is no longer the same."""
        path = Path(self.path)
        if _sha256(path) != self.sha256:
            raise DataError(
                f"{path}: this is no longer the file of word vectors that training started from (sha256 differs). Put "
                "that file back, or train anew from this one."
            )
        wanted = {word.encode(): word for word in words}
        found: dict[str, NDArray[np.float32]] = {}
        for number, line in _lines(path):
            first, *rest = line.split(None, 1) or (b"",)
            word = wanted.get(first)
            if word is None or word in found:
                continue
            numbers = b"".join(rest).split()
            if len(numbers) > self.width or (number == 1 and _counts([first, *numbers])):
                continue  # an entry of several words, or the count
            if len(numbers) < self.width:
                raise DataError(f"{path}:{number}: {len(numbers)} numbers for {word!r}; expected {self.width}.")
            found[word] = _numbers(numbers, f"{path}:{number}")
        return found


def start_from(vectors: Vectors, model: PooledClassifier, vocabulary: Vocabulary) -> int:
    """Put the vectors of the vocabulary's words into the model's embedding. Words that the file lacks, and the special
    tokens, stay random, at the scale of those it has. Returns how many words it has.

    Raises ModelError where the widths differ, DataError for a file that cannot be read or has none of the words."""
    weight = model.embedding.weight.data
    if weight.shape[1] != vectors.width:
        raise ModelError(
            f"{vectors.path}: its vectors have {vectors.width} numbers, but the embedding is {weight.shape[1]} wide. "
            f"Give the embedding size {vectors.width}, or leave it out."
        )
    words = vocabulary.entries[len(RESERVED) :]
    found = vectors.read(words)
    if not found:
        raise DataError(
            f"{vectors.path}: it has none of the {len(words)} words of the training texts, which are read in lower "
            "case. Give word vectors of the texts' language."
        )
    rows = [row for row, word in enumerate(words, len(RESERVED)) if word in found]
    known = torch.from_numpy(np.stack([found[vocabulary.entries[row]] for row in rows]))
    weight.mul_(known.square().mean().sqrt() / weight.square().mean().sqrt())
    weight[rows] = known
    return len(rows)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"{path}: the word vectors cannot be read ({error.strerror}). Give a file that can be."
        ) from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines and their numbers, from 1."""
    try:
        with cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").rstrip()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the word vectors cannot be read ({error}). Give a whole file.") from error


def _counts(fields: list[bytes]) -> bool:
    """Whether a line says how many words and numbers follow."""
    return len(fields) == 2 and all(field.isdigit() for field in fields)


def _numbers(fields: list[bytes], where: str) -> NDArray[np.float32]:
    try:
        numbers = np.array(fields, dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{where}: {_EXPECTED}. A file of word2vec's .bin format must be converted.") from error
    if not np.isfinite(numbers).all():
        raise DataError(f"{where}: a number is NaN or infinite. Correct or remove the line.")
    return numbers
