"""The estimate of what an audit costs, compared with audits."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import ClassVar

import numpy as np
import pytest
import torch

from attnaudit.checks import (
    Agreement,
    Check,
    Comprehensiveness,
    InfluenceEntropy,
    PermutationFragility,
    TokenProbability,
    TopKDrop,
    TotalEffect,
)
from attnaudit.engine import memory_use
from attnaudit.engine.measuring import measure
from attnaudit.engine.shard_measuring import ShardMeasurer
from attnaudit.instances import Dataset
from attnaudit.measures import AttentionView, Columns, Request
from attnaudit.measures import measure as declared
from attnaudit.registry import measures
from attnaudit.report.check_costs import CostTable, cost_table
from attnaudit.run.cost_probe import CostEstimate, batches_of, clock_of, estimate_cost
from attnaudit.targets import Target
from tests.small_models import WORDS, adapter, dataset
from tests.small_sources import TEMPLATE, small_language_model
from tests.small_sources import rows as sources

CHECKS: tuple[Check, ...] = (
    TotalEffect(at_least=0.1),
    PermutationFragility(at_least=0.1),
    Agreement(importance="leave_one_out", at_least=0.1),
    Agreement(importance="gradient", at_least=0.1),
    Comprehensiveness(at_least=0.1),
    InfluenceEntropy(at_most=0.9),
    TokenProbability(at_most=0.9),
)
HELD = 96 * 2**20


def rows(count: int) -> Dataset:
    """Return texts of 1 to 24 words. A shard of 256 of them has two batches, so that padding matters."""
    lengths = np.random.default_rng(0).integers(1, 25, count)
    texts = [" ".join(WORDS[1 + (i * k) % 14] for k in range(1, 1 + n)) for i, n in enumerate(lengths)]
    return dataclasses.replace(dataset(texts), rows=count)


def estimated(data: Dataset, checks: tuple[Check, ...] = CHECKS, total: int | None = None) -> CostEstimate:
    return estimate_cost(adapter(), data, checks, probe=32, rows=total, device="cpu")


def audited(data: Dataset) -> CostTable:
    needs = {check.id: check.needs_under_reading() for check in CHECKS}
    wanted = sorted({need for named in needs.values() for need in named})
    return cost_table(needs, measure(adapter(), data, wanted, model="m", seed=0)[1].costs)


@pytest.mark.slow
def test_the_passes_of_few_rows_are_exactly_those_of_an_audit() -> None:
    data = rows(32)
    cost, actual = estimated(data), audited(data)
    assert cost.exact_passes
    assert {one.check: one.passes for one in cost.costs.checks} == {one.check: one.passes for one in actual.checks}
    assert {one.check: one.own_passes for one in cost.costs.checks} == {
        one.check: one.own_passes for one in actual.checks
    }
    assert cost.costs.shared.passes == actual.shared.passes
    assert cost.costs.total.passes == actual.total.passes


def test_the_passes_depend_on_the_units() -> None:
    """A row has fewer passages than tokens, so fewer units are erased."""
    pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")
    from attnaudit.adapters.huggingface import transformer

    model = transformer(*small_language_model(), template=TEMPLATE, target=Target(kind="string"))
    instances = sources()
    data = dataclasses.replace(dataset([]), instances=instances, rows=len(instances))
    check = TopKDrop(k=1, at_least=0.1)
    partial = {}
    for unit in ("tokens", "sources"):
        cost = estimate_cost(model, data, [check], probe=32, rows=None, device="cpu", unit=unit)
        _, actual = measure(model, data, check.needs_under_reading(), model="m", seed=0, unit=unit)
        assert cost.costs.total.passes == cost_table({check.id: check.needs_under_reading()}, actual.costs).total.passes
        partial[unit] = cost.costs.total.passes.partial + cost.costs.total.passes.forward
    assert partial["sources"] < partial["tokens"]


@pytest.mark.slow
def test_the_passes_of_many_rows_are_close_to_those_of_an_audit() -> None:
    """They differ because the lengths of 32 texts differ from those of all texts."""
    data = rows(256)
    cost, actual = estimated(data), {one.check: one.passes for one in audited(data).checks}
    assert not cost.exact_passes
    for one in cost.costs.checks:
        for kind in ("forward", "partial", "backward"):
            assert getattr(one.passes, kind) == pytest.approx(getattr(actual[one.check], kind), rel=0.25), one.check


@pytest.mark.slow
def test_the_number_of_rows_scales_the_passes_and_the_time() -> None:
    data = rows(40)
    cost, more = estimated(data, total=32), estimated(data, total=3200)
    assert more.costs.total.passes.partial == 100 * cost.costs.total.passes.partial
    assert more.costs.total.seconds > 10 * cost.costs.total.seconds


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a measure that needs 96 MiB while it is computed."""
    monkeypatch.setattr(measures, "_known", {name: measures.get(name) for name in measures.names()})

    @declared("greedy_of_a_test")
    def greedy_of_a_test(view: AttentionView, request: Request) -> Columns:
        held = torch.ones(HELD // 4)
        return Columns(scalars={request.name: torch.full_like(view.special_mass, float(held[-1]))})


class Greedy(PermutationFragility):
    """A check that needs the measure."""

    tested: ClassVar[str] = "greedy"

    @property
    def id(self) -> str:
        return self.tested

    def needs(self) -> tuple[str, ...]:
        return (f"{self.tested}_of_a_test",)


@pytest.mark.skipif(not memory_use.can_measure_memory("cpu"), reason="the system reports no peak memory")
def test_the_memory_of_a_check_is_that_of_its_measures(greedy: None) -> None:
    cost = estimated(rows(64), (*CHECKS, Greedy(at_least=0.1)))
    assert cost.memory is not None
    assert HELD <= cost.memory.checks["greedy"] < HELD + 32 * 2**20
    others = [size for check, size in cost.memory.checks.items() if check != "greedy"]
    assert all(size is not None and size < HELD / 2 for size in others)
    assert HELD <= cost.memory.total < HELD + 32 * 2**20
    assert cost.highest >= cost.memory.before + HELD


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a measure that waits for 0.2 s for each batch, and one that computes for 0.2 s."""
    monkeypatch.setattr(measures, "_known", {name: measures.get(name) for name in measures.names()})

    @declared("waiting_of_a_test")
    def waiting_of_a_test(view: AttentionView, request: Request) -> Columns:
        time.sleep(0.2)
        return Columns(scalars={request.name: view.special_mass})

    @declared("computing_of_a_test")
    def computing_of_a_test(view: AttentionView, request: Request) -> Columns:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        return Columns(scalars={request.name: view.special_mass})


class Waiting(Greedy):
    tested = "waiting"


class Computing(Greedy):
    tested = "computing"


def test_the_time_on_a_cpu_is_that_in_which_the_process_computes(slow: None) -> None:
    """While other programs have the CPU, a process waits. This must not count."""
    cost = estimated(rows(32), (Waiting(at_least=0.1), Computing(at_least=0.1)))
    assert cost.processor_time
    seconds = {one.check: one.own_seconds for one in cost.costs.checks}
    assert seconds["waiting"] < 0.1
    assert seconds["computing"] >= 0.2


def test_the_time_of_an_audit_includes_waiting(slow: None) -> None:
    found = measure(adapter(), rows(4), ["waiting_of_a_test"], model="m", seed=0)[1].costs
    assert {one.measure: one.seconds for one in found}["waiting_of_a_test"] >= 0.2


def test_the_time_on_a_gpu_is_taken_after_the_device_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    finished: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", finished.append)
    clock = clock_of("cuda:1")
    before = clock()
    time.sleep(0.02)
    assert clock() - before >= 0.02  # wall-clock time
    assert finished == ["cuda:1"] * 2


def test_memory_that_cannot_be_measured_is_not_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_use, "can_measure_memory", lambda _device: False)
    cost = estimated(rows(10), CHECKS[:1])
    assert cost.memory is None
    assert cost.highest is not None
    assert cost.highest > 0
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert estimated(rows(10), CHECKS[:1]).highest is None


def test_the_batch_for_the_memory_is_the_largest_one_and_has_the_longest_row() -> None:
    measurer = ShardMeasurer(adapter(), ["uniform"], seed=0, device="cpu", batch_tokens=30, unit="tokens")
    data = dataset(["the film is good", "good", "bad", "bright", " ".join(WORDS[1:13])])
    *first, longest = data.instances
    found = batches_of(measurer, first, longest)
    assert [one.text for one in found.largest] == [longest.text, "the film is good"]
    assert (found.tokens, found.number) == (24, 2)
