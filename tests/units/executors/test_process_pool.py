"""The pool of processes: processes that die, errors in a process, and models that are not the model of the run."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnaudit.adapters.loading import load_model
from attnaudit.engine.row_lengths import RowLengths
from attnaudit.engine.shard_measuring import Shard, ShardMeasurer
from attnaudit.errors import AuditError, ChangedModelError
from attnaudit.executors import process_pool
from attnaudit.executors.process_pool import ProcessPool
from attnaudit.executors.shard_job import Executor, MeasuredShard, ShardJob, described, measured_shard, module_sources
from attnaudit.instances import Instance
from tests.small_models import WORDS

ROOT = Path(__file__).parents[3]
NEEDS = ("uniform",)
ROWS = [Instance(id=f"{i:03d}", text=f"{WORDS[1 + i % 14]} {WORDS[1 + i // 14]} good", where=str(i)) for i in range(40)]
SHARDS = [Shard(index=i, first=10 * i, instances=ROWS[10 * i : 10 * i + 10]) for i in range(4)]
MODEL = '''"""A model whose process dies."""

import os
import signal
import time
from multiprocessing import parent_process
from pathlib import Path

from tests.small_models import adapter, tokenize


def healthy():
    return adapter()


def killed_once():
    """Kill the process in the second shard, unless this has happened before."""

    def deadly(text):
        if text == {text!r} and not Path({marker!r}).exists():
            Path({marker!r}).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return tokenize(text)

    return adapter(tokenize=deadly)


def exits():
    def deadly(text):
        assert parent_process() is not None
        os._exit(0)

    return adapter(tokenize=deadly)


def raises_interrupt():
    def interrupted(text):
        raise KeyboardInterrupt

    return adapter(tokenize=interrupted)


def gets_interrupts():
    """Get the signal that Ctrl+C sends to all processes of a terminal."""

    def interrupted(text):
        os.kill(os.getpid(), signal.SIGINT)
        return tokenize(text)

    return adapter(tokenize=interrupted)


def hangs():
    def endless(text):
        assert parent_process() is not None
        while True:
            time.sleep(1)

    return adapter(tokenize=endless)


def hangs_once():
    """Hang in the second shard, unless this has happened before."""

    def hanging(text):
        if text == {text!r} and not Path({marker!r}).exists():
            Path({marker!r}).touch()
            while True:
                time.sleep(1)
        return tokenize(text)

    return adapter(tokenize=hanging)


def fails_for_a_row():
    def failing(text):
        if text == {text!r}:
            raise ZeroDivisionError("no [bold]length[/bold]")
        return tokenize(text)

    return adapter(tokenize=failing)
'''


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with factories of models."""
    code = MODEL.replace("{text!r}", repr(ROWS[15].text)).replace("{marker!r}", repr(str(tmp_path / "died")))
    (tmp_path / "deadly_models.py").write_text(code, encoding="utf-8")
    for path in (ROOT, tmp_path):
        monkeypatch.syspath_prepend(str(path))
    monkeypatch.delitem(sys.modules, "deadly_models", raising=False)
    return "deadly_models"


def job_for(source: str, sha256: str, sources: dict[str, str] | None = None) -> ShardJob:
    return ShardJob(
        source=source,
        sha256=sha256,
        needs=NEEDS,
        seed=0,
        device="cpu",
        batch_tokens=None,
        unit="tokens",
        threads=1,
        search_path=tuple(sys.path),
        sources=sources or {},
    )


def run(
    source: str,
    sha256: str,
    *,
    workers: int = 1,
    timeout: int | None = None,
    sources: dict[str, str] | None = None,
    executor: Executor | None = None,
) -> dict[int, MeasuredShard]:
    """Measure the shards, in a pool by default, and return them by number."""
    found: dict[int, MeasuredShard] = {}

    def finished(shard: MeasuredShard) -> None:
        assert shard.index not in found, "a shard was measured twice"
        found[shard.index] = shard

    job = job_for(source, sha256, sources)
    (executor or ProcessPool(workers, timeout=timeout)).run(job, iter(SHARDS), finished)
    return found


def test_processes_that_die_again_and_again_end_the_run_with_a_clear_error(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "MOST_DEATHS", 1)
    source = f"{model}:exits"
    with pytest.raises(AuditError, match=r"Shard 0 \(10 rows, from id '000'\) .* 1 processes died .*exit status 0"):
        run(source, load_model(source).sha256)


@pytest.mark.parametrize(
    ("exitcode", "expected", "unexpected"),
    [
        (0, r"exit status 0\)\. .*os\._exit\(0\)\. Remove this call\.$", "out of memory"),
        (3, r"exit status 3\)\. .*os\._exit\(3\)\. Remove this call\.$", "out of memory"),
        (-9, r"signal 9\)\. Perhaps the machine ran out of memory\. Give fewer --audit-workers", "_exit"),
    ],
)
def test_only_a_signal_suggests_that_memory_ran_out(exitcode: int, expected: str, unexpected: str) -> None:
    member: Any = SimpleNamespace(shard=SHARDS[1], process=SimpleNamespace(exitcode=exitcode))
    with pytest.raises(
        AuditError, match=r"^Shard 1 \(10 rows, from id '010'\) .* 5 processes died.*" + expected
    ) as error:
        process_pool._refuse_deaths(member, 5)
    assert unexpected not in str(error.value)


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SystemExit(0), r"called sys\.exit\(0\) at PLACE\. Remove this call\."),
        (SystemExit(), r"called sys\.exit\(\) at PLACE\. Remove this call\."),
        (KeyboardInterrupt(), r"raised KeyboardInterrupt at PLACE\. Only Ctrl\+C may interrupt a run.*"),
        (ZeroDivisionError("no rows."), r"measuring raised ZeroDivisionError at PLACE: no rows\."),
    ],
)
def test_an_error_of_a_worker_names_the_shard_and_the_line(error: BaseException, expected: str) -> None:
    name, message = described(_raised(error), SHARDS[2])
    assert name == "AuditError"
    place = r"test_process_pool\.py:\d+ in _raised"
    expected = r"Shard 2 \(10 rows, from id '020'\) could not be measured: .*" + expected.replace("PLACE", place)
    assert re.fullmatch(expected, message)


