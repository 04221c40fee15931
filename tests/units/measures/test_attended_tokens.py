"""The output of the attended tokens alone, compared with plain implementations and with models of known circuits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnaudit import checks
from attnaudit.adapters import Encoding, PooledAttentionAdapter
from attnaudit.engine.measurements import Measurements
from attnaudit.engine.measuring import measure
from attnaudit.engine.planning import refusals
from attnaudit.instances import Dataset, Instance
from tests.units.conformance.conformance_models import SOUND, SmallTransformer
from tests.units.measures.test_erasure_against_plain_definitions import INSTANCES, KINDS
from tests.units.measures.test_erasure_against_plain_definitions import Plain as PlainPooled
from tests.units.measures.test_many_sites import CASES, rows_of, under
from tests.units.measures.test_many_sites import Plain as PlainTransformer
from tests.units.measures.test_token_effects import Payoff, measured, pooled_payoff, transformer_payoff


def expected(payoff: Payoff, weights: np.ndarray) -> tuple[list[float], list[int]]:
    """Return the change of the centred logits and the attended tokens by their definitions."""
    kept: list[int] = []
    for token in np.argsort(-weights, kind="stable").tolist():
        if weights[kept].sum() < 0.8 * weights.sum() - 1e-7:
            kept.append(token)
    change = payoff(sorted(kept))[1:] - payoff(list(range(len(weights))))[1:]
    return change.tolist(), sorted(kept)


def compare(measurements: Measurements, i: int, payoff: Payoff, *, tokens: int) -> None:
    """Compare the columns of a row with their definitions."""
    weights, change = measurements.vector("attention")[i], measurements.vector("attended_tokens.change")[i]
    number, kept = measurements.scalar("attended_tokens.number")[i], measurements.vector("attended_tokens.kept")[i]
    if tokens == 1:
        assert np.isnan([*change, number, *kept]).all()
        return
    assert kept.sum() == number
    assert len(kept) == len(weights)
    assert set(kept) <= {0.0, 1.0}
    if len(np.unique(weights.round(6))) == len(weights):  # of equal weights, random ones are attended
        wanted = expected(payoff, weights)
        np.testing.assert_allclose(change, wanted[0], atol=2e-5)
        assert np.flatnonzero(kept).tolist() == wanted[1]


@pytest.mark.parametrize("kind", KINDS)
def test_changes_of_a_pooled_model(kind: str) -> None:
    model = KINDS[kind]()
    measurements = measured(model, "attended_tokens", "attention")
    for i, one in enumerate(INSTANCES):
        plain = PlainPooled(model, one)
        compare(measurements, i, pooled_payoff(plain, held=True), tokens=len(plain.real))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}, {c[1]}")
def test_changes_under_every_kind_of_reading(case: tuple[str, str, int, list[int], str]) -> None:
    kind, reading, layer, heads, query = case
    model = SOUND[kind]()
    needs = [f"{name}/{reading}" for name in ("attended_tokens", "attention")]
    measurements = under(measure(model, rows_of(model), needs, model="small", seed=3)[0], reading)
    for i, one in enumerate(rows_of(model).instances):
        plain = PlainTransformer(model, one, layer, heads, query)
        compare(measurements, i, transformer_payoff(plain, held=True), tokens=len(plain.real))


def test_the_measure_needs_a_mask_and_one_site() -> None:
    model = SmallTransformer()
    assert refusals(model, ["attended_tokens"]) == {}
    assert "combines all layers" in str(refusals(model, ["attended_tokens/rollout@query=cls"]))


WORDS = ("<pad>", "<unk>", ".", "good", "bad", "a", "b")


def circuit(attends: str, collects: str) -> PooledAttentionAdapter:
    """Return a model in which attention is on one word. The state of another word can collect the evidence of all.

    Args:
        attends: The word with all of the attention, or "cues" for the words with evidence.
        collects: The word whose state is the sum of the evidence; "" if every state holds its own evidence.
    """
    embedding, decoder = torch.nn.Embedding(len(WORDS), len(WORDS)), torch.nn.Linear(2, 2)
    with torch.no_grad():
        embedding.weight.copy_(torch.eye(len(WORDS)))
        decoder.weight.copy_(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
        decoder.bias.zero_()

    def encode(embedded: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        own = embedded[..., 3] - embedded[..., 4]  # of "good" and "bad"
        if collects:
            own = own.sum(1, keepdim=True) * embedded[..., WORDS.index(collects)]
        attended = sum(embedded[..., WORDS.index(w)] for w in (("good", "bad") if attends == "cues" else (attends,)))
        return torch.stack([torch.as_tensor(attended), own * 4], dim=-1)

    def attention(states: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        return torch.softmax((states[..., 0] * 200).masked_fill(~allowed, -torch.inf), -1)

    def tokenize(text: str) -> Encoding:
        return Encoding([WORDS.index(word) for word in text.split()], text.split())

    return PooledAttentionAdapter(
        embedding=embedding,
        encoder=encode,
        attention=attention,
        decoder=decoder,
        tokenize=tokenize,
        classes=("positive", "negative"),
        modules=(embedding, decoder),
        mask_id=1,
    )


@pytest.mark.parametrize(
    ("attends", "collects", "held", "plain"),
    [("cues", "", 1.0, 1.0), (".", ".", 0.0, 0.71), (".", "", 0.0, 0.0)],
    ids=["cue", "collector", "unused"],
)
def test_attention_on_a_collector_is_not_enough(attends: str, collects: str, held: float, plain: float) -> None:
    """With one cue, the plain cosine of the collector is √½. Attention that is not used gives no output to keep."""
    cues, fill = ("good", "bad"), ("a", "b")
    instances = [
        Instance(
            id=f"{i:03}",
            text=" ".join([*(fill[i >> k & 1] for k in range(8)), cues[i % 2], "."]),  # no two texts are equal
            label=("positive", "negative")[i % 2],
        )
        for i in range(200)
    ]
    data = Dataset(name="d", source="", description="", instances=instances, classes=("negative", "positive"))
    model = circuit(attends, collects)
    chosen = (checks.HeldSufficiency(at_least=0.4), checks.Pointing(on="logits", measure="plain", at_least=0.83))
    needs = [need for check in chosen for need in check.needs()]
    measurements = measure(model, data, needs, model="m", seed=0, labels=[i % 2 for i in range(200)])[0]
    sufficiency, pointing = (check.judge(measurements) for check in chosen)
    if attends == "." and not collects:
        assert (sufficiency.value, sufficiency.verdict) == (None, "undefined")
        assert "the output is the same for every text" in sufficiency.note
        return
    assert sufficiency.value == pytest.approx(held, abs=0.01)
    assert sufficiency.verdict == ("pass" if held else "fail")
    assert pointing.value == pytest.approx(plain, abs=0.01)
