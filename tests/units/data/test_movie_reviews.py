"""The packaged data set, and the script that derives it."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import sys
import tarfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from attnaudit.data import load, movie_reviews
from attnaudit.errors import DataError

REPOSITORY = Path(__file__).resolve().parents[3]
DATA_ROOT = Path(os.environ.get("ATTNAUDIT_DATA_ROOT", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_movie_reviews", REPOSITORY / "tools" / "make_movie_reviews.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("part", "negative", "positive"), [("train", 3507, 3503), ("dev", 521, 513), ("test", 1047, 979)]
)
def test_counts(part: movie_reviews.Split, negative: int, positive: int) -> None:
    dataset = movie_reviews.split(part)
    assert Counter(one.label for one in dataset.instances) == {"negative": negative, "positive": positive}
    assert dataset.rows == negative + positive
    assert dataset.classes == ("negative", "positive")


def test_no_text_and_no_id_is_in_two_parts() -> None:
    instances = [
        one
        for part in (movie_reviews.train, movie_reviews.dev, movie_reviews.movie_reviews)
        for one in part().instances
    ]
    assert len({one.id for one in instances}) == len(instances) == 10_070
    assert len({one.text for one in instances}) == len(instances)


def test_registered_name_is_the_test_part() -> None:
    dataset = load("movie-reviews")
    assert dataset.name == "movie-reviews"
    assert dataset.instances == movie_reviews.split("test").instances
    assert dataset.sha256() == movie_reviews.split("test").sha256()


def test_split_follows_the_hash_of_the_id() -> None:
    for part, remainders in (("train", range(7)), ("dev", (7,)), ("test", (8, 9))):
        for one in movie_reviews.split(part).instances:
            digest = hashlib.sha256(("movie" + one.id.removeprefix("movie-")).encode()).digest()
            assert int.from_bytes(digest, "big") % 10 in remainders


def test_unknown_part() -> None:
    with pytest.raises(DataError, match=r"no part 'tests'\. Did you mean 'test'"):
        movie_reviews.split("tests")  # type: ignore[arg-type]


def test_the_licence_is_packaged_with_the_data() -> None:
    notice = (Path(movie_reviews.__file__).parent / "LICENSE-vaderSentiment.txt").read_text(encoding="utf-8")
    assert "The MIT License" in notice
    assert "Copyright (c) 2016 C.J. Hutto" in notice


def test_the_packaged_rows_have_the_hash_that_the_script_prints() -> None:
    compressed = (Path(movie_reviews.__file__).parent / "sentences.csv.gz").read_bytes()
    assert len(compressed) < 600_000
    assert (
        hashlib.sha256(gzip.decompress(compressed)).hexdigest()
        == "cef2f0b2dafe9cdd4748d771f0622c4f76bec42c9a335bf936cf35526c47a7bd"
    )


def test_the_rows_agree_with_another_copy_of_the_ratings() -> None:
    path = DATA_ROOT / "vader" / "vader_groundtruth.parquet"
    if not path.is_file():
        pytest.skip("needs vader/vader_groundtruth.parquet under ATTNAUDIT_DATA_ROOT")
    table = [row for row in pq.read_table(path).to_pylist() if row["source"] == "movie" and abs(row["mean"]) >= 0.5]
    texts = {row["text"]: f"movie-{row['id']}" for row in reversed(table)}  # the first of several equal texts wins
    expected = {
        f"movie-{row['id']}": (row["text"], "positive" if row["mean"] > 0 else "negative")
        for row in table
        if texts[row["text"]] == f"movie-{row['id']}"
    }
    parts = (movie_reviews.train(), movie_reviews.dev(), movie_reviews.movie_reviews())
    assert {one.id: (one.text, one.label) for part in parts for one in part.instances} == expected


RATINGS = "1\t2.25\tFine, “really”.\r\n2\t-0.4\tNeither.\r\n3\t-0.5\tAwful.\r\n4\t-3\tFine, “really”.\r\n5\t0.5\tGood."


def pack(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def sdist(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source package with the layout of the real one and five rows."""
    inner = pack({script.RATINGS: RATINGS.encode()})
    path = tmp_path / "vaderSentiment.tar.gz"
    path.write_bytes(pack({script.NOTICE: b"The MIT License\r\n", script.INNER_ARCHIVE: inner}))
    monkeypatch.setattr(script.read_sdist, "__kwdefaults__", {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    return path


def test_script_keeps_clear_ratings_and_the_first_of_equal_texts(script: ModuleType) -> None:
    sentences = [(one.id, one.label, one.text) for one in script.derive(RATINGS)]
    assert sentences == [("1", "positive", "Fine, “really”."), ("3", "negative", "Awful."), ("5", "positive", "Good.")]


def test_script_is_reproducible(script: ModuleType, sdist: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert script.main(["--sdist", str(sdist), "--out", str(tmp_path / name)]) == 0
    first, second = ((tmp_path / name / "sentences.csv.gz").read_bytes() for name in ("a", "b"))
    assert first == second
    assert (tmp_path / "a" / "LICENSE-vaderSentiment.txt").read_bytes() == b"The MIT License\n"


def test_script_checks_the_packaged_rows(script: ModuleType, sdist: Path, tmp_path: Path) -> None:
    arguments = ["--sdist", str(sdist), "--out", str(tmp_path / "a")]
    assert script.main([*arguments, "--check"]) == 1
    script.main(arguments)
    assert script.main([*arguments, "--check"]) == 0


def test_script_refuses_another_source_package(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "other.tar.gz"
    path.write_bytes(b"something else")
    with pytest.raises(SystemExit, match=f"expected {script.SDIST_SHA256}"):
        script.read_sdist(path)
