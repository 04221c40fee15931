"""The parts of the reference models, alone and in all combinations."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.conformance import quick
from attnaudit.errors import ModelError
from attnaudit.instances import Instance
from attnaudit.models.alignments import ALIGNMENTS, Additive, ScaledDot
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoders import ENCODERS, GRU, BiLSTM, Joined
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.projections import PROJECTIONS, project
from attnaudit.models.vocabulary import PAD, Vocabulary

#: Every run tries each pair of parts in at least one combination.
COMBINATIONS = [
    pytest.param((e, a, p), marks=() if (i + j + k) % 3 == 0 else pytest.mark.slow)
    for i, e in enumerate(ENCODERS)
    for j, a in enumerate(ALIGNMENTS)
    for k, p in enumerate(PROJECTIONS)
]
WORDS = 12


def classifier(encoder: str, alignment: str, projection: str, *, classes: int = 2) -> PooledClassifier:
    torch.manual_seed(3)
    architecture = Architecture(
        encoder=encoder, alignment=alignment, projection=projection, embedding_size=6, hidden_size=5, attention_size=4
    )
    model = PooledClassifier(architecture, vocabulary_size=WORDS, classes=classes).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(10)
    return model


def row(ids: list[int], *, left: int, right: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A row of START, the ids and END, with padding on both sides: ids, mask and special."""
    real = [2, *ids, 3]
    padded = torch.tensor([[PAD] * left + real + [PAD] * right])
    mask = torch.tensor([[False] * left + [True] * len(real) + [False] * right])
    special = torch.zeros_like(mask)
    special[0, left] = special[0, left + len(real) - 1] = True
    return padded, mask, special


@pytest.mark.parametrize("parts", COMBINATIONS, ids="-".join)
@settings(max_examples=6)
@given(
    texts=st.lists(st.lists(st.integers(4, WORDS - 1), min_size=1, max_size=7), min_size=1, max_size=4),
    left=st.integers(0, 3),
    extra=st.integers(0, 3),
)
def test_padding_and_the_rest_of_the_batch_change_no_row(
    parts: tuple[str, str, str], texts: list[list[int]], left: int, extra: int
) -> None:
    model = classifier(*parts)
    width = max(map(len, texts)) + 2 + left + extra
    rows = [row(ids, left=left, right=width - left - len(ids) - 2) for ids in texts]
    together = model(*(torch.cat(one) for one in zip(*rows, strict=True)))
    alone = torch.cat([model(*row(ids, left=0, right=0)) for ids in texts])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", COMBINATIONS, ids="-".join)
def test_every_combination_passes_the_conformance_check_of_an_audit(parts: tuple[str, str, str]) -> None:
    model = classifier(*parts)
    vocabulary = Vocabulary(["<pad>", "<unk>", "<sos>", "<eos>", *"abcdefgh"])
    adapter = PooledAttentionAdapter(
        embedding=model.embedding,
        encoder=model.encoder,
        attention=model.attention,
        decoder=model.decoder,
        tokenize=vocabulary.encode,
        classes=("negative", "positive"),
        modules=(model,),
    )
    texts = ["a b c d e", "h g", "c", "f f a b", "d e z a c b"]
    results = quick(adapter, [Instance(id=str(i), text=text) for i, text in enumerate(texts)])
    assert len(results) >= 5


def test_bilstm_equals_the_bidirectional_layer_of_torch_on_each_row_alone() -> None:
    torch.manual_seed(0)
    ours = BiLSTM(4, 3)
    reference = torch.nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    state = dict(ours.forwards.state_dict())
    state |= {f"{name}_reverse": value for name, value in ours.backwards.state_dict().items()}
    reference.load_state_dict(state)
    embeddings = torch.randn(2, 6, 4)
    mask = torch.tensor([[True] * 6, [False, True, True, True, False, False]])
    hidden = ours(embeddings, mask)
    torch.testing.assert_close(hidden[0], reference(embeddings[:1])[0][0])
    torch.testing.assert_close(hidden[1, 1:4], reference(embeddings[1:, 1:4])[0][0])
    assert not hidden[1][~mask[1]].any()


def test_gru_equals_the_layer_of_torch_on_each_row_alone() -> None:
    torch.manual_seed(0)
    ours = GRU(4, 3)
    embeddings = torch.randn(2, 6, 4)
    mask = torch.tensor([[True] * 6, [False, True, True, True, False, False]])
    hidden = ours(embeddings, mask)
    torch.testing.assert_close(hidden[0], ours.layer(embeddings[:1])[0][0])
    torch.testing.assert_close(hidden[1, 1:4], ours.layer(embeddings[1:, 1:4])[0][0])
    assert not hidden[1][~mask[1]].any()
    torch.testing.assert_close(ours.summary(hidden, mask), torch.stack([hidden[0, 5], hidden[1, 3]]))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_gradients_in_evaluation_mode_reach_tokens_and_never_padding(encoder: str) -> None:
    model = classifier(encoder, "additive", "softmax")
    ids, mask, special = row([5, 6, 7], left=2, right=1)
    embeddings = model.embedding(ids).detach().requires_grad_()
    hidden = model.encoder(embeddings, mask)
    weights = model.attention(hidden, mask & ~special)
    logit = model.decoder(torch.einsum("bt,btm->bm", weights, hidden)).sum()
    (gradient,) = torch.autograd.grad(logit, embeddings)
    assert (gradient.norm(dim=-1)[mask & ~special] > 0).all()
    assert not gradient[~mask].any()


