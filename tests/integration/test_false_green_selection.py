"""A run that leaves gates out on purpose is partial, and one from which a conftest removes gates is not green."""

from __future__ import annotations

import pytest

from tests.audited_project import GREEN, LENGTH, PEAK, RED, AuditedProject, Run

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

TWO_MODELS = """
@attnaudit.register_model("other")
def other():
    return tiny()
"""
CASES = {check: f"test_audit.py::test_faithful[tiny-rows-{check}]" for check in (PEAK, LENGTH)}


def assert_partial(audited: AuditedProject, run: Run, gate: str, reason: str, *, status: int = 0) -> None:
    """Assert that a run in which what ran has passed is partial in every output, and names a gate that did not run."""
    assert run.status == status, run.text
    assert (run.audit["status"], run.audit["exit_status"]) == ("partial", status)
    state, why = run.gates()[gate]
    assert state == "not selected"
    assert reason in why
    check = gate.rpartition(": ")[2]
    for text in (run.process.out, run.page("summary.md"), run.page("report.html")):
        assert "partial" in text.lower()
        assert check in text
    assert "All 2" not in run.text
    assert "oth gates passed" not in run.page("summary.md") + run.text
    refused = audited.assert_not_verified(
        check, "not selected", models=sorted({m["name"] for m in run.audit["models"]})
    )
    assert "'partial'" in refused.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-k", PEAK], "left out by -k attention_peak"),
        (["-m", "first"], "left out by -m first"),
        (["--deselect", CASES[LENGTH]], "left out by --deselect"),
        ([CASES[PEAK]], "left out by the test ids on the command line"),
        (["--splits", "2", "--group", "1"], "left out by --splits"),
    ],
    ids=["k", "m", "deselect", "id", "split"],
)
def test_what_the_user_selects_makes_the_run_partial(
    audited: AuditedProject, arguments: list[str], reason: str
) -> None:
    if "--splits" in arguments:
        pytest.importorskip("pytest_split", reason="pytest-split is not installed")
    audited.extend(
        """
def pytest_collection_modifyitems(items):
    for item in items:
        if "attention_peak" in item.nodeid:
            item.add_marker("first")
"""
    )
    assert_partial(audited, audited.pytest(*arguments), LENGTH, reason)


def test_a_selection_in_the_configuration_file_makes_the_run_partial(audited: AuditedProject) -> None:
    audited.set_options("-k", PEAK)
    run = audited.pytest()
    assert_partial(audited, run, LENGTH, "left out by -k attention_peak")
    assert f"options from addopts: -k {PEAK}" in run.process.out


def test_an_option_does_not_leave_out_a_gate_that_a_conftest_removes(audited: AuditedProject) -> None:
    audited.set_options("-m", "'not slow'")
    audited.extend("def pytest_collection_modifyitems(items):\n    items.pop()")
    audited.assert_red(audited.pytest(), {LENGTH: "open: a plugin or a conftest.py removed its test from the run"})


def test_an_option_does_not_leave_out_a_gate_of_a_function_that_pytest_does_not_collect(
    audited: AuditedProject,
) -> None:
    audited.set_options("-m", "'not slow'")
    second = "@audit(LENGTH)\ndef check_length(check):\n    check.enforce()\n"
    audited.write("test_audit.py", f"{GREEN.replace('PEAK, LENGTH)', 'PEAK)')}\n{second}")
    audited.assert_red(audited.pytest(), {LENGTH: "open: no collected test judges this gate"})


@pytest.mark.parametrize("name", ["conftest.py", "audits/__init__.py"])
def test_a_gate_that_is_declared_where_pytest_collects_nothing_is_open(audited: AuditedProject, name: str) -> None:
    (audited.root / "audits").mkdir()
    audited.write("audits/__init__.py", "")
    audited.write("audits/test_more.py", GREEN.replace("PEAK, LENGTH)", "PEAK)").replace("0.99", "0.98"))
    (audited.root / "test_audit.py").unlink()
    length = 'attnaudit.registry.checks.get("token_count")(at_least=1)'
    audited.extend(
        f"import attnaudit\n@attnaudit.audit({length})\ndef test_length(check):\n    check.enforce()\n", name
    )
    audited.assert_red(audited.pytest(), {LENGTH: "open: no collected test judges this gate"})


