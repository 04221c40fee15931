"""A new check needs one file in attnaudit/checks/builtin/, and no edit elsewhere."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnaudit.checks.builtin
from attnaudit import checks, registry
from attnaudit.checks import PerInstanceCheck, from_tables, to_table
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import CheckError
from attnaudit.instances import Dataset, Instance
from attnaudit.verdict_text import failure_message
from tests.small_models import WORDS, adapter

MODULE = "attention_peak_of_a_new_file"
SOURCE = '''
"""Does one token hold nearly all of the attention?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attnaudit.arrays import Floats
from attnaudit.checks.base import registered
from attnaudit.checks.evidence import Detail, Mask, ReferenceValues, single_token, standard_deviation
from attnaudit.checks.per_instance import PerInstanceCheck
from attnaudit.engine.measurements import Measurements
from attnaudit.records import Direction


@registered
@dataclass(frozen=True, kw_only=True)
class AttentionPeak(PerInstanceCheck):
    """Mean over instances of the largest attention weight, times `scale`."""

    scale: float = 1.0

    directions: ClassVar[tuple[Direction, ...]] = ("at_most",)

    family = "attention"
    title = "Attention is spread over several tokens"
    question = "Does one token hold nearly all of the attention?"
    why = "If one token holds all of it, the weights do not rank the others."
    how_to_read = "At 1, a single token holds all of the attention."
    unit = "weight"
    bounds = (0.0, 1.0)
    worst = "highest"
    threshold_references = ("uniform",)
    subject = "attention_peak_of_a_new_file"

    def validate(self) -> None:
        self.require_number("scale", 0.1, 1.0)

    def needs(self) -> tuple[str, ...]:
        return ("leave_one_out.inputs",)

    def values(self, measurements: Measurements) -> Floats:
        values = self.scale * measurements.scalar("attention.max")
        values[measurements.lengths < 2] = float("nan")
        return values

    def references(self, measurements: Measurements, values: Floats) -> Sequence[ReferenceValues]:
        return (ReferenceValues("uniform", 1 / measurements.lengths, "the weight 1/n"),)

    def undefined_reasons(self, measurements: Measurements, undefined: Mask) -> Sequence[tuple[str, Mask]]:
        return (single_token(measurements),)

    def details(self, measurements: Measurements, values: Floats) -> dict[str, Detail]:
        return {"standard deviation": standard_deviation(values)}
'''


@pytest.fixture
def new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a new check into a folder that is searched like attnaudit/checks/builtin/, and remove it afterwards."""
    registry.checks.names()  # registers the built-in checks, which must remain
    monkeypatch.setattr(registry.checks, "_known", dict(registry.checks._known))
    monkeypatch.setattr(registry.checks, "_origin", dict(registry.checks._origin))
    monkeypatch.setattr(attnaudit.checks.builtin, "__path__", [*attnaudit.checks.builtin.__path__, str(tmp_path)])
    path = tmp_path / f"{MODULE}.py"
    path.write_text(SOURCE, encoding="utf-8")
    importlib.invalidate_caches()
    yield path
    sys.modules.pop(f"attnaudit.checks.builtin.{MODULE}", None)
    if hasattr(attnaudit.checks.builtin, MODULE):
        delattr(attnaudit.checks.builtin, MODULE)


@pytest.fixture(scope="module")
def measurements() -> Measurements:
    """Return measurements of the small model on 40 texts of 1 to 6 words."""
    instances = tuple(
        Instance(id=f"{i:02d}", text=" ".join(WORDS[(i * k) % 14] for k in range(1, 2 + i % 6))) for i in range(40)
    )
    data = Dataset(name="texts", source="synthetic", description="", instances=instances)
    return measure(adapter(), data, ["leave_one_out.inputs"], model="small", seed=0)[0]


def test_the_check_is_declared_judged_and_reported(new_file: Path, measurements: Measurements) -> None:
    check = checks.AttentionPeak(at_most=0.05)
    assert isinstance(check, PerInstanceCheck)
    assert "AttentionPeak" in dir(checks)
    record = check.judge(measurements)
    several = measurements.lengths > 1
    assert 0 < several.sum() < len(measurements)
    assert record.value == pytest.approx(measurements.scalar("attention.max")[several].mean())
    assert (record.n, record.n_defined) == (40, several.sum())
    assert record.undefined == {"a single token": (~several).sum()}
    assert record.references[0].value == pytest.approx((1 / measurements.lengths).mean())
    assert record.worst[0].value == measurements.scalar("attention.max")[several].max()
    assert record.details["standard deviation"] == pytest.approx(
        measurements.scalar("attention.max")[several].std(ddof=1)
    )
    assert (record.verdict, record.blocks) == ("fail", True)
    first, *lines = failure_message(record).splitlines()
    assert first.startswith(f"mean weight {record.value:.3f} [")
    assert any(line.startswith("uniform: ") for line in lines)


def test_a_policy_names_the_check_with_its_arguments(new_file: Path, measurements: Measurements) -> None:
    (check,) = from_tables([{"name": "AttentionPeak", "at_most": "uniform + 0.5", "scale": 0.5}], where="policy.toml")
    assert check == checks.AttentionPeak(at_most="uniform + 0.5", scale=0.5)
    assert to_table(check)["name"] == "AttentionPeak"
    record = check.judge(measurements)
    assert record.verdict == "pass"
    assert record.requirement is not None
    several = measurements.lengths > 1
    assert record.requirement.value == pytest.approx((1 / measurements.lengths[several]).mean() + 0.5)


def test_its_arguments_are_validated(new_file: Path) -> None:
    with pytest.raises(
        CheckError, match="AttentionPeak: with at_least, the check would pass in the very case it warns of"
    ):
        checks.AttentionPeak(at_least=0.5)
    with pytest.raises(CheckError, match=r"AttentionPeak: scale is 2; expected a number between 0.1 and 1"):
        checks.AttentionPeak(at_most=0.5, scale=2)
    with pytest.raises(CheckError, match=r"at_most is 1\.5; expected a number between 0 and 1"):
        checks.AttentionPeak(at_most=1.5)


def test_a_class_without_a_required_fact_cannot_be_declared(new_file: Path) -> None:
    new_file.write_text(SOURCE.replace('    unit = "weight"\n', ""), encoding="utf-8")
    with pytest.raises(TypeError, match=r"AttentionPeak.*abstract.*unit"):
        checks.AttentionPeak(at_most=0.5)


def test_an_unknown_name_suggests_the_nearest_one(new_file: Path) -> None:
    with pytest.raises(AttributeError, match=r"'attnaudit.checks' has no attribute 'AttentionPaek'. Did you mean 'Att"):
        checks.AttentionPaek  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'Agrement'. Did you mean 'Agreement'\?"):
        checks.Agrement  # noqa: B018


def test_the_file_is_gone_afterwards() -> None:
    assert "AttentionPeak" not in dir(checks)
    assert not hasattr(checks, "AttentionPeak")
    assert "Agreement" in dir(checks)


def test_listing_the_checks_imports_no_torch() -> None:
    code = "import sys; from attnaudit import checks; print('Agreement' in dir(checks), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_the_package_imports_no_single_check() -> None:
    tree = ast.parse(Path(attnaudit.checks.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {"Agreement", "Conicity"} <= set(registry.checks.names())
    assert imported & set(registry.checks.names()) == set()