@pytest.mark.parametrize("projection", PROJECTIONS)
@given(
    scores=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=8),
    closed=st.integers(1, 7),
)
def test_weights_sum_to_one_and_are_exactly_zero_where_not_allowed(
    projection: str, scores: list[float], closed: int
) -> None:
    allowed = torch.ones(1, len(scores), dtype=torch.bool)
    allowed[0, : min(closed, len(scores) - 1)] = False
    raw_scores = torch.tensor([scores], requires_grad=True)
    weights = project(PROJECTIONS[projection](), raw_scores, allowed)
    assert weights.sum().item() == pytest.approx(1, abs=1e-5)
    assert (weights >= 0).all()
    assert (weights[~allowed] == 0).all()
    (gradient,) = torch.autograd.grad(weights.square().sum(), raw_scores)
    assert torch.isfinite(gradient).all()
    assert (gradient[~allowed] == 0).all()


def test_sparsemax_is_the_nearest_point_of_the_simplex() -> None:
    scores = torch.tensor([[1.0, 0.8, 0.1, -1.0]])
    weights = project(PROJECTIONS["sparsemax"](), scores, torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(weights, torch.tensor([[0.6, 0.4, 0.0, 0.0]]))  # threshold (1.8 - 1) / 2


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_row_with_nothing_allowed_gets_zeros_and_a_finite_gradient(projection: str) -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    allowed = torch.tensor([[True, True, False], [False, False, False]])
    weights = project(PROJECTIONS[projection](), scores, allowed)
    assert not weights[1].any()
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert torch.isfinite(gradient).all()


def test_additive_and_scaled_dot_scores_follow_their_formulas() -> None:
    torch.manual_seed(1)
    hidden = torch.randn(2, 3, 4, dtype=torch.float64)
    additive, dot = Additive(4, 5).double(), ScaledDot(4, 5).double()
    for b in range(2):
        for t in range(3):
            inner = torch.tanh(additive.hidden.weight @ hidden[b, t] + additive.hidden.bias)
            assert additive(hidden)[b, t].item() == pytest.approx((additive.score.weight[0] @ inner).item())
            assert dot(hidden)[b, t].item() == pytest.approx(sum(hidden[b, t] * dot.query).item() / 4**0.5)


def test_the_query_of_scaled_dot_starts_standard_normal() -> None:
    torch.manual_seed(0)
    query = ScaledDot(20_000, 1).query
    assert query.mean().item() == pytest.approx(0, abs=0.03)
    assert query.std().item() == pytest.approx(1, abs=0.03)


def test_two_classes_have_one_logit_and_three_have_three() -> None:
    ids, mask, special = row([4, 5], left=0, right=0)
    assert classifier("mlp", "dot", "softmax")(ids, mask, special).shape == (1, 1)
    assert classifier("mlp", "dot", "softmax", classes=3)(ids, mask, special).shape == (1, 3)


def test_word_dropout_and_dropout_act_in_training_mode_only() -> None:
    model = classifier("average", "additive", "softmax")
    model.word_dropout = 0.5
    ids, mask, special = row([4, 5, 6, 7, 8], left=0, right=0)
    assert len({model(ids, mask, special).item() for _ in range(8)}) == 1
    model.train()
    assert len({model(ids, mask, special).item() for _ in range(8)}) > 1


@pytest.mark.parametrize(
    ("part", "given", "near"),
    [("encoder", "bilstn", "bilstm"), ("alignment", "aditive", "additive"), ("projection", "sparsmax", "sparsemax")],
)
def test_an_unknown_part_is_refused_with_the_nearest_name(part: str, given: str, near: str) -> None:
    with pytest.raises(ModelError, match=f"Unknown {part} '{given}'.*'{near}'"):
        PooledClassifier(Architecture(**{part: given}), vocabulary_size=5, classes=2)


@pytest.mark.parametrize(("states", "width"), [("residual", 8), ("concat", 16)])
def test_states_keep_their_own_embedding(states: str, width: int) -> None:
    torch.manual_seed(0)
    plain = BiLSTM(8, 4)
    joined = Joined(plain, 8, states)
    embeddings, mask = torch.randn(2, 5, 8), torch.tensor([[True] * 5, [False, True, True, False, False]])
    hidden, own = plain(embeddings, mask), embeddings * mask[:, :, None]
    expected = hidden + own if states == "residual" else torch.cat([hidden, own], dim=-1)
    assert joined.width == width
    torch.testing.assert_close(joined(embeddings, mask), expected)


def test_residual_states_need_an_embedding_of_the_same_size() -> None:
    with pytest.raises(ModelError, match="--embedding-size 16"):
        PooledClassifier(Architecture(embedding_size=8, hidden_size=8, states="residual"), vocabulary_size=5, classes=2)
    with pytest.raises(ModelError, match="residual"):
        Architecture(states="residul").check()
