"""Invalid options are refused before anything is loaded, with the way to fix them, and collecting is cheap."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from attnaudit import cli
from tests.conftest import newest_audit
from tests.forking_interpreter import run_pytest

PROBES = """
def pytest_unconfigure(config):
    import sys
    print("LOADED", sorted({"torch", "sklearn", "scipy"} & set(sys.modules)))
"""


@pytest.mark.parametrize("option", ["--junitxml", "--log-file"])
@pytest.mark.parametrize(
    ("output", "what"),
    [
        ("mine.toml", "the policy"),
        ("./sub/../mine.toml", "the policy"),
        ("rows.jsonl", "also given with --data"),
        ("reports/latest.txt", "the one that names the newest run"),
        ("pytest.ini", "the configuration file of pytest"),
    ],
)
def test_an_output_file_that_is_an_input_is_refused(
    project: pytest.Pytester, option: str, output: str, what: str
) -> None:
    (project.path / "sub").mkdir()
    contents = {
        "mine.toml": '[[check]]\nname = "Conicity"\n',
        "rows.jsonl": '{"text": "a"}\n',
        "pytest.ini": "[pytest]\n",
    }
    for name, content in contents.items():
        (project.path / name).write_text(content, encoding="utf-8")
    result = project.runpytest(
        "--model", "tiny", "--policy", "mine.toml", "--data", "rows.jsonl", "-c", "pytest.ini", f"{option}={output}"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*{option} *{output[-10:]}: this file is {what}, and would be replaced. Choose another*"]
    )
    assert {name: (project.path / name).read_text(encoding="utf-8") for name in contents} == contents
    assert not (project.path / "reports").exists()


def test_a_junit_path_with_another_kind_of_file_is_refused(project: pytest.Pytester) -> None:
    before = (project.path / "test_audit.py").read_bytes()
    result = project.runpytest("--model", "tiny", "--junitxml=test_audit.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_audit.py: this file exists and is no JUnit file*"])
    assert (project.path / "test_audit.py").read_bytes() == before


def test_a_log_file_never_replaces_a_test_file(project: pytest.Pytester) -> None:
    before = (project.path / "test_audit.py").read_bytes()
    result = project.runpytest("--model", "tiny", "--log-file=test_audit.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--log-file *test_audit.py: this file exists and may be a policy or a test file.*"])
    assert (project.path / "test_audit.py").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "*No model is given. Name one: --model demo*"),
        (["--model", "tinny"], "*--model tinny: there is no such model. Did you mean 'tiny'?*"),
        (
            ["--model", "test_audit.py"],
            "*--model test_audit.py: this is a file. Expected a checkpoint folder*Register an adapter that loads the "
            "file*",
        ),
        (["--model", "nowhere.models:make"], "*no module 'nowhere' to import*"),
        (["--model", "tiny", "--data", "rowz"], "*--data rowz: there is no such file*Did you mean 'rows'?*"),
        (["--model", "tiny", "--data", "test_audit.py"], "*the suffix '.py' is not supported*.jsonl*"),
        (["--model", "tiny", "--audit-device", "mps"], "*--audit-device mps: Metal has no float64*--audit-device cpu*"),
        (["--model", "tiny", "--audit-device", "gpu"], "*--audit-device gpu: expected cpu, cuda or cuda:N*"),
        (["--model", "tiny", "--audit-max-instances", "0"], "*--audit-max-instances 0: expected 1 or more*"),
        (["--model", "tiny", "--audit-seed", "-1"], "*--audit-seed -1: expected a whole number from 0 to*"),
        (
            ["--model", "tiny", "--audit-seed", str(2**63)],
            "*--audit-seed 9223372036854775808: expected a whole number*",
        ),
        (["--model", "tiny", "--policy", "none.toml"], "*none.toml: there is no such policy file*"),
        (
            ["--model", "tiny", "--policy", "bad.toml"],
            "*bad.toml: [[][[]check[]][]] number 1*Did you mean 'at_least'?*",
        ),
        (["--model", "tiny", "--policy", ""], "*this is a folder*the variable may be empty.*"),
        (["--model", "tiny", "--audit-reports", ""], "*--audit-reports: the value is empty.*"),
        (["--model", "tiny", "--audit-resume", " "], "*--audit-resume: the value is empty.*"),
        (
            ["--model", "tiny", "--audit-reports", "test_audit.py"],
            "*--audit-reports *test_audit.py: cannot be written to*",
        ),
    ],
)
def test_an_invalid_option_is_a_usage_error(project: pytest.Pytester, arguments: Sequence[str], message: str) -> None:
    project.makefile(".toml", bad='[[check]]\nname = "UniformFragility"\nat_leest = 0.1\n')
    result = project.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    if (project.path / "reports").exists():  # neither without a model, nor where the folder cannot be written to
        audit = newest_audit(project.path)
        assert (audit["status"], audit["exit_status"]) == ("failed", pytest.ExitCode.USAGE_ERROR)
        assert audit["problem"]


def test_an_option_that_is_not_a_number_is_a_usage_error(project: pytest.Pytester) -> None:
    result = project.runpytest("--audit-workers", "x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*error: argument --audit-workers: expected a whole number, but got 'x'."])


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_an_invalid_number_in_the_ini_file_is_a_usage_error(project: pytest.Pytester, quiet: list[str]) -> None:
    project.makeini("[pytest]\naudit_data = rows\naudit_seed = x\n")
    result = project.runpytest("--model", "tiny", *quiet)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: audit_seed=x in tox.ini: expected a whole number.*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result = project.runpytest("--model", "tiny", *quiet, "-o", "audit_seed=y")
    result.stderr.fnmatch_lines(["ERROR: -o audit_seed=y: expected a whole number.*"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("audit_sequential = perhaps", "invalid truth value 'perhaps'. Expected true or false."),
        ("audit_data = 'rows", "No closing quotation."),
        ("audit_model = 'tiny", "No closing quotation."),
    ],
)
def test_a_value_of_the_ini_file_that_pytest_refuses_names_its_key(
    project: pytest.Pytester, line: str, message: str
) -> None:
    project.makeini(f"[pytest]\n{line}\n")
    result = project.runpytest(*([] if "model" in line else ["--model", "tiny"]))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    key = line.partition(" ")[0]
    assert f"ERROR: {key} in tox.ini: {message}" in result.stderr.str().splitlines()
    result.stdout.no_fnmatch_line("*Traceback*")


def test_an_invalid_declaration_is_reported_without_a_traceback(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_audit="""
        from attnaudit import audit, checks

        @audit(checks.UniformFragility())
        def test_faithful(check):
            check.enforce()
        """
    )
    result = project.runpytest("--model", "tiny")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*UniformFragility: a gate needs a threshold: give at_least=...*"])
    result.stdout.no_fnmatch_line("*base.py:*")
    traced = project.runpytest("--model", "tiny", "--full-trace")
    traced.stdout.fnmatch_lines(["*base.py:*"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('neds=["uniform"]', "*test_plain*: @pytest.mark.attnaudit has no argument 'neds'. Write *needs=*"),
        ('["uniform"]', "*test_plain*is given [[]'uniform'[]]: expected a list of names*needs=*"),
        ('needs="uniform"', "*test_plain*is given 'uniform': expected a list of names*needs=*"),
    ],
)
def test_an_invalid_mark_is_a_usage_error(project: pytest.Pytester, mark: str, message: str) -> None:
    project.makepyfile(
        test_audit=f"""
        import pytest

        @pytest.mark.attnaudit({mark})
        def test_plain(measurements):
            pass
        """
    )
    result = project.runpytest("--model", "tiny")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.parametrize("arguments", [pytest.param([], marks=pytest.mark.slow), ["--model", "tinny"]])
def test_a_usage_error_in_workers_is_reported_once(project: pytest.Pytester, arguments: list[str]) -> None:
    result = run_pytest(project, "-n2", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stdout.str().count("ERROR: ") == 1
    result.stdout.fnmatch_lines(["ERROR: *odel*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_model_is_not_required_if_the_audit_is_deselected(project: pytest.Pytester) -> None:
    project.makepyfile(test_other="def test_other(): pass")
    result = project.runpytest("-m", "not attnaudit")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == pytest.ExitCode.OK


def test_a_usage_error_is_reported_even_if_k_matches_no_case(project: pytest.Pytester) -> None:
    result = project.runpytest("--model", "tiny", "--audit-max-instances", "0", "-k", "uniform")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--audit-max-instances 0: expected 1 or more*"])


def test_reports_are_in_the_working_folder_wherever_the_data_are(project: pytest.Pytester, tmp_path: Path) -> None:
    (project.path / "tox.ini").unlink()
    rows = "".join(f"good film {word},positive\nbad plot {word},negative\n" for word in "abcdefghijklmnop")
    (tmp_path / "elsewhere.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    result = project.runpytest("--model", "tiny", "--data", str(tmp_path / "elsewhere.csv"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["report: reports*report.html"])
    assert (project.path / "reports" / "latest.txt").is_file()


def test_paths_are_relative_to_the_configuration_file_or_the_working_folder(project: pytest.Pytester) -> None:
    rows = "".join(f"good film {word},positive\nbad plot {word},negative\n" for word in "abcdefghijklmnop")
    (project.path / "mine.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    (project.path / "mine.toml").write_text('[[check]]\nname = "UniformFragility"\nat_least = 0.9\n', encoding="utf-8")
    project.makeini("[pytest]\naudit_data = mine.csv\naudit_policy = mine.toml\n")
    below = project.mkdir("below")
    (below / "other.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    test = str(project.path / "test_audit.py")

    def audited(*arguments: str) -> tuple[str, list[str]]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(below)
            result = project.runpytest(test, "--model", "tiny", *arguments)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        audit = newest_audit(project.path)
        return audit["data"][0]["name"], [check["check"] for check in audit["checks"]]

    assert audited() == ("mine", ["uniform_fragility.tvd"])
    assert audited("--data", "other.csv") == ("other", ["uniform_fragility.tvd"])


def test_a_function_without_the_argument_check_is_refused(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_audit="""
        from attnaudit import audit, checks

        @audit(checks.UniformFragility(at_least=0.1))
        def test_faithful():
            pass
        """
    )
    (project.path / "test_other.py").write_text("def test_other(measurements): pass\n", encoding="utf-8")
    for selection in ([], ["-k", "test_other"]):
        result = project.runpytest("--model", "tiny", *selection)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*test_faithful*takes no argument `check`*"])


def test_the_same_check_with_two_thresholds_is_refused(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_audit="""
        from attnaudit import audit, checks

        @audit(checks.UniformFragility(at_least=0.1))
        def test_one(check):
            check.enforce()

        @audit(checks.UniformFragility(at_least=0.2))
        def test_two(check):
            check.enforce()
        """
    )
    for selection in ([], ["-k", "test_one"]):
        result = project.runpytest("--model", "tiny", *selection)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*test_two*test_one*same check*uniform_fragility.tvd*with different arguments*"])


def test_collecting_loads_no_torch_and_writes_nothing(project: pytest.Pytester) -> None:
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + PROBES)
    result = project.runpytest_subprocess("--model", "tiny", "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*test_faithful[[]tiny-rows-attention_peak[]]", "LOADED [[][]]"])
    assert not (project.path / "reports").exists()


@pytest.mark.parametrize("by_ini", [False, True], ids=["by the option", "by pytest's configuration"])
def test_waiting_threads_sleep_in_an_audit(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, by_ini: bool
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    conftest = project.path / "conftest.py"
    seen = project.path / "policy.txt"
    conftest.write_text(
        f"import os, pathlib\npathlib.Path({str(seen)!r}).write_text(os.environ.get('OMP_WAIT_POLICY', 'none'))\n"
        + conftest.read_text()
    )
    if by_ini:
        project.makeini("[pytest]\naudit_model = tiny")
    result = project.runpytest_subprocess(*([] if by_ini else ["--model", "tiny"]), "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    assert seen.read_text() == "PASSIVE"


def test_an_unknown_model_is_refused_before_torch_is_loaded(project: pytest.Pytester) -> None:
    conftest = project.path / "conftest.py"
    conftest.write_text(conftest.read_text() + PROBES)
    result = project.runpytest_subprocess("--model", "tinny")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["LOADED [[][]]"])


def test_models_and_data_sets_of_installed_packages_are_found(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = project.mkdir("installed")
    (installed / "their_package.py").write_text(project.path.joinpath("conftest.py").read_text())
    info = installed / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[attnaudit.models]\ntiny = their_package:tiny\n[attnaudit.datasets]\nrows = their_package:rows\n"
    )
    project.makeconftest("")
    project.makepyfile(
        test_audit="""
        from attnaudit import audit, checks

        @audit(checks.UniformFragility(severity="report"), informational=True)
        def test_faithful(check):
            check.enforce()
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    result = run_pytest(project, "--model", "tiny", "--data", "rows", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*tiny-rows-uniform_fragility.tvd*PASSED*"])


def test_a_missing_policy_is_a_usage_error_even_without_audit_functions(project: pytest.Pytester) -> None:
    project.makepyfile(test_audit="def test_mine(measurements): pass\n")
    result = project.runpytest("--model", "tiny", "--policy", "nope.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *nope.toml: there is no such policy file*"])


