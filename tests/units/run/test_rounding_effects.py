"""A gate of a model in half precision is undefined if rounding could change its verdict."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit import checks
from attnaudit.engine.repeated_pass import FEWEST_ROWS
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.session import AuditSession
from tests import architectures

ROWS = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small model in bfloat16."""
    saved = tmp_path_factory.mktemp("models") / "half"
    model, tokenizer = architectures.build("bert")
    model.to(torch.bfloat16).save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved


def judged(folder: Path, reports: Path, *gates: Any) -> list[Any]:
    """Judge gates on some movie reviews."""
    options = AuditOptions(
        models=(str(folder),),
        data=("movie-reviews",),
        models_base=folder.parent,
        data_base=folder.parent,
        reports=reports,
        max_instances=ROWS,
    )
    session = AuditSession(options, RunFolder(reports, "run"))
    for gate in gates:
        session.declared.add(gate)
        session.request(folder.name, "movie-reviews", gate.needs_under_reading())
    return [session.judge(gate, folder.name, "movie-reviews") for gate in gates]


def test_a_verdict_that_rounding_could_change_is_undefined(folder: Path, tmp_path: Path) -> None:
    gate = checks.UniformFragility(at_least=1e-5)
    (clear,) = judged(folder, tmp_path / "clear", gate)
    assert (clear.verdict, clear.blocks) == ("pass", False)
    assert (clear.rounding.precision, clear.rounding.rows) == ("bfloat16", ROWS)
    assert 0 < clear.rounding.change < 0.01
    assert f"the effect of rounding in bfloat16 is {clear.rounding.change:.2g} ({ROWS} texts measured" in clear.note
    near = dataclasses.replace(gate, at_least=clear.interval.low - clear.rounding.change / 2)
    (record,) = judged(folder, tmp_path / "near", near)
    assert (record.verdict, record.blocks) == ("undefined", True)
    assert record.reason.startswith("rounding in bfloat16 changes the value by ")
    far = dataclasses.replace(gate, at_least=clear.interval.low - clear.rounding.change * 2)
    (record,) = judged(folder, tmp_path / "far", far)
    assert (record.verdict, record.blocks) == ("pass", False)
    assert ROWS < FEWEST_ROWS  # all rows were measured a second time
