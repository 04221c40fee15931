"""Jain & Wallace 2019: the remedy that follows from word vectors, on synthetic tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from attnaudit.research.reproduction.paper_report import Reproduction, WordVectors
from attnaudit.research.reproduction.papers.jain_wallace import PAPER
from attnaudit.research.reproduction.remedies_file import Remedy
from tests.units.research.reproduction.synthetic_reports import reproduction, row

VECTORS = WordVectors(name="made.2d", width=2, sha256="")


def report(moved: Mapping[str, Sequence[float]], accuracy: Mapping[str, Sequence[float]]) -> Reproduction:
    return reproduction(
        permutation=[row(name, {"mean": values}) for name, values in moved.items()],
        agreement=[row(name, {"accuracy": values}) for name, values in accuracy.items()],
    )


RANDOM = report(
    {
        "sst/bilstm/additive": (0.0, 0.02),
        "imdb/bilstm/dot": (0.03, 0.05),
        "agnews/bilstm/dot": (0.1,),
        "sst/average/dot": (0.5, 0.5),
    },
    {
        "sst/bilstm/additive": (0.7, 0.8),
        "imdb/bilstm/dot": (0.8, 0.8),
        "agnews/bilstm/dot": (0.9,),
        "sst/average/dot": (0.1, 0.1),
    },
)
STARTED = report(
    {
        "sst/bilstm/additive": (0.2, 0.3, 0.1),
        "imdb/bilstm/dot": (0.1, 0.1),
        "agnews/bilstm/dot": (0.9, 0.9),
        "sst/average/dot": (0, 0),
    },
    {
        "sst/bilstm/additive": (0.9, 0.9, 0.9),
        "imdb/bilstm/dot": (0.8, 0.8),
        "agnews/bilstm/dot": (0.1, 0.1),
        "sst/average/dot": (0, 0),
    },
)


def remedies(one: Reproduction, random: Reproduction | None) -> tuple[Remedy, ...]:
    assert PAPER.remedies is not None
    return tuple(PAPER.remedies(one, random))


def test_word_vectors_are_a_remedy_with_the_medians_of_shared_recurrent_rows_as_the_reason() -> None:
    (found,) = remedies(msgspec.structs.replace(STARTED, vectors=VECTORS), RANDOM)
    assert (found.question, found.option) == ("used", "vectors")
    assert found.words == (
        "start the embedding from word vectors, `attnaudit train --vectors FILE`: permutation_fragility.tvd 0.03 → "
        "0.15, accuracy 0.78 → 0.85 (medians of 2 pairs of models, random embeddings → made.2d, 2 to 3 seeds each; "
        "reproduction of Jain & Wallace 2019)"
    )


def test_pairs_of_models_that_were_trained_differently_are_no_evidence_for_word_vectors() -> None:
    """On 20News, models with random embeddings are trained for more epochs and with word dropout."""
    name = "20news/bilstm/additive"
    random, started = (report({name: tvd}, {name: (0.9, 0.9)}) for tvd in ((0.0, 0.0), (0.9, 0.9)))
    assert remedies(msgspec.structs.replace(started, vectors=VECTORS), random) == ()


@pytest.mark.parametrize(
    ("one", "random"),
    [
        (STARTED, RANDOM),
        (msgspec.structs.replace(STARTED, vectors=VECTORS), None),
        (msgspec.structs.replace(STARTED, vectors=VECTORS), reproduction()),
        (msgspec.structs.replace(RANDOM, vectors=VECTORS), RANDOM),
    ],
    ids=["random itself", "no other report", "nothing shared", "nothing moved"],
)
def test_otherwise_there_is_no_remedy(one: Reproduction, random: Reproduction | None) -> None:
    assert remedies(one, random) == ()
