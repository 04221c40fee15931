"""Build a population of planted models.

A population is a folder of checkpoints with a population.json, which lists what is known about each model.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from attnaudit.data import load, sample
from attnaudit.data.planted_cue import cues, hints
from attnaudit.errors import ModelError, nearest
from attnaudit.instances import Dataset
from attnaudit.models import checkpoint_folder
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import train
from attnaudit.models.training_job import TrainingData, TrainingJob
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.processes import replace_file, spread
from attnaudit.progress import ProgressCallback
from attnaudit.research.planted.kind import Compiled, Kind, Recipe, TrainingInputs, class_words, kinds
from attnaudit.research.planted.verify_context import CONTEXT_EXCHANGE, verify_in_context
from attnaudit.research.planted.verify_exchange import EXCHANGE, LOGIT_EXCHANGE, verify_by_exchange
from attnaudit.research.planted.verify_label import INTERVENTION, LabelEvidence, accuracy_of, verify_label

#: Part of every model's key. Increase it when the code that builds a kind changes, so that all models are built again.
BUILD = 2
POPULATION_FILE, EXCLUDED_FILE, RECORD_FILE = "population.json", "excluded.json", "planted.json"
#: Name of a data set in a population -> its registered name.
DATASETS = {"movie-reviews": "movie-reviews", "synthetic": "planted-cue", "made": "movie-reviews"}
#: The folder, within the population, of the texts that recipes make.
MADE_DATA = "data"
FAMILY = "pooled attention"
#: The number of instances on which a label is verified: from a test set, or from texts that a recipe made.
INSTANCES, MADE_INSTANCES = 300, 1200


class PlantedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One model to build.

    Attributes:
        kind: The name of its kind.
        data: The name of its data set in the population, such as "synthetic".
        alignment: The alignment function of its attention.
        seed: The seed of the model.
    """

    kind: str
    data: str
    alignment: str
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.kind}-{self.data}-{self.alignment}-{self.seed}"


