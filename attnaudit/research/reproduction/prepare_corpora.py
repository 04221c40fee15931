"""Prepare the corpora of the papers: write the training, development and test part of each as JSON Lines files.

`attnaudit train --data FILE` can read these files too.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet

from attnaudit.data import load, sample
from attnaudit.data.sampling import in_random_order, sample_of
from attnaudit.errors import DataError, require_regular_file
from attnaudit.instances import Dataset, Instance
from attnaudit.models.vocabulary import words
from attnaudit.processes import replace_file
from attnaudit.records import Record
from attnaudit.research.reproduction.corpora import EMBEDDED, PARTS, Corpus, Row, Source
from attnaudit.research.study.report_files import not_writable

DEV_SHARE = 0.1
#: If the test part of a corpus is drawn at random, it gets this share of the rows of each class.
TEST_SHARE = 0.2
#: The largest number of rows of each part in a quick run.
QUICK = {"train": 400, "dev": 100, "test": 60}
#: The rows of a quick run have at most this many words, if there are enough such rows. The attention weights of a long
#: text would take most of the time.
QUICK_WORDS = 60


class Prepared(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of prepared.json: the prepared parts of a corpus.

    Attributes:
        corpus: The name of the corpus.
        folder: The folder with the parts.
        rows: Part ("train", "dev" or "test") -> number of rows.
        sha256: Hash of all prepared parts.
        made_from: Hash of the original files and of the rules by which the parts were prepared.
    """

    corpus: str
    folder: str
    rows: dict[str, int]
    sha256: str
    made_from: str

    def path(self, part: str) -> Path:
        """Return the path of a part: "train", "dev" or "test"."""
        return Path(self.folder) / f"{part}.jsonl"


def prepare(corpus: Corpus, root: Path | None, out: Path, *, quick: bool = False) -> Prepared:
    """Write train.jsonl, dev.jsonl and test.jsonl of a corpus.

    If these files already exist and were made from the same original files, they are kept. If the corpus has no dev
    part, a tenth of the training part becomes the dev part. The tenth is chosen by a hash of the ids. If a corpus of
    pairs has no training part, its dev part becomes the training part first. If the test part of the corpus is drawn,
    a fifth of the rows of each class becomes the test part, and the other rows become the training part.

    Args:
        corpus: The corpus.
        root: The folder with the corpora. None for the packaged sentences.
        out: The parent folder. The files are written to a folder in it that has the name of the corpus.
        quick: Whether to use only a sample of each part.

    Returns:
        The content of prepared.json.

    Raises:
        DataError: A file below `root` is missing or cannot be read, a column is missing, or a part has no rows.
        ReportError: A file cannot be written.
    """
    folder = out / corpus.name
    made_from = _made_from(corpus, root, quick)
    card = folder / "prepared.json"
    try:
        kept = msgspec.json.decode(card.read_bytes(), type=Prepared)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        kept = None
    if kept is not None and kept.made_from == made_from and all((folder / f"{p}.jsonl").is_file() for p in PARTS):
        return msgspec.structs.replace(kept, folder=str(folder))  # The output folder may have been moved.
    parts = _embedded() if corpus.name == EMBEDDED else _from_files(corpus, root)
    card.unlink(missing_ok=True)  # If this run is stopped, no old prepared.json may remain next to new parts.
    digest = hashlib.sha256()
    rows = {}
    for name in PARTS:
        data = _quick_sample(parts[name], QUICK[name]) if quick else parts[name]
        if not data.instances:
            raise DataError(f"{corpus.title}: no row is left for the part '{name}'. Expected rows with split '{name}'.")
        lines = b"".join(msgspec.json.encode(_line(i)) + b"\n" for i in data.instances)
        _write(folder / f"{name}.jsonl", lines)
        digest.update(lines)
        rows[name] = len(data.instances)
    made = Prepared(corpus=corpus.name, folder=str(folder), rows=rows, sha256=digest.hexdigest(), made_from=made_from)
    _write(card, msgspec.json.encode(made))
    return made


def _quick_sample(data: Dataset, most: int) -> Dataset:
    """Return a sample of about `most` rows with at most `QUICK_WORDS` words.

    Each class has the same share of the sample as of the data. If a class has too few short rows for its share, its
    shortest rows are used.
    """
    if len(data.instances) <= most:
        return data

    def length(one: Instance) -> int:
        return len(f"{one.text} {one.query or ''}".split())

    by_class: dict[str | None, list[Instance]] = {}
    for one in sorted(data.instances, key=lambda one: (length(one), one.id)):
        by_class.setdefault(one.label, []).append(one)
    chosen: list[Instance] = []
    for rows in by_class.values():
        count = max(1, round(most * len(rows) / len(data.instances)))
        short = sum(length(one) <= QUICK_WORDS for one in rows)
        pool = dataclasses.replace(data, instances=tuple(rows[: max(short, count)]))
        chosen += sample(pool, count, 0).instances
    return sample_of(data, in_random_order(chosen, 0), 0)


