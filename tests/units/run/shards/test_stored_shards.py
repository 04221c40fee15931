"""Shards on disk: complete, of the same plan, undamaged, and the same bytes however they were measured."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.checks import InformationRanking
from attnaudit.cli import main
from attnaudit.engine.measuring import measure
from attnaudit.engine.shard_measuring import Shard, ShardMeasurer
from attnaudit.engine.shard_numbers import Rows, ShardNumbers
from attnaudit.errors import ChangedModelError, ReportError
from attnaudit.executors.shard_job import Executor, Finished, ShardJob, measured_shard
from attnaudit.records import Passes
from attnaudit.report.check_costs import cost_table
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.shards.partial_measurement import merge_shards
from attnaudit.run.shards.stored_shards import ShardFolder, ShardPlan, StoredShardRunner
from tests.small_models import WORDS, adapter, dataset

PLAN = ShardPlan(
    model="m",
    model_sha256="1" * 64,
    data="d",
    data_sha256="2" * 64,
    rows=600,
    rows_before=None,
    shards=3,
    needs=["permutation"],
    seed=0,
    unit="tokens",
    batch_tokens=None,
    device="cpu",
    threads=1,
    policy_sha256="",
    code_sha256="3" * 64,
    custom_code_sha256="4" * 64,
    attnaudit="0",
    torch="0",
)
NEEDS = ("uniform", "ranked_hidden", "retained.frequent")
ROWS = dataset(
    [" ".join(WORDS[1 + (i * k + i // 15) % (len(WORDS) - 1)] for k in range(1, 3 + i % 5)) for i in range(600)]
)


def runner(folder: Path, executor: Executor | None = None, plan: ShardPlan = PLAN) -> StoredShardRunner:
    job = ShardJob(source="", sha256="", needs=NEEDS, seed=0, device="cpu", batch_tokens=None, unit="tokens", threads=1)
    return StoredShardRunner(
        lambda shards: ShardFolder(folder, plan), executor=executor, job=lambda lengths: job, progress=None
    )


def measured(folder: Path | None, executor: Executor | None = None) -> Any:
    run_shards = None if folder is None else runner(folder, executor)
    return measure(adapter(), ROWS, NEEDS, model="m", seed=0, run_shards=run_shards)[0]


class Backwards:
    """An executor that measures in this process, in the opposite order, and notes the shards."""

    def __init__(self) -> None:
        self.measurer = ShardMeasurer(adapter(), NEEDS, seed=0, device="cpu", batch_tokens=None, unit="tokens")
        self.seen: list[int] = []

    def run(self, job: ShardJob, shards: Any, finished: Finished) -> None:
        if not self.measurer.started:
            self.measurer.start([len(one.text.split()) for one in sorted(ROWS.instances, key=lambda one: one.id)])
        for shard in reversed(list(shards)):
            self.seen.append(shard.index)
            finished(measured_shard(shard.index, self.measurer.measure(shard)))


def same(one: Any, other: Any) -> None:
    assert one.scalars.keys() == other.scalars.keys()
    for name in one.scalars:
        np.testing.assert_array_equal(one.scalars[name], other.scalars[name])
    for name in one.vectors:
        for a, b in zip(one.vectors[name], other.vectors[name], strict=True):
            assert a.tobytes() == b.tobytes(), name
    for name in one.tables:
        assert one.tables[name].tobytes() == other.tables[name].tobytes(), name
    assert list(map(list, one.tokens)) == list(map(list, other.tokens))
    assert list(one.sources) == list(other.sources)


def test_stored_shards_have_the_numbers_of_shards_in_memory_in_any_order(tmp_path: Path) -> None:
    expected, executor = measured(None), Backwards()
    same(measured(tmp_path, executor), expected)
    assert executor.seen == [2, 1, 0]
    assert expected.tables["ranked_hidden.states"].size
    assert expected.tables["retained.frequent.states"].size


def test_the_passes_of_measures_do_not_depend_on_who_measured_a_shard(tmp_path: Path) -> None:
    """They are stored with each shard. The second run reads all shards, the third one measures one of them again."""

    def costs(run_shards: StoredShardRunner | None) -> list[tuple[str, list[str], dict[str, int]]]:
        needs = ("permutation", "rearrangement", "leave_one_out.inputs", "gradient.meister.inputs")
        record = measure(adapter(), ROWS, needs, model="m", seed=0, run_shards=run_shards)[1]
        assert Passes.of(record.passes) == cost_table({"check": needs}, record.costs).total.passes
        return [(one.measure, one.needs, one.passes) for one in record.costs]

    here = costs(None)
    assert any(name.startswith("shared: ") and len(needs) == 2 for name, needs, _ in here)
    assert costs(runner(tmp_path)) == here
    assert costs(runner(tmp_path)) == here
    (ShardFolder(tmp_path, PLAN).path / "000001.json").unlink()
    assert costs(runner(tmp_path)) == here


def test_many_rows_are_kept_in_files_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = measured(None)
    for module in ("assembled_shards", "measuring"):
        monkeypatch.setattr(f"attnaudit.engine.{module}.ROWS_IN_MEMORY", 100)
    filed = measured(None)
    same(filed, expected)
    assert type(filed.vectors["attention"]).__name__ == "FiledColumn"
    assert filed.lengths.tolist() == expected.lengths.tolist()
    chosen = np.arange(600) % 7 == 0
    assert filed.groups(chosen).rows.tolist() == expected.groups(chosen).rows.tolist()
    assert filed.groups(chosen).starts.tolist() == expected.groups(chosen).starts.tolist()
    same(filed.only(chosen), expected.only(chosen))


def test_ranked_states_of_many_rows_are_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    every = measured(None)
    monkeypatch.setattr("attnaudit.measures.ranked_states.MOST_INSTANCES", 100)
    monkeypatch.setattr("attnaudit.measures.ranked_states.IN_MEMORY_BYTES", 0)
    sample = measured(None)
    instances, rows = (one.tables["ranked_hidden.instances"].tolist() for one in (sample, every))
    assert 50 < len(instances) <= 100
    ranks = sample.tables["ranked_hidden.states"].shape[1]
    assert ranks == every.tables["ranked_hidden.states"].shape[1]
    same_rows = [rows.index(instance) for instance in instances]
    for name in ("states", "weights", "outputs"):
        expected = every.tables[f"ranked_hidden.{name}"][same_rows]
        np.testing.assert_array_equal(sample.tables[f"ranked_hidden.{name}"], expected)
    check = InformationRanking(severity="report")
    record = check.judge(sample)
    assert record.n_defined == check.judge(every).n_defined == int((sample.lengths >= ranks).sum())
    assert record.details["instances"] == len(instances)


def test_only_missing_shards_are_measured_again(tmp_path: Path) -> None:
    first = measured(tmp_path)
    folder = ShardFolder(tmp_path, PLAN)
    (folder.path / "000001.json").unlink()  # killed between the two files
    (folder.path / ".000002.parquet.77").write_bytes(b"half")  # killed while writing
    executor = Backwards()
    same(measured(tmp_path, executor), first)
    assert executor.seen == [1]


@pytest.mark.parametrize("file", ["000001.parquet", "000001.json"])
def test_a_damaged_shard_is_refused(tmp_path: Path, file: str) -> None:
    measured(tmp_path)
    path = ShardFolder(tmp_path, PLAN).path / file
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    with pytest.raises(ReportError, match="000001"):
        measured(tmp_path)


def test_a_shard_that_arrives_damaged_is_refused(tmp_path: Path) -> None:
    class Flipping(Backwards):
        def run(self, job: ShardJob, shards: Any, finished: Finished) -> None:
            super().run(job, shards, lambda one: finished(dataclasses.replace(one, content=one.content + b" ")))

    with pytest.raises(ReportError, match="arrived damaged"):
        measured(tmp_path, Flipping())


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("model_sha256", r"the model \(SHA-256 f+\.\.\., not SHA-256 1111"),
        (
            "donors_sha256",
            r"the donors \(the rows, draws or seed of InDistribution\), which .*f\.\.\., not none",
        ),
        ("data_sha256", r"the data \(SHA-256 f+\.\.\., not SHA-256 2222"),
        ("policy_sha256", r"the policy, or the code of its checks \(SHA-256 f+\.\.\., not none"),
        ("code_sha256", "the code of attnaudit"),
        ("custom_code_sha256", "your own code of the model or a measure"),
        ("seed", r"seed \(1, not 0\)"),
        ("threads", r"threads \(2, not 1\)"),
        ("unit", r"unit \(words, not tokens\)"),
        ("device", r"device \(cuda, not cpu\)"),
        ("batch_tokens", r"batch_tokens \(64, not None\)"),
        ("torch", r"the version of torch \(9, not 0\)"),
        ("transformers", r"the version of transformers \(9, not none\)"),
        ("tokenizers", r"the version of tokenizers \(9, not none\)"),
        ("training_sha256", r"the training data more\.csv \(SHA-256 f+\.\.\., not none\)"),
        ("needs", "the measures that the checks need"),
    ],
)
def test_shards_of_another_plan_are_refused_and_the_difference_is_named(tmp_path: Path, field: str, named: str) -> None:
    ShardFolder(tmp_path, PLAN)
    numbers = {"needs": ["uniform"], "seed": 1, "threads": 2, "batch_tokens": 64}
    texts = {"unit": "words", "device": "cuda", **dict.fromkeys(("torch", "transformers", "tokenizers"), "9")}
    other = {**numbers, **texts, "training_sha256": {"more.csv": "f" * 64}}.get(field, "f" * 64)
    with pytest.raises(ReportError, match=f"another audit. They differ in: {named}"):
        ShardFolder(tmp_path, msgspec.structs.replace(PLAN, **{field: other}))


def test_another_model_in_one_process_is_refused(tmp_path: Path) -> None:
    class OtherModel(Backwards):
        def __init__(self) -> None:
            super().__init__()
            with_noise = adapter()
            for module in with_noise.modules:
                for parameter in module.parameters():
                    parameter.data += 0.1
            self.other = ShardMeasurer(with_noise, NEEDS, seed=0, device="cpu", batch_tokens=None, unit="tokens")
            self.other.start([len(one.text.split()) for one in sorted(ROWS.instances, key=lambda one: one.id)])

        def run(self, job: ShardJob, shards: Sequence[Shard], finished: Finished) -> None:
            chosen = list(shards)
            super().run(job, chosen[:2], finished)
            finished(measured_shard(2, self.other.measure(chosen[2])))

    with pytest.raises(ReportError.__mro__[1], match="measured a second time"):
        measured(tmp_path, OtherModel())


def test_the_only_shard_of_another_model_is_refused_if_it_is_read_from_disk(tmp_path: Path) -> None:
    few = dataclasses.replace(ROWS, instances=ROWS.instances[:100])
    plan = msgspec.structs.replace(PLAN, rows=100, shards=1)

    def measured_once() -> Any:
        return measure(adapter(), few, NEEDS, model="m", seed=0, run_shards=runner(tmp_path, plan=plan))

    first, record = measured_once()
    again, resumed = measured_once()
    same(again, first)
    assert resumed.repeated_rows > record.repeated_rows  # rows of the stored shard ran again in this process
    folder, executor = ShardFolder(tmp_path, plan), Backwards()
    for module in executor.measurer.adapter.modules:
        for parameter in module.parameters():
            parameter.data += 0.1
    other = ShardMeasurer(executor.measurer.adapter, NEEDS, seed=0, device="cpu", batch_tokens=None, unit="tokens")
    other.start([len(one.text.split()) for one in few.instances])
    rows = sorted(few.instances, key=lambda one: one.id)
    folder.write(measured_shard(0, other.measure(Shard(index=0, first=0, instances=rows, alone=True))))
    with pytest.raises(ChangedModelError, match="measured a second time"):
        measured_once()


def test_a_record_without_a_cost_is_refused(tmp_path: Path) -> None:
    measured(tmp_path)
    path = ShardFolder(tmp_path, PLAN).path / "000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cost": {"passes": {}}}))
    with pytest.raises(ReportError, match=r"000001.json does not contain the record of a shard: .*batch_size"):
        measured(tmp_path)


def test_a_file_with_empty_cells_is_refused(tmp_path: Path) -> None:
    measured(tmp_path)
    content = next(tmp_path.glob("*/000001.parquet")).read_bytes()
    table = pq.read_table(pa.BufferReader(content))
    edited = pa.array([None, *table.column("predicted").to_pylist()[1:]], type=pa.int64())
    file = io.BytesIO()
    pq.write_table(table.set_column(table.column_names.index("predicted"), "predicted", edited), file)
    with pytest.raises(ReportError, match="column 'predicted' has empty cells"):
        ShardNumbers.from_parquet(file.getvalue(), "x")


def test_a_vector_of_another_length_than_the_tokens_is_refused(tmp_path: Path) -> None:
    measured(tmp_path)
    numbers = ShardNumbers.from_parquet(next(tmp_path.glob("*/000001.parquet")).read_bytes(), "x")
    values, counts = numbers.vectors["attention"]
    numbers.vectors["attention"] = Rows(values[:-1], np.append(counts[:-1], counts[-1] - 1))
    with pytest.raises(ReportError, match="column 'attention' does not have one number per token"):
        ShardNumbers.from_parquet(numbers.to_parquet(), "x")


def test_numbers_survive_the_file_bit_by_bit() -> None:
    rng = np.random.default_rng(0)
    measurer = Backwards().measurer
    measurer.start([len(one.text.split()) for one in sorted(ROWS.instances, key=lambda one: one.id)])
    instances = sorted(ROWS.instances, key=lambda one: one.id)[:20]
    numbers = measurer.measure(Shard(index=0, first=0, instances=instances, alone=True))
    numbers.scalars["odd"] = rng.permutation([np.nan, -0.0, np.inf, 5e-324, *rng.normal(size=16)])
    content = numbers.to_parquet()
    again = ShardNumbers.from_parquet(content, "x")
    assert content == again.to_parquet()
    assert again.scalars["odd"].tobytes() == numbers.scalars["odd"].tobytes()
    assert again.states.keys() == numbers.states.keys()


def parts(tmp_path: Path, count: int) -> list[Path]:
    """Folders of jobs that each measured some of the shards."""
    measured(tmp_path / "all")
    whole = ShardFolder(tmp_path / "all", PLAN).path
    folders = []
    for number in range(count):
        folder = tmp_path / f"job{number}"
        ShardFolder(folder, PLAN)
        for index in range(number, PLAN.shards, count):
            for suffix in ("json", "parquet"):
                content = (whole / f"{index:06d}.{suffix}").read_bytes()
                (folder / PLAN.folder_name() / f"{index:06d}.{suffix}").write_bytes(content)
        folders.append(folder)
    return folders


def test_a_merge_takes_complete_shards_and_refuses_anything_else(tmp_path: Path) -> None:
    first, second = parts(tmp_path, 2)
    run = tmp_path / "reports" / "merged"
    with pytest.raises(ReportError, match=r"1 of 3 shards is missing \(1\)"):
        merge_shards([first], run)
    with pytest.raises(ReportError, match="measured twice"):
        merge_shards([first, second, Path(shutil.copytree(first, tmp_path / "second copy"))], run)
    with pytest.raises(ReportError, match="there are no shards here"):
        merge_shards([first, tmp_path / "nowhere"], run)
    with pytest.raises(
        ReportError, match=r"no shards here, but in its subfolders\. Give them instead, such as .*/\*\."
    ):
        merge_shards([first.parent], run)
    without_plan = Path(shutil.copytree(first, tmp_path / "without plan"))
    next(without_plan.glob("*/plan.json")).unlink()
    with pytest.raises(ReportError, match=r"cannot be merged, because plan\.json is missing"):
        merge_shards([without_plan, second], run)
    other = tmp_path / "other"
    plan = ShardFolder(other, msgspec.structs.replace(PLAN, model_sha256="9" * 64)).path
    with pytest.raises(ReportError, match="They differ in: the model"):
        merge_shards([first, second, other], run)
    renamed = (tmp_path / "copy").mkdir() or (tmp_path / "copy" / "copy of shards")
    shutil.copytree(first / PLAN.folder_name(), renamed)
    with pytest.raises(ReportError, match="expected the name"):
        merge_shards([renamed.parent], run)
    foreign = plan / "000001.json"
    record = json.loads((second / PLAN.folder_name() / "000001.json").read_text())
    foreign.write_text(json.dumps(record))
    with pytest.raises(ReportError, match="belongs to another audit"):
        merge_shards([other], run)
    foreign.rename(second / PLAN.folder_name() / "000001 (copy).json")
    with pytest.raises(
        ReportError, match=r"\(copy\).json: this is the record of shard 1, so expected the name 000001.json"
    ):
        merge_shards([first, second], run)
    (second / PLAN.folder_name() / "000001 (copy).json").unlink()
    assert not run.exists()
    assert merge_shards([first, second], run) == 3
    same(measured(run / "parts" / "shards" / "main"), measured(None))
    with pytest.raises(ReportError, match="already exists"):
        merge_shards([first, second], run)
    with pytest.raises(ReportError, match="already exists"):
        merge_shards([first, second], Path())
    (second / PLAN.folder_name() / "plan.json").write_text("{}")
    with pytest.raises(ReportError, match=r"plan.json is damaged \(.*\).*Remove them, and measure them again"):
        merge_shards([first, second], tmp_path / "reports" / "again")


def test_a_folder_that_was_given_twice_is_not_called_measured_twice(tmp_path: Path) -> None:
    """Whoever removed one of the copies would remove the only one. No folder has to exist for this error."""
    first = tmp_path / "first"
    (tmp_path / "link").symlink_to(first)
    for again in (first, tmp_path / "link", tmp_path / "x" / ".." / "first"):
        shown = re.escape(f"{again}: this folder was given twice")
        with pytest.raises(ReportError, match=rf"^{shown}.*Give it once; delete nothing"):
            merge_shards([first, again], tmp_path)


def test_a_shard_that_is_found_through_a_link_is_not_called_measured_twice(tmp_path: Path) -> None:
    (first,) = parts(tmp_path, 1)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / PLAN.folder_name()).symlink_to(first / PLAN.folder_name())
    with pytest.raises(ReportError, match=r"000000.json: this is the same file as .*through a link.*delete nothing"):
        merge_shards([first, tmp_path / "linked"], tmp_path / "merged")


def test_folders_that_do_not_complete_a_merge_are_named_with_the_reason(tmp_path: Path) -> None:
    first, _second = parts(tmp_path, 2)
    ShardFolder(tmp_path / "other", msgspec.structs.replace(PLAN, data="e"))
    ShardFolder(tmp_path / "stopped", PLAN)
    with pytest.raises(ReportError, match=r"m on d: 1 of 3 shards is missing \(1\)\.") as raised:
        merge_shards([first, tmp_path / "other", tmp_path / "stopped"], tmp_path / "merged")
    shown = str(raised.value)
    assert f"{tmp_path / 'other'} has no shards of m on d, but of m on e." in shown
    assert f"{tmp_path / 'stopped'} has no shards: `attnaudit measure` was stopped before the first" in shown
    assert f"{first} has" not in shown


def test_a_merge_names_folders_whose_part_has_no_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *jobs, empty = parts(tmp_path, PLAN.shards + 1)
    assert main(["merge", *map(str, [*jobs, empty]), "--into", str(tmp_path / "merged")]) == 0
    assert capsys.readouterr().out.endswith(f"Folders without shards, which added nothing: {empty}.\n")


def test_parts_are_merged_before_they_are_judged(tmp_path: Path) -> None:
    first, _second = parts(tmp_path, 2)
    with pytest.raises(ReportError, match=rf"attnaudit merge {re.escape(str(first))} … --into"):
        RunFolder(first.parent, first.name).resume()
