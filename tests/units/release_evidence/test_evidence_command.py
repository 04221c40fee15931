"""`attnaudit evidence`: what it states about runs of every kind, what it refuses, and that its files are valid."""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator, FormatChecker
from markdown_it import MarkdownIt

from attnaudit import cli
from attnaudit.adapters.loading import load_model
from attnaudit.checks.policies.effective_policy import effective_policy
from attnaudit.formatting import terminal_safe
from attnaudit.records import BaselineComparison, EarlierFailure, PolicyException, RunRecord, TargetRecord
from attnaudit.release_evidence.gate_results import gate_results
from attnaudit.release_evidence.intoto_statement import predicate
from attnaudit.report.run_files import read_run
from attnaudit.run.verification.integrity import digest
from tests import architectures
from tests.consistent_runs import (
    FAILING,
    INCONCLUSIVE,
    INFORMATIONAL,
    PASSING,
    RELATIVE,
    consistent_run,
    write_record,
)
from tests.units.release_evidence.evidence_calls import Evidence
from tests.units.release_evidence.intoto_schemas import STATEMENT
from tests.units.report.example_checks import check_record
from tests.units.report.example_runs import HOSTILE, run_record

ROOT = Path(__file__).resolve().parents[3]
FILES = {"statement.json", "predicate.json", "subjects.sha256", "model-card.md", "test-report.md"}
ALLOWED = type(INCONCLUSIVE)(at_least=0.3, inconclusive="warn")
VALIDATOR = Draft202012Validator(STATEMENT, format_checker=FormatChecker())


@pytest.fixture
def evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Evidence:
    monkeypatch.chdir(tmp_path)
    return Evidence(tmp_path, capsys)


