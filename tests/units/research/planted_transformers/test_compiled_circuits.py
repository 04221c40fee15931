"""Every compiled circuit does what it says: the truth of its readings, confirmed by interchange."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from attnaudit.adapters.huggingface import transformer
from attnaudit.conformance import quick
from attnaudit.instances import Instance
from attnaudit.research.planted_transformers.circuit_parts import Family
from attnaudit.research.planted_transformers.circuit_texts import CLASS_NAMES, build_tokenizer, make_rows
from attnaudit.research.planted_transformers.compile_weights import compile_model
from attnaudit.research.planted_transformers.compiled_circuits import CIRCUITS, FAMILIES, Circuit, variant
from attnaudit.research.planted_transformers.interchange import interchange
from attnaudit.research.planted_transformers.trained_circuits import TRAINED
from attnaudit.research.planted_transformers.transformer_population import transformer_plans
from tests.slow_cases import slow_except

BY_NAME = {circuit.mechanism: circuit for circuit in CIRCUITS}
#: One parameter of every fourth mechanism is tried in every run.
CASES = [
    pytest.param(
        circuit,
        families[number % len(families)],
        parameter,
        id=f"{circuit.mechanism}-{parameter:g}",
        marks=[] if parameter == circuit.parameters[0] and number % 4 == 0 else pytest.mark.slow,
    )
    for number, circuit in enumerate(CIRCUITS)
    for families in (circuit.families,)
    for parameter in circuit.parameters
]


def compiled(circuit: Circuit, family: Family, parameter: float, *, count: int = 60) -> tuple[Any, Any, list[Instance]]:
    """An adapter of the compiled model, its design, and some of its texts."""
    torch.set_num_threads(1)
    design = circuit.design(variant(circuit, family, 0), parameter)
    tokenizer = build_tokenizer(design.lexicon)
    model = compile_model(design, family, tokenizer, classes=CLASS_NAMES[: design.classes], seed=0)
    rows = make_rows(design.texts, classes=design.classes, count=count, seed=0, marker_share=design.marker_share)
    instances = [Instance(id=str(i), text=text, label=label) for i, (text, label) in enumerate(rows)]
    return transformer(model, tokenizer), design, instances


@pytest.mark.parametrize(("circuit", "family", "parameter"), CASES)
def test_interchanges_confirm_the_truth(circuit: Circuit, family: Family, parameter: float) -> None:
    adapter, design, instances = compiled(circuit, family, parameter, count=36)
    with torch.no_grad():
        predicted = adapter.run(adapter.collate(instances)).logits.argmax(-1).tolist()
    names = adapter.capabilities.classes
    right = sum(names[p] == one.label for p, one in zip(predicted, instances, strict=True))
    assert right / len(instances) >= 0.95
    for reading in design.readings:
        found = interchange(adapter, instances, reading.text(family), seed=0, heads=reading.parts)
        expected = 1.0 if reading.parts else reading.known_share
        assert found.share == pytest.approx(expected, abs=0.1), reading.role
        if reading.fails == ("points",) and reading.truth == "unfaithful":
            assert found.tokens <= 0.1, reading.role
        if reading.fails == ("used",) and reading.truth == "unfaithful":
            assert found.route <= 0.1, reading.role
            assert found.tokens >= 0.9, reading.role


@pytest.mark.parametrize("family", slow_except(FAMILIES, ["llama"]))
def test_the_conformance_checks_pass(family: Family) -> None:
    adapter, _, instances = compiled(BY_NAME["middle_layer"], family, 0.0, count=12)
    assert [result.name for result in quick(adapter, instances) if result.outcome == "fail"] == []


def test_a_head_looks_where_its_design_says() -> None:
    adapter, design, instances = compiled(BY_NAME["last_layer"], "gpt2", 0.0)
    mover = design.readings[0]
    inputs = adapter.collate(instances)
    with torch.no_grad():
        attention = adapter.run(inputs).attention[adapter.sites()[mover.layer].key]
    for row, tokens in enumerate(inputs.tokens["text"]):
        weights = attention[row, int(mover.heads), len(tokens) - 1, : len(tokens)]
        cues = torch.tensor([bool(design.lexicon.get(token, {}).get("cue")) for token in tokens])
        assert weights[cues].sum() > 0.6
        assert weights[cues].min() > weights[~cues].max()


def test_without_donors_an_interchange_is_refused() -> None:
    adapter, design, instances = compiled(BY_NAME["last_layer"], "bert", 0.0)
    same = [one for one in instances if one.label == "negative"]
    with pytest.raises(ValueError, match="the same class for all texts"):
        interchange(adapter, same, design.readings[0].text("bert"), seed=0)


def test_the_full_population_is_large_and_half_of_its_mechanisms_are_held_out() -> None:
    truths: Counter[str] = Counter()
    for plan in transformer_plans():
        circuit = BY_NAME.get(plan.mechanism)
        readings = (
            next(one for one in TRAINED if one.mechanism == plan.mechanism).readings
            if circuit is None
            else circuit.design(variant(circuit, plan.family, plan.seed), plan.parameter).readings
        )
        truths.update(reading.truth for reading in readings)
    assert truths["faithful"] >= 60
    assert truths["unfaithful"] >= 60
    assert truths["graded"] >= 30
    halves = Counter(one.half for one in (*CIRCUITS, *TRAINED))
    assert abs(halves["tuning"] - halves["held_out"]) <= 3
    folders = [plan.name for plan in transformer_plans()]
    assert len(set(folders)) == len(folders)


def test_the_quick_form_has_every_mechanism() -> None:
    assert {plan.mechanism for plan in transformer_plans(quick=True)} == {
        one.mechanism for one in (*CIRCUITS, *TRAINED)
    }
