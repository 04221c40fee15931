"""Other names of the classes: with ids, a run gives the same numbers; without ids, the rows get other random draws."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import newest_audit

MODELS = """

@attnaudit.register_model("renamed")
def renamed():
    from attnaudit.adapters import PooledAttentionAdapter

    made = tiny()
    parts = {name: getattr(made, name) for name in ("embedding", "encoder", "attention", "decoder", "tokenize")}
    return PooledAttentionAdapter(**parts, classes=("bad", "good"), modules=made.modules)
"""
TEST = """
from attnaudit import audit, checks

@audit(
    checks.TotalEffect(on="standardised", at_least=0.01),
    checks.PermutationFragility(at_least=0.00001),
    checks.Agreement(importance="gradient", at_least="floor - 0.9"),
)
def test_faithful(check):
    check.enforce()
"""
NEW_NAMES = {"negative": "bad", "positive": "good"}
WORDS = ["film", "plot", "good", "bad", "dull", "bright", "actor", "scene", "joke", "story"]


def audits(project: pytest.Pytester, *, with_ids: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Audit a model and the same model with other class names, and return the records of the checks of both runs."""
    conftest = (project.path / "conftest.py").read_text(encoding="utf-8")
    (project.path / "conftest.py").write_text(conftest + MODELS, encoding="utf-8")
    project.makepyfile(test_audit=TEST)
    rows = [
        {"text": " ".join(WORDS[(i * k + i // 10) % 10] for k in range(1, 4 + i % 6)), "label": list(NEW_NAMES)[i % 2]}
        for i in range(40)
    ]
    if with_ids:
        rows = [{"id": f"row {i}", **row} for i, row in enumerate(rows)]
    found = []
    for model, names in (("tiny", {name: name for name in NEW_NAMES}), ("renamed", NEW_NAMES)):
        lines = [json.dumps(row | {"label": names[row["label"]]}) for row in rows]
        (project.path / f"{model}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        project.runpytest("--model", model, "--data", f"{model}.jsonl")
        found.append(newest_audit(project.path)["checks"])
    return found[0], found[1]


def test_with_ids_no_number_depends_on_the_names_of_the_classes(project: pytest.Pytester) -> None:
    before, after = audits(project, with_ids=True)
    assert len(before) == 3
    for one, other in zip(before, after, strict=True):
        assert one["value"] is not None
        for field in ("verdict", "value", "interval", "fail_interval", "n_defined", "requirement"):
            assert one[field] == other[field], (one["check"], field)


def test_without_ids_the_labels_are_part_of_the_ids_so_other_numbers_are_drawn(project: pytest.Pytester) -> None:
    before, after = audits(project, with_ids=False)
    changed = []
    for one, other in zip(before, after, strict=True):
        assert one["verdict"] == other["verdict"]
        assert one["interval"]["low"] <= other["value"] <= one["interval"]["high"]
        changed.append(one["value"] != other["value"])
    assert changed[:2] == [True, True]  # both rearrange attention at random
