"""The example and the table of docs/checks.md, as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from attnaudit.adapters.loading import load_model
from attnaudit.data import load, sample
from attnaudit.engine.measuring import measure

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
STANDS_FOR = {
    "PRESET": ("meister", "jain_wallace"),
    "AT": ("inputs", "hidden"),
    "IMPORTANCE": ("gradient.jain_wallace.hidden", "input_x_gradient.inputs", "leave_one_out.hidden"),
    "TVD": ("0.05",),
    "WHERE": ("layer", "everywhere.live"),
    "OPERATOR": ("deletion", "mask"),
}


def table() -> list[tuple[str, list[str], list[str]]]:
    """(need, numbers, columns per token) of every row, for everything that its capitals stand for."""
    found = []
    for forms, scalars, vectors in re.findall(r"^\| (`.*?`) \| (.*?) ?\| (.*?) ?\|$", PAGE, re.MULTILINE):
        needs = re.findall("`(.*?)`", forms)
        for word, values in STANDS_FOR.items():
            needs = list(dict.fromkeys(re.sub(rf"\b{word}\b", value, need) for need in needs for value in values))
        for need in needs:
            named = [[need + tail for tail in re.findall("`…([^`]*)`", cell)] for cell in (scalars, vectors)]
            for names, cell in zip(named, (scalars, vectors), strict=True):
                names += [need] * ("the same" in cell)
            found.append((need, named[0], named[1]))
    return found


def test_every_need_gives_the_columns_that_the_table_says() -> None:
    rows = table()
    assert len(rows) > 20
    adapter = load_model("demo").adapter
    data = sample(load("movie-reviews"), 6, 0)
    found = measure(adapter, data, [need for need, _, _ in rows], model="demo", seed=0)[0]
    for need, scalars, vectors in rows:
        assert scalars or vectors, need
        assert set(scalars) <= set(found.scalars), need
        assert set(vectors) <= set(found.vectors), need


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"<!-- example: test_spikes.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_spikes.py").write_text(example, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--model",
        "demo",
        "--audit-max-instances",
        "80",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    newest = (tmp_path / "reports" / "latest.txt").read_text(encoding="utf-8").strip()
    run = json.loads((tmp_path / "reports" / newest / "audit.json").read_text(encoding="utf-8"))
    assert [one["check"] for one in run["checks"]] == ["top_token_moves_most", "uniform_fragility.tvd"]