@pytest.mark.parametrize("linked", [False, True], ids=["rootdir", "link"])
def test_a_gate_that_is_declared_outside_the_rootdir_is_open(
    audited: AuditedProject, tmp_path_factory: pytest.TempPathFactory, linked: bool
) -> None:
    audits, helper = audited.root / "audits", "helper.py"
    (audited.root / "test_audit.py").unlink()
    if linked:
        audits.symlink_to(tmp_path_factory.mktemp("shared"))
        helper = "audits/helper.py"
    else:
        audits.mkdir()
    (audited.root / "conftest.py").rename(audits / "conftest.py")
    audited.write("audits/test_audit.py", "import helper\n" + GREEN.replace("PEAK, LENGTH)", "PEAK)"))
    audited.write(helper, GREEN.replace("PEAK, LENGTH)", "LENGTH)"))
    options = []
    if not linked:
        (audited.root / "ci").mkdir()
        audited.write("ci/pytest.ini", "[pytest]\npythonpath = ..\naudit_data = rows\naudit_reports = ../reports\n")
        options = ["-c", "ci/pytest.ini"]
    run = audited.pytest(*options, "audits", env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert run.status == 1, run.text
    assert run.gates()[LENGTH] == ("open", "no collected test judges this gate")
    audited.assert_not_verified()


def test_a_test_file_instead_of_which_pytest_imports_another_is_left_out(audited: AuditedProject) -> None:
    (audited.root / "test_audit.py").unlink()
    for folder, code in (("a", GREEN), ("b", GREEN.replace("at_least=1)", "at_least=50)"))):
        (audited.root / folder).mkdir()
        audited.write(f"{folder}/test_audit.py", code)
    run = audited.pytest(env={"PY_IGNORE_IMPORTMISMATCH": "1"})
    assert run.audit["status"] == "partial"
    (left_out,) = run.audit["files_left_out"].items()
    assert left_out[0] == "b/test_audit.py"
    assert "test_audit.py instead, which has the same module name" in left_out[1]
    audited.assert_not_verified()


def test_one_of_two_models_makes_the_run_partial(audited: AuditedProject) -> None:
    audited.extend(TWO_MODELS)
    run = audited.pytest("-k", "tiny", models=("tiny", "other"))
    assert_partial(audited, run, f"other: {LENGTH}", "left out by -k tiny")
    assert run.gates()[f"other: {PEAK}"][0] == "not selected"
    assert "gates: 2 passed, 2 not selected" in run.process.out


@pytest.mark.parametrize("variable", ["CI", "BUILD_NUMBER", "TF_BUILD", "__TOX_ENVIRONMENT_VARIABLE_ORIGINAL_CI"])
def test_a_partial_run_in_ci_is_red(audited: AuditedProject, variable: str) -> None:
    run = audited.pytest("-k", PEAK, env={variable: "1"})
    assert_partial(audited, run, LENGTH, "left out by -k", status=1)
    (failure,) = run.junit_failures()
    assert f"the run is partial, and the environment variable {variable} is set" in failure
    assert "--audit-allow-partial" in run.process.out


def test_a_partial_run_in_ci_that_is_allowed_is_still_not_verified(audited: AuditedProject) -> None:
    run = audited.pytest("-k", PEAK, "--audit-allow-partial", env={"CI": "1"})
    assert_partial(audited, run, LENGTH, "left out by -k")
    assert run.junit_failures() == []


def test_lf_runs_only_what_failed_and_is_partial(audited: AuditedProject) -> None:
    audited.write("test_audit.py", RED)
    assert audited.pytest().status == 1
    audited.write("test_audit.py", RED.replace("at_least=50", "at_least=1"))
    assert_partial(audited, audited.pytest("--lf"), PEAK, "left out by --last-failed")


def test_stepwise_starts_at_what_failed_and_is_partial(audited: AuditedProject) -> None:
    audited.write("test_audit.py", RED)
    assert audited.pytest("--sw").status == 2  # pytest calls it an interruption
    audited.write("test_audit.py", RED.replace("at_least=50", "at_least=1"))
    assert_partial(audited, audited.pytest("--sw"), PEAK, "left out by --stepwise")


@pytest.mark.parametrize(("option", "name"), [("-x", "-x"), ("--maxfail=1", "-x"), ("--exitfirst", "-x")])
def test_a_run_that_stops_at_a_failure_is_red(audited: AuditedProject, option: str, name: str) -> None:
    swapped = RED.replace("at_most=0.99", "at_most=0.01").replace("at_least=50", "at_least=1")
    audited.write("test_audit.py", swapped)
    run = audited.pytest(option)
    audited.assert_red(run, {PEAK: "failed: fail", LENGTH: f"not selected: not run, because {name} ended the run"})


REMOVED = "open: a plugin or a conftest.py removed its test from the run"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def pytest_collection_modifyitems(items):\n    items.clear()", REMOVED),
        (
            "import pytest\n\n@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):\n"
            "    items[:] = items[:1]",
            REMOVED,
        ),
        ("def pytest_collection_finish(session):\n    session.items[:] = session.items[:1]", REMOVED),
        (
            "import pytest\n\n@pytest.hookimpl(tryfirst=True)\ndef pytest_runtestloop(session):\n    return True",
            "open: ",
        ),
        ("def pytest_runtest_protocol(item):\n    return 'token_count' in item.nodeid or None", "open: its test did"),
        (
            "def pytest_pyfunc_call(pyfuncitem):\n    return 'token_count' in pyfuncitem.nodeid or None",
            "open: its test",
        ),
        ("def pytest_runtest_call(item):\n    item.obj = lambda check: None", "open: its test ended without a verdict"),
        ("def pytest_itemcollected(item):\n    item.runtest = lambda: None", "open: its test ended without a verdict"),
    ],
    ids=["clear", "last", "finish", "loop", "protocol", "pyfunc", "function", "runtest"],
)
def test_a_conftest_that_removes_a_gate_is_red(audited: AuditedProject, code: str, reason: str) -> None:
    audited.extend(code)
    run = audited.pytest()
    left = {name for name, (state, _) in run.gates().items() if state != "passed"}
    assert LENGTH in left
    audited.assert_red(run, dict.fromkeys(left, reason), status=5 if "clear" in code else 1)


