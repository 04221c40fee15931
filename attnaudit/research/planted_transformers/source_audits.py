"""Audit planted language models that answer from passages, for every reading with a known truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnaudit.research.planted_transformers.planted_sources import SourcePlan, build_sources, reading_text
from attnaudit.research.planted_transformers.source_truth import source_truth
from attnaudit.research.planted_units.unit_audits import AuditedReading, entry_of, judge_readings, source_candidates
from attnaudit.research.validation.population_schema import Half


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTask:
    """One model to audit: its plan, and its half."""

    plan: SourcePlan
    half: Half


def audit_sources(task: SourceTask) -> list[AuditedReading]:
    """Build a planted language model, decide the truth of its readings, and audit its passages."""
    torch.set_num_threads(1)
    plan = task.plan
    built = build_sources(plan)
    truths = {reading: source_truth(built, reading) for reading in built.readings}
    texts = [reading_text(reading) for reading in built.readings]
    judged = judge_readings(
        built.adapter(), built.dataset, texts, name=plan.name, candidates=source_candidates(), unit="sources"
    )
    audited = []
    for reading, text in zip(built.readings, texts, strict=True):
        entry = entry_of(
            truths[reading],
            name=plan.name,
            kind=f"{plan.mechanism}.{reading.role}",
            mechanism=plan.mechanism,
            reading=text,
            encoder=plan.family,
            seed=plan.seed,
            half=task.half,
        )
        records, skipped = judged[text]
        audited.append(
            AuditedReading(entry=entry, reason=truths[reading].reason, records=records, skipped=skipped)
        )  # fmt: skip
    return audited
