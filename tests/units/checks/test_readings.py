"""Checks with a reading, and sweeps over layers and heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from attnaudit import checks
from attnaudit.checks import load_policy
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import CheckError
from attnaudit.instances import Dataset
from attnaudit.readings import Reading, named, parse, split
from attnaudit.verdict_text import failure_message
from tests.units.conformance.conformance_models import PLAIN, SmallTransformer


def measured(
    *declared: checks.Check, model: SmallTransformer | None = None, labels: Sequence[int] | None = None
) -> Measurements:
    rows = Dataset(name="films", source="synthetic", description="", instances=tuple(PLAIN))
    needs = sorted({need for check in declared for need in check.needs_under_reading()})
    return measure(model or SmallTransformer(), rows, needs, model="small", seed=0, labels=labels)[0]


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("cls", Reading()),
        ("last@layer=3,heads=mean", Reading(query="last", layer=3)),
        ("mean@heads=2", Reading(query="mean", heads=2)),
        ("rollout", Reading(kind="rollout")),
        ("norms@query=last,layer=0,heads=*", Reading(kind="norms", query="last", layer=0, heads="*")),
        ("cls@layer=*,stack=cross", Reading(layer="*", stack="cross")),
    ],
)
def test_a_reading_is_parsed_from_its_text(text: str, reading: Reading) -> None:
    assert parse(text) == reading
    assert parse(reading.text) == reading


def test_a_name_contains_its_reading() -> None:
    assert split(named("uniform.tvd", "cls@layer=0,heads=1")) == ("uniform.tvd", "cls@layer=0,heads=1")
    assert named("uniform.tvd", "") == "uniform.tvd"


def test_the_id_and_the_needs_name_the_reading() -> None:
    check = checks.UniformFragility(severity="report", reading="cls@heads=1")
    assert check.id == "uniform_fragility.tvd/cls@layer=-1,heads=1"
    assert check.needs_under_reading() == ("uniform/cls@layer=-1,heads=1",)
    assert checks.UniformFragility(severity="report").needs_under_reading() == ("uniform",)


@pytest.mark.parametrize(
    ("where", "replacement", "name"),
    [
        ("layer", None, "permutation_fragility.tvd.layer"),
        ("everywhere", None, "permutation_fragility.tvd.everywhere.live"),
        ("everywhere", "frozen", "permutation_fragility.tvd.everywhere.frozen"),
    ],
)
def test_fragility_of_one_layer_and_of_all(where: str, replacement: str | None, name: str) -> None:
    check = checks.PermutationFragility(severity="report", where=where, replacement=replacement)  # type: ignore[arg-type]
    assert check.id == name
    record = check.judge(measured(check))
    assert record.value is not None


def test_replacement_belongs_to_all_layers() -> None:
    with pytest.raises(CheckError, match="applies only to where='everywhere'"):
        checks.UniformFragility(severity="report", replacement="frozen")


def test_a_sweep_cannot_gate() -> None:
    with pytest.raises(CheckError, match="stands for several readings, so the check cannot be a gate"):
        checks.UniformFragility(at_least=0.1, reading="cls@layer=*")


def test_an_invalid_reading_names_the_check() -> None:
    with pytest.raises(CheckError, match=r"Agreement: reading 'clss'.*Did you mean 'cls'"):
        checks.Agreement(at_least=0.1, reading="clss")


def test_a_policy_can_name_a_reading_for_all_its_checks(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[policy]\nreading = "cls@layer=0"\n[[check]]\nname = "UniformFragility"\nat_least = 0.1\n'
        '[[check]]\nname = "UniformFragility"\nreading = "cls@layer=1"\nat_least = 0.1\n',
        encoding="utf-8",
    )
    assert [check.reading for check in load_policy(path)] == ["cls@layer=0,heads=mean", "cls@layer=1,heads=mean"]


def test_a_check_with_a_reading_is_judged_on_the_columns_of_that_reading() -> None:
    first, own = (checks.UniformFragility(severity="report", reading=r) for r in ("cls@layer=0,heads=1", None))
    measurements = measured(first, own)
    record, other = first.judge(measurements), own.judge(measurements)
    assert record.value == pytest.approx(
        np.nanmean(measurements.scalars["uniform.tvd/cls@layer=0,heads=1"][measurements.lengths > 1])
    )
    assert other.value == pytest.approx(np.nanmean(measurements.scalars["uniform.tvd"][measurements.lengths > 1]))
    assert record.value != other.value
    assert (record.reading, other.reading) == ("cls@layer=0,heads=1", "")
    assert record.token_columns[0] == "attention/cls@layer=0,heads=1"


def test_naming_the_models_own_reading_measures_nothing_twice() -> None:
    with_name = checks.UniformFragility(severity="report", reading="cls@layer=-1")
    measurements = measured(with_name, checks.UniformFragility(severity="report"))
    assert [name for name in measurements.scalars if name.startswith("uniform.tvd")] == ["uniform.tvd"]
    assert with_name.judge(measurements).value == pytest.approx(
        np.nanmean(measurements.scalars["uniform.tvd"][measurements.lengths > 1])
    )


def test_a_sweep_has_the_value_of_each_head_and_their_mean() -> None:
    sweep = checks.UniformFragility(severity="report", reading="cls@layer=*,heads=*")
    single = checks.UniformFragility(severity="report", reading="cls@layer=1,heads=0")
    measurements = measured(sweep, single)
    record = sweep.judge(measurements)
    assert record.matrix is not None
    assert (record.matrix.rows, record.matrix.columns) == (["0", "1"], ["0", "1"])
    assert record.matrix.values[1][0] == pytest.approx(single.judge(measurements).value)
    cells = [value for row in record.matrix.values for value in row if value is not None]
    assert record.value == pytest.approx(np.mean(cells))
    assert record.interval is not None
    assert record.interval.low <= record.value <= record.interval.high
    assert record.details["highest"] == pytest.approx(max(cells))


def test_a_sweep_has_the_notes_and_the_upper_bounds_of_its_readings() -> None:
    sweep = checks.AdversarialDivergence(at_most=0.6, severity="report", reading="cls@layer=*")
    measurements = measured(sweep)
    for name in [column for column in measurements.scalars if column.startswith("adversarial") and ".upper" in column]:
        measurements.scalars[name] = measurements.scalars[name.replace(".upper", ".jsd")] + 0.1
    measurements.facts["adversarial.method"] = "searched"
    assert "a pass is not certified" in sweep.judge(measurements).note
    measurements.facts["adversarial.method"] = "bracketed"
    record = sweep.judge(measurements)
    assert record.interval is not None
    assert record.value is not None
    assert record.interval.method.endswith("from the lower to the upper bound of the values")
    assert record.interval.high - record.value > 0.1


@pytest.mark.parametrize(
    "sweep",
    [
        checks.PermutationFragility(measure="f1_drop", severity="report", reading="cls@layer=*,heads=*"),
        checks.Comprehensiveness(against="signed_loo", severity="report", reading="cls@layer=*,heads=*"),
    ],
    ids=lambda sweep: sweep.subject,
)
def test_a_sweep_of_a_statistic_of_the_data_set_is_the_mean_of_its_cells_without_interval(sweep: checks.Check) -> None:
    record = sweep.judge(measured(sweep, labels=[0, 1, 0, 0, 1, 1, 0, 1, 0]))
    assert record.matrix is not None
    cells = [value for row in record.matrix.values for value in row if value is not None]
    assert len(cells) >= 2
    assert record.value == pytest.approx(np.mean(cells))
    assert record.interval is None
    assert "the value is the mean over the readings" in failure_message(record)


def test_a_missing_operator_is_no_disagreement_under_a_reading_either() -> None:
    check = checks.Comprehensiveness(at_least=0.05, reading="cls@layer=0")
    record = check.judge(measured(check, model=SmallTransformer(mask=False)))
    assert "only deletion was used" in record.note
    assert "depends on the erasure operator" not in failure_message(record)


def test_the_threshold_of_a_sweep_cannot_be_relative() -> None:
    with pytest.raises(CheckError, match="stands for several readings, each with its own references"):
        checks.Agreement(at_least="floor + 0.2", severity="report", reading="cls@layer=*")


def test_an_empty_replacement_is_refused() -> None:
    with pytest.raises(CheckError, match="unknown replacement ''"):
        checks.UniformFragility(severity="report", where="everywhere", replacement="")  # type: ignore[arg-type]
