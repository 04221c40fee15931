"""The examples of docs/adapters.md, run as they stand there."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

from attnaudit import cli
from attnaudit.conformance import CHECKS
from tests.forking_interpreter import run_module

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters")
    for name, text in EXAMPLES.items():
        (made / name).write_text(text, encoding="utf-8")
    return made


def test_the_adapter_is_short() -> None:
    assert len(EXAMPLES["word_mixer.py"].splitlines()) <= 80


def test_the_pytest_examples_pass_and_expected_failures_are_xfails(folder: Path) -> None:
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "COLUMNS": "200"}
    done = run_module("pytest", "-rA", "-p", "no:cacheprovider", cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED test_word_mixer.py::test_adapter[word_mixer-batch_mates]" in done.stdout
    assert "XFAIL test_expected.py::test_adapter[unfinished-deletion] - keep() is still to be written" in done.stdout
    assert "PASSED test_expected.py::test_plain" in done.stdout
    assert "2 xfailed" in done.stdout


def test_the_plain_example_prints_what_was_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(folder)
    runpy.run_path(str(folder / "plain.py"))
    assert "self_replacement pass the model's own weights change nothing" in capsys.readouterr().out.splitlines()


def test_the_command_takes_the_factory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["conformance", "word_mixer:word_mixer"]) == 0
    assert "word_mixer.word_mixer fulfils the adapter contract" in capsys.readouterr().out


def test_the_table_lists_every_check() -> None:
    table = PAGE.partition("<!-- checks -->\n")[2].partition("<!-- end of checks -->")[0].splitlines()[2:]
    expected = [
        f"| {one.name} | {one.question} | {', '.join(one.needs)} | {'yes' if one.quick else ''} |" for one in CHECKS
    ]
    assert table == expected


def test_the_retrainable_example_is_held_against_its_own_seeds_and_refuses_the_rest(folder: Path) -> None:
    code = """
from retrainable import retrainable
from attnaudit import checks
from attnaudit.conformance import check_adapter
from attnaudit.errors import CheckError
from attnaudit.instances import Dataset, Instance
from attnaudit.engine.measuring import measure

texts = ["a good film", "a dull story is bad", "not very bright"]
rows = tuple(Instance(id=str(i), text=text, label="positive") for i, text in enumerate(texts))
data = Dataset(name="d", source="d", description="", instances=rows, classes=("positive",))
adapter = retrainable()
check_adapter(adapter)
seeds, uniform = checks.SeedVariance(seeds=2), checks.RetrainedUniform(seeds=1)
found, _ = measure(adapter, data, [*seeds.needs_under_reading(), *uniform.needs_under_reading()], model="m", seed=0)
print(seeds.judge(found).value > 0)
try:
    uniform.judge(found)
except CheckError as error:
    print(error)
"""
    (folder / "held_against_seeds.py").write_text(code, encoding="utf-8")
    done = run_module("held_against_seeds", cwd=folder)
    said = "RetrainedUniform on m: WordMixer can only be trained as it was, from other seeds."
    assert done.stdout.splitlines() == ["True", said], done.stderr
