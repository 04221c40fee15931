"""Measures that return the wrong columns, or that use gradients without declaring it: each error names the measure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure as run_measures
from attnaudit.errors import AdapterError, CheckError
from attnaudit.measures import AttentionView, Columns, Request, StatefulMeasure, measure
from attnaudit.registry import measures
from tests.small_models import adapter, dataset
from tests.units.conformance.conformance_models import SmallTransformer


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the measures that a test declares."""
    measures.names()  # the built-in measures must be registered before the copy is made
    for attribute in ("_known", "_origin", "_decorated"):
        monkeypatch.setattr(measures, attribute, getattr(measures, attribute).copy())


def measured(*needs: str, model: Any = None) -> Measurements:
    return run_measures(model or adapter(), dataset(), needs, model="small", seed=0)[0]


def ones(view: AttentionView) -> Tensor:
    return torch.ones(len(view.instances), dtype=torch.float64)


@pytest.mark.parametrize("kind", ["scalars", "tokens", "vectors"])
@pytest.mark.parametrize("column", ["span", "attention_spanned", "other.span"])
def test_a_column_has_the_name_of_its_need(kind: str, column: str) -> None:
    @measure("attention_span")
    def attention_span(view: AttentionView, request: Request) -> Any:
        return Columns(**{kind: {column: ones(view)}})

    message = (
        rf"^measure 'attention_span' returned the column '{column}'; expected 'attention_span', or this name with a "
        rf"suffix, such as 'attention_span\.{column}'\. Write request\.name, or f\"\{{request\.name\}}\.{column}\"\.$"
    )
    with pytest.raises(CheckError, match=message):
        measured("attention_span")


def test_a_column_of_an_argument_has_it_in_its_name() -> None:
    @measure("span", argument=str)
    def span(view: AttentionView, request: Request) -> Columns:
        return Columns(scalars={"span": ones(view), f"{request.name}.long": ones(view)})

    with pytest.raises(CheckError, match=r"measure 'span\.90' returned the column 'span'; expected 'span\.90', or"):
        measured("span.90")


@pytest.mark.parametrize(
    ("returned", "found"),
    [(None, "None"), ({"scalars": {}}, "an object of type dict"), (torch.ones(3), "an object of type Tensor")],
    ids=["None", "dict", "tensor"],
)
def test_a_measure_returns_columns(returned: Any, found: str) -> None:
    @measure("nothing")
    def nothing(view: AttentionView, request: Request) -> Any:
        return returned

    @measure("stateful_nothing")
    class Nothing(StatefulMeasure):
        def compute(self, view: AttentionView, request: Request) -> Any:
            return returned

    for name in ("nothing", "stateful_nothing"):
        with pytest.raises(CheckError, match=rf"^measure '{name}' returned {found}; expected Columns\. Import Columns"):
            measured(name)


def total(view: AttentionView, how: str) -> Tensor:
    """Use gradients in one of several ways."""
    if how == "gradient":
        return view.gradient[0].sum((1, 2))
    if how == "detached":
        return view.gradient_attention_detached[0].sum((1, 2))
    if how == "influence":
        return view.influence(0).sum(1)
    if how == "embeddings":
        point = view.embeddings["text"].detach().clone().requires_grad_()
        odds = view.predicted_log_odds(view.logits_at_embeddings(point))
        return torch.autograd.grad(odds.sum(), point)[0].sum((1, 2))
    return torch.autograd.grad(view.hidden.sum(), view.embeddings["text"])[0].sum((1, 2))


USES = {
    "gradient": r"the prediction \(view\.gradient\)",
    "detached": r"the prediction \(view\.gradient_attention_detached\)",
    "influence": r"the hidden states \(view\.influence\)",
    "embeddings": "the model's output",
    "autograd": "the model's output",
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("how", USES)
def test_gradients_must_be_declared(how: str, declared: bool) -> None:
    @measure("slope", gradients=declared)
    def slope(view: AttentionView, request: Request) -> Columns:
        return Columns(scalars={request.name: total(view, how)})

    if declared:
        assert measured("slope").scalar("slope").any()
    else:
        message = rf"^measure 'slope' computes gradients of {USES[how]}; add gradients=True to @measure\.$"
        with pytest.raises(CheckError, match=message):
            measured("slope")


def test_gradients_must_be_declared_even_if_another_measure_declares_them() -> None:
    @measure("slope")
    def slope(view: AttentionView, request: Request) -> Columns:
        return Columns(scalars={request.name: total(view, "gradient")})

    with pytest.raises(CheckError, match=r"^measure 'slope' computes gradients .*; add gradients=True to @measure\.$"):
        measured("gradient.meister.inputs", "slope")


def test_logits_at_embeddings_need_no_gradients() -> None:
    @measure("same_logits")
    def same_logits(view: AttentionView, request: Request) -> Columns:
        assert not view.logits_at_embeddings(view.embeddings["text"]).requires_grad
        double = view.logits_at_embeddings(view.embeddings["text"].double())
        assert torch.equal(view.to_probabilities(view.logits), view.probabilities)
        return Columns(scalars={request.name: (double - view.logits).abs().amax(1)})

    for others in ((), ("gradient.meister.inputs",)):  # another measure may keep the graph
        assert measured("same_logits", *others).scalar("same_logits").max() < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x: x[:, :, :2],
            r"view\.logits_at_embeddings: the embeddings have shape \(\d, \d+, 2\); expected \(\d, ",
        ),
        (lambda x: x * 1e38, "logits are not finite .* at other embeddings"),
    ],
    ids=["shape", "not finite"],
)
def test_other_embeddings_have_the_same_shape_and_give_finite_logits(change: Any, message: str) -> None:
    @measure("changed")
    def changed(view: AttentionView, request: Request) -> Columns:
        return Columns(scalars={request.name: view.logits_at_embeddings(change(view.embeddings["text"]))[:, 0]})

    with pytest.raises((AdapterError, CheckError), match=message):
        measured("changed", model=SmallTransformer())


def test_the_decorator_of_a_measure_needs_a_name() -> None:
    with pytest.raises(CheckError, match=r'measure: found .*; expected a name\. Write @attnaudit.*measure\("name"\)\.'):

        @measure  # type: ignore[arg-type]
        def mine(view: AttentionView, request: Request) -> Columns: ...
