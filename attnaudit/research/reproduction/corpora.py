"""The papers' corpora: which file below --data-root, which of its rows, and how it differs from the paper's.

A new corpus is an entry in CORPORA. Prepared parts are written as JSON Lines, so that `attnaudit train --data FILE`
reads the same.
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
from attnaudit.errors import DataError, nearest
from attnaudit.instances import Dataset, Instance
from attnaudit.models.vocabulary import words
from attnaudit.processes import replace_file
from attnaudit.records import Record

#: Raise it when a corpus is prepared differently: models of the older preparation are then trained anew.
PREPARATION = 1
PARTS = ("train", "dev", "test")
DEV_SHARE = 0.1
#: Most rows of each part in a quick run.
QUICK = {"train": 800, "dev": 200, "test": 60}
EMBEDDED = "movie-reviews"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Parquet file below --data-root and the columns that are read. use: the parts that it holds."""

    path: str
    columns: tuple[str, ...]
    use: tuple[str, ...] = PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """form: what a model of it reads ("text", a "pair" of texts, or a "question" about a text). instance: a row of the
    file -> text, label and query, or None for a row that is not used. longer, shorter: how many tokens a text has, both
    bounds excluded; shorter may be "longest", the longest of the part itself. deviations: from the papers' data."""

    name: str
    title: str
    form: str = "text"
    sources: tuple[Source, ...] = ()
    instance: Callable[[Row], tuple[str, str, str | None] | None] = lambda row: None
    longer: int = 0
    shorter: int | str | None = None
    deviations: tuple[str, ...] = ()


