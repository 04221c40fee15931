"""Match the models and data sets of two runs, and find the reasons why runs or checks are not comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from attnaudit.checks.policies.policy_diff import JUDGING
from attnaudit.errors import ReportError, invalid_input, nearest
from attnaudit.records import CheckRecord, DataRecord, ModelRecord, RunRecord
from attnaudit.records.comparison_records import ComparedCheck, PairedValue
from attnaudit.run.verification.stored_numbers import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The models that the user asks to compare; "" for the models that the runs have in common.

    Attributes:
        base: The name of a model in the base run.
        candidate: The name of a model in the candidate run.
    """

    base: str = ""
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """A model and a data set of the base run, and their counterparts in the candidate run."""

    base_model: ModelRecord
    candidate_model: ModelRecord
    base_data: DataRecord
    candidate_data: DataRecord

    @property
    def same_model(self) -> bool:
        """Whether the base run and the candidate run audited the same model, whatever its names are."""
        return self.base_model.sha256 == self.candidate_model.sha256

    def cases(self, base: RunRecord, candidate: RunRecord) -> tuple[Case, Case]:
        """Return the case of each run: its model, data set and seed."""
        return (
            (self.base_model.name, self.base_data.name, base.seed),
            (self.candidate_model.name, self.candidate_data.name, candidate.seed),
        )


def pairs_of(base: RunRecord, candidate: RunRecord, names: Names) -> tuple[list[Pair], list[str]]:
    """Match the models and data sets of two runs.

    Models are matched by their name. If the runs have no name in common and each audited one model, these two are
    matched. Data sets are matched by the hash of their rows.

    Returns:
        The pairs, and one sentence for each model or data set that has no counterpart.

    Raises:
        ReportError: The runs have no pair in common, or computed their statistics over different units.
    """
    if base.unit != candidate.unit:
        raise ReportError(
            f"{base.run} and {candidate.run} are not comparable: the first run computed statistics over {base.unit}, "
            f"the second over {candidate.unit}. Run both audits with the same --audit-unit."
        )
    models, left_out = _models(base, candidate, names)
    data, other_data = _data(base, candidate)
    left_out += other_data
    pairs = []
    for base_model, candidate_model in models:
        if set(base_model.classes) != set(candidate_model.classes):
            left_out.append(
                f"The model {candidate_model.name} was not compared with {base_model.name}, because its classes are "
                f"{', '.join(candidate_model.classes)} instead of {', '.join(base_model.classes)}."
            )
            continue
        if base_model.target != candidate_model.target:
            explained = [one.target.text if one.target else "the class" for one in (candidate_model, base_model)]
            left_out.append(
                f"The model {candidate_model.name} was not compared with {base_model.name}, because the first run "
                f"explains {explained[1]}, and the second {explained[0]}."
            )
            continue
        pairs += [Pair(base_model, candidate_model, *both) for both in data]
    if not pairs:
        raise ReportError(" ".join([f"{base.run} and {candidate.run} are not comparable.", *left_out]))
    return pairs, left_out


def _models(
    base: RunRecord, candidate: RunRecord, names: Names
) -> tuple[list[tuple[ModelRecord, ModelRecord]], list[str]]:
    """Return the pairs of models, and a sentence for each model without a counterpart."""
    before, after = ({model.name: model for model in run.models} for run in (base, candidate))
    for option, name, known, run in (
        ("--base-model", names.base, before, base),
        ("--candidate-model", names.candidate, after, candidate),
    ):
        if name and name not in known:
            with invalid_input():
                raise ReportError(f"{option} {name}: the run {run.run} audited no such model. {nearest(name, known)}")
    if names.base or names.candidate:
        before = {names.base: before[names.base]} if names.base else before
        after = {names.candidate: after[names.candidate]} if names.candidate else after
    if len(before) == len(after) == 1:
        return [(next(iter(before.values())), next(iter(after.values())))], []
    left_out = [
        f"The model {name} was not compared, because the {which} run audited no model of this name. Name its "
        "counterpart with --base-model and --candidate-model."
        for known, other, which in ((before, after, "candidate"), (after, before, "base"))
        for name in known
        if name not in other
    ]
    return [(before[name], after[name]) for name in before if name in after], left_out


