"""`attnaudit compare` on two real runs of two small models."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit import cli
from tests.conftest import PROJECT_CONFTEST, newest_run

#: A second model, which differs from "tiny" in its seed only.
SECOND_MODEL = """

@attnaudit.register_model("other")
def other():
    import torch

    adapter = tiny()
    torch.manual_seed(1)
    for module in adapter.modules:
        module.reset_parameters()
    return adapter
"""
POLICY = """
[[check]]
name = "UniformFragility"
at_least = 0.0001

[[check]]
name = "Agreement"
severity = "report"

[[check]]
name = "attention_peak"
at_most = 0.99
"""


def run(*arguments: object) -> int:
    return cli.main(["compare", *map(str, arguments)])


@pytest.fixture
def folders(project: pytest.Pytester) -> tuple[Path, Path]:
    """The folders of a run of each model."""
    project.makeconftest(PROJECT_CONFTEST + SECOND_MODEL)
    (project.path / "policy.toml").write_text(POLICY, encoding="utf-8")
    found = []
    for model in ("tiny", "other"):
        project.runpytest_inprocess("--model", model, "--policy", "policy.toml", "--audit-reports", f"of-{model}")
        found.append(newest_run(project.path, f"of-{model}"))
    return found[0], found[1]


def test_two_real_runs_are_compared(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    page = tmp_path / "new folder" / "page.html"
    assert run(*folders, "--out", page) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "The candidate is " in lines[0]
    assert lines[-2:] == [str(page), str(page.with_suffix(".md"))]
    summary = page.with_suffix(".md").read_text(encoding="utf-8")
    assert "other, compared with tiny, on rows" in summary
    assert "40 instances from 30 sources were paired by id." in summary
    assert "Both runs applied the same policy." in summary
    assert "attention\\_peak: measurements.parquet does not contain the numbers" in summary
    html = page.read_text(encoding="utf-8")
    assert html.count('class="token-row attention of-base"') == html.count('class="token-row attention of-candidate"')
    assert html.count('class="token-row attention of-base"') > 5

    assert run(folders[0].parent, folders[1].parent) == 0  # the newest run of each folder
    assert (folders[1] / "comparison.html").is_file()


def test_what_cannot_be_compared_is_one_clear_error(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    for arguments, words in (
        ((folders[0], tmp_path / "absent"), "absent: there is no such folder"),
        ((*folders, "--out", tmp_path / "page.txt"), "page.txt: expected a file that ends in .html"),
        ((*folders, "--out", folders[0] / "report.html"), "this file is a page of the run"),
        ((*folders, "--out", folders[1] / "summary.html"), "summary.md: this file is a page of the run"),
        ((*folders, "--candidate-model", "tiny"), "--candidate-model tiny: the run"),
    ):
        assert run(*arguments) == 2
        out, error = capsys.readouterr()
        assert (out, words in error) == ("", True), error
    (folders[1] / "measurements.parquet").write_bytes(b"")
    assert run(*folders) == 1
    assert "edited or damaged" in capsys.readouterr().err