@pytest.mark.parametrize(
    "code",
    [
        "collect_ignore = ['test_audit.py']",
        "def pytest_ignore_collect():\n    return True",
        "def pytest_collection(session):\n    session.items = []\n    return True",
    ],
)
def test_a_conftest_that_prevents_the_collection_is_red(audited: AuditedProject, code: str) -> None:
    audited.extend(code)
    run = audited.pytest()
    audited.assert_red(run, {}, status=5)
    assert "no case of the audit was collected" in run.process.out


def test_a_conftest_that_collects_no_function_leaves_its_gates_open(audited: AuditedProject) -> None:
    audited.extend("def pytest_pycollect_makeitem():\n    return []")
    reason = "open: no collected test judges this gate"
    audited.assert_red(audited.pytest(), {PEAK: reason, LENGTH: reason}, status=5)


def test_gates_of_a_policy_file_are_open_if_no_test_applies_it(audited: AuditedProject) -> None:
    audited.write("policy.toml", '[[check]]\nname = "attention_peak"\nat_most = 0.99\n')
    audited.write("test_audit.py", "def test_shape(measurements):\n    assert len(measurements) == 40\n")
    run = audited.pytest("--policy=policy.toml")
    audited.assert_red(run, {PEAK: "open: no collected test judges this gate"})


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_options_that_run_no_test_body_are_red(audited: AuditedProject, option: str) -> None:
    audited.set_options(option)
    run = audited.pytest()
    audited.assert_red(run, {PEAK: "open: ", LENGTH: "open: "})
    assert f"options from addopts: {option}" in run.process.out


def test_collecting_only_writes_no_run_and_is_red_in_ci(audited: AuditedProject) -> None:
    audited.set_options("--collect-only")
    assert audited.pytest().status == 0
    assert not (audited.root / "reports").exists()
    assert audited.verify().status == 1
    run = audited.pytest(env={"CI": "1"})
    assert run.status == 1
    assert "--collect-only judges no gate" in run.process.err
    assert audited.verify().status == 1


@pytest.mark.parametrize("option", ["--fixtures", "--fixtures-per-test", "--markers", "--cache-show"])
def test_options_that_only_show_something_are_red_in_ci(audited: AuditedProject, option: str) -> None:
    run = audited.pytest(env={"CI": "1", "PYTEST_ADDOPTS": option})
    assert run.status == 1
    assert f"{option} audits nothing" in run.process.err
    assert audited.pytest(option, env={"CI": "1"}).status == 1
    assert audited.pytest("--audit-allow-partial", option, env={"CI": "1"}).status == 0
    assert audited.pytest(option).status == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_shuffled_tests_give_the_same_run(audited: AuditedProject, seed: int) -> None:
    pytest.importorskip("pytest_randomly", reason="pytest-randomly is not installed")
    audited.write("test_audit.py", RED)
    run = audited.pytest(f"--randomly-seed={seed}")
    audited.assert_red(run, {LENGTH: "failed: fail: mean token_count"})


