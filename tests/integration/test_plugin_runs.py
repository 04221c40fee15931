"""Run the audit as a user does, with and without workers, and examine the cases, verdicts and files."""

from __future__ import annotations

import functools
import os
import shlex
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest

from attnaudit.devices import chosen_device
from attnaudit.report import audit_schema
from tests.conftest import PROJECT_CONFTEST, newest_audit, newest_run
from tests.forking_interpreter import run_pytest

CHANGING = """

@attnaudit.checks.check(title="Centred", question="How far from the mean?")
def centred(measurements):
    values = measurements.scalar("attention.max")
    values -= values.mean()
    return values
"""

NOUNS = ("film", "plot", "actor", "scene", "joke")


def comparable(audit: dict[str, Any]) -> dict[str, Any]:
    """Drop what may differ between two equal runs: times, names and processes."""
    dropped = {"run", "created", "finished", "command", "measured", "environment", "measurements_sha256", "digest"}
    kept = {key: value for key, value in audit.items() if key not in dropped}
    for key in ("checks", "gates"):
        kept[key] = [{**entry, "test": entry["test"].partition("@")[0]} for entry in audit[key]]
    return kept


def test_a_failure_shows_the_observed_value_and_the_command_that_runs_it_again(project: pytest.Pytester) -> None:
    result = project.runpytest("--model", "tiny")
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            f"attnaudit 0.1.0: tiny on rows, seed 0, device {chosen_device('auto')}",
            "mean token_count * [[]*, *[]], required at least 50.000, n=40",
            "run again: pytest 'test_audit.py::test_faithful[[]tiny-rows-token_count[]]' --model tiny",
            "*attention audit*",
            "tiny on rows (40 texts, accuracy 0.*)",
            "fail  “Length” does not hold: mean token_count *, required at least 50.000, n=40",
            "pass  Peak: mean attention_peak *, required at most 0.990, n=40",
            "report: reports*report.html",
        ]
    )
    result.stdout.no_fnmatch_line("*check.enforce()*")


