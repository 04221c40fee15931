"""The command `attnaudit`, run in a folder outside this repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from attnaudit import cli
from attnaudit.command_parser import CommandParser
from attnaudit.commands import schema_command, verify_command
from attnaudit.report import audit_schema
from attnaudit.run import RunFolder
from attnaudit.run.finish_run import RunContext, begin_run, current_time
from tests.forking_interpreter import run_module
from tests.slow_cases import slow_except

ROOT = Path(__file__).parents[2]


def attnaudit(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_module("attnaudit", *arguments, cwd=folder)


def test_init_writes_an_audit_that_pytest_collects(tmp_path: Path) -> None:
    done = attnaudit("init", folder=tmp_path)
    assert done.returncode == 0
    assert "\nnext:\n  pytest audits/ --model demo\nto audit your own model:\n" in done.stdout
    written = tmp_path / "audits" / "test_attention_faithfulness.py"
    assert written.read_text(encoding="utf-8") == (ROOT / "audits" / written.name).read_text(encoding="utf-8")
    collected = run_module("pytest", "audits/", "--model", "demo", "--collect-only", "-q", cwd=tmp_path)
    assert collected.returncode == 0
    cases = [line for line in collected.stdout.splitlines() if "::" in line]
    assert any("test_attention_is_faithful[demo-movie-reviews-agreement.gradient.meister.inputs]" in c for c in cases)


def test_the_example_conftest_of_init_is_valid_and_not_active(tmp_path: Path) -> None:
    attnaudit("init", "mine", folder=tmp_path)
    example = tmp_path / "mine" / "audits" / "conftest_example.py"
    compile(example.read_text(encoding="utf-8"), str(example), "exec")
    assert not (tmp_path / "mine" / "audits" / "conftest.py").exists()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("init", "n" * 300), 1, "File name too long"),
        (("report", "file.txt"), 2, "attnaudit: file.txt: this is a file. Expected the folder of a run"),
        (("verify", "file.txt", "--model", "demo"), 1, "- file.txt: this is a file. Expected the folder of a run"),
    ],
)
def test_a_path_of_the_wrong_kind_is_one_clear_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("")
    assert cli.main(words) == status
    shown = capsys.readouterr()
    assert message in shown.out + shown.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", ""), "the argument after report is empty."),
        (("compare", "base", " "), "the argument after base is empty."),
        (("conformance", "demo", "--data", ""), "the argument after --data is empty."),
        (("conformance", "--device=cpu", ""), "the argument after --device=cpu is empty."),
        (("baseline", "accept", "--out", "accepted", "--yes", ""), "the argument after --yes is empty."),
        (("report", "--", ""), "the argument after -- is empty."),
        (("plan", "--model", "demo", "--data="), "--data: the value is empty."),
        (("merge", "--into", "", "shards"), "the argument after --into is empty."),
        (("evidence", "reports", "--subject", "model", ""), "the argument after model is empty."),
    ],
)
def test_an_empty_value_never_stands_for_the_working_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    """A shell passes an empty word for a variable that is not set, if the variable is quoted."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(f"attnaudit: {message}")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("measure", "--model", "demo", "--policy", str(ROOT / "audits" / "policy.toml"), "--out"), 2),
        (("gallery", "--out"), 2),
        (("gallery", "--models"), 2),
        (("plant", "--out"), 2),
        (("validate", "--out"), 2),
        (("reproduce", "jain-wallace", "--out"), 2),
    ],
)
@pytest.mark.parametrize("name", ["file.txt", "file.txt/folder"])
def test_a_long_command_refuses_a_file_as_its_folder_before_it_works(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    status: int,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("")
    assert cli.main([*words, name]) == status
    shown = capsys.readouterr()
    assert f"attnaudit: {words[-1]} {name}: file.txt is a file. Give a folder" in shown.err
    assert shown.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--threads", "0"),
        ("--workers", "0"),
        ("--batch-tokens", "0"),
        ("--max-instances", "0"),
        ("--seed", "-1"),
        ("--device", "tpu"),
        ("--worker-timeout", "5"),
    ],
)
def test_measure_names_its_options_as_it_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = str(ROOT / "audits" / "policy.toml")
    assert cli.main(["measure", "--model", "demo", "--policy", policy, "--out", "shards", option, value]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"attnaudit: {option} {value}: ")
    assert "--audit-" not in shown


