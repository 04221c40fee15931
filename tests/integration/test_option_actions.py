"""Options that may be given only once, in a plugin of pytest."""

from __future__ import annotations

import argparse

import pytest

from attnaudit.plugin.option_actions import Once
from tests.forking_interpreter import run_pytest
from tests.slow_cases import slow_except

PLUGIN = """
    from attnaudit.plugin.option_actions import Once

    def pytest_addoption(parser):
        group = parser.getgroup("mine")
        group.addoption("--rules", action=Once, metavar="FILE", help="rules")
        group.addoption("--count", action=Once, type=int, help="count")
        group.addoption("--size", action=Once, choices=("small", "large"), help="size")
"""
TEST = """
    def test_options(pytestconfig):
        options = [pytestconfig.getoption(name) for name in ("--rules", "--count", "--size")]
        assert options == ["a.toml", 0, "small"]
"""
EACH_ONCE = ("--rules", "a.toml", "--count=0", "--size", "small")
MODES = [[], ["-n0"], pytest.param(["-n2"], marks=pytest.mark.slow)]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(TEST)
    return pytester


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
def test_an_option_that_is_given_once_has_its_value(project: pytest.Pytester, mode: list[str]) -> None:
    result = run_pytest(project, *EACH_ONCE, *mode)
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("again", "message"),
    slow_except(
        [
            (
                ["--rules", "b.toml"],
                "*argument --rules: this option is given twice, as a.toml and as b.toml. Give it once*",
            ),
            (["--rules=a.toml"], "*argument --rules: this option is given twice, as a.toml and as a.toml*"),
            (["--count", "3"], "*argument --count: this option is given twice, as 0 and as 3*"),
            (["--size", "large"], "*argument --size: this option is given twice, as small and as large*"),
        ],
        lambda case: case[0][0] != "--count",
    ),
)
def test_an_option_that_is_given_twice_is_a_usage_error(
    project: pytest.Pytester, again: list[str], message: str
) -> None:
    result = run_pytest(project, *EACH_ONCE, *again)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_the_configuration_file_and_the_environment_count(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makeini("[pytest]\naddopts = --rules lax.toml\n")
    result = run_pytest(project, *EACH_ONCE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*given twice, as lax.toml and as a.toml. Give it once; options also come from*addopts*"]
    )
    project.makeini("[pytest]\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--rules other.toml")
    result = run_pytest(project, *EACH_ONCE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*given twice, as other.toml and as a.toml*"])


def test_a_parser_can_be_used_again() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--rules", action=Once)
    for _ in range(2):
        assert parser.parse_args(["--rules", "a"]).rules == "a"
    with pytest.raises(argparse.ArgumentError, match="given twice, as a and as b"):
        parser.parse_args(["--rules", "a", "--rules", "b"])
