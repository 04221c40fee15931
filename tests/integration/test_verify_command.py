"""`attnaudit verify`: it succeeds only for a run that passed, was not edited, and audited what was expected."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnaudit import cli
from attnaudit.commands import verify_command
from attnaudit.data.draws import open_draws
from attnaudit.records import PolicyException
from attnaudit.registry import datasets, register_dataset
from attnaudit.report.run_files import read_run
from tests.consistent_runs import (
    FAILING,
    INCONCLUSIVE,
    INFORMATIONAL,
    NAME,
    PASSING,
    RELATIVE,
    consistent_run,
    write_record,
)

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("--model", "release")


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "reports"


class Verified:
    """The result of `attnaudit verify`."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.status = cli.main(["verify", *arguments])
        self.out, self.err = capsys.readouterr()
        self.lines = self.out.splitlines()

    def reasons(self) -> list[str]:
        """Return the reasons of a run that is not verified."""
        assert self.status == 1, self.out + self.err
        assert self.lines[-1].startswith("not verified: ")
        reasons = [line.removeprefix("- ") for line in self.lines[:-1] if line.startswith("- ")]
        assert f"{len(reasons)} reason" in self.lines[-1]
        return reasons


def test_a_run_that_passed_is_verified(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME)
    result = Verified(capsys, *MODEL)
    assert result.status == 0
    assert result.lines == [
        "not compared, because these options were not given: --data, --policy, --after, --attnaudit",
        "compared by name only: release",
        f"verified: reports/{NAME}: 2 gates passed, for release on reviews",
    ]


def test_everything_can_be_compared(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = consistent_run(reports / NAME)
    assert run.effective_policy is not None
    expected = ("--model", f"release={'3F' * 32}", "--data", f"reviews={'a1' * 32}", "--attnaudit", run.attnaudit)
    more = ("--policy", run.effective_policy.sha256, "--after", "2026-01-31T15:05:02+01:00")
    result = Verified(capsys, "reports", *expected, *more)
    assert result.lines == [f"verified: reports/{NAME}: 2 gates passed, for release on reviews"]


def test_the_folder_of_one_run_can_be_given(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME)
    consistent_run(reports / "20260201-000000-0000", (PASSING, FAILING))
    assert Verified(capsys, *MODEL).status == 1
    assert Verified(capsys, f"reports/{NAME}", *MODEL).status == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"checks": (PASSING, FAILING)}, "adversarial_divergence.0.01 for release on reviews: failed: it is failed."),
        ({"without": {RELATIVE.id: "open"}}, "agreement.gradient.meister.inputs for release on reviews: no verdict"),
        ({"without": {RELATIVE.id: "not selected"}}, "Run the audit again without the option that left the gate out."),
        ({"without": {RELATIVE.id: "not selected"}}, "The status of the run is 'partial', expected 'passed'."),
        (
            {"files_left_out": {"audits/test_b.py": "not collected"}},
            "audits/test_b.py: this test file was left out (not collected), so its gates are unknown. Run the",
        ),
        ({"files_left_out": {"audits/test_b.py": "not collected"}}, "The status of the run is 'partial'"),
        ({"checks": (INFORMATIONAL,)}, "The run has no gate, so nothing was decided."),
        ({"checks": (INFORMATIONAL,)}, "The status of the run is 'informational', expected 'passed'."),
        ({"status": "failed", "exit_status": 1, "problem": "a hook failed."}, "expected 'passed': a hook failed. Run"),
        ({"status": "failed", "exit_status": 3}, "pytest ended with exit status 3, expected 0."),
        ({"models": {"other": "3f" * 32}}, "--model release: the run has no such model, only other."),
        ({"models": {"other": "3f" * 32}}, "The run also audited the model other, which was not expected."),
        (
            {"models": {"release": "3f" * 32, "other": "4f" * 32}},
            "The run also audited the model other, which was not expected. Add --model other, or audit only",
        ),
    ],
)
def test_other_runs_are_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], reason: str
) -> None:
    consistent_run(reports / NAME, **arguments)
    reasons = Verified(capsys, *MODEL).reasons()
    assert any(reason in one for one in reasons), reasons


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--model", f"release={'00' * 32}"), f"its hash is {'3f' * 32}, expected {'00' * 32}. Audit the expected"),
        (("--model", "missing"), "--model missing: the run has no such model, only release."),
        ((*MODEL, "--model", "second"), "--model second: the run has no such model, only release."),
        ((*MODEL, "--data", "news"), "--data news: the run has no such data set, only reviews."),
        ((*MODEL, "--data", f"reviews={'00' * 32}"), f"its hash is {'a1' * 32}, expected {'00' * 32}"),
        ((*MODEL, "--policy", "00" * 32), f") than --policy ({'00' * 32}). If the run"),
        ((*MODEL, "--attnaudit", "9.9"), "The run used attnaudit 0.1.0, expected 9.9 (--attnaudit)."),
        ((*MODEL, "--after", "2026-01-31T14:05:03+00:00"), "before 2026-01-31T14:05:03+00:00 (--after)"),
        ((*MODEL, "--after", "1769868303"), "before 2026-01-31T14:05:03+00:00 (--after)"),
    ],
)
def test_a_run_of_something_else_is_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], reason: str
) -> None:
    consistent_run(reports / NAME)
    reasons = Verified(capsys, *options).reasons()
    assert any(reason in one for one in reasons), reasons


