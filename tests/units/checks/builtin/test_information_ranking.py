from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import weightedtau

from attnaudit.checks import InformationRanking
from attnaudit.metrics.ranked_information import information_ranking
from tests.units.checks.synthetic_measurements import measured, reordered


def with_ranks(n=200, ranks=3, *, strengths=(3.0, 1.0, 0.0), seed=0, short=0, sources=None):
    """Return measurements whose states of rank r contain the output with strength strengths[r].

    The last `short` instances have too few tokens.
    """
    random = np.random.default_rng(seed)
    m = measured(n, seed=seed, sources=sources)
    kept = np.arange(n - short)
    output = random.normal(size=len(kept))
    states = random.normal(size=(len(kept), ranks, 4)).astype(np.float32)
    for r in range(ranks):
        states[:, r, 0] += 3 * strengths[r] * output
    m.tables["ranked_hidden.states"] = states
    m.tables["ranked_hidden.weights"] = -np.sort(-random.dirichlet(np.ones(ranks), len(kept)), axis=1)
    m.tables["ranked_hidden.instances"] = kept
    m.tables["ranked_hidden.long_enough"] = (np.arange(n) < n - short).astype(np.int64)
    m.tables["ranked_hidden.outputs"] = np.column_stack([-output, output])
    m.facts["ranked_hidden.k_rule"] = "a rule"
    return m


CHECK = InformationRanking(at_least=0.5)


def test_value_and_curve_are_those_of_the_metric():
    m = with_ranks()
    record = CHECK.judge(m)
    tables = (m.tables[f"ranked_hidden.{name}"] for name in ("states", "weights", "outputs"))
    expected = information_ranking(*tables, seed=m.seed)
    assert record.value == pytest.approx(expected.weighted_tau)
    assert record.details["unweighted τ-b"] == pytest.approx(expected.tau_b)
    assert record.details["clusters (N)"] == expected.clusters
    assert record.charts[0].series[0].y == pytest.approx(expected.corrected.tolist())
    assert record.charts[0].series[1].y == pytest.approx(expected.information.tolist())
    assert record.charts[1].series[0].y == pytest.approx(expected.attention.tolist())


def test_the_ranking_of_uncorrected_information_is_reported():
    m = with_ranks()
    tables = (m.tables[f"ranked_hidden.{name}"] for name in ("states", "weights", "outputs"))
    ranking = information_ranking(*tables, seed=m.seed)
    expected = weightedtau(
        ranking.information, ranking.attention, rank=False, weigher=lambda r: ranking.attention[r], additive=False
    )
    assert CHECK.judge(m).details["weighted τ of uncorrected information"] == pytest.approx(expected.statistic)


def test_the_preset_needs_clusters_of_two():
    preset = InformationRanking(preset="wen", severity="report")
    assert preset.id == "information_ranking.wen"
    m = with_ranks(399)
    # Seven copies of each state: no cluster has one member.
    m.tables["ranked_hidden.states"] = np.repeat(m.tables["ranked_hidden.states"][:57], 7, axis=0)
    assert preset.judge(m).details["clusters (N)"] == 50
    failed = preset.judge(with_ranks(60))
    assert (failed.value, failed.details["clusters (N)"]) == (None, None)
    assert "some rank has a cluster with only one member" in failed.note


def test_fifty_clusters_are_used_even_if_some_have_a_single_member():
    preset = InformationRanking(preset="wen_50", severity="report")
    assert preset.id == "information_ranking.wen_50"
    record = preset.judge(with_ranks(399))
    assert record.details["clusters (N)"] == 50
    assert record.value is not None


def test_equal_attention_is_undefined():
    m = with_ranks()
    m.tables["ranked_hidden.weights"] = np.full((200, 3), 1 / 3)
    assert CHECK.judge(m).note == "undefined: all ranks have the same attention"


def test_information_that_falls_with_rank_passes_and_the_reverse_fails():
    assert CHECK.judge(with_ranks(300)).verdict == "pass"
    assert CHECK.judge(with_ranks(300, strengths=(0.0, 1.0, 3.0))).verdict == "fail"


def test_shorter_instances_are_counted():
    record = CHECK.judge(with_ranks(short=12))
    assert (record.n, record.n_defined, record.undefined) == (200, 188, {"fewer than 3 tokens": 12})


def test_one_rank_is_undefined():
    record = CHECK.judge(with_ranks(ranks=1, strengths=(1.0,)))
    assert (record.verdict, record.value, record.blocks) == ("undefined", None, True)
    assert "only one rank" in record.note


def test_too_few_instances_are_undefined():
    assert "fewer than 10 instances" in CHECK.judge(with_ranks(9)).note


def test_references_name_floor_and_label_shuffle():
    record = CHECK.judge(with_ranks())
    floor, shuffle = record.references
    assert (floor.name, shuffle.name) == ("floor", "label shuffle")
    assert -1 <= floor.value < record.value
    assert -1 <= shuffle.value <= 1


def test_record_does_not_depend_on_the_order_of_instances():
    m = with_ranks(80, short=5)
    order = np.random.default_rng(3).permutation(80)
    other = reordered(m, order)
    kept = [row for row, before in enumerate(order) if before < 75]
    for name in ("states", "weights", "outputs"):
        other.tables[f"ranked_hidden.{name}"] = m.tables[f"ranked_hidden.{name}"][order[kept]]
    other.tables["ranked_hidden.instances"] = np.array(kept)
    assert CHECK.judge(m) == CHECK.judge(other)


def test_shared_sources_are_subsampled_together():
    record = CHECK.judge(with_ranks(sources=3))
    assert record.interval is None
    assert record.verdict == "inconclusive"


def test_a_note_warns_of_few_sources():
    assert "fewer than 100 independent sources" in CHECK.judge(with_ranks(60)).note
    assert CHECK.judge(with_ranks(120)).note == ""
