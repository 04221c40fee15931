"""README's example, run as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch

from tests.forking_interpreter import run_module

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
TEXTS = ["a fine film", "a dull , long story", "not bad at all", "bad from first to last", "bright and funny"]


def example() -> str:
    found = re.search(r"<!-- example: conftest.py -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_page_is_short() -> None:
    assert len(README.splitlines()) < 200


def test_the_example_is_about_thirty_lines() -> None:
    assert sum(bool(line.strip()) for line in example().splitlines()) <= 38


def test_the_example_audits_a_model_of_ones_own(tmp_path: Path) -> None:
    words = sorted({word for text in TEXTS for word in text.split()})
    (tmp_path / "vocabulary.txt").write_text("\n".join(words), encoding="utf-8")
    scope: dict[str, object] = {}
    exec(compile(example(), "README.md", "exec"), scope)
    torch.manual_seed(0)
    torch.save(scope["Reviews"](words).state_dict(), tmp_path / "reviews.pt")  # type: ignore[operator]
    rows = [
        {"text": f"{text} {extra}", "label": ("negative", "positive")[i % 2]}
        for i, text in enumerate(TEXTS)
        for extra in words[:8]
    ]
    (tmp_path / "reviews.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert run_module("attnaudit", "init", cwd=tmp_path).returncode == 0
    (tmp_path / "audits" / "conftest.py").write_text(example(), encoding="utf-8")
    options = ("--model", "reviews", "--data", "reviews.jsonl", "-p", "no:cacheprovider")
    done = run_module("pytest", "audits/", *options, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "attention audit" in done.stdout
    folder = tmp_path / "reports" / (tmp_path / "reports" / "latest.txt").read_text(encoding="utf-8").strip()
    audit = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    assert {check["model"] for check in audit["checks"]} == {"reviews"}
    policy = (tmp_path / "audits" / "policy.toml").read_text(encoding="utf-8")
    assert len(audit["checks"]) == policy.count("[[check]]") > 0
    assert audit["missing"] == []
