"""What the tests of sequential runs share: a policy with two gates, and the records of a run."""

from __future__ import annotations

from typing import Any

from tests.audited_project import Run

#: Two gates. `measure` and `at_least` of the second are filled in.
POLICY = """
[policy]
sampling = "sequential"

[[check]]
name = "InfluenceEntropy"
at_most = 0.9

[[check]]
name = "PermutationFragility"
measure = "{measure}"
at_least = {at_least}
"""
TVD = "permutation_fragility.tvd"


def records(one: Run) -> list[dict[str, Any]]:
    """Return the check records of a run without the names of their tests."""
    return [{key: value for key, value in record.items() if key != "test"} for record in one.audit["checks"]]
