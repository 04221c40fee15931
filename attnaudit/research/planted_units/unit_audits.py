"""Audit planted models of units: judge the checks that may become gates, for every reading with a known truth."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from attnaudit.adapters.loading import LoadedModel, fingerprint
from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.checks import PermutationFragility, TotalEffect
from attnaudit.code_identity.source_text import statements_of
from attnaudit.engine.batches.clean_pass import Unit
from attnaudit.errors import AuditError
from attnaudit.instances import Dataset
from attnaudit.processes import replace_file, spread
from attnaudit.progress import ProgressCallback
from attnaudit.records import CheckRecord, Record
from attnaudit.research.planted_units.truth_rule import KnownTruth
from attnaudit.research.planted_units.unit_kinds import UnitPlan
from attnaudit.research.planted_units.unit_models import build_units
from attnaudit.research.validation.candidates import Candidate, candidates
from attnaudit.research.validation.population_schema import Entry, Half
from attnaudit.research.validation.scoring import JudgedModel
from attnaudit.run.judge_models import code_fingerprint, compact_record, judge_model

#: Seed of permutations and intervals.
SEED = 0
#: The id of the cosine above uniform weights. It rises if units are added that have neither effect nor weight.
ABOVE_UNIFORM = "pointing.logits"
#: The id of the total effect as a mean over the rows. It is measured on bags, too, but is no gate there.
MEAN_EFFECT = "total_effect.standardised"
#: The id of held sufficiency.
ENOUGH = "held_sufficiency"
#: The checks that may become gates.
MAY_GATE = (MEAN_EFFECT, ABOVE_UNIFORM, "pointing.logits.plain", ENOUGH)


class AuditedReading(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The audit of one reading of a planted model.

    Attributes:
        entry: What is known about the reading. The truth of a reading without a label is "trend".
        reason: Why the reading has no label; "" if it has one.
        records: The records of the checks that were judged.
        skipped: Check id -> why the check could not be judged.
    """

    entry: Entry
    reason: str
    records: list[CheckRecord]
    skipped: dict[str, str]

    @property
    def judged(self) -> JudgedModel:
        """The reading, in the form that the rule for choosing thresholds expects."""
        return JudgedModel(self.entry, {record.check: record for record in self.records})


def gate_candidates() -> list[Candidate]:
    """Return the checks that may become gates."""
    return [dataclasses.replace(one, may_gate=True) for one in candidates() if one.check.id in MAY_GATE]


def bag_candidates() -> list[Candidate]:
    """Return the checks that may become gates of the policy for bags.

    The total effect is the smallest one of a predicted class. In a third look at held-out models, two models passed
    although their attention is not used in one of two classes: the mean over the rows hid this class.
    """
    smallest = TotalEffect(on="standardised", classes="smallest", severity="report")
    return [
        dataclasses.replace(one, check=smallest) if one.check.id == MEAN_EFFECT else one for one in gate_candidates()
    ]


def source_candidates() -> list[Candidate]:
    """Return the checks that may become gates if the units are passages.

    The total effect may not. It is relative to the variance of the output between rows. If a model is sure of every
    answer, this variance is small and uncertain: in a first audit of the tuning half, one of 16 faithful readings had
    no interval. Permutation fragility is the change of the probability of the answer itself. The linear datamodelling
    score may not become a gate either: some unfaithful readings had a higher score than some faithful ones. Nor may the
    plain cosine: with few passages of similar effect, it is high even for equal weights.
    """
    used = PermutationFragility(severity="report")
    (points,) = [one for one in gate_candidates() if one.check.id == ABOVE_UNIFORM]
    return [Candidate(check=used, question="used", direction="at_least", may_gate=True), points]


def entry_of(
    truth: KnownTruth, *, name: str, kind: str, mechanism: str, reading: str, encoder: str, seed: int, half: Half
) -> Entry:
    """Return the entry of a reading. Its truth is "trend" if the rule gives it no label."""
    return Entry(
        folder=name,
        kind=kind,
        mechanism=mechanism,
        truth=truth.truth or "trend",
        share=truth.share if truth.truth == "graded" else None,
        data="planted",
        reading=reading,
        encoder=encoder,
        seed=seed,
        level="units",
        accuracy=truth.accuracy,
        half=half,
        fails=truth.fails,
    )


