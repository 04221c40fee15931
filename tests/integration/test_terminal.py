"""What a run shows in the terminal: one line per gate, less with -q, and one message about a wrong name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from attnaudit.plugin.command_line import KEYS, OPTIONS
from tests.conftest import newest_audit
from tests.forking_interpreter import run_pytest

ROOT = Path(__file__).resolve().parents[2]

QUESTIONS = """
[policy]
name = "two questions"
validated_on = ["pooled attention"]

[policy.questions.long]
asks = "Are the texts long?"
checks = ["token_count"]

[policy.questions.peak]
asks = "Is the peak low?"
checks = ["attention_peak"]

[[check]]
name = "attention_peak"
at_most = 0.99

[[check]]
name = "token_count"
at_least = 50

[[check]]
name = "UniformFragility"
severity = "report"
"""
REMOVING = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "token_count" not in item.nodeid]
"""

#: A model that is slow and prints, in a project whose heartbeat is fast.
SLOW = """
import time
from attnaudit import progress

progress.HEARTBEAT_SECONDS = 0.05
built = tiny

@attnaudit.register_model("slow")
def slow():
    adapter = built()
    attention = adapter.attention

    def attend(states, allowed):
        print("printed by the model")
        time.sleep(0.02)
        return attention(states, allowed)

    adapter.attention = attend
    return adapter
"""


#: The rows with the label that the model does not predict.
WRONG_LABELS = """

@attnaudit.register_dataset("wrong")
def wrong():
    import dataclasses
    from attnaudit.adapters.loading import load_model

    adapter = load_model("tiny").adapter
    predicted = [int(adapter.run(adapter.collate([one])).logits.argmax()) for one in rows().instances]
    other = [adapter.capabilities.classes[1 - index] for index in predicted]
    pairs = zip(rows().instances, other, strict=True)
    wrong = tuple(dataclasses.replace(one, label=label) for one, label in pairs)
    return dataclasses.replace(rows(), name="wrong", instances=wrong)
"""


def audit_section(result: pytest.RunResult) -> list[str]:
    """The lines of the section of the audit, without those of pytest below it."""
    lines = result.outlines
    start = next(number for number, line in enumerate(lines) if "attention audit" in line)
    return [line for line in lines[start + 1 :] if not re.search(r"\d (passed|failed|skipped)[, ].* in ", line)]


@pytest.fixture
def questions(project: pytest.Pytester) -> pytest.Pytester:
    """The project with a policy that asks questions."""
    (project.path / "policy.toml").write_text(QUESTIONS, encoding="utf-8")
    return project


def test_each_gate_is_one_line_with_the_question_the_answer_and_the_numbers(questions: pytest.Pytester) -> None:
    result = questions.runpytest("--model", "tiny", "--policy", "policy.toml")
    result.assert_outcomes(passed=2, failed=1)
    heading, failed, passed, informational, *_ = audit_section(result)
    assert re.fullmatch(r"tiny on rows \(40 texts, accuracy 0\.\d{3}\)", heading)
    assert re.fullmatch(
        r"fail  Are the texts long\? No: mean token_count 4.400 \[.*\], required at least 50.000, n=40", failed
    )
    assert re.fullmatch(
        r"pass  Is the peak low\? Yes: mean attention_peak 0.388 \[.*\], required at most 0.990, n=40", passed
    )
    assert informational == "1 informational check was measured, too. The report and -v show its value."
    result.stdout.no_fnmatch_line("*uniform_fragility*")


def test_an_accuracy_below_that_of_a_constant_answer_is_doubted(project: pytest.Pytester) -> None:
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text(encoding="utf-8") + WRONG_LABELS, encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--data", "wrong")
    doubt = "The accuracy is 0.000. It would be 0.??? if the model always predicted the most frequent label. Check *"
    result.stdout.fnmatch_lines(["tiny on wrong (40 texts, accuracy 0.000)", doubt])
    assert any(fnmatch(note, doubt) for note in newest_audit(project.path)["measured"][0]["notes"])