def test_a_run_that_passed(evidence: Evidence) -> None:
    run = consistent_run(evidence.run)
    statement = evidence.write("--url", "https://ci.example.org/runs/7")
    assert {path.name for path in (evidence.run / "evidence").iterdir()} == FILES
    assert statement["subject"] == [
        {"name": f"model/{name}", "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in (("parts/words.txt", b"good\nbad\n"), ("weights.pt", b"weights"))
    ]
    predicate = statement["predicate"]
    assert predicate["result"] == "PASSED"
    assert predicate["url"] == "https://ci.example.org/runs/7"
    assert predicate["passedTests"] == [f"{check.id} for release on reviews" for check in (PASSING, RELATIVE)]
    assert predicate["warnedTests"] == predicate["failedTests"] == []
    assert run.effective_policy is not None
    assert {one["name"]: one["digest"]["sha256"] for one in predicate["configuration"]} == {
        "policy": run.effective_policy.sha256,
        "data/reviews": run.data[0].sha256,
        "model/release": run.models[0].sha256,
        "audit.json": hashlib.sha256((evidence.run / "audit.json").read_bytes()).hexdigest(),
        "measurements.parquet": run.measurements_sha256,
    }


@pytest.mark.parametrize(
    ("kind", "result", "warned", "failed"),
    [
        ({"checks": (PASSING, FAILING, ALLOWED)}, "FAILED", [ALLOWED.id], [FAILING.id]),
        ({"checks": (PASSING, INCONCLUSIVE)}, "FAILED", [], [INCONCLUSIVE.id]),
        ({"without": {RELATIVE.id: "open"}}, "FAILED", [], [RELATIVE.id]),
        ({"status": "failed", "exit_status": 1, "problem": "a plugin failed"}, "FAILED", [], []),
        ({"checks": (PASSING, ALLOWED)}, "WARNED", [ALLOWED.id], []),
        (
            {"checks": (PASSING, FAILING), "exceptions": [PolicyException(check=FAILING.id, reason="not shown")]},
            "WARNED",
            [FAILING.id],
            [],
        ),
        ({"earlier_failures": [EarlierFailure(test="t.py::t", reason="worker crashed")]}, "WARNED", [], []),
    ],
    ids=["failed", "inconclusive", "open", "other failure", "allowed", "excepted", "rerun"],
)
def test_the_result_is_stated_and_never_hidden(
    evidence: Evidence, kind: dict[str, Any], result: str, warned: list[str], failed: list[str]
) -> None:
    """Every gate is in one list, and every file shows the result and the gates that did not pass."""
    run = consistent_run(evidence.run, **kind)
    predicate = evidence.write()["predicate"]
    assert predicate["result"] == result
    listed = {name: predicate[f"{name}Tests"] for name in ("passed", "warned", "failed")}
    assert [name.split(" for ")[0] for name in listed["warned"]] == warned
    assert [name.split(" for ")[0] for name in listed["failed"]] == failed
    names = [name for names in listed.values() for name in names]
    assert sorted(names) == sorted(f"{gate.check} for release on reviews" for gate in run.gates)
    card, report = evidence.text("model-card.md"), evidence.text("test-report.md")
    for page in (card, report):
        assert f"**{result}" in page or f"**Result: {result}.**" in page
        for check in (*warned, *failed):
            assert f"\n* {check.replace('_', chr(92) + '_')} for release on reviews: " in page
        for note in (run.problem.capitalize(), *(failure.reason for failure in run.earlier_failures)):
            assert note in page


def test_a_sample_and_another_seed_are_warnings(evidence: Evidence) -> None:
    consistent_run(evidence.run)
    run = read_run(evidence.run)
    sampled = msgspec.structs.replace(run.data[0], rows=600, sample_seed=0, sample_sha256="b2" * 32)
    write_record(evidence.run, msgspec.structs.replace(run, data=[sampled]))
    predicate = evidence.write()["predicate"]
    assert predicate["result"] == "WARNED"
    assert "Only a sample of reviews was audited: 60 of 600 rows" in evidence.text("test-report.md")
    (data,) = [one for one in predicate["configuration"] if one["name"] == "data/reviews"]
    assert data["digest"]["sha256"] == "b2" * 32
    assert data["annotations"]["allRowsSha256"] == run.data[0].sha256


def test_the_baselines_of_a_run_are_stated(tmp_path: Path) -> None:
    compared = BaselineComparison(
        baseline_name="last", base="b", candidate=0.1, reading="", measures_sha256="", baseline_sha256="c3" * 32
    )
    missing = msgspec.structs.replace(
        compared, baseline_name="pinned", baseline_sha256="", not_comparable="no baseline"
    )
    checks = [
        check_record(check="one.vs_last", comparison=compared),
        check_record(check="one.vs_pinned", comparison=missing),
    ]
    run = run_record([check_record(check="one"), *checks], effective_policy=effective_policy([PASSING], [], False))
    content = predicate(run, gate_results(run), folder=tmp_path, compared=False)
    (baseline,) = [one for one in content["configuration"] if one["name"].startswith("baseline/")]
    assert (baseline["name"], baseline["digest"]) == ("baseline/last", {"sha256": "c3" * 32})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"status": "running"}, "its status is 'running'"),
        ({"without": {RELATIVE.id: "not selected"}}, "the run is partial, because it left out 1 gate"),
        ({"files_left_out": {"test_more.py": "--ignore"}}, "the run is partial, because it left out 1 test file"),
        ({"checks": (INFORMATIONAL,)}, "no gate that decides anything"),
        ({"without": {RELATIVE.id: "open"}, "exit_status": 2}, "pytest ended with exit status 2"),
        ({"models": {"old": "3f" * 32, "new": "4f" * 32}}, "the run audited old, new; expected one model"),
    ],
    ids=["running", "gate not selected", "file left out", "informational", "interrupted", "two models"],
)
def test_only_complete_runs_of_one_model_have_evidence(evidence: Evidence, kind: dict[str, Any], message: str) -> None:
    consistent_run(evidence.run, **kind)
    assert message in evidence.refuse()


def with_verdict(run: RunRecord, verdict: str) -> RunRecord:
    checks = [msgspec.structs.replace(check, verdict=verdict, blocks=False) for check in run.checks]
    gates = [msgspec.structs.replace(gate, state="passed", reason="") for gate in run.gates]
    return msgspec.structs.replace(run, checks=checks, gates=gates, status="passed", exit_status=0)


