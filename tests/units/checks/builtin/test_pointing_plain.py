"""The example texts, the note and the largest weights of the pointing check."""

from __future__ import annotations

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.records.check_records import LARGEST_WEIGHT
from tests.units.checks.builtin.test_pointing import with_rows

HIT, MISS = np.array([0.9, 0.1]), np.array([0.1, 0.9])
CUE, EQUAL = np.array([1.0, 0.0]), np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("measure", "of"), [("cosine", "large and unequal effects"), ("plain", "texts whose tokens have large effects")]
)
def test_typical_texts_have_the_median_of_the_measure(measure: str, of: str) -> None:
    """Texts with equal effects have a plain cosine, but no cosine above uniform weights."""
    rows = [(HIT, CUE)] * 2 + [(MISS, CUE)] * 2 + [(HIT, np.array([0.8, 0.8]))] * 8
    record = checks.Pointing(at_least=0.5, measure=measure).judge(with_rows(rows))  # type: ignore[arg-type]
    assert of in record.typical_of
    equal = {f"{i:04d}" for i in range(4, 12)}
    shown = {one.instance for one in record.typical}
    assert shown
    assert shown <= equal if measure == "plain" else not shown & equal


def test_the_note_says_that_no_text_with_a_cosine_has_an_effect() -> None:
    m = with_rows([(HIT, CUE)] + [(HIT, 0 * CUE)] * 12)
    m.scalars["pointing.held.cosine"][0] = np.nan  # the text has no attention on its tokens
    record = checks.Pointing(at_least=0.5, measure="plain").judge(m)
    assert (record.value, record.verdict) == (None, "undefined")
    assert record.note.startswith(
        "undefined: in no text whose cosine is defined does replacing a token change the output"
    )


def test_a_detail_shows_whether_the_weights_are_nearly_equal() -> None:
    effects = np.array([0.5, 0.1, 0.0, 0.0])
    equal = with_rows([(np.full(4, 0.25), effects)] * 39 + [(np.array([0.7, 0.1, 0.1, 0.1]), effects)])
    record = checks.Pointing(at_least=0.5).judge(equal)
    assert record.details[LARGEST_WEIGHT] == pytest.approx(1.0)  # one of 40 texts does not matter
    peaked = with_rows([(np.array([0.7, 0.1, 0.1, 0.1]), effects)] * 40)
    assert checks.Pointing(at_least=0.5).judge(peaked).details[LARGEST_WEIGHT] == pytest.approx(2.8)