@pytest.mark.parametrize("command", [("measure", "--out", "shards"), ("plan",), ("stability", "--seeds", "1")])
def test_a_folder_in_tmpdir_that_cannot_be_used_is_refused_before_measuring(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "nowhere")
    Path("policy.toml").write_text('[[check]]\nname = "UniformFragility"\nat_least = 0.01\n', encoding="utf-8")
    Path("d.jsonl").write_text('{"text": "a good film", "label": "positive"}\n' * 40, encoding="utf-8")
    name, *options = command
    assert cli.main([name, "--model", "demo", "--data", "d.jsonl", "--policy", "policy.toml", *options]) == 2
    shown = capsys.readouterr().err
    assert "attnaudit: TMPDIR nowhere: this is not a folder that can be written to." in shown
    assert not Path("shards").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plant", "--out", "models", "--kind", "bypas"), "Unknown planted kind 'bypas'. Did you mean 'bypass'"),
        (("plant", "--out", "models", "--seeds", "0"), "--seeds 0: expected a whole number of at least 1."),
        (("plant", "--out", "models", "--family", "transformer", "--kind", "x"), "'x'"),
        (("plant", "--out", "models", "--family", "multi-label", "--kind", "x"), "--kind: --family multi-label always"),
        (("gallery", "--out", "pages", "--models", "models", "--kind", "bypas"), "Unknown planted kind 'bypas'."),
        (("gallery", "--jobs", "0"), "--jobs 0: expected at least 1."),
        (("train", "--data", "nothing", "--out", "m"), "Unknown data set 'nothing'"),
        (("train", "--data", "movie-reviews", "--out", "file.txt"), "file.txt"),
        (("train", "--data", "movie-reviews", "--out", "m", "--epochs", "0"), "epochs"),
        (("validate", "--population", "none", "--policy", "rule"), "there is no such file"),
    ],
)
def test_an_invalid_option_of_a_long_command_is_a_usage_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("")
    assert cli.main(words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("attnaudit: ")
    assert message in shown


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    written = tmp_path / "audits" / "test_attention_faithfulness.py"
    written.parent.mkdir()
    written.write_text("mine")
    done = attnaudit("init", folder=tmp_path)
    assert done.returncode == 1
    assert "already exists and is not overwritten" in done.stderr
    assert written.read_text() == "mine"
    assert list(written.parent.iterdir()) == [written]


def test_help_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys; from attnaudit import cli; cli.main([]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "pytest audits/ --model demo" in done.stdout


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(given: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given is not None:
        environment["OMP_WAIT_POLICY"] = given
    code = "import os; from attnaudit import cli; cli.main([]); print(os.environ['OMP_WAIT_POLICY'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == expected


@pytest.mark.parametrize("command", slow_except(cli.COMMANDS, ["compare", "measure", "verify", "reproduce"]))
def test_the_help_of_a_command_imports_its_module_alone_and_no_torch(command: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom attnaudit import cli\n"
        f"try: cli.main([{command!r}, '--help'])\nexcept SystemExit: pass\n"
        "print('torch' in sys.modules, *sorted({c.module for c in cli.COMMANDS.values()} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"usage: attnaudit {command}" in done.stdout
    has_torch, *modules = done.stdout.splitlines()[-1].split()
    assert has_torch == "False"
    assert set(modules) - {"attnaudit.commands.conformance_command"} <= {cli.COMMANDS[command].module}
    assert cli.COMMANDS[command].module in modules


def test_schema_prints_the_schema_of_audit_json(tmp_path: Path) -> None:
    printed = json.loads(attnaudit("schema", folder=tmp_path).stdout)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == audit_schema()


def test_list_prints_the_registered_names(tmp_path: Path) -> None:
    lines = attnaudit("list", folder=tmp_path).stdout.splitlines()
    assert "  demo" in lines
    assert "  movie-reviews" in lines
    assert any(
        re.fullmatch(r"  Agreement +at_least  Does attention rank the tokens in the same order as .*\?", line)
        for line in lines
    )
    assert any(re.fullmatch(r"  ParameterRandomisation +at_least or at_most  .*\?", line) for line in lines)
    checks = lines[lines.index("checks, with the arguments for a threshold:") + 1 : lines.index("measures:")]
    assert len(checks) >= 22  # all built-in checks
    assert all(line.endswith("?") for line in checks)
    assert "  leave_one_out" in lines
    assert "  jain-wallace: Jain & Wallace 2019, Attention is not Explanation" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explroe", "reports"], "attnaudit: error: unknown command 'explroe'. Did you mean 'explore'"),
        (["policy", "dif"], "attnaudit policy: error: unknown command 'dif'. Did you mean 'diff'?"),
        (
            ["plan", "--rows", "many"],
            "attnaudit plan: error: argument --rows: expected a whole number, but got 'many'.",
        ),
        (["plant"], "attnaudit plant: error: the following arguments are required: --out."),
        (["train", "--dropout", "some"], "--dropout: expected a number, such as 0.1, but got 'some'."),
        (["plan", "--polcy", "x.toml"], "attnaudit plan: error: unknown option --polcy. Did you mean '--policy'?"),
        (["--vesion"], "attnaudit: error: unknown option --vesion. Did you mean '--version'?"),
        (
            ["verify", "reports", "--unit", "word"],
            "expected tokens, words or sources, but got 'word'. Did you mean 'words'?",
        ),
        (["baseline", "accept", "r", "--out", "b", "--name", "lats"], "but got 'lats'. Did you mean 'last'?"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_right_one(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert message in line
    assert "--help` shows what is expected." in line
    assert captured.out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "verify --model m --seed 3 --seed 0",
            "verify: error: argument --seed: this option is given twice, as 3 and as 0",
        ),
        ("verify --policy=a.toml --policy=b.toml", "argument --policy: this option is given twice, as a.toml and as b"),
        (
            "plan --poli a.toml --policy a.toml",
            "argument --policy: this option is given twice, as a.toml and as a.toml",
        ),
        ("stability --model a --model=b", "argument --model: this option is given twice, as a and as b. Give it once."),
        ("stability --model a --data A --data B", "argument --data: this option is given twice, as A and as B"),
        (
            "stability --model a --batch-tokens 2 3 --batch-tokens",
            "--batch-tokens: this option is given twice, as 2 3 and",
        ),
        ("stability --model a --unit words --unit tokens", "argument --unit: this option is given twice"),
        ("measure --policy p --shard 1/2 --out a --out b", "argument --out: this option is given twice, as a and as b"),
        (
            "train --data a --out b --epochs 2 --epochs 3",
            "argument --epochs: this option is given twice, as 2 and as 3",
        ),
        ("evidence run --subject a --out b --out c", "argument --out: this option is given twice"),
        ("baseline accept r --out b --out c", "baseline accept: error: argument --out: this option is given twice"),
        ("reproduce p --seeds 2 --seeds 3", "argument --seeds: this option is given twice, as 2 and as 3"),
    ],
)
def test_an_option_with_one_value_may_be_given_once(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_flags_and_repeatable_options_may_be_repeated() -> None:
    parser = CommandParser()
    verify_command.add_arguments(parser)
    words = ["--model=a", "--model=b", "--allow-sample", "--allow-sample", "--seed=3", "runs"]
    for _ in range(2):  # nothing is left of an earlier command line
        options = parser.parse_args(words)
        assert (options.model, options.allow_sample, options.seed, options.folder) == (["a", "b"], True, 3, "runs")


def test_the_beginning_of_an_option_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--poli", "absent.toml"]) == 2
    assert "absent.toml: there is no such policy file" in capsys.readouterr().err


def test_report_names_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    done = attnaudit("report", "reports/none", folder=tmp_path)
    assert done.returncode == 2
    assert "no such folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_report_explains_that_a_run_was_killed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "reports", "20260101-000000-abc")
    begin_run(folder, RunContext(version="0.1.0", created=current_time(), command=["pytest"], seed=0))
    for given in ("reports", "reports/20260101-000000-abc"):
        done = attnaudit("report", given, folder=tmp_path)
        assert done.returncode == 1
        assert "the run has not ended, or its process was killed" in done.stderr


def test_letters_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "attnaudit", "list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "Tutek & \\u0160najder" in done.stdout


def test_an_interrupted_command_prints_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(schema_command, "run", interrupted)
    assert cli.main(["schema"]) == 130
    assert capsys.readouterr().err.startswith("attnaudit: interrupted.")
