"""What a run does with a model on whose family its policy was not validated, in every output."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from attnaudit import cli
from tests.audited_project import AuditedProject
from tests.conftest import newest_audit, newest_run

#: The model `tiny` passes both gates. It names no family, so its family is "pooled attention".
POLICY = """
[policy]
name = "mine"
validated_on = [{families}]
{rule}

[[check]]
name = "attention_peak"
at_most = 0.99

[[check]]
name = "token_count"
at_least = {least}
"""
#: A second model, of a family that is not pooled attention by name.
OTHER_MODEL = """

@attnaudit.register_model("other")
def other():
    adapter = tiny()
    adapter.family = "transformer, bert"
    return adapter
"""
NOT_VALIDATED = (
    "tiny: the policy 'mine' was not validated on this family of models (pooled attention). It was validated only on: "
)
REMEDY = 'set unvalidated = "gate" under [policy] in mine.toml'


def audit(
    project: pytest.Pytester, rule: str = "", *, families: str = '"transformer"', least: int = 1, models: str = "tiny"
) -> tuple[pytest.RunResult, dict[str, Any]]:
    """Run the audit with a policy, and return the result and the content of audit.json."""
    text = POLICY.format(families=families, rule=f'unvalidated = "{rule}"' if rule else "", least=least)
    (project.path / "mine.toml").write_text(text, encoding="utf-8")
    words = [word for model in models.split() for word in ("--model", model)]
    result = project.runpytest(*words, "--policy", "mine.toml", "--junitxml=junit.xml")
    return result, newest_audit(project.path)


def junit_failures(project: pytest.Pytester) -> list[str]:
    cases = ElementTree.parse(project.path / "junit.xml").getroot().iter("testcase")
    return [str(problem.text) for case in cases for problem in case if problem.tag in ("failure", "error")]


def verify(project: pytest.Pytester, capsys: pytest.CaptureFixture[str], *models: str) -> tuple[int, str]:
    words = [f"--model={model}" for model in models]
    status = cli.main(["verify", str(project.path / "reports"), *words])
    return status, capsys.readouterr().out


def page(project: pytest.Pytester, name: str) -> str:
    return (newest_run(project.path) / name).read_text(encoding="utf-8").replace("\\", "").replace("&#39;", "'")


def states(content: dict[str, Any]) -> dict[str, str]:
    return {f"{gate['model']} {gate['check']}": gate["state"] for gate in content["gates"]}


@pytest.mark.parametrize("rule", ["", "block"])
def test_block_fails_the_run_once_per_model_although_every_gate_passed(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    result, content = audit(project, rule)
    assert result.ret == 1
    assert (content["status"], content["exit_status"]) == ("failed", 1)
    assert set(states(content).values()) == {"passed"}
    assert [entry["verdict"] for entry in content["checks"]] == ["pass", "pass"]
    (found,) = content["unvalidated"]
    assert (found["model"], found["family"], found["unvalidated"]) == ("tiny", "pooled attention", "block")
    (failure,) = junit_failures(project)
    outputs = [failure, page(project, "summary.md"), page(project, "report.html"), "\n".join(result.outlines)]
    for output in outputs:
        assert NOT_VALIDATED in output
        assert "so the run fails" in output
    assert REMEDY in failure
    assert "The policy was not validated for models such as tiny. This release is blocked." in outputs[1]
    passed = "gates: 2 passed, but the run failed: the policy was not validated for models such as tiny."
    assert passed in result.outlines
    status, out = verify(project, capsys, "tiny=" + content["models"][0]["sha256"])
    assert status == 1
    assert NOT_VALIDATED in out
    assert REMEDY in out


def test_a_covered_family_changes_nothing(project: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    result, content = audit(project, "block", families='"transformer", "pooled attention"')
    assert result.ret == 0
    assert (content["status"], content["unvalidated"]) == ("passed", [])
    assert "not validated" not in result.stdout.str()
    assert verify(project, capsys, "tiny")[0] == 0


@pytest.mark.parametrize(("least", "status"), [(1, "passed"), (50, "failed")])
def test_gate_applies_the_thresholds_and_says_that_they_were_not_validated(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], least: int, status: str
) -> None:
    result, content = audit(project, "gate", least=least)
    assert (result.ret, content["status"]) == (int(status == "failed"), status)
    for output in (page(project, "summary.md"), page(project, "report.html"), "\n".join(result.outlines)):
        assert NOT_VALIDATED in output
        assert "The thresholds of the policy were applied nevertheless" in output
    assert "was not validated on this family of models" in (project.path / "junit.xml").read_text(encoding="utf-8")
    assert all("was not validated on this family" in failure for failure in junit_failures(project))
    verified, out = verify(project, capsys, "tiny")
    assert verified == int(status == "failed")
    assert status == "failed" or NOT_VALIDATED in out


@pytest.mark.parametrize("least", [1, 50])
def test_report_makes_the_gates_informational_and_decides_nothing(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], least: int
) -> None:
    result, content = audit(project, "report", least=least)
    assert (result.ret, content["status"]) == (0, "informational")
    assert set(states(content).values()) == {"informational"}
    assert {entry["severity"] for entry in content["checks"]} == {"report"}
    assert not any(entry["blocks"] for entry in content["checks"])
    for output in (page(project, "summary.md"), page(project, "report.html"), "\n".join(result.outlines)):
        assert NOT_VALIDATED in output
        assert "The gates of the policy are informational for this model" in output
        assert "gates passed" not in output
    status, out = verify(project, capsys, "tiny")
    assert status == 1
    assert "tiny: all gates are informational for this family of models, so nothing was decided about the model" in out


def test_report_concerns_only_the_models_of_other_families(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + OTHER_MODEL, encoding="utf-8")
    result, content = audit(project, "report", models="tiny other")
    assert (result.ret, content["status"]) == (0, "passed")
    assert states(content) == {
        "tiny attention_peak": "informational",
        "tiny token_count": "informational",
        "other attention_peak": "passed",
        "other token_count": "passed",
    }
    assert [one["model"] for one in content["unvalidated"]] == ["tiny"]
    status, out = verify(project, capsys, "tiny", "other")
    assert status == 1
    assert "nothing was decided about the model" in out


@pytest.mark.parametrize(("families", "status"), [('"transformer, sources"', 1), ('"transformer, passages"', 0)])
def test_a_policy_for_passages_does_not_cover_an_audit_of_their_tokens(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], families: str, status: int
) -> None:
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    passages = OTHER_MODEL.replace("transformer, bert", "transformer, llama, sources")
    (project.path / "conftest.py").write_text(conftest + passages, encoding="utf-8")
    result, content = audit(project, families=families, models="other")
    assert result.ret == status
    assert content["models"][0]["family"] == "transformer, llama, passages"
    assert len(content["unvalidated"]) == status
    assert verify(project, capsys, "other")[0] == status


def test_python_states_the_families_as_well(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_audit="""
        from attnaudit import audit
        from attnaudit.registry import checks as known

        @audit(known.get("attention_peak")(at_most=0.99), validated_on=["transformer"], unvalidated="report")
        def test_faithful(check):
            check.enforce()

        @audit(known.get("token_count")(at_least=1))
        def test_length(check):
            check.enforce()
        """
    )
    assert project.runpytest("--model", "tiny").ret == 0
    content = newest_audit(project.path)
    assert content["status"] == "passed"
    assert states(content) == {"tiny attention_peak": "informational", "tiny token_count": "passed"}


def test_gates_that_are_all_excepted_or_informational_decide_nothing(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    project.makepyfile(
        test_audit="""
        import pytest
        from attnaudit import audit
        from attnaudit.registry import checks as known

        @audit(known.get("attention_peak")(at_most=0.99), validated_on=["transformer"], unvalidated="report")
        def test_faithful(check):
            check.enforce()

        @pytest.mark.skip(reason="known")
        @audit(known.get("token_count")(at_least=1), exceptions={"token_count": "known"})
        def test_length(check):
            check.enforce()
        """
    )
    result = project.runpytest("--model", "tiny", "--junitxml=junit.xml")
    content = newest_audit(project.path)
    assert (result.ret, content["status"], content["exit_status"]) == (5, "failed", 5)
    assert states(content) == {"tiny attention_peak": "informational", "tiny token_count": "excepted"}
    (failure,) = junit_failures(project)
    for output in (failure, page(project, "summary.md"), page(project, "report.html"), "\n".join(result.outlines)):
        assert "policy excepts every gate that is not informational, so nothing was decided" in output
    assert "gates: 1 excepted by the policy, 1 informational for this family of models, but the run failed" in (
        result.outlines
    )
    status, out = verify(project, capsys, "tiny")
    assert status == 1
    assert "tiny: its gates are all excepted or informational, so nothing was decided about the model." in out
    assert "edited" not in out


def test_a_policy_that_excepts_every_gate_of_every_model_names_no_single_one(project: pytest.Pytester) -> None:
    conftest = project.path / "conftest.py"
    skip = (
        "\n\ndef pytest_collection_modifyitems(items):\n    import pytest\n    for item in items:\n"
        "        item.add_marker(pytest.mark.skip(reason='known'))\n"
    )
    conftest.write_text(conftest.read_text(encoding="utf-8") + OTHER_MODEL + skip, encoding="utf-8")
    (project.path / "mine.toml").write_text(
        '[policy]\nname = "mine"\n[[check]]\nname = "attention_peak"\nat_most = 0.99\n'
        '[[exception]]\ncheck = "attention_peak"\nreason = "known"\n',
        encoding="utf-8",
    )
    result = project.runpytest("--model", "tiny", "--model", "other", "--policy", "mine.toml")
    assert result.ret == 5
    result.stdout.fnmatch_lines(["*the policy excepts every gate, so nothing was decided. Remove an exception.*"])


def test_a_model_of_which_every_gate_is_excepted_fails_the_run(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    conftest = project.path / "conftest.py"
    skip_other = (
        "\n\ndef pytest_collection_modifyitems(items):\n    import pytest\n    for item in items:\n"
        "        if 'other' in item.name:\n            item.add_marker(pytest.mark.skip(reason='known'))\n"
    )
    conftest.write_text(conftest.read_text(encoding="utf-8") + OTHER_MODEL + skip_other, encoding="utf-8")
    (project.path / "mine.toml").write_text(
        '[policy]\nname = "mine"\n[[check]]\nname = "attention_peak"\nat_most = 0.99\n'
        '[[exception]]\ncheck = "attention_peak"\nreason = "known"\nmodel = "other"\n',
        encoding="utf-8",
    )
    result = project.runpytest("--model", "tiny", "--model", "other", "--policy", "mine.toml", "--junitxml=junit.xml")
    content = newest_audit(project.path)
    assert states(content) == {"tiny attention_peak": "passed", "other attention_peak": "excepted"}
    assert (result.ret, content["status"], content["exit_status"]) == (5, "failed", 5)
    (failure,) = junit_failures(project)
    for output in (failure, page(project, "summary.md"), "\n".join(result.outlines)):
        assert "policy excepts every gate of other, so nothing was decided. Remove an exception." in output
    status, out = verify(project, capsys, "tiny", "other")
    assert status == 1
    assert "other: its gates are all excepted or informational" in out


@pytest.mark.parametrize("change", ["family", "rule", "list", "status"])
def test_a_record_that_was_edited_to_pass_is_recognised(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    from attnaudit.report.run_files import read_run
    from attnaudit.run.verification.integrity import mismatches

    _, content = audit(project, "block")
    folder = newest_run(project.path)
    content |= {"status": "passed", "exit_status": 0}
    if change == "family":
        content["models"][0]["family"] = "transformer, bert"
    elif change == "rule":
        content["effective_policy"]["validations"][0]["unvalidated"] = "gate"
    elif change == "list":
        content["unvalidated"] = []
    (folder / "audit.json").write_text(json.dumps(content), encoding="utf-8")
    found = mismatches(read_run(folder), folder)[1:]  # the digest always differs
    assert found, change
    assert verify(project, capsys, "tiny")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "status"), [("block", "failed"), ("gate", "passed"), ("report", "informational")])
def test_workers_know_the_families_too(audited: AuditedProject, rule: str, status: str) -> None:
    audited.write("mine.toml", POLICY.format(families='"transformer"', rule=f'unvalidated = "{rule}"', least=1))
    run = audited.pytest("-n2", "--policy=mine.toml")
    assert (run.status, run.audit["status"]) == (int(rule == "block"), status)
    assert [one["unvalidated"] for one in run.audit["unvalidated"]] == [rule]
    assert len(run.junit_failures()) == int(rule == "block")
    assert NOT_VALIDATED in run.process.out
    assert (audited.verify().status == 0) == (rule == "gate")
