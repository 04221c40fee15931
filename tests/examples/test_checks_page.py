"""The tables of docs/checks.md and docs/custom_checks.md are complete, and the example of a custom check runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from attnaudit.adapters.loading import load_model
from attnaudit.checks.base import Check
from attnaudit.data import load, sample
from attnaudit.engine.measuring import measure
from attnaudit.registry import checks
from tests.forking_interpreter import run_module

ROOT = Path(__file__).resolve().parents[2]
CHECKS, PAGE = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("checks.md", "custom_checks.md"))
#: A word in capitals in the table of needs -> some of the values that it stands for.
PLACEHOLDERS = {
    "PRESET": ("meister", "jain_wallace"),
    "AT": ("inputs", "hidden"),
    "IMPORTANCE": ("gradient.jain_wallace.hidden", "input_x_gradient.inputs", "leave_one_out.hidden"),
    "TVD": ("0.05",),
    "WHERE": ("layer", "everywhere.live"),
    "OPERATOR": ("deletion", "mask"),
    "EFFECT": ("held", "live", "shapley.3"),
    "N": ("32",),
}


def rows(page: str, section: str) -> list[tuple[str, str, str]]:
    """Return the three cells of every row that begins with a name in a section of a page."""
    text = page.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (`.*?) \| (.*?) ?\| (.*?) ?\|$", text, re.MULTILINE)


def measured_columns() -> list[tuple[str, list[str], list[str]]]:
    """Return (need, its scalars, its vectors) for every row, with values in place of the words in capitals."""
    columns = []
    for forms, scalars, vectors in rows(PAGE, "What can be measured"):
        needs = re.findall("`(.*?)`", forms)
        for word, values in PLACEHOLDERS.items():
            needs = list(dict.fromkeys(re.sub(rf"\b{word}\b", value, need) for need in needs for value in values))
        for need in needs:
            names = [
                [need + suffix for suffix in re.findall("`…([^`]*)`", cell)] + [need] * ("the same" in cell)
                for cell in (scalars, vectors)
            ]
            columns.append((need, names[0], names[1]))
    return columns


def test_every_built_in_check_has_a_line_with_its_thresholds() -> None:
    built_in = {name: checks.get(name) for name in checks.names()}
    # Tests of other files may have registered more.
    built_in = {
        name: kind
        for name, kind in built_in.items()
        if isinstance(kind, type)
        and issubclass(kind, Check)
        and kind.__module__.startswith("attnaudit.checks.")
        and (ROOT / "attnaudit" / "checks" / "builtin" / f"{kind.__module__.rpartition('.')[2]}.py").is_file()
    }
    listed = {name.strip("`"): (value, threshold) for name, value, threshold in rows(CHECKS, "Built-in checks")}
    assert set(listed) == set(built_in)
    for name, (value, threshold) in listed.items():
        assert re.search(r"\(.+ \d{4}(; .+ \d{4})?\)$", value), f"{name}: the line names no source"
        directions, _, references = threshold.partition("; ")
        assert tuple(re.findall(r"`(\w+)`", directions)) == built_in[name].directions
        several = {"compare_seeds": 1} if name == "TrainedAdversary" else {}
        assert set(re.findall(r"`(\w+)`", references)) - set(several) == set(
            built_in[name](severity="report", **several).threshold_references
        )


def test_every_need_gives_the_columns_in_the_table() -> None:
    columns = measured_columns()
    assert len(columns) > 20
    adapter = load_model("demo").adapter
    data = sample(load("movie-reviews"), 3, 0)
    measurements = measure(adapter, data, [need for need, _, _ in columns], model="demo", seed=0)[0]
    for need, scalars, vectors in columns:
        assert scalars or vectors, need
        assert set(scalars) <= set(measurements.scalars), need
        assert set(vectors) <= set(measurements.vectors), need


def test_the_example_of_a_custom_check_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"<!-- example: test_top_tokens.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_top_tokens.py").write_text(example, encoding="utf-8")
    options = ("-p", "no:cacheprovider", "--model", "demo", "--audit-max-instances", "80")
    done = run_module("pytest", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    newest = (tmp_path / "reports" / "latest.txt").read_text(encoding="utf-8").strip()
    run = json.loads((tmp_path / "reports" / newest / "audit.json").read_text(encoding="utf-8"))
    assert [record["check"] for record in run["checks"]] == ["top_token_matters_most", "uniform_fragility.tvd"]
