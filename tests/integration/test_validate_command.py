"""`attnaudit validate`, run as a command."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.forking_interpreter import run_module

ROOT = Path(__file__).parents[2]


def attnaudit(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_module("attnaudit", *arguments, cwd=folder)


def test_a_folder_without_a_population_is_reported_in_one_line(tmp_path: Path) -> None:
    done = attnaudit("validate", "--population", "none", "--policy", "rule", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("attnaudit: ")
    assert "there is no such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_misspelt_key_is_reported_with_the_nearest_known_one(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    row = {"folder": "mine", "kind": "k", "truth": "faithful", "dat": "movie-reviews"}
    (tmp_path / "population.json").write_text(json.dumps([row]), encoding="utf-8")
    done = attnaudit("validate", "--population", ".", "--policy", "rule", folder=tmp_path)
    assert done.returncode == 2
    assert "entry 1: unknown key 'dat'. Did you mean 'data'?" in done.stderr


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("--jobs", "0", "expected 1 or more."),
        ("--device", "tpu", "expected cpu, cuda or cuda:N, such as cuda:0."),
        ("--device", "mps", "Metal has no float64, which the measures need. Use --device cpu."),
    ],
)
def test_an_invalid_value_is_refused(tmp_path: Path, option: str, given: str, message: str) -> None:
    done = attnaudit("validate", "--population", ".", option, given, folder=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"attnaudit: {option} {given}: {message}\n")


def test_an_invalid_policy_is_found_before_models_are_planted(tmp_path: Path) -> None:
    done = attnaudit("validate", "--policy", "absent.toml", folder=tmp_path)
    assert done.returncode == 2
    assert "absent.toml: there is no such policy file" in done.stderr
    assert not (tmp_path / "validation").exists()


@pytest.mark.slow
def test_custom_models_are_scored_on_custom_data_by_a_custom_policy(tmp_path: Path) -> None:
    """The command takes any checkpoint, data file and policy; here, the demo model under two names."""
    others = "story plot acting music scenes characters comedy drama director script cast time world life love family"
    pairs = [("good", "positive"), ("bad", "negative")]
    texts = [f"{word} film about {other},{label}" for other in others.split() for word, label in pairs]
    (tmp_path / "mine.csv").write_text("text,label\n" + "\n".join(texts) + "\n", encoding="utf-8")
    rows = []
    for kind, truth in (("first", "faithful"), ("second", "unfaithful")):
        (tmp_path / kind).mkdir()
        for name in ("attnaudit.json", "model.safetensors"):
            (tmp_path / kind / name).write_bytes((ROOT / "attnaudit" / "models" / "demo" / name).read_bytes())
        rows.append({"folder": kind, "kind": kind, "truth": truth, "data": "mine.csv"})
    (tmp_path / "population.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "mine.toml").write_text('[[check]]\nname = "UniformFragility"\nat_least = 0.001\n', encoding="utf-8")
    options = ("--population", ".", "--policy", "mine.toml", "--quick", "--no-invariances", "--out", "out")
    done = attnaudit("validate", *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    outcome = " ".join(done.stdout.split())
    assert outcome.startswith("On held-out pooled models, the policy raises a false alarm on 0 of 1 faithful")
    assert "misses 1 of 1 unfaithful ones." in outcome
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "looks.jsonl", "measured", "validated_policy.toml", "validation.html", "validation.json", "validation.md"
    }  # fmt: skip
    assert "below the goal: held-out models: misses 100%" in done.stdout


@pytest.mark.parametrize("workers", [[], pytest.param(["-n2"], marks=pytest.mark.slow)], ids=["alone", "workers"])
def test_an_audit_declared_by_a_policy_file_says_which_question_failed(tmp_path: Path, workers: list[str]) -> None:
    """A policy file read by @audit keeps its name, families and questions in the report, also with xdist workers."""
    (tmp_path / "mine.toml").write_text(
        '[policy]\nname = "mine"\nvalidated_on = ["other models"]\n'
        '[policy.questions.used]\nasks = "Is it used?"\nchecks = ["uniform_fragility.tvd"]\nremedies = ["tying"]\n'
        '[[check]]\nname = "UniformFragility"\nat_least = 0.9\n',
        encoding="utf-8",
    )
    (tmp_path / "test_mine.py").write_text(
        "from pathlib import Path\n"
        "from attnaudit import audit, checks\n"
        "@audit(checks.load_policy(Path(__file__).with_name('mine.toml')))\n"
        "def test_it(check):\n    check.enforce()\n",
        encoding="utf-8",
    )
    options = ("--model", "demo", "--audit-max-instances", "40", *workers)
    done = run_module("pytest", "test_mine.py", *options, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    expected = r"fail +Is it used\? No: mean TVD 0\.\d+ \[[^]]*\], required at least 0\.900, n=40"
    assert re.search(expected, " ".join(done.stdout.split())), done.stdout
    assert "tying" not in done.stdout  # The policy does not say that this helps models of other families.
    shown = " ".join(done.stdout.split())
    assert "demo: the policy 'mine' was not validated on this family of models (pooled attention, bilstm" in shown
    newest = (tmp_path / "reports" / "latest.txt").read_text(encoding="utf-8").strip()
    run = json.loads((tmp_path / "reports" / newest / "audit.json").read_text(encoding="utf-8"))
    assert run["declared_policy"]["name"] == "mine"
    assert run["policy"].startswith("mine.toml (sha256 ")
