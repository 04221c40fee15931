"""The corpora of the papers.

CORPORA declares for each corpus its files below --data-root, the rows that are used, and how the corpus differs from
the data of the papers. To add a corpus, add an entry to CORPORA. The prepared parts of a corpus are JSON Lines files.
`attnaudit train --data FILE` can read them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet

from attnaudit.data import load, sample
from attnaudit.errors import DataError, nearest, require_regular_file
from attnaudit.instances import Dataset, Instance
from attnaudit.models.vocabulary import words
from attnaudit.processes import replace_file
from attnaudit.records import Record
from attnaudit.research.study.report_files import not_writable

#: Increase this number when the preparation of corpora changes. All corpora are then prepared again.
PREPARATION = 1
PARTS = ("train", "dev", "test")
DEV_SHARE = 0.1
#: The largest number of rows of each part in a quick run.
QUICK = {"train": 800, "dev": 200, "test": 60}
EMBEDDED = "movie-reviews"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Parquet file of a corpus.

    Attributes:
        path: The path of the file below --data-root.
        columns: The names of the columns that are read. One of them is "split", which gives the part of each row.
        use: The parts that are read from this file. Rows of other parts are skipped.
    """

    path: str
    columns: tuple[str, ...]
    use: tuple[str, ...] = PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A corpus of a paper.

    Attributes:
        name: The short name of the corpus, such as "sst". Names of table rows contain it.
        title: The name of the corpus in the reports.
        form: The input of the models: "text", "pair" (two texts) or "question" (a text and a question about it).
        sources: The files of the corpus. The packaged sentences have none.
        instance: Converts a row of a file to (text, label, query). Returns None for a row that is not used.
        longer_than: Texts with this many tokens or fewer are left out.
        shorter_than: Texts with this many tokens or more are left out. "longest" leaves out the texts that are as long
            as the longest text of their part. None leaves out no text.
        deviations: Sentences that describe how the corpus differs from the data of the papers.
    """

    name: str
    title: str
    form: str = "text"
    sources: tuple[Source, ...] = ()
    instance: Callable[[Row], tuple[str, str, str | None] | None] = lambda row: None
    longer_than: int = 0
    shorter_than: int | str | None = None
    deviations: tuple[str, ...] = ()


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


def _label(names: Mapping[str, str]) -> Callable[[Row], tuple[str, str, None] | None]:
    def instance(row: Row) -> tuple[str, str, None] | None:
        label = names.get(str(row["label"]))
        return None if label is None else (row["text"], label, None)

    return instance


def _body(row: Row) -> tuple[str, str, None]:
    return row["body"], str(row["label"]).rpartition(".")[2], None


def _titled(row: Row) -> tuple[str, str, None] | None:
    """Convert a row of AG News to (text, label, None). Return None unless the topic is World or Business.

    If the row has a title, the title is prepended to the text.
    """
    label = {"1": "World", "3": "Business"}.get(str(row["label"]))
    return None if label is None else (f"{row.get('title') or ''} {row['text']}".strip(), label, None)


def _question(row: Row) -> tuple[str, str, str]:
    return row["story"], row["answer"], row["question"]


def _pair(row: Row) -> tuple[str, str, str] | None:
    known = row["label"] in ("entailment", "neutral", "contradiction")
    return (row["premise"], row["label"], row["hypothesis"]) if known else None


SENTIMENT = {"0": "negative", "1": "positive"}
SMALLER = "bAbI: embeddings 50 wide, 64 hidden units (per direction), learning rate .003, 60 epochs."
STORY = ("story", "question", "answer", "split")

CORPORA: dict[str, Corpus] = {
    one.name: one
    for one in (
        Corpus(
            name="sst",
            title="SST",
            sources=(Source(path="sst/sst_binary_jain_wallace.parquet", columns=("text", "label", "split")),),
            instance=_label(SENTIMENT),
            longer_than=5,
            shorter_than="longest",
        ),
        Corpus(
            name="imdb",
            title="IMDb",
            sources=(Source(path="imdb/aclimdb_50k.parquet", columns=("text", "label", "split")),),
            instance=_label(SENTIMENT),
            longer_than=6,
            deviations=("IMDb: the training and test halves of the corpus; dev is a tenth of the training half.",),
        ),
        Corpus(
            name="agnews",
            title="AG News",
            sources=(
                Source(
                    path="agnews/agnews_pas10k_lowercased.parquet",
                    columns=("text", "label", "split"),
                    use=("train", "dev"),
                ),
                Source(
                    path="agnews/agnews_test_original.parquet",
                    columns=("title", "text", "label", "split"),
                    use=("test",),
                ),
            ),
            instance=_titled,
            deviations=(
                "AG News: trained on a subset (World and Business among 10,000 training rows, in lower case and "
                "without digits), tested on all World and Business rows of the test set.",
            ),
        ),
        Corpus(
            name="20news",
            title="20News",
            sources=(Source(path="20news/baseball_hockey_bydate.parquet", columns=("body", "label", "split")),),
            instance=_body,
            longer_than=6,
            shorter_than=500,
            deviations=("20News: split by date, without headers, footers and quotes; the paper uses its own split.",),
        ),
        Corpus(
            name="snli",
            title="SNLI",
            form="pair",
            sources=(
                Source(path="snli/snli_dev_test_pairs.parquet", columns=("premise", "hypothesis", "label", "split")),
            ),
            instance=_pair,
            deviations=(
                "SNLI: trained on nine tenths of the development set, not on the larger training set; tested on "
                "the test set.",
            ),
        ),
        Corpus(
            name="babi-1",
            title="bAbI-1",
            form="question",
            sources=(Source(path="babi/qa1_en10k_original.parquet", columns=STORY),),
            instance=_question,
            deviations=(SMALLER,),
        ),
        *(
            Corpus(
                name=f"babi-{task}",
                title=f"bAbI-{task}",
                form="question",
                sources=(Source(path=f"babi/qa{task}_generated.parquet", columns=STORY),),
                instance=_question,
                deviations=(
                    f"bAbI-{task}: regenerated with the task generator; these are not the published files.",
                    SMALLER,
                ),
            )
            for task in (2, 3)
        ),
        Corpus(
            name=EMBEDDED,
            title="movie reviews",
            deviations=("The packaged movie sentences: no paper reports numbers for them.",),
        ),
    )
}


def corpus(name: str) -> Corpus:
    """Return the corpus with the given name.

    Raises:
        DataError: No corpus has this name. The message gives the nearest known name.
    """
    if name not in CORPORA:
        raise DataError(f"Unknown corpus '{name}'. {nearest(name, CORPORA)}")
    return CORPORA[name]


def prepare(corpus: Corpus, root: Path | None, out: Path, *, quick: bool = False) -> Prepared:
    """Write train.jsonl, dev.jsonl and test.jsonl of a corpus.

    If these files already exist and were made from the same original files, they are kept. If the corpus has no dev
    part, a tenth of the training part becomes the dev part. The tenth is chosen by a hash of the ids. If a corpus of
    pairs has no training part, its dev part becomes the training part first.

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
        data = sample(parts[name], QUICK[name], 0) if quick else parts[name]
        if not data.instances:
            raise DataError(f"{corpus.title}: no row is left for the part '{name}'. Expected rows with split '{name}'.")
        lines = b"".join(msgspec.json.encode(_line(i)) + b"\n" for i in data.instances)
        _write(folder / f"{name}.jsonl", lines)
        digest.update(lines)
        rows[name] = len(data.instances)
    made = Prepared(corpus=corpus.name, folder=str(folder), rows=rows, sha256=digest.hexdigest(), made_from=made_from)
    _write(card, msgspec.json.encode(made))
    return made


def _made_from(corpus: Corpus, root: Path | None, quick: bool) -> str:
    digest = hashlib.sha256(
        f"{PREPARATION} {corpus.longer_than} {corpus.shorter_than} {QUICK if quick else ''}".encode()
    )
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
            f"{path}: {'not found' if isinstance(error, FileNotFoundError) else error.strerror}. {corpus.title} is "
            f"expected below --data-root as the Parquet file {source.path} with the columns "
            f"{', '.join(source.columns)}. docs/reproduction.md describes the file. Put it there, or use --only to "
            f"leave out the rows of this corpus."
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
    if not kept["dev"]:
        kept["train"], kept["dev"] = _split_off_dev(kept["train"])
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


def _split_off_dev(instances: Iterable[Instance]) -> tuple[list[Instance], list[Instance]]:
    """Split instances into (train, dev).

    The dev part is a tenth of the instances. It is chosen by a hash of the ids, so it does not depend on their order.
    """
    ordered = sorted(instances, key=lambda i: hashlib.sha256(f"dev\x1f{i.id}".encode()).digest())
    size = max(1, round(DEV_SHARE * len(ordered)))
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
