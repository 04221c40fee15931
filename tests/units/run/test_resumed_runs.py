"""Runs that cannot be resumed: another process writes them, they have passed, or their shards would not be used."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import partial
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from attnaudit.adapters.loading import load_model
from attnaudit.checks import SeedVariance
from attnaudit.engine.columns import Columns
from attnaudit.engine.declared_measures import measure
from attnaudit.errors import AuditError, ReportError
from attnaudit.registry import measures, models
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.finish_run import RunContext, begin_run
from attnaudit.run.run_choice import newest_run
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.shards.shard_setup import ShardedMeasurement, custom_code, refuse_unused_shards
from attnaudit.run.shards.stored_shards import ShardFolder, ShardPlan
from tests.small_models import adapter
from tests.units.run.shards.test_stored_shards import PLAN
from tests.units.run.whole_runs import FullDisk

CONTEXT = RunContext(version="0", created="", command=["pytest"], seed=0)


def interrupted(reports: Path, worker: str = "main", **changes: Any) -> Path:
    """A run that was interrupted after some shards were measured."""
    folder = RunFolder(reports, "run")
    begin_run(folder, CONTEXT)
    ShardFolder(folder.shards(worker), msgspec.structs.replace(PLAN, **changes))
    return folder.path


def options(run: Path) -> AuditOptions:
    return AuditOptions(
        models=("demo",),
        data=("movie-reviews",),
        models_base=run,
        data_base=run,
        reports=run.parent,
        resume=run,
    )


def test_a_run_is_resumed_by_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    interrupted(tmp_path)
    first, second = RunFolder(tmp_path, "run"), RunFolder(tmp_path, "run")
    begin_run(first, CONTEXT, resume=True)
    part = first.path / "parts" / "main-1.part.json"
    part.write_text("{}", encoding="utf-8")
    with pytest.raises(ReportError, match="another process is measuring or writing this run"):
        begin_run(second, CONTEXT, resume=True)
    assert part.exists()
    del first
    gc.collect()
    begin_run(second, CONTEXT, resume=True)
    assert not part.exists()


def test_a_run_that_is_still_being_measured_is_not_resumed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    running = RunFolder(tmp_path, "run")
    begin_run(running, CONTEXT)
    ShardFolder(running.shards("main"), PLAN)
    with pytest.raises(ReportError, match="another process is measuring or writing this run"):
        RunFolder(tmp_path, "run").resume()


def test_a_run_that_has_passed_is_not_resumed(tmp_path: Path) -> None:
    record = interrupted(tmp_path) / "audit.json"
    before = record.read_bytes().replace(b'"running"', b'"passed"')
    record.write_bytes(before)
    with pytest.raises(ReportError, match="this run has passed"):
        begin_run(RunFolder(tmp_path, "run"), CONTEXT, resume=True)
    assert record.read_bytes() == before


def newest(reports: Path) -> str:
    return (reports / "latest.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("given", ["rum", "other", "reports"])
def test_a_run_that_is_refused_is_named_as_the_newest_until_another_one_begins(tmp_path: Path, given: str) -> None:
    reports = tmp_path / "reports"
    path = interrupted(reports)
    (reports / "other").mkdir()
    assert newest(reports) == "run\n"
    refused = RunFolder(tmp_path, given) if given == "reports" else RunFolder(reports, given)
    with pytest.raises(ReportError, match=rf"--audit-resume .*{given}: (?!.*latest\.txt)"):
        begin_run(refused, CONTEXT, resume=True)
    assert newest(reports) == f"{given}\n"
    assert not (tmp_path / "latest.txt").exists()
    if given == "other":
        assert newest_run(reports) == reports / "other"
    else:
        with pytest.raises(ReportError, match=f"names '{given}', but there is no such folder. Run the audit again"):
            newest_run(reports)
    begin_run(RunFolder(reports, "run"), CONTEXT, resume=True)
    assert newest_run(reports) == path
    begin_run(RunFolder(reports, "new"), CONTEXT)
    assert newest_run(reports) == reports / "new"


def test_a_file_of_another_program_with_the_name_of_ours_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "latest.txt").write_text("step_1")
    (tmp_path / "step_1").mkdir()
    for folder in (RunFolder(tmp_path, "step_1"), RunFolder(tmp_path.parent, tmp_path.name)):
        with pytest.raises(ReportError, match="--audit-resume"):
            folder.resume()
    assert (tmp_path / "latest.txt").read_text() == "step_1"


def test_nothing_is_written_into_the_folder_of_a_run_that_is_refused(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    (path / "parts").rename(tmp_path / "moved")
    (path / "audit.json").write_text("{}")
    before = sorted(path.iterdir())
    with pytest.raises(ReportError, match="--audit-resume"):
        RunFolder(tmp_path, path.name).resume()
    assert sorted(path.iterdir()) == before
    assert newest_run(path) == path


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="--audit-resume"):
        RunFolder(tmp_path, "r" * 300).resume()


def test_a_run_outside_a_folder_of_runs_is_refused_without_a_trace(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="Give the folder of an interrupted run"):
        RunFolder(tmp_path, "run").resume()
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_is_shown_even_if_the_newest_run_cannot_be_named(tmp_path: Path) -> None:
    interrupted(tmp_path)
    disk = FullDisk(1)
    with (
        disk.installed(),
        pytest.raises(ReportError, match=r"no such folder.*latest\.txt.*: cannot be written \(No sp"),
    ):
        RunFolder(tmp_path, "rum").resume()


def test_shards_that_would_not_be_used_are_refused(tmp_path: Path) -> None:
    used = interrupted(tmp_path / "used", model="demo", data="movie-reviews")
    refuse_unused_shards(options(used), "main")
    with pytest.raises(AuditError, match=r"measured without the option -n .* without -n"):
        refuse_unused_shards(options(used), "gw0")
    with pytest.raises(AuditError, match="shards of model m, which is not audited now"):
        refuse_unused_shards(options(interrupted(tmp_path / "model", data="movie-reviews")), "main")
    with pytest.raises(AuditError, match="shards of data d, which is not audited now"):
        refuse_unused_shards(options(interrupted(tmp_path / "data", model="demo")), "main")


def test_complete_shards_that_a_resumed_run_refuses_are_kept(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    shards = ShardFolder(path / "parts" / "shards" / "main", PLAN)
    (shards.path / "000000.parquet").write_bytes(b"numbers")
    shards.mark_complete()
    resumed = RunFolder(tmp_path, "run")
    begin_run(resumed, CONTEXT, resume=True)
    resumed.remove_parts()  # the run ends without numbers, because the seed, for example, is a different one
    assert (shards.path / "000000.parquet").read_bytes() == b"numbers"


def test_code_of_the_user_belongs_to_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(nn.Module):
        def forward(self, states: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
            return torch.softmax(states.sum(-1).masked_fill(~allowed, -torch.inf), -1)

    class Sharpened(Scaled):
        pass

    def one(view: Any, request: Any) -> Columns:
        return Columns(scalars={request.name: view.attention.sum(1)})

    def other(view: Any, request: Any) -> Columns:
        return Columns(scalars={request.name: view.attention.amax(1)})

    def code(attention: nn.Module | None, body: Any) -> str:
        changed = {} if attention is None else {"attention": attention}
        monkeypatch.setitem(models._known, "resumed_model", lambda: adapter(**changed))
        measure("resumed_measure")(body)
        monkeypatch.setitem(measures._known, "resumed_measure", measures._known.pop("resumed_measure"))
        try:
            return custom_code("resumed_model", load_model("resumed_model"), ["resumed_measure"])
        finally:
            monkeypatch.undo()

    assert custom_code("demo", load_model("demo"), ["uniform"]) == ""
    first = code(None, one)
    assert len(first) == 64
    assert code(None, one) == first
    assert len({first, code(None, other), code(Scaled(), one), code(Sharpened(), one)}) == 4


def test_everything_that_declares_a_measure_belongs_to_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def code(declare: Any) -> str:
        monkeypatch.setattr(measures, "_known", dict(measures._known))
        declare()
        try:
            return custom_code("demo", load_model("demo"), ["resumed_measure.1"])
        finally:
            monkeypatch.undo()

    def body(factor: float) -> Any:
        def inner(view: Any, request: Any) -> Columns:
            return Columns(scalars={request.name: factor * view.attention.sum(1)})

        return inner

    class Called:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, view: Any, request: Any) -> Columns:
            return Columns(scalars={request.name: self.factor * view.attention.sum(1)})

        method = __call__

    def scaled(factor: float, view: Any, request: Any) -> Columns:
        return body(factor)(view, request)

    def by_two(text: str) -> float:
        return 2 * float(text)

    for made in (body, Called, lambda factor: partial(scaled, factor), lambda factor: Called(factor).method):
        one, two, again = (
            code(lambda factor=factor: measure("resumed_measure", argument=float)(made(factor)))  # noqa: B023
            for factor in (1.0, 2.0, 1.0)
        )
        assert one == again != two
        assert len(one) == 64
    first = body(1.0)
    different = [
        code(lambda: measure("resumed_measure", argument=float)(first)),
        code(lambda: measure("resumed_measure", argument=by_two)(first)),
        code(lambda: measure("resumed_measure", argument=float, requires=("uniform",))(first)),
        code(lambda: measure("resumed_measure", argument=float, gradients=True)(first)),
    ]
    assert len(set(different)) == len(different)


def test_a_cache_that_code_fills_does_not_change_the_hash_within_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}

    def body(view: Any, request: Any) -> Columns:
        seen["calls"] = seen.get("calls", 0) + 1
        return Columns(scalars={request.name: view.attention.sum(1)})

    measure("resumed_measure")(body)
    monkeypatch.setitem(measures._known, "resumed_measure", measures._known.pop("resumed_measure"))
    known: dict[str, str] = {}
    first = custom_code("demo", load_model("demo"), ["resumed_measure"], known)
    seen["calls"] = 7
    assert custom_code("demo", load_model("demo"), ["resumed_measure", "uniform"], known) == first
    assert custom_code("demo", load_model("demo"), ["resumed_measure"]) != first


def test_functions_that_a_model_keeps_in_its_attributes_belong_to_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(factor: float, value: float) -> float:
        return factor * value

    def shifted(factor: float, value: float) -> float:
        return factor + value

    class Rule:
        def __call__(self, value: float) -> float:
            return -value

    def code(attribute: Any) -> str:
        def made() -> Any:
            model = adapter()
            model.__dict__["attribute"] = attribute
            return model

        monkeypatch.setitem(models._known, "resumed_model", made)
        return custom_code("resumed_model", load_model("resumed_model"), ["uniform"])

    attributes = (scaled, shifted, Rule(), partial(scaled, 2.0), partial(scaled, 3.0), partial(shifted, 2.0))
    assert len(set(map(code, attributes))) == len(attributes)
    assert code(partial(scaled, 2.0)) == code(partial(scaled, 2.0))


@pytest.mark.slow
def test_a_run_is_not_resumed_after_an_edit_of_a_base_class(tmp_path: Path) -> None:
    """The shards were measured by a class whose base class is in another file, and this file was edited since then."""
    (tmp_path / "resumed_conf.py").write_text(
        "import attnaudit, resumed_base\nfrom tests.small_models import adapter\n"
        "class Doubled(resumed_base.Base):\n    pass\n"
        "@attnaudit.register_model('resumed')\ndef made():\n    model = adapter()\n"
        "    model.__dict__['rule'] = Doubled()\n    return model\n"
    )
    code = (
        "import sys, resumed_conf, msgspec\nfrom pathlib import Path\n"
        "from attnaudit.adapters.loading import load_model\nfrom attnaudit.run.shards.shard_setup import custom_code\n"
        "from attnaudit.run.shards.stored_shards import ShardFolder\n"
        "from tests.units.run.shards.test_stored_shards import PLAN\n"
        "own = custom_code('resumed', load_model('resumed'), ['uniform'])\n"
        "ShardFolder(Path(sys.argv[1]), msgspec.structs.replace(PLAN, custom_code_sha256=own))\n"
    )

    def open_shards(factor: int) -> subprocess.CompletedProcess[str]:
        text = f"class Base:\n    def __call__(self, x): return {factor} * x\n"
        (tmp_path / "resumed_base.py").write_text(text)
        path = os.pathsep.join([str(tmp_path), *sys.path])
        return subprocess.run(
            [sys.executable, "-B", "-c", code, str(tmp_path / "shards")],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )

    assert open_shards(2).returncode == open_shards(2).returncode == 0
    refused = open_shards(3)
    assert refused.returncode == 1
    assert "They differ in: your own code of the model or a measure" in refused.stderr


def test_training_data_and_versions_belong_to_the_plan(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    rows = ["a,good film,positive", "b,bad film,negative"]

    def write(*lines: str) -> None:
        train.write_text("\n".join(["id,text,label", *lines, ""]))

    def plan() -> ShardPlan:
        check = SeedVariance(train=str(train), dev=str(dev))
        return ShardedMeasurement(
            options=options(tmp_path),
            loaded=load_model("demo"),
            source="demo",
            model="demo",
            data="movie-reviews",
            data_sha256="2" * 64,
            rows=2,
            rows_before=None,
            needs=check.needs(),
            policy_sha256="",
            threads=1,
        ).plan(1)

    write(*rows)
    first = plan()
    assert first == plan()
    installed = {one.name for one in distributions()}
    for package in ("transformers", "tokenizers"):
        assert getattr(first, package) == (version(package) if package in installed else "")
    assert (len(first.training_sha256[str(train)]), first.training_sha256[str(dev)]) == (64, "")
    ShardFolder(tmp_path / "shards", first)
    for changed in (["a,good film,positive", "b,bad film,positive"], rows[::-1]):
        write(*changed)
        with pytest.raises(ReportError, match=rf"They differ in: the training data {train} \(SHA-256 \w+\.\.\., not"):
            ShardFolder(tmp_path / "shards", plan())
    write(*rows)
    ShardFolder(tmp_path / "shards", plan())


def test_a_run_of_an_older_version_is_refused_with_the_reason(tmp_path: Path) -> None:
    new = msgspec.structs.replace(PLAN, transformers="5.0", training_sha256={"train.csv": "5" * 64})
    older = msgspec.to_builtins(PLAN)
    for field in ("transformers", "tokenizers", "training_sha256"):
        del older[field]
    folder = tmp_path / new.folder_name()
    folder.mkdir()
    (folder / "plan.json").write_bytes(msgspec.json.encode(older))
    with pytest.raises(
        ReportError, match=r"the version of transformers \(5.0, not none\), the training data train.csv"
    ):
        ShardFolder(tmp_path, new)
