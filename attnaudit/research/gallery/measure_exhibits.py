"""Audit planted models for the gallery, and choose the text that the picture of each model shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from attnaudit.arrays import Floats
from attnaudit.checks.base import Check
from attnaudit.checks.policies.policy import load_policy
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AuditError
from attnaudit.progress import ProgressCallback
from attnaudit.records import CheckRecord
from attnaudit.research.gallery.gallery_records import OUTCOMES, CheckText, CheckValue, Exhibit, Outcome, ShownText
from attnaudit.research.planted.kind import kinds
from attnaudit.research.planted.verify_exchange import LOGIT_EXCHANGE
from attnaudit.research.validation.candidate_policy import SHIPPED_POLICIES
from attnaudit.research.validation.population_reader import dataset_of, read_population
from attnaudit.research.validation.population_schema import Entry, Family

#: The number of texts per model.
TEXTS: Mapping[Family, int] = {"pooled attention": 100, "transformer": 60}
#: Kinds of checks that are left out, because they take minutes if the decoder is not linear.
LEFT_OUT: Mapping[Family, tuple[str, ...]] = {"pooled attention": (), "transformer": ("adversarial",)}
#: The number of tokens of the text that a picture shows.
FEWEST_TOKENS, MOST_TOKENS = 5, 16
#: Significant digits of the stored numbers.
DIGITS = 4
EFFECTS, REARRANGED = "token_effect.held.logits", "rearrangement.centred_logits"


def outcome_of(entry: Entry) -> Outcome | None:
    """Return the known outcome for the attention of an entry, such as "right" or "unused". None if it is unknown."""
    return _outcome(entry.truth, entry.fails)


def _outcome(truth: str, fails: Sequence[str]) -> Outcome | None:
    if truth == "unfaithful":
        return "unused" if "used" in fails else "elsewhere"
    known: dict[str, Outcome] = {"faithful": "right", "graded": "partly"}
    return known.get(truth)


def shown_kinds() -> list[str]:
    """Return the kinds of pooled models to plant: for each mechanism and outcome, the first in alphabetical order."""
    chosen: dict[tuple[str, Outcome], str] = {}
    for kind in kinds().values():
        outcome = _outcome(kind.truth, kind.fails)
        if outcome is not None:
            chosen.setdefault((kind.mechanism, outcome), kind.name)
    return list(chosen.values())


def choose(entries: Sequence[Entry]) -> list[Entry]:
    """Return the first entry of each mechanism and outcome, sorted by mechanism and outcome."""
    chosen: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        outcome = outcome_of(entry)
        if outcome is not None:
            chosen.setdefault((entry.mechanism, list(OUTCOMES).index(outcome)), entry)
    return [chosen[key] for key in sorted(chosen)]


def checks_of(family: Family) -> list[Check]:
    """Return the checks for the exhibits of a family: its gates, and the informational checks of the default policy.

    Kinds of checks in LEFT_OUT are left out. The other informational checks are the same for all families, so that
    their values can be compared.
    """
    gates = [check for check in _policy(SHIPPED_POLICIES[family]) if check.severity == "gate"]
    informational = [check for check in _policy("policy.toml") if check.severity == "report"]
    left_out = {check.id for check in gates}
    left_out.update(check.id for check in informational if check.family in LEFT_OUT[family])
    return [*gates, *(check for check in informational if check.id not in left_out)]


def _policy(name: str) -> Sequence[Check]:
    with as_file(files("attnaudit.run") / "templates" / name) as path:
        return load_policy(path)


def measure_population(
    population: Path, *, seed: int, progress: ProgressCallback | None = None
) -> tuple[list[Exhibit], list[CheckText]]:
    """Audit one model per mechanism and outcome of a population.

    Args:
        population: The folder of the population, as `attnaudit plant` writes it.
        seed: The seed of samples, permutations and intervals.
        progress: Called after each model, with its name as the note. None to report no progress.

    Returns:
        The exhibits, and the wording of their checks.

    Raises:
        AuditError: The population cannot be read, or a model cannot be audited.
    """
    entries = choose(read_population(population).entries)
    exhibits, texts = [], {}
    for done, entry in enumerate(entries, 1):
        exhibit, records = measure_exhibit(entry, population, seed=seed)
        exhibits.append(exhibit)
        for check, record in zip(checks_of(entry.family), records, strict=True):
            texts[check.id] = CheckText(
                check=check.id,
                family=record.family,
                question=record.question,
                how_to_read=record.how_to_read,
                value_name=check.value_name,
            )
        if progress is not None:
            progress(done, len(entries), entry.name)
    return exhibits, list(texts.values())


def measure_exhibit(entry: Entry, population: Path, *, seed: int) -> tuple[Exhibit, list[CheckRecord]]:
    """Audit one entry of a population, and return its exhibit and the records of its checks."""
    from attnaudit.adapters.loading import load_model
    from attnaudit.data import load, sample
    from attnaudit.run.judge_models import judge_model

    outcome = outcome_of(entry)
    if outcome is None or entry.share is None:
        raise AuditError(f"{entry.name}: it is not known whether its attention is right, so it cannot be shown.")
    checks = checks_of(entry.family)
    under = [dataclasses.replace(check, reading=entry.reading or check.reading) for check in checks]
    dataset = sample(load(dataset_of(entry, population)), TEXTS[entry.family], seed)
    loaded = load_model(str(population / entry.folder))
    judged = judge_model(loaded, dataset, under, name=entry.kind, seed=seed)
    if judged.skipped:
        raise AuditError(f"{entry.name}: {next(iter(judged.skipped.values()))}")
    measurements = judged.measurements[0]
    single = measurements.readings_of(entry.reading)[0] if entry.reading else ""
    known = kinds()
    exhibit = Exhibit(
        mechanism=entry.mechanism,
        kind=entry.kind,
        description=known[entry.kind].description if entry.kind in known else "",
        family=entry.family,
        outcome=outcome,
        share=entry.share,
        reading=entry.reading,
        encoder=entry.encoder,
        accuracy=None if entry.accuracy is None else rounded(entry.accuracy),
        texts=len(measurements),
        text=shown_text(measurements.under(single)),
        checks=[check_value(check, record) for check, record in zip(checks, judged.records, strict=True)],
        of_evidence=isinstance(entry.verified_by, dict) and entry.verified_by.get("name") == LOGIT_EXCHANGE,
    )
    return exhibit, judged.records


def check_value(check: Check, record: CheckRecord) -> CheckValue:
    """Return a check record in compact form. The check id in it leaves out the reading."""
    interval, gate = record.interval, record.requirement if record.severity == "gate" else None
    return CheckValue(
        check=check.id,
        verdict=record.verdict,
        value=None if record.value is None else rounded(record.value),
        low=None if interval is None else rounded(interval.low),
        high=None if interval is None else rounded(interval.high),
        direction=None if gate is None else gate.direction,
        threshold=None if gate is None else gate.value,
    )


def shown_text(measurements: Measurements) -> ShownText:
    """Return a typical short text: the one with the median cosine between attention and effects.

    The choice is among the texts of 5 to 16 tokens. If there are none, the shortest text is returned.
    """
    attention, effects = measurements.vector("attention"), measurements.vector(EFFECTS)
    lengths = measurements.lengths
    short = np.flatnonzero((lengths >= FEWEST_TOKENS) & (lengths <= MOST_TOKENS))
    rows = short if len(short) else np.argsort(lengths, kind="stable")[:1]
    ranked = sorted(rows.tolist(), key=lambda row: (_cosine(attention[row], effects[row]), measurements.ids[row]))
    row = ranked[len(ranked) // 2]
    predicted = int(measurements.predicted[row])
    return ShownText(
        tokens=list(measurements.tokens[row]),
        attention=[rounded(value) for value in attention[row].tolist()],
        effects=[rounded(abs(value)) for value in effects[row].tolist()],
        predicted=measurements.classes[predicted],
        probability=rounded(float(measurements.vector("probabilities")[row][predicted])),
        shuffled=_shuffled(measurements.vector(REARRANGED)[row], len(measurements.classes), predicted),
    )


def _shuffled(logits: Floats, classes: int, predicted: int) -> tuple[float, float] | None:
    """Return the lowest and highest probability of a class, given its logits under rearranged attention weights."""
    rows = logits.reshape(-1, classes)
    rows = rows[np.isfinite(rows).all(1)]
    if not len(rows):
        return None
    shifted = np.exp(rows - rows.max(1, keepdims=True))
    probabilities = shifted[:, predicted] / shifted.sum(1)
    return rounded(float(probabilities.min())), rounded(float(probabilities.max()))


def _cosine(attention: Floats, effects: Floats) -> float:
    sizes = np.linalg.norm(attention) * np.linalg.norm(effects)
    return float(attention @ np.abs(effects) / sizes) if sizes > 0 else -1.0


def rounded(value: float) -> float:
    """Round to 4 significant digits, which keeps the data file small."""
    return float(f"{value:.{DIGITS}g}")
