"""Kept results are found again, completed and replaced; damaged ones are measured again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from attnaudit.checks import PermutationFragility, UniformFragility
from attnaudit.code_identity.source_text import statements_of
from attnaudit.errors import ReportError
from attnaudit.research.study import result_cache
from attnaudit.research.study.result_cache import (
    CachedAudit,
    ResultCache,
    cache_key,
    merge_checks,
    outdated_checks,
)
from attnaudit.run.judge_models import JudgedChecks, check_fingerprint
from tests.units.research.validation.synthetic_scores import record

UNIFORM, STRICT_UNIFORM = UniformFragility(at_least=0.1), UniformFragility(at_least=0.2)
PERMUTATION = PermutationFragility(at_least=0.1)


def cached(**changes: object) -> CachedAudit:
    result = CachedAudit(
        fingerprints={UNIFORM.id: check_fingerprint(UNIFORM)},
        checks=[record(UNIFORM.id, 0.3)],
        skipped={},
        instances=100,
        seconds=1.0,
    )
    return msgspec.structs.replace(result, **changes)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results", CachedAudit)
    cache.create_folder()
    assert cache.read("k") is None
    cache.write("k", cached())
    assert cache.read("k") == cached()


def test_a_damaged_result_counts_as_none(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, CachedAudit)
    cache.write("k", cached())
    path = tmp_path / "k.json"
    path.write_bytes(path.read_bytes()[:50])
    assert cache.read("k") is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    cache = ResultCache(tmp_path / "file", CachedAudit)
    with pytest.raises(ReportError, match=r"file: cannot be written .* Give --out a folder"):
        cache.create_folder()
    with pytest.raises(ReportError, match=r"k\.json: cannot be written"):
        cache.write("k", cached())


@pytest.mark.parametrize(
    "changed", [{"model_sha256": "x"}, {"data_sha256": "x"}, {"seed": 1}, {"device": "cuda"}], ids=str
)
def test_the_key_depends_on_every_input(changed: dict[str, object]) -> None:
    inputs: dict[str, object] = {"model_sha256": "m", "data_sha256": "d", "seed": 0, "device": "cpu"}
    assert cache_key(**{**inputs, **changed}) != cache_key(**inputs)  # type: ignore[arg-type]


def test_the_key_depends_on_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_key(model_sha256="m", data_sha256="d", seed=0)
    monkeypatch.setattr(result_cache, "code_fingerprint", lambda: "other code")
    assert cache_key(model_sha256="m", data_sha256="d", seed=0) != before


def test_a_check_is_outdated_if_it_is_missing_or_has_other_arguments() -> None:
    assert outdated_checks(None, [UNIFORM]) == [UNIFORM]
    assert outdated_checks(cached(), [UNIFORM]) == []
    assert outdated_checks(cached(), [STRICT_UNIFORM, PERMUTATION]) == [STRICT_UNIFORM, PERMUTATION]


def test_new_records_replace_earlier_ones_and_join_the_others() -> None:
    judged = JudgedChecks(records=[record(PERMUTATION.id, 0.5)], skipped={}, measurements=[])
    both = cached(**merge_checks(cached(), [PERMUTATION], judged))
    assert [one.check for one in both.checks] == sorted([PERMUTATION.id, UNIFORM.id])
    assert outdated_checks(both, [UNIFORM, PERMUTATION]) == []
    judged = JudgedChecks(records=[record(UNIFORM.id, 0.9)], skipped={}, measurements=[])
    changed = cached(**merge_checks(both, [STRICT_UNIFORM], judged))
    assert {one.check: one.value for one in changed.checks} == {UNIFORM.id: 0.9, PERMUTATION.id: 0.5}
    assert outdated_checks(changed, [UNIFORM, STRICT_UNIFORM]) == [UNIFORM]


def test_a_check_that_can_be_judged_now_is_no_longer_skipped() -> None:
    judged = JudgedChecks(records=[record(PERMUTATION.id, 0.5)], skipped={}, measurements=[])
    merged = merge_checks(cached(skipped={PERMUTATION.id: "why", "other": "reason"}), [PERMUTATION], judged)
    assert merged["skipped"] == {"other": "reason"}


def test_the_wording_of_code_does_not_outdate_results_but_its_statements_do() -> None:
    code = 'def area(r):\n    """Return the area."""\n    return 3 * r  # roughly\n'
    worded = '"""A module."""\n\ndef area( r ):\n    return 3*r\n'
    assert statements_of(code) == statements_of(worded)
    assert statements_of(code) != statements_of(code.replace("3 * r", "4 * r"))
    assert statements_of(code) != statements_of(code.replace("r  #", "-r  #"))
