import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics.pairwise import cosine_similarity

from attnaudit.metrics.cosine import cosine
from tests.strategies import pad_rows, weight_row_pairs


@given(st.lists(weight_row_pairs(), min_size=1, max_size=5))
def test_it_equals_scikit_learn_on_padded_rows(pairs: list[tuple[list[float], list[float]]]) -> None:
    first, mask = pad_rows([a for a, _ in pairs], extra=1)
    second, _ = pad_rows([b for _, b in pairs], extra=1, fill=-7.0)
    expected = [cosine_similarity([a], [b])[0, 0] for a, b in pairs]
    torch.testing.assert_close(cosine(first, second, mask), torch.tensor(expected, dtype=torch.float64))


@given(weight_row_pairs(), st.floats(1e-200, 1e200))
def test_it_does_not_depend_on_the_length_of_a_vector(pair: tuple[list[float], list[float]], factor: float) -> None:
    first, second = (torch.tensor(row, dtype=torch.float64) for row in pair)
    torch.testing.assert_close(cosine(first * factor, second), cosine(first, second))


def test_a_zero_vector_has_no_direction() -> None:
    assert math.isnan(cosine(torch.zeros(3), torch.ones(3)).item())
    padded = cosine(torch.tensor([0.0, 5.0]), torch.ones(2), torch.tensor([True, False]))
    assert math.isnan(padded.item())


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="second: expected the shape of first"):
        cosine(torch.ones(3), torch.ones(2))
