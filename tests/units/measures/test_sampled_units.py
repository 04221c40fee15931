"""Leave-one-out for a sample of the units: the sample, the numbers, and the check that uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnaudit import checks
from attnaudit.adapters import BagAdapter
from attnaudit.checks.policies.policy import load_policy
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import CheckError
from attnaudit.input_files import UnitArray
from attnaudit.instances import Dataset, Instance
from attnaudit.metrics.sampled_kendall import sampled_tau_b
from attnaudit.statistics.groups import Groups
from attnaudit.statistics.intervals import mean_interval

FEATURES = 6
NEEDS = ("agreement.leave_one_out.inputs", "agreement.leave_one_out.hidden", "agreement.gradient.meister.inputs")


def bags(rows: int = 36, least: int = 20, most: int = 90) -> Dataset:
    return Dataset(
        name="bags",
        source="drawn",
        description="",
        instances=tuple(
            Instance(id=f"{i:03}", text=f"bag {i} {least + i * 7 % (most - least)}", label="ab"[i % 2])
            for i in range(rows)
        ),
        classes=("a", "b"),
    )


def read(instance: Instance) -> UnitArray:
    _, number, units = instance.text.split()
    generator = torch.Generator().manual_seed(int(number))
    return UnitArray(features=torch.randn(int(units), FEATURES, generator=generator))


def adapter(*, sharpness: float = 2.0, **changes: Any) -> BagAdapter:
    generator = torch.Generator().manual_seed(5)
    decoder = nn.Linear(FEATURES, 2)
    with torch.no_grad():
        decoder.weight.copy_(torch.randn(2, FEATURES, generator=generator))
        decoder.bias.zero_()
    direction = torch.randn(FEATURES, generator=generator)

    def attend(states: Tensor, allowed: Tensor) -> Tensor:
        return (sharpness * (states @ direction)).masked_fill(~allowed, -torch.inf).softmax(-1)

    given: dict[str, Any] = {
        "encoder": lambda vectors, mask: vectors, "attention": attend, "decoder": decoder, "classes": ("a", "b"),
        "features": FEATURES, "read": read, "modules": (decoder,),
    }  # fmt: skip
    return BagAdapter(**given | changes)


def measured(data: Dataset, *needs: str, model: BagAdapter | None = None, **options: Any) -> Measurements:
    return measure(model or adapter(), data, needs, model="m", seed=3, **options)[0]


@pytest.mark.parametrize("independent", [True, False])
def test_a_sample_of_all_units_gives_the_same_bytes(independent: bool) -> None:
    data, model = bags(8, 20, 40), adapter(independent=independent)
    every, sampled = (
        measured(data, *(f"{need}{ending}" for need in NEEDS), model=model) for ending in ("", ".sampled.40")
    )
    for need in NEEDS:
        for column in ("tau", "floor", "gradient_loo", "near_ties"):
            np.testing.assert_array_equal(
                sampled.scalar(f"{need}.sampled.40.{column}"), every.scalar(f"{need}.{column}"), err_msg=column
            )
        assert not sampled.scalar(f"{need}.sampled.40.sampling_variance").any()
        assert not sampled.scalar(f"{need}.sampled.40.unresolved").any()
    for column in ("leave_one_out.inputs", "leave_one_out.hidden"):
        for one, other in zip(sampled.vector(f"{column}.sampled.40"), every.vector(column), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("place", ["inputs", "hidden"])
def test_the_sampled_units_have_the_numbers_of_a_complete_measurement(place: str) -> None:
    need = f"leave_one_out.{place}"
    data = measured(bags(8), need, f"{need}.sampled.32", f"agreement.{need}.sampled.32")
    for i, units in enumerate(data.lengths):
        every, some = data.vector(f"{need}.change")[i], data.vector(f"{need}.sampled.32.change")[i]
        drawn = ~np.isnan(some)
        assert drawn.sum() == min(units, 32)
        np.testing.assert_allclose(some[drawn], every[drawn], atol=1e-6)
        shares = data.vector(f"{need}.sampled.32")[i]
        assert np.nansum(shares) == pytest.approx(drawn.sum() / units)
        if units > 32:
            attention = torch.from_numpy(data.vector("attention")[i][drawn])
            estimate = sampled_tau_b(attention, torch.from_numpy(some[drawn]), int(units))
            assert data.scalar(f"agreement.{need}.sampled.32.tau")[i] == pytest.approx(estimate.tau, abs=1e-12)
            found = data.scalar(f"agreement.{need}.sampled.32.sampling_variance")[i]
            assert found == pytest.approx(estimate.variance, abs=1e-12)


def test_the_sample_depends_only_on_the_seed_the_row_and_the_number_of_units() -> None:
    data = bags(8, 60, 90)
    backwards = Dataset(
        name="bags", source="drawn", description="", instances=data.instances[::-1], classes=data.classes
    )
    column = "leave_one_out.inputs.sampled.32"
    one = measured(data, column)
    others = [measured(data, column, batch_tokens=1), measured(backwards, column)]
    for other in others:
        for i in range(len(data.instances)):
            assert (np.isnan(one.vector(column)[i]) == np.isnan(other.vector(column)[i])).all()
            np.testing.assert_allclose(one.vector(column)[i], other.vector(column)[i], atol=1e-5)
    more = measured(data, "leave_one_out.inputs.sampled.50")
    for small, large in zip(one.vector(column), more.vector("leave_one_out.inputs.sampled.50"), strict=True):
        assert not np.isnan(large[~np.isnan(small)]).any()
    patterns = {np.isnan(one.vector(column)[i][:60]).tobytes() for i in range(len(data.instances))}
    assert len(patterns) == len(data.instances)
    reseeded = measure(adapter(), data, (column,), model="m", seed=4)[0]
    assert (np.isnan(one.vector(column)[0]) != np.isnan(reseeded.vector(column)[0])).any()


def test_the_record_states_how_many_units_were_measured() -> None:
    check = checks.Agreement(importance="leave_one_out", sampled_units=32, at_least=0.1)
    data = measured(bags(), *check.needs())
    record = check.judge(data)
    assert record.check == "agreement.leave_one_out.inputs.sampled.32"
    assert record.parameters["sampled_units"] == 32
    assert record.verdict == "pass"
    words = "32 of 34 to 83 units (all units of 8 rows)"
    assert record.details["units for which leave-one-out was measured, per row"] == words
    assert f"leave-one-out was measured for {words} per row; the interval includes the sampling" in record.note
    error = record.details["standard error that is due to the sample of the units"]
    assert isinstance(error, float)
    assert 0 < error < record.interval.high - record.interval.low  # type: ignore[union-attr]
    complete = checks.Agreement(importance="leave_one_out", at_least=0.1)
    exhaustive = complete.judge(measured(bags(), *complete.needs()))
    assert "sampled_units" not in complete.parameters
    assert record.interval.low <= exhaustive.value <= record.interval.high  # type: ignore[union-attr,operator]


def test_gradients_are_measured_for_all_units() -> None:
    check = checks.Agreement(sampled_units=32, at_least="gradient_loo - 0.5")
    complete = checks.Agreement(at_least="gradient_loo - 0.5")
    data = measured(bags(), *check.needs(), *complete.needs())
    record, other = check.judge(data), complete.judge(data)
    assert (record.value, record.interval) != (None, None)
    np.testing.assert_array_equal(check.values(data), complete.values(data))
    assert "the reference 'gradient_loo' uses, was measured for 32 of" in record.note
    assert record.references[1].value == pytest.approx(other.references[1].value, abs=0.1)


def test_a_sample_that_misses_the_influential_units_makes_the_check_undefined() -> None:
    """With sharp attention, most units have no effect beyond rounding errors. A sample contains only a few others."""
    check = checks.Agreement(importance="leave_one_out", sampled_units=32, at_least=-0.9)
    data = measured(bags(), *check.needs(), model=adapter(sharpness=60.0))
    record = check.judge(data)
    assert record.verdict == "undefined"
    assert record.value is None
    assert record.blocks
    assert any("set sampled_units higher" in reason for reason in record.undefined)
    complete = checks.Agreement(importance="leave_one_out", at_least=-0.9)
    defined = complete.judge(measured(bags(), *complete.needs(), model=adapter(sharpness=60.0)))
    assert defined.verdict == "pass"


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("Pointing", "depend on its largest effects, which a sample of the units may not contain"),
        ("InfluenceEntropy", "the entropy depends on the share of every unit"),
        ("NormalisedAOPC", "cannot be estimated without bias from a sample of the units"),
    ],
)
def test_other_checks_refuse_a_sample(check: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=f"{check}: sampled_units is not supported, because .*{reason}"):
        getattr(checks, check)(sampled_units=512, severity="report")
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[check]]\nname = "{check}"\nsampled_units = 512\nseverity = "report"\n')
    with pytest.raises(CheckError, match=rf"\(?{check}.*sampled_units is not supported"):
        load_policy(policy)


@pytest.mark.parametrize("size", [-1, 1, 31, 4097, 64.0, True])
def test_sizes_outside_the_limits(size: Any) -> None:
    with pytest.raises(CheckError, match=r"sampled_units is .*; expected a whole number from"):
        checks.Agreement(importance="leave_one_out", sampled_units=size, at_least=0.1)


@pytest.mark.parametrize("need", ["leave_one_out.inputs.sampled.5", "agreement.leave_one_out.inputs.sampled.x"])
def test_needs_with_invalid_sizes(need: str) -> None:
    with pytest.raises(CheckError, match=r"expected .sampled.N with a whole number N of units from 32 to 4,096"):
        measured(bags(4), need)


def test_intervals_include_both_stages_of_sampling() -> None:
    """Rows are drawn from a population, and units from the rows. The spread between the rows alone is too small."""
    random = np.random.default_rng(0)
    population, units, rows, size, repeats = 200, 300, 40, 64, 40
    x, noise = (torch.from_numpy(random.normal(size=(population, units))) for _ in range(2))
    y = (x + noise).clamp_min(0)  # half of the values are tied
    exact = np.array([sampled_tau_b(a, b, units).tau for a, b in zip(x, y, strict=True)])
    names = [str(number) for number in range(rows)]
    groups = Groups.of(names, names, np.ones(rows, dtype=bool))
    covered = covered_without = 0
    for repeat in range(repeats):
        chosen = random.integers(population, size=rows)
        samples = [torch.from_numpy(random.permutation(units)[:size]) for _ in chosen]
        estimates = np.array([sampled_tau_b(x[i, s], y[i, s], units).tau for i, s in zip(chosen, samples, strict=True)])
        interval = mean_interval(
            estimates, groups, confidence=0.95, generator=np.random.default_rng(repeat), bounds=(-1.0, 1.0)
        )
        assert interval is not None
        covered += int(interval.low <= exact.mean() <= interval.high)
        error = exact[chosen].std(ddof=1) / np.sqrt(rows)
        covered_without += int(abs(estimates.mean() - exact.mean()) <= 1.96 * error)
    assert covered >= 0.87 * repeats
    assert covered_without < 0.8 * repeats