def test_a_run_that_was_edited_has_no_evidence_and_is_not_verified(evidence: Evidence) -> None:
    """Even if the digest was computed again after a failure was turned into a pass."""
    failed = consistent_run(evidence.run, (PASSING, FAILING))
    for edited in (with_verdict(failed, "pass"), msgspec.structs.replace(failed, created="2026-02-01T00:00:00+00:00")):
        record = msgspec.json.encode(edited)
        (evidence.run / "audit.json").write_bytes(record)
        assert "edited or damaged after the run" in evidence.refuse()
        assert cli.main(["verify", str(evidence.run.parent), "--model", "release"]) == 1
    resealed = with_verdict(failed, "pass")
    resealed = msgspec.structs.replace(resealed, digest=digest(resealed))
    (evidence.run / "audit.json").write_bytes(msgspec.json.encode(resealed))
    assert "but value, interval and threshold give 'fail'" in evidence.refuse()
    assert cli.main(["verify", str(evidence.run.parent), "--model", "release"]) == 1


def test_measurements_that_were_replaced_are_refused(evidence: Evidence) -> None:
    consistent_run(evidence.run)
    with (evidence.run / "measurements.parquet").open("ab") as file:
        file.write(b"\0")
    assert "measurements.parquet: its SHA-256 is" in evidence.refuse()


def test_the_audited_checkpoint_is_recognised_and_another_one_is_refused(evidence: Evidence) -> None:
    folder = ROOT / "attnaudit" / "models" / "demo"
    demo = load_model("demo")
    consistent_run(evidence.run)
    run = read_run(evidence.run)
    assert "the model in this folder is not the audited one" in evidence.refuse("--subject", str(folder))
    audited = msgspec.structs.replace(run.models[0], sha256=demo.sha256, family=demo.family)
    write_record(evidence.run, msgspec.structs.replace(run, models=[audited]))
    copy_of_demo = evidence.model.parent / "release"
    shutil.copytree(folder, copy_of_demo, ignore=shutil.ignore_patterns("__pycache__"))
    other = str(evidence.model / "weights.pt")
    evidence.write("--subject", str(copy_of_demo), other)
    assert f"not compared with the audited model: {other}. " in evidence.out
    statement = evidence.write("--subject", str(copy_of_demo))
    assert "not compared" not in evidence.out
    assert {"release/attnaudit.json", "release/model.safetensors"} <= {one["name"] for one in statement["subject"]}
    (model,) = [one for one in statement["predicate"]["configuration"] if one["name"].startswith("model/")]
    assert model["annotations"]["foundInSubjects"] is True


@pytest.mark.slow
def test_the_label_of_a_checkpoint_is_compared(evidence: Evidence) -> None:
    folder = evidence.model.parent / "tagger"
    names = {"id2label": {0: "toxic", 1: "insult"}, "label2id": {}}
    architectures.save("bert", folder, problem_type="multi_label_classification", **names)
    (folder / "attnaudit.toml").write_text('[target]\nkind = "label"\nlabels = ["toxic", "insult"]\n', encoding="utf-8")
    labels = []
    consistent_run(evidence.run)
    run = read_run(evidence.run)
    for name in names["id2label"].values():
        loaded = load_model(f"{folder}[{name}]")
        record = msgspec.structs.replace(
            run.models[0],
            source=f"{folder}[{name}]",
            target=TargetRecord(kind="label", name=name),
            sha256=loaded.sha256,
            family=loaded.family,
        )
        labels.append(record)
        write_record(evidence.run, msgspec.structs.replace(run, models=[record]))
        evidence.write("--subject", str(folder))
        assert "not compared" not in evidence.out
        assert "result: WARNED" in evidence.out
        (other,) = {"toxic", "insult"} - {name}
        report = (evidence.run / "evidence" / "test-report.md").read_text(encoding="utf-8")
        assert f"only the label '{name}' was audited. The run says nothing about '{other}'." in report
    assert labels[0].sha256 != labels[1].sha256
    shutil.rmtree(evidence.run / "evidence")
    write_record(evidence.run, msgspec.structs.replace(run, models=labels))
    assert f"Audit one label per run, as in --model '{folder}[toxic]'." in evidence.refuse("--subject", str(folder))


def test_files_that_are_no_checkpoint_are_not_compared(evidence: Evidence) -> None:
    consistent_run(evidence.run)
    predicate = evidence.write()["predicate"]
    assert "not compared with the audited model" in evidence.out
    (model,) = [one for one in predicate["configuration"] if one["name"].startswith("model/")]
    assert model["annotations"]["foundInSubjects"] is False


