"""Declared measures: arguments, required columns, capabilities, and state, as the engine uses them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnaudit.adapters import Capabilities, PooledAttentionAdapter
from attnaudit.engine.declared_measures import MeasureDeclaration
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure as run_measures
from attnaudit.engine.planning import refusals, resolve
from attnaudit.errors import AdapterError, CheckError
from attnaudit.measures import AttentionView, Columns, Request, StatefulMeasure, measure, one_of
from attnaudit.registry import measures
from tests.small_models import adapter, dataset, parts
from tests.units.conformance.conformance_models import SmallTransformer

ENGINE = Path(__file__).parents[3] / "attnaudit" / "engine"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the measures that a test declares."""
    measures.names()  # the built-in measures must be registered before the copy is made
    monkeypatch.setattr(measures, "_known", dict(measures._known))
    monkeypatch.setattr(measures, "_origin", dict(measures._origin))


pytestmark = pytest.mark.usefixtures("registered")


class Unable(PooledAttentionAdapter):
    """An adapter that declares that it lacks some capabilities."""

    lacking: Sequence[str] = ("deletion", "differentiable", "mask")

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, **dict.fromkeys(self.lacking, False))


def unable() -> Unable:
    return Unable(**parts())  # type: ignore[arg-type]


def measured(model: Any, *needs: str, **options: Any) -> Measurements:
    return run_measures(model, dataset(), needs, model="small", seed=0, **options)[0]


def constant(view: AttentionView, request: Request) -> Columns:
    """Return 1 for every instance."""
    return Columns(scalars={request.name: torch.ones(len(view.instances))})


def test_a_function_computes_the_columns_of_each_batch() -> None:
    @measure("attention_times", argument=float, requires=["attention"])
    def attention_times(view: AttentionView, request: Request) -> Columns:
        return Columns(tokens={request.name: request.argument * request.required.tokens["attention"]})

    measurements = measured(adapter(), "attention_times.2.5", batch_tokens=10)
    for attention, scaled in zip(
        measurements.vector("attention"), measurements.vector("attention_times.2.5"), strict=True
    ):
        np.testing.assert_allclose(scaled, 2.5 * attention)


def test_required_measures_may_depend_on_the_argument() -> None:
    measure("doubled", argument=str, requires=lambda need: [need])(constant)
    names = [planned.name for planned in resolve(["doubled.entropy.gradient.meister.inputs"]).measures]
    assert names[-3:] == [
        "gradient.meister.inputs",
        "entropy.gradient.meister.inputs",
        "doubled.entropy.gradient.meister.inputs",
    ]


def test_a_measure_that_requires_itself_is_refused() -> None:
    measure("endless", requires=["endless"])(constant)
    with pytest.raises(CheckError, match="'endless' requires itself through endless"):
        resolve(["endless"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradients": True}, "some_measure needs gradients, but the adapter declares differentiable=False. Let gradi"),
        ({"capabilities": ["deletion"]}, r"needs token deletion, .* deletion=False. Implement delete\(\) and keep\(\)"),
        (
            {"capabilities": ["mask"]},
            r"needs token masking, .* mask=False. Implement substitute\(\), pass mask_id .* .* mask_token .*; or leave",
        ),
        ({"capabilities": ["retrains"]}, r"needs retraining, .* retrains=False. Implement retrain\(\); or leave"),
        ({"capabilities": lambda _: ["replays"]}, "needs the capability 'replays', .* replays=False. Implement it"),
    ],
)
def test_a_measure_is_refused_if_the_adapter_lacks_a_capability(options: dict[str, Any], message: str) -> None:
    measure("some_measure", **options)(constant)
    with pytest.raises(AdapterError, match=message):
        measured(unable(), "some_measure")
    assert set(refusals(unable(), ["some_measure", "uniform"])) == {"some_measure"}


def test_an_optional_capability_is_reported_to_the_measure() -> None:
    seen: list[frozenset[str]] = []

    @measure("some_measure", optional_capabilities=["mask", "query", "decodes"])
    def some_measure(view: AttentionView, request: Request) -> Columns:
        seen.append(request.lacking)
        return constant(view, request)

    measured(unable(), "some_measure")
    assert set(seen) == {frozenset({"mask", "query"})}
    assert refusals(unable(), ["some_measure"]) == {}


def test_an_unknown_capability_is_named() -> None:
    measure("some_measure", capabilities=["deletoin"])(constant)
    with pytest.raises(CheckError, match=r"unknown capability 'deletoin'\. Did you mean 'deletion'"):
        resolve(["some_measure"])


def test_a_measure_that_does_not_depend_on_the_reading_runs_once_for_all() -> None:
    calls = {"some_measure": 0, "other_measure": 0}

    def counted(view: AttentionView, request: Request) -> Columns:
        calls[request.name] += 1
        return constant(view, request)

    measure("some_measure", depends_on_reading=False)(counted)
    measure("other_measure")(counted)
    readings = ("cls@layer=0", "cls@layer=0,heads=1")
    needs = [f"{name}/{reading}" for name in calls for reading in readings]
    measurements = measured(SmallTransformer(), *needs)
    assert calls == {"some_measure": 1, "other_measure": 2}
    assert "some_measure" in measurements.shared
    assert "some_measure" in measurements.under("cls@layer=0,heads=mean").scalars


def test_a_stateful_measure_has_one_object_per_audit_and_finishes_it() -> None:
    @measure("positions", argument=one_of("all", "even"))
    class Positions(StatefulMeasure):
        def __init__(self, name: str, argument: str, lengths: Sequence[int]) -> None:
            super().__init__(name, argument, lengths)
            self.batches: list[int] = []

        def compute(self, view: AttentionView, request: Request) -> Columns:
            self.batches += view.positions
            return Columns()

        def finish(self, measurements: Measurements) -> None:
            step = 2 if self.argument == "even" else 1
            measurements.tables[f"{self.name}.seen"] = np.array(sorted(self.batches))[::step]
            measurements.tables[f"{self.name}.lengths"] = np.array(self.lengths)

    for _audit in range(2):
        measurements = measured(adapter(), "positions.even", batch_tokens=10)
        assert measurements.table("positions.even.seen").tolist() == list(range(0, len(measurements), 2))
        np.testing.assert_array_equal(measurements.table("positions.even.lengths"), measurements.lengths)


def test_a_function_keeps_its_name_and_docstring() -> None:
    declaration = measure("some_measure")(constant)
    assert isinstance(declaration, MeasureDeclaration)
    assert (declaration.__name__, declaration.__doc__) == ("constant", constant.__doc__)


def test_a_name_that_another_measure_has_is_refused() -> None:
    with pytest.raises(Exception, match="measure 'uniform' is registered twice"):
        measure("uniform")(constant)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "expected .inputs or .hidden, but got ''"), ("inptus", "but got '.inptus'. Did you mean 'inputs'")],
)
def test_an_argument_outside_the_choices_is_named(text: str, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        one_of("inputs", "hidden")(text)


def test_the_engine_never_compares_the_name_of_a_measure() -> None:
    for path in sorted(ENGINE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                names = any(isinstance(side, ast.Attribute) and side.attr == "name" for side in sides)
                texts = any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)
                assert not (names and texts), f"{path.name}:{node.lineno}"
