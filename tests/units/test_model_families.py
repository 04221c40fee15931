"""Families of models: which names stand for which families, and what a policy does with the others."""

from __future__ import annotations

import pytest

from attnaudit.model_families import blocked_models, covers, informational_gates, unvalidated_models
from attnaudit.records import EffectivePolicy, ModelRecord, PolicyValidation, UnvalidatedRule


def model(family: str, name: str = "release") -> ModelRecord:
    return ModelRecord(
        name=name,
        source="",
        description="",
        classes=["a", "b"],
        parameters=1,
        sha256="0" * 64,
        linear_decoder=True,
        conformance=[],
        family=family,
    )


def claim(*validated_on: str, unvalidated: UnvalidatedRule = "block", check: str = "use") -> PolicyValidation:
    return PolicyValidation(checks=[check], validated_on=list(validated_on), unvalidated=unvalidated)


def policy(*validations: PolicyValidation) -> EffectivePolicy:
    return EffectivePolicy(sha256="", checks=[], validations=list(validations))


@pytest.mark.parametrize(
    ("families", "family", "covered"),
    [
        (["pooled attention"], "pooled attention", True),
        (["pooled attention"], "pooled attention, gru encoder", True),
        (["pooled attention", "transformer, bert"], "transformer, bert", True),
        (["transformer, bert"], "transformer, bertweet", False),
        (["transformer"], "transformer, vit, pictures", False),
        (["transformer, vit, pictures"], "transformer, vit, pictures", True),
        (["transformer, pictures"], "transformer, vit, pictures", True),
        (["transformer, vit, pictures"], "transformer, vit, pictures with another erasure", False),
        (["transformer", "transformer, wav2vec2", "transformer, pictures"], "transformer, wav2vec2, recordings", False),
        (["transformer, recordings"], "transformer, wav2vec2, recordings", True),
        (["transformer", "transformer, sources"], "transformer, llama, passages", False),
        (["transformer, sources"], "transformer, llama, sources", True),
        (["transformer, bert"], "transformer, bert-generation", False),
        (["transformer, bert"], "transformer", False),
        (["pooled attention"], "not pooled attention", False),
        (["pooled attention"], "Pooled attention", False),
        (["pooled attention"], "", False),
        ([], "pooled attention", False),
    ],
)
def test_a_name_stands_for_the_families_that_begin_with_its_words(
    families: list[str], family: str, covered: bool
) -> None:
    assert covers(families, family) is covered


def test_only_models_of_other_families_are_listed_with_what_the_policy_says() -> None:
    models = [model("pooled attention, gru encoder", "small"), model("transformer, bert", "large")]
    (found,) = unvalidated_models(policy(claim("pooled attention", unvalidated="gate")), models)
    assert (found.model, found.family, found.unvalidated) == ("large", "transformer, bert", "gate")
    assert (found.checks, found.validated_on) == (["use"], ["pooled attention"])


@pytest.mark.parametrize("declared", [None, policy(), policy(claim())])
def test_a_policy_without_families_makes_no_claim(declared: EffectivePolicy | None) -> None:
    assert unvalidated_models(declared, [model("")]) == []
    assert informational_gates(declared, [model("")]) == set()


@pytest.mark.parametrize(("rule", "blocked"), [("block", True), ("gate", False), ("report", False)])
def test_only_block_fails_the_run(rule: UnvalidatedRule, blocked: bool) -> None:
    found = unvalidated_models(policy(claim("transformer", unvalidated=rule)), [model("pooled attention")])
    assert bool(blocked_models(found)) is blocked


@pytest.mark.parametrize(
    ("validations", "informational"),
    [
        ([claim("transformer", unvalidated="report")], True),
        ([claim("pooled attention", unvalidated="report")], False),
        ([claim("transformer", unvalidated="gate")], False),
        ([claim("transformer", unvalidated="block")], False),
        ([claim("transformer", unvalidated="report"), claim("vision", unvalidated="report")], True),
        ([claim("transformer", unvalidated="report"), claim("vision", unvalidated="gate")], False),
        ([claim("transformer", unvalidated="report"), claim("pooled attention", unvalidated="report")], False),
        ([claim("transformer", unvalidated="report"), claim(unvalidated="gate")], False),
        ([claim("transformer", unvalidated="report"), claim(unvalidated="gate", check="other")], True),
    ],
)
def test_a_gate_is_informational_only_if_every_policy_with_it_says_so(
    validations: list[PolicyValidation], informational: bool
) -> None:
    found = informational_gates(policy(*validations), [model("pooled attention, gru encoder")])
    assert (("release", "use") in found) is informational
