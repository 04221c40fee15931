"""docs/ci.md: the commands of the workflow run unchanged, and the table lists every option."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from attnaudit import cli
from attnaudit.records import RunStatus
from tests.examples.release_repository import release_repository

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="the commands of a workflow are for bash")
def test_the_commands_of_the_workflow_run_unchanged(tmp_path: Path) -> None:
    (workflow,) = re.findall(r"<!-- example: audit.yml -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    jobs = yaml.safe_load(workflow)["jobs"]
    commands = [step["run"] for step in jobs["audit"]["steps"] if "run" in step]
    assert commands[0].startswith("pip install attnaudit ")
    environment = {
        **release_repository(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "page.md"),
        "GITHUB_ENV": str(tmp_path / "variables"),
    }
    statuses = []
    for command in commands[1:]:
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
        )
        statuses.append(done.returncode)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        if (tmp_path / "variables").is_file():
            lines = (tmp_path / "variables").read_text(encoding="utf-8").splitlines()
            environment |= dict(line.split("=", 1) for line in lines)
    assert statuses == [0, 0, 1, 1, 0]  # the demo fails a gate, so the run is not verified
    assert r"permutation\_fragility.tvd" in (tmp_path / "page.md").read_text(encoding="utf-8")
    junit = (tmp_path / "reports" / "audit.xml").read_text(encoding="utf-8")
    assert 'failures="' in junit
    assert set(re.findall(r'property name="([\w.]+)"', junit)) <= set(re.findall(r"`(attnaudit[\w.]*)`", PAGE))
    (comment,) = [step for step in jobs["comment"]["steps"] if "run" in step]
    for removed, expected in ((False, "This release is blocked."), (True, "The attention audit wrote no summary.")):
        if removed:
            shutil.rmtree(tmp_path / "reports")
        script = ["bash", "-e", "-c", comment["run"]]
        subprocess.run(script, cwd=tmp_path, env={**environment, "COMMIT": "3f0a"}, check=True)
        text = (tmp_path / jobs["comment"]["steps"][-1]["with"]["path"]).read_text(encoding="utf-8")
        assert text.startswith(("## Attention audit", "**✗"))
        assert expected in text
        assert text.endswith("\nAudited commit: 3f0a\n")


def test_the_options_of_verify_are_in_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["verify", "--help"])
    options = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    (section,) = re.findall(r"## Verify the run\n(.*?)\n## ", PAGE, re.DOTALL)
    rows = re.findall(r"^\| (`--.*?`) \|", section, re.MULTILINE)
    assert set(re.findall(r"`(--[\w-]+)", " ".join(rows))) == options


def test_the_tables_have_every_status() -> None:
    statuses = set(
        re.findall(r"^\| `(\w+)` \|", PAGE.split("## The status of a run")[1].split("\n## ")[0], re.MULTILINE)
    )
    assert statuses == set(get_args(RunStatus))
    (section,) = re.findall(r"## Exit status\n(.*?)\n## ", PAGE, re.DOTALL)
    assert re.findall(r"^\| (\d) \|", section, re.MULTILINE) == [str(status) for status in range(8)]


def test_the_table_has_every_option_with_its_default(pytestconfig: pytest.Config) -> None:
    rows = re.findall(r"^\| `(audit_\w+)` \| `(--[\w-]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    help_ = subprocess.run(
        [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"], capture_output=True, text=True, check=True
    ).stdout
    assert {name for name, _, _ in rows} == set(re.findall(r"^ +(audit_\w+) \(", help_, re.MULTILINE))
    for name, option, default in rows:
        assert f"{option}=" in help_ or f"{option} " in help_
        if default.startswith("`"):
            actual = pytestconfig.getini(name)
            shown = str(actual).lower() if isinstance(actual, bool) else actual
            assert default.split("`")[1] == (shown[0] if isinstance(shown, list) else shown)
