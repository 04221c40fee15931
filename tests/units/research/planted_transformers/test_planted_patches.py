"""Planted vision transformers: their patches have the planned features, and their readings the planned truth."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.protocol import TEXT
from attnaudit.research.planted_transformers.patch_audits import accuracy_of
from attnaudit.research.planted_transformers.planted_patches import GRID, PatchPlan, build_patches, patch_plans
from attnaudit.research.planted_transformers.transformer_population import verify_reading


@pytest.mark.parametrize("family", [pytest.param("vit", marks=pytest.mark.slow), "deit"])
def test_the_readings_have_the_planned_truth(family: str, tmp_path: Path) -> None:
    plan = PatchPlan(mechanism="last_layer", family=family, seed=0)  # type: ignore[arg-type]
    built = build_patches(plan, tmp_path)
    assert accuracy_of(built) == 1.0
    for reading in built.readings:
        share, _, unmet = verify_reading(reading, reading.text(plan.family), built.adapter, built.dataset, 0)
        assert (share, unmet) == (reading.known_share, [])
    right, wrong = built.readings[:2]
    _, _, unmet = verify_reading(right, wrong.text(plan.family), built.adapter, built.dataset, 0)
    assert unmet == ["the reading is right on 0% of the texts; expected 90% to 100%"]


def test_the_model_attends_to_the_patches_with_evidence(tmp_path: Path) -> None:
    built = build_patches(PatchPlan(mechanism="first_layer", family="vit", seed=1), tmp_path)
    (mover,) = [reading for reading in built.readings if reading.truth == "faithful"]
    inputs = built.adapter.collate(built.dataset.instances)
    assert inputs.ids[TEXT].shape[1] == GRID * GRID + 1
    trace = built.adapter.run(inputs)
    site = built.adapter.sites()[0]
    weights = trace.attention[site.key].detach()[:, mover.heads, 0, 1:]
    assert float(weights.sort(descending=True).values[:, :3].sum(1).min()) > 0.6
    assert float(weights.max(1).values.min()) > 1 / GRID**2 * 3


def test_the_halves_have_different_mechanisms() -> None:
    tuning, held_out = (patch_plans(half, (0, 1)) for half in ("tuning", "held_out"))
    assert not {plan.mechanism for plan in tuning} & {plan.mechanism for plan in held_out}
    assert len({plan.name for plan in [*tuning, *held_out]}) == len(tuning) + len(held_out)
    assert torch.tensor([len(tuning), len(held_out)]).min() > 20
