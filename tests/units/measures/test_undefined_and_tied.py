"""Instances that cannot be measured are undefined in every measure, and tokens without effect are tied."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn

from attnaudit import checks
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance
from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.reference_adapter import ReferenceModel
from attnaudit.models.vocabulary import Vocabulary
from tests.small_models import adapter, dataset, tokenize_with_ends

WORDS = [f"w{i}" for i in range(200)]


def sparse(encoder: str, projection: str, classes: int) -> tuple[ReferenceModel, Dataset]:
    """Return a model with context-free states in which many tokens have weight 0, and texts of 20 to 60 tokens."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size=int(random.integers(20, 60)))) for _ in range(24)]
    rows = Dataset(
        name="texts",
        source="made",
        description="",
        instances=tuple(Instance(id=f"{i:02d}", text=text) for i, text in enumerate(texts)),
    )
    vocabulary = Vocabulary.build(texts, min_count=1, limit=None)
    built = Architecture(encoder=encoder, projection=projection, embedding_size=16, hidden_size=16, attention_size=8)
    torch.manual_seed(3)
    model = PooledClassifier(built, vocabulary_size=len(vocabulary), classes=classes).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(6 if "embedding" in name else 4 if "attention" in name or "decoder" in name else 1.5)
    return ReferenceModel(model, vocabulary, tuple("abc"[:classes])), rows


FAST = (("average", "sparsemax", 3), ("mlp", "entmax", 2))


@pytest.mark.parametrize(
    ("encoder", "projection", "classes"),
    [
        pytest.param(*one, marks=[] if one in FAST else pytest.mark.slow)
        for one in product(("average", "mlp"), ("sparsemax", "entmax"), (2, 3))
    ],
)
def test_a_token_without_weight_changes_nothing_if_states_are_context_free(
    encoder: str, projection: str, classes: int
) -> None:
    model, rows = sparse(encoder, projection, classes)
    need = "agreement.leave_one_out.inputs"
    measurements, small = (measure(model, rows, [need], model="m", seed=0, batch_tokens=b)[0] for b in (None, 200))
    none = np.concatenate(measurements.vector("attention")) == 0
    assert none.mean() > 0.1
    assert (np.concatenate(measurements.vector("leave_one_out.inputs.change"))[none] == 0).all()
    np.testing.assert_allclose(measurements.scalar(f"{need}.tau"), small.scalar(f"{need}.tau"), atol=5e-3)

    model.model.double()
    pairs = zip(measurements.vector("attention"), rows.instances, strict=True)
    expected = np.mean([kendalltau(attention, changes(model, one)).statistic for attention, one in pairs])
    assert measurements.scalar(f"{need}.tau").mean() == pytest.approx(expected, abs=0.005)


@torch.no_grad()
def changes(model: ReferenceModel, one: Instance) -> np.ndarray:
    """Return the change of the output without each token, in float64; changes within float64 rounding are 0."""
    encoding = model.vocabulary.encode(one.text)
    special = encoding.special or [False] * len(encoding.ids)

    def output(gone: int | None) -> Tensor:
        kept = [i for i in range(len(encoding.ids)) if i != gone]
        ids = torch.tensor([[encoding.ids[i] for i in kept]])
        flags = torch.tensor([[special[i] for i in kept]])
        logits = model.model(ids, torch.ones_like(flags), flags)[0]
        one_logit = len(logits) == 1
        return torch.sigmoid(torch.cat([-logits, logits])) if one_logit else logits.softmax(0)

    real = [i for i, flag in enumerate(special) if not flag]
    moved = np.array([0.5 * (output(i) - output(None)).abs().sum().item() for i in real])
    return np.where(moved < 1e-13, 0.0, moved)


class Silent(nn.Module):
    """Attention that puts all weight on the first token, which is special, in texts of even length."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(10, 1)

    def forward(self, states: Tensor, allowed: Tensor) -> Tensor:
        weights = torch.softmax(self.score(states)[..., 0].masked_fill(~allowed, -torch.inf), -1)
        first = torch.zeros_like(weights)
        first[:, 0] = 1
        return torch.where((allowed.sum(1) % 2 == 0)[:, None], first, weights)


def test_instances_without_attention_on_real_tokens_are_undefined_in_every_check() -> None:
    torch.manual_seed(0)
    model = adapter(1, tokenize=tokenize_with_ends, attend_special=True, attention=Silent())
    kinds = (checks.PermutationFragility, checks.UniformFragility)
    measurements = measure(model, dataset(), ["permutation", "uniform"], model="m", seed=0, labels=[0, 1] * 4)[0]
    silent = np.array([len(tokens) % 2 == 0 for tokens in measurements.tokens])
    assert 0 < silent.sum() < len(silent)
    for kind in kinds:
        for column in ("tvd", "f1_drop"):
            record = kind(measure=column, severity="report").judge(measurements)  # type: ignore[arg-type]
            single = (measurements.lengths < 2) & ~silent if column == "tvd" else np.zeros_like(silent)
            assert record.n_defined == (~silent & ~single).sum()
            counts = {"no attention on real tokens": silent.sum(), "a single token": single.sum()}
            assert record.undefined == {reason: count for reason, count in counts.items() if count}
    record = checks.DecisionFlip(severity="report").judge(measure(model, dataset(), ["flip"], model="m", seed=0)[0])
    assert record.undefined["no attention on real tokens"] == silent.sum()
