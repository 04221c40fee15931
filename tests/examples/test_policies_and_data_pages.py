"""The tables of docs/policies.md and docs/data.md are complete, and their examples load."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from attnaudit.checks import load_policy
from attnaudit.checks.base import Check
from attnaudit.checks.builtin.retrained_models import RetrainingCheck
from attnaudit.checks.policies.policy_baseline import MARGIN
from attnaudit.data import load
from attnaudit.data.column_names import Column
from attnaudit.records import PolicyRecord, PolicyRemedy
from attnaudit.registry import checks
from tests.conftest import newest_audit

DOCS = Path(__file__).resolve().parents[2] / "docs"
POLICIES, DATA = ((DOCS / name).read_text(encoding="utf-8") for name in ("policies.md", "data.md"))
COMMON_ARGUMENTS = {field.name for field in dataclasses.fields(Check)}
#: An argument that only makes explicit what `preset` does.
UNDOCUMENTED = {("Agreement", "detach")}


def shipped() -> dict[str, type[Check]]:
    """Return name -> class of the checks of the package, without those that other tests have registered."""
    registered = {name: checks.get(name) for name in checks.names()}
    return {
        name: kind
        for name, kind in registered.items()
        if isinstance(kind, type) and kind.__module__.startswith("attnaudit.checks.")
    }


def listed() -> dict[tuple[str, str], str]:
    """Return (check, argument) -> the text of its cell of values; the argument is "" for a check without arguments."""
    cells, names = {}, []
    for first, argument, values in re.findall(r"^\| (.*?) ?\| (`\w+`|) ?\| (.*?) ?\|$", POLICIES, re.MULTILINE):
        names = re.findall(r"`([A-Z]\w+)`", first) or names
        if names:
            cells.update({(name, argument.strip("`")): values for name in names})
    return cells


def declared() -> dict[tuple[str, str], tuple[Any, Any]]:
    """Return (check, argument) -> (its type, its default)."""
    arguments: dict[tuple[str, str], tuple[Any, Any]] = {}
    for name, kind in shipped().items():
        if issubclass(kind, RetrainingCheck):
            continue
        hints = get_type_hints(kind)
        own = [field for field in dataclasses.fields(kind) if field.name not in COMMON_ARGUMENTS]
        arguments.update({(name, field.name): (hints[field.name], field.default) for field in own})
        if not own:
            arguments[name, ""] = (None, None)
    return {key: value for key, value in arguments.items() if key not in UNDOCUMENTED}


def test_every_argument_is_listed_with_its_values_and_the_default_first() -> None:
    assert set(listed()) == set(declared())
    for key, values in listed().items():
        hint, default = declared()[key]
        literals = {value for part in (hint, *get_args(hint)) for value in get_args(part) if isinstance(value, str)}
        assert set(re.findall(r'(?<![=] )`"(\w+)"`', values)) == literals, key
        if isinstance(default, str):
            assert re.search(r'`"(\w+)"`', values)[1] == default, key  # type: ignore[index]
        elif isinstance(default, float):
            assert values.startswith(f"{default:g}"), key


def test_the_arguments_that_all_checks_have_are_listed() -> None:
    table = POLICIES.partition("## Arguments of every check")[2].partition("## Arguments of each check")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == {*COMMON_ARGUMENTS, MARGIN}


def test_the_arguments_of_the_checks_that_train_are_on_their_page() -> None:
    page = (DOCS / "retraining.md").read_text(encoding="utf-8")
    kinds = [kind for kind in shipped().values() if issubclass(kind, RetrainingCheck)]
    assert len(kinds) == 4
    for field in {field.name for kind in kinds for field in dataclasses.fields(kind)} - COMMON_ARGUMENTS:
        assert re.search(rf"\b{field}\b", page), field


def test_the_examples_of_a_policy_load(tmp_path: Path) -> None:
    example, families, question_example, informational, exception = re.findall(
        r"```toml\n(.*?)```", POLICIES, re.DOTALL
    )
    path = tmp_path / "policy.toml"
    path.write_text(example, encoding="utf-8")
    assert [check.id for check in load_policy(path)] == [
        "agreement.leave_one_out.inputs",
        "permutation_fragility.f1_drop",
    ]
    path.write_text(f'{families}\n[[check]]\nname = "PermutationFragility"\nat_least = 0.08\n', encoding="utf-8")
    record = load_policy(path).record
    assert (record.validated_on, record.unvalidated) == (
        ["pooled attention"],
        PolicyRecord(file="", sha256="").unvalidated,
    )
    path.write_text(f'[[check]]\nname = "PermutationFragility"\nat_least = 0.08\n{question_example}', encoding="utf-8")
    (question,) = load_policy(path).record.questions
    assert question.asks == "Is attention used?"
    assert question.remedy[0].when == PolicyRemedy(text="").when
    path.write_text(informational, encoding="utf-8")
    assert load_policy(path).record.informational
    path.write_text(f'[[check]]\nname = "PermutationFragility"\nat_least = 0.08\n{exception}', encoding="utf-8")
    assert [exception.model for exception in load_policy(path).record.exceptions] == ["demo"]


@pytest.mark.slow
def test_the_example_of_an_exception_runs(tmp_path: Path) -> None:
    (example,) = re.findall(
        r"<!-- example: test_attention_faithfulness.py -->\n```python\n(.*?)```", POLICIES, re.DOTALL
    )
    (tmp_path / "test_attention_faithfulness.py").write_text(example, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--model", "demo"]
    done = subprocess.run(
        [*command, "--audit-max-instances", "200"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, newest_audit(tmp_path)["status"]) == (0, "passed"), done.stdout + done.stderr
    states = {gate["check"]: gate["state"] for gate in newest_audit(tmp_path)["gates"]}
    assert sorted(states.values()) == ["excepted", "passed"]
    assert states["permutation_fragility.tvd"] == "excepted"


def test_the_table_of_columns_is_complete() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", DATA, re.MULTILINE)
    assert rows == [column.value for column in Column]


def test_the_example_of_a_data_set_loads() -> None:
    (example,) = re.findall(r"<!-- example: conftest.py -->\n```python\n(.*?)```", DATA, re.DOTALL)
    exec(compile(example, "conftest.py", "exec"), {})
    dataset = load("complaints")
    assert (len(dataset.instances), dataset.classes) == (2, ("damaged", "late"))


def test_the_policy_of_the_page_about_baselines_declares_the_gates_that_it_names(tmp_path: Path) -> None:
    page = (DOCS / "baselines.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"<!-- example: policy.toml -->\n```toml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "policy.toml").write_text(example, encoding="utf-8")
    ids = [check.id for check in load_policy(tmp_path / "policy.toml")]
    assert ids == ["pointing.probabilities", "pointing.probabilities.vs_last", "pointing.probabilities.vs_pinned"]
    assert all(f"`{id_}`" in page for id_ in ids[1:])
