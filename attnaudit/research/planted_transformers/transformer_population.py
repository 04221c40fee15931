"""Build a population of planted Transformers: checkpoint folders, texts, and what is known about their readings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attnaudit.adapters.huggingface.checkpoints.checkpoint_files import quiet
from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter
from attnaudit.adapters.loading import load_model
from attnaudit.data import load
from attnaudit.errors import ModelError, invalid_input, nearest
from attnaudit.instances import Dataset
from attnaudit.processes import replace_file, spread
from attnaudit.progress import ProgressCallback
from attnaudit.research.planted.planted_population import EXCLUDED_FILE, POPULATION_FILE, not_writable
from attnaudit.research.planted_transformers.circuit_parts import CircuitPlan, Family, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import (
    CLASS_NAMES,
    CLASS_WORDS,
    as_csv,
    build_tokenizer,
    lexicon,
    make_rows,
    review_cues,
)
from attnaudit.research.planted_transformers.compile_weights import compile_model
from attnaudit.research.planted_transformers.compiled_circuits import CIRCUITS, variant
from attnaudit.research.planted_transformers.interchange import interchange
from attnaudit.research.planted_transformers.trained_circuits import TRAINED, train_model
from attnaudit.research.planted_units.truth_rule import COVERED

#: Part of every model's key. Increase it when the code that builds models changes, so that all models are built again.
BUILD = 2
#: The family of all entries.
FAMILY = "transformer"
RECORD_FILE = "planted.json"
SEEDS = 3
#: The number of texts in each data file, for verifying readings, and for training.
TEXTS, VERIFIED, TRAINING_TEXTS = 240, 120, 1000
#: A faithful reading must be right on at least the first share of the texts, an unfaithful one on at most the second.
FAITHFUL_FROM, UNFAITHFUL_TO = 0.9, 0.1
#: The largest difference between the measured and the constructed share of a graded reading.
GRADED_WITHIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerPlan(CircuitPlan):
    """One model to build."""

    @property
    def key(self) -> str:
        """A hash of the plan and of `BUILD`."""
        return hashlib.sha256(json.dumps([BUILD, asdict(self)], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _BuiltModel:
    """A stored model: its readings with a known truth, the path of its texts in the population, and its half."""

    readings: tuple[LabelledReading, ...]
    data: str
    half: str


def transformer_plans(
    *, quick: bool = False, seeds: int | None = None, only: Sequence[str] | None = None
) -> list[TransformerPlan]:
    """Return the models of a population.

    Args:
        quick: Whether to build only one family, with one seed per circuit by default.
        seeds: The number of seeds; None for 3, or for 1 if `quick` is True.
        only: The mechanisms to build. If it is None or empty, all mechanisms are built.

    Raises:
        ModelError: A name in `only` is not a mechanism.
    """
    count = seeds if seeds is not None else 1 if quick else SEEDS
    circuits: list[tuple[str, tuple[Family, ...], tuple[float, ...]]] = [
        (circuit.mechanism, circuit.families, circuit.parameters) for circuit in CIRCUITS
    ]
    circuits += [(circuit.mechanism, circuit.families, (0.0,)) for circuit in TRAINED]
    known = [mechanism for mechanism, _, _ in circuits]
    for name in only or ():
        if name not in known:
            raise ModelError(f"Unknown mechanism of planted Transformers '{name}'. {nearest(name, known)}")
    planned = []
    for number, (mechanism, families, parameters) in enumerate(circuits):
        if only and mechanism not in only:
            continue
        chosen = (families[number % len(families)],) if quick else families
        planned += [
            TransformerPlan(mechanism=mechanism, family=family, seed=seed, parameter=float(parameter))
            for seed in range(count)
            for family in chosen
            for parameter in parameters
        ]
    return planned


def build_transformers(
    out: Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    only: Sequence[str] | None = None,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> list[dict[str, Any]]:
    """Build the planted Transformers of a population that are not finished yet.

    Args:
        out: The folder of the population. Each model becomes a folder in it, and each set of texts becomes a CSV file.
        quick: As in `transformer_plans`.
        seeds: As in `transformer_plans`.
        only: As in `transformer_plans`.
        jobs: The number of processes that share the work, with one thread each.
        progress: Called after each newly built model, with a line about it as the note. None to report no progress.

    Returns:
        One record per reading, with the keys of an entry of population.json and "excluded_because", a list of the
        reasons why the reading does not get its label. The list is empty if the reading gets its label.

    Raises:
        ModelError: A name in `only` is not a mechanism, or a file or folder cannot be written.
        AuditError: A process was killed.
    """
    with invalid_input():
        planned = transformer_plans(quick=quick, seeds=seeds, only=only)
    records = {plan: found for plan in planned if (found := _finished(out, plan)) is not None}
    missing = [plan for plan in planned if plan not in records]
    for plan, built in spread(partial(_build_one, out), missing, jobs):
        records[plan] = built
        if progress is not None:
            progress(len(records), len(planned), _describe(plan, built))
    return [record for plan in planned for record in records[plan]]


def write_lists(out: Path, records: list[dict[str, Any]]) -> None:
    """Write population.json, and excluded.json with the readings that do not meet the requirements of their labels.

    Entries of pooled models in the same folder are kept.

    Args:
        out: The folder of the population.
        records: The records of the Transformers.

    Raises:
        ModelError: A file cannot be read or written.
    """
    included = [record for record in records if not record["excluded_because"]]
    excluded = [record for record in records if record["excluded_because"]]
    internal = ("key", "excluded_because")
    for name, rows, left_out in (
        (POPULATION_FILE, included, internal),
        (EXCLUDED_FILE, excluded, ("key",)),
    ):
        path = out / name
        try:
            kept = json.loads(path.read_bytes()) if path.is_file() else []
            kept = [row for row in kept if row.get("family") != FAMILY]
            written = [{k: v for k, v in row.items() if k not in left_out} for row in rows]
            replace_file(path, (json.dumps([*kept, *written], indent=1) + "\n").encode())
        except OSError as error:
            raise not_writable(path, error) from error


def _finished(out: Path, plan: TransformerPlan) -> list[dict[str, Any]] | None:
    """Return the records of a finished model; None if it does not exist or was built by other code."""
    folder = out / plan.name
    try:
        content = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("key") != plan.key:
        return None
    files = [folder / "model.safetensors", *(out / row["data"] for row in content["readings"])]
    return list(content["readings"]) if all(path.is_file() for path in files) else None


def _describe(plan: TransformerPlan, records: list[dict[str, Any]]) -> str:
    shares = ", ".join(f"{row['kind']} {row['verified_by']['value']:.2f}" for row in records)
    excluded = "".join(f"; excluded: {reason}" for row in records for reason in row["excluded_because"])
    return f"{plan.name}: right on {shares}{excluded}"


def _build_one(out: Path, plan: TransformerPlan) -> list[dict[str, Any]]:
    """Build, store, reload and verify one model, and return the records of its readings."""
    torch.set_num_threads(1)
    folder = out / plan.name
    try:
        built = _compile(out, plan) if plan.mechanism in {c.mechanism for c in CIRCUITS} else _train(out, plan)
        adapter = load_model(str(folder)).adapter
        assert isinstance(adapter, HuggingFaceAdapter)
        data = load(str(out / built.data))
        accuracy = _accuracy(adapter, data)
        records = [_record(plan, built, reading, adapter, data, accuracy) for reading in built.readings]
        content = {"key": plan.key, "readings": records}
        replace_file(folder / RECORD_FILE, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise not_writable(folder, error) from error
    return records


def _save(out: Path, plan: TransformerPlan, model: Any, tokenizer: Any, data: str, rows: list[tuple[str, str]]) -> None:
    replace_file(out / data, as_csv(rows))
    with quiet():
        model.save_pretrained(out / plan.name)
    tokenizer.save_pretrained(out / plan.name)


def _compile(out: Path, plan: TransformerPlan) -> _BuiltModel:
    circuit = next(circuit for circuit in CIRCUITS if circuit.mechanism == plan.mechanism)
    design = circuit.design(variant(circuit, plan.family, plan.seed), plan.parameter)
    tokenizer = build_tokenizer(design.lexicon)
    classes = CLASS_NAMES[: design.classes]
    model = compile_model(design, plan.family, tokenizer, classes=classes, seed=plan.seed)
    rows = make_rows(
        design.texts, classes=design.classes, count=TEXTS, seed=plan.seed, marker_share=design.marker_share
    )
    share = f"-{design.marker_share:g}" if design.marker_share else ""
    data = f"texts-{design.texts}{share}-{design.classes}-classes-{plan.seed}.csv"
    _save(out, plan, model, tokenizer, data, rows)
    return _BuiltModel(readings=design.readings, data=data, half=circuit.half)


def _train(out: Path, plan: TransformerPlan) -> _BuiltModel:
    circuit = next(circuit for circuit in TRAINED if circuit.mechanism == plan.mechanism)
    texts = ("reviews", "cues")[plan.seed % 2]
    cue_words = frozenset(word for group in CLASS_WORDS[:2] for word in group)
    if texts == "reviews":
        negative, positive = review_cues()
        cue_words = negative | positive
    tokenizer = build_tokenizer(lexicon(texts, 2))
    rows = make_rows(texts, classes=2, count=TRAINING_TEXTS + TEXTS, seed=100 + plan.seed)
    model = train_model(circuit, plan.family, rows[TEXTS:], cue_words, tokenizer, seed=plan.seed)
    data = f"texts-trained-{texts}-{plan.seed}.csv"
    _save(out, plan, model, tokenizer, data, rows[:TEXTS])
    return _BuiltModel(readings=circuit.readings, data=data, half=circuit.half)


def _accuracy(adapter: HuggingFaceAdapter, data: Dataset) -> float:
    with torch.no_grad():
        predicted = adapter.run(adapter.collate(data.instances)).logits.argmax(-1).tolist()
    names = adapter.capabilities.classes
    right: int = sum(names[p] == instance.label for p, instance in zip(predicted, data.instances, strict=True))
    return right / len(data.instances)


def _record(
    plan: TransformerPlan,
    built: _BuiltModel,
    reading: LabelledReading,
    adapter: HuggingFaceAdapter,
    data: Dataset,
    accuracy: float,
) -> dict[str, Any]:
    text = reading.text(plan.family)
    share, evidence, unmet = verify_reading(reading, text, adapter, data, plan.seed)
    return {
        "folder": plan.name,
        "kind": f"{plan.mechanism}.{reading.role}",
        "mechanism": plan.mechanism,
        "truth": reading.truth,
        "share": share if reading.truth == "graded" else reading.known_share,
        "reading": text,
        "family": FAMILY,
        "data": built.data,
        "encoder": plan.family,
        "seed": plan.seed,
        "level": "tokens",
        "rank_agreement": None,
        "bypass_share": None,
        "verified_by": evidence,
        "accuracy": accuracy,
        "half": built.half,
        "fails": {"faithful": [], "unfaithful": list(reading.fails), "graded": ["points"]}[reading.truth],
        "excluded_because": unmet,
    }


def verify_reading(
    reading: LabelledReading, text: str, adapter: HuggingFaceAdapter, data: Dataset, seed: int
) -> tuple[float, dict[str, Any], list[str]]:
    """Return the share of texts or heads on which a reading is right, the evidence, and unmet requirements."""
    instances = data.instances[:VERIFIED]
    name = f"interchange of the values and tokens that hold {COVERED:.0%} of the reading's weight"
    unmet = []
    try:
        if reading.parts is None:
            found = interchange(adapter, instances, text, seed=seed)
            share, known = found.share, reading.known_share
            evidence = {"name": name, "value": share, "route": found.route, "tokens": found.tokens}
        else:
            # The heads that are right are exchanged together, and then all other heads.
            others = [head for head in range(adapter.sites()[0].heads) if head not in reading.parts]
            right = interchange(adapter, instances, text, seed=seed, heads=reading.parts)
            wrong = interchange(adapter, instances, text, seed=seed, heads=others)
            share = known = reading.known_share
            evidence = {"name": name, "value": share, "right heads": right.share, "other heads": wrong.share}
            if right.share < FAITHFUL_FROM or wrong.share > UNFAITHFUL_TO:
                unmet.append(
                    f"the prediction follows the right heads on {right.share:.0%} of the texts and the other heads on "
                    f"{wrong.share:.0%}"
                )
    except ValueError as error:
        return reading.known_share, {"name": name, "value": 0.0}, [str(error)]
    low, high = known - GRADED_WITHIN, known + GRADED_WITHIN
    if reading.truth != "graded":
        low, high = (FAITHFUL_FROM, 1.0) if reading.truth == "faithful" else (0.0, UNFAITHFUL_TO)
    if not low <= share <= high:
        unmet.append(f"the reading is right on {share:.0%} of the texts; expected {low:.0%} to {high:.0%}")
    return share, evidence, unmet
