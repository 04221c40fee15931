"""`attnaudit policy diff` and `attnaudit policy hash`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from attnaudit import checks, cli
from attnaudit.checks.policies.effective_policy import effective_policy, effective_policy_of_file
from attnaudit.formatting import terminal_safe, without_commands
from attnaudit.records import EffectivePolicy, PolicyException
from tests.units.report.example_runs import run_record

ROOT = Path(__file__).parents[2]
OLD = '[[check]]\nname = "UniformFragility"\nat_least = 0.1\n[[check]]\nname = "Conicity"\nseverity = "report"\n'
NEW = (
    '# comment\n[[check]]\nname = "UniformFragility"\nat_least = 0.05\n'
    '[[check]]\nname = "InformationRanking"\nat_least=0.1\n'
)


def write_run(folder: Path, policy: EffectivePolicy | None, **changes: str) -> Path:
    folder.mkdir(parents=True)
    record = run_record([], effective_policy=policy, **changes)
    (folder / "audit.json").write_bytes(msgspec.json.encode(record))
    return folder


def run(*arguments: object) -> int:
    return cli.main(["policy", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text(OLD, encoding="utf-8")
    new.write_text(NEW, encoding="utf-8")
    return old, new


def test_diff_shows_laxer_changes_first_and_fails(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", *files) == 1
    assert capsys.readouterr().out.splitlines() == [
        "laxer: uniform_fragility.tvd: at_least changed from 0.1 to 0.05",
        "disappeared: conicity: an informational check",
        "appeared: information_ranking: a gate with at_least 0.1",
        "The new policy may pass models that the old one blocks: see the first 2 of 3 lines.",
    ]


def test_diff_succeeds_if_nothing_is_laxer(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", files[0], files[0]) == 0
    assert capsys.readouterr().out == "The policies are the same.\n"
    stricter = files[1].with_name("stricter.toml")
    stricter.write_text(OLD.replace("0.1", "0.2"), encoding="utf-8")
    assert run("diff", files[0], stricter) == 0
    assert capsys.readouterr().out.splitlines() == [
        "stricter: uniform_fragility.tvd: at_least changed from 0.1 to 0.2",
        "Nothing became laxer.",
    ]


def test_diff_names_other_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bags, texts, none = (tmp_path / f"{name}.toml" for name in ("bags", "texts", "none"))
    bags.write_text('[policy]\napplies_to = ["pooled attention, bags"]\n' + OLD, encoding="utf-8")
    texts.write_text('[policy]\napplies_to = ["transformer", "pooled attention"]\n' + OLD, encoding="utf-8")
    none.write_text(OLD, encoding="utf-8")
    for old, new, change in (
        (bags, texts, "from pooled attention, bags to pooled attention, transformer"),
        (texts, none, "from pooled attention, transformer to nothing"),
    ):
        assert run("diff", old, new) == 1
        assert capsys.readouterr().out.splitlines() == [
            f"compare by hand: policy: applies_to changed {change}, so an @audit function with several policies may "
            "apply another one to a model",
            "The new policy may pass models that the old one blocks: see the first 1 of 1 lines.",
        ]
    assert run("diff", texts, texts) == 0


def test_runs_records_and_the_newest_run_are_compared_with_files(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "reports" / "one", effective_policy_of_file(files[0]))
    (tmp_path / "reports" / "latest.txt").write_text("one\n", encoding="utf-8")
    for source in (folder, folder / "audit.json", tmp_path / "reports"):
        assert run("diff", files[0], source) == 0
        assert capsys.readouterr().out == "The policies are the same.\n"
        assert run("hash", source) == 0
        assert capsys.readouterr().out == f"{effective_policy_of_file(files[0]).sha256}\n"


def test_another_version_of_attnaudit_is_mentioned(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = effective_policy_of_file(files[0])
    old = write_run(tmp_path / "old", policy, attnaudit="0.0.9")
    assert run("diff", old, write_run(tmp_path / "new", policy)) == 0
    assert "changed: attnaudit: the version changed from 0.0.9 to 0.1.0" in capsys.readouterr().out


def test_the_hash_is_that_of_the_checks(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("hash", files[0]) == 0
    declared = [checks.Conicity(severity="report"), checks.UniformFragility(at_least=0.1)]
    assert capsys.readouterr().out == f"{effective_policy(declared).sha256}\n"


@pytest.mark.parametrize(
    "file", ["policy.toml", "transformer.toml", "attentions.toml", "bags.toml", "pictures.toml", "sources.toml"]
)
def test_the_shipped_policies_have_a_hash(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("hash", ROOT / "audits" / file) == 0
    assert len(capsys.readouterr().out.strip()) == 64


def test_what_cannot_be_read_is_refused(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(path: Path) -> str:
        assert run("hash", path) == run("diff", files[0], path) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("attnaudit: ")
        return err

    assert "there is no such policy file" in refusal(tmp_path / "none.toml")
    assert "there is no such file. Expected the audit.json of a run" in refusal(tmp_path / "none.json")
    os.mkfifo(tmp_path / "pipe.toml")
    assert "this is a pipe" in refusal(tmp_path / "pipe.toml")
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "audit.json")
    assert "this is a pipe" in refusal(tmp_path / "run")
    (tmp_path / "runs").mkdir()
    os.mkfifo(tmp_path / "runs" / "latest.txt")
    assert "latest.txt: this is a pipe" in refusal(tmp_path / "runs")
    assert "contains no policy" in refusal(write_run(tmp_path / "empty", None))
    (tmp_path / "custom.toml").write_text('[[check]]\nname = "my_check"\nat_least = 0.1\n', encoding="utf-8")
    assert "If conftest.py defines this check, only a run knows it" in refusal(tmp_path / "custom.toml")
    edited = msgspec.structs.replace(effective_policy_of_file(files[0]), informational=True)
    assert "does not match its SHA-256 hash, so the file was edited" in refusal(write_run(tmp_path / "edited", edited))


def test_a_record_cannot_hide_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"id": "a\x1b[2K\nlaxer\u202e", "name": "A", "severity": "gate", "at_least": 0.1}
    policy = effective_policy([])
    from attnaudit.checks.policies.effective_policy import hash_of

    hostile = msgspec.structs.replace(policy, checks=[table])
    hostile = msgspec.structs.replace(hostile, sha256=hash_of(hostile))
    old, new = write_run(tmp_path / "old", hostile), write_run(tmp_path / "new", policy)
    assert run("diff", old, new) == 1
    first, _ = capsys.readouterr().out.splitlines()
    assert first == "disappeared: a␛[2K␊laxer⟨U+202E⟩: a gate with at_least 0.1"


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 2
    with pytest.raises(SystemExit):
        run("diff", "--help")
    assert "Exit status: 0 if nothing became laxer" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["##vso[task.complete result=Succeeded;]", "##[error]hi", "a\n::error::hi"])
def test_a_policy_cannot_give_commands_to_a_ci_system(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    gate = checks.UniformFragility(at_least=0.1)
    exception = PolicyException(check=gate.id, reason=f"x {command}")
    old, new = effective_policy([gate]), effective_policy([gate], [exception])
    assert run("diff", write_run(tmp_path / "old", old), write_run(tmp_path / "new", new)) == 1
    shown = capsys.readouterr().out
    assert terminal_safe(f"x {command}") in shown
    assert command not in shown
    assert without_commands(shown) == shown
    assert run("hash", tmp_path / f"{command.replace('/', '')}.json") == 2
    shown = capsys.readouterr().err
    assert without_commands(shown) == shown
