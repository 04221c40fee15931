"""Actors of Ray: a cluster that cannot be reached, and an actor that hangs."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.engine.shard_measuring import Shard
from attnaudit.errors import AuditError
from attnaudit.executors import ray_actors
from attnaudit.executors.ray_actors import ADDRESS, RayActors
from attnaudit.executors.shard_job import MeasuredShard
from tests.units.executors.test_process_pool import SHARDS, model, run

pytest.importorskip("ray", reason="Ray is not installed (the extra 'ray')")
__all__ = ["model"]  # a fixture


def test_a_cluster_that_cannot_be_reached_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv(ADDRESS, address)
    with pytest.raises(AuditError, match=f"RAY_ADDRESS={address}: no connection to the Ray cluster .* refused"):
        run("unused", "", executor=RayActors(1))


@pytest.mark.parametrize("raised", [Exception("The current node timed out during startup."), KeyboardInterrupt()])
def test_ray_that_starts_too_slowly_is_one_error(monkeypatch: pytest.MonkeyPatch, raised: BaseException) -> None:
    """Ray raises a plain `Exception`. Ctrl+C is not an error of Ray."""
    import ray

    def slow(**_: Any) -> None:
        raise raised

    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(ray, "init", slow)
    expected, message = (AuditError, "not be started .*timed out during startup. If the machine is busy, start .*again")
    if isinstance(raised, KeyboardInterrupt):
        expected, message = KeyboardInterrupt, "^$"
    with pytest.raises(expected, match=message):
        run("unused", "", executor=RayActors(1))


class Ends:
    """A worker that calls sys.exit()."""

    def __init__(self, error: SystemExit) -> None:
        self.error = error

    def measure(self, shard: Shard) -> MeasuredShard:
        raise self.error


def test_an_actor_reports_that_the_model_called_sys_exit() -> None:
    actor, ending = ray_actors._Actor(), SystemExit(0)
    actor._worker = Ends(ending)  # type: ignore[assignment]
    found = actor.measure([], SHARDS[1])
    assert isinstance(found, tuple)
    assert found[1].startswith("Shard 1 (10 rows, from id '010') could not be measured: the code of the model")
    assert "called sys.exit(0) at test_ray_actors.py:" in found[1]
    ending.ray_terminate_msg = "the process receives a SIGTERM"  # type: ignore[attr-defined]
    with pytest.raises(SystemExit):  # Ray ends the process, for example because its machine is needed
        actor.measure([], SHARDS[1])


@pytest.mark.parametrize(("workers", "remedy"), [(1, "memory: free some memory"), (2, "give fewer --audit-workers")])
def test_a_single_actor_that_dies_brings_no_advice_to_give_fewer(
    workers: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def died(_: object) -> None:
        raise ray.exceptions.ActorDiedError

    monkeypatch.setattr(ray, "get", died)
    with pytest.raises(
        AuditError, match=rf"4 retries \(the process of the actor died\).*os\._exit\(\).*{remedy}"
    ) as error:
        RayActors(workers)._received(None, SHARDS[0])
    assert ("fewer" in str(error.value)) == (workers > 1)


def test_warnings_of_ray_are_hidden_while_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("ray")
    for level, expected in ((logging.INFO, logging.ERROR), (logging.DEBUG, logging.DEBUG)):
        monkeypatch.setattr(logger, "level", level)
        with ray_actors._without_warnings():
            assert logger.level == expected
        assert logger.level == level


@pytest.mark.slow
def test_ray_prints_nothing_if_the_model_fails(
    model: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    source = f"{model}:raises_interrupt"
    with pytest.raises(
        AuditError, match=r"^Shard \d .* raised KeyboardInterrupt at deadly_models\.py:\d+ in interrupted"
    ):
        run(source, load_model(source).sha256, executor=RayActors(2))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_an_actor_that_hangs_is_replaced(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setenv("RAY_worker_niceness", "0")  # otherwise, an actor may take minutes to start on a busy machine
    source = f"{model}:hangs_once"
    found = run(source, load_model(source).sha256, executor=RayActors(1, timeout=120))
    assert (tmp_path / "died").exists()
    assert sorted(found) == [0, 1, 2, 3]


@pytest.mark.slow
def test_fewer_cpus_than_actors_measure_all_shards(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        source = f"{model}:healthy"
        found = run(source, load_model(source).sha256, executor=RayActors(3, timeout=240))
    finally:
        ray.shutdown()
    assert sorted(found) == [0, 1, 2, 3]


@pytest.mark.slow
def test_actors_that_hang_fail_the_run(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    source = f"{model}:hangs"
    with pytest.raises(AuditError, match=r"Shard 0 \(10 rows, .* 2 processes in a row .*--audit-worker-timeout 1 s"):
        run(source, load_model(source).sha256, executor=RayActors(1, timeout=1))


@pytest.mark.slow
def test_a_lost_connection_to_ray_ends_the_run(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes are replaced, because a raylet that is killed sometimes ends this process, too."""
    import ray

    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(ray_actors, "LOOK", 1)
    nodes: Any = ray.nodes
    monkeypatch.setattr(ray, "nodes", lambda: [{**node, "Alive": False} for node in nodes()])
    source = f"{model}:hangs_once"
    with pytest.raises(AuditError, match=r"The Ray process \(raylet\) on this machine has died.*--audit-resume"):
        run(source, load_model(source).sha256, executor=RayActors(1))
