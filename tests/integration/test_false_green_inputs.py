"""Models, data and policies with which a gate cannot be judged as the user expects are not green."""

from __future__ import annotations

import pytest

from tests.audited_project import GREEN, LENGTH, PEAK, AuditedProject

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

WORKERS = pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "workers"])
POLICY = '[[check]]\nname = "attention_peak"\nat_most = 0.99\n\n[[check]]\nname = "token_count"\nat_least = 1\n'


@WORKERS
def test_a_model_that_cannot_be_loaded_is_one_failure(audited: AuditedProject, workers: list[str]) -> None:
    audited.extend(
        """
@attnaudit.register_model("broken")
def broken():
    raise OSError("weights.bin: no such file")
"""
    )
    run = audited.pytest(*workers, models=("broken",))
    assert "weights.bin" in run.process.out
    audited.assert_red(run, {PEAK: "open: ", LENGTH: "open: "}, status=6, models=[f"broken={0:064}"])
    if not workers:
        (failure,) = run.junit_failures()
        assert PEAK in failure
        assert LENGTH in failure


@WORKERS
def test_data_that_cannot_be_read_are_one_failure(audited: AuditedProject, workers: list[str]) -> None:
    audited.write("rows.csv", "sentence,label\n" + "good film,positive\nbad plot,negative\n" * 20)
    run = audited.pytest("--data=rows.csv", *workers)
    assert "text" in run.process.out
    audited.assert_red(run, {PEAK: "open: ", LENGTH: "open: "}, status=7)
    if not workers:
        (failure,) = run.junit_failures()
        assert PEAK in failure
        assert LENGTH in failure


def test_workers_that_audit_different_models_under_one_name_are_red(audited: AuditedProject) -> None:
    conftest = (audited.root / "conftest.py").read_text(encoding="utf-8")
    audited.write("conftest.py", conftest.replace("torch.manual_seed(0)", "torch.seed()"))
    run = audited.pytest("-n2")
    why = "The model tiny was not the same in all processes"
    assert (run.status, run.audit["status"], run.audit["exit_status"]) == (1, "failed", 1)
    assert why in run.audit["problem"]
    assert {state for state, _ in run.gates().values()} == {"passed"}
    (failure,) = run.junit_failures()
    for text in (failure, run.process.out, run.page("summary.md"), run.page("report.html")):
        assert why in text
    audited.assert_not_verified("The status of the run is 'failed'")


def test_a_folder_with_the_name_of_a_registered_model_is_a_usage_error(audited: AuditedProject) -> None:
    (audited.root / "demo").mkdir()
    assert audited.pytest().status == 0
    run = audited.pytest(models=("demo",))
    assert run.status == 4
    assert "--model ./demo" in run.text
    assert run.audit["status"] == "failed"
    assert "--model ./demo" in run.audit["problem"]
    audited.assert_not_verified("./demo")


def test_a_run_of_informational_checks_decides_nothing(audited: AuditedProject) -> None:
    report = GREEN.replace("at_most=0.99", 'severity="report"').replace("at_least=1", 'severity="report"')
    audited.write("test_audit.py", report)
    run = audited.pytest()
    assert run.status != 0
    assert "informational=True" in run.text
    audited.assert_not_verified()


def test_a_run_that_is_declared_informational_is_never_verified(audited: AuditedProject) -> None:
    report = GREEN.replace("at_most=0.99", 'severity="report"').replace("at_least=1", 'severity="report"')
    audited.write("test_audit.py", report.replace("PEAK, LENGTH)", "PEAK, LENGTH, informational=True)"))
    run = audited.pytest()
    assert run.status == 0, run.text
    assert run.audit["status"] == "informational"
    for text in (run.process.out, run.page("summary.md"), run.page("report.html")):
        assert "nothing was decided" in text or "neither allows nor blocks a release" in text
        assert "gates passed" not in text
    assert "no gate" in audited.assert_not_verified().out


def test_two_policies_are_both_judged_and_both_hashed(audited: AuditedProject) -> None:
    policy = (
        "from pathlib import Path\nfrom attnaudit import audit, checks\n\n"
        "@audit(checks.load_policy(Path({name!r})))\ndef test_{stem}(check):\n"
    )
    hashes = []
    for number in (1, 2):
        for stem, check, limit in (("one", PEAK, "at_most = 0.99"), ("two", LENGTH, f"at_least = {number}")):
            audited.write(f"{stem}.toml", f'[[check]]\nname = "{check}"\n{limit}\n')
            audited.write(f"test_{stem}.py", policy.format(name=f"{stem}.toml", stem=stem) + "    check.enforce()\n")
        (audited.root / "test_audit.py").unlink(missing_ok=True)
        run = audited.pytest()
        assert run.status == 0, run.text
        assert run.gates().keys() == {PEAK, LENGTH}
        hashes.append(run.audit["effective_policy"]["sha256"])
    assert len(set(hashes)) == 2
    audited.write("two.toml", f'[[check]]\nname = "{LENGTH}"\nat_least = 50\n')
    audited.assert_red(audited.pytest(), {LENGTH: "failed: fail"})


def test_a_policy_that_is_given_twice_is_a_usage_error(audited: AuditedProject) -> None:
    audited.write("policy.toml", POLICY)
    audited.write("lenient.toml", POLICY)
    run = audited.pytest("--policy=policy.toml", "--policy=lenient.toml")
    assert run.status == 4
    assert "given twice" in run.text
    assert audited.verify().status == 1


def test_a_vacuous_threshold_is_refused(audited: AuditedProject) -> None:
    audited.write("test_audit.py", GREEN.replace("LENGTH)", "checks.UniformFragility(at_least=0))"))
    run = audited.pytest()
    assert run.status == 2
    assert run.audit["status"] == "failed"
    assert run.junit_failures()
    audited.assert_not_verified()


def test_a_threshold_that_was_lowered_in_the_record_is_not_verified(audited: AuditedProject) -> None:
    audited.write("test_audit.py", GREEN.replace("at_least=1)", "at_least=50)"))
    run = audited.pytest()
    path = audited.root / "reports" / run.audit["run"] / "audit.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"failed"', '"passed"').replace('"exit_status": 1', '"exit_status": 0'))
    assert "edited" in audited.assert_not_verified().out
