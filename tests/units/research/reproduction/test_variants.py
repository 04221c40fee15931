"""Variants of a model: how each is trained, and from which model."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from attnaudit.checks import UniformFragility
from attnaudit.errors import ModelError
from attnaudit.models import checkpoint_folder
from attnaudit.research.reproduction import train_models
from attnaudit.research.reproduction.audit_models import audit_all, audit_request
from attnaudit.research.reproduction.model_plans import VARIANTS, Plan, jain_wallace
from attnaudit.research.reproduction.prepare_corpora import Prepared
from tests.units.research.reproduction.small_corpus import data, plan

KEPT = ("frozen_attention", "fixed_representation", "twin_frozen")


def train(tmp_path: Path, *plans: Plan, prepared: Prepared | None = None) -> dict[Plan, train_models.TrainedPlan]:
    parts = {plans[0].corpus: prepared or data(tmp_path / "data")}
    found, failed = train_models.train_all(plans, parts, tmp_path / "models")
    assert failed == {}
    return found


def state(tmp_path: Path, one: Plan) -> dict[str, Tensor]:
    return checkpoint_folder.load_model(tmp_path / "models" / one.folder)[0].state_dict()


def questions(folder: Path) -> Prepared:
    """Pairs of texts; the label says whether the word of the query is in the text."""
    rows = {}
    folder.mkdir(parents=True)
    for part, count in (("train", 40), ("dev", 16), ("test", 16)):
        lines = [
            {
                "id": f"{part}-{i}",
                "text": f"a {('cat', 'dog')[i % 2]} sat there",
                "query": f"a {('cat', 'dog')[i // 2 % 2]}",
                "label": ("no", "yes")[i % 2 == i // 2 % 2],
            }
            for i in range(count)
        ]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        rows[part] = count
    return Prepared(corpus="snli", folder=str(folder), rows=rows, sha256="synthetic", made_from="")


def test_every_variant_is_trained_after_its_base(tmp_path: Path) -> None:
    plans = [plan().as_variant(name, 0.01 if one.has_value else None) for name, one in VARIANTS.items()]
    found = train(tmp_path, *reversed(plans))
    assert set(found) == set(plans)
    assert plan().as_variant("imposed_mlp_adversary", 0.01).base == plan().as_variant("adversary", 0.01)
    assert train(tmp_path, *plans) == found


def test_a_base_is_trained_even_if_only_its_variant_is_requested(tmp_path: Path) -> None:
    found = train(tmp_path, plan().as_variant("imposed_mlp_adversary", 0.01))
    assert {one.variant for one in found} == {"plain", "adversary", "imposed_mlp_adversary"}


def test_a_variant_of_a_failed_model_fails_for_the_same_reason(tmp_path: Path) -> None:
    bad = plan().with_settings(learning_rate=-1.0)
    guided = bad.as_variant("imposed_mlp_adversary", 0.01)
    found, failed = train_models.train_all([guided], {"movie-reviews": data(tmp_path / "data")}, tmp_path / "models")
    assert found == {}
    assert set(failed) == {bad, bad.as_variant("adversary", 0.01), guided}
    assert len(set(failed.values())) == 1


def test_a_frozen_twin_differs_from_its_base_in_attention_alone(tmp_path: Path) -> None:
    one = plan().as_variant("twin_frozen", 0.05)
    train(tmp_path, one)
    base, twin = state(tmp_path, plan()), state(tmp_path, one)
    assert {name.partition(".")[0] for name in base if not torch.equal(base[name], twin[name])} == {"attention"}


@pytest.mark.parametrize("variant", [*KEPT, "imposed_attention"])
def test_retrained_parts_start_from_another_seed_than_the_base(tmp_path: Path, variant: str) -> None:
    """Models that have hardly learnt still have almost their initial parameters."""
    one = plan().with_settings(epochs=1, learning_rate=1e-9)
    train(
        tmp_path, one.as_variant(variant, 0.05 if VARIANTS[variant].has_value else None), one.as_variant("twin", 0.05)
    )
    made = one.as_variant(variant, 0.05 if VARIANTS[variant].has_value else None)
    base, twin, found = state(tmp_path, one), state(tmp_path, one.as_variant("twin", 0.05)), state(tmp_path, made)
    kept = {
        "frozen_attention": ("attention",),
        "fixed_representation": ("embedding", "encoder"),
        "twin_frozen": ("embedding", "encoder", "decoder"),
        "imposed_attention": (),
    }[variant]
    assert all(torch.allclose(twin[name], base[name], atol=1e-5) for name in base)  # as the published code: one seed
    same = {name.partition(".")[0] for name in base if torch.equal(found[name], base[name])}
    assert same == set(kept)


def test_a_guided_model_is_audited_with_the_attention_of_its_guide(tmp_path: Path) -> None:
    guided, free = plan().as_variant("imposed_attention"), plan().as_variant("frozen_attention")
    prepared = data(tmp_path / "data")
    found = train(tmp_path, guided, free, prepared=prepared)
    check = audit_request([UniformFragility(severity="report")], instances=None, token_columns=["attention"])
    wanted = [(one, check) for one in (plan(), guided, free)]
    models, kept = tmp_path / "models", tmp_path / "measured"
    measured, failed = audit_all(
        found, wanted, {plan().corpus: prepared.path("test")}, checkpoints=models, results=kept
    )
    assert failed == {}
    base, ours, other = (measured[one, None].per_token["attention"] for one, _ in wanted)
    assert ours == base
    assert other != base
    assert measured[guided, None].probabilities != measured[plan(), None].probabilities


def test_a_larger_weight_gives_more_different_attention(tmp_path: Path) -> None:
    weak, strong = (plan(epochs=4).as_variant("twin", value) for value in (0.0, 1.0))
    train(tmp_path, weak, strong)
    ids = torch.tensor([[3, 4, 5, 6, 7]])

    def weights(one: Plan) -> Tensor:
        model, _, _ = checkpoint_folder.load_model(tmp_path / "models" / one.folder)
        return model.trace(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)).weights

    base = weights(weak.as_variant("plain"))
    near, far = ((weights(one) - base).abs().sum() for one in (weak, strong))
    assert far > near + 0.1


def test_the_card_of_a_uniform_model_says_uniform(tmp_path: Path) -> None:
    plans = [plan().as_variant(name) for name in ("uniform", "imposed_mlp_uniform", "mlp")]
    train(tmp_path, *plans)
    cards = [checkpoint_folder.load_model(tmp_path / "models" / one.folder)[2].architecture for one in plans]
    assert [(card.encoder, card.alignment) for card in cards] == [
        ("average", "uniform"),
        ("average", "uniform"),
        ("average", "additive"),
    ]


@pytest.mark.parametrize("variant", KEPT)
def test_pairs_keep_what_reads_the_query(tmp_path: Path, variant: str) -> None:
    plain = msgspec.structs.replace(plan(), corpus="snli")
    plain = msgspec.structs.replace(plain, architecture=msgspec.structs.replace(plain.architecture, form="pair"))
    one = plain.as_variant(variant, 0.05 if VARIANTS[variant].has_value else None)
    train(tmp_path, one, prepared=questions(tmp_path / "data"))
    base, made = state(tmp_path, plain), state(tmp_path, one)
    moved = {name.partition(".")[0] for name in base if not torch.equal(base[name], made[name])}
    assert (
        moved
        == {
            "frozen_attention": {"embedding", "encoder", "query_encoder", "joint", "decoder"},
            "fixed_representation": {"attention", "joint", "decoder"},
            "twin_frozen": {"attention"},
        }[variant]
    )


@pytest.mark.parametrize(
    ("variant", "value", "divergence", "problem"),
    [
        ("twin", None, "kl", "expected a value"),
        ("uniform", 0.1, "kl", "expected none"),
        ("twin", 0.1, "jds", "Did you mean 'jsd'"),
        ("uniform", None, "jsd", "divergence 'jsd'"),
    ],
)
def test_an_invalid_value_or_divergence_is_reported(
    variant: str, value: float | None, divergence: str, problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        plan().as_variant(variant, value, divergence).check()  # type: ignore[arg-type]


def test_another_divergence_is_another_model_with_another_name() -> None:
    kl, jsd = plan().as_variant("twin", 0.1), plan().as_variant("twin", 0.1, "jsd")
    assert kl.folder != jsd.folder
    assert "-twin-jsd0.1-" in jsd.folder
    assert jsd.as_variant("imposed_mlp_adversary", 0.1, "jsd").base == jsd.as_variant("adversary", 0.1, "jsd")


def test_the_divergence_does_not_change_the_names_of_plain_plans() -> None:
    assert (
        jain_wallace("sst", encoder="bilstm", alignment="additive").folder
        == "sst-bilstm-additive-softmax-seed0-b920de0e"
    )
