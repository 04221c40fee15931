"""The population of planted models: a folder of checkpoints and `population.json`, which says what is known of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from attnaudit.data import load, sample
from attnaudit.data.planted_cue import cues, hints
from attnaudit.errors import ModelError, nearest
from attnaudit.models import checkpoint_folder
from attnaudit.models.training import Trained, train
from attnaudit.models.training_job import TrainingData, TrainingJob
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.processes import replace_file, spread
from attnaudit.research.planted.kinds import Kind, Recipe, Task, kinds, opposed_words
from attnaudit.research.planted.truth import INTERVENTION, accuracy_of, measure_truth

#: Part of every model's key: raise it when a kind is built differently, and older models are built anew.
BUILD = 1
POPULATION, EXCLUDED, RECORD = "population.json", "excluded.json", "planted.json"
#: data of a row -> registered data set
DATA = {"movie-reviews": "movie-reviews", "synthetic": "planted-cue"}
#: Test instances that truth is measured on.
INSTANCES = 300


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One model to build. seed decides the half of a kind that is split: even for tuning, odd held out."""

    kind: str
    data: str
    alignment: str
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.kind}-{self.data}-{self.alignment}-{self.seed}"


def plans(*, seeds: int, only: Sequence[str] | None = None) -> list[Plan]:
    """Every model, seed by seed, so that a part of the list holds something of each kind.

    Kinds that are split by seed get `seeds` of them, kinds that are wholly held out half as many, trends a quarter.
    Raises ModelError for a name in `only` that is no kind.
    """
    known = kinds()
    for name in only or ():
        if name not in known:
            raise ModelError(f"Unknown planted kind '{name}'. {nearest(name, known)}")
    found = []
    for kind in known.values():
        if only and kind.name not in only:
            continue
        count = seeds if kind.half == "split" and kind.truth != "trend" else (seeds + 1) // 2
        count = (seeds + 3) // 4 if kind.truth == "trend" else count
        found += [
            Plan(kind=kind.name, data=data, alignment=alignment, seed=seed)
            for seed in range(count)
            for data in kind.data
            for alignment in kind.alignments
        ]
    return sorted(found, key=lambda one: (one.seed, known[one.kind].truth == "trend", one.data, one.kind))


def half_of(kind: Kind, seed: int) -> str:
    return "held_out" if kind.half == "held_out" or seed % 2 else "tuning"


