"""A run in which no gate of a model decided anything is not green, whatever the policy allows."""

from __future__ import annotations

import pytest

from tests.conftest import newest_audit, newest_run

ALLOWED = """
[policy]
name = "mine"
inconclusive = "{allowed}"

[[check]]
name = "token_count"
at_least = 1

[[check]]
name = "attention_peak"
at_most = 0.99
"""
EXCEPTION = """
[[exception]]
check = "token_count"
reason = "known"
"""
SKIP = """

def pytest_collection_modifyitems(items):
    import pytest
    for item in items:
        if "token_count" in item.name:
            item.add_marker(pytest.mark.skip(reason="known"))
"""
FEW = ("--audit-max-instances", "20")


@pytest.mark.parametrize("allowed", ["warn", "pass"])
def test_gates_that_are_all_inconclusive_but_allowed(project: pytest.Pytester, allowed: str) -> None:
    (project.path / "mine.toml").write_text(ALLOWED.format(allowed=allowed), encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--policy", "mine.toml", *FEW)
    audit = newest_audit(project.path)
    assert {entry["verdict"] for entry in audit["checks"]} == {"inconclusive"}
    assert (result.ret, audit["status"], audit["exit_status"]) == (5, "failed", 5)
    why = "every gate is inconclusive, which the policy allows, so nothing was decided. Audit more rows."
    for text in (audit["problem"], result.stdout.str(), (newest_run(project.path) / "summary.md").read_text("utf-8")):
        assert why[1:] in text  # a sentence of its own begins with a capital letter


def test_a_gate_that_is_excepted_next_to_one_that_is_inconclusive_but_allowed(project: pytest.Pytester) -> None:
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + SKIP, encoding="utf-8")
    (project.path / "mine.toml").write_text(ALLOWED.format(allowed="pass") + EXCEPTION, encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--policy", "mine.toml", *FEW)
    assert result.ret == 5
    result.stdout.fnmatch_lines(["*every gate is excepted or inconclusive, which the policy allows, so nothing was*"])


def test_a_gate_that_passes_decides(project: pytest.Pytester) -> None:
    (project.path / "mine.toml").write_text(ALLOWED.format(allowed="pass"), encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--policy", "mine.toml")
    audit = newest_audit(project.path)
    assert "pass" in {entry["verdict"] for entry in audit["checks"]}
    assert (result.ret, audit["status"]) == (0, "passed")
