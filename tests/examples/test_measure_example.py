"""The example of docs/checks.md that declares a measure."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.forking_interpreter import run_module

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
TEST = """
from attnaudit import audit
from conftest import short_attention

@audit(short_attention(at_most=50))
def test_spans(check):
    check.enforce()
"""


def test_the_measure_of_the_page_serves_a_check(tmp_path: Path) -> None:
    (example,) = re.findall(r"<!-- example: conftest.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "conftest.py").write_text(example, encoding="utf-8")
    (tmp_path / "test_spans.py").write_text(TEST, encoding="utf-8")
    environment = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    options = ("-p", "no:cacheprovider", "--model", "demo", "--audit-max-instances", "40")
    done = run_module("pytest", *options, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    newest = (tmp_path / "reports" / "latest.txt").read_text(encoding="utf-8").strip()
    run = json.loads((tmp_path / "reports" / newest / "audit.json").read_text(encoding="utf-8"))
    (record,) = run["checks"]
    assert (record["check"], record["verdict"]) == ("short_attention", "pass")
    assert 1 <= record["value"] <= 50
