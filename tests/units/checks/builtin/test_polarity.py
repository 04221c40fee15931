import numpy as np
import pytest

from attnaudit import checks
from attnaudit.errors import CheckError
from tests.units.checks.synthetic_measurements import measured


@pytest.mark.parametrize("operator", ["deletion", "mask"])
def test_the_value_is_the_share_next_to_that_of_a_random_token(operator: str) -> None:
    m = measured()
    m.scalars[f"polarity.{operator}.attention"][:3] = np.nan
    attention, random = (m.scalars[f"polarity.{operator}.{name}"] for name in ("attention", "random"))
    record = checks.Polarity(at_most="random", operator=operator).judge(m)
    assert record.details["excess over a token drawn at random"] == pytest.approx(np.nanmean(attention - random))
    reported = checks.Polarity(severity="report", operator=operator).judge(m)
    assert reported.value == pytest.approx(np.nanmean(attention))
    (reference,) = reported.references
    assert (reference.name, reference.value) == ("random", pytest.approx(random.mean()))
    assert reported.undefined == {"not measured": 3}
    assert reported.worst[0].value == 1


def test_only_an_upper_limit_makes_sense() -> None:
    with pytest.raises(CheckError, match="at_least"):
        checks.Polarity(at_least=0.1)
    with pytest.raises(CheckError, match=r"unknown operator 'delete'"):
        checks.Polarity(at_most=0.1, operator="delete")
