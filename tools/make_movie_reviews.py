"""Derive the embedded data set `movie-reviews` from the source package of vaderSentiment 3.3.2.

    python tools/make_movie_reviews.py                  # downloads the source package with pip
    python tools/make_movie_reviews.py --sdist FILE     # uses a copy of it
    python tools/make_movie_reviews.py --check          # writes nothing; fails if the packaged rows differ

The label is the sign of the mean human rating; sentences with |mean| < 0.5 are left out. The part is the sha256 of
'movie' + id, modulo 10 (0-6 train, 7 dev, 8-9 test). Duplicate sentences are removed, so that no test sentence is also
in the training part. Source: Hutto & Gilbert (2014), "VADER", ICWSM; MIT licence, whose notice is written to the same
folder as the data.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VERSION = "3.3.2"
SDIST_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER_ARCHIVE = f"vaderSentiment-{VERSION}/additional_resources/hutto_ICWSM_2014.tar.gz"
RATINGS = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
NOTICE = f"vaderSentiment-{VERSION}/LICENSE.txt"
TARGET = Path(__file__).resolve().parent.parent / "attnaudit" / "data" / "movie_reviews"
SMALLEST_MEAN = 0.5


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the data set.

    Attributes:
        id: The id of the sentence in the source.
        split: "train", "dev" or "test".
        label: "negative" or "positive".
        mean: Mean of the human ratings, from -4 to 4, as written in the source.
        text: The sentence.
    """

    id: str
    split: str
    label: str
    mean: str
    text: str


def split_of(identifier: str) -> str:
    """Return "train", "dev" or "test", from the sha256 of 'movie' + identifier."""
    remainder = int(hashlib.sha256(f"movie{identifier}".encode()).hexdigest(), 16) % 10
    return "train" if remainder < 7 else "dev" if remainder == 7 else "test"


def derive(ratings: str) -> list[Sentence]:
    """Derive the sentences of the data set from the ratings file, in its order.

    Args:
        ratings: The file's text; each line holds id, mean and text, separated by tabs.
    """
    sentences: list[Sentence] = []
    seen: set[str] = set()
    for number, line in enumerate(ratings.replace("\r\n", "\n").rstrip("\n").split("\n"), start=1):
        fields = line.split("\t")
        if len(fields) != 3:
            raise SystemExit(f"{RATINGS}:{number}: expected 3 fields (id, mean and text), found {len(fields)}.")
        identifier, mean, text = (field.strip() for field in fields)
        if abs(float(mean)) < SMALLEST_MEAN or text in seen:
            continue
        seen.add(text)
        label = "positive" if float(mean) > 0 else "negative"
        sentences.append(Sentence(identifier, split_of(identifier), label, mean, text))
    return sentences


def to_csv(sentences: Sequence[Sentence]) -> bytes:
    """Return the sentences as UTF-8 CSV with a header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("id", "split", "label", "mean", "text"))
    writer.writerows((row.id, row.split, row.label, row.mean, row.text) for row in sentences)
    return out.getvalue().encode()


def compress(content: bytes) -> bytes:
    """Compress with gzip, without file name and time, so that the same rows give the same bytes with the same zlib."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=out, mtime=0) as stream:
        stream.write(content)
    return out.getvalue()


def read_sdist(path: Path, *, sha256: str = SDIST_SHA256) -> tuple[str, bytes]:
    """Verify the source package and return its ratings file and its licence notice.

    Args:
        path: The source package (.tar.gz).
        sha256: The hash that it must have.
    """
    archive = path.read_bytes()
    actual = hashlib.sha256(archive).hexdigest()
    if actual != sha256:
        raise SystemExit(
            f"{path}: sha256 is {actual}, expected {sha256}. Give the source package of vaderSentiment {VERSION}."
        )
    with tarfile.open(fileobj=io.BytesIO(archive)) as outer:
        notice = _member(outer, NOTICE)
        with tarfile.open(fileobj=io.BytesIO(_member(outer, INNER_ARCHIVE))) as inner:
            return _member(inner, RATINGS).decode("utf-8"), notice


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    if stream is None:
        raise SystemExit(f"{name} is not a file in the source package.")
    return stream.read()


def download(folder: Path) -> Path:
    """Download the source package into `folder` with pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), f"vaderSentiment=={VERSION}"], check=True)
    return next(folder.glob("vader*.tar.gz"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sdist", type=Path, help="a copy of the source package; by default it is downloaded with pip")
    parser.add_argument("--out", type=Path, default=TARGET, help="folder to write to (default: inside the package)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the packaged rows differ")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ratings, notice = read_sdist(options.sdist or download(Path(folder)))
    sentences = derive(ratings)
    content = to_csv(sentences)
    print(f"rows: {len(sentences)}, sha256 of the CSV: {hashlib.sha256(content).hexdigest()}")
    for split in ("train", "dev", "test"):
        counts = Counter(sentence.label for sentence in sentences if sentence.split == split)
        print(f"{split}: {counts.total()} ({counts['negative']} negative, {counts['positive']} positive)")
    packaged = options.out / "sentences.csv.gz"
    if options.check:
        same = packaged.is_file() and gzip.decompress(packaged.read_bytes()) == content
        print("The packaged rows are the same." if same else f"{packaged} differs. Run this script without --check.")
        return 0 if same else 1
    options.out.mkdir(parents=True, exist_ok=True)
    packaged.write_bytes(compress(content))
    (options.out / "LICENSE-vaderSentiment.txt").write_bytes(notice.replace(b"\r\n", b"\n").rstrip() + b"\n")
    print(f"{packaged}: {packaged.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
