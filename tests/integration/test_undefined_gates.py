"""If a gate is undefined, every output says why: the reason why most of the rows have no value, or of the verdict."""

from __future__ import annotations

import pytest

from tests.conftest import newest_audit, newest_run

#: A model whose attention weights are all equal, and rows of which most have a single token.
MODELS = """

@attnaudit.register_model("equal")
def equal():
    adapter = tiny()
    adapter.attention = lambda states, allowed: allowed / allowed.sum(-1, keepdim=True)
    return adapter


@attnaudit.register_dataset("short")
def short():
    import dataclasses

    cut = [
        dataclasses.replace(one, text=one.text if i % 4 == 0 else one.text.split()[0])
        for i, one in enumerate(rows().instances)
    ]
    return dataclasses.replace(rows(), name="short", instances=tuple(cut))
"""
POLICY = """
[policy]
name = "used"
validated_on = ["pooled attention"]

[policy.questions.used]
asks = "Is attention used?"
checks = ["total_effect.logits"]

[[check]]
name = "TotalEffect"
on = "logits"
at_least = 0.1
"""


def audit(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + MODELS, encoding="utf-8")
    (project.path / "used.toml").write_text(POLICY, encoding="utf-8")
    result = project.runpytest("--policy", "used.toml", "-rN", "--tb=no", *arguments)
    result.assert_outcomes(failed=1)
    return result


def page(project: pytest.Pytester, name: str) -> str:
    return (newest_run(project.path) / name).read_text(encoding="utf-8")


def test_the_reason_why_no_row_has_a_value(project: pytest.Pytester) -> None:
    result = audit(project, "--model", "equal")
    (entry,) = newest_audit(project.path)["checks"]
    assert (entry["value"], entry["undefined"]) == (None, {"all attention weights are equal": 40})
    result.stdout.fnmatch_lines(
        [
            "undefined  Is attention used? No answer: total-effect index of the logits undefined, "
            "required at least 0.100, n=0 (40 undefined: all attention weights are equal)"
        ]
    )
    reason = "no instance has a value: all attention weights are equal"
    assert f"“Is attention used?” has no answer: {reason}." in page(project, "report.html")
    assert f"No instance has a value: {reason.partition(': ')[2]}." in page(project, "report.html")
    assert f"“Is attention used?” has no answer: {reason}." in page(project, "summary.md")
    assert "n=0 (40 undefined: all attention weights are equal)" in page(project, "summary.md")


def test_the_most_frequent_reason_why_too_few_rows_have_a_value(project: pytest.Pytester) -> None:
    result = audit(project, "--model", "tiny", "--data", "short")
    (entry,) = newest_audit(project.path)["checks"]
    assert entry["n_defined"] == 10
    assert entry["reason"] == "only 10 of 40 instances have a value, fewer than 80%"
    result.stdout.fnmatch_lines(["undefined  Is attention used? No answer: *, n=10 (30 undefined: a single token)"])
    assert f"has no answer: {entry['reason']}: a single token." in page(project, "report.html")
