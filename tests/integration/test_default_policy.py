"""The shipped policy: three questions, each with a gate, and a figure that justifies each threshold."""

from __future__ import annotations

import argparse
import itertools
import re
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from attnaudit.checks import load_policy
from attnaudit.checks.policies.policy_choice import choose_policy
from attnaudit.engine.measuring import measure
from attnaudit.models.encoders import encoder
from attnaudit.models.train_command import add_arguments
from attnaudit.research.reproduction.papers.tutek_snajder_models import OPTIONS
from attnaudit.research.validation.candidate_policy import SHIPPED_POLICIES, read_policy, shipped_policy
from attnaudit.research.validation.candidates import candidates
from attnaudit.research.validation.figure_text import QUESTIONS
from attnaudit.research.validation.policy_writer import written_policy
from attnaudit.research.validation.population_schema import FAMILIES, Family
from attnaudit.research.validation.score_family import AuditedFamily, score_family
from tests.small_models import WORDS, adapter, dataset

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "audits" / "policy.toml"


def test_the_installed_policy_is_the_one_in_the_repository() -> None:
    installed = shipped_policy("pooled attention")
    assert installed.read_text(encoding="utf-8") == POLICY.read_text(encoding="utf-8")


def test_the_policy_for_transformers_is_installed_and_applies_to_them_alone() -> None:
    shipped = ROOT / "audits" / "transformer.toml"
    installed = files("attnaudit.run") / "templates" / "transformer.toml"
    assert installed.read_text(encoding="utf-8") == shipped.read_text(encoding="utf-8")
    policy = load_policy(shipped)
    assert choose_policy([load_policy(POLICY), policy], {"model": "transformer, bert"}) == policy
    assert choose_policy([policy, load_policy(POLICY)], {"demo": "pooled attention, bilstm encoder"}) != policy
    gates = {one.id for one in policy if one.severity == "gate"}
    assert sorted(gates) == sorted(check for one in policy.record.questions for check in one.checks)
    assert all(one.remedy for one in policy.record.questions)


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("bags.toml", ["bag of vectors"]),
        ("pictures.toml", ["transformer, vit, pictures", "transformer, deit, pictures"]),
        ("sources.toml", ["transformer, llama, sources", "transformer, gpt2, sources"]),
        (
            "attentions.toml",
            [
                "several-site attention",
                "several-head attention",
                "several-head attention, bag of vectors",
                "several-head attention, multi-label",
                "several-head attention, bag of vectors, multi-label",
            ],
        ),
    ],
)
def test_each_other_family_has_its_policy(name: str, families: list[str]) -> None:
    shipped = ROOT / "audits" / name
    installed = files("attnaudit.run") / "templates" / name
    assert installed.read_text(encoding="utf-8") == shipped.read_text(encoding="utf-8")
    policies = [load_policy(path) for path in sorted((ROOT / "audits").glob("*.toml"))]
    policy = load_policy(shipped)
    for family in families:
        assert choose_policy(policies, {"model": family}) == policy
    questions = {"used", "points"} if name == "sources.toml" else {"used", "points", "enough"}
    assert {gate.question for gate in read_policy(shipped).gates} == questions
    assert all(one.remedy for one in policy.record.questions)


def test_it_asks_the_three_questions_by_name() -> None:
    policy = load_policy(POLICY)
    gated = {one.id for one in policy if one.severity == "gate"}
    assert {one.name: one.asks for one in policy.record.questions} == {
        name: QUESTIONS[name] for name in ("used", "points", "enough")
    }
    asked = [check for one in policy.record.questions for check in one.checks]
    assert sorted(asked) == sorted(gated)
    assert all(one.remedy for one in policy.record.questions)
    assert {gate.question for gate in read_policy(POLICY).gates} == {"used", "points", "enough"}


def test_it_names_the_families_that_it_was_validated_on() -> None:
    found = load_policy(POLICY).record
    assert found.name == "default"
    assert list(found.validated_on) == ["pooled attention"]


def test_the_commands_in_remedies_suit_the_default_encoder() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    questions = [one for path in (ROOT / "audits").glob("*.toml") for one in load_policy(path).record.questions]
    texts = [*OPTIONS.values(), *(remedy.text for one in questions for remedy in one.remedy)]
    commands = [command for text in texts for command in re.findall("`attnaudit train ([^`]*)`", text)]
    assert len(commands) > len(OPTIONS)
    for command in commands:
        options = parser.parse_args([*command.split(), "--data", "x", "--out", "y"])
        if options.tying or options.mlm or options.states == "residual":
            width = encoder(options.encoder, options.embedding_size, options.hidden_size).width
            assert width == options.embedding_size, command


def test_a_figure_above_each_threshold_justifies_it() -> None:
    blocks = POLICY.read_text(encoding="utf-8").split("[[check]]")
    for before, table in itertools.pairwise(blocks):
        if "at_least" in table or "at_most" in table:
            words = before.rsplit("\n\n", 1)[-1]
            assert re.search(r"# held out: area \d\.\d\d \[", words), words
            assert "# alarms on faithful models" in words


@pytest.mark.parametrize("family", FAMILIES)
def test_a_validation_writes_the_shipped_policies_with_other_figures(family: Family) -> None:
    """All but the comments with figures stays as it is: gates, questions, remedies and informational checks."""
    path = ROOT / "audits" / SHIPPED_POLICIES[family]
    given = read_policy(path)
    checks = candidates(given.checks, family=family)
    audited = AuditedFamily(
        family=family, entries=[], given=given, all_candidates=checks, judged_candidates=checks, results={}
    )
    figures, _ = score_family(audited, seed=0, reproduced=())
    figures = msgspec.structs.replace(figures, validated_on=[family], basis=["New figures."])
    written, shipped = written_policy(figures, path), path.read_text(encoding="utf-8")
    assert "# New figures." in written
    assert tables(written) == tables(shipped)
    assert written.partition("# Evidence:")[2] == shipped.partition("# Evidence:")[2]


def tables(policy: str) -> list[str]:
    return [line for line in policy.splitlines() if line and not line.startswith("#")]


def test_a_faithful_model_with_equal_weights_where_nothing_is_found_passes() -> None:
    """Most texts have no cue. All of their weights are equal, so rearranging them changes nothing."""
    good, bad = WORDS.index("good"), WORDS.index("bad")
    table = torch.zeros(len(WORDS), 3)
    table[[good, bad], 0] = 6.0
    table[good, 1], table[bad, 2] = 4.0, 4.0
    decoder = nn.Linear(3, 2)
    decoder.weight.data = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    decoder.bias.data = torch.tensor([1.0, 0.0])
    model = adapter(
        2,
        embedding=nn.Embedding.from_pretrained(table),
        encoder=lambda embedded, mask: embedded,
        attention=lambda states, allowed: states[..., 0].masked_fill(~allowed, -torch.inf).softmax(-1),
        decoder=decoder,
        mask_id=1,
    )
    random, fillers = np.random.default_rng(0), [word for word in WORDS if word not in ("good", "bad")]
    cues = random.choice(["", "", "", "good", "bad"], 150).tolist()
    texts = [" ".join(random.permutation([cue, *random.choice(fillers, 7)])) for cue in cues]
    gates = [check for check in load_policy(POLICY) if check.severity == "gate"]
    needs = [need for gate in gates for need in gate.needs()]
    m = measure(model, dataset(texts), needs, model="m", seed=0)[0]
    for gate in gates:
        record = gate.judge(m)
        assert (record.verdict, record.n_defined) == ("pass", 150)
