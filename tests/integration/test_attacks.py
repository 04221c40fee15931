"""Ways to get a green result from a model that fails a gate, which once worked."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from attnaudit import cli
from attnaudit.data import load
from tests.conftest import PROJECT_CONFTEST, newest_audit
from tests.consistent_runs import NAME, consistent_run
from tests.forking_interpreter import run_pytest
from tests.slow_cases import slow_except

#: `token_count` is 8 at most, so only the first threshold fails.
TWO_THRESHOLDS = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("token_count")(at_least=50))
def test_strict(check):
    check.enforce()

@audit(known.get("token_count")({lax}), known.get("attention_peak")(at_most=0.99))
def test_lax(check):
    check.enforce()
"""
LAXER_IN_THE_TEST = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("token_count")(at_least=50))
def test_faithful(check):
    laxer = known.get("token_count")(at_least=1)
    {trick}
    check.enforce()
"""


@pytest.mark.parametrize("lax", ["at_least=1", "severity='report'"])
def test_a_laxer_declaration_does_not_replace_a_gate_that_k_leaves_out(project: pytest.Pytester, lax: str) -> None:
    project.makepyfile(test_audit=TWO_THRESHOLDS.format(lax=lax))
    result = project.runpytest("--model", "tiny", "-k", "test_lax")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_lax and *test_strict have the same check 'token_count' with different *"])
    assert newest_audit(project.path)["status"] == "failed"


def test_a_laxer_declaration_does_not_replace_a_gate_that_a_conftest_removes(project: pytest.Pytester) -> None:
    project.makepyfile(test_audit=TWO_THRESHOLDS.format(lax="at_least=1"))
    removes = "def pytest_collection_modifyitems(items):\n    items[:] = [i for i in items if 'strict' not in i.nodeid]"
    project.makeconftest(f"{PROJECT_CONFTEST}\n{removes}\n")
    assert project.runpytest("--model", "tiny").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize("trick", ["check.check = laxer", "check.session.judge(laxer, check.model, check.data)"])
def test_a_test_cannot_judge_a_gate_by_another_threshold(project: pytest.Pytester, trick: str) -> None:
    project.makepyfile(test_audit=LAXER_IN_THE_TEST.format(trick=trick))
    result = project.runpytest("--model", "tiny")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*token_count: the test judged this check with other arguments than it was declared with*"]
    )
    (gate,) = newest_audit(project.path)["gates"]
    assert gate["state"] == "open"


@pytest.mark.parametrize(
    ("declaration", "options"),
    [
        ("@audit(strict)\ndef test_lax(check): check.enforce()", []),
        ("@audit(strict)\ndef audit_attention(check): check.enforce()", []),
        ("@audit(strict)\ndef test_strict(check): check.enforce()", ["-o", "python_functions=test_lax"]),
        ("class Attention:\n    @audit(strict)\n    def test_strict(self, check): check.enforce()", []),
        (
            "import unittest\nclass TestAttention(unittest.TestCase):\n    @audit(strict)\n"
            "    def test_strict(self, check=None): pass",
            [],
        ),
        ("@audit(strict)\n@torch.no_grad()\ndef test_lax(check): check.enforce()", []),
        ("from base import Base\nclass Attention(Base): pass", []),
        ("class Test:\n    class Inner:\n        @audit(strict)\n        def test_strict(self, check): pass", []),
    ],
    ids=[
        "name used again",
        "no test by its name",
        "other names are collected",
        "class not collected",
        "unittest",
        "made by a decorator of another file",
        "inherited from another file",
        "class in a class",
    ],
)
@pytest.mark.parametrize("workers", [[], pytest.param(["-n1"], marks=pytest.mark.slow)], ids=["one process", "xdist"])
def test_a_gate_of_a_function_that_is_not_collected_is_open(
    project: pytest.Pytester, declaration: str, options: list[str], workers: list[str]
) -> None:
    project.makepyfile(test_audit=NOT_COLLECTED.format(declaration=declaration), base=BASE)
    run = functools.partial(run_pytest, project) if workers else project.runpytest
    assert run("--model", "tiny", *options, *workers).ret == pytest.ExitCode.TESTS_FAILED
    states = {gate["check"]: gate["state"] for gate in newest_audit(project.path)["gates"]}
    assert states == {"token_count": "open", "attention_peak": "passed"}


@pytest.mark.parametrize("name", ["TestAttention", "TestOther"])
def test_a_collected_class_may_replace_the_gate_of_its_base(project: pytest.Pytester, name: str) -> None:
    replaced = "    @audit(known.get('token_count')(at_least=1))\n    def test_strict(self, check): check.enforce()"
    declaration = f"from base import Base\nclass {name}(Base):\n{replaced}"
    project.makepyfile(test_audit=NOT_COLLECTED.format(declaration=declaration), base=BASE)
    assert project.runpytest("--model", "tiny").ret == 0


@pytest.mark.slow
def test_a_gate_that_is_not_collected_is_open_in_every_session_of_a_process(project: pytest.Pytester) -> None:
    project.makepyfile(test_audit=NOT_COLLECTED.format(declaration="@audit(strict)\ndef other(check): pass"))
    options = ["-q", "--model", "tiny", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    project.makepyfile(twice=f"import pytest\nprint('statuses', [int(pytest.main({options})) for _ in range(2)])")
    result = project.runpython(project.path / "twice.py")
    result.stdout.fnmatch_lines(["statuses [[]1, 1]"])
    states = {gate["check"]: gate["state"] for gate in newest_audit(project.path)["gates"]}
    assert states == {"token_count": "open", "attention_peak": "passed"}


def test_a_class_cannot_be_decorated(project: pytest.Pytester) -> None:
    declaration = "@audit(strict)\nclass TestAttention:\n    def test_strict(self, check): pass"
    project.makepyfile(test_audit=NOT_COLLECTED.format(declaration=declaration))
    result = project.runpytest("--model", "tiny")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*audit: 'TestAttention' is a class. Decorate its test methods instead."])


#: A base class in a file without tests.
BASE = """
from attnaudit import audit
from attnaudit.registry import checks as known

