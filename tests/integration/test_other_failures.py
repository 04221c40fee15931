"""If something else than a gate makes a run fail, the summary, the report and the terminal say what."""

from __future__ import annotations

import pytest

from attnaudit.plugin.case_reports import short_reason
from tests.conftest import newest_audit, newest_run

FAILING = "def test_other():\n    assert 1 == 2, 'a <b>reason</b>'\n"


def texts(project: pytest.Pytester, result: pytest.RunResult) -> list[str]:
    pages = [(newest_run(project.path) / name).read_text("utf-8") for name in ("summary.md", "report.html")]
    return [newest_audit(project.path)["problem"], result.stdout.str(), *pages]


@pytest.mark.parametrize("options", [(), pytest.param(("-n2",), marks=pytest.mark.slow)])
def test_another_test_that_fails_is_named(project: pytest.Pytester, options: tuple[str, ...]) -> None:
    (project.path / "test_other.py").write_text(FAILING, encoding="utf-8")
    result = project.runpytest("--model", "tiny", *options)
    assert (result.ret, newest_audit(project.path)["status"]) == (1, "failed")
    for text in texts(project, result):
        assert "Failed: test" in text
        assert "other (AssertionError: a " in text
    assert "<b>reason</b>" not in (newest_run(project.path) / "report.html").read_text("utf-8")


@pytest.mark.parametrize("options", [(), pytest.param(("-n2",), marks=pytest.mark.slow)])
def test_a_file_that_cannot_be_collected_is_named(project: pytest.Pytester, options: tuple[str, ...]) -> None:
    (project.path / "test_other.py").write_text("import no_such_module\n", encoding="utf-8")
    result = project.runpytest("--model", "tiny", *options)
    assert (result.ret, newest_audit(project.path)["status"]) == (2 if not options else 1, "failed")
    for text in texts(project, result):
        assert "Could not be collected: test" in text
        assert "No module named 'no" in text.replace("&#39;", "'")


def test_many_failures_are_counted(project: pytest.Pytester) -> None:
    tests = "\n".join(f"def test_{n}():\n    raise ValueError('no {n}')\n" for n in range(5))
    (project.path / "test_other.py").write_text(tests, encoding="utf-8")
    result = project.runpytest("--model", "tiny")
    problem = newest_audit(project.path)["problem"]
    assert result.ret == 1
    assert problem == (
        "Failed: test_other.py::test_0 (ValueError: no 0), test_other.py::test_1 (ValueError: no 1), "
        "test_other.py::test_2 (ValueError: no 2) and 2 others."
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n ", "failed"),
        ("audits/a.py:1: in <module>\n    import b\nE   ImportError: no b\nE   (nor c)", "ImportError: no b"),
        ("the policy \x1b[31mfile\n is missing", "the policy ␛[31mfile"),
        ("x" * 300, f"{'x' * 199}…"),
    ],
)
def test_a_reason_is_one_safe_line(text: str, reason: str) -> None:
    assert short_reason(pytest.CollectReport("a.py", "failed", text, [])) == reason


def test_a_failed_gate_alone_is_no_other_failure(project: pytest.Pytester) -> None:
    project.makefile(".toml", strict='[[check]]\nname = "attention_peak"\nat_most = 0.1\n')
    result = project.runpytest("--model", "tiny", "--policy", "strict.toml")
    assert (result.ret, newest_audit(project.path)["problem"]) == (1, "")
