"""An @audit function with several policies applies the one that names the family of the model."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.conftest import newest_audit
from tests.forking_interpreter import run_pytest

TEST = """
from pathlib import Path

from attnaudit import audit, checks

HERE = Path(__file__).parent

@audit(checks.load_policy(HERE / "pooled.toml"), checks.load_policy(HERE / "other.toml"))
def test_faithful(check):
    check.enforce()
"""
POLICY = """
[policy]
applies_to = [{families}]

[[check]]
name = "{name}"
{threshold}
"""
CONFTEST = """

@attnaudit.register_model("large")
def large():
    adapter = tiny()
    adapter.family = "transformer, bert"
    return adapter


@attnaudit.register_model("broken")
def broken():
    raise RuntimeError("no weights")
"""


@pytest.fixture
def several(project: pytest.Pytester) -> pytest.Pytester:
    """A project with a policy for pooled models and one for Transformers."""
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + CONFTEST, encoding="utf-8")
    project.makepyfile(test_audit=TEST)
    write_policies(project.path, pooled='"pooled attention"', other='"transformer"')
    return project


def write_policies(folder: Path, *, pooled: str, other: str) -> None:
    for name, families, check, threshold in (
        ("pooled.toml", pooled, "attention_peak", "at_most = 0.99"),
        ("other.toml", other, "token_count", "at_least = 1"),
    ):
        (folder / name).write_text(POLICY.format(families=families, name=check, threshold=threshold), encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "check", "file"), [("tiny", "attention_peak", "pooled.toml"), ("large", "token_count", "other.toml")]
)
def test_the_family_of_the_model_chooses_the_policy(
    several: pytest.Pytester, model: str, check: str, file: str
) -> None:
    result = several.runpytest("--model", model)
    assert result.ret == 0
    content = newest_audit(several.path)
    assert content["status"] == "passed"
    assert [gate["check"] for gate in content["gates"]] == [check]
    assert [table["id"] for table in content["effective_policy"]["checks"]] == [check]
    assert content["declared_policy"]["file"] == file


def test_the_policy_on_the_command_line_replaces_all_of_them(several: pytest.Pytester) -> None:
    assert several.runpytest("--model", "large", "--model", "tiny", "--policy", "pooled.toml").ret == 0
    assert {gate["check"] for gate in newest_audit(several.path)["gates"]} == {"attention_peak"}


@pytest.mark.parametrize(
    ("pooled", "other", "models", "message"),
    [
        (
            '"rnn"',
            '"transformer"',
            "tiny",
            "no policy applies to its family (pooled attention): pooled.toml applies to 'rnn'; other.toml",
        ),
        (
            '"rnn"',
            '"transformer"',
            "tiny",
            "the run then fails unless you also validate the policy on such models and add the family to validated_on",
        ),
        ('"pooled attention"', '"pooled"', "tiny", "both pooled.toml and other.toml apply to its family"),
        ('"pooled attention"', '"transformer"', "tiny large", "pooled.toml for tiny, other.toml for large"),
    ],
)
def test_an_unclear_choice_stops_the_run_and_names_the_remedy(
    several: pytest.Pytester, pooled: str, other: str, models: str, message: str
) -> None:
    write_policies(several.path, pooled=pooled, other=other)
    result = several.runpytest(*(word for model in models.split() for word in ("--model", model)))
    assert result.ret == 4
    assert message in result.stderr.str()
    assert "--policy FILE" in result.stderr.str()
    assert newest_audit(several.path)["status"] == "failed"


PEAK = """
from attnaudit import audit
from attnaudit.registry import checks as known

@audit(known.get("attention_peak")(at_most=0.99))
def test_peak(check):
    check.enforce()
"""
REMOVING = """
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "test_faithful" not in item.nodeid]
"""


@pytest.mark.parametrize(
    ("conftest", "options"),
    [
        ("", ["-k", "test_peak"]),
        ("", ["--deselect=test_audit.py::test_faithful"]),
        ("", ["-k", "test_peak", "--audit-allow-partial"]),
        (REMOVING, []),
        pytest.param("", ["-k", "test_peak", "-n1"], marks=pytest.mark.slow),
    ],
    ids=["k", "deselect", "allowed", "conftest", "xdist"],
)
def test_an_unclear_choice_stops_the_run_even_if_the_function_is_not_selected(
    several: pytest.Pytester, conftest: str, options: list[str]
) -> None:
    several.makepyfile(test_peak=PEAK)
    with (several.path / "conftest.py").open("a", encoding="utf-8") as file:
        file.write(conftest)
    run = functools.partial(run_pytest, several) if "-n1" in options else several.runpytest
    write_policies(several.path, pooled='"rnn"', other='"transformer"')
    result = run("--model", "tiny", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = "--model tiny: no policy applies to its family (pooled attention)"
    assert (result.stdout.str() + result.stderr.str()).count(message) == 1
    audit = newest_audit(several.path)
    assert (audit["status"], audit["exit_status"]) == ("failed", pytest.ExitCode.USAGE_ERROR)
    assert audit["problem"].startswith(message)


def test_a_model_that_cannot_be_loaded_leaves_its_gates_open(several: pytest.Pytester) -> None:
    result = several.runpytest("--model", "broken")
    assert result.ret == 6
    (gate,) = newest_audit(several.path)["gates"]
    assert gate["state"] == "open"
    assert "no weights" in gate["reason"]


def test_a_model_is_loaded_once(several: pytest.Pytester) -> None:
    conftest = (several.path / "conftest.py").read_text(encoding="utf-8")
    counted = conftest.replace("    torch.manual_seed(0)\n", "    torch.manual_seed(0)\n    print('LOADED')\n")
    (several.path / "conftest.py").write_text(counted, encoding="utf-8")
    result = several.runpytest("--model", "tiny", "-s")
    assert result.ret == 0
    assert result.stdout.str().count("LOADED") == 1


def test_gates_of_a_function_that_is_no_test_stay_open(several: pytest.Pytester) -> None:
    several.makepyfile(test_audit=TEST.replace("def test_faithful", "def faithful"), test_more="def test_x(): pass")
    result = several.runpytest("--model", "tiny")
    assert result.ret == 1
    assert {gate["state"] for gate in newest_audit(several.path)["gates"]} == {"open"}


def test_every_one_of_several_policies_names_families(several: pytest.Pytester) -> None:
    write_policies(several.path, pooled='"pooled attention"', other="")
    result = several.runpytest("--model", "tiny")
    assert result.ret != 0
    assert "other.toml does not name the families of models that it applies to" in result.stdout.str()