def test_the_order_of_the_tests_does_not_change_the_order_of_the_verdicts(audited: AuditedProject) -> None:
    audited.extend("def pytest_collection_modifyitems(items):\n    items.reverse()")
    run = audited.pytest("-v")
    tests = [line for line in run.process.out.splitlines() if line.startswith("test_audit.py::")]
    assert [LENGTH in line for line in tests] == [True, False]
    assert [check["check"] for check in run.audit["checks"]] == [PEAK, LENGTH]
    table = [line for line in run.page("summary.md").splitlines() if line.startswith("| ✓ Pass |")]
    assert [PEAK in line for line in table] == [True, False]


def test_no_option_leaves_out_a_gate_that_a_conftest_removes(audited: AuditedProject) -> None:
    """The options select tests, but this gate was collected, and no option deselected it."""
    audited.write("test_other.py", "def test_ok(): pass\n")
    removed = {LENGTH: "open: a plugin or a conftest.py removed its test from the run"}
    silently = (
        "def pytest_collection_modifyitems(items):\n    items[:] = [i for i in items if 'token_count' not in i.name]"
    )
    audited.extend(silently)
    audited.assert_red(audited.pytest(".", "test_other.py::test_ok"), removed)
    audited.assert_red(audited.pytest("--lf"), removed)
    aloud = silently.replace(
        "(items):\n",
        "(items, config):\n    config.hook.pytest_deselected(items=[i for i in items if 'token' in i.name])\n",
    )
    audited.extend(aloud)
    audited.assert_red(audited.pytest("-m", "not slow"), removed)


HELPER = """
from attnaudit import audit

def made(*checks):
    @audit(*checks)
    def test_made(check):
        check.enforce()
    return test_made
"""


@pytest.mark.parametrize("uses", ["made twice under one name", "imported as a module"])
def test_gates_that_are_declared_in_another_module_of_the_project_are_open(audited: AuditedProject, uses: str) -> None:
    audited.write("helper.py", HELPER)
    length = 'known.get("token_count")(at_least=50)'
    if uses == "made twice under one name":
        code = f"from helper import made\ntest_faithful = made({length})\ntest_faithful = made(PEAK)\n"
    else:
        audited.extend(f"from attnaudit.registry import checks as known\ntest_length = made({length})\n", "helper.py")
        code = "import helper\n\n@audit(PEAK)\ndef test_faithful(check):\n    check.enforce()\n"
    audited.write("test_audit.py", f"{GREEN.partition('@audit')[0]}{code}")
    audited.assert_red(audited.pytest(), {LENGTH: "open: no collected test judges this gate"})


def test_a_path_without_tests_is_refused(audited: AuditedProject) -> None:
    """After --model, the shell replaces models/* with several paths, of which pytest takes all but the first."""
    (audited.root / "models" / "second").mkdir(parents=True)
    for workers in ((), ("-n", "1")):
        run = audited.pytest(*workers, ".", "models/second")
        assert run.status == 4, run.text
        assert run.audit["status"] == "failed"
        assert "models/second: pytest looks for tests in this folder, but it contains none" in run.text
        assert "repeat the option, as in --model first --model second" in run.text


def test_an_exception_of_one_function_does_not_cover_the_same_gate_of_another(audited: AuditedProject) -> None:
    skipped = GREEN.replace(
        "    check.enforce()", "    pytest.skip('later') if 'token' in check.id else check.enforce()"
    )
    skipped = f"import pytest\n{skipped}"
    excepted = skipped.replace("@audit(PEAK, LENGTH)", '@audit(LENGTH, exceptions={"token_count": "not shown"})')
    audited.write("test_audit.py", skipped)
    audited.write("test_other_audit.py", excepted)
    audited.assert_red(audited.pytest(), {LENGTH: "open: later"})
    audited.write("test_audit.py", skipped.replace("LENGTH)", "LENGTH, exceptions={'token_count': 'not shown'})"))
    assert audited.pytest().status == 0
