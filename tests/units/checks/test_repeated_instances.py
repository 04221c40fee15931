"""Repeated instances add no evidence, so they do not count towards the number that a verdict needs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit import checks
from tests.units.checks.synthetic_measurements import measured


def repeated(*, contents, copies, sources=None, queries=False):
    """Return measurements in which each of the different texts occurs several times."""
    m = measured(n=contents * copies)
    of = [row % contents for row in range(len(m))]
    for column in m.scalars.values():
        column[:] = column[of]
    m.tokens = [[f"text{one}", "word"] for one in of]
    m.sources = [f"source {row}" if sources == "own" else f"row {of[row]}" for row in range(len(m))]
    m.instances = [
        dataclasses.replace(
            one,
            source=None if sources is None else f"{row}",
            query=f"query {row // contents}" if queries else None,
        )
        for row, one in enumerate(m.instances)
    ]
    return m


CHECK = checks.PermutationFragility(at_least=0.001)


@pytest.mark.parametrize("sources", [None, "own"])
def test_copies_do_not_make_28_texts_enough(sources):
    record = CHECK.judge(repeated(contents=28, copies=2, sources=sources))
    assert (record.verdict, record.n, record.n_defined, record.n_different) == ("inconclusive", 56, 56, 28)
    assert "56 instances have a value, but only 28 of them are different" in record.reason
    assert (record.planning, record.detectable_change) == (None, None)


@pytest.mark.parametrize("sources", [None, "own"])
def test_30_texts_are_enough(sources):
    record = CHECK.judge(repeated(contents=30, copies=2, sources=sources))
    assert (record.verdict, record.n_different) == ("pass", None)


def test_the_same_text_with_another_query_is_another_instance():
    assert CHECK.judge(repeated(contents=15, copies=2, sources="own", queries=True)).verdict == "pass"
    assert CHECK.judge(repeated(contents=15, copies=2, sources="own")).verdict == "inconclusive"


def test_only_instances_with_a_value_count():
    m = repeated(contents=30, copies=3)
    m.scalars["permutation.tvd"] = np.where(np.arange(90) % 30 == 0, np.nan, m.scalars["permutation.tvd"])
    assert CHECK.judge(m).n_different == 29


@given(contents=st.integers(1, 40), copies=st.integers(1, 4), most=st.integers(1, 50), own=st.booleans())
def test_counting_ends_at_the_given_number(contents, copies, most, own):
    m = repeated(contents=contents, copies=copies, sources="own" if own else None)
    assert m.different(np.ones(len(m), dtype=bool), most) == min(contents, most)


def test_the_same_text_with_another_target_is_another_instance():
    m = repeated(contents=10, copies=6)
    m.instances = [dataclasses.replace(one, position=row // 10) for row, one in enumerate(m.instances)]
    assert CHECK.judge(m).n_different is None
