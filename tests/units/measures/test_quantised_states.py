"""Quantised states: occurrences of words, clusters, repeated texts, and independence of the batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score
from torch import Tensor

from attnaudit.checks import InformationRetained
from attnaudit.measures.quantised_states import choose_words, clusters_for, quantised
from tests.small_models import WORDS, adapter
from tests.units.measures.measured_texts import measured

MANY = [" ".join(np.random.default_rng(i).choice(WORDS[1:], 12)) for i in range(60)]


def test_a_context_free_state_retains_its_embedding_and_a_constant_one_nothing() -> None:
    class Same(torch.nn.Module):
        def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
            return torch.cat([embeddings, embeddings[..., :4]], -1)

    class Constant(torch.nn.Module):
        def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
            return torch.ones((*mask.shape, 10))

    keeps = measured(adapter(encoder=Same(), modules=(torch.nn.Linear(1, 1),)), ["retained.frequent"], MANY)
    e, h = keeps.table("retained.frequent.embeddings"), keeps.table("retained.frequent.states")
    assert len(e) == len(h) == 60 * 12
    assert keeps.facts["retained.frequent.sizes"] == "720 occurrences of 15 words in 15 clusters"
    assert mutual_info_score(e, h) > 0.8 * mutual_info_score(e, e)
    lost = measured(adapter(encoder=Constant(), modules=(torch.nn.Linear(1, 1),)), ["retained.frequent"], MANY)
    assert mutual_info_score(lost.table("retained.frequent.embeddings"), lost.table("retained.frequent.states")) < 1e-9


@pytest.mark.parametrize("words", ["frequent", "sampled"])
def test_occurrences_belong_to_their_instances_for_any_batch_size(words: str) -> None:
    whole = measured(adapter(), [f"retained.{words}"], MANY)
    small = measured(adapter(), [f"retained.{words}"], MANY, batch_tokens=30)
    np.testing.assert_array_equal(whole.table(f"retained.{words}.instances"), np.repeat(np.arange(60), 12))
    for side in ("embeddings", "instances"):
        np.testing.assert_array_equal(whole.table(f"retained.{words}.{side}"), small.table(f"retained.{words}.{side}"))
    # One word has one embedding, so one cluster.
    by_word: dict[str, set[int]] = {}
    for token, cluster in zip(" ".join(MANY).split(), whole.table(f"retained.{words}.embeddings"), strict=True):
        by_word.setdefault(token, set()).add(int(cluster))
    assert {len(clusters) for clusters in by_word.values()} == {1}


@pytest.mark.parametrize("most", [50_000, 500])
def test_occurrences_of_a_repeated_text_count_once(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("attnaudit.measures.quantised_states.MOST_OCCURRENCES", most)
    repeated = measured(adapter(), ["retained.frequent"], [text for text in MANY for _ in range(3)])
    first = repeated.table("retained.frequent.first").astype(int)
    instances = repeated.table("retained.frequent.instances").astype(int)
    counted = np.unique(first)
    assert (instances[first] // 3 == instances // 3).all()
    assert (first[counted] == counted).all()
    for side in ("embeddings", "states"):
        clusters = repeated.table(f"retained.frequent.{side}")
        np.testing.assert_array_equal(clusters, clusters[first])
    assert repeated.facts["retained.frequent.sizes"].startswith(f"{len(counted)} occurrences of 15 words")
    if most == 50_000:
        once = measured(adapter(), ["retained.frequent"], MANY)
        assert once.facts == repeated.facts
        np.testing.assert_array_equal(once.table("retained.frequent.first"), np.arange(720))
        for side in ("embeddings", "states"):
            clusters = repeated.table(f"retained.frequent.{side}")
            np.testing.assert_array_equal(once.table(f"retained.frequent.{side}"), clusters[counted])
    else:
        assert len(first) == 500 > len(counted) > 350


@pytest.mark.parametrize("copies", [2, 8])
def test_repeated_texts_do_not_change_the_information_retained(copies: int) -> None:
    check = InformationRetained(at_least=0.5)
    once = check.judge(measured(adapter(), ["retained.frequent"], MANY))
    again = check.judge(measured(adapter(), ["retained.frequent"], [text for text in MANY for _ in range(copies)]))
    assert (again.value, again.verdict, again.n_defined) == (once.value, once.verdict, 60 * copies)
    assert once.interval is not None
    assert again.interval is not None
    assert (again.interval.low, again.interval.high) == (once.interval.low, once.interval.high)


def test_too_few_occurrences_give_empty_tables() -> None:
    measurements = measured(adapter(), ["retained.frequent"])
    assert (
        len(measurements.table("retained.frequent.embeddings"))
        == len(measurements.table("retained.frequent.instances"))
        == 0
    )


def test_too_many_occurrences_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnaudit.measures.quantised_states.MOST_OCCURRENCES", 300)
    measurements = measured(adapter(), ["retained.frequent"], MANY)
    instances = measurements.table("retained.frequent.instances")
    assert len(instances) == 300
    assert len(np.unique(instances)) > 50


def test_words_are_the_most_frequent_or_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnaudit.measures.quantised_states.MOST_WORDS", 2)
    ids = np.array([5] * 9 + [7] * 4 + [3] * 4 + [8])
    assert choose_words(ids, "frequent", seed=0).tolist() == [5, 3]
    drawn = Counter(int(word) for seed in range(300) for word in choose_words(ids, "sampled", seed=seed))
    assert drawn[5] > drawn[7] > drawn[8] > 0


def test_the_number_of_clusters_equals_the_papers_at_its_size() -> None:
    assert clusters_for(1_000_000, 1000) == 1000
    assert clusters_for(6_000, 1000) == 77
    assert clusters_for(10_000, 20) == 20


def test_there_are_no_more_clusters_than_distinct_points() -> None:
    points = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    labels = quantised(points, 10, seed=0)
    assert mutual_info_score(labels, np.repeat([0, 1, 2], 50)) == pytest.approx(np.log(3))
