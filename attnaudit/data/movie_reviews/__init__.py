"""The packaged data set: 10,070 sentences of movie reviews with human ratings, in three fixed parts.

tools/make_movie_reviews.py creates it from vaderSentiment 3.3.2 (Hutto & Gilbert 2014, "VADER", ICWSM; MIT licence, see
LICENSE-vaderSentiment.txt). The label of a sentence is the sign of its mean rating. Sentences with |mean| < 0.5 are
left out. Many of the sentences are also in the Stanford Sentiment Treebank, so never train on one of the two data sets
and test on the other.
"""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache
from importlib.resources import files
from typing import Literal

from attnaudit.errors import DataError, nearest
from attnaudit.instances import Dataset, Instance

Split = Literal["train", "dev", "test"]
#: Name of a part -> name of the registered data set.
NAMES: dict[str, str] = {"train": "movie-reviews-train", "dev": "movie-reviews-dev", "test": "movie-reviews"}


def split(name: Split) -> Dataset:
    """Return one part of the data set.

    Args:
        name: "train" (7,010 sentences), "dev" (1,034) or "test" (2,026).

    Raises:
        DataError: There is no part with this name.
    """
    if name not in NAMES:
        raise DataError(f"movie-reviews has no part '{name}'. {nearest(name, NAMES)}")
    instances = tuple(
        Instance(id=f"movie-{row['id']}", text=row["text"], label=row["label"], where=f"{NAMES[name]}:{row['id']}")
        for row in _rows()
        if row["split"] == name
    )
    return Dataset(
        name=NAMES[name],
        source="vaderSentiment 3.3.2, movieReviewSnippets_GroundTruth.txt (MIT)",
        description=(
            "Sentences of movie reviews with human ratings (Hutto & Gilbert 2014). The label is the sign of the mean "
            f"rating; |mean| is at least 0.5. Part: {name}."
        ),
        instances=instances,
        classes=("negative", "positive"),
        rows=len(instances),
    )


def movie_reviews() -> Dataset:
    """Return the test part of the data set. Audits use this part."""
    return split("test")


def dev() -> Dataset:
    """Return the development part of the data set. Models are selected on this part."""
    return split("dev")


def train() -> Dataset:
    """Return the training part of the data set."""
    return split("train")


@cache
def _rows() -> tuple[dict[str, str], ...]:
    compressed = (files(__name__) / "sentences.csv.gz").read_bytes()
    return tuple(csv.DictReader(io.StringIO(gzip.decompress(compressed).decode(), newline="")))
