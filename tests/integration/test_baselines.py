"""Paired gates and baselines, through real pytest runs: what blocks, what is accepted, and what is never written."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnaudit import cli
from attnaudit.registry import datasets, models
from attnaudit.report.run_files import read_run
from attnaudit.run.baselines.baseline_file import read_baseline
from tests.conftest import newest_audit, newest_run
from tests.consistent_runs import write_record
from tests.forking_interpreter import run_pytest

CONFTEST = """
import json
from pathlib import Path

import attnaudit

WORDS = "film plot good bad dull bright actor scene joke story".split()


@attnaudit.register_model("release")
def release():
    import torch
    from torch import nn
    from attnaudit.adapters import Encoding, PooledAttentionAdapter

    settings = json.loads(Path("model.json").read_text())
    torch.manual_seed(0)
    embedding, score, decoder = nn.Embedding(12, 4), nn.Linear(4, 1), nn.Linear(4, 2)
    with torch.no_grad():
        score.weight *= settings.get("sharpness", 4.0)
        score.weight += settings.get("noise", 0.0) * torch.randn(1, 4, generator=torch.Generator().manual_seed(1))

    def tokenize(text):
        tokens = text.split()
        return Encoding([WORDS.index(t) + 1 if t in WORDS else 11 for t in tokens], tokens)

    return PooledAttentionAdapter(
        embedding=embedding,
        encoder=lambda embeddings, mask: embeddings,
        attention=lambda states, allowed: torch.softmax(score(states)[..., 0].masked_fill(~allowed, -torch.inf), -1),
        decoder=decoder,
        tokenize=tokenize,
        classes=("negative", "positive"),
        modules=(embedding, score, decoder),
    )
"""
POLICY = """
[baseline]
path = "baseline"
compare_with = {compare_with}

[[check]]
name = "PermutationFragility"
at_least = 0.0001
not_worse_than_baseline_by = {margin}

