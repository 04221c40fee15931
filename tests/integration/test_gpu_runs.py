"""Whole runs on a GPU, each in a process of its own, give the verdicts of the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import newest_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
ROOT = Path(__file__).parents[2]
AUDIT = ["-m", "pytest", "audits/", "--model", "demo", "--audit-max-instances", "60", "-p", "no:cacheprovider"]


def run(*words: str, status: int = 0) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def audited(folder: Path, *words: str) -> dict[str, Any]:
    run(*AUDIT, "--audit-reports", str(folder), *words, status=1)
    found: dict[str, Any] = json.loads((newest_run(folder.parent, folder.name) / "audit.json").read_text("utf-8"))
    return found


def verdicts(audit: dict[str, Any]) -> dict[str, str]:
    return {one["check"]: one["verdict"] for one in audit["checks"]}


@pytest.fixture(scope="module")
def on_the_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return audited(tmp_path_factory.mktemp("runs") / "cuda")


def test_an_audit_gives_the_verdicts_of_the_cpu(on_the_gpu: dict[str, Any], tmp_path: Path) -> None:
    cpu = audited(tmp_path / "cpu", "--audit-device", "cpu")
    assert verdicts(on_the_gpu) == verdicts(cpu)
    assert [gate["state"] for gate in on_the_gpu["gates"]] == [gate["state"] for gate in cpu["gates"]]
    assert cpu["environment"]["device"] == "cpu"


def test_the_run_names_the_gpu(on_the_gpu: dict[str, Any]) -> None:
    assert on_the_gpu["environment"]["device"] == "cuda"
    assert on_the_gpu["environment"]["gpu"] == torch.cuda.get_device_name()


def test_two_workers_share_a_gpu(on_the_gpu: dict[str, Any], tmp_path: Path) -> None:
    shared = audited(tmp_path / "shared", "--audit-workers", "2")
    assert shared["measurements_sha256"] == on_the_gpu["measurements_sha256"]
    assert verdicts(shared) == verdicts(on_the_gpu)


def test_conformance_on_the_gpu() -> None:
    assert ", 0 failed, " in run("-m", "attnaudit", "conformance", "demo", "--device", "cuda")


def test_a_plan_measures_the_time_on_the_gpu() -> None:
    text = run("-m", "attnaudit", "plan", "--policy", "audits/policy.toml", "--model", "demo")
    assert f" on the GPU ({torch.cuda.get_device_name()}) takes about " in text


LITTLE_MEMORY = """
import torch
from attnaudit.adapters.loading import load_model
from attnaudit.data import load, sample
from attnaudit.engine.measuring import measure

total = torch.cuda.mem_get_info()[1]
torch.zeros(1, device="cuda")
adapter = load_model("demo").adapter
rows = sample(load("movie-reviews"), 200, 0)
needs = ["prediction", "gradient.meister.inputs", "permutation", "leave_one_out.inputs"]
whole, record = measure(adapter, rows, needs, model="m", seed=0, device="cuda")
peak = torch.cuda.max_memory_reserved()
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(0.5 * peak / total)
parts, other = measure(adapter, rows, needs, model="m", seed=0, device="cuda")
for need in whole.vectors:
    for a, b in zip(whole.vectors[need], parts.vectors[need], strict=True):
        assert abs(a - b).max(initial=0) < 2e-5, need
print("batches", record.batch_size, other.batch_size)
"""


def test_batches_become_smaller_where_memory_runs_out() -> None:
    text = run("-c", LITTLE_MEMORY)
    first, second = (int(number) for number in text.split("batches ")[1].split()[:2])
    assert 0 < second < first
