"""Public models are audited from unchanged clones at a fixed commit, and their adapter code is counted."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters.huggingface import transformer
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from benchmarks import public_models
from benchmarks.public_adapters import imported_from
from benchmarks.public_models import Row, SetupError, leave_one_out, lines_of, page, require_clone
from benchmarks.public_repositories import MODELS
from tests import architectures

MODEL = replace(MODELS[0], packages=())


def commit(clone: Path) -> str:
    """Make a repository with the file of the model, and return its commit."""
    clone.mkdir()
    (clone / MODEL.file).write_text("WIDTH = 2\n", encoding="utf-8")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "First"]):
        subprocess.run(["git", "-C", str(clone), *command], check=True)
    return subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_missing_clone_names_the_commands(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as caught:
        require_clone(MODEL, tmp_path)
    assert f"git clone https://github.com/{MODEL.repository}" in str(caught.value)
    assert MODEL.commit in str(caught.value)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_clone_must_be_unchanged_and_at_the_commit(tmp_path: Path) -> None:
    clone = tmp_path / MODEL.folder
    model = replace(MODEL, commit=commit(clone))
    assert require_clone(model, tmp_path) == clone
    with pytest.raises(SetupError, match="is at commit"):
        require_clone(MODEL, tmp_path)
    with pytest.raises(SetupError, match=r"imports no_such_package.*pip install no_such_package"):
        require_clone(replace(model, packages=("no_such_package",)), tmp_path)
    (clone / MODEL.file).write_text("WIDTH = 3\n", encoding="utf-8")
    with pytest.raises(SetupError, match="changed Python files"):
        require_clone(model, tmp_path)


def test_modules_of_a_clone_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "model_of_a_clone.py").write_text("WIDTH = 2\n", encoding="utf-8")
    with imported_from(tmp_path):
        import model_of_a_clone

        assert model_of_a_clone.WIDTH == 2
    assert "model_of_a_clone" not in sys.modules
    assert str(tmp_path) not in sys.path


def adapt(model: Any, tokenizer: Any) -> Any:
    # A comment, and an empty line.

    def logits(model: Any) -> Any:
        return model

    return logits(model)


def test_lines_without_comments_are_counted() -> None:
    assert lines_of(adapt) == 3


def test_leave_one_out_is_the_change_without_each_real_token() -> None:
    tokenizer = architectures.tokenizer("wordpiece")
    weight = torch.randn(len(tokenizer), 2, generator=torch.Generator().manual_seed(0))

    def forward(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return weight[batch["input_ids"]].sum(1)

    changes = leave_one_out(forward, None, tokenizer, "a good film")
    ids = tokenizer("a good film")["input_ids"]
    whole = weight[ids].sum(0).softmax(0)
    expected = [(whole - (weight[ids].sum(0) - weight[one]).softmax(0)).abs().sum() / 2 for one in ids[1:-1]]
    torch.testing.assert_close(torch.tensor(changes), torch.stack(expected).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("changed", ["", "logits", "attention", "leave-one-out"])
def test_a_difference_from_the_plain_pass_is_found(changed: str) -> None:
    module, tokenizer = architectures.build("bert")
    plain = copy.deepcopy(module)
    plain.set_attn_implementation("eager")
    adapter = transformer(module, tokenizer)
    texts = tuple(Instance(id=str(n), text=text) for n, text in enumerate(architectures.SENTENCES[:4]))
    dataset = Dataset(name="sentences", source="the test", description="", instances=texts)
    measured = measure(adapter, dataset, ["leave_one_out.inputs"], model="bert", seed=0)[0]
    single = {"logits": False, "leave-one-out": True}.get(changed)

    def forward(model: Any, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = model(**batch).logits
        return logits * (2 if (len(logits) == 1) is single else 1)

    def attention(model: Any, batch: dict[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
        layers = model(**batch, output_attentions=True).attentions
        return {"layer": (*layers[:-1], layers[-1].flip(1) if changed == "attention" else layers[-1])}

    model = replace(MODELS[0], forward=forward, attention=attention, deletes=True)
    differences = public_models.compare(model, plain, adapter, tokenizer, measured)
    assert [what for what, one in differences.items() if one > public_models.TOLERANCE] == [changed][: bool(changed)]


def test_the_page_lists_audited_and_refused_models() -> None:
    rows = [
        Row(MODELS[0], 3, "27 passed, 4 not applicable", 4, {"logits": 6e-7, "attention": 0.0, "leave-one-out": 4e-7}),
        Row(MODELS[-1], 4, refusal="one text | per row"),
    ]
    text = page(rows)
    assert "| 3 | 27 passed, 4 not applicable | 4 of 4 | 6.0e-07 | 0.0e+00 | 4.0e-07 |" in text
    assert "one text \\| per row" in text
    for model in MODELS:
        assert f"git -C {model.folder} checkout --quiet {model.commit}" in text


def test_the_stored_page_has_every_model_with_the_lines_of_its_adapter() -> None:
    text = public_models.PAGE.read_text(encoding="utf-8")
    for model in MODELS:
        (row,) = (
            line for line in text.splitlines() if f"/blob/{model.commit}/{model.file})" in line and model.name in line
        )
        assert model.forward is None or f" | {lines_of(model.adapt)} | " in row


def test_a_missing_clone_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["public_models", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        public_models.main()
    assert caught.value.code == 1
    assert "git clone" in capsys.readouterr().err


def test_at_least_five_models_are_compared_and_three_with_leave_one_out() -> None:
    compared = [model for model in MODELS if model.forward is not None]
    assert len({model.repository for model in compared}) >= 5
    assert sum(model.deletes for model in compared) >= 3


def test_a_difference_that_is_not_a_number_is_not_lost() -> None:
    for differences in ([0.0, float("nan")], [float("nan"), 0.0]):
        assert np.isnan(public_models.largest_of(differences))
    assert public_models.largest_of([0.25, 0.5]) == 0.5
