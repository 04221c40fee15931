"""The instances on which conformance checks run: they differ in their logits wherever they are in the data."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import nn

from attnaudit.adapters.protocol import Inputs
from attnaudit.conformance.run_suite import quick
from attnaudit.conformance.sample_texts import SEARCH_BATCH, examples
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from tests.small_models import adapter as pooled
from tests.small_models import dataset

SAME = dataset().instances[0].text
OTHER = next(one.text for one in dataset().instances if one.text != SAME)


def rows(count: int, *, other_at: Sequence[int] = ()) -> list[Instance]:
    """Return rows with the same text, except for the rows at some positions."""
    return [Instance(id=str(n), text=OTHER if n in other_at else SAME) for n in range(count)]


@pytest.mark.parametrize("place", [0, 1, SEARCH_BATCH * 4, SEARCH_BATCH * 8 - 1])
def test_a_row_with_other_logits_is_among_the_examples_wherever_it_is(place: int) -> None:
    adapter, data = pooled(2), rows(SEARCH_BATCH * 8, other_at=[place])
    assert OTHER in {one.text for one in examples(adapter, data).instances}
    quick(adapter, data)


def test_a_model_that_gives_the_same_logits_to_all_texts_is_refused() -> None:
    decoder = nn.Linear(10, 2)
    nn.init.zeros_(decoder.weight)
    with pytest.raises(AdapterError, match=r"for all others that were tried \(at most 10,000\)"):
        quick(pooled(2, decoder=decoder), rows(100, other_at=[50]))


def test_the_examples_are_those_of_before_if_their_logits_differ() -> None:
    adapter, data = pooled(2), list(dataset().instances)
    assert len({one.id for one in examples(adapter, data).instances}) == 6


def test_a_long_row_with_other_logits_is_found_too() -> None:
    adapter, data = pooled(2), rows(100)
    data[70] = Instance(id="long", text=" ".join([OTHER] * 300))
    assert "long" in {one.id for one in examples(adapter, data).instances}


def test_a_row_that_cannot_be_read_does_not_end_the_search() -> None:
    adapter, data = pooled(2), rows(200, other_at=[150])

    class Refuses(type(adapter)):  # type: ignore[misc]
        def collate(self, instances: Sequence[Instance]) -> Inputs:
            if any(one.id == "40" for one in instances):
                raise ValueError("row 40")
            return super().collate(instances)

    adapter.__class__ = Refuses
    assert OTHER in {one.text for one in examples(adapter, data).instances}
