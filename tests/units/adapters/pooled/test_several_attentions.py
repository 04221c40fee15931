"""Pooled attention with several heads, branches, hops, levels or directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnaudit.adapters.protocol import TEXT, ModelAdapter
from attnaudit.conformance import full, quick
from attnaudit.engine.batches.scopes import expanded, own_reading
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, DataError
from attnaudit.instances import Dataset, Instance
from attnaudit.model_families import covers
from attnaudit.targets import Target
from tests.pooled_models import (
    ALONE,
    MODELS,
    Parts,
    memory_network,
    one_branch_per_class,
    pair,
    sentences,
    several_heads,
    softmax,
    tokenize,
    two_levels,
)
from tests.slow_cases import slow_except

NEEDS = ("permutation_total.own", "pointing.held", "leave_one_out.inputs", "gradient.published.inputs")


def measured(adapter: ModelAdapter, instances: list[Any], needs: tuple[str, ...], **options: Any) -> Measurements:
    dataset = Dataset(name="d", source="s", description="", instances=tuple(instances))
    return measure(adapter, dataset, needs, model="m", seed=0, **options)[0]


@pytest.mark.parametrize("name", MODELS)
def test_conformance(name: str) -> None:
    make, instances = MODELS[name]
    outcomes = full(make(), instances)
    assert not [one for one in outcomes if one.outcome == "fail"]
    assert sum(one.outcome == "pass" for one in outcomes) >= 18


@pytest.mark.parametrize(
    "name",
    slow_except(MODELS, lambda name: name not in ("branches", "levels", "hops")),
)
def test_results_do_not_depend_on_the_batch(name: str) -> None:
    make, instances = MODELS[name]
    needs = ("uniform", "leave_one_out.inputs", "leave_one_out.hidden", "pointing.held", "adversarial.0.05")
    needs = needs[:-1] if name.startswith("pair") else needs  # the mean over queries cannot be searched
    together = measured(make(), instances, needs)
    alone = measured(make(), instances[::-1], needs, batch_tokens=1)
    assert set(together.scalars) == set(alone.scalars)
    for column, values in together.scalars.items():
        if not column.startswith("adversarial"):
            np.testing.assert_allclose(values, alone.scalars[column], atol=2e-5, err_msg=column)
    for column in ("attention", "leave_one_out.inputs.change", "leave_one_out.hidden.change"):
        for one, other in zip(together.vector(column), alone.vector(column), strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5, err_msg=column)


def test_several_heads_against_plain_pytorch() -> None:
    adapter, model = several_heads(), Parts(heads=3)
    data = measured(adapter, ALONE, ("leave_one_out.inputs", "leave_one_out.hidden", "uniform"))
    for i, instance in enumerate(ALONE):
        ids = torch.tensor([tokenize(instance.text).ids])

        def logits(ids: torch.Tensor, weights: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
            states = model.gru(model.embedding(ids))[0]
            own = softmax(4 * model.score(states).transpose(1, 2), torch.ones_like(ids, dtype=torch.bool)[:, None])
            own = own if weights is None else weights
            return model.decoder((own @ states).flatten(1))[0].double().softmax(-1), own[0]

        with torch.no_grad():
            clean, weights = logits(ids)
            np.testing.assert_allclose(data.vector("attention")[i], weights.mean(0).double(), atol=1e-6)
            if len(ids[0]) < 2:
                continue
            without = [logits(torch.cat([ids[:, :t], ids[:, t + 1 :]], 1))[0] for t in range(len(ids[0]))]
            change = [0.5 * (one - clean).abs().sum().item() for one in without]
            np.testing.assert_allclose(data.vector("leave_one_out.inputs.change")[i], change, atol=1e-5)
            hidden = []
            for t in range(len(ids[0])):
                left = weights.clone()[None]
                left[:, :, t] = 0
                hidden.append(logits(ids, left / left.sum(-1, keepdim=True))[0])
            change = [0.5 * (one - clean).abs().sum().item() for one in hidden]
            np.testing.assert_allclose(data.vector("leave_one_out.hidden.change")[i], change, atol=1e-5)


def test_the_branch_of_the_predicted_class_is_read_and_replaced() -> None:
    adapter, model = one_branch_per_class(), Parts(heads=3)
    needs = ("leave_one_out.hidden", "uniform", "leave_one_out.hidden/own@heads=mean")
    data = measured(adapter, ALONE, needs)
    predicted = set()
    for i, instance in enumerate(ALONE):
        with torch.no_grad():
            states = model.gru(model.embedding(torch.tensor([tokenize(instance.text).ids])))[0][0]
            weights = (4 * model.score(states)).T.softmax(-1)

            def probabilities(weights: torch.Tensor, states: torch.Tensor = states) -> torch.Tensor:
                outputs = [branch(weights[c] @ states) for c, branch in enumerate(model.branches)]
                return torch.cat(outputs).double().softmax(-1)

            clean = probabilities(weights)
            branch = int(clean.argmax())
            predicted.add(branch)
            assert data.predicted[i] == branch
            np.testing.assert_allclose(data.vector("attention")[i], weights[branch].double(), atol=1e-6)
            if len(states) < 2:
                continue
            for t in range(len(states)):
                left = weights.clone()
                left[branch, t] = 0
                left[branch] /= left[branch].sum()
                change = 0.5 * (probabilities(left) - clean).abs().sum()
                assert abs(data.vector("leave_one_out.hidden.change")[i][t] - change) < 1e-5
    assert len(predicted) > 1


def test_every_reading_of_heads_and_sites() -> None:
    data = measured(several_heads(), ALONE, ("uniform/own@heads=*",))
    assert len(data.readings["own@heads=*"]) == 3
    sites = memory_network()
    assert [one.text for one in expanded(sites, "own@layer=*,heads=mean")] == [
        "own@layer=0,heads=mean",
        "own@layer=1,heads=mean",
    ]
    own = own_reading(sites)
    assert own is not None
    assert own.text == "own@layer=0,heads=mean"
    both = measured(sites, ALONE, ("uniform", "uniform/own@site=hop 2"))
    assert not np.allclose(
        both.scalar("uniform.tvd"), both.under(*both.readings["own@site=hop 2"]).scalar("uniform.tvd")
    )


def test_two_levels_against_plain_pytorch() -> None:
    adapter, model = two_levels(), Parts()
    data = measured(adapter, ALONE, ("leave_one_out.inputs", "uniform"))

    def forward(parts: list[list[int]], uniform: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        vectors, within = [], []
        for ids in parts:
            states = model.gru(model.embedding(torch.tensor([ids])))[0][0]
            weights = (4 * model.score(states)[:, 0]).softmax(-1)
            weights = torch.full_like(weights, 1 / len(ids)) if uniform else weights
            vectors.append(weights @ states)
            within.append(weights)
        states = model.upper(torch.stack(vectors)[None])[0][0]
        weights = (4 * model.upper_score(states)[:, 0]).softmax(-1)
        if uniform:
            weights = torch.tensor([len(ids) / uniform for ids in parts])
        product = torch.cat([w * own for w, own in zip(weights, within, strict=True)])
        return model.decoder(weights @ states).double().softmax(-1), product

    for i, instance in enumerate(ALONE):
        parts = [list(one.ids) for one in sentences(instance.text)]
        count = sum(map(len, parts))
        with torch.no_grad():
            clean, product = forward(parts)
            np.testing.assert_allclose(data.vector("attention")[i], product.double(), atol=1e-6)
            np.testing.assert_allclose(data.vector("logits")[i].argmax(), clean.argmax())
            if count < 2:
                continue
            changes = []
            for s, ids in enumerate(parts):
                for w in range(len(ids)):
                    left = [*parts[:s], ids[:w] + ids[w + 1 :], *parts[s + 1 :]]
                    changes.append(0.5 * (forward([one for one in left if one])[0] - clean).abs().sum().item())
            np.testing.assert_allclose(data.vector("leave_one_out.inputs.change")[i], changes, atol=1e-5)
            tvd = 0.5 * (forward(parts, uniform=count)[0] - clean).abs().sum().item()
            assert abs(data.scalar("uniform.tvd")[i] - tvd) < 1e-5


def test_a_sentence_without_weight_keeps_the_weights_of_its_words() -> None:
    adapter = two_levels()
    inputs = adapter.collate(ALONE[4:5])
    only_first = torch.zeros_like(inputs.mask[TEXT], dtype=torch.float32)
    only_first[:, 0] = 1
    trace = adapter.run(inputs, intervene=lambda _s, _w, _a: only_first[:, None, None])
    assert bool(trace.logits.isfinite().all())


def test_the_explained_text_of_a_pair_is_erased() -> None:
    instances = MODELS["pair"][1]
    by_text, by_query = (
        measured(pair(explained), instances, ("leave_one_out.inputs",)) for explained in ("text", "query")
    )
    np.testing.assert_allclose(np.stack(by_text.vectors["logits"]), np.stack(by_query.vectors["logits"]), atol=1e-6)
    assert [len(row) for row in by_text.tokens] == [len(tokenize(one.text).ids) for one in instances]
    assert [len(row) for row in by_query.tokens] == [len(tokenize(str(one.query)).ids) for one in instances]
    swapped = [replace(one, text=str(one.query), query=one.text) for one in instances]
    assert by_query.tokens == measured(pair(), swapped, ()).tokens


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (several_heads, {"reading": ""}, "no reading is given"),
        (several_heads, {"heads": 1, "reading": "", "contexts": None}, r"pass heads=3 and a reading"),
        (several_heads, {"heads": 1}, "single row of weights per text, so there is nothing to choose"),
        (several_heads, {"heads": 0}, "heads is 0"),
        (several_heads, {"heads": 1, "reading": "", "contexts": torch.flatten}, "contexts is given, but heads is 1"),
        (several_heads, {"reading": "cls@heads=0"}, "pooled attention has no query tokens"),
        (several_heads, {"reading": "own@heads=7"}, "heads 0 to 2"),
        (several_heads, {"reading": "rollout"}, "pooled attention has no query tokens"),
        (memory_network, {"reading": ""}, "hop 1 with 1 head, hop 2 with 1 head"),
        (memory_network, {"reading": ""}, "argument reading: 'own@site=hop 1', 'own@site=hop 2'. docs/pooling.md"),
        (
            memory_network,
            {"reading": "", "sites": {"hop 1": 3, "hop 2": 1}},
            r"'own@site=hop 1,heads=mean' \(the mean over the heads\), "
            r"'own@site=hop 1,heads=0' \(one head, from 0 to 2\), 'own@site=hop 2'\.",
        ),
        (memory_network, {"reading": "own@site=hop 9"}, "the sites over the text are 'hop 1', 'hop 2'"),
        (memory_network, {"reading": "own@site=hop 1,heads=predicted"}, "one head for each"),
        (one_branch_per_class, {"target": Target(kind="label", name="neutral")}, "name its head, such as own@heads=0"),
        (memory_network, {"sites": {}}, "expected the name of each site"),
        (memory_network, {"sites": {"a,b": 1}}, "must not contain a comma"),
        (memory_network, {"sites": {"hop 1": 1, "hop 2": 1, "hop 3": 1}}, "did not call attend.. for the sites hop 3"),
        (memory_network, {"sites": {"hop 1": 1}, "reading": ""}, "called for the site 'hop 2'"),
        (two_levels, {"tokenize": tokenize}, "one attnaudit.adapters.Encoding"),
        (pair, {"explained": "both"}, "expected 'text' or 'query'"),
    ],
)
def test_errors(make: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        quick(make(**changes), MODELS["pair"][1] if make is pair else ALONE)


def test_a_reading_of_a_model_with_one_row_is_refused() -> None:
    adapter = several_heads(heads=1, reading="", attention=lambda s, a: softmax(s[..., 0], a), decoder=Parts().decoder)
    assert own_reading(adapter) is None
    with pytest.raises(AdapterError, match="nothing to choose"):
        expanded(adapter, "own@heads=mean")


@pytest.mark.parametrize("build", [several_heads, memory_network, two_levels, pair])
def test_a_row_that_names_a_file_is_refused(build: Any) -> None:
    row = Instance(id="a", text="slide.npy", file="slide.npy", query="good film", where="rows.jsonl, row 1")
    with pytest.raises(DataError, match=r"^rows.jsonl, row 1: the row names a file, but the model reads texts"):
        build().collate([row])


def test_a_policy_for_one_row_of_weights_never_covers_several_heads() -> None:
    adapter = several_heads(family="pooled attention, gru encoder")
    assert adapter.family == "several-head attention, pooled attention, gru encoder"
    assert not covers(["pooled attention"], adapter.family)