def plans(*, seeds: int, only: Sequence[str] | None = None) -> list[PlantedPlan]:
    """Return the models of a population. They are sorted by seed, so that each part of the list has many kinds.

    Args:
        seeds: The number of models of each compiled kind. Kinds that are trained get half as many, rounded up. Kinds
            whose truth is unknown ("trend") get a third as many, but at least one.
        only: The names of the kinds to build. None or an empty list builds all kinds.

    Raises:
        ModelError: A name in `only` is not a kind.
    """
    known = kinds()
    for name in only or ():
        if name not in known:
            raise ModelError(f"Unknown planted kind '{name}'. {nearest(name, known)}")
    planned = []
    for kind in known.values():
        if only and kind.name not in only:
            continue
        number = seeds if kind.compiled else max(1, seeds // 3) if kind.truth == "trend" else (seeds + 1) // 2
        for seed in range(number):
            data = kind.data[seed % len(kind.data)]
            alignment = kind.alignments[seed // len(kind.data) % len(kind.alignments)]
            planned.append(PlantedPlan(kind=kind.name, data=data, alignment=alignment, seed=seed))
    return sorted(planned, key=lambda plan: (plan.seed, known[plan.kind].truth == "trend", plan.data, plan.kind))


def half_of(kind: Kind, seed: int) -> str:
    """Return the half that a model belongs to: "tuning" or "held_out".

    Args:
        kind: The kind of the model.
        seed: The seed of the model.
    """
    if kind.half == "split":
        return "held_out" if seed % 2 else "tuning"
    return kind.half


def build(
    out: Path, planned: Sequence[PlantedPlan], *, jobs: int = 1, progress: ProgressCallback | None = None
) -> list[dict[str, Any]]:
    """Build the models of a population that are not finished yet.

    A model is finished if its planted.json has the key of its plan. Finished models are kept. After each model,
    population.json and excluded.json are written again. The same plan always gives the same model.

    Args:
        out: The folder of the population.
        planned: The models.
        jobs: The number of processes that share the work, with one thread each.
        progress: Called after each newly built model, with a line about the model as the note. None to report no
            progress.

    Returns:
        The records of all models, in the order of `planned`. A record is the content of planted.json.

    Raises:
        ModelError: A file or folder cannot be written.
        AuditError: A process was killed.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(out, error) from error
    records = {plan: record for plan in planned if (record := finished(out, plan)) is not None}
    _write_lists(out, planned, records)
    missing = [plan for plan in planned if plan not in records]
    for plan, record in spread(partial(build_one, out), missing, jobs):
        records[plan] = record
        _write_lists(out, planned, records)
        if progress is not None:
            progress(len(records), len(planned), describe(record))
    return [records[plan] for plan in planned]


def describe(record: dict[str, Any]) -> str:
    """Return one line about a model: its folder and the measured values. For an excluded model, add the reasons.

    Args:
        record: The record of the model.
    """
    parts = [record["folder"], f"accuracy {record['accuracy']:.3f}"]
    if record["rank_agreement"] is not None:
        parts.append(f"rank agreement {record['rank_agreement']:.3f}")
    if (record["verified_by"] or {}).get("name") in (EXCHANGE, CONTEXT_EXCHANGE):
        parts.append(
            "the decision becomes that of the other text on {attended:.2f} of the texts if the attended tokens are "
            "exchanged, and on {rest:.2f} if all other tokens are".format_map(record["verified_by"])
        )
    if (record["verified_by"] or {}).get("name") == LOGIT_EXCHANGE:
        parts.append(
            "exchanging the attended tokens accounts for {attended:.2f} of the change of the logits, and exchanging "
            "all other tokens for {rest:.2f}".format_map(record["verified_by"])
        )
    if record["bypass_share"] is not None:
        parts.append(f"bypass share {record['bypass_share']:.3f}")
    return ", ".join(parts) + "".join(f"; excluded: {reason}" for reason in record["excluded_because"])


def finished(out: Path, plan: PlantedPlan) -> dict[str, Any] | None:
    """Return the record of a finished model.

    The record is None if the model does not exist, if a file of its checkpoint is missing, or if it was built from
    other inputs.
    """
    folder = out / plan.folder
    try:
        record: dict[str, Any] = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    complete = (folder / checkpoint_folder.CARD).is_file() and (folder / checkpoint_folder.WEIGHTS).is_file()
    return record if complete and isinstance(record, dict) and record.get("key") == key_of(plan) else None


def key_of(plan: PlantedPlan) -> str:
    """Return a hash of everything that a model is built from.

    The code is not part of the hash. If a change of the code changes models, increase `BUILD`. All keys are then
    different, and all models are built again.
    """
    kind, inputs = kinds()[plan.kind], _training_inputs(plan)
    recipe = kind.recipe(inputs)
    parts = {
        "build": BUILD,
        "plan": plan,
        "kind": [kind.truth, kind.mechanism, kind.level, kind.half, kind.needs_bypass, kind.verified_by],
        "share": recipe.share,
        "architecture": recipe.architecture,
        "settings": recipe.settings,
        "data": _data_sha256(plan.data),
        "instances": [INSTANCES, MADE_INSTANCES],
    }
    made = [data.sha256() for data in (recipe.train, recipe.dev, recipe.test) if data is not None]
    if made:
        parts["made"] = made
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def build_one(out: Path, plan: PlantedPlan) -> dict[str, Any]:
    """Train, store, reload and measure one model, and return its record.

    The record is written last. If the process is stopped before that, the next run builds the model again.
    """
    torch.set_num_threads(1)
    kind, inputs, folder = kinds()[plan.kind], _training_inputs(plan), out / plan.folder
    recipe = kind.recipe(inputs)
    reference_accuracy = None
    if recipe.reference is not None:
        checkpoint_folder.save(folder, *_checkpoint_parts(_make(recipe.reference, inputs)))
        data = _sample(recipe.test, inputs)
        reference_accuracy = accuracy_of(checkpoint_folder.load(folder), data)
    made = _make(recipe, inputs)
    test = made.test or recipe.test
    checkpoint_folder.save(
        folder,
        *_checkpoint_parts(made),
        description=f"planted: {kind.description}",
        training={"planted": msgspec.to_builtins(plan), "settings": msgspec.to_builtins(recipe.settings)},
    )
    data_name = plan.data
    if test is not None:
        data_name = f"{MADE_DATA}/{plan.folder}.csv"
        _write_texts(out / data_name, test)
    data = _sample(test, inputs)
    model, vocabulary, _ = checkpoint_folder.load_model(folder)
    adapter = checkpoint_folder.load(folder)
    if kind.verified_by == "exchange" and kind.truth != "trend":
        evidence = verify_by_exchange(kind, recipe, adapter, data)
    elif kind.verified_by == "context":
        evidence = verify_in_context(kind, recipe, model, vocabulary, made.classes, data)
    else:
        evidence = verify_label(kind, recipe, model, vocabulary, adapter, data, reference_accuracy=reference_accuracy)
    record = {**_record(plan, kind, recipe, evidence), "data": data_name}
    _write_json(folder / RECORD_FILE, record)
    return record


def _sample(made: Dataset | None, inputs: TrainingInputs) -> Dataset:
    """Return the texts that a model is measured on: those that the recipe made, or a sample of the test set."""
    return sample(inputs.texts, INSTANCES, 0) if made is None else sample(made, MADE_INSTANCES, 0)


def share_of(kind: Kind, recipe: Recipe) -> float | None:
    """Return the share of texts on which attention is right by construction. None if it is unknown ("trend")."""
    return {"faithful": 1.0, "unfaithful": 0.0, "trend": None}.get(kind.truth, recipe.share)


def _record(plan: PlantedPlan, kind: Kind, recipe: Recipe, evidence: LabelEvidence) -> dict[str, Any]:
    """Return the content of planted.json: the fields for population.json, the key and the unmet requirements."""
    verified_by = {
        "name": INTERVENTION,
        "value": evidence.confirmed,
        "rank_agreement": evidence.effect_agreement,
        "accuracy_without_deception": evidence.reference_accuracy,
    }
    if evidence.exchange is not None:
        name = LOGIT_EXCHANGE if recipe.exchange.of_evidence else EXCHANGE
        name = CONTEXT_EXCHANGE if kind.verified_by == "context" else name
        measured = {key: value for key, value in msgspec.to_builtins(evidence.exchange).items() if value is not None}
        verified_by = {"name": name, **measured}
    return {
        "folder": plan.folder,
        "kind": kind.name,
        "mechanism": kind.mechanism,
        "family": FAMILY,
        "truth": kind.truth,
        "share": share_of(kind, recipe),
        "encoder": recipe.architecture.encoder,
        "alignment": recipe.architecture.alignment,
        "projection": recipe.architecture.projection,
        "seed": plan.seed,
        "data": plan.data,
        "level": kind.level,
        "rank_agreement": evidence.rank_agreement,
        "verified_by": None if evidence.confirmed is None and evidence.exchange is None else verified_by,
        "accuracy": evidence.accuracy,
        "bypass_share": evidence.bypass_share,
        "half": half_of(kind, plan.seed),
        "excluded_because": evidence.unmet,
        "key": key_of(plan),
    }


@cache
def _data_sha256(data: str) -> str:
    return "".join(load(DATASETS[data] + part).sha256() for part in ("-train", "-dev", ""))


@cache
def _training_data(data: str) -> tuple[Dataset, Dataset, frozenset[str], frozenset[str]]:
    """Return the training set, the development set, the cue words and the decoy words of a data set."""
    training, dev = load(f"{DATASETS[data]}-train"), load(f"{DATASETS[data]}-dev")
    cue_words, decoy_words = (cues(), hints()) if data == "synthetic" else class_words(training)
    return training, dev, cue_words, decoy_words


def _training_inputs(plan: PlantedPlan) -> TrainingInputs:
    training, dev, cue_words, decoy_words = _training_data(plan.data)
    return TrainingInputs(
        data=plan.data,
        alignment=plan.alignment,
        seed=plan.seed,
        train=training,
        dev=dev,
        cues=cue_words,
        decoys=decoy_words,
        texts=load(DATASETS[plan.data]),
    )


def _make(recipe: Recipe, inputs: TrainingInputs) -> Compiled:
    """Compile or train a model."""
    if recipe.compiled is not None:
        return recipe.compiled()
    training = recipe.train or inputs.train
    parts = (part for instance in training.instances for part in (instance.text, instance.query))
    vocabulary = Vocabulary.build(
        (part for part in parts if part is not None),
        min_count=recipe.settings.min_count,
        limit=recipe.settings.max_words,
    )
    trained = train(
        TrainingJob(
            data=TrainingData(train=training, dev=recipe.dev or inputs.dev),
            architecture=recipe.architecture,
            settings=recipe.settings,
            prepare=recipe.prepare,
            objective=recipe.objective(vocabulary) if recipe.objective is not None else None,
            selection_loss=recipe.selection_loss(vocabulary) if recipe.selection_loss is not None else None,
        )
    )
    if recipe.finish is not None:
        recipe.finish(trained.model)
    return Compiled(model=trained.model, vocabulary=trained.vocabulary, classes=trained.classes)


def _checkpoint_parts(made: Compiled) -> tuple[PooledClassifier, Vocabulary, tuple[str, ...]]:
    return made.model, made.vocabulary, made.classes


def _write_texts(path: Path, data: Dataset) -> None:
    """Write texts that a recipe made to a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    names = ["id", "text", "label"] + ["query"] * any(instance.query is not None for instance in data.instances)
    writer.writerow(names)
    writer.writerows([getattr(instance, name) for name in names] for instance in data.instances)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.getvalue().encode())
    except OSError as error:
        raise not_writable(path, error) from error


def _write_lists(out: Path, planned: Sequence[PlantedPlan], records: dict[PlantedPlan, dict[str, Any]]) -> None:
    """Write the two lists of the population.

    population.json lists the models that meet all requirements of their labels. excluded.json lists the others, with
    the reasons.
    """
    rows = [{**records[plan], "fails": _fails(plan)} for plan in planned if plan in records]
    internal = ("key", "excluded_because")
    included = [row for row in rows if not row["excluded_because"]]
    excluded = [row for row in rows if row["excluded_because"]]
    _write_json(out / POPULATION_FILE, [{k: v for k, v in row.items() if k not in internal} for row in included])
    _write_json(out / EXCLUDED_FILE, [{k: v for k, v in row.items() if k != "key"} for row in excluded])


def _fails(plan: PlantedPlan) -> list[str]:
    kind = kinds()[plan.kind]
    return list(kind.fails) if kind.truth in ("unfaithful", "graded") else []


def not_writable(path: Path, error: OSError) -> ModelError:
    """Return the error for a file or folder of a population that cannot be written."""
    return ModelError(f"{path}: cannot be written ({error.strerror}). Give a folder that you may write to.")


def _write_json(path: Path, content: Any) -> None:
    try:
        replace_file(path, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise not_writable(path, error) from error
