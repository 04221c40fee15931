"""The examples of docs/custom_checks.md that declare a measure, and a check with arguments."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.forking_interpreter import run_module

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "custom_checks.md").read_text(encoding="utf-8")
TEST = """
from attnaudit import audit
from conftest import short_attention

@audit(short_attention(at_most=50))
def test_spans(check):
    check.enforce()
"""


AUDIT = """
from attnaudit import audit, checks

@audit(checks.IdleExchange(at_most="0.9 * most", largest_mass=0.04))
def test_audit(check):
    check.enforce()
"""


def example(name: str) -> str:
    (found,) = re.findall(rf"<!-- example: {name} -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_measure_of_the_page_serves_a_check(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(example("conftest.py"), encoding="utf-8")
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


def test_the_check_with_arguments_is_audited_and_tested(tmp_path: Path) -> None:
    (audits := tmp_path / "audits").mkdir()
    (audits / "conftest.py").write_text(example("exchange.py"), encoding="utf-8")
    (audits / "test_exchange.py").write_text(example("test_exchange.py"), encoding="utf-8")
    (audits / "test_audit.py").write_text(AUDIT, encoding="utf-8")
    (command,) = re.findall(r"it needs a model: `pytest (.*?)`", PAGE)
    done = run_module("pytest", *command.split(), cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    newest = (tmp_path / "reports" / "latest.txt").read_text(encoding="utf-8").strip()
    run = json.loads((tmp_path / "reports" / newest / "audit.json").read_text(encoding="utf-8"))
    (record,) = run["checks"]
    assert (record["check"], record["verdict"], record["parameters"]["largest_mass"]) == ("idle_exchange", "pass", 0.04)
    (reference,) = record["references"]
    assert 0 < record["value"] < reference["value"] < 1