class Prepared(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the parts of a corpus are, how many rows each has, and a hash of all that they hold."""

    corpus: str
    folder: str
    rows: dict[str, int]
    sha256: str
    made_from: str

    def path(self, part: str) -> Path:
        return Path(self.folder) / f"{part}.jsonl"


def _label(names: Mapping[str, str]) -> Callable[[Row], tuple[str, str, None] | None]:
    def instance(row: Row) -> tuple[str, str, None] | None:
        label = names.get(str(row["label"]))
        return None if label is None else (row["text"], label, None)

    return instance


def _body(row: Row) -> tuple[str, str, None]:
    return row["body"], str(row["label"]).rpartition(".")[2], None


def _titled(row: Row) -> tuple[str, str, None] | None:
    """World and Business; the title, where it is a column of its own, belongs to the text."""
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
            longer=5,
            shorter="longest",
        ),
        Corpus(
            name="imdb",
            title="IMDb",
            sources=(Source(path="imdb/aclimdb_50k.parquet", columns=("text", "label", "split")),),
            instance=_label(SENTIMENT),
            longer=6,
            deviations=("IMDb: the corpus's own training and test halves, dev drawn from training.",),
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
                "AG News: trained on a subset (World and Business of 10,000 training rows, lower-cased, digits removed)"
                ", tested on the whole World and Business test set.",
            ),
        ),
        Corpus(
            name="20news",
            title="20News",
            sources=(Source(path="20news/baseball_hockey_bydate.parquet", columns=("body", "label", "split")),),
            instance=_body,
            longer=6,
            shorter=500,
            deviations=(
                "20News: the by-date split without headers, footers and quotes; the paper drew its own split.",
            ),
        ),
        Corpus(
            name="snli",
            title="SNLI",
            form="pair",
            sources=(
                Source(path="snli/snli_dev_test_pairs.parquet", columns=("premise", "hypothesis", "label", "split")),
            ),
            instance=_pair,
            deviations=("SNLI: reduced; trained on nine tenths of the development set, tested on the test set.",),
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
                deviations=(f"bAbI-{task}: regenerated with the task generator, not the published files.", SMALLER),
            )
            for task in (2, 3)
        ),
        Corpus(
            name=EMBEDDED,
            title="movie reviews",
            deviations=("The embedded movie sentences: no paper has numbers for them, so none stands beside ours.",),
        ),
    )
}


def corpus(name: str) -> Corpus:
    """The corpus of that name. Raises DataError with the nearest one."""
    if name not in CORPORA:
        raise DataError(f"Unknown corpus '{name}'. {nearest(name, CORPORA)}")
    return CORPORA[name]


def prepare(one: Corpus, root: Path | None, out: Path, *, quick: bool = False) -> Prepared:
    """Write train.jsonl, dev.jsonl and test.jsonl below out/`name`, unless they are there from the same files.

    Where the corpus has no dev part, a tenth of train is drawn for it by a hash of the ids. quick: a sample of each
    part. Raises DataError that names the file that is missing below `root`, or the column in it.
    """
    folder = out / one.name
    made_from = _made_from(one, root, quick)
    card = folder / "prepared.json"
    try:
        kept = msgspec.json.decode(card.read_bytes(), type=Prepared)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        kept = None
    if kept is not None and kept.made_from == made_from and all((folder / f"{p}.jsonl").is_file() for p in PARTS):
        return replace_folder(kept, folder)
    parts = _embedded() if one.name == EMBEDDED else _from_files(one, root)
    card.unlink(missing_ok=True)  # a run that ends between the files leaves no card that tells of others
    digest = hashlib.sha256()
    rows = {}
    for name in PARTS:
        data = sample(parts[name], QUICK[name], 0) if quick else parts[name]
        if not data.instances:
            raise DataError(f"{one.title}: no row is left for {name}. Expected rows with split '{name}'.")
        lines = b"".join(msgspec.json.encode(_line(i)) + b"\n" for i in data.instances)
        _put(folder / f"{name}.jsonl", lines)
        digest.update(lines)
        rows[name] = len(data.instances)
    made = Prepared(corpus=one.name, folder=str(folder), rows=rows, sha256=digest.hexdigest(), made_from=made_from)
    _put(card, msgspec.json.encode(made))
    return made


def replace_folder(one: Prepared, folder: Path) -> Prepared:
    """The same where the output folder has been moved."""
    return msgspec.structs.replace(one, folder=str(folder))


def _made_from(one: Corpus, root: Path | None, quick: bool) -> str:
    digest = hashlib.sha256(f"{PREPARATION} {one.longer} {one.shorter} {QUICK if quick else ''}".encode())
    for source in one.sources:
        digest.update(_bytes(one, source, root))
    if one.name == EMBEDDED:
        for data in _embedded().values():
            digest.update(data.sha256().encode())
    return digest.hexdigest()


def _bytes(one: Corpus, source: Source, root: Path | None) -> bytes:
    path = (root or Path()) / source.path
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: {'not found' if isinstance(error, FileNotFoundError) else error.strerror}. {one.title} is "
            f"expected below --data-root as the Parquet file {source.path} with the columns "
            f"{', '.join(source.columns)} (docs/reproduction.md says what they hold). Put it there, or leave the rows "
            f"of this corpus out with --only."
        ) from error


def _from_files(one: Corpus, root: Path | None) -> dict[str, Dataset]:
    found: dict[str, list[Instance]] = {part: [] for part in PARTS}
    for source in one.sources:
        path = (root or Path()) / source.path
        for number, row in enumerate(_rows(path, source), start=1):
            part = row["split"]
            try:
                made = one.instance(row) if part in source.use else None
                blank = made is None or not made[0].strip()
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{path}:{number}: the row cannot be read ({error}). Expected text in {', '.join(source.columns)} "
                    "(docs/reproduction.md)."
                ) from error
            if made is None or blank:
                continue
            text, label, query = made
            found[part].append(
                Instance(id=f"{part}-{number}", text=text, label=label, query=query, where=f"{path}:{number}")
            )
    kept = {part: _of_length(one, instances) for part, instances in found.items()}
    if one.form == "pair" and not kept["train"]:
        kept["train"], kept["dev"] = kept["dev"], []
    if not kept["dev"]:
        kept["train"], kept["dev"] = _carved(kept["train"])
    return {
        part: Dataset(name=f"{one.name}-{part}", source=one.name, description="", instances=tuple(instances))
        for part, instances in kept.items()
    }


def _rows(path: Path, source: Source) -> Iterator[Row]:
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{path}: cannot be read as Parquet ({error}). Expected {', '.join(source.columns)}."
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
        raise DataError(f"{path}: holds text that is not UTF-8 ({error}). Write the file again.") from error


def _of_length(one: Corpus, instances: Sequence[Instance]) -> list[Instance]:
    """By tokens between spaces for a corpus that is tokenised so, as the published code counts them."""
    if not instances or (one.longer == 0 and one.shorter is None):
        return list(instances)
    count = _spaced if one.shorter == "longest" else _tokens
    lengths = [count(i.text) for i in instances]
    most = max(lengths) if one.shorter == "longest" else one.shorter if isinstance(one.shorter, int) else None
    return [
        i
        for i, length in zip(instances, lengths, strict=True)
        if one.longer < length and (most is None or length < most)
    ]


def _spaced(text: str) -> int:
    return len(text.split())


def _tokens(text: str) -> int:
    return len(words(text))


def _carved(instances: Iterable[Instance]) -> tuple[list[Instance], list[Instance]]:
    """(train, dev): a tenth, chosen by a hash of the ids so that the file's order does not matter."""
    ordered = sorted(instances, key=lambda i: hashlib.sha256(f"dev\x1f{i.id}".encode()).digest())
    size = max(1, round(DEV_SHARE * len(ordered)))
    return ordered[size:], ordered[:size]


def _embedded() -> dict[str, Dataset]:
    return {part: load(EMBEDDED if part == "test" else f"{EMBEDDED}-{part}") for part in PARTS}


def _line(one: Instance) -> dict[str, str]:
    row = {"id": one.id, "text": one.text, "label": one.label or ""}
    return row if one.query is None else {**row, "query": one.query}


def _put(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}). Give --out a folder that can be.") from error
