"""Labels and scores of models with pooled attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.model_configuration import configuration_text
from attnaudit.conformance import quick
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance
from attnaudit.model_families import covers
from attnaudit.targets import Target
from tests.pooled_models import CLASSES, MODELS
from tests.small_models import TEXT, parts

LABEL = Target(kind="label", name="neutral")
SCORE = Target(kind="score", name="neutral", threshold=0.2, scale=0.5)
TEXTS = [Instance(id=str(n), text=text) for n, text in enumerate((TEXT, "a dull film", "not bad", "very good story"))]


def adapter_of(target: Target, **changes: Any) -> PooledAttentionAdapter:
    return PooledAttentionAdapter(**{**parts(3), **changes}, target=target)  # type: ignore[arg-type]


def logits_of(adapter: PooledAttentionAdapter) -> torch.Tensor:
    with torch.no_grad():
        return adapter.run(adapter.collate(TEXTS)).logits


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("target", [LABEL, SCORE])
def test_the_logit_is_that_of_the_named_output(target: Target, linear: bool) -> None:
    made = parts(3)
    if not linear:
        made["decoder"] = nn.Sequential(nn.Linear(10, 3), nn.Tanh())
        made["modules"] = tuple(made[name] for name in ("embedding", "encoder", "attention", "decoder"))
    whole = logits_of(PooledAttentionAdapter(**made))  # type: ignore[arg-type]
    adapter = PooledAttentionAdapter(**made, target=target)  # type: ignore[arg-type]
    expected = whole[:, 1:2] if target is LABEL else (whole[:, 1:2] - 0.2) / 0.5
    torch.testing.assert_close(logits_of(adapter), expected)
    assert adapter.capabilities.linear_decoder == linear
    assert adapter.capabilities.decides
    assert not [result for result in quick(adapter, TEXTS) if result.outcome == "fail"]


def test_the_linear_decoder_follows_the_parameters_of_the_model() -> None:
    decoder = nn.Linear(10, 3)
    adapter = adapter_of(LABEL, decoder=decoder)
    nn.init.zeros_(decoder.weight)
    nn.init.constant_(decoder.bias, 2.0)
    torch.testing.assert_close(logits_of(adapter), torch.full((len(TEXTS), 1), 2.0))
    weight, bias = adapter.decoder_weights()
    assert (tuple(weight.shape), tuple(bias.shape)) == ((1, 10), (1,))


def test_what_is_explained_is_in_the_hash_and_the_family() -> None:
    texts = {configuration_text(adapter_of(target)) for target in (LABEL, SCORE, Target())}
    assert len(texts) == 3
    assert adapter_of(LABEL).family == "pooled attention, multi-label"
    assert adapter_of(SCORE, family="pooled attention, bilstm encoder").family.endswith("bilstm encoder, score")
    assert adapter_of(Target()).family == ""


def test_a_score_without_a_threshold_stands_for_no_decision() -> None:
    adapter = adapter_of(Target(kind="score", name="neutral", scale=1.0))
    assert not adapter.capabilities.decides
    assert adapter.capabilities.classes == ("lower score", "higher score")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target(kind="label", name="neutrl"), "no output 'neutrl'.*Did you mean 'neutral'"),
        (Target(kind="string"), "no target of kind 'string'.*docs/targets.md"),
        (Target(kind="score", scale=1.0), "has no output ''"),
    ],
)
def test_targets_that_do_not_fit(target: Target, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        adapter_of(target)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", [LABEL, SCORE])
def test_every_adapter_of_pooled_attention_takes_a_label_or_a_score(name: str, target: Target) -> None:
    make, instances = MODELS[name]
    rows = [replace(one, label=None) for one in instances]
    changes = {"reading": "own@heads=1"} if name == "branches" else {}  # the head of the label, not of a class
    adapter: Any = make(target=target, **changes)
    whole: Any = make()
    with torch.no_grad():
        logit, logits = (one.run(one.collate(rows)).logits for one in (adapter, whole))
    number = CLASSES.index(target.name)
    expected = logits[:, number : number + 1]
    torch.testing.assert_close(logit, expected if target is LABEL else (expected - 0.2) / 0.5)
    assert adapter.capabilities.classes == target.classes
    assert adapter.capabilities.labels == (CLASSES if target is LABEL else ())
    assert adapter.family.endswith(target.family)
    assert not covers([whole.family or "pooled attention"], adapter.family)
    outcomes = quick(adapter, rows)
    assert not [one for one in outcomes if one.outcome == "fail"]


@pytest.mark.parametrize("name", MODELS)
def test_every_adapter_of_pooled_attention_names_an_unknown_label(name: str) -> None:
    make: Any = MODELS[name][0]
    with pytest.raises(AdapterError, match=r"no output 'neutrl'.*Did you mean 'neutral'"):
        make(target=Target(kind="label", name="neutrl"))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_score_that_is_no_number_is_refused(number: float) -> None:
    decoder = nn.Linear(10, 3)
    nn.init.constant_(decoder.bias, number)
    with pytest.raises(AdapterError, match=r"shapes: the logits contain (nan|inf) for .*Look for a division by zero"):
        quick(adapter_of(SCORE, decoder=decoder), TEXTS)
