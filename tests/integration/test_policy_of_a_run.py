"""Failures are corrected for all gates of the policy, whichever cases are selected."""

from __future__ import annotations

import pytest

from tests.conftest import newest_audit

POLICY = """
[policy]
confidence = 0.9
inconclusive = "warn"

[[check]]
name = "token_count"
at_least = 50

[[check]]
name = "attention_peak"
at_most = 0.99

[[check]]
name = "Agreement"
at_least = "floor + 0.5 * (gradient_loo - floor)"
"""


def levels(audit):
    """check -> (number of gates, confidence that a failure needs)."""
    return {
        entry["check"]: (entry["gated"], round(entry["fail_interval"]["confidence"], 6)) for entry in audit["checks"]
    }


def test_gates_deselected_with_k_count(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny", "-k", "token_count")
    assert levels(newest_audit(project.path)) == {"token_count": (2, 0.975)}


def test_gates_of_another_function_count(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_more="""
        from attnaudit import audit, checks

        @audit(checks.InfluenceEntropy(at_most=0.99), checks.UniformFragility(at_least=0.001))
        def test_more(check):
            check.judge()
        """
    )
    project.runpytest("--model", "tiny", "-k", "token_count")
    assert levels(newest_audit(project.path)) == {"token_count": (4, 0.9875)}


def test_a_policy_file_replaces_the_gates_that_count(project: pytest.Pytester) -> None:
    (project.path / "strict.toml").write_text(POLICY, encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--policy", "strict.toml", "-v")
    audit = newest_audit(project.path)
    assert {gated for gated, _ in levels(audit).values()} == {3}
    assert {level for _, level in levels(audit).values()} == {round(1 - 0.1 / 3, 6)}
    assert all(entry["interval"]["confidence"] == 0.9 and entry["inconclusive"] == "warn" for entry in audit["checks"])
    (agreement,) = [entry for entry in audit["checks"] if entry["family"] == "agreement"]
    assert agreement["requirement"]["expression"] == "floor + 0.5 * (gradient_loo - floor)"
    result.stdout.fnmatch_lines(
        [
            "A gate fails only if its whole 96.7% interval is on the wrong side of the threshold. This interval is "
            "wider than the one in the table, because 3 checks can block this release.",
        ]
    )