def test_an_invalid_declaration_in_a_folder_with_brackets_is_reported(project: pytest.Pytester) -> None:
    folder = project.mkdir("w[x]")
    (folder / "test_two.py").write_text(
        "from attnaudit import audit, checks\n\n"
        "@audit(checks.UniformFragility(at_least=0.1))\ndef test_faithful():\n    pass\n",
        encoding="utf-8",
    )
    result = project.runpytest("--model", "tiny")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_faithful*takes no argument `check`*"])


def test_without_a_terminal_a_failed_gate_is_a_failed_test(project: pytest.Pytester) -> None:
    result = run_pytest(project, "--model", "tiny", "-p", "no:terminal")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(newest_audit(project.path)["checks"]) == 3


HOPS = """

@attnaudit.register_model("hops")
def hops():
    from attnaudit.adapters import SeveralAttentionsAdapter

    adapter = tiny()

    def pool(states, allowed, attend):
        first, second = (attend(hop, adapter.attention(states, allowed), states) for hop in ("hop 1", "hop 2"))
        return adapter.decoder(first + second)

    return SeveralAttentionsAdapter(
        embedding=adapter.embedding,
        encoder=adapter.encoder,
        pool=pool,
        sites={"hop 1": 1, "hop 2": 1},
        tokenize=adapter.tokenize,
        classes=("negative", "positive"),
        modules=tuple(adapter.modules),
    )
"""


def test_several_attentions_without_a_reading_are_refused_with_the_readings(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + HOPS, encoding="utf-8")
    result = project.runpytest("--model", "hops")
    assert result.ret == 6
    outputs = [result.stdout.str() + result.stderr.str()]
    assert cli.main(["conformance", "hops"]) == 2
    outputs.append(capsys.readouterr().err)
    for output in outputs:
        assert "no reading is given" in output
        assert "pass it as the argument reading: 'own@site=hop 1', 'own@site=hop 2'." in output
        assert "TypeError" not in output
