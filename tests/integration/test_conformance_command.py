"""`attnaudit conformance`, and the suite in pytest, in a user's folder."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy
import pytest

from attnaudit import cli
from tests.conftest import PROJECT_CONFTEST, newest_audit, newest_run
from tests.forking_interpreter import run_module

ROOT = Path(__file__).parents[2]

BROKEN = """
from tests.small_models import adapter


def sound():
    return adapter(2)


def broken():
    made = adapter(2)
    made.attention = lambda states, allowed: states.new_full(allowed.shape, 1 / allowed.shape[1])
    return made
"""

BAGS = """
import torch
from attnaudit.adapters import BagAdapter


def made():
    torch.manual_seed(0)
    encoder, score, decoder = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)
    return BagAdapter(
        encoder=lambda vectors, mask: encoder(vectors),
        attention=lambda states, allowed: score(states)[..., 0].masked_fill(~allowed, -torch.inf).softmax(-1),
        decoder=decoder,
        classes=("a", "b"),
        modules=(encoder, score, decoder),
        features=3,
    )
"""

#: A model whose units are patches of a slide.
PATCHES = """

@attnaudit.register_model("patches")
def patches():
    import dataclasses

    adapter = tiny()
    adapter._capabilities = dataclasses.replace(adapter.capabilities, unit_name="patch", row_name="text block")
    return adapter
"""
#: The suite in pytest, on this model.
PATCHES_TEST = """
from attnaudit.adapters.loading import load_model
from attnaudit.conformance import parametrize_with_checks
from conftest import rows


@parametrize_with_checks({"patches": lambda: load_model("patches").adapter}, instances=rows().instances)
def test_adapter(check):
    print(f"RESULT {check.case.check.name}: {check()}")
"""

TESTS = """
from broken import broken, sound
from attnaudit.conformance import parametrize_with_checks
from attnaudit.instances import Instance

WORDS = "the film is good bad very dull bright story ends".split()
TEXTS = [Instance(id=f"{n}", text=" ".join(WORDS[:n])) for n in range(1, 9)]


@parametrize_with_checks(
    [broken, sound],
    instances=TEXTS,
    expected_failures={
        "broken": {"padding": "weights are shared with padding", "deletion": "wrongly expected"},
        "sound": {"padding": "wrongly expected"},
    },
    quick=True,
)
def test_adapter(check):
    check()