def test_quiet_output_is_short(questions: pytest.Pytester) -> None:
    result = questions.runpytest("--model", "tiny", "--policy", "policy.toml", "-q")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len([line for line in result.outlines if line]) == 15
    _, failed, passed, *rest = audit_section(result)
    assert failed.startswith("fail  Are the texts long? No: ")
    assert passed.startswith("pass  Is the peak low? Yes: ")
    assert [line.partition(":")[0] for line in rest if line] == ["gates", "options from PYTEST_ADDOPTS", "report"]
    block = result.outlines[next(i for i, line in enumerate(result.outlines) if line.startswith("mean token_count")) :]
    assert block[1].startswith("run again: pytest ")


def test_verbose_output_has_the_table_of_all_checks(questions: pytest.Pytester) -> None:
    result = questions.runpytest("--model", "tiny", "--policy", "policy.toml", "-v")
    lines = audit_section(result)
    assert sum(line.startswith(("fail  ", "pass  ")) and "?" in line for line in lines) == 2
    assert any(re.match(r"informational uniform_fragility.tvd +0\.\d+ ", line) for line in lines)
    assert any(line.startswith("A gate fails only if its whole 97.5% interval") for line in lines)


def test_quiet_output_hides_no_detail_from_junit(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny", "-q", "--junitxml=junit.xml")
    assert "studentised bootstrap over sources" in (project.path / "junit.xml").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", [[], ["-v"], ["-q"]], ids=" ".join)
def test_failures_that_the_run_adds_are_not_counted_as_progress(project: pytest.Pytester, mode: list[str]) -> None:
    project.makeconftest((project.path / "conftest.py").read_text(encoding="utf-8") + REMOVING)
    result = project.runpytest("--model", "tiny", *mode)
    result.assert_outcomes(passed=2, failed=1)
    shares = [int(share) for share in re.findall(r"\[ *(\d+)%\]", result.stdout.str())]
    assert max(shares) == 100
    result.stdout.fnmatch_lines(
        [
            "This gate did not pass: a plugin or a conftest.py removed its test from the run",
            "FAILED attnaudit::gates-not-passed-1*",
            "no verdict  token_count",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modle", "tiny"], "unknown option --modle. Did you mean '--model'?"),
        (["--model", "tiny", "--audit-sead=1"], "unknown option --audit-sead. Did you mean '--audit-seed'"),
        (
            ["--model", "tiny", "--audit-unit", "word"],
            "expected tokens, words or sources, but got 'word'.",
        ),
        (["--model", "tinny"], "--model tinny: there is no such model. Did you mean 'tiny'?"),
        (["--model", "tiny", "--data", "rosw"], "--data rosw: there is no such file, and no data set is registered"),
        (["--model", "tiny", "-o", "audit_polcy=x"], "-o audit_polcy: unknown key. Did you"),
        (["--model", "tiny", "-o", "audit_sequental=true"], "Did you mean 'audit_sequential'"),
    ],
)
def test_a_mistyped_name_is_one_message(project: pytest.Pytester, arguments: Sequence[str], message: str) -> None:
    result = project.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    output = result.stdout.str() + result.stderr.str()
    assert output.count(message) == 1
    assert output.count("Did you mean") == 1
    assert "Traceback" not in output
    assert "FAILURES" not in output
    assert "failed" not in output


@pytest.mark.parametrize(
    "options", [["-p", "no:warnings"], ["-W", "ignore"], ["-W", "error"], ["--strict-config"]], ids=" ".join
)
@pytest.mark.parametrize("key", ["audit_polcy", "AUDIT_POLICY"])
def test_a_mistyped_key_is_refused_whatever_happens_to_warnings(
    project: pytest.Pytester, options: list[str], key: str
) -> None:
    result = project.runpytest("--model", "tiny", "-o", f"{key}=strict.toml", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = f"-o {key}: unknown key. Did you mean 'audit_policy'"
    (line,) = filter(None, result.stderr.str().splitlines())
    assert line.startswith(f"ERROR: {message}")
    audit = newest_audit(project.path)
    assert (audit["status"], audit["exit_status"]) == ("failed", pytest.ExitCode.USAGE_ERROR)
    assert audit["problem"].startswith(message)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("pytest.ini", "[pytest]\nfilterwarnings = ignore\n{key} = {value}\n"),
        ("tox.ini", "[pytest]\nfilterwarnings = ignore\n{key} = {value}\n"),
        ("setup.cfg", "[tool:pytest]\nfilterwarnings = ignore\n{key} = {value}\n"),
        ("pytest.toml", "[pytest]\nfilterwarnings = ['ignore']\n{key} = '{value}'\n"),
        ("pyproject.toml", "[tool.pytest]\nfilterwarnings = ['ignore']\n{key} = '{value}'\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\nfilterwarnings = ['ignore']\n{key} = '{value}'\n"),
    ],
    ids=["pytest.ini", "tox.ini", "setup.cfg", "pytest.toml", "pyproject.toml", "ini_options"],
)
def test_a_mistyped_key_is_refused_in_every_configuration_file(
    project: pytest.Pytester, file: str, content: str
) -> None:
    (project.path / "tox.ini").unlink()
    for key, value in (("Audit_Policy", "strict.toml"), ("audit_modle", "tiny")):
        (project.path / file).write_text(content.format(key=key, value=value), encoding="utf-8")
        result = project.runpytest()
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {key} in {file}: unknown key. Did you mean 'audit_*"])


