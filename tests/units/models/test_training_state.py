"""A stopped training resumes after its last complete epoch and ends with the same model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import torch

from attnaudit.errors import ModelError
from attnaudit.models import training_state
from attnaudit.models.training import train
from attnaudit.models.training_job import Settings, TrainingJob
from attnaudit.models.training_state import TrainingStateFile
from attnaudit.models.training_variants import as_adversary, with_imposed_attention
from tests.slow_cases import slow_except
from tests.units.models.test_training import JOB, TINY, TRAIN, weights

SETTINGS = Settings(epochs=4, batch_size=16, learning_rate=1e-2, min_count=1)
PLAIN = replace(JOB, settings=SETTINGS)
BATCHES = len(TRAIN.instances) // SETTINGS.batch_size


class StoppedError(Exception):
    pass


def plain(**settings: Any) -> TrainingJob:
    return replace(PLAIN, settings=msgspec.structs.replace(SETTINGS, **settings))


def regularised() -> TrainingJob:
    return replace(plain(tying=0.1, mlm=0.5), architecture=msgspec.structs.replace(TINY, hidden_size=8))


def adversary(*, frozen: bool = False) -> TrainingJob:
    base = train(plain(epochs=2))
    job = replace(plain(epochs=1), vocabulary=base.vocabulary)
    return as_adversary(job, base.model, weight=0.05, longer=4, frozen=frozen)


def imposed() -> TrainingJob:
    base = train(plain(epochs=2))
    return with_imposed_attention(replace(PLAIN, vocabulary=base.vocabulary), base.model)


JOBS = {
    "plain": plain,
    "dropout": lambda: plain(dropout=0.3, word_dropout=0.2),
    "regularised": regularised,
    "adversary": adversary,
    "frozen adversary": lambda: adversary(frozen=True),
    "imposed": imposed,
}


def state_file(folder: Path, *, key: str = "key", save_interval: float = 0) -> TrainingStateFile:
    return TrainingStateFile(path=folder / "training_state.pt", key=key, save_interval=save_interval)


def stop_in_epoch(number: int) -> Callable[[int, int, str], None]:
    def progress(done: int, _total: int, _note: str) -> None:
        if done == (number - 1) * BATCHES + 5:
            raise StoppedError

    return progress


@pytest.mark.parametrize(
    "name",
    slow_except(JOBS, ["dropout", "adversary"]),
)
def test_a_stopped_training_ends_with_the_same_model(name: str, tmp_path: Path) -> None:
    job = JOBS[name]()
    uninterrupted = train(job)
    job = replace(job, state_file=state_file(tmp_path))
    torch.manual_seed(3)
    for epoch in (2, 4):
        with pytest.raises(StoppedError):
            train(replace(job, progress=stop_in_epoch(epoch)))
        torch.rand(7)  # the caller's random state must not matter
    steps: list[int] = []
    resumed = train(replace(job, progress=lambda done, _total, _note: steps.append(done)))
    assert steps[0] == 3 * BATCHES + 1
    assert weights(resumed) == weights(uninterrupted)
    assert (resumed.history, resumed.chosen_epoch, resumed.dev) == (
        uninterrupted.history,
        uninterrupted.chosen_epoch,
        uninterrupted.dev,
    )
    # A run that was killed after the last epoch, before the file was deleted, also ends with the same model.
    assert weights(train(job)) == weights(uninterrupted)


def test_patience_counts_the_epochs_before_the_stop(tmp_path: Path) -> None:
    job = replace(plain(epochs=30), patience=3)
    uninterrupted = train(job)
    assert len(uninterrupted.history) == uninterrupted.chosen_epoch + 3 < 30
    job = replace(job, state_file=state_file(tmp_path))
    with pytest.raises(StoppedError):
        train(replace(job, progress=stop_in_epoch(uninterrupted.chosen_epoch + 2)))
    resumed = train(job)
    assert (len(resumed.history), resumed.chosen_epoch) == (len(uninterrupted.history), uninterrupted.chosen_epoch)


def test_the_state_of_another_training_or_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    with pytest.raises(StoppedError):
        train(replace(PLAIN, state_file=file, progress=stop_in_epoch(3)))
    assert state_file(tmp_path).load() is not None
    assert state_file(tmp_path, key="another key").load() is None
    file.path.write_bytes(file.path.read_bytes()[:-200])
    assert state_file(tmp_path).load() is None
    file.path.write_bytes(b"")
    assert state_file(tmp_path).load() is None
    file.path.unlink()
    assert state_file(tmp_path).load() is None


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    torch.save({"key": "key", "state": SETTINGS}, file.path)
    assert file.load() is None


def test_short_epochs_do_not_write_the_file_each_time(tmp_path: Path) -> None:
    file = state_file(tmp_path, save_interval=3600)
    train(replace(PLAIN, state_file=file))
    assert not file.path.exists()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"file/training_state\.pt: the training state cannot be written.*--out"):
        train(replace(PLAIN, state_file=state_file(tmp_path / "file")))


def test_seconds_include_those_of_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Mock(perf_counter=Mock(), process_time=Mock(), monotonic=Mock(return_value=0.0))
    monkeypatch.setattr(training_state, "time", clock)

    def set_clock(wall: float, cpu: float) -> None:
        clock.perf_counter.return_value, clock.process_time.return_value = wall, cpu

    set_clock(100, 10)
    first = state_file(tmp_path)
    set_clock(160, 40)
    first.save({})
    set_clock(190, 50)  # lost with the epoch that was not finished
    assert first.seconds == (90, 40)
    set_clock(1000, 1)
    second = state_file(tmp_path)
    assert second.load() == {}
    set_clock(1007, 6)
    assert second.seconds == (67, 35)
    second.save({})
    third = state_file(tmp_path)
    third.load()
    assert third.seconds == (67, 35)


def test_the_file_can_be_deleted_twice(tmp_path: Path) -> None:
    file = state_file(tmp_path)
    train(replace(plain(epochs=1), state_file=file))
    assert file.path.exists()
    file.delete()
    file.delete()
    assert not file.path.exists()
