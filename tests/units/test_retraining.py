"""The text form of retrainings, which is part of the names of measures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnaudit.errors import CheckError
from attnaudit.registry import measures
from attnaudit.retraining import ATTENTIONS, DIVERGENCES, ENCODERS, Retraining, parse

names = st.text(min_size=0, max_size=12)


@given(
    st.builds(
        Retraining,
        seed=st.integers(0, 10**6),
        encoder=st.sampled_from(ENCODERS),
        attention=st.sampled_from(ATTENTIONS),
        divergence=st.sampled_from(DIVERGENCES),
        weight=st.floats(0, 100, allow_nan=False),
        frozen=st.booleans(),
        train=names,
        dev=names,
    )
)
def test_parse_reads_back_the_text_form(retraining: Retraining) -> None:
    assert parse(retraining.text) == retraining
    assert "/" not in retraining.text  # a slash would begin a reading


def test_the_text_form_lists_the_settings_that_differ_from_the_defaults() -> None:
    assert Retraining().text == "seed=0"
    named = Retraining(seed=2, attention="uniform", train="a/b,c.csv")
    assert named.text == "seed=2,attention=uniform,train=a%2Fb%2Cc.csv"
    assert Retraining(attention="adversary", weight=5.25e-4, frozen=True).text == (
        "attention=adversary,weight=0.000525,frozen=True"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed=1", "Did you mean 'seed'"),
        ("seed=1,seed=2", "given twice"),
        ("attention=unifrom", "Did you mean 'uniform'"),
        ("seed=-1", "whole number of at least 0"),
        ("seed=1.5", "whole number of at least 0"),
        ("weight=nan", "a number of at least 0"),
        ("frozen=yes", "unknown value 'yes' of 'frozen'"),
    ],
)
def test_an_invalid_setting_is_named(text: str, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        parse(text)


def test_a_measure_has_one_name_for_any_order_of_its_settings() -> None:
    assert (
        measures.get("retrained")("seed=1,attention=uniform").name
        == measures.get("retrained")("attention=uniform,seed=1").name
    )
