"""The fingerprint of the code covers every folder that decides numbers; checks are judged together or one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnaudit
from attnaudit.adapters.loading import load_model
from attnaudit.checks import PermutationFragility, UniformFragility
from attnaudit.data import load, sample
from attnaudit.engine import measuring
from attnaudit.errors import ModelError
from attnaudit.run import judge_models
from attnaudit.run.judge_models import (
    NUMERIC_FOLDERS,
    NUMERIC_MODULES,
    check_fingerprint,
    code_fingerprint,
    compact_record,
    judge_model,
    source_fingerprint,
)

PACKAGE = Path(attnaudit.__file__).parent
#: Folders and modules that arrange, show or start audits. Their code cannot change a number.
OTHER_FOLDERS = {
    "code_identity",
    "commands",
    "conformance",
    "executors",
    "plugin",
    "records",
    "release_evidence",
    "report",
    "research",
    "run",
}
OTHER_MODULES = {
    *("__init__.py", "__main__.py", "arrays.py", "cli.py", "devices.py", "errors.py", "formatting.py", "processes.py"),
    *("command_parser.py", "model_families.py", "output_files.py", "progress.py", "registry.py", "verdict_text.py"),
}


def test_every_folder_of_the_package_either_decides_numbers_or_cannot() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders == set(NUMERIC_FOLDERS) | OTHER_FOLDERS


def test_every_module_of_the_root_either_decides_numbers_or_cannot() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == set(NUMERIC_MODULES) | OTHER_MODULES


def test_comments_change_the_fingerprint_of_the_files_but_not_that_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "metric.py"
    monkeypatch.setattr(judge_models, "_numeric_files", lambda: [("metrics/metric.py", file)])

    def fingerprints(source: str) -> tuple[str, str]:
        file.write_text(source, encoding="utf-8")
        return source_fingerprint.__wrapped__(), code_fingerprint.__wrapped__()

    plain, commented, changed = (fingerprints(source) for source in ("A = 1\n", "A = 1  # one\n", "A = 2\n"))
    assert len({plain[0], commented[0], changed[0]}) == 3
    assert plain[1] == commented[1] != changed[1]


def test_the_fingerprint_of_the_files_covers_every_numeric_folder_and_module() -> None:
    names = {name for name, _ in judge_models._numeric_files()}
    assert {name.partition("/")[0] for name in names} == {*NUMERIC_FOLDERS, *NUMERIC_MODULES}
    assert "engine/measuring.py" in names


def test_two_checks_have_one_fingerprint_only_if_all_their_arguments_are_equal() -> None:
    assert check_fingerprint(UniformFragility(at_least=0.1)) == check_fingerprint(UniformFragility(at_least=0.1))
    assert check_fingerprint(UniformFragility(at_least=0.1)) != check_fingerprint(UniformFragility(at_least=0.2))


def test_a_check_that_cannot_be_judged_is_skipped_and_the_others_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    uniform, permutation = UniformFragility(severity="report"), PermutationFragility(severity="report")
    measure = measuring.measure

    def refuse_permutations(adapter: object, dataset: object, needs: list[str], **options: object) -> object:
        if set(needs) & set(permutation.needs()):
            raise ModelError("no permutations here")
        return measure(adapter, dataset, needs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "measure", refuse_permutations)
    loaded, dataset = load_model("demo"), sample(load("movie-reviews"), 40, 0)
    judged = judge_model(loaded, dataset, [permutation, uniform], name="demo", seed=0)
    assert judged.skipped == {permutation.id: "no permutations here"}
    (record,) = judged.records
    assert record.check == uniform.id
    assert len(judged.measurements) == 1
    compact = compact_record(record)
    assert record.worst
    assert (compact.value, compact.interval, compact.charts, compact.worst) == (record.value, record.interval, [], [])