def _data(base: RunRecord, candidate: RunRecord) -> tuple[list[tuple[DataRecord, DataRecord]], list[str]]:
    """Return the pairs of data sets with the same rows, and a sentence for each data set without a counterpart."""
    found, left_out = [], []
    for after in candidate.data:
        before = next((one for one in base.data if one.sha256 == after.sha256), None)
        if before is not None:
            found.append((before, after))
        elif any(one.name == after.name for one in base.data):
            left_out.append(
                f"The data set {after.name} was not compared, because its rows changed: their hash differs between "
                "the runs. Audit both models on the same rows."
            )
        else:
            left_out.append(f"The data set {after.name} was not compared, because the base run did not audit its rows.")
    matched = {before.sha256 for before, _ in found}
    after_names = {one.name for one in candidate.data}
    left_out += [
        f"The data set {one.name} was not compared, because the candidate run did not audit its rows."
        for one in base.data
        if one.sha256 not in matched and one.name not in after_names
    ]
    return found, left_out


def why_not_comparable(before: CheckRecord, after: CheckRecord, runs: tuple[RunRecord, RunRecord]) -> str:
    """Return why the values of two records with the same id are not comparable; "" if they are.

    Args:
        before: The record in the base run.
        after: The record in the candidate run.
        runs: The base run and the candidate run.
    """
    if before.comparison is not None or after.comparison is not None:
        return "its value is already a difference from a baseline"
    readings = [_reading(record, run) for record, run in zip((before, after), runs, strict=True)]
    if readings[0] != readings[1]:
        shown = [reading or "the pooled attention" for reading in readings]
        return (
            f"the runs audited different readings of attention: {shown[0]} in the base run and {shown[1]} in the "
            "candidate run"
        )
    changed = sorted(
        name
        for name in {*before.parameters, *after.parameters} - set(JUDGING)
        if before.parameters.get(name) != after.parameters.get(name)
    )
    if changed:
        return f"the arguments of the check differ between the runs: {', '.join(changed)}"
    return ""


def _reading(record: CheckRecord, run: RunRecord) -> str:
    """Return the reading that a check audited; "" for a model with a single row of weights."""
    own = (one.own_reading for one in run.measured if (one.model, one.data) == (record.model, record.data))
    return record.reading or next(own, "")


def exact(
    task: Sequence[PairedValue], checks: Sequence[ComparedCheck]
) -> tuple[list[PairedValue], list[ComparedCheck]]:
    """Return the comparison of a model with itself, without intervals of differences that are exactly 0.

    If two runs of one model have the same numbers on every instance, other instances would not differ either. Two
    models may, even if they agree on every audited instance.
    """

    def shown(paired: PairedValue) -> PairedValue:
        same = not paired.changed and paired.base == paired.candidate
        return msgspec.structs.replace(paired, interval=None, detectable=None) if same else paired

    found = []
    for check in checks:
        paired = shown(check.paired) if check.paired else None
        if paired is not None and paired.meaning == "same" and paired.interval is None:
            check = msgspec.structs.replace(check, paired=paired, reason="", warning="")
        found.append(check)
    return [shown(paired) for paired in task], found


def remarks(base: RunRecord, candidate: RunRecord, pairs: Sequence[Pair]) -> list[str]:
    """Return what else differs between two runs and may explain a difference, one sentence each."""
    if base.run == candidate.run and base.digest == candidate.digest and all(pair.same_model for pair in pairs):
        return [
            f"The base run and the candidate run are the same run, {base.run}, so every difference is 0. Give the "
            "folders of two runs to compare them."
        ]
    found = []
    if base.attnaudit != candidate.attnaudit:
        found.append(
            f"The version of attnaudit changed from {base.attnaudit} to {candidate.attnaudit}, so checks may measure "
            "differently. Run both audits with the same version to exclude this."
        )
    if base.seed != candidate.seed:
        found.append(
            f"The seed changed from {base.seed} to {candidate.seed}, so the checks drew other random numbers, such as "
            "other permutations."
        )
    devices = [sorted({one.device for one in run.measured}) for run in (base, candidate)]
    if devices[0] != devices[1]:
        found.append(f"The device changed from {', '.join(devices[0])} to {', '.join(devices[1])}.")
    same = {pair.candidate_model.name: pair.candidate_model.sha256 for pair in pairs if pair.same_model}
    return found + [
        f"Both runs audited the same model, {name} (sha256 {sha256[:12]})." for name, sha256 in same.items()
    ]