def build(
    out: Path,
    wanted: Sequence[Plan],
    *,
    jobs: int = 1,
    progress: Callable[[dict[str, Any], int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Build what is not there yet; write population.json and excluded.json after every model. Returns all records in
    the order of `wanted`.

    A finished model has a `planted.json` whose key is that of its recipe; it is kept. The same plan gives the same
    model. Raises ModelError when the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(out, error) from error
    records: dict[Plan, dict[str, Any]] = {}
    for plan in wanted:
        kept = finished(out, plan)
        if kept is not None:
            records[plan] = kept
    _write(out, wanted, records)
    missing = [plan for plan in wanted if plan not in records]
    for plan, record in spread(partial(build_one, out), missing, jobs):
        records[plan] = record
        _write(out, wanted, records)
        if progress is not None:
            progress(record, len(records), len(wanted))
    return [records[plan] for plan in wanted]


def finished(out: Path, plan: Plan) -> dict[str, Any] | None:
    """The record of a model that is built as its recipe says today, else None."""
    folder = out / plan.folder
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = (folder / checkpoint_folder.CARD).is_file() and (folder / checkpoint_folder.WEIGHTS).is_file()
    return record if whole and isinstance(record, dict) and record.get("key") == key_of(plan) else None


def key_of(plan: Plan) -> str:
    """Hash of all that a model is made from, but its code: see BUILD."""
    kind, task = kinds()[plan.kind], _task(plan)
    recipe = kind.recipe(task)
    parts = {
        "build": BUILD,
        "plan": plan,
        "kind": [kind.truth, kind.level, kind.half, kind.needs_share],
        "architecture": recipe.architecture,
        "settings": recipe.settings,
        "data": _data_hash(plan.data),
        "instances": INSTANCES,
    }
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


@cache
def _data_hash(data: str) -> str:
    return "".join(load(DATA[data] + part).sha256() for part in ("-train", "-dev", ""))


@cache
def _parts(data: str) -> tuple[Any, Any, frozenset[str], frozenset[str]]:
    training, dev = load(f"{DATA[data]}-train"), load(f"{DATA[data]}-dev")
    used, plausible = (cues(), hints()) if data == "synthetic" else opposed_words(training)
    return training, dev, used, plausible


def _task(plan: Plan) -> Task:
    training, dev, used, plausible = _parts(plan.data)
    return Task(
        data=plan.data, alignment=plan.alignment, seed=plan.seed, train=training, dev=dev, cues=used, decoys=plausible
    )


def _trained(recipe: Recipe, task: Task) -> Trained:
    vocabulary = Vocabulary.build(
        (one.text for one in task.train.instances),
        min_count=recipe.settings.min_count,
        limit=recipe.settings.max_words,
    )
    trained = train(
        TrainingJob(
            data=TrainingData(train=task.train, dev=task.dev),
            architecture=recipe.architecture,
            settings=recipe.settings,
            prepare=recipe.prepare,
            objective=recipe.objective(vocabulary) if recipe.objective is not None else None,
        )
    )
    if recipe.finish is not None:
        recipe.finish(trained.model)
    return trained


def build_one(out: Path, plan: Plan) -> dict[str, Any]:
    """Train, store, load again and measure one model; its record is written last."""
    torch.set_num_threads(1)
    kind, task, folder = kinds()[plan.kind], _task(plan), out / plan.folder
    recipe = kind.recipe(task)
    data = sample(load(DATA[plan.data]), INSTANCES, 0)
    reference = None
    if recipe.reference is not None:
        checkpoint_folder.save(folder, *_stored(_trained(recipe.reference, task)))
        reference = accuracy_of(checkpoint_folder.load(folder), data)
    trained = _trained(recipe, task)
    checkpoint_folder.save(
        folder,
        *_stored(trained),
        description=f"planted: {kind.words}",
        training={"planted": msgspec.to_builtins(plan), "settings": msgspec.to_builtins(recipe.settings)},
    )
    model, vocabulary, _ = checkpoint_folder.load_model(folder)
    truth = measure_truth(
        kind, recipe, model, vocabulary, checkpoint_folder.load(folder), data, reference_accuracy=reference
    )
    record = {
        "folder": plan.folder,
        "kind": kind.name,
        "truth": kind.truth,
        "encoder": recipe.architecture.encoder,
        "alignment": recipe.architecture.alignment,
        "projection": recipe.architecture.projection,
        "seed": plan.seed,
        "data": plan.data,
        "level": kind.level,
        "rank_agreement": truth.rank_agreement,
        "verified_by": None
        if truth.confirmed is None
        else {
            "name": INTERVENTION,
            "value": truth.confirmed,
            "rank_agreement": truth.effect_agreement,
            "accuracy_without_deception": truth.reference_accuracy,
        },
        "accuracy": truth.accuracy,
        "bypass_share": truth.bypass_share,
        "half": half_of(kind, plan.seed),
        "excluded_because": truth.reasons,
        "key": key_of(plan),
    }
    _put(folder / RECORD, record)
    return record


def _stored(trained: Trained) -> tuple[Any, Vocabulary, tuple[str, ...]]:
    return trained.model, trained.vocabulary, trained.classes


def _write(out: Path, wanted: Sequence[Plan], records: dict[Plan, dict[str, Any]]) -> None:
    """What holds its label, and trends, go to population.json; the rest to excluded.json, with the reasons."""
    rows = [{**records[plan], "fails": _fails(plan)} for plan in wanted if plan in records]
    hidden = ("key", "excluded_because")
    _put(
        out / POPULATION,
        [{k: v for k, v in row.items() if k not in hidden} for row in rows if not row["excluded_because"]],
    )
    _put(out / EXCLUDED, [{k: v for k, v in row.items() if k != "key"} for row in rows if row["excluded_because"]])


def _fails(plan: Plan) -> list[str]:
    kind = kinds()[plan.kind]
    return list(kind.fails) if kind.truth == "unfaithful" else []


def _unwritable(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{path}: cannot be written ({error.strerror}). Give a folder that you may write to.")


def _put(path: Path, content: Any) -> None:
    try:
        replace_file(path, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise _unwritable(path, error) from error