def _made_from(corpus: Corpus, root: Path | None, quick: bool) -> str:
    digest = hashlib.sha256(f"{corpus.rules} {(QUICK, QUICK_WORDS) if quick else ''}".encode())
    for source in corpus.sources:
        digest.update(_bytes(corpus, source, root))
    if corpus.name == EMBEDDED:
        for data in _embedded().values():
            digest.update(data.sha256().encode())
    return digest.hexdigest()


def _bytes(corpus: Corpus, source: Source, root: Path | None) -> bytes:
    path = (root or Path()) / source.path
    require_regular_file(path, "the corpus", DataError)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: {'there is no such file' if isinstance(error, FileNotFoundError) else error.strerror}. "
            f"{corpus.title} is expected below --data-root as the Parquet file {source.path} with the columns "
            f"{', '.join(source.columns)}. docs/reproduction.md describes the file. Put it there, or use --only to "
            "leave out the rows of this corpus."
        ) from error


def _from_files(corpus: Corpus, root: Path | None) -> dict[str, Dataset]:
    by_part: dict[str, list[Instance]] = {part: [] for part in PARTS}
    for source in corpus.sources:
        path = (root or Path()) / source.path
        for number, row in enumerate(_rows(path, source), start=1):
            part = row["split"]
            try:
                fields = corpus.instance(row) if part in source.use else None
                blank = fields is None or not fields[0].strip()
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{path}:{number}: the row cannot be read ({error}). Expected text in the columns "
                    f"{', '.join(source.columns)}, as docs/reproduction.md describes."
                ) from error
            if fields is None or blank:
                continue
            text, label, query = fields
            by_part[part].append(
                Instance(id=f"{part}-{number}", text=text, label=label, query=query, where=f"{path}:{number}")
            )
    kept = {part: _of_length(corpus, instances) for part, instances in by_part.items()}
    if corpus.form == "pair" and not kept["train"]:
        kept["train"], kept["dev"] = kept["dev"], []
    if corpus.drawn:
        kept["train"], kept["test"] = _draw_test([one for part in PARTS for one in kept[part]])
        kept["dev"] = []
    if not kept["dev"]:
        kept["train"], kept["dev"] = _split_off("dev", DEV_SHARE, kept["train"])
    return {
        part: Dataset(name=f"{corpus.name}-{part}", source=corpus.name, description="", instances=tuple(instances))
        for part, instances in kept.items()
    }


def _rows(path: Path, source: Source) -> Iterator[Row]:
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({error}). Expected a Parquet file with the columns "
            f"{', '.join(source.columns)}."
        ) from error
    for name in source.columns:
        if name not in table.schema.names:
            raise DataError(
                f"{path}: column '{name}' is missing. Expected the columns {', '.join(source.columns)}; found "
                f"{', '.join(table.schema.names)}."
            )
    try:
        for batch in table.select(list(source.columns)).to_batches():
            yield from batch.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: contains text that is not UTF-8 ({error}). Write the file again in UTF-8.") from error


def _of_length(corpus: Corpus, instances: Sequence[Instance]) -> list[Instance]:
    """Return the instances whose texts have an allowed number of tokens.

    Tokens are counted as in the published code. If `shorter_than` is "longest", the corpus was published with tokens
    separated by spaces, and these tokens are counted. Otherwise, the words of the vocabulary's tokeniser are counted.
    """
    if not instances or (corpus.longer_than == 0 and corpus.shorter_than is None):
        return list(instances)
    count = _spaced if corpus.shorter_than == "longest" else _tokens
    lengths = [count(i.text) for i in instances]
    limit = max(lengths) if corpus.shorter_than == "longest" else corpus.shorter_than
    return [
        i
        for i, length in zip(instances, lengths, strict=True)
        if corpus.longer_than < length and (not isinstance(limit, int) or length < limit)
    ]


def _spaced(text: str) -> int:
    return len(text.split())


def _tokens(text: str) -> int:
    return len(words(text))


def _draw_test(instances: Sequence[Instance]) -> tuple[list[Instance], list[Instance]]:
    """Split instances into (train, test). The share of the test part is the same for every class."""
    train: list[Instance] = []
    test: list[Instance] = []
    for label in sorted({i.label or "" for i in instances}):
        others, drawn = _split_off("test", TEST_SHARE, [i for i in instances if i.label == label])
        train += others
        test += drawn
    return train, test


def _split_off(part: str, share: float, instances: Iterable[Instance]) -> tuple[list[Instance], list[Instance]]:
    """Split instances into (the others, the part).

    The part is chosen by a hash of the ids, so it does not depend on their order.
    """
    ordered = sorted(instances, key=lambda i: hashlib.sha256(f"{part}\x1f{i.id}".encode()).digest())
    size = max(1, round(share * len(ordered)))
    return ordered[size:], ordered[:size]


def _embedded() -> dict[str, Dataset]:
    return {part: load(EMBEDDED if part == "test" else f"{EMBEDDED}-{part}") for part in PARTS}


def _line(instance: Instance) -> dict[str, str]:
    row = {"id": instance.id, "text": instance.text, "label": instance.label or ""}
    return row if instance.query is None else {**row, "query": instance.query}


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise not_writable(path, error) from error