class Base:
    @audit(known.get("token_count")(at_least=50))
    def test_strict(self, check):
        check.enforce()
"""
NOT_COLLECTED = """
import torch

from attnaudit import audit
from attnaudit.registry import checks as known

strict = known.get("token_count")(at_least=50)

{declaration}

@audit(known.get("attention_peak")(at_most=0.99))
def test_lax(check):
    check.enforce()
"""


def test_a_method_of_a_base_class_and_a_wrapped_function_are_collected(project: pytest.Pytester) -> None:
    project.makepyfile(test_audit=INHERITED_AND_WRAPPED)
    assert project.runpytest("--model", "tiny").ret == pytest.ExitCode.OK
    assert {gate["state"] for gate in newest_audit(project.path)["gates"]} == {"passed"}


INHERITED_AND_WRAPPED = """
import functools
from attnaudit import audit
from attnaudit.registry import checks as known

class Base:
    @audit(known.get("token_count")(at_least=1))
    def test_inherited(self, check):
        check.enforce()

class TestInherited(Base):
    pass

def wrapped(function):
    @functools.wraps(function)
    def wrapper(check):
        function(check)
    return wrapper

@wrapped
@audit(known.get("attention_peak")(at_most=0.99))
def test_wrapped(check):
    check.enforce()
"""


@pytest.mark.parametrize("plugin", ["attnaudit-run", "python"])
def test_the_plugins_of_a_run_cannot_be_disabled_in_an_audit(project: pytest.Pytester, plugin: str) -> None:
    project.makeconftest(PROJECT_CONFTEST + FAKE_CHECK)
    result = project.runpytest("--model", "tiny", "-p", f"no:{plugin}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*-p no:{plugin}*the audit cannot run*"])


FAKE_CHECK = """
import pytest