def test_a_run_that_began_in_the_second_of_after_is_verified(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME)
    for time in ("1769868302.9", "2026-01-31T14:05:02.9Z"):
        assert Verified(capsys, *MODEL, "--after", time).status == 0


def test_a_run_without_a_readable_time_is_not_after_anything(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for created in ("yesterday", "2026-01-31T14:05:02"):
        consistent_run(reports / NAME, created=created)
        (reason,) = Verified(capsys, *MODEL, "--after", "1769868302").reasons()
        assert created in reason


def test_a_run_of_the_future_is_not_after_anything(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be an earlier run, of a machine whose clock is wrong."""
    consistent_run(reports / NAME, created="2999-01-31T14:05:02+00:00")
    (reason,) = Verified(capsys, *MODEL, "--after", "1769868302").reasons()
    assert "The run began at 2999-01-31T14:05:02+00:00, in the future" in reason
    assert Verified(capsys, *MODEL).status == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--model is missing. Name every model that is to be released"),
        (("--model", ""), "the argument after --model is empty"),
        ((*MODEL, "--data", " "), "the argument after --data is empty"),
        ((*MODEL, "--policy", ""), "the argument after --policy is empty"),
        ((*MODEL, "--baseline", ""), "the argument after --baseline is empty"),
        ((*MODEL, "--after", "tomorrow"), "--after tomorrow: expected a time in ISO 8601 with a time zone"),
        ((*MODEL, "--after", "2026-01-31T14:05:03"), "expected a time in ISO 8601 with a time zone"),
        ((*MODEL, "--after", "20260131"), "expected a time in ISO 8601 with a time zone"),
        ((*MODEL, "--after", "nan"), "expected a time in ISO 8601 with a time zone"),
        ((*MODEL, "--after", "1e30"), "expected a time in ISO 8601 with a time zone"),
        ((*MODEL, "--after", ""), "the argument after --after is empty"),
    ],
)
def test_invalid_options_are_usage_errors(
    reports: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    consistent_run(reports / NAME)
    result = Verified(capsys, *options)
    assert result.status == 2
    assert message in result.err
    assert "verified" not in result.out


def test_an_edited_run_is_refused(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME, (PASSING, FAILING))
    path = reports / NAME / "audit.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"failed"', '"passed"'), encoding="utf-8")
    reasons = Verified(capsys, *MODEL).reasons()
    assert any("the digest in the file does not match its content" in reason for reason in reasons)
    assert any("it is recorded as passed, but its verdict is 'fail'" in reason for reason in reasons)
    assert all("run the audit again" in reason for reason in reasons)


def test_a_run_that_did_not_end_is_refused(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME, status="running", exit_status=None)
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert "its status is 'running'" in reason


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": 5}', '{"schema_version": 3}', "\0"])
def test_a_record_that_cannot_be_read_is_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    consistent_run(reports / NAME)
    (reports / NAME / "audit.json").write_text(content, encoding="utf-8")
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert "audit.json" in reason


def test_a_newer_run_is_not_overlooked(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = reports / "20260201-000000-0000"
    consistent_run(newer, (PASSING, FAILING))
    consistent_run(reports / NAME)
    (reports / "notes").mkdir()
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert reason.startswith(f"{newer.name} is a newer run than {NAME}, which latest.txt names.")
    (newer / "audit.json").unlink()
    (newer / "parts").mkdir()
    assert len(Verified(capsys, *MODEL).reasons()) == 1
    shutil.rmtree(newer)
    assert Verified(capsys, *MODEL).status == 0


def test_a_copy_of_an_older_run_is_not_the_newest(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME)
    shutil.copytree(reports / NAME, reports / "20260201-000000-0000")
    (reports / "latest.txt").write_text("20260201-000000-0000\n", encoding="utf-8")
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert f"contains the run {NAME}, so it is a copy" in reason


@pytest.mark.parametrize("latest", [None, "", "..", "../reports", "20990101-000000-0000", "a/b"])
def test_a_broken_reports_folder_is_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], latest: str | None
) -> None:
    consistent_run(reports / NAME)
    (reports / "latest.txt").unlink()
    if latest is not None:
        (reports / "latest.txt").write_text(latest, encoding="utf-8")
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert "latest.txt" in reason


def test_a_folder_that_does_not_exist_is_refused(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert reason.startswith("reports: there is no such folder.")


def test_exceptions_are_shown_with_their_reasons(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exception = PolicyException(check=FAILING.id, reason="known,\n\x1b[2Jsee the model card")
    consistent_run(reports / NAME, (PASSING, FAILING), exceptions=[exception])
    result = Verified(capsys, *MODEL)
    assert result.status == 0
    assert result.lines[0] == (
        "excepted: adversarial_divergence.0.01 for release on reviews: known, ␛[2Jsee the model card"
    )
    assert "1 gate passed, 1 excepted by the policy, for release on reviews" in result.lines[-1]


def test_inconclusive_gates_that_the_policy_allows_are_shown(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = dataclasses.replace(INCONCLUSIVE, inconclusive="pass")
    consistent_run(reports / NAME, (PASSING, allowed))
    result = Verified(capsys, *MODEL)
    assert result.status == 0
    assert result.lines[0].startswith(
        f"inconclusive, but allowed by the policy: {allowed.id} for release on reviews: mean"
    )
    assert "required at least 0.300" in result.lines[0]
    assert "1 gate passed, 1 inconclusive but allowed by the policy, for release on reviews" in result.lines[-1]


def test_a_policy_that_excepts_every_gate_decides_nothing(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME, (FAILING,), exceptions=[PolicyException(check=FAILING.id, reason="known")])
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert reason.startswith("The policy excepts every gate")


def test_other_units_are_refused_unless_they_are_expected(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME, unit="words")
    (reason,) = Verified(capsys, *MODEL).reasons()
    assert reason.startswith("The run computed statistics over words, expected tokens.")
    assert Verified(capsys, *MODEL, "--unit", "words").status == 0


def test_a_sample_is_refused_unless_it_is_allowed(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = consistent_run(reports / NAME)
    data = msgspec.structs.replace(run.data[0], rows=2026, sample_seed=0, sample_sha256="b2" * 32)
    write_record(reports / NAME, msgspec.structs.replace(run, data=[data]))
    refused = Verified(capsys, *MODEL)
    assert refused.status == 1
    assert any("Only 60 of 2,026 rows of reviews were audited" in line for line in refused.lines)
    result = Verified(capsys, *MODEL, "--allow-sample")
    assert result.status == 0
    assert "only a sample of reviews was audited: 60 of 2,026 rows, drawn with seed 0" in result.lines


def test_a_policy_file_is_compared_by_its_checks(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME, (PASSING, INFORMATIONAL))
    informational = '[[check]]\nname = "Agreement"\nimportance = "leave_one_out"\nseverity = "report"\n'
    policy = reports.parent / "policy.toml"
    policy.write_text(f'[[check]]\nname = "Conicity"\nat_most = 0.9\n\n{informational}', encoding="utf-8")
    assert Verified(capsys, *MODEL, "--policy", "policy.toml").status == 0
    policy.write_text(f'[[check]]\nname = "Conicity"\nat_most = 0.8\n\n{informational}', encoding="utf-8")
    (reason,) = Verified(capsys, *MODEL, "--policy", "policy.toml").reasons()
    assert reason.startswith("The run applied a policy with another hash ")
    assert "policy file" in Verified(capsys, *MODEL, "--policy", "absent.toml").reasons()[0]


def test_the_pages_of_a_run_are_not_read(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(reports / NAME, (PASSING, FAILING))
    (reports / NAME / "summary.md").write_text("verified: all gates passed", encoding="utf-8")
    assert Verified(capsys, *MODEL).status == 1


def test_report_refuses_an_edited_run(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = consistent_run(reports / NAME)
    assert cli.main(["report", "reports"]) == 0
    assert (reports / NAME / "report.html").is_file()
    path = reports / NAME / "audit.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(run, seed=1)))
    assert cli.main(["report", "reports"]) == 1
    assert "edited or damaged after the run" in capsys.readouterr().err
    consistent_run(reports / NAME, status="running", exit_status=None)
    assert cli.main(["report", "reports"]) == 1
    assert "its status is 'running'" in capsys.readouterr().err
    assert read_run(reports / NAME).status == "running"


def test_the_exit_status_of_the_process(reports: Path) -> None:
    consistent_run(reports / NAME)

    def status(*options: str) -> int:
        command = [sys.executable, "-m", "attnaudit", "verify", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=reports.parent, env=environment, capture_output=True, check=False).returncode

    assert [status(*MODEL), status("--model", "other"), status(), status("--unknown")] == [0, 1, 2, 2]


def test_of_a_stream_no_more_rows_are_read_than_the_run_audited(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that the run did not need may be broken, and the run may have audited more rows of other data."""
    monkeypatch.setattr(datasets, "_known", dict(datasets._known))

    @register_dataset("stream", order="random")
    def stream() -> Iterator[dict[str, str]]:
        yield from ({"text": f"text {i}"} for i in range(50))
        raise OSError("connection lost")

    run = consistent_run(reports / NAME, (PASSING,), data=("reviews", "stream"))
    sha256 = open_draws("stream", 0).sha256(50)
    reviews, record = run.data
    streamed = msgspec.structs.replace(record, sha256=sha256, audited=50, rows=None, hashed="audited rows")
    given = verify_command._expected_data("stream", [reviews, streamed])
    assert (given.name, given.sha256, reviews.audited) == (None, sha256, 60)