def test_a_key_that_a_plugin_registers_is_not_mistyped(project: pytest.Pytester) -> None:
    (project.path / "tox.ini").write_text("[pytest]\naudit_data = rows\naudit_policies = x\n", encoding="utf-8")
    below = project.mkdir("below")
    (below / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addini('audit_policies', '')\n", encoding="utf-8"
    )
    (below / "test_other.py").write_text("def test_other(): pass\n", encoding="utf-8")
    assert project.runpytest("--model", "tiny", "-k", "peak").ret == pytest.ExitCode.OK
    (below / "conftest.py").unlink()
    assert project.runpytest("--model", "tiny", "-k", "peak").ret == pytest.ExitCode.USAGE_ERROR


def test_every_option_and_key_of_the_audit_can_be_suggested(project: pytest.Pytester) -> None:
    shown = project.runpytest("--help").stdout.str()
    group = shown.partition("\nattention audit:\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^  (--[\w-]+)", group, re.MULTILINE)) == sorted(OPTIONS)
    assert sorted(re.findall(r"^  (audit_\w+)", shown, re.MULTILINE)) == sorted(KEYS)


def test_an_option_of_an_absent_plugin_is_refused_by_pytest_itself(project: pytest.Pytester) -> None:
    result = project.runpytest("--model", "tiny", "--cover-everything")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --cover-everything"])