def test_a_refused_run_leaves_nothing_to_sign_or_publish(evidence: Evidence, tmp_path: Path) -> None:
    """Neither if there is no run at all, nor if latest.txt names an older run than the newest one."""
    consistent_run(evidence.run)
    subject = ("--subject", str(evidence.model / "weights.pt"), "--out", "signed")
    written = {"statement.json", "predicate.json", "subjects.sha256", "model-card.md", "test-report.md"}
    for reports, reason in ((tmp_path / "none", "no such folder"), (evidence.run.parent, "is a newer run than")):
        assert cli.main(["evidence", str(evidence.run), *subject]) == 0
        assert written == {path.name for path in (tmp_path / "signed").iterdir()}
        (evidence.run.parent / "29990101-000000-0001" / "parts").mkdir(parents=True, exist_ok=True)
        evidence.run.parent.joinpath("latest.txt").write_text(f"{evidence.run.name}\n", encoding="utf-8")
        assert cli.main(["evidence", str(reports), *subject]) == (2 if reason == "no such folder" else 1)
        assert reason in evidence.printed()
        assert not any((tmp_path / "signed").iterdir())


def test_subjects_that_cannot_be_listed_are_refused(evidence: Evidence, tmp_path: Path) -> None:
    consistent_run(evidence.run)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.pt").write_bytes(b"others")
    (tmp_path / "a\nb").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for paths, message in (
        ([""], "the argument after --subject is empty"),
        (["missing"], "--subject missing: there is no such file or folder"),
        (["empty"], "--subject empty: this folder contains no file"),
        (["link"], "--subject link: there is no such file or folder"),
        (["pipe"], "pipe: this is a pipe"),
        (["a\nb"], "the name contains an invisible character"),
        (["model/weights.pt", "other/weights.pt"], "two different files have the name weights.pt"),
    ):
        assert message in evidence.refuse("--subject", *paths, status=2)
    (evidence.model / "link").symlink_to("nowhere")
    assert "the target of this link does not exist" in evidence.refuse(status=2)
    (evidence.model / "link").unlink()
    (evidence.model / "link").symlink_to(tmp_path / "other")
    assert "link: this is a link to a folder" in evidence.refuse(status=2)


def test_invalid_options_are_refused(evidence: Evidence, capsys: pytest.CaptureFixture[str]) -> None:
    consistent_run(evidence.run)
    assert "this folder is in" in evidence.refuse("--out", str(evidence.model / "evidence"), status=2)
    shipped = evidence.model / "statement.json"
    shipped.write_text("{}", encoding="utf-8")
    message = evidence.refuse("--subject", str(shipped), "--out", str(evidence.model), status=2)
    assert "statement.json is written to this folder and would replace" in message
    assert shipped.read_text(encoding="utf-8") == "{}"
    for url in ("javascript:alert(1)", "https://a b", "https://x\u202e.org", "ci.example.org"):
        assert "expected the address of a web page" in evidence.refuse("--url", url, status=2)
    with pytest.raises(SystemExit) as ended:
        cli.main(["evidence", str(evidence.run)])
    assert ended.value.code == 2
    assert "--subject" in capsys.readouterr().err


