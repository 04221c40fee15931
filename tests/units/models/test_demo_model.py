"""The shipped demo model is small and accurate, and the command on its card trains it."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import pytest
import torch

from attnaudit.adapters.protocol import TEXT
from attnaudit.data.movie_reviews import split
from attnaudit.models import demo_model
from attnaudit.models.training_options import add_arguments, command

CARD = json.loads((demo_model.FOLDER / "attnaudit.json").read_text(encoding="utf-8"))
SCRIPT = Path(__file__).parents[3] / "tools" / "make_demo.sh"


def accuracy(part: str) -> float:
    adapter = demo_model.model()
    classes = adapter.capabilities.classes
    rows = sorted(split(part).instances, key=lambda one: len(one.text))  # type: ignore[arg-type]
    right = 0
    with torch.no_grad():
        for start in range(0, len(rows), 256):
            batch = rows[start : start + 256]
            logits = adapter.run(adapter.collate(batch)).logits[:, 0]
            right += sum(classes[int(z > 0)] == one.label for z, one in zip(logits.tolist(), batch, strict=True))
    return right / len(rows)


def test_its_test_accuracy_is_high_enough_and_is_that_on_its_card() -> None:
    test_accuracy = accuracy("test")
    assert test_accuracy >= 0.78
    assert test_accuracy == pytest.approx(CARD["training"]["test"]["accuracy"], abs=0.001)


def test_its_dev_accuracy_is_that_on_its_card() -> None:
    assert accuracy("dev") == pytest.approx(CARD["training"]["dev"]["accuracy"], abs=0.002)


def test_it_takes_at_most_five_megabytes() -> None:
    assert sum(file.stat().st_size for file in demo_model.FOLDER.iterdir()) <= 5_000_000


def test_it_is_a_bilstm_with_additive_attention_and_softmax() -> None:
    assert [CARD["architecture"][part] for part in ("encoder", "alignment", "projection")] == [
        *("bilstm", "additive", "softmax")
    ]


def test_it_was_trained_on_the_embedded_data() -> None:
    data = CARD["training"]["data"]
    for part in ("train", "dev", "test"):
        assert data[part]["sha256"] == split(part).sha256()  # type: ignore[arg-type]


def test_the_script_in_the_repository_is_the_command_on_its_card() -> None:
    if not SCRIPT.is_file():
        pytest.skip("tools/make_demo.sh is only in the repository, not in the installed package")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    script = SCRIPT.read_text(encoding="utf-8").replace("\\\n", " ")
    arguments = shlex.split(next(line for line in script.splitlines() if " train " in line))
    options = parser.parse_args(arguments[arguments.index("train") + 1 :])
    assert command(options) == CARD["training"]["command"]


def test_unknown_words_are_shown_as_written_and_special_tokens_are_marked() -> None:
    from attnaudit.instances import Instance

    inputs = demo_model.model().collate([Instance(id="1", text="A Zyxwv masterpiece!")])
    assert inputs.tokens[TEXT][0] == ["<sos>", "a", "zyxwv", "masterpiece", "!", "<eos>"]
    assert inputs.special[TEXT][0].tolist() == [True, False, False, False, False, True]
