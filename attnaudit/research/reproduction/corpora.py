"""The corpora of the papers.

CORPORA declares for each corpus its files below --data-root, the rows that are used, and how the corpus differs from
the data of the papers. To add a corpus, add an entry to CORPORA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnaudit.errors import DataError, nearest

#: Increase this number when the preparation of corpora changes. All corpora are then prepared again.
PREPARATION = 1
PARTS = ("train", "dev", "test")
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
        drawn: Whether the test part is drawn at random from the rows of all parts. If False, it is the test part of the
            files.
        revision: Increase this number when the files, columns or rows of this corpus change. Only the rows of tables
            that use this corpus then have to be run again.
        random_epochs: The number of epochs of models with random embeddings. None for the number in their plan, which
            models that start from word vectors always use.
        random_word_dropout: The word dropout of models with random embeddings (see `Settings`). None for the rate in
            their plan.
        deviations: Sentences that describe how the corpus differs from the data of the papers.
        random_deviations: Sentences that describe how models with random embeddings differ on this corpus. They do not
            apply to models that start from word vectors.
    """

    name: str
    title: str
    form: str = "text"
    sources: tuple[Source, ...] = ()
    instance: Callable[[Row], tuple[str, str, str | None] | None] = lambda row: None
    longer_than: int = 0
    shorter_than: int | str | None = None
    drawn: bool = False
    revision: int = 1
    random_epochs: int | None = None
    random_word_dropout: float | None = None
    deviations: tuple[str, ...] = ()
    random_deviations: tuple[str, ...] = ()

    @property
    def rules(self) -> str:
        """The rules by which the parts are prepared, as text. If they change, earlier models are outdated."""
        revised = f" revision {self.revision}" if self.revision > 1 else ""
        return f"{PREPARATION} {self.longer_than} {self.shorter_than}{' drawn' if self.drawn else ''}{revised}"


def _label(names: Mapping[str, str]) -> Callable[[Row], tuple[str, str, None] | None]:
    def instance(row: Row) -> tuple[str, str, None] | None:
        label = names.get(str(row["label"]))
        return None if label is None else (row["text"], label, None)

    return instance


def _body(row: Row) -> tuple[str, str, None]:
    return row["body"], str(row["label"]).rpartition(".")[2], None


def _question(row: Row) -> tuple[str, str, str]:
    return row["story"], row["answer"], row["question"]


def _pair(row: Row) -> tuple[str, str, str] | None:
    known = row["label"] in ("entailment", "neutral", "contradiction")
    return (row["premise"], row["label"], row["hypothesis"]) if known else None


SENTIMENT = {"0": "negative", "1": "positive"}
SMALLER = (
    "bAbI: embeddings 50 wide, 64 hidden units (per direction), learning rate .003, batches of 32, 60 epochs. The "
    "published code of Jain & Wallace has 32 hidden units, learning rate .001, batches of 50 and 100 epochs."
)
DIGITS = (
    "{}: the published code of Jain & Wallace replaces every word that contains a digit with the same token. Here, "
    "these words are kept."
)
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
            deviations=(
                "IMDb: the training and test halves of the corpus; dev is a tenth of the training half. The test part "
                "of Jain & Wallace has 4,356 texts.",
                DIGITS.format("IMDb"),
            ),
        ),
        Corpus(
            name="agnews",
            title="AG News",
            sources=(Source(path="agnews/agnews_pas10k_lowercased.parquet", columns=("text", "label", "split")),),
            instance=_label({"1": "World", "3": "Business"}),
            revision=2,
            deviations=(
                "AG News: trained on a subset, the World and Business rows among 10,000 training rows. Tested on the "
                "World and Business rows of the test set, without one row that is missing in the file.",
                "AG News: both parts are in lower case, without digits and without punctuation except a few marks such "
                "as hyphens. The published code of Jain & Wallace keeps punctuation, and replaces every word that "
                "contains a digit with the same token.",
                "AG News: models read titles and descriptions. In the published code of Jain & Wallace, they read the "
                "descriptions alone.",
            ),
        ),
        Corpus(
            name="20news",
            title="20News",
            sources=(Source(path="20news/baseball_hockey_bydate.parquet", columns=("body", "label", "split")),),
            instance=_body,
            longer_than=6,
            shorter_than=500,
            drawn=True,
            random_epochs=16,
            random_word_dropout=0.2,
            deviations=(
                "20News: without headers, footers and quotes, as in the published code. A fifth of each class is the "
                "test part, drawn at random from all texts as in the published code, but with another seed.",
                DIGITS.format("20News"),
            ),
            random_deviations=(
                "20News: models are trained for 16 epochs, and every word is unknown with a probability of .2 in "
                "training; in the published code, they are trained for 8 epochs without word dropout. Both numbers "
                "were chosen on held-out texts of the training and dev parts (see The corpora in "
                "docs/reproduction.md).",
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
            deviations=(
                "SNLI: trained on nine tenths of the development set, not on the larger training set; tested on "
                "the test set. Trained for 8 epochs in batches of 32; the published code of Jain & Wallace trains for "
                "25 epochs in batches of 128.",
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
                    f"bAbI-{task}: regenerated with the task generator; these are not the published files. Scores far "
                    "above the paper's may come from easier stories, or from models that were trained in another way.",
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


def corpus_title(name: str) -> str:
    """Return the title of a corpus, such as "AG News". For an unknown name, return the name itself."""
    return CORPORA[name].title if name in CORPORA else name


def corpus(name: str) -> Corpus:
    """Return the corpus with the given name.

    Raises:
        DataError: No corpus has this name. The message gives the nearest known name.
    """
    if name not in CORPORA:
        raise DataError(f"Unknown corpus '{name}'. {nearest(name, CORPORA)}")
    return CORPORA[name]
