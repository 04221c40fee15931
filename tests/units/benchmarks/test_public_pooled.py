"""Public models with pooled attention are compared with their own forward pass, and a difference stops the command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnaudit.adapters import BagAdapter
from attnaudit.instances import Instance
from benchmarks import public_pooled
from benchmarks.public_models import SetupError
from benchmarks.public_pooled import PAGE, all_clone_commands, line_of
from benchmarks.public_pooled_adapters import FEATURES, MODELS, PooledModel, bag_of

SOURCE = f"""
from torch import nn

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.decode = nn.Linear({FEATURES}, 1), nn.Linear({FEATURES}, 2)
"""


def adapt(model: Any) -> BagAdapter:
    # a comment, which is not counted

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        return model.score(states).squeeze(-1).masked_fill(~allowed, -torch.inf).softmax(-1)

    given = {"attention": attend, "decoder": model.decode, "modules": (model,), "features": FEATURES}
    return BagAdapter(encoder=lambda vectors, _mask: vectors, classes=("no", "yes"), **given)


def plain(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
    bag = bag_of(instance, left_out)
    weights = model.score(bag).softmax(0)[:, 0]
    return model.decode(weights @ bag).softmax(-1), weights


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PooledModel:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setattr(public_pooled, "MEASURED", 4)
    clone = tmp_path / "bags"
    clone.mkdir()
    (clone / "model.py").write_text(SOURCE, encoding="utf-8")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "First"]):
        subprocess.run(["git", "-C", str(clone), *command], check=True)
    head = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return PooledModel(
        name="Bag",
        repository="somebody/bags",
        commit=head.stdout.strip(),
        licence="MIT",
        file="model.py",
        what="a small bag",
        build=lambda module: module.Bag(),
        adapt=adapt,
        plain=plain,
        reads="bag",
    )


def test_a_line_of_the_table(public: PooledModel, tmp_path: Path) -> None:
    cells = [cell.strip() for cell in line_of(public, tmp_path).strip("|").split("|")]
    assert cells[1:4] == ["MIT", "a small bag", "4"]
    assert "not applicable" in cells[5]
    assert all(float(cell) < 1e-6 for cell in cells[6:])


@pytest.mark.parametrize("part", ["log-probabilities", "attention", "leave-one-out"])
def test_a_difference_stops_the_command(public: PooledModel, tmp_path: Path, part: str) -> None:
    def wrong(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
        p, weights = plain(model, instance, left_out)
        if part == "attention":
            return p, weights + 1e-4
        moved = left_out is None if part == "log-probabilities" else left_out == 1
        return (p + torch.tensor([1e-4, -1e-4]) if moved else p), weights

    with pytest.raises(SystemExit, match=rf"Bag: .*'{part}': [0-9.]+e?.*expected at most 1e-05"):
        line_of(replace(public, plain=wrong), tmp_path)


def test_an_undefined_number_stops_the_command(public: PooledModel, tmp_path: Path) -> None:
    def undefined(model: Any, instance: Instance, left_out: int | None) -> tuple[Tensor, Tensor]:
        p, weights = plain(model, instance, left_out)
        return p * torch.nan if left_out == 1 else p, weights

    with pytest.raises(SystemExit, match="'leave-one-out': nan"):
        line_of(replace(public, plain=undefined), tmp_path)


def test_another_commit_is_refused(public: PooledModel, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"is at commit .*; expected 000"):
        line_of(replace(public, commit="000"), tmp_path)


def test_the_page_has_every_model_and_its_commands() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for model in MODELS:
        assert f"| {model.name} of [{model.repository}]" in text
        assert f"commit {model.commit[:7]}" in text
    assert all(command in text for command in all_clone_commands())