[[check]]
name = "InfluenceEntropy"
severity = "report"
"""
RUN = ("--model", "release", "--data", "rows.jsonl", "--policy", "policy.toml")
GATE, PAIRED = "permutation_fragility.tvd", "permutation_fragility.tvd.vs_last"


class Project:
    """The repository of a user with a model, data and a policy with a paired gate."""

    def __init__(self, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
        self.pytester, self.capsys, self.path = pytester, capsys, pytester.path
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(
            test_audit="""
            from attnaudit import audit, checks

            @audit(checks.UniformFragility(at_least=0.1))
            def test_faithful(check):
                check.enforce()
            """
        )
        self.policy()
        self.data()
        self.model()

    def policy(self, compare_with: str = '["last"]', margin: float = 0.005, more: str = "") -> None:
        policy = POLICY.format(compare_with=compare_with, margin=margin) + more
        (self.path / "policy.toml").write_text(policy, encoding="utf-8")

    def data(self, rows: int = 80) -> None:
        words = ["film", "plot", "good", "bad", "dull", "bright", "actor", "scene", "joke", "story"]
        texts = [" ".join(words[(i * k + k // 3) % 10] for k in range(1, 4 + i % 6)) for i in range(rows)]
        lines = [
            json.dumps({"id": f"r{i}", "text": f"{text} {words[i % 7]}", "label": ("negative", "positive")[i % 2]})
            for i, text in enumerate(texts)
        ]
        (self.path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")

    def model(self, **settings: float) -> None:
        (self.path / "model.json").write_text(json.dumps(settings), encoding="utf-8")

    def audit(self, *options: str) -> pytest.RunResult:
        return self.pytester.runpytest(*RUN, *options)

    def record(self, check: str = PAIRED) -> dict[str, Any]:
        (found,) = [one for one in newest_audit(self.path)["checks"] if one["check"] == check]
        return found

    def gate(self, check: str = PAIRED) -> str:
        (found,) = [one for one in newest_audit(self.path)["gates"] if one["check"] == check]
        return str(found["state"])

    def command(self, *words: str) -> tuple[int, str]:
        self.capsys.readouterr()
        status = cli.main([*words])
        out, err = self.capsys.readouterr()
        return status, out + err

    def accept(self, *options: str, name: str = "last") -> tuple[int, str]:
        return self.command("baseline", "accept", "reports", "--out", "baseline", "--name", name, "--yes", *options)


@pytest.fixture
def release(
    everything_imported: None,
    pytester: pytest.Pytester,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Project:
    """Return a project. Its conftest.py may register models in this process, which are forgotten afterwards."""
    for registry in (models, datasets):
        monkeypatch.setattr(registry, "_known", dict(registry._known))
        monkeypatch.setattr(registry, "_origin", dict(registry._origin))
    return Project(pytester, capsys)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_baseline_from_its_first_run_to_a_worse_model(release: Project) -> None:
    first = release.audit()
    record = release.record()
    assert first.ret == 1
    assert (record["verdict"], release.gate(), release.gate(GATE)) == ("undefined", "failed", "passed")
    command = f"attnaudit baseline accept reports/{newest_run(release.path).name} --out baseline --name last"
    assert command in record["reason"]
    assert command in first.stdout.str()
    assert not (release.path / "baseline").exists()

    status, shown = release.command("baseline", "accept", "reports", "--out", "baseline")
    assert status == 2
    assert "--yes" in shown
    assert not (release.path / "baseline").exists()
    status, shown = release.command(*command.split()[1:], "--yes")
    assert status == 0, shown
    assert f"{GATE}: " in shown
    assert "accepted: baseline/last.json" in shown
    kept = files(release.path / "baseline")

    same = release.audit()
    record = release.record()
    assert same.ret == 0, same.stdout.str()
    assert record["value"] == 0
    assert (record["interval"]["low"], record["interval"]["high"]) == (0, 0)
    assert record["comparison"]["baseline_sha256"]
    verify = ("verify", "reports", "--model", "release", "--baseline")
    assert release.command(*verify, "baseline")[0] == 0
    assert "expected none (--baseline)" in release.command(*verify, "elsewhere")[1]

    release.model(noise=0.01)
    assert release.audit().ret == 0
    assert 0 < abs(release.record()["value"]) < 0.005
    page = (newest_run(release.path) / "report.html").read_text(encoding="utf-8")
    assert "All differences from the last release" in page
    assert "Instances whose values changed most" in page
    assert page.count('of-base"') == page.count('of-candidate"') > 1
    assert "Accuracy" in page

    release.model(sharpness=1.0)
    worse = release.audit()
    record = release.record()
    assert worse.ret == 1
    assert (record["verdict"], release.gate(), release.gate(GATE)) == ("fail", "failed", "passed")
    assert record["fail_interval"]["high"] < -0.005 == record["requirement"]["value"]
    assert record["gated"] == 2
    status, shown = release.accept()
    assert status == 1
    assert f"{PAIRED} for release on rows: failed" in shown

    release.model(sharpness=9.0)
    better = release.audit()
    assert better.ret == 0
    assert "better than the last release by" in release.record()["note"]
    better.stdout.fnmatch_lines(["*better than the last release by*"])
    assert files(release.path / "baseline") == kept


def test_a_run_that_is_not_whole_or_not_as_it_was_written_is_not_accepted(release: Project) -> None:
    release.audit("-k", "vs_last")
    status, shown = release.accept()
    assert status == 1
    assert "The run is partial." in shown

    release.policy(more='\n[[check]]\nname = "UniformFragility"\nat_least = 0.9\n')
    release.audit()
    status, shown = release.accept()
    assert status == 1
    assert "uniform_fragility.tvd for release on rows: failed" in shown
    assert not (release.path / "baseline").exists()
    status, shown = release.accept("--allow-failed-gates")
    assert status == 0, shown
    assert "accepted although it did not pass: uniform_fragility.tvd" in shown
    accepted = read_baseline(release.path / "baseline", "last")
    assert accepted is not None
    assert [one.split(" ")[0] for one in accepted.not_passed] == ["uniform_fragility.tvd"]

    file = newest_run(release.path) / "audit.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"seed": 0', '"seed": 1'), encoding="utf-8")
    status, shown = release.accept("--allow-failed-gates")
    assert status == 1
    assert "edited or damaged" in shown


@pytest.mark.slow
def test_a_policy_without_paired_gates_has_nothing_to_accept(release: Project) -> None:
    (release.path / "policy.toml").write_text('[[check]]\nname = "UniformFragility"\nat_least = 0.0001\n')
    assert release.audit().ret == 0
    status, shown = release.accept()
    assert status == 1
    assert "Add a [baseline] table and not_worse_than_baseline_by" in shown


@pytest.mark.slow
def test_another_policy_or_other_data_are_not_comparable_until_they_are_accepted(release: Project) -> None:
    release.audit()
    assert release.accept()[0] == 0
    release.policy(margin=0.2)
    assert release.audit().ret == 1
    assert "the policy differs" in release.record()["reason"]
    release.policy()
    release.data(rows=81)
    assert release.audit().ret == 1
    assert "the data rows differ" in release.record()["reason"]
    status, shown = release.accept()
    assert status == 0
    assert "the data change: 1 instances are added, 0 are removed" in shown
    assert release.audit().ret == 0
    assert release.audit("--audit-seed", "3").ret == 1
    assert "the seed differs (0 in the baseline, 3 in this run)" in release.record()["reason"]


@pytest.mark.slow
def test_many_small_steps_do_not_drift_away_from_the_pinned_release(release: Project) -> None:
    release.policy('["last", "pinned"]', margin=0.02)
    release.audit()
    assert release.accept()[0] == 0
    assert release.accept(name="pinned")[0] == 0
    statuses = []
    for sharpness in (3.6, 3.2, 2.9, 2.6, 2.3):
        release.model(sharpness=sharpness)
        statuses.append(release.audit().ret)
        assert release.gate() == "passed"
        if release.accept()[0] == 1:  # the pinned gate blocks it
            assert release.accept("--allow-failed-gates")[0] == 0
    assert statuses[0] == 0
    assert statuses[-1] == 1
    assert release.record(f"{GATE}.vs_pinned")["verdict"] == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--reruns", "1"), ("-n", "2", "--reruns", "1")], ids=" ".join)
def test_workers_and_reruns_decide_the_same(release: Project, options: tuple[str, ...]) -> None:
    start = functools.partial(run_pytest, release.pytester) if "-n" in options else release.pytester.runpytest
    assert start(*RUN, *options).ret == 1
    assert release.gate() == "failed"
    assert not (release.path / "baseline").exists()
    assert release.accept()[0] == 0
    kept = files(release.path / "baseline")
    release.model(sharpness=9.0)
    assert start(*RUN, *options).ret == 0
    assert "better than the last release" in release.record()["note"]
    release.model(sharpness=1.0)
    assert start(*RUN, *options).ret == 1
    assert release.record()["verdict"] == "fail"
    assert files(release.path / "baseline") == kept


@pytest.mark.slow
def test_a_damaged_baseline_is_one_clear_error_and_can_be_replaced(release: Project) -> None:
    release.audit()
    release.accept()
    file = release.path / "baseline" / "last.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"seed": 0', '"seed": 1'), encoding="utf-8")
    result = release.audit()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*last.json: the file was edited or damaged after the baseline was accepted*"])
    assert release.gate() == "open"
    file.write_text("<<<<<<< HEAD", encoding="utf-8")
    assert release.audit().ret == 1
    assert release.gate() == "open"
    release.data()
    file.unlink()
    release.audit()
    file.write_text("<<<<<<< HEAD", encoding="utf-8")
    status, shown = release.accept()
    assert status == 0
    assert "the existing baseline cannot be compared" in shown
    assert release.audit().ret == 0


@pytest.mark.slow
def test_the_report_is_rebuilt_and_verified_without_the_baseline(release: Project) -> None:
    release.audit()
    release.accept()
    release.model(noise=0.01)
    assert release.audit().ret == 0
    file = release.path / "baseline" / "last.json"
    file.unlink()
    run = newest_run(release.path)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert release.command("report", str(run))[0] == 0
    assert (run / "report.html").read_text(encoding="utf-8") == page
    assert "Not worse than the last release" in page
    accepted = run.parent / next(one.comparison.baseline_run for one in read_run(run).checks if one.comparison)
    accepted.rename(release.path / "elsewhere")
    assert release.command("report", str(run))[0] == 0
    assert f"does not contain run {accepted.name}" in (run / "report.html").read_text(encoding="utf-8")
    assert release.command("verify", "reports", "--model", "release")[0] == 0
    record = read_run(run)
    changed = [
        msgspec.structs.replace(
            one, comparison=one.comparison and msgspec.structs.replace(one.comparison, baseline=0.1)
        )
        for one in record.checks
    ]
    write_record(run, msgspec.structs.replace(record, checks=changed))
    status, shown = release.command("verify", "reports", "--model", "release")
    assert status == 1
    assert "its value is not the difference between the two values that it compared" in shown
