"""Attempts to run a model in a faster way."""

from __future__ import annotations

import logging

import pytest
import torch

from attnaudit.adapters.huggingface.logit_comparison import TOLERANCE, attempt, gives


def fails() -> torch.Tensor:
    raise ZeroDivisionError("from the code of a model")


def test_an_attempt_that_fails_gives_nothing_and_its_exception_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="attnaudit"):
        assert attempt(fails) is None
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert "the slower way is used" in record.getMessage()


def test_what_stops_the_program_is_not_caught() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupted)


def test_a_way_gives_the_logits_only_if_it_succeeds_and_agrees() -> None:
    expected = torch.tensor([[0.5, -0.25]])
    assert gives(lambda: expected + 0.5 * TOLERANCE, expected)
    assert not gives(lambda: expected + 2 * TOLERANCE, expected)
    assert not gives(lambda: expected * torch.nan, expected)
    assert not gives(fails, expected)