@pytest.mark.parametrize("mode", [[], ["-q"], ["--tb=no"], ["--tb=line"]], ids=" ".join)
def test_a_wrong_column_is_one_message(project: pytest.Pytester, mode: list[str]) -> None:
    (project.path / "films.csv").write_text("sentence,label\ngood film,positive\nbad film,negative\n", encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--data", "films.csv", *mode)
    require_one_message(result, "Rename 'sentence' to 'text'.")


@pytest.mark.slow
def test_a_wrong_column_is_one_message_from_all_workers(project: pytest.Pytester) -> None:
    (project.path / "films.csv").write_text("sentence,label\ngood film,positive\nbad film,negative\n", encoding="utf-8")
    result = run_pytest(project, "--model", "tiny", "--data", "films.csv", "-n2", "--dist=load")
    require_one_message(result, "Rename 'sentence' to 'text'.")


@pytest.mark.parametrize("ci", [False, True])
def test_a_model_that_cannot_be_loaded_is_one_message(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    if ci:  # pytest then shows whole messages in the short summary
        monkeypatch.setenv("CI", "true")
    project.mkdir("checkpoint")
    require_one_message(project.runpytest("--model", "checkpoint"), "not in a known checkpoint format")


def require_one_message(result: pytest.RunResult, message: str) -> None:
    """Assert that no case was judged, and that the reason is shown once, as a message without a traceback."""
    assert result.ret in (6, 7)
    result.assert_outcomes(failed=1, skipped=2)
    output = result.stdout.str() + result.stderr.str()
    assert output.count(message) == 1
    assert "Traceback" not in output
    result.stdout.fnmatch_lines(["no verdict  *attention_peak", "No verdict on 3 checks*"])


def test_the_reason_of_every_case_is_in_the_files_of_the_run(project: pytest.Pytester) -> None:
    project.mkdir("checkpoint")
    project.runpytest("--model", "checkpoint", "--junitxml=junit.xml")
    audit = newest_audit(project.path)
    assert len(audit["missing"]) == 3
    assert all("not in a known checkpoint format" in case["reason"] for case in audit["missing"])
    assert "not in a known checkpoint format" in (project.path / "junit.xml").read_text(encoding="utf-8")


@pytest.fixture
def slow(project: pytest.Pytester) -> pytest.Pytester:
    """The project with a slow model."""
    project.makeconftest((project.path / "conftest.py").read_text(encoding="utf-8") + SLOW)
    return project


@pytest.mark.parametrize("mode", [[], pytest.param(["-q"], marks=pytest.mark.slow)], ids=" ".join)
def test_without_a_terminal_the_progress_is_a_line_each_minute(slow: pytest.Pytester, mode: list[str]) -> None:
    result = run_pytest(slow, "--model", "slow", *mode)
    lines = [line for line in result.errlines if line]
    assert any(re.fullmatch(r"measuring slow on rows[^:]*: \d+ of 40 texts(, about .* left)?", line) for line in lines)
    assert all(re.match(r"(starting$|(loading|testing the adapter of|measuring) slow)", line) for line in lines)
    result.stdout.no_fnmatch_line("*measuring slow*")


@pytest.mark.slow
def test_very_quiet_output_has_no_progress(slow: pytest.Pytester) -> None:
    assert not any(run_pytest(slow, "--model", "slow", "-qq").errlines)


@pytest.mark.slow
def test_workers_print_lines_with_their_names(slow: pytest.Pytester) -> None:
    lines = run_pytest(slow, "--model", "slow", "-n2").errlines
    assert any(re.match(r"gw[01] measuring slow on rows[^:]*: \d+ of 40 texts", line) for line in lines)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs the pseudo-terminals of POSIX systems")
def test_in_a_terminal_the_progress_is_a_bar_of_texts(slow: pytest.Pytester) -> None:
    shown = in_terminal(slow.path, "--model", "slow")
    assert re.search(r"measuring slow on rows .* \d+ of 40 texts", shown)
    assert "printed by the model" not in shown
    assert "━" in shown


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs the pseudo-terminals of POSIX systems")
def test_no_bar_is_drawn_in_ci(slow: pytest.Pytester) -> None:
    shown = in_terminal(slow.path, "--model", "slow", CI="true")
    assert re.search(r"^measuring slow on rows[^:]*: \d+ of 40 texts", shown, re.MULTILINE)
    assert "━" not in shown


def in_terminal(folder: Path, *arguments: str, **environment: str) -> str:
    """Return what pytest shows in a pseudo-terminal, without control sequences."""
    import pty

    main, other = pty.openpty()
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120", **environment}
    shown = b""
    with subprocess.Popen(command, cwd=folder, stdin=other, stdout=other, stderr=other, env=variables):
        os.close(other)
        try:
            while chunk := os.read(main, 4096):
                shown += chunk
        except OSError:  # the end of the other side, on Linux
            pass
    os.close(main)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))


def test_the_device_is_shown_once_in_the_header_or_else_in_the_summary(project: pytest.Pytester) -> None:
    result = project.runpytest("--model", "tiny", "--audit-device", "cpu")
    result.stdout.fnmatch_lines(["attnaudit 0.1.0: tiny on rows, seed 0, device cpu"])
    result.stdout.no_fnmatch_line("measured on cpu")
    result = project.runpytest("--model", "tiny", "--audit-device", "cpu", "--no-header")
    result.stdout.no_fnmatch_line("attnaudit 0.1.0*")
    assert "measured on cpu" in audit_section(result)