def test_a_run_writes_a_valid_audit_json_the_numbers_and_a_report(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny")
    folder = newest_run(project.path)
    audit = newest_audit(project.path)
    jsonschema.validate(audit, audit_schema())
    assert [entry["check"] for entry in audit["checks"]] == ["attention_peak", "token_count", "uniform_fragility.tvd"]
    assert [entry["verdict"] for entry in audit["checks"]][:2] == ["pass", "fail"]
    assert (audit["exit_status"], audit["missing"]) == (1, [])
    assert audit["data"][0]["audited"] == audit["data"][0]["labelled"] == 40
    assert sorted(path.name for path in folder.iterdir()) == [
        "audit.json",
        "measurements.parquet",
        "report.html",
        "summary.md",
    ]
    table = pq.read_table(folder / "measurements.parquet").to_pylist()
    peaks = {row["instance"]: row["value"] for row in table if row["measure"] == "attention.max"}
    weights = {row["instance"]: row for row in table if row["measure"] == "attention"}
    assert len(peaks) == len(weights) == 40
    for name, row in weights.items():
        assert len(row["tokens"]) == len(row["values"])
        assert sum(row["values"]) == pytest.approx(1)
        assert max(row["values"]) == pytest.approx(peaks[name])


@pytest.mark.parametrize(
    "modes",
    [
        (["-n0"], ["-n2", "--dist", "loadgroup"]),
        pytest.param(([], ["-n0"], ["-n2"], ["-n2", "--dist", "loadgroup"]), marks=pytest.mark.slow),
    ],
    ids=["two modes", "all modes"],
)
def test_verdicts_and_files_are_the_same_with_and_without_workers(
    project: pytest.Pytester, modes: Sequence[Sequence[str]]
) -> None:
    audits, numbers = [], []
    for mode in modes:
        run = functools.partial(run_pytest, project) if "-n2" in mode else project.runpytest
        run("--model", "tiny", *mode).assert_outcomes(passed=2, failed=1)
        audits.append(comparable(newest_audit(project.path)))
        numbers.append(pq.read_table(newest_run(project.path) / "measurements.parquet").to_pylist())
    assert audits[1:] == [audits[0]] * (len(modes) - 1)
    assert numbers[1:] == [numbers[0]] * (len(modes) - 1)


def test_a_case_selected_with_k_has_the_same_verdict_as_in_the_full_run(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny")
    (among_all,) = [entry for entry in newest_audit(project.path)["checks"] if entry["check"] == "token_count"]
    result = project.runpytest("--model", "tiny", "-k", "token_count")
    result.assert_outcomes(failed=1, deselected=2)
    alone = newest_audit(project.path)
    assert alone["checks"] == [among_all]
    assert alone["missing"] == []


def test_the_rerun_command_counts_the_gates_of_all_files(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_other="""
        from attnaudit import audit, checks

        @audit(checks.Conicity(at_most=0.0), checks.PermutationFragility(at_least=0.99))
        def test_used(check):
            check.enforce()
        """
    )
    result = project.runpytest("--model", "tiny")
    (again,) = [line for line in result.outlines if line.startswith("run again:") and "token_count" in line]
    words = shlex.split(again.removeprefix("run again: pytest "))
    assert "-k" in words
    alone = project.runpytest(*words)
    alone.assert_outcomes(failed=1, deselected=4)
    assert [entry["gated"] for entry in newest_audit(project.path)["checks"]] == [4]


def test_junitxml_holds_the_first_line_of_the_failure(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny", "--junitxml", "out.xml")
    (failure,) = ElementTree.parse(project.path / "out.xml").iter("failure")
    assert failure.attrib["message"].startswith("mean token_count")
    assert "\n" not in failure.attrib["message"]


@pytest.mark.parametrize("options", [(), pytest.param(("-n2",), marks=pytest.mark.slow)], ids=["one", "workers"])
def test_junitxml_holds_the_numbers_of_every_case_as_properties(
    project: pytest.Pytester, options: tuple[str, ...]
) -> None:
    project.runpytest("--model", "tiny", "--junitxml", "out.xml", *options)
    cases = {
        str(case.get("name")): {str(one.get("name")): one.get("value") for one in case.iter("property")}
        for case in ElementTree.parse(project.path / "out.xml").iter("testcase")
    }
    records = newest_audit(project.path)["checks"]
    assert len(records) == 3
    for record in records:
        found = cases[f"test_faithful[tiny-rows-{record['check']}]"]
        expected = {"verdict": record["verdict"], "value": record["value"], "n": record["n_defined"], "n_undefined": 0}
        expected |= {"interval_low": record["interval"]["low"], "interval_high": record["interval"]["high"]}
        expected["confidence"] = record["interval"]["confidence"]
        if record["requirement"] is not None:
            expected |= {"threshold": record["requirement"]["value"], "direction": record["requirement"]["direction"]}
        for side in ("to_pass", "to_fail"):
            if record["detectable_change"] is not None and record["detectable_change"][side] is not None:
                expected[f"detectable_change_{side}"] = record["detectable_change"][side]
        assert found == {f"attnaudit.{name}": str(value) for name, value in expected.items()}


def test_junitxml_holds_the_properties_of_a_case_that_ran_again_once(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny", "--junitxml", "out.xml", "--reruns", "2")
    for case in ElementTree.parse(project.path / "out.xml").iter("testcase"):
        names = [one.get("name") for one in case.iter("property")]
        assert len(names) == len(set(names)) > 0, case.get("name")


def test_without_the_plugin_its_options_are_unknown_and_other_tests_run(project: pytest.Pytester) -> None:
    project.makepyfile(test_other="def test_other(): pass")
    project.makeini("[pytest]")
    project.makeconftest("")
    assert project.runpytest("-p", "no:attnaudit", "test_other.py").ret == pytest.ExitCode.OK
    refused = project.runpytest("-p", "no:attnaudit", "--model", "tiny", "test_other.py")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR


def test_a_run_inside_another_run_of_the_same_process_shares_nothing_with_it(project: pytest.Pytester) -> None:
    project.makeconftest(
        PROJECT_CONFTEST
        + """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if "token_count" in item.nodeid:
        inner = ["-k", "attention_peak", "--audit-reports", "inner", "-p", "no:terminal"]
        assert pytest.main(["--model", "tiny", *inner]) == 0
"""
    )
    project.runpytest("--model", "tiny").assert_outcomes(passed=2, failed=1)
    outer, inner = newest_audit(project.path), newest_audit(project.path, "inner")
    assert [entry["check"] for entry in outer["checks"]] == ["attention_peak", "token_count", "uniform_fragility.tvd"]
    assert [entry["check"] for entry in inner["checks"]] == ["attention_peak"]
    assert outer["missing"] == inner["missing"] == []
    assert outer["run"] != inner["run"]


def test_a_check_that_writes_to_the_measurements_fails_and_changes_no_other_check(project: pytest.Pytester) -> None:
    project.makeconftest(PROJECT_CONFTEST + CHANGING)
    project.makepyfile(
        test_audit="""
        from attnaudit import audit
        from attnaudit.registry import checks as known

        @audit(known.get("centred")(severity="report"), known.get("attention_peak")(at_least=0.01))
        def test_faithful(check):
            check.enforce()
        """
    )
    result = project.runpytest("--model", "tiny")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*check 'centred' failed: ValueError at conftest.py:* in centred: *read-only*changes in a copy: x.copy()*"]
    )


def test_the_fixture_measurements_has_the_numbers_that_checks_see(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_audit="""
        import pytest

        def test_plain(measurements):
            assert len(measurements) == 40
            assert "attention.max" in measurements.columns

        @pytest.mark.attnaudit(needs=["uniform"])
        def test_needs(measurements):
            assert measurements.scalar("uniform.tvd").max() <= 1
        """
    )
    result = project.runpytest("--model", "tiny", "-v")
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*test_plain[[]tiny-rows[]] PASSED*"])


def test_a_model_is_measured_once_on_a_data_set_for_all_cases(project: pytest.Pytester) -> None:
    project.runpytest("--model", "tiny")
    (measured,) = newest_audit(project.path)["measured"]
    assert measured["instances"] == 40
    assert measured["needs"] == ["uniform"]


def test_an_inconclusive_check_warns_if_it_is_declared_to(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_audit="""
        from attnaudit import audit
        from attnaudit.registry import checks

        @audit(
            checks.get("token_count")(at_least=4.45, inconclusive="warn"), checks.get("attention_peak")(at_most=0.99)
        )
        def test_faithful(check):
            assert (check.judge().verdict == "inconclusive") == (check.check.id == "token_count")
            check.enforce()
        """
    )
    result = project.runpytest("--model", "tiny")
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    warned = "*InconclusiveWarning: token_count: inconclusive: mean token_count*required at least*"
    result.stdout.fnmatch_lines([warned])


def test_a_policy_file_replaces_the_checks(project: pytest.Pytester) -> None:
    project.makefile(".toml", strict='[[check]]\nname = "attention_peak"\nat_most = 0.1\n')
    result = project.runpytest("--model", "tiny", "--policy", "strict.toml")
    result.assert_outcomes(failed=1)
    audit = newest_audit(project.path)
    assert [(entry["check"], entry["verdict"]) for entry in audit["checks"]] == [("attention_peak", "fail")]
    assert audit["policy"].startswith("strict.toml (sha256 ")


def test_the_sample_does_not_depend_on_the_order_of_the_rows(project: pytest.Pytester) -> None:
    lines = [
        f'{{"id": "{i}", "text": "good film {i}", "label": "{("negative", "positive")[i % 2]}"}}' for i in range(90)
    ]
    hashes = set()
    for name, order in (("one", lines), ("two", list(reversed(lines)))):
        (project.path / f"{name}.jsonl").write_text("\n".join(order), encoding="utf-8")
        project.runpytest("--model", "tiny", "--data", f"{name}.jsonl", "--audit-max-instances", "50")
        (data,) = newest_audit(project.path)["data"]
        assert (data["name"], data["rows"], data["audited"], data["sample_seed"]) == (name, 90, 50, 0)
        hashes.add((data["sha256"], data["sample_sha256"]))
    assert len(hashes) == 1


def test_every_model_is_audited_on_every_data_set(project: pytest.Pytester) -> None:
    (project.path / "more.csv").write_text(
        "text,label\n"
        + "".join(f"good {a} {b},positive\nbad {a} {b},negative\n" for a in NOUNS for b in NOUNS if a != b),
        encoding="utf-8",
    )
    result = project.runpytest("--model", "tiny", "--data", "rows", "--data", "more.csv", "-k", "attention_peak", "-v")
    result.assert_outcomes(passed=2, deselected=4)
    result.stdout.fnmatch_lines(["*tiny-rows-attention_peak*PASSED*", "*tiny-more-attention_peak*PASSED*"])


@pytest.mark.skipif(os.name == "nt", reason="the terminal width is set by an environment variable of POSIX systems")
def test_the_table_fits_80_columns(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = project.runpytest("--model", "tiny", "-v")
    table = result.stdout.str().partition("attention audit")[2].partition("A gate fails only")[0].splitlines()
    table = table[table.index("tiny on rows") :]
    assert len(table) == 5
    assert max(map(len, table)) <= 80