def judge_readings(
    adapter: ModelAdapter,
    dataset: Dataset,
    readings: Sequence[str],
    *,
    name: str,
    candidates: Sequence[Candidate] | None = None,
    only: Sequence[str] = (),
    unit: Unit = "tokens",
) -> dict[str, tuple[list[CheckRecord], dict[str, str]]]:
    """Judge the checks that may become gates under some readings.

    Args:
        adapter: The model.
        dataset: The rows.
        readings: The text form of each reading; "" for the model's own.
        name: The name of the model.
        candidates: The checks that may become gates; None for those of `gate_candidates`.
        only: The ids of the checks that are judged; empty for all checks that may become gates.
        unit: The units of the audit.

    Returns:
        For each reading, two values: the records, with check ids that leave out the reading, and a dictionary: check id
        -> why the check could not be judged.
    """
    checks = [one.check for one in candidates or gate_candidates() if not only or one.check.id in only]
    pairs = [(reading, check) for reading in readings for check in checks]
    under = [dataclasses.replace(check, reading=reading or check.reading) for reading, check in pairs]
    parameters, count = fingerprint(adapter)
    loaded = LoadedModel(
        name=name,
        source="planted",
        description="",
        adapter=adapter,
        sha256=parameters,
        parameters_sha256=parameters,
        parameters=count,
    )
    judged = judge_model(loaded, dataset, under, name=name, seed=SEED, unit=unit)
    plain = {changed.id: (reading, check.id) for changed, (reading, check) in zip(under, pairs, strict=True)}
    found: dict[str, tuple[list[CheckRecord], dict[str, str]]] = {reading: ([], {}) for reading in readings}
    for record in judged.records:
        reading, id_ = plain[record.check]
        found[reading][0].append(msgspec.structs.replace(compact_record(record), check=id_))
    for changed, reason in judged.skipped.items():
        reading, id_ = plain[changed]
        found[reading][1][id_] = reason
    return found


def audit_units(plan: UnitPlan, *, half: Half, only: Sequence[str] = ()) -> list[AuditedReading]:
    """Build a planted model of units, decide the truth of its readings, and audit them.

    Args:
        plan: The model.
        half: The half that it belongs to.
        only: As in `judge_readings`.
    """
    torch.set_num_threads(1)
    built = build_units(plan)
    mean_effect = [one for one in gate_candidates() if one.check.id == MEAN_EFFECT]
    judged = judge_readings(
        built.adapter,
        built.dataset,
        list(built.variant.readings),
        name=plan.name,
        candidates=[*mean_effect, *bag_candidates()] if plan.arrangement == "bag" else None,
        only=only,
    )
    audited = []
    for reading in built.variant.readings:
        truth = built.truth(reading)
        role = ".".join(filter(None, (plan.kind, built.variant.role(reading))))
        entry = entry_of(
            truth,
            name=plan.name,
            kind=role,
            mechanism=role,
            reading=reading,
            encoder=plan.form,
            seed=plan.seed,
            half=half,
        )
        records, skipped = judged[reading]
        audited.append(
            AuditedReading(
                entry=entry,
                reason=truth.reason,
                records=records,
                skipped=skipped,
            )
        )
    return audited


def audit_all(
    plans: Sequence[tuple[UnitPlan, Half]],
    *,
    out: Path,
    only: Sequence[str] = (),
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> list[AuditedReading]:
    """Audit planted models of units. Results are stored, so that a run that was stopped resumes.

    Args:
        plans: The models, each with its half.
        out: The folder of stored results.
        only: As in `judge_readings`.
        jobs: The number of processes that share the work.
        progress: Called after each model, with its name as the note. None to report no progress.
    """
    return audit_each(
        [(plan.name, (plan, half, tuple(only))) for plan, half in plans],
        _audit_task,
        out=out,
        jobs=jobs,
        progress=progress,
    )


def audit_each(
    tasks: Sequence[tuple[str, Any]],
    audit: Callable[[Any], list[AuditedReading]],
    *,
    out: Path,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> list[AuditedReading]:
    """Run tasks that each audit one model, and store their results.

    Args:
        tasks: The name and the argument of each task. A name is also the name of a file.
        audit: The function that is called with the argument of a task.
        out: As in `audit_all`.
        jobs: As in `audit_all`.
        progress: As in `audit_all`.

    Raises:
        AuditError: A result cannot be written.
    """
    key = _code_key(Path(inspect.getfile(audit)).parent)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AuditError(f"{out}: cannot be created ({error.strerror}). Give another folder with --out.") from error
    done = {name: found for name, _ in tasks if (found := _stored(out, name, key)) is not None}
    missing = [(name, task) for name, task in tasks if name not in done]
    for (name, _), audited in spread(partial(_run_task, audit), missing, jobs):
        done[name] = audited
        content = {"key": key, "readings": [msgspec.to_builtins(one) for one in audited]}
        replace_file(out / f"{name}.json", json.dumps(content).encode())
        if progress is not None:
            progress(len(done), len(tasks), name)
    return [one for name, _ in tasks for one in done[name]]


def _run_task(audit: Callable[[Any], list[AuditedReading]], task: tuple[str, Any]) -> list[AuditedReading]:
    return audit(task[1])


def _audit_task(task: tuple[UnitPlan, Half, tuple[str, ...]]) -> list[AuditedReading]:
    return audit_units(task[0], half=task[1], only=task[2])


def _stored(out: Path, name: str, key: str) -> list[AuditedReading] | None:
    """Return the stored result of a task; None if there is none, or if other code computed it."""
    path = out / f"{name}.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_bytes())
    if content.get("key") != key:
        return None
    return msgspec.convert(content["readings"], list[AuditedReading])


def _code_key(folder: Path) -> str:
    """Return a hash of the code that decides the results: the code of the checks and the modules in a folder."""
    digest = hashlib.sha256(code_fingerprint().encode())
    for path in sorted(folder.glob("*.py")):
        digest.update(statements_of(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()