def test_without_the_package_for_model_cards(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    consistent_run(evidence.run)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'attnaudit[evidence]', or leave the model card out with --no-model-card" in evidence.refuse()
    evidence.write("--no-model-card")
    assert {path.name for path in (evidence.run / "evidence").iterdir()} == FILES - {"model-card.md"}


def test_the_model_card_has_values_with_intervals(evidence: Evidence) -> None:
    run = consistent_run(evidence.run, (PASSING, FAILING, INFORMATIONAL))
    evidence.write()
    from huggingface_hub import ModelCard

    card = ModelCard(evidence.text("model-card.md"))
    assert card.data.model_name == "release"
    results = {one.metric_type: one for one in card.data.eval_results}
    assert len(results) == len(run.checks)
    for record in run.checks:
        result = results[f"attnaudit.{record.check}"]
        assert record.interval is not None
        assert result.metric_value == record.value
        assert result.metric_args["interval"] == [record.interval.low, record.interval.high]
        assert result.metric_args["n"] == record.n_defined
        assert (result.dataset_name, result.dataset_revision) == ("reviews", run.data[0].sha256)
    assert results[f"attnaudit.{FAILING.id}"].metric_args["verdict"] == "fail"
    assert results[f"attnaudit.{FAILING.id}"].metric_args["at_most"] == 0.2
    assert results[f"attnaudit.{INFORMATIONAL.id}"].metric_args["verdict"] == "informational"


def test_the_test_report_is_dated_and_has_fields_to_sign(evidence: Evidence) -> None:
    consistent_run(evidence.run)
    evidence.write()
    report = evidence.text("test-report.md")
    assert "| Began | 2026-01-31T14:05:02+00:00 |" in report
    for field in ("Name", "Function", "Date", "Signature"):
        assert f"\n{field}: ____" in report
    for name in FILES - {"test-report.md"}:
        sha256 = hashlib.sha256((evidence.run / "evidence" / name).read_bytes()).hexdigest()
        assert f"| {name.replace('-', '-')} | {sha256} |" in report


def test_the_checksums_have_the_format_of_sha256sum(evidence: Evidence) -> None:
    consistent_run(evidence.run)
    statement = evidence.write()
    lines = evidence.text("subjects.sha256").splitlines()
    assert lines == [f"{one['digest']['sha256']}  {one['name']}" for one in statement["subject"]]
    if shutil.which("sha256sum"):
        checked = subprocess.run(
            ["sha256sum", "--check", str(evidence.run / "evidence" / "subjects.sha256")],
            cwd=evidence.model.parent,
            capture_output=True,
            check=False,
        )
        assert checked.returncode == 0


def test_hostile_names_cannot_act_in_any_file(evidence: Evidence) -> None:
    consistent_run(evidence.run, models={HOSTILE: "3f" * 32}, data=(HOSTILE,))
    statement = evidence.write()
    assert statement["predicate"]["passedTests"][0] == f"{PASSING.id} for {HOSTILE} on {HOSTILE}"
    assert evidence.text("statement.json").isascii()
    assert "\x1b" not in evidence.text("statement.json")
    card = evidence.text("model-card.md")
    _, front, section = card.split("---\n", 2)
    assert yaml.safe_load(front)["model-index"][0]["name"] == terminal_safe(HOSTILE)
    for page in (section, evidence.text("test-report.md")):
        assert "\x1b" not in page
        tokens = MarkdownIt("commonmark", {"linkify": True}).enable(["table", "strikethrough"]).parse(page)
        kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
        assert not kinds & {"html_block", "html_inline", "link_open", "image", "code_inline", "fence"}


def test_the_schema_refuses_what_the_specification_does(evidence: Evidence) -> None:
    consistent_run(evidence.run)
    statement = evidence.write()
    for path, value in (
        (("_type",), "https://in-toto.io/Statement/v0.1"),
        (("predicate", "result"), "passed"),
        (("predicate", "passedTests"), "conicity"),
        (("predicate", "configuration", 0, "digest", "sha256"), "3F"),
        (("subject",), []),
        (("subject", 0), {"name": "weights.pt"}),
        (("predicate", "passed_tests"), []),
    ):
        broken = copy.deepcopy(statement)
        place: Any = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        assert not VALIDATOR.is_valid(broken), path


def test_the_bindings_of_in_toto_read_the_statement(evidence: Evidence) -> None:
    """The published messages of protobuf refuse unknown fields and wrong types."""
    reason = 'run pip install -c constraints.txt -e ".[test]" again'
    pytest.importorskip("in_toto_attestation", reason=reason)
    from google.protobuf import json_format
    from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    consistent_run(evidence.run, (PASSING, FAILING, ALLOWED))
    content = evidence.write("--url", "https://ci.example.org/runs/7")
    message = json_format.ParseDict(content, statement_pb2.Statement())
    Statement.copy_from_pb(message).validate()
    predicate = json_format.ParseDict(content["predicate"], test_result_pb2.TestResult())
    assert (predicate.result, len(predicate.failed_tests)) == ("FAILED", 1)
    for descriptor in (*message.subject, *predicate.configuration):
        ResourceDescriptor.copy_from_pb(descriptor).validate()
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict({**content["predicate"], "passed": []}, test_result_pb2.TestResult())
