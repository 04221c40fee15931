"""Parts of the reference models compared with independent implementations: encoders, projections, masked words."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import msgspec
import numpy as np
import pytest
import scipy.optimize
import torch
from torch.nn import functional

from attnaudit.conformance import check_adapter
from attnaudit.errors import AuditError, ModelError
from attnaudit.instances import Instance
from attnaudit.models import checkpoint_folder, regularisers, train_command, training_options
from attnaudit.models.alignments import ALIGNMENTS, Deep
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoders import CNN, ENCODERS, BiLSTM, Transformer, encoder
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.projections import PROJECTIONS, Entmax, project, projection
from attnaudit.models.regularisers import corrupt, masked_words
from attnaudit.models.training import train
from attnaudit.models.vocabulary import RESERVED, UNKNOWN, Vocabulary
from tests.units.models.test_train_command import SIZES, parser, write
from tests.units.models.test_training import FAST, TINY, job

VOCABULARY = Vocabulary([*RESERVED, *"abcdefgh"])
MASK = torch.tensor([[True] * 6, [False, False, True, True, True, False]])


def test_cnn_equals_the_convolution_of_torch_on_each_text_alone() -> None:
    torch.manual_seed(0)
    cnn = CNN(4, 8)
    embeddings = torch.randn(2, 6, 4)
    hidden = cnn(embeddings, MASK)
    assert [one.out_channels for one in cnn.filters] == [2, 2, 2, 1, 1]
    for row, real in zip(range(2), MASK, strict=True):
        text = embeddings[row, real].T[None]
        plain = [
            functional.conv1d(functional.pad(text, (size // 2, size // 2)), one.weight, one.bias)
            for size, one in zip((1, 3, 5, 7, 15), cnn.filters, strict=True)
        ]
        torch.testing.assert_close(hidden[row, real], torch.cat(plain, dim=1)[0].T.clamp_min(0))
        assert not hidden[row][~real].any()


def test_transformer_equals_the_encoder_of_torch_on_each_text_alone() -> None:
    torch.manual_seed(0)
    ours = Transformer(4, 6).eval()
    embeddings = torch.randn(2, 6, 4)
    hidden = ours(embeddings, MASK)
    for row, real in zip(range(2), MASK, strict=True):
        states = ours.enter(embeddings[row, real][None]) * 6**0.5
        for place in range(int(real.sum())):
            for i in range(3):
                angle = place / 10000 ** (2 * i / 6)
                states[0, place, 2 * i] += math.sin(angle)
                states[0, place, 2 * i + 1] += math.cos(angle)
        for layer in ours.stack:
            plain = torch.nn.TransformerEncoderLayer(6, 1, dim_feedforward=6, dropout=0.0, batch_first=True)
            plain.load_state_dict(
                {
                    "self_attn.in_proj_weight": torch.cat([p.weight for p in (layer.query, layer.key, layer.value)]),
                    "self_attn.in_proj_bias": torch.cat([p.bias for p in (layer.query, layer.key, layer.value)]),
                    **{f"self_attn.out_proj.{n}": p for n, p in layer.out.named_parameters()},
                    **{f"linear1.{n}": p for n, p in layer.feed[0].named_parameters()},
                    **{f"linear2.{n}": p for n, p in layer.feed[2].named_parameters()},
                    **{f"norm1.{n}": p for n, p in layer.after_attention.named_parameters()},
                    **{f"norm2.{n}": p for n, p in layer.after_feed.named_parameters()},
                }
            )
            states = plain(states)
        torch.testing.assert_close(hidden[row, real], states[0], rtol=1e-4, atol=1e-5)
        assert not hidden[row][~real].any()
    normalised, before = ours.with_unnormalised(embeddings, MASK)
    assert torch.equal(normalised, hidden)
    torch.testing.assert_close(ours.stack[-1].after_feed(before)[MASK], hidden[MASK])  # type: ignore[operator]


def test_the_learned_query_of_small_dot_starts_from_small_values_and_that_of_dot_does_not() -> None:
    torch.manual_seed(0)
    small, large = ALIGNMENTS["small_dot"](400, 1), ALIGNMENTS["dot"](400, 1)
    assert 0.04 < small.query.abs().max() <= 1 / 20
    assert large.query.abs().max() > 2
    states, query = torch.randn(2, 3, 400), torch.randn(2, 400)
    torch.testing.assert_close(small(states), states @ small.query / 20)
    reading = [ALIGNMENTS[name](400, 1, 400)(states, query) for name in ("small_dot", "dot")]
    assert torch.equal(*reading)


def test_the_scores_of_unscaled_dot_are_plain_products() -> None:
    torch.manual_seed(0)
    states, query = torch.randn(2, 3, 400), torch.randn(2, 400)
    learned = ALIGNMENTS["unscaled_dot"](400, 1)
    assert learned.query.abs().max() > 2
    torch.testing.assert_close(learned(states), states @ learned.query)
    reading = ALIGNMENTS["unscaled_dot"](400, 1, 400)
    torch.testing.assert_close(reading(states, query), torch.einsum("btm,bm->bt", states, query))


def test_the_narrow_cnn_has_the_published_filter_widths() -> None:
    narrow = encoder("narrow_cnn", 4, 128)
    assert [layer.kernel_size for layer in narrow.filters] == [(1,), (3,), (5,), (7,)]  # type: ignore[union-attr]
    assert [layer.out_channels for layer in narrow.filters] == [32] * 4  # type: ignore[union-attr]
    assert narrow.reach == 3


def test_several_lstm_layers_equal_the_stacked_layers_of_torch() -> None:
    torch.manual_seed(0)
    ours = BiLSTM(4, 3, 3)
    reference = torch.nn.LSTM(4, 3, num_layers=3, batch_first=True, bidirectional=True)
    state, layer = {}, ours
    for number in range(3):
        for direction, suffix in ((layer.forwards, ""), (layer.backwards, "_reverse")):
            state |= {f"{name[:-1]}{number}{suffix}": value for name, value in direction.state_dict().items()}
        layer = layer.above
    assert layer is None
    reference.load_state_dict(state)
    embeddings = torch.randn(2, 6, 4)
    hidden = ours(embeddings, MASK)
    for row, real in zip(range(2), MASK, strict=True):
        torch.testing.assert_close(hidden[row, real], reference(embeddings[row, real][None])[0][0])


def test_deep_scores_follow_the_formula() -> None:
    torch.manual_seed(1)
    deep, hidden = Deep(4, 5), torch.randn(2, 3, 4)
    first, last = deep.stack[1], deep.stack[3]
    for b in range(2):
        for t in range(3):
            inner = (deep.hidden.weight @ hidden[b, t] + deep.hidden.bias).clamp_min(0)
            inner = (first.weight @ inner + first.bias).clamp_min(0)
            assert deep(hidden)[b, t].item() == pytest.approx((last.weight[0] @ inner).item(), rel=1e-5)


def minimise_on_simplex(scores: list[float], objective: object) -> np.ndarray:
    """Minimise a function over probability distributions with a general-purpose optimiser."""
    n = len(scores)
    result = scipy.optimize.minimize(
        objective,
        np.full(n, 1 / n),
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert result.success
    return np.asarray(result.x)


SCORES = [0.9, 0.35, 0.3, -0.4]


@pytest.mark.parametrize("parameter", [-1.5, 0.0, 0.3, 0.7])
def test_sparsegen_minimises_its_objective(parameter: float) -> None:
    scores = np.array(SCORES)
    expected = minimise_on_simplex(SCORES, lambda p: ((p - scores) ** 2).sum() - parameter * (p**2).sum())
    weights = projection("sparsegen", parameter)(torch.tensor([SCORES]))[0]
    np.testing.assert_allclose(weights.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("parameter", [1.2, 1.5, 1.8, 2.0])
def test_entmax_maximises_score_and_tsallis_entropy(parameter: float) -> None:
    scores = np.array(SCORES)
    expected = minimise_on_simplex(
        SCORES, lambda p: -(p @ scores) - (p - np.clip(p, 0, 1) ** parameter).sum() / (parameter * (parameter - 1))
    )
    weights = projection("entmax", parameter)(torch.tensor([SCORES]))[0]
    np.testing.assert_allclose(weights.numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("parameter", [1.2, 1.5, 2.0])
def test_the_first_derivative_of_entmax_is_correct(parameter: float) -> None:
    allowed = torch.tensor([[True, True, True, False, True]])
    scores = torch.tensor([[0.5, 0.2, -0.3, 0.4, 0.1]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: project(Entmax(parameter), s, allowed), (scores,), atol=1e-4)


def test_gumbel_is_softmax_with_temperature_and_noisy_in_training() -> None:
    gumbel, scores = projection("gumbel"), torch.tensor([[0.5, 0.2, -0.3]])
    torch.testing.assert_close(gumbel.eval()(scores), torch.softmax(scores / 0.8, dim=-1))
    torch.manual_seed(0)
    samples = projection("gumbel", 0.01).train()(scores.expand(20_000, 3))
    torch.testing.assert_close(samples.mean(0), torch.softmax(scores[0], dim=-1), atol=0.02, rtol=0)  # the Gumbel trick


@pytest.mark.parametrize(
    ("name", "parameter", "message"),
    [
        ("softmax", 1.0, "'softmax' has no parameter.*--projection with one of sparsegen, entmax, gumbel"),
        ("sparsegen", 1.0, "is 1: expected a λ below 1"),
        ("sparsegen", -math.inf, "is -inf: expected a λ"),
        ("entmax", 1.0, "is 1: expected an α above 1"),
        ("entmax", 2.5, "is 2.5: expected an α above 1"),
        ("gumbel", 0.0, "is 0: expected a temperature above 0"),
        ("gumbel", math.nan, "is nan: expected a temperature"),
    ],
)
def test_a_parameter_that_a_projection_does_not_take_is_refused(name: str, parameter: float, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Architecture(projection=name, projection_parameter=parameter).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "cnn", "layers": 2}, "'cnn' does not stack layers.*--encoder 'bilstm' or 'transformer'"),
        ({"encoder": "bilstm", "layers": 0}, "layers is 0: expected a whole number of at least 1"),
        ({"encoder": "cnn", "hidden_size": 4}, "--hidden-size 5 or more"),
    ],
)
def test_layers_and_sizes_that_an_encoder_does_not_take_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        PooledClassifier(Architecture(**changes), vocabulary_size=5, classes=2)


def test_the_usual_numbers_of_layers() -> None:
    assert len(encoder("transformer", 4, 4).stack) == 2
    assert len(encoder("transformer", 4, 4, 3).stack) == 3
    assert encoder("bilstm", 4, 4).above is None


#: Every part, and every encoder with two projections; another test runs the quick check on all combinations.
FULL = [
    *({"encoder": one, "projection": p} for one in ENCODERS for p in ("softmax", "entmax")),
    *({"encoder": "mlp", "alignment": one} for one in ALIGNMENTS if one != "additive"),
    *({"encoder": "average", "projection": one} for one in PROJECTIONS if one not in ("softmax", "entmax")),
    {"encoder": "bilstm", "layers": 2},
    {"encoder": "transformer", "layers": 1, "embedding_size": 5},
    {"encoder": "average", "projection": "entmax", "projection_parameter": 1.3},
    {"encoder": "cnn", "states": "concat"},
]


@pytest.mark.parametrize("parts", FULL, ids=lambda parts: "-".join(map(str, parts.values())))
def test_models_with_each_part_pass_the_full_conformance_check(parts: dict[str, object], tmp_path: Path) -> None:
    torch.manual_seed(4)
    sizes = {"embedding_size": 6, "hidden_size": 5, "attention_size": 4}
    model = PooledClassifier(Architecture(**{**sizes, **parts}), vocabulary_size=len(VOCABULARY), classes=2).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(10)
    checkpoint_folder.save(tmp_path, model, VOCABULARY, ("bad", "good"))
    adapter = checkpoint_folder.load(tmp_path)
    texts = ["a b c d e", "h g", "c", "f f a b", "d e z a c b"]
    check_adapter(adapter, [Instance(id=str(i), text=text) for i, text in enumerate(texts)])
    assert adapter.capabilities.shares_states == (
        parts["encoder"] not in ("gru", "transformer") and "layers" not in parts
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"encoder": "cnn", "alignment": "deep"},
        {"encoder": "transformer", "projection": "sparsegen"},
        {"encoder": "bilstm", "layers": 2, "projection": "gumbel"},
        {"encoder": "average", "projection": "entmax", "projection_parameter": 1.7},
    ],
    ids=lambda parts: "-".join(map(str, parts.values())),
)
def test_small_models_learn(parts: dict[str, object]) -> None:
    trained = train(job(architecture=msgspec.structs.replace(TINY, **parts)))
    assert trained.dev.accuracy >= 0.95


# --- Masked words


def test_the_loss_of_masked_words_equals_a_loop_over_the_chosen_words() -> None:
    torch.manual_seed(2)
    model = PooledClassifier(Architecture(embedding_size=6, hidden_size=3), vocabulary_size=12, classes=2)
    with torch.no_grad():
        model.embedding.weight.mul_(10)
    ids = torch.randint(4, 12, (8, 20))
    ids[0, 3] = UNKNOWN
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 10:] = False
    special = torch.zeros_like(mask)
    special[:, 0] = True
    torch.manual_seed(7)
    loss = masked_words(model, ids, mask, special)
    torch.manual_seed(7)
    chosen, corrupted = corrupt(ids, mask & ~special, 12)
    total = 0.0
    for b in range(8):
        hidden = model.encoder(model.embedding(corrupted[b : b + 1]), mask[b : b + 1])[0]
        for t in chosen[b].nonzero()[:, 0].tolist():
            scores = (hidden[t] @ model.embedding.weight.T).tolist()
            total += math.log(sum(map(math.exp, scores))) - scores[int(ids[b, t])]
    assert chosen.any()
    assert loss.item() == pytest.approx(total / 8, rel=1e-4)


@pytest.mark.parametrize("logits", [1, 40, 10_000], ids=["a row at a time", "in parts", "at once"])
@pytest.mark.parametrize("scale", [1.0, 300.0], ids=["near", "far apart"])
def test_word_prediction_in_parts_equals_the_full_cross_entropy(
    monkeypatch: pytest.MonkeyPatch, logits: int, scale: float
) -> None:
    monkeypatch.setattr(regularisers, "LOGITS", logits)
    torch.manual_seed(0)
    words, targets = torch.randn(13, 5, dtype=torch.float64), torch.randint(0, 13, (11,))
    states = scale * torch.randn(11, 5, dtype=torch.float64)
    in_parts, whole = states.clone().requires_grad_(), states.clone().requires_grad_()
    loss = regularisers._WordPrediction.apply(in_parts, words, targets)
    reference = torch.nn.functional.cross_entropy(whole @ words.T, targets, reduction="sum")
    (3 * loss).backward()
    (3 * reference).backward()
    assert loss.item() == pytest.approx(reference.item(), rel=1e-12)
    torch.testing.assert_close(in_parts.grad, whole.grad, rtol=1e-10, atol=1e-12)


def test_word_prediction_of_no_word_is_zero() -> None:
    states = torch.zeros(0, 5, requires_grad=True)
    loss = regularisers._WordPrediction.apply(states, torch.randn(13, 5), torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert states.grad.shape == (0, 5)


def test_words_are_corrupted_in_the_shares_of_bert() -> None:
    torch.manual_seed(0)
    ids = torch.randint(4, 1000, (200, 300))
    real = torch.rand(ids.shape) < 0.9
    ids[:, 0] = UNKNOWN
    chosen, corrupted = corrupt(ids, real, 1000)
    assert not chosen[:, 0].any()
    assert not (chosen & ~real).any()
    assert torch.equal(ids[~chosen], corrupted[~chosen])
    eligible = real & (ids != UNKNOWN)
    assert chosen.sum() / eligible.sum() == pytest.approx(0.15, abs=0.005)
    masked = (corrupted == UNKNOWN)[chosen].float().mean().item()
    left = (corrupted == ids)[chosen].float().mean().item()
    assert masked == pytest.approx(0.8, abs=0.02)
    assert left == pytest.approx(0.1, abs=0.015)
    assert corrupted[chosen & (corrupted != UNKNOWN)].min() >= len(RESERVED)


def test_no_gradient_reaches_the_embedding_through_the_decoder() -> None:
    torch.manual_seed(0)
    model = PooledClassifier(Architecture(embedding_size=6, hidden_size=3), vocabulary_size=12, classes=2)
    ids = torch.randint(4, 8, (8, 20))  # words 8 to 11 are in no text
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    torch.manual_seed(1)
    _, corrupted = corrupt(ids, everywhere, 12)
    torch.manual_seed(1)
    masked_words(model, ids, everywhere, ~everywhere).backward()
    unread = torch.tensor([word for word in range(12) if word not in corrupted])
    assert len(unread)
    assert not model.embedding.weight.grad[unread].any()


def test_masked_words_change_the_training_which_stays_deterministic() -> None:
    architecture = msgspec.structs.replace(TINY, hidden_size=8)
    trained = train(job(architecture=architecture, mlm=0.3))
    assert trained.history == train(job(architecture=architecture, mlm=0.3)).history
    assert trained.history != train(job(architecture=architecture)).history
    with pytest.raises(ModelError, match=r"mlm compares.*--embedding-size 32"):
        train(job(mlm=0.3))
    with pytest.raises(AuditError, match="mlm is -1"):
        msgspec.structs.replace(FAST, mlm=-1.0).check()


# --- The command


def test_the_command_takes_every_option_and_its_folder_loads(tmp_path: Path) -> None:
    data = ["--data", write(tmp_path / "train.jsonl", 60), "--dev", write(tmp_path / "dev.jsonl", 20, 1000)]
    given = ["--encoder", "bilstm", "--layers", 2, "--alignment", "deep", "--projection", "entmax"]
    given += ["--projection-parameter", 1.25, "--mlm", 0.3, *SIZES, "--embedding-size", 16]
    out = tmp_path / "model"
    assert train_command.run(parser().parse_args([*map(str, [*data, *given, "--out", out])])) == 0
    model, _, card = checkpoint_folder.load_model(out)
    assert (card.architecture.layers, card.architecture.projection_parameter) == (2, 1.25)
    assert model.attention.projection.parameter == 1.25
    line = json.loads((out / "attnaudit.json").read_text(encoding="utf-8"))["training"]["command"]
    for words in ("--layers 2", "--projection-parameter 1.25", "--mlm 0.3", "--alignment deep"):
        assert words in line
    assert training_options.command(parser().parse_args(shlex.split(line)[2:])) == line
    assert checkpoint_folder.load(out).capabilities.linear_decoder


def test_a_folder_without_optional_fields_loads(tmp_path: Path) -> None:
    model = PooledClassifier(Architecture(embedding_size=6, hidden_size=5), vocabulary_size=12, classes=2)
    checkpoint_folder.save(tmp_path, model, VOCABULARY, ("bad", "good"))
    path = tmp_path / "attnaudit.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    for name in ("layers", "projection_parameter"):
        del card["architecture"][name]
    path.write_text(json.dumps(card), encoding="utf-8")
    assert checkpoint_folder.load(tmp_path).capabilities.classes == ("bad", "good")
