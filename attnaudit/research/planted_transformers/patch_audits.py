"""Audit planted vision transformers: judge the checks that may become gates, for every reading with a known truth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from attnaudit.research.planted_transformers.planted_patches import PatchPlan, PlantedPatches, build_patches
from attnaudit.research.planted_transformers.transformer_population import FAITHFUL_FROM, verify_reading
from attnaudit.research.planted_units.unit_audits import AuditedReading, judge_readings
from attnaudit.research.validation.population_schema import Entry, Half


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTask:
    """One model to audit: its plan, its half, and the folder for its pictures."""

    plan: PatchPlan
    half: Half
    pictures: Path


def audit_patches(task: PatchTask) -> list[AuditedReading]:
    """Build a planted vision transformer, verify its readings, and audit them.

    If a reading is not verified, or its model predicts the labels of fewer than 90% of the pictures, the truth of the
    reading counts as unknown ("trend").
    """
    torch.set_num_threads(1)
    built = build_patches(task.plan, task.pictures)
    accuracy = accuracy_of(built)
    texts = [reading.text(task.plan.family) for reading in built.readings]
    judged = judge_readings(built.adapter, built.dataset, texts, name=task.plan.name)
    audited = []
    for reading in built.readings:
        text = reading.text(task.plan.family)
        share, _, unmet = verify_reading(reading, text, built.adapter, built.dataset, task.plan.seed)
        if accuracy < FAITHFUL_FROM:
            unmet.append(f"the model predicts the label of {accuracy:.0%} of the pictures")
        graded = reading.truth == "graded"
        entry = Entry(
            folder=task.plan.name,
            kind=f"{task.plan.mechanism}.{reading.role}",
            mechanism=task.plan.mechanism,
            truth="trend" if unmet else reading.truth,
            share=share if graded and not unmet else None,
            data="planted",
            reading=text,
            encoder=task.plan.family,
            seed=task.plan.seed,
            level="patches",
            accuracy=accuracy,
            half=task.half,
            fails=("points",) if graded else tuple(q for q in ("used", "points") if q in reading.fails),
        )
        records, skipped = judged[text]
        audited.append(AuditedReading(entry=entry, reason="; ".join(unmet), records=records, skipped=skipped))
    return audited


def accuracy_of(built: PlantedPatches) -> float:
    """Return the share of the pictures whose label the model predicts."""
    with torch.no_grad():
        predicted = built.adapter.run(built.adapter.collate(built.dataset.instances)).logits.argmax(-1).tolist()
    names = built.adapter.capabilities.classes
    right: int = sum(names[p] == one.label for p, one in zip(predicted, built.dataset.instances, strict=True))
    return right / len(predicted)
