"""`attnaudit verify` in the folder of a project: its conftest.py, names that are no paths, and other folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnaudit import cli
from attnaudit.run.run_choice import is_run_folder
from tests.audited_project import AuditedProject
from tests.consistent_runs import NAME, consistent_run

POLICY = """
[[check]]
name = "attention_peak"
at_most = 0.99

[[check]]
name = "token_count"
at_least = {least}
"""
APPLY = """
from pathlib import Path
from attnaudit import audit, checks

@audit(checks.load_policy(Path("policy.toml")))
def test_faithful(check):
    check.enforce()
"""


@pytest.mark.parametrize("model", [pytest.param("tiny", marks=pytest.mark.slow), "={}"], ids=["registered", "hash"])
def test_a_policy_file_may_name_checks_of_a_conftest(audited: AuditedProject, model: str) -> None:
    audited.write("policy.toml", POLICY.format(least=1))
    audited.write("test_audit.py", APPLY)
    run = audited.pytest()
    assert run.status == 0, run.text
    given = model.format(run.audit["models"][0]["sha256"])
    done = audited.verify("--policy=policy.toml", models=[f"tiny{given}" if "=" in given else given])
    assert done.status == 0, done
    assert "--policy" not in done.out
    audited.write("policy.toml", POLICY.format(least=2))
    refused = audited.verify("--policy=policy.toml", models=["tiny"])
    assert refused.status == 1
    assert "The run applied a policy with another hash" in refused.out


def test_a_conftest_that_cannot_be_imported_is_named(audited: AuditedProject) -> None:
    audited.write("policy.toml", POLICY.format(least=1))
    audited.write("test_audit.py", APPLY)
    assert audited.pytest().status == 0
    audited.extend("import no_such_module")
    refused = audited.verify("--policy=policy.toml")
    assert refused.status == 1
    assert "conftest.py: cannot be imported to find what it registers: ModuleNotFoundError" in refused.out


@pytest.mark.parametrize("option", ["--model", "--data"])
def test_a_name_that_is_too_long_for_a_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    consistent_run(tmp_path / "reports" / NAME)
    model = [] if option == "--model" else ["--model", "release"]
    assert cli.main(["verify", *model, option, "x" * 300]) == 1
    shown = capsys.readouterr()
    assert f"- {option} {'x' * 77}...: cannot be accessed (File name too long)." in shown.out
    assert shown.err == ""


def test_a_folder_that_cannot_be_read_is_a_run_only_if_it_has_the_name_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    consistent_run(tmp_path / "reports" / NAME)
    unreadable = tmp_path / "reports" / "lost+found"
    unreadable.mkdir()
    original = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if unreadable in path.absolute().parents:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    assert cli.main(["verify", "--model", "release"]) == 0
    unreadable = unreadable.rename(tmp_path / "reports" / "20990101-000000-0000")
    assert is_run_folder(unreadable)
    assert cli.main(["verify", "--model", "release"]) == 1
    assert "20990101-000000-0000 is a newer run" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_before_a_resumption_that_was_refused_is_not_verified(audited: AuditedProject) -> None:
    assert audited.pytest().status == 0
    assert audited.verify().status == 0
    assert audited.pytest("--audit-resume=reports/mergd").status == 4
    refused = audited.verify()
    assert refused.status == 1
    assert "the file names 'mergd', but there is no such folder. Run the audit again." in refused.out
    assert audited.pytest().status == 0
    assert audited.verify().status == 0
