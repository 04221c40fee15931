"""Encoders that run on groups of rows give the same states and gradients as on the whole batch."""

from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attnaudit.adapters.pooled import row_groups
from attnaudit.adapters.pooled.row_groups import encode_in_groups
from attnaudit.models.encoders import BiLSTM

LENGTHS = (9, 9, 7, 4, 4, 3, 2, 1)


def batch(*, left: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    embedded = torch.randn(len(LENGTHS), 9, 5)
    mask = torch.arange(9) < torch.tensor(LENGTHS)[:, None]
    return embedded, mask.flip(1) if left else mask


class Shapes(nn.Module):
    """An encoder that notes the shapes of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = BiLSTM(5, 3).eval(), list[tuple[int, int]]()

    def forward(self, embedded: Tensor, mask: Tensor) -> Tensor:
        self.seen.append((embedded.shape[0], embedded.shape[1]))
        states: Tensor = self.inner(embedded, mask)
        return states


@pytest.mark.parametrize("left", [False, True])
def test_groups_give_the_same_states_and_gradients(monkeypatch: pytest.MonkeyPatch, left: bool) -> None:
    encoder, (embedded, mask) = Shapes(), batch(left=left)
    embedded.requires_grad_()
    expected = encoder(embedded, mask)
    (slope,) = torch.autograd.grad(expected.square().sum(), embedded)
    encoder.seen.clear()
    monkeypatch.setattr(row_groups, "TOKENS_AT_ONCE", 18)
    found = encode_in_groups(encoder, embedded, mask)
    (found_slope,) = torch.autograd.grad(found.square().sum(), embedded)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found_slope, slope, rtol=0, atol=1e-6)
    if not left:  # the padding of shorter rows is left out
        assert encoder.seen == [(2, 9), (1, 7), (4, 4), (1, 1)]


def time_of(groups: Sequence[Sequence[int]]) -> int:
    return sum(row_groups.TOKENS_PER_CALL + max(group) * (len(group) + row_groups.ROWS_PER_STEP) for group in groups)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7, unique=True), st.integers(60, 200))
def test_no_other_groups_take_less_time(lengths: list[int], limit: int) -> None:
    with mock.patch.object(row_groups, "TOKENS_AT_ONCE", limit):
        sizes = row_groups.group_sizes(lengths)
    assert sum(sizes) == len(lengths)

    def split(ends: Sequence[int]) -> list[list[int]]:
        return [lengths[first:stop] for first, stop in pairwise([0, *ends, len(lengths)])]

    inner = range(1, len(lengths))
    ways = [split(ends) for count in range(len(lengths)) for ends in combinations(inner, count)]
    possible = [groups for groups in ways if all(max(group) * len(group) <= limit for group in groups)]
    found = split(list(accumulate(sizes))[:-1])
    assert found in possible
    assert time_of(found) == min(map(time_of, possible))


def test_rows_of_the_same_length_stay_together_unless_they_are_too_many() -> None:
    assert row_groups.group_sizes([20] * 100) == [76, 24]
    assert row_groups.group_sizes([30] * 20 + [20] * 40) == [20, 40]
    assert row_groups.group_sizes([2000, 2000, 3, 2]) == [1, 1, 2]


def test_small_batches_run_at_once() -> None:
    encoder, (embedded, mask) = Shapes(), batch()
    encode_in_groups(encoder, embedded, mask)
    assert encoder.seen == [(8, 9)]


def test_a_result_that_is_no_tensor_is_returned_for_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter then explains what is wrong with it."""
    monkeypatch.setattr(row_groups, "TOKENS_AT_ONCE", 18)
    embedded, mask = batch()
    gru = nn.GRU(5, 3, batch_first=True)
    states, _last = encode_in_groups(lambda embedded, mask: gru(embedded), embedded, mask)
    assert states.shape == (8, 9, 3)
