"""attnaudit reproduces stored outputs of Jain & Wallace's published code on the same weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import oracle_comparison

ORACLE = Path(os.environ.get("ATTNAUDIT_ORACLE", Path(__file__).resolve().parents[4] / "shared/oracle/jain-wallace"))
FOLDER, DATA = ORACLE / "sst_bilstm_additive", ORACLE / "data" / "sst.json"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "outputs.npz").is_file(),
    reason="the stored outputs are missing; set ATTNAUDIT_ORACLE to their folder",
)


def test_every_quantity_agrees_with_the_published_code() -> None:
    lines, measurements = oracle_comparison.compare(FOLDER, DATA)
    assert [line for line in lines if not line.agrees] == []
    assert len(lines) == 13
    assert measurements.scalar("adversarial.0.01.jsd").mean() == pytest.approx(0.6279, abs=1e-3)
    assert measurements.scalar("adversarial.0.05.jsd").mean() == pytest.approx(0.6546, abs=1e-3)


def test_a_disagreement_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.load(FOLDER / "model.pt", weights_only=True)
    state["decoder.linear_1.bias"] += 0.01
    torch.save(state, tmp_path / "model.pt")
    for name in ("outputs.npz", "config.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    assert oracle_comparison.main([str(tmp_path), "--data", str(DATA), "--limit", "20"]) == 1
    assert "DISAGREES" in capsys.readouterr().out


def test_a_pruned_embedding_gives_the_same_model(tmp_path: Path) -> None:
    state = torch.load(FOLDER / "model.pt", weights_only=True)
    chosen = np.load(FOLDER / "outputs.npz")["test_index"][:20]
    rows = json.loads(DATA.read_text())["token_ids"]
    used = sorted({token for i in chosen for token in rows[i]})
    embedding = state["encoder.embedding.weight"]
    pruned = {
        **state,
        "encoder.embedding.weight": embedding[used],
        "embedding_rows": torch.tensor(used),
        "vocab_size": torch.tensor(len(embedding)),
    }
    torch.save(pruned, tmp_path / "model.pt")
    for name in ("outputs.npz", "config.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    lines, _ = oracle_comparison.compare(tmp_path, DATA, limit=20)
    assert [line for line in lines if not line.agrees] == []


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        oracle_comparison.main([str(tmp_path)])
    assert "model.pt is missing" in capsys.readouterr().err
