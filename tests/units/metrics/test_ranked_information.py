from __future__ import annotations

import dataclasses
import threading
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import mutual_info_score

from attnaudit import processes
from attnaudit.metrics import choose_ranks, clusters, information_ranking
from attnaudit.metrics.clusters import quantise, quantise_outputs
from attnaudit.metrics.ranked_information import default_clusters, information_by_rank, wen_clusters

Array = NDArray[np.float64]


def planted(noise: tuple[float, ...], *, n: int = 400, seed: int = 0) -> tuple[Array, Array]:
    """Return hidden states (n, k, 4) that are informative about a logit (n, 1), the less the more noise they have."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(size=(n, 1)) * 2
    states = np.stack([logit * np.ones(4) + level * rng.normal(size=(n, 4)) for level in noise], 1)
    return states, logit


def weights_of(shares: tuple[float, ...], n: int = 400) -> Array:
    return np.tile(np.array(shares), (n, 1))


def test_attention_that_follows_information_ranks_it_and_the_reverse_does_not() -> None:
    shares = (0.4, 0.3, 0.2, 0.1)
    states, logit = planted((0.1, 1.0, 4.0, 30.0))
    following = information_ranking(states, weights_of(shares), logit, seed=0)
    reverse = information_ranking(states[:, ::-1], weights_of(shares), logit, seed=0)
    assert (following.weighted_tau, following.tau_b) == (1.0, pytest.approx(1.0))
    assert (reverse.weighted_tau, reverse.tau_b) == (pytest.approx(-1.0), pytest.approx(-1.0))


def test_uninformative_states_have_a_corrected_information_near_zero() -> None:
    rng = np.random.default_rng(1)
    states, logit = rng.normal(size=(400, 3, 4)), rng.normal(size=(400, 1))
    result = information_ranking(states, weights_of((0.5, 0.3, 0.2)), logit, seed=0)
    assert (result.information > 0.05).all()
    assert (np.abs(result.corrected) < 0.06).all()


def test_the_number_of_threads_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    states, logit = planted((0.5, 2.0, 1.0, 0.2), n=1_000)
    weights = -np.sort(-np.random.default_rng(4).dirichlet(np.ones(4), 1_000), 1)
    alone = information_ranking(states, weights, logit, seed=3)
    monkeypatch.setattr(processes, "_threads", 3)
    together = information_ranking(states, weights, logit, seed=3)
    np.testing.assert_array_equal(together.labels, alone.labels)
    np.testing.assert_array_equal(together.corrected, alone.corrected)


@pytest.mark.parametrize(("numbers", "most"), [(2_000, 3), (1_000, 2), (500, 1), (100, 1)])
def test_the_copies_of_the_threads_are_limited(monkeypatch: pytest.MonkeyPatch, numbers: int, most: int) -> None:
    monkeypatch.setattr(processes, "_threads", 3)
    monkeypatch.setattr(clusters, "COPIED_AT_ONCE", numbers)
    together = threading.Barrier(most, timeout=30)
    names = set()

    def points(rank: int) -> Array:
        names.add(threading.current_thread().name)
        together.wait()  # passes only if that many threads run at the same time
        return np.arange(500.0).reshape(100, 5) * rank

    assert clusters.quantise_ranks(points, (100, 6, 5), 3, seed=0).shape == (6, 100)
    assert len(names) == most


def test_each_part_equals_an_independent_computation() -> None:
    states, logit = planted((0.5, 2.0, 1.0))
    rng = np.random.default_rng(4)
    weights = -np.sort(-rng.dirichlet(np.ones(3), 400), 1)
    result = information_ranking(states, weights, logit, seed=3)
    assert result.clusters == 20
    outputs = quantise_outputs(logit, seed=3)
    clusters = [quantise(states[:, r], 20, seed=3) for r in range(3)]
    np.testing.assert_allclose(result.information, [mutual_info_score(c, outputs) for c in clusters])
    np.testing.assert_allclose(result.corrected, result.information - result.null)
    mean = weights.mean(0)
    np.testing.assert_allclose(result.attention, mean)
    expected = stats.weightedtau(result.corrected, mean, rank=False, weigher=lambda r: mean[r], additive=False)
    assert result.weighted_tau == pytest.approx(expected.statistic)
    assert result.tau_b == pytest.approx(stats.kendalltau(result.corrected, mean).statistic)


def test_subsamples_use_the_clusters_of_the_whole() -> None:
    states, logit = planted((0.5, 2.0, 1.0))
    result = information_ranking(states, weights_of((0.5, 0.3, 0.2)), logit, seed=3)
    part = np.random.default_rng(0).permutation(400)[:200]
    shuffled = np.stack([np.random.default_rng(s).permutation(result.outputs[part]) for s in range(30)])
    information, null = information_by_rank(result.labels[:, part], result.outputs[part], shuffled)
    for r in range(3):
        assert information[r] == pytest.approx(mutual_info_score(result.labels[r, part], result.outputs[part]))
        each = [mutual_info_score(result.labels[r, part], row) for row in shuffled]
        assert null[r] == pytest.approx(np.mean(each))


def test_one_rank_or_one_output_is_undefined() -> None:
    states, logit = planted((0.1,))
    one_rank = information_ranking(states, weights_of((1.0,)), logit, seed=0)
    assert np.isnan([one_rank.weighted_tau, one_rank.tau_b]).all()
    states, _ = planted((0.1, 1.0))
    one_output = information_ranking(states, weights_of((0.6, 0.4)), np.zeros((400, 1)), seed=0)
    assert np.isnan(one_output.weighted_tau)


def test_the_wen_preset_is_undefined_if_its_rule_fails() -> None:
    states, logit = planted((0.1, 1.0), n=150)
    result = information_ranking(states, weights_of((0.6, 0.4), 150), logit, seed=0, preset="wen")
    assert result.clusters is None
    assert all(
        np.isnan(value).all()
        for name, value in dataclasses.asdict(result).items()
        if name in {"information", "null", "corrected", "weighted_tau", "tau_b"}
    )


def test_the_wen_preset_takes_the_smallest_number_without_a_single_member_cluster() -> None:
    states = np.repeat(np.arange(60.0) ** 2, 4).reshape(240, 1, 1)
    assert wen_clusters(states, seed=0) == 50
    lonely = np.concatenate([np.repeat(np.arange(5.0), 3), [1000.0]]).reshape(16, 1, 1)
    assert wen_clusters(lonely, seed=0, candidates=range(3, 7)) is None


@pytest.mark.parametrize(("instances", "expected"), [(1, 5), (119, 5), (120, 6), (3999, 199), (4000, 200), (9999, 200)])
def test_the_number_of_clusters_follows_the_number_of_instances(instances: int, expected: int) -> None:
    assert default_clusters(instances) == expected


def test_clusters_with_one_member_join_the_nearest_one() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(0, 0.1, (20, 2)), rng.normal(9, 0.1, (20, 2)), [[13.0, 13.0]]])
    labels = quantise(points, 3, seed=0)
    assert sorted(set(labels.tolist())) == [0, 1]
    assert labels[-1] == labels[25] != labels[0]
    assert np.bincount(quantise(rng.normal(size=(100, 3)), 40, seed=0)).min() >= 2


def test_equal_points_are_one_cluster() -> None:
    assert quantise(np.ones((6, 2)), 5, seed=0).tolist() == [0] * 6


def test_there_are_no_more_clusters_than_distinct_points() -> None:
    points = np.array([[0.0, 1.0], [-0.0, 1.0], [5.0, 1.0], [5.0, 2.0], [0.0, 1.0], [5.0, 1.0], [5.0, 2.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns if it finds fewer clusters than it was asked for
        labels = quantise(points, 5, seed=0)
    assert labels[0] == labels[1] == labels[4] != labels[2] == labels[5] != labels[3] == labels[6]


def test_two_logits_are_clustered_by_their_difference_and_more_by_class() -> None:
    rng = np.random.default_rng(0)
    logit = rng.normal(size=(50, 1))
    shift = rng.normal(size=(50, 1))
    both = np.concatenate([shift, shift + logit], 1)
    assert len(set(quantise_outputs(logit, seed=0))) == 5
    np.testing.assert_array_equal(quantise_outputs(both, seed=0), quantise_outputs(both[:, 1:] - both[:, :1], seed=0))
    three = rng.normal(size=(50, 3))
    np.testing.assert_array_equal(quantise_outputs(three, seed=0), three.argmax(1))


def test_k_is_the_lesser_of_the_length_rule_and_the_weight_rule() -> None:
    flat = np.full((10, 8), 0.1)
    assert choose_ranks([6] * 10, flat) == (6, "length: the 10th percentile of the number of real tokens")
    lengths = [2] + [8] * 9
    assert choose_ranks(lengths, flat)[0] == int(np.percentile(lengths, 10))
    sparse = flat.copy()
    sparse[:3, 3:] = 0.0
    k, rule = choose_ranks([6] * 10, sparse)
    assert (k, rule) == (3, "weights: at rank 4, only 70% of the weights exceed 1e-05")
    sparse[0, 3:] = 0.1
    assert choose_ranks([6] * 10, sparse)[0] == 6
    assert choose_ranks([1, 5], np.array([[1.0, 0.0], [0.6, 0.4]]))[0] == 1


def test_invalid_arguments_are_refused() -> None:
    states, logit = planted((0.1, 1.0))
    weights = weights_of((0.6, 0.4))
    with pytest.raises(ValueError, match=r"weights: expected shape \(400, 2\) but got \(400, 3\)"):
        information_ranking(states, weights_of((0.5, 0.3, 0.2)), logit, seed=0)
    with pytest.raises(ValueError, match="logits: expected 400 rows but got 399"):
        information_ranking(states, weights, logit[1:], seed=0)
    with pytest.raises(ValueError, match="preset: expected None or 'wen' but got 'default'"):
        information_ranking(states, weights, logit, seed=0, preset="default")
    with pytest.raises(ValueError, match="states: expected shape"):
        information_ranking(states[0], weights, logit, seed=0)
    with pytest.raises(ValueError, match="lengths: expected shape"):
        choose_ranks([], np.empty((0, 1)))
    with pytest.raises(ValueError, match=r"weights: expected shape \(2, K\)"):
        choose_ranks([1, 2], np.ones((3, 1)))
    with pytest.raises(ValueError, match="logits: expected shape"):
        quantise_outputs(np.zeros(3), seed=0)
