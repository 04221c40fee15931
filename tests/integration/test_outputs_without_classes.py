"""A model whose output has no classes, such as a score: no text of a run mentions a class, and all name one index."""

from __future__ import annotations

import html
import re

import pytest

from tests.conftest import newest_audit, newest_run

#: A score without a threshold: its changes are measured, but it decides nothing.
MODELS = """

@attnaudit.register_model("score")
def score():
    from attnaudit.adapters import PooledAttentionAdapter
    from attnaudit.targets import Target

    made = tiny()
    decoder = made.decoder
    return PooledAttentionAdapter(
        embedding=made.embedding,
        encoder=made.encoder,
        attention=made.attention,
        decoder=lambda context: decoder(context)[..., :1],
        tokenize=made.tokenize,
        classes=("length of stay",),
        modules=(*made.modules, decoder),
        target=Target(kind="score", scale=0.5),
    )
"""
POLICY = """
[policy]
name = "used"
validated_on = ["bag of vectors"]
unvalidated = "gate"

[policy.questions.used]
asks = "Is attention used?"
checks = ["total_effect.standardised.smallest"]

[[policy.questions.used.remedy]]
text = "show leave-one-out importance instead"
families = ["pooled attention, score"]
accuracy = "unchanged"

[[check]]
name = "TotalEffect"
on = "standardised"
classes = "smallest"
at_least = {least}

[[check]]
name = "PermutationFragility"
at_least = 0.00001

[[check]]
name = "UniformFragility"
measure = "f1_drop"
severity = "report"
"""
CHECK = "total_effect.standardised.smallest"


def audit(project: pytest.Pytester, *arguments: str, least: float = 3.0) -> pytest.RunResult:
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + MODELS, encoding="utf-8")
    (project.path / "used.toml").write_text(POLICY.format(least=least), encoding="utf-8")
    return project.runpytest("--model", "score", "--policy", "used.toml", *arguments)


def page(project: pytest.Pytester, name: str) -> str:
    text = html.unescape((newest_run(project.path) / name).read_text(encoding="utf-8").replace("\\", ""))
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)


def test_a_failing_gate_on_the_smallest_effect_says_that_the_index_is_that_of_all_texts(
    project: pytest.Pytester,
) -> None:
    result = audit(project, "-v")
    result.assert_outcomes(failed=1, passed=2)
    record = next(one for one in newest_audit(project.path)["checks"] if one["check"] == CHECK)
    assert record["when_failed"] == "Attention is barely used: shuffling it hardly changes the output"
    assert record["value_name"] == "total-effect index of the standardised probabilities"
    assert record["statistic"] == "ratio of means"
    assert (
        "the value is the index of all texts, not the smallest index of a class, because the target" in record["note"]
    )
    assert record["parameters"]["classes"] == "smallest"
    result.stdout.fnmatch_lines(
        ["note: *the value is the index of all texts, not the smallest index of a class, because *"]
    )
    for output in (result.stdout.str(), page(project, "report.html"), page(project, "summary.md")):
        assert "Attention is barely used" in output or "Is attention used? No: total-effect index of the" in output
        for wrong in ("predicted class", "smallest total-effect", "smallest ratio", "other class", "every class"):
            assert wrong not in output
        assert "accuracy" not in output.lower()


def test_a_passing_gate_says_which_index_was_used(project: pytest.Pytester) -> None:
    result = audit(project, least=0.001)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["pass  Is attention used? Yes: total-effect index of the standardised probabilities *"]
    )
    assert "the index of all texts, not the smallest index of a class" in page(project, "report.html")


def test_no_reference_has_a_raw_name(project: pytest.Pytester) -> None:
    result = audit(project, "-v")
    result.stdout.fnmatch_lines(["another text: 1.000 (the effect of *", "*  another text 1.000"])
    for output in (result.stdout.str(), page(project, "report.html"), page(project, "summary.md")):
        assert "another text" in output
        assert "another_text" not in output