class AlwaysPasses:
    def enforce(self):
        pass

@pytest.fixture
def check():
    return AlwaysPasses()
"""


@pytest.mark.parametrize(
    "hook", slow_except(["", "pytest_configure", "pytest_sessionfinish", "pytest_unconfigure"], ["pytest_unconfigure"])
)
def test_a_conftest_that_exits_with_0_does_not_make_the_audit_pass(project: pytest.Pytester, hook: str) -> None:
    exits = f"import sys\ndef {hook}():\n    sys.exit(0)\n" if hook else "import sys\nsys.exit(0)\n"
    project.makeconftest(PROJECT_CONFTEST + exits)
    result = run_pytest(project, "--model", "tiny")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*sys.exit(0)*" if hook != "pytest_configure" else "*SystemExit*"])


def test_a_conftest_that_replaces_the_session_does_not_make_the_audit_pass(project: pytest.Pytester) -> None:
    replaces = "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_cmdline_main():\n    return 0\n"
    project.makeconftest(PROJECT_CONFTEST + replaces)
    result = run_pytest(project, "--model", "tiny")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stderr.fnmatch_lines(["*nothing was audited*"])
    assert run_pytest(project, "--model", "tiny", "--fixtures").ret == pytest.ExitCode.OK


def test_a_conftest_that_exits_with_0_does_not_make_a_command_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    consistent_run(tmp_path / "reports" / NAME, models={"of_the_conftest": "3f" * 32})
    Path("conftest.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    assert cli.main(["verify", "--model", "of_the_conftest"]) == 1
    assert "with sys.exit(0), before the command had finished" in capsys.readouterr().err


def test_a_file_with_the_name_of_a_model_does_not_prevent_that_its_weights_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    consistent_run(tmp_path / "reports" / NAME, models={"of_the_conftest": "3f" * 32})
    Path("conftest.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    Path("of_the_conftest").write_text("no checkpoint", encoding="utf-8")
    assert cli.main(["verify", "--model", "of_the_conftest"]) == 1
    assert "RuntimeError: imported" in capsys.readouterr().out


def test_only_checkpoint_folders_and_existing_data_are_compared_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    consistent_run(tmp_path / "reports" / NAME)
    Path("release").write_text("no checkpoint", encoding="utf-8")
    assert cli.main(["verify", "--model", "release", "--data", "reviews"]) == 0
    assert "compared by name only: release, reviews" in capsys.readouterr().out
    Path("reviews").mkdir()
    assert cli.main(["verify", "--model", "release", "--data", "reviews"]) != 0
    assert "reviews: this is a folder without .parquet files" in capsys.readouterr().out


def test_the_hash_of_the_data_covers_the_sources_that_decide_the_width_of_intervals(tmp_path: Path) -> None:
    rows = ["id,text,label,source", "1,good film,0,review", "2,bad film,1,review"]
    hashes = set()
    for number, lines in enumerate((rows, [line.rpartition(",")[0] for line in rows], [rows[0], *rows[:0:-1]])):
        path = tmp_path / f"{number}.csv"
        path.write_text("\n".join(lines), encoding="utf-8")
        hashes.add(load(str(path)).audited_sha256())
    assert len(hashes) == 2  # the third file has the rows of the first in another order


def test_no_text_can_look_like_two_rows_in_the_hash_of_the_data(tmp_path: Path) -> None:
    two, one = tmp_path / "two.csv", tmp_path / "one.csv"
    two.write_text("id,text,label\n1,good,a\n2,bad,b\n", encoding="utf-8")
    one.write_text("id,text,label\n1,good\x1f\x1fa\x1f\x1e2\x1fbad,b\n", encoding="utf-8")
    assert load(str(two)).sha256() == load(str(one)).sha256()
    assert load(str(two)).audited_sha256() != load(str(one)).audited_sha256()
