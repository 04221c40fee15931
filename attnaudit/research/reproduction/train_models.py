"""Train the planned models that do not exist yet.

The state of training is stored after every epoch. A run that was killed loses only the unfinished epoch of each model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from attnaudit.data import load
from attnaudit.errors import AuditError
from attnaudit.models import checkpoint_folder
from attnaudit.models.training import Score, train
from attnaudit.models.training_job import TrainingData, TrainingJob
from attnaudit.models.training_state import STATE_FILE, TrainingStateFile
from attnaudit.processes import replace_file, spread
from attnaudit.progress import ProgressCallback
from attnaudit.records import Record
from attnaudit.research.reproduction.model_plans import Plan, TrainingInputs, variant
from attnaudit.research.reproduction.prepare_corpora import Prepared
from attnaudit.research.study.report_files import not_writable

RECORD = "plan.json"


class TrainedPlan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of plan.json: the record of a finished model.

    Attributes:
        key: Hash of the plan and the data.
        folder: The name of the checkpoint folder.
        plan: The plan.
        dev: The score on the dev part.
        test: The score on the test part.
        chosen: The epoch with the best score on the dev part. The model has the parameters of this epoch.
        seconds: Wall-clock time of training, in seconds. It includes runs that were stopped.
        cpu_seconds: CPU time of training, in seconds. It includes runs that were stopped.
        started: The number of words of the training texts that have a word vector. None if no word vectors are used.
    """

    key: str
    folder: str
    plan: Plan
    dev: Score
    test: Score
    chosen: int
    seconds: float
    cpu_seconds: float
    started: int | None = None


class Task(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model to train.

    Attributes:
        plan: The plan of the model.
        data: The prepared corpus.
        models: The folder of all checkpoints.
    """

    plan: Plan
    data: Prepared
    models: str


def train_all(
    plans: Sequence[Plan],
    prepared: Mapping[str, Prepared],
    models: Path,
    *,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
) -> tuple[dict[Plan, TrainedPlan], dict[Plan, str]]:
    """Train models. Finished models are kept.

    If a model is made from another model (`Plan.base`), the other model is trained first, even if it is not in `plans`.

    Args:
        plans: The plans.
        prepared: Name of a corpus -> prepared parts of the corpus.
        models: The folder of the checkpoints.
        jobs: The number of processes.
        progress: Called after each model with (number of finished models, number of all models, checkpoint folder). It
            is called only once for all models that are finished already, with "" as the folder. None to report no
            progress.

    Returns:
        Two dictionaries: plan -> finished model, and plan -> why the model could not be trained.

    Raises:
        AuditError: A process was killed.
    """
    waves = [
        [Task(plan=plan, data=prepared[plan.corpus], models=str(models)) for plan in wave] for wave in _waves(plans)
    ]
    total = sum(map(len, waves))
    of_plan = {task.plan: finished(task) for wave in waves for task in wave}
    found = {plan: record for plan, record in of_plan.items() if record is not None}
    failed: dict[Plan, str] = {}
    if progress is not None and found:
        progress(len(found), total, "")  # The time left is estimated from the models that are trained after this call.
    for wave in waves:
        left = [task for task in wave if task.plan not in found]
        failed.update({task.plan: failed[task.plan.base] for task in left if task.plan.base in failed})
        tasks = [task for task in left if task.plan not in failed]
        for task, result in spread(train_one, tasks, jobs):
            if isinstance(result, TrainedPlan):
                found[task.plan] = result
            else:
                failed[task.plan] = result
            if progress is not None:
                progress(len(found) + len(failed), total, task.plan.folder)
    return found, failed


def _waves(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Group the plans and their bases (`Plan.base`). Every plan is in a later group than its base."""
    depths: dict[Plan, int] = {}

    def depth(plan: Plan) -> int:
        if plan not in depths:
            depths[plan] = 0 if plan.base is None else depth(plan.base) + 1
        return depths[plan]

    for plan in plans:
        depth(plan)
    return [
        [plan for plan, its in depths.items() if its == wave] for wave in range(max(depths.values(), default=0) + 1)
    ]


def train_one(task: Task) -> TrainedPlan | str:
    """Train a model, unless it is finished already, and return its record.

    If the model cannot be trained, return the reason as text.
    """
    earlier = finished(task)
    if earlier is not None:
        return earlier
    try:
        return _train(task)
    except AuditError as error:
        return str(error)


def finished(task: Task) -> TrainedPlan | None:
    """Return the record of the finished model of a task.

    The record is None if the model is not finished, or if it was trained from another plan or on other data.
    """
    folder = Path(task.models) / task.plan.folder
    try:
        record = msgspec.json.decode((folder / RECORD).read_bytes(), type=TrainedPlan)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    complete = all((folder / name).is_file() for name in (checkpoint_folder.CARD, checkpoint_folder.WEIGHTS))
    return record if complete and record.key == _key(task) else None


def _key(task: Task) -> str:
    return hashlib.sha256(f"{task.plan.digest} {task.data.sha256}".encode()).hexdigest()


def _train(task: Task) -> TrainedPlan:
    plan, folder = task.plan, Path(task.models) / task.plan.folder
    state_file = TrainingStateFile(path=folder / STATE_FILE, key=_key(task))
    plan.check()
    chosen = variant(plan.variant)
    base, vocabulary = None, None
    if plan.base is not None:
        base, vocabulary, _ = checkpoint_folder.load_model(Path(task.models) / plan.base.folder)
        base.requires_grad_(False)
    job = TrainingJob(
        data=TrainingData(**{part: load(task.data.path(part)) for part in ("train", "dev", "test")}),
        architecture=plan.architecture,
        settings=plan.settings,
        vocabulary=vocabulary,
        state_file=state_file,
    )
    trained = train(job) if chosen.train is None else chosen.train(plan, TrainingInputs(job=job, base=base))
    assert trained.test is not None
    checkpoint_folder.save(
        folder,
        trained.model,
        trained.vocabulary,
        trained.classes,
        description=f"{plan.corpus}: {chosen.description}",
        training={"plan": msgspec.to_builtins(plan), "data": task.data.rows, "data_sha256": task.data.sha256},
    )
    seconds, cpu_seconds = state_file.seconds
    record = TrainedPlan(
        key=_key(task),
        folder=plan.folder,
        plan=plan,
        dev=trained.dev,
        test=trained.test,
        chosen=trained.chosen_epoch,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        started=trained.words_with_vectors,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RECORD, msgspec.json.encode(record))
    except OSError as error:
        raise not_writable(folder, error) from error
    state_file.delete()
    return record