def test_an_interrupt_that_the_model_raises_is_an_error_of_the_first_process(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "MOST_DEATHS", 1)
    source = f"{model}:raises_interrupt"
    with pytest.raises(
        AuditError, match=r"^Shard 0 .* raised KeyboardInterrupt at deadly_models\.py:\d+ in interrupted"
    ):
        run(source, load_model(source).sha256)


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends a process on Windows")
def test_ctrl_c_is_left_to_the_process_that_started_the_pool(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "MOST_DEATHS", 1)
    source = f"{model}:gets_interrupts"
    assert sorted(run(source, load_model(source).sha256)) == [0, 1, 2, 3]


def test_processes_that_hang_are_ended_and_fail_the_run(model: str) -> None:
    source = f"{model}:hangs"
    with pytest.raises(AuditError, match=r"Shard 0 \(10 rows, .* 2 processes in a row .*--audit-worker-timeout 1 s"):
        run(source, load_model(source).sha256, timeout=1)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_shard_is_measured_by_another_process_after_one_has_hung(model: str, tmp_path: Path) -> None:
    source = f"{model}:hangs_once"
    found = run(source, load_model(source).sha256, timeout=120)
    assert (tmp_path / "died").exists()
    assert sorted(found) == [0, 1, 2, 3]


def test_a_process_that_loads_another_model_is_refused(model: str) -> None:
    with pytest.raises(ChangedModelError, match=r"loaded another model .* but the run audits 111111111111"):
        run(f"{model}:healthy", "1" * 64)


def test_code_that_changes_while_it_is_measured_is_refused(model: str, tmp_path: Path) -> None:
    source, file = f"{model}:healthy", tmp_path / f"{model}.py"
    sha256, sources = load_model(source).sha256, module_sources()
    assert {model, "tests.small_models", "attnaudit.executors.shard_job"} <= sources.keys()
    file.write_text(f"{file.read_text(encoding='utf-8')}# edited\n", encoding="utf-8")
    with pytest.raises(
        ChangedModelError, match=f"{model}.py: the file of the module {model} has changed since the run"
    ):
        run(source, sha256, sources=sources)


@pytest.mark.slow
def test_an_error_for_one_row_ends_the_run_and_names_the_row(model: str) -> None:
    source = f"{model}:fails_for_a_row"
    with pytest.raises(
        AuditError, match=r"(?s)15.*Error at deadly_models\.py:\d+ in failing: no \[bold\]length"
    ) as caught:
        run(source, load_model(source).sha256, workers=2)
    assert "Traceback" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_another_process_replaces_a_killed_one_and_measures_every_shard_once(model: str, tmp_path: Path) -> None:
    source = f"{model}:killed_once"
    loaded = load_model(source)
    found = run(source, loaded.sha256, workers=2)
    assert (tmp_path / "died").exists()
    measurer = ShardMeasurer(loaded.adapter, NEEDS, seed=0, device="cpu", batch_tokens=None, unit="tokens")
    measurer.start([])
    expected = {shard.index: measured_shard(shard.index, measurer.measure(shard)).sha256 for shard in SHARDS}
    assert {index: shard.sha256 for index, shard in found.items()} == expected


@pytest.mark.slow
def test_the_limit_of_deaths_counts_the_processes_of_one_shard(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, started = f"{model}:exits", []
    member = process_pool._Member

    def counted(number: int, job: ShardJob, shard: Shard, timeout: int | None) -> process_pool._Member:
        started.append(shard.index)
        return member(number, job, shard, timeout)

    monkeypatch.setattr(process_pool, "_Member", counted)
    with pytest.raises(AuditError, match="5 processes died one after another"):
        run(source, load_model(source).sha256)
    assert started == [0] * process_pool.MOST_DEATHS


@pytest.mark.slow
def test_a_process_has_its_next_shard_before_its_last_result_is_stored(model: str) -> None:
    source = f"{model}:healthy"
    read: list[int] = []
    read_when_stored: list[int] = []

    def shards() -> Iterator[Shard]:
        for shard in SHARDS:
            read.append(shard.index)
            yield shard

    ProcessPool(1).run(
        job_for(source, load_model(source).sha256), shards(), lambda shard: read_when_stored.append(len(read))
    )
    assert read_when_stored == [2, 3, 4, 4]


def test_the_lengths_of_all_rows_are_in_one_file_for_all_processes(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = [1 + i % 7 for i in range(100_000)]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    sent: list[bytes] = []

    def refused(number: int, job: ShardJob, shard: Shard, timeout: int | None) -> process_pool._Member:
        sent.append(pickle.dumps(job))
        assert list(pickle.loads(sent[-1]).lengths) == expected
        raise AuditError("no process")

    monkeypatch.setattr(process_pool, "_Member", refused)
    job = dataclasses.replace(job_for(f"{model}:healthy", ""), lengths=RowLengths(expected), search_path=())
    with pytest.raises(AuditError, match="no process"):
        ProcessPool(1).run(job, iter(SHARDS), lambda shard: None)
    assert len(sent[0]) < 1_000  # the lengths would take at least 50 times as much
    assert set(tmp_path.iterdir()) == before
