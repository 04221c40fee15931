"""The examples of docs/transformers.md, run as they stand there on a small base model."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from attnaudit.instances import Instance
from attnaudit.registry import models
from tests import architectures

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
REGISTERED = {"own_module.py": "reviews", "tagger.py": "tagger", "lora.py": "lora"}


def test_every_example_is_run() -> None:
    assert set(EXAMPLES) == set(REGISTERED)


@pytest.mark.parametrize("name", REGISTERED)
def test_an_example_registers_a_model_that_can_be_audited(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "lora.py":
        pytest.importorskip("peft")
    architectures.save("bert", tmp_path / "base")
    (tmp_path / name).write_text(EXAMPLES[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = models._known.pop(REGISTERED[name], None)  # other tests may have registered the same name
    try:
        torch.manual_seed(0)
        runpy.run_path(str(tmp_path / name))
        adapter = models.get(REGISTERED[name])()
    finally:
        models._known.pop(REGISTERED[name], None)
        if before is not None:
            models._known[REGISTERED[name]] = before
    trace = adapter.run(adapter.collate([Instance(id="1", text="a wonderful film")]))
    assert trace.logits.shape == (1, 2)
    assert len(adapter.sites()) == architectures.LAYERS
