"""Word vectors: the files that can be read, the embedding that starts from them, and the errors."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from attnaudit.errors import AuditError, DataError, ModelError
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import train
from attnaudit.models.vocabulary import PAD, RESERVED, Vocabulary
from attnaudit.models.word_vectors import Vectors, start_from
from attnaudit.retraining import Retraining
from tests.units.models.test_train_command import files, run  # noqa: F401
from tests.units.models.test_training import TINY, job

GLOVE = "the 1 2 3\n. . . 7 7 7\n. 4 5 6\nfilm -1e-1 0.5 2.25\nthe 9 9 9\n"


def file(folder: Path, text: str | bytes, name: str = "made.3d.txt") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("made.3d.txt", GLOVE.encode()),
        ("made.3d.vec", b"5 3\n" + GLOVE.encode()),
        ("made.3d.txt.gz", gzip.compress(GLOVE.encode(), mtime=0)),
        ("made.3d.vec.gz", gzip.compress(b"5 3\n" + GLOVE.encode(), mtime=0)),
        ("made.3d", GLOVE.replace(" ", "\t").encode()),
        ("made.3d.txt", GLOVE.replace("\n", " \r\n").encode() + b"\xff\xfe 1 2 3\n"),
    ],
    ids=["glove", "fasttext", "glove packed", "fasttext packed", "tabs", "crlf"],
)
def test_the_formats_of_glove_and_fasttext_are_read(tmp_path: Path, name: str, data: bytes) -> None:
    vectors = Vectors.from_file(file(tmp_path, data, name))
    assert (vectors.name, vectors.width) == ("made.3d", 3)
    vector_of = vectors.read(["the", ".", "film", "absent", "5"])
    assert {word: row.tolist() for word, row in vector_of.items()} == {
        "the": [1.0, 2.0, 3.0],
        ".": [4.0, 5.0, 6.0],
        "film": [np.float32(-0.1), 0.5, 2.25],
    }


def test_known_words_start_from_their_vectors_and_others_have_their_scale(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    words = [f"w{i}" for i in range(200)]
    rows = draw.normal(0, 3, (100, 16))
    lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words[:100], rows, strict=True))
    vectors = Vectors.from_file(file(tmp_path, "".join(lines)))
    model = PooledClassifier(TINY, vocabulary_size=len(RESERVED) + 200, classes=2)
    assert start_from(vectors, model, Vocabulary([*RESERVED, *words])) == 100
    weight = model.embedding.weight.detach()
    np.testing.assert_array_equal(weight[len(RESERVED) : len(RESERVED) + 100], rows.astype(np.float32))
    assert weight[-100:].std().item() == pytest.approx(3, rel=0.1)
    assert weight[PAD].abs().max() == 0


def test_a_model_depends_on_the_vectors_and_not_on_the_path_of_their_file(tmp_path: Path) -> None:
    rows = [
        f"{name}{i} {' '.join(['1' if name == 'good' else '-1'] * 16)}\n" for name in ("good", "bad") for i in range(3)
    ]
    first_file = Vectors.from_file(file(tmp_path, "".join(rows)))
    (tmp_path / "elsewhere").mkdir()
    second_file = Vectors.from_file(file(tmp_path / "elsewhere", "".join(rows)))
    models = [train(job(epochs=1, vectors=vectors)) for vectors in (first_file, second_file, None)]
    first, second, random = (trained.model.embedding.weight for trained in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, random)
    assert [trained.words_with_vectors for trained in models] == [6, 6, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"made\.3d\.txt: no word vectors found; expected a word and its numbers"),
        ("text,label\n", "no word vectors"),
        ("a fine film\n", r"made\.3d\.txt:1: expected a word and its numbers.*\.bin"),
        (b"2 3\nthe \x00\x81\x02\x9a \x7f\n", r":2: expected .*Convert a file in word2vec\'s \.bin format"),
        ("the 1 nan 3\n", ":1: a number is NaN or infinite"),
    ],
)
def test_a_file_without_word_vectors_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Vectors.from_file(file(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the 1 2 3\nfilm 1 2\n", r":2: the line has 2 numbers for 'film'; expected 3"),
        ("the 1 2 3\nfilm 1 2 inf\n", ":2: a number is NaN or infinite"),
        ("the 1 2 3\nfilm 1 2 x\n", ":2: expected a word and its numbers"),
    ],
)
def test_an_unreadable_line_is_refused_if_its_word_is_needed(tmp_path: Path, text: str, message: str) -> None:
    vectors = Vectors.from_file(file(tmp_path, text))
    assert set(vectors.read(["the"])) == {"the"}
    with pytest.raises(DataError, match=message):
        vectors.read(["the", "film"])


def test_a_missing_truncated_or_changed_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: the word vectors cannot be read"):
        Vectors.from_file(tmp_path / "none.txt")
    with pytest.raises(DataError, match="this is a folder"):
        Vectors.from_file(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        Vectors.from_file(file(tmp_path, gzip.compress(GLOVE.encode())[:-9], "cut.gz")).read(["none"])
    packed = gzip.compress(GLOVE.encode())
    with pytest.raises(DataError, match=r"damaged\.gz: the word vectors cannot be read"):
        Vectors.from_file(file(tmp_path, packed[:12] + b"\xff\xff\xff" + packed[15:], "damaged.gz")).read(["none"])
    path = file(tmp_path, GLOVE)
    vectors = Vectors.from_file(path)
    path.write_text(GLOVE + "more 1 2 3\n", encoding="utf-8")
    with pytest.raises(DataError, match="no longer the file"):
        vectors.read(["the"])


def test_vectors_of_another_size_or_language_are_refused(tmp_path: Path) -> None:
    vectors = Vectors.from_file(file(tmp_path, GLOVE))
    with pytest.raises(ModelError, match=r"have 3 numbers, but the embedding size is 16\. Use the embedding size 3"):
        train(job(vectors=vectors))
    narrow = Architecture(embedding_size=3, hidden_size=4, attention_size=4)
    with pytest.raises(DataError, match="contains none of the 26 words of the training texts"):
        train(job(architecture=narrow, vectors=vectors))


def test_the_train_command_and_retraining_start_from_word_vectors(
    files: tuple[Path, Path, Path],  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = file(tmp_path, "fine 1 2 3\nawful -1 -2 -3\nnumber 0 0 1\n")
    words = ["--data", files[0], "--dev", files[1], "--encoder", "average", "--epochs", 1, "--min-count", 1]
    sizes = ["--hidden-size", 4, "--attention-size", 4]
    out = tmp_path / "model"
    run(*words, *sizes, "--vectors", path, "--out", out)
    assert f"known words have a vector in {path}" in capsys.readouterr().out
    training = json.loads((out / "attnaudit.json").read_text(encoding="utf-8"))["training"]
    assert "--embedding-size 3 " in training["command"]
    assert f"--vectors {path}" in training["command"]
    model = checkpoint_folder.load(out)
    copy = model.retrain(Retraining(attention="learned"))
    assert torch.equal(copy.model.embedding.weight, model.model.embedding.weight)
    path.unlink()
    with pytest.raises(AuditError, match=r"made\.3d\.txt: the word vectors cannot be read"):
        checkpoint_folder.load(out).retrain(Retraining(attention="uniform"))
    with pytest.raises(AuditError, match="--vectors: this is allowed only for reference models"):
        run("--data", files[0], "--dev", files[1], "--base", "x", "--vectors", path, "--out", tmp_path / "b")


def test_a_pipe_is_refused_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "glove.txt")
    with pytest.raises(DataError, match=r"glove\.txt: this is a pipe, expected a regular file with word vectors"):
        Vectors.from_file(tmp_path / "glove.txt")
