"""Files that are pipes and names that mean two things are usage errors of pytest: it neither hangs nor guesses."""

from __future__ import annotations

import os

import pytest

from tests.forking_interpreter import run_pytest
from tests.slow_cases import slow_except


@pytest.mark.parametrize(
    ("arguments", "message"),
    slow_except(
        [
            (["--policy", "pipe.toml"], "*pipe.toml: this is a pipe, expected a regular file with the policy*"),
            (["--policy", "/dev/zero"], "*/dev/zero: this is a device, expected a regular file with the policy*"),
            (["--policy", "."], "*this is a folder, expected a file with the policy*"),
            (["--data", "pipe.csv"], "*pipe.csv: this is a pipe, expected a regular file with the data*"),
        ],
        lambda case: "pipe" in case[0][1],
    ),
)
def test_a_pipe_is_a_usage_error(project: pytest.Pytester, arguments: list[str], message: str) -> None:
    for name in ("pipe.toml", "pipe.csv"):
        os.mkfifo(project.path / name)
    result = run_pytest(project, "--model", "tiny", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_a_name_that_means_two_things_is_a_usage_error(project: pytest.Pytester) -> None:
    (project.path / "tiny").mkdir()
    result = run_pytest(project, "--model", "tiny")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--model tiny: this is both a registered model and a folder. Write --model ./tiny for*"]
    )