"""


def attnaudit(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_module("attnaudit", "conformance", *arguments, cwd=folder, env={"COLUMNS": "100"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    return tmp_path


def test_a_model_that_fulfils_the_contract_ends_with_0(tmp_path: Path) -> None:
    done = attnaudit("demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "outcome", "details"]
    assert lines[1].split() == ["sites", "pass", "1", "site"]
    assert any(line.split()[:2] == ["replay", "skip"] for line in lines)
    outcomes = [line.split()[1] for line in lines[1:-1] if line.split()[1:2] and line[:1].strip()]
    passed, skipped = outcomes.count("pass"), outcomes.count("skip")
    assert passed > 15
    assert lines[-1] == f"demo fulfils the adapter contract: {passed} passed, 0 failed, {skipped} skipped."


def test_a_model_that_is_not_compared_with_its_own_forward_pass_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["conformance", "broken:sound", "--quick"]) == 0
    *_, contract, comparison = capsys.readouterr().out.splitlines()
    assert contract.startswith("broken.sound fulfils the adapter contract")
    assert comparison == (
        "It was not compared with your model's own forward() (pass original=... to the adapter; see docs/adapters.md)."
    )


def test_an_audit_without_this_comparison_says_so_in_the_terminal_and_in_the_report(project: pytest.Pytester) -> None:
    result = project.runpytest("--model", "tiny", "--model", "demo")
    note = "The adapter was not compared with your model's own forward() (pass original=... to the adapter; see "
    shown = [line for line in result.outlines if "not compared with" in line]
    assert [line.startswith(f"tiny on rows: {note}") for line in shown] == [True]
    for page in ("report.html", "summary.md"):
        text = (newest_run(project.path) / page).read_text(encoding="utf-8")
        assert "not compared with your model" in text


def test_a_broken_model_ends_with_1_and_gives_advice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["conformance", "broken:broken", "--quick"]) == 1
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.startswith("sums")]
    assert line.split()[1] == "fail"
    assert "Mask the scores" in " ".join(said.split())
    assert "each_site" not in said
    assert "broken.broken breaks the adapter contract" in said.splitlines()[-1]


def test_a_model_of_a_conftest_and_data_of_it_or_of_a_file_are_found(tmp_path: Path) -> None:
    """As in pytest, the conftest.py can import modules next to it."""
    (tmp_path / "audits").mkdir()
    (tmp_path / "audits" / "settings_of_tiny.py").write_text("SEED = 0", encoding="utf-8")
    conftest = f"from settings_of_tiny import SEED\n{PROJECT_CONFTEST}"
    (tmp_path / "audits" / "conftest.py").write_text(conftest, encoding="utf-8")
    rows = [f"film plot good {'bad dull ' * n},positive" for n in range(8)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    done = attnaudit("tiny", "--data", "rows.csv", "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(lengths 3 to 17)" in done.stdout
    done = attnaudit("tiny", "--data", "rows", "--quick", folder=tmp_path)  # registered in conftest.py
    assert done.returncode == 0, done.stderr
    assert "(lengths 2 to 7)" in done.stdout


def test_results_have_the_names_of_the_units(tmp_path: Path) -> None:
    (tmp_path / "bags.py").write_text(BAGS, encoding="utf-8")
    numpy.save(tmp_path / "bag.npy", numpy.random.default_rng(0).normal(size=(5, 3)).astype("float32"))
    (tmp_path / "rows.csv").write_text("file,label\nbag.npy,b\n", encoding="utf-8")
    done = attnaudit("bags:made", "--data", "rows.csv", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    details = {line.split()[0]: " ".join(line.split()[2:]) for line in done.stdout.splitlines() if line[:1].strip()}
    assert details["words"] == "every vector is a unit"
    assert not re.search(r"(?<!special.)token", done.stdout)


def test_the_conformance_table_of_an_audit_has_the_names_of_the_units(project: pytest.Pytester) -> None:
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + PATCHES, encoding="utf-8")
    project.runpytest("--model", "patches").assert_outcomes(passed=2, failed=1)
    (model,) = newest_audit(project.path)["models"]
    details = {one["check"]: one["detail"] for one in model["conformance"]}
    assert details["words"] == "every patch is a unit"
    assert details["sums"] == "weights sum to one over the allowed patches and are zero elsewhere"
    assert not [
        detail for detail in details.values() if re.search(r"(?<!special.)token|(?<!')text(?! blocks?\b)", detail)
    ]
    report = (newest_run(project.path) / "report.html").read_text(encoding="utf-8")
    assert "over the allowed patches" in report
    assert "allowed tokens" not in report


def test_the_suite_in_pytest_has_the_names_of_the_units(project: pytest.Pytester) -> None:
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + PATCHES, encoding="utf-8")
    project.makepyfile(test_suite=PATCHES_TEST)
    result = project.runpytest("test_suite.py", "-s")
    assert result.ret == 0
    said = dict(re.findall(r"RESULT (\w+): (.*)", result.stdout.str()))
    assert said["words"] == "every patch is a unit"
    assert said["sums"] == "weights sum to one over the allowed patches and are zero elsewhere"
    assert said["special_tokens"] == "no special tokens"
    assert not [text for text in said.values() if re.search(r"(?<!special )token|text block block", text)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["dem"],
            "attnaudit: dem: there is no such folder, registered model or package.module:factory. Did you mean 'demo'?",
        ),
        (["missing:factory"], "attnaudit: missing:factory: module 'missing' cannot be imported"),
        (["demo", "--data", "movie-review"], "attnaudit: Unknown data set 'movie-review'"),
        (["demo", "--device", "cuda:77"], "attnaudit: --device cuda:77: torch finds"),
        (["demo", "--device", "tpu"], "expected cpu, cuda or cuda:N"),
    ],
)
def test_what_cannot_be_tried_ends_with_2_and_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["conformance", *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("attnaudit: ")
    assert message in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_no_model_is_bad_usage_and_help_says_how_a_factory_is_named(tmp_path: Path) -> None:
    done = attnaudit(folder=tmp_path)
    assert done.returncode == 2
    assert "MODEL" in done.stderr
    done = attnaudit("--help", folder=tmp_path)
    assert done.returncode == 0
    assert "package.module:factory" in done.stdout


def test_in_pytest_there_is_a_case_per_model_and_check_and_expected_failures_are_strict(folder: Path) -> None:
    (folder / "test_it.py").write_text(TESTS, encoding="utf-8")
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COLUMNS": "200"}
    done = run_module("pytest", "-rA", "--tb=short", "-p", "no:cacheprovider", cwd=folder, env=environment)
    said = done.stdout
    assert done.returncode == 1
    assert "PASSED test_it.py::test_adapter[sound-sums]" in said
    assert "XFAIL test_it.py::test_adapter[broken-padding] - weights are shared with padding" in said
    failed = "FAILED test_it.py::test_adapter[broken-sums] - Failed: attention at 'attention' puts a weight of 0.12"
    assert failed in said
    assert "FAILED test_it.py::test_adapter[sound-padding] - [XPASS(strict)] wrongly expected" in said
    assert "the capabilities declare mask=False" in said
    assert "attnaudit/conformance/" not in said
