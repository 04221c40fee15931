"""Training that was stopped goes on from its last whole epoch, and ends with the very same model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import torch

import attnaudit.models.training_state as unfinished_module
from attnaudit.errors import ModelError
from attnaudit.models.pooled_classifier import Architecture
from attnaudit.models.retrainer import train_imposed, train_twin
from attnaudit.models.training import Settings, Trained, train
from attnaudit.models.training_state import Unfinished
from tests.units.models.test_training import DEV, TINY, TRAIN, weights

SETTINGS = Settings(epochs=4, batch_size=16, learning_rate=1e-2, min_count=1)
Run = Callable[..., Trained]


class StoppedError(Exception):
    pass


def plain(**changes: Any) -> Run:
    parts = {name: changes.pop(name) for name in list(changes) if name in Architecture.__struct_fields__}
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return lambda **more: train(
        TRAIN, DEV, architecture=msgspec.structs.replace(TINY, **parts), settings=settings, **more
    )


def twin(**changes: Any) -> Run:
    base = train(TRAIN, DEV, architecture=TINY, settings=msgspec.structs.replace(SETTINGS, epochs=2))
    settings = msgspec.structs.replace(SETTINGS, epochs=1)
    return lambda **more: train_twin(
        base.model,
        TRAIN,
        DEV,
        weight=0.05,
        longer=4,
        settings=settings,
        vocabulary=base.vocabulary,
        **changes,
        **more,
    )


def imposed() -> Run:
    base = train(TRAIN, DEV, architecture=TINY, settings=msgspec.structs.replace(SETTINGS, epochs=2))
    return lambda **more: train_imposed(
        base.model, TRAIN, DEV, architecture=TINY, settings=SETTINGS, vocabulary=base.vocabulary, **more
    )


RUNS = {
    "plain": plain,
    "dropout": lambda: plain(dropout=0.3, word_dropout=0.2),
    "regularised": lambda: plain(tying=0.1, mlm=0.5, hidden_size=8),
    "twin": twin,
    "frozen twin": lambda: twin(frozen=True),
    "imposed": imposed,
}


def stop_in_epoch(number: int) -> Callable[[int, int, str], None]:
    def progress(done: int, _total: int, _note: str) -> None:
        if done == (number - 1) * len(TRAIN.instances) // SETTINGS.batch_size + 5:
            raise StoppedError

    return progress


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_training_ends_with_the_same_model(name: str, tmp_path: Path) -> None:
    run = RUNS[name]()
    whole = run()
    unfinished = Unfinished(path=tmp_path / "unfinished.pt", key="one", every=0)
    torch.manual_seed(3)
    for epoch in (2, 4):
        with pytest.raises(StoppedError):
            run(unfinished=unfinished, progress=stop_in_epoch(epoch))
        torch.rand(7)  # the state of the caller has no part in it
    seen: list[int] = []
    after = run(unfinished=unfinished, progress=lambda done, _total, _note: seen.append(done))
    assert seen[0] == 3 * len(TRAIN.instances) // SETTINGS.batch_size + 1
    assert weights(after) == weights(whole)
    assert (after.history, after.chosen, after.dev) == (whole.history, whole.chosen, whole.dev)
    again = run(unfinished=unfinished)  # killed after the last epoch, before the file was removed
    assert weights(again) == weights(whole)


def test_patience_counts_the_epochs_before_the_stop(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, epochs=30)

    def run(**more: Any) -> Trained:
        return train(TRAIN, DEV, architecture=TINY, settings=settings, patience=3, **more)

    whole = run()
    assert len(whole.history) == whole.chosen + 3 < 30
    unfinished = Unfinished(path=tmp_path / "unfinished.pt", key="one", every=0)
    with pytest.raises(StoppedError):
        run(unfinished=unfinished, progress=stop_in_epoch(whole.chosen + 2))
    after = run(unfinished=unfinished)
    assert (len(after.history), after.chosen) == (len(whole.history), whole.chosen)


def test_what_another_training_left_is_not_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "unfinished.pt"
    run = plain()
    with pytest.raises(StoppedError):
        run(unfinished=Unfinished(path=path, key="one", every=0), progress=stop_in_epoch(3))
    assert Unfinished(path=path, key="one").kept() is not None
    assert Unfinished(path=path, key="two").kept() is None
    path.write_bytes(path.read_bytes()[:-200])
    assert Unfinished(path=path, key="one").kept() is None
    path.write_bytes(b"")
    assert Unfinished(path=path, key="one").kept() is None
    path.unlink()
    assert Unfinished(path=path, key="one").kept() is None


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "unfinished.pt"
    torch.save({"key": "one", "state": SETTINGS}, path)
    assert Unfinished(path=path, key="one").kept() is None


def test_short_epochs_are_not_written_each(tmp_path: Path) -> None:
    unfinished = Unfinished(path=tmp_path / "unfinished.pt", key="one", every=3600)
    plain()(unfinished=unfinished)
    assert not unfinished.path.exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"file/unfinished\.pt: cannot be written.*--out"):
        plain()(unfinished=Unfinished(path=tmp_path / "file" / "unfinished.pt", key="one", every=0))


def test_time_counts_that_of_the_runs_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Mock(perf_counter=Mock(), process_time=Mock(), monotonic=Mock(return_value=0.0))
    monkeypatch.setattr(unfinished_module, "time", clock)

    def at(wall: float, cpu: float) -> None:
        clock.perf_counter.return_value, clock.process_time.return_value = wall, cpu

    at(100, 10)
    first = Unfinished(path=tmp_path / "unfinished.pt", key="one", every=0)
    at(160, 40)
    first.keep({})
    at(190, 50)  # lost with the epoch that was under way
    assert first.spent == (90, 40)
    at(1000, 1)
    second = Unfinished(path=first.path, key="one", every=0)
    assert second.kept() == {}
    at(1007, 6)
    assert second.spent == (67, 35)
    second.keep({})
    third = Unfinished(path=first.path, key="one")
    third.kept()
    assert third.spent == (67, 35)


def test_forgetting(tmp_path: Path) -> None:
    unfinished = Unfinished(path=tmp_path / "unfinished.pt", key="one", every=0)
    plain(epochs=1)(unfinished=unfinished)
    assert unfinished.path.exists()
    unfinished.forget()
    unfinished.forget()
    assert not unfinished.path.exists()
