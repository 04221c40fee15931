"""Forms with a query: models and measures agree with an independent implementation for a single row."""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.adapters.pooled.pooled_adapter import CLOSED_LOGIT
from attnaudit.adapters.protocol import QUERY, Capabilities
from attnaudit.adapters.protocol import TEXT as STREAM
from attnaudit.conformance import check_adapter
from attnaudit.engine.measuring import measure
from attnaudit.errors import AdapterError, DataError, ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.metrics import exact_adversarial_attention
from attnaudit.models import checkpoint_folder, train_command
from attnaudit.models.alignments import ALIGNMENTS
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoders import ENCODERS
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.training import train
from attnaudit.models.training_job import TrainingData
from attnaudit.models.vocabulary import RESERVED, Vocabulary, mentioned_classes
from tests.units.models.test_train_command import SIZES, parser
from tests.units.models.test_training import TINY, job

PLACES = ("garden", "hall", "kitchen")
VOCABULARY = Vocabulary([*RESERVED, *"abcdefgh", *PLACES, "where"])
TEXTS = ["a b garden c d hall", "hall e", "f kitchen a garden hall b c", "g h a b c"]
QUERIES = ["where a", "where e d", "b", "where f g h a c"]
ROWS = tuple(
    Instance(id=str(i), text=text, query=query, where=f"rows.jsonl:{i + 1}")
    for i, (text, query) in enumerate(zip(TEXTS, QUERIES, strict=True))
)
DATA = Dataset(name="rows", source="rows.jsonl", description="", instances=ROWS)


def saved(folder: Path, form: str, classes: tuple[str, ...] = PLACES, **parts: object) -> PooledClassifier:
    torch.manual_seed(3)
    sizes = {"embedding_size": 6, "hidden_size": 5, "attention_size": 4}
    architecture = Architecture(**{**sizes, "form": form, **parts})
    model = PooledClassifier(architecture, vocabulary_size=len(VOCABULARY), classes=len(classes)).eval()
    with torch.no_grad():
        model.embedding.weight.mul_(10)
    checkpoint_folder.save(folder, model, VOCABULARY, classes)
    return model


class Plain:
    """One row of a `question` or `pair` model written out: no padding, no batch. `states` and `open_classes`
    may be changed."""

    def __init__(self, model: PooledClassifier, one: Instance, ids: list[int] | None = None) -> None:
        self.model = model
        text, query = VOCABULARY.encode(one.text), VOCABULARY.encode(one.query or "")
        self.ids = torch.tensor([text.ids if ids is None else ids])
        self.embedded = model.embedding(self.ids).detach().requires_grad_(True)
        self.states = model.encoder(self.embedded, torch.ones_like(self.ids, dtype=torch.bool))
        query_hidden = model.query_encoder(
            model.embedding(torch.tensor([query.ids])), torch.ones(1, len(query.ids), dtype=torch.bool)
        )[0]
        kind = model.architecture.encoder
        half = query_hidden.shape[-1] // 2
        if kind == "bilstm":
            self.query_state = torch.cat([query_hidden[-1, :half], query_hidden[0, half:]])
        else:
            self.query_state = query_hidden.max(0).values if kind == "cnn" else query_hidden.mean(0)
        self.open_classes = torch.tensor(mentioned_classes(PLACES, one))
        self.weights = self.attend()
        self.p = self.output(self.weights)

    def attend(self) -> Tensor:
        alignment, states = self.model.attention.alignment, self.states[0]
        if self.model.architecture.alignment == "dot":
            query_state = self.query_state if alignment.mapped is None else alignment.mapped.weight @ self.query_state
            scores = states @ query_state / states.shape[1] ** 0.5
        else:
            mixed = (
                states @ alignment.hidden.weight.T + alignment.hidden.bias + alignment.query.weight @ self.query_state
            )
            if self.model.architecture.alignment == "additive":
                scores = torch.tanh(mixed) @ alignment.score.weight[0]
            else:
                inner = mixed.relu() @ alignment.stack[1].weight.T + alignment.stack[1].bias
                scores = inner.relu() @ alignment.stack[3].weight[0]
        return torch.cat([torch.zeros(1), scores[1:-1].softmax(0), torch.zeros(1)])

    def output(self, weights: Tensor) -> Tensor:
        joint, decoder = self.model.joint, self.model.decoder
        context = weights @ self.states[0]
        inside = torch.tanh(joint.context.weight @ context + joint.context.bias + joint.query.weight @ self.query_state)
        logits = decoder.weight @ inside + decoder.bias
        if self.model.architecture.form == "question":
            logits = torch.where(self.open_classes, logits, torch.tensor(CLOSED_LOGIT))
        return logits.double().softmax(0)

    def tvd(self, p: Tensor) -> float:
        return float((0.5 * (p - self.p).abs().sum()).detach())


KINDS = [
    ("question", {}),
    ("pair", {"encoder": "cnn", "alignment": "deep"}),
    ("question", {"encoder": "transformer", "alignment": "dot"}),
    ("pair", {"encoder": "bilstm", "alignment": "dot", "states": "concat"}),
]


@pytest.mark.parametrize(("form", "parts"), KINDS)
def test_every_measure_agrees_with_the_single_row(form: str, parts: dict[str, object], tmp_path: Path) -> None:
    model = saved(tmp_path, form, **parts)
    adapter = checkpoint_folder.load(tmp_path)
    needs = ["attention", "prediction", "gradient.meister.inputs", "gradient.meister.hidden"]
    needs += ["leave_one_out.inputs", "permutation", "uniform", "gradient.jain_wallace.inputs", "influence.hidden"]
    measured = measure(adapter, DATA, needs, model="pairs", seed=0)[0]
    trace = adapter.run(adapter.collate(ROWS))
    for i, one in enumerate(ROWS):
        plain = Plain(model, one)
        torch.testing.assert_close(trace.logits[i].double().softmax(0), plain.p, atol=1e-5, rtol=1e-4)
        np.testing.assert_allclose(measured.vector("attention")[i], plain.weights[1:-1].detach(), atol=1e-5)
        for leaf, at in ((plain.embedded, "inputs"), (plain.states, "hidden")):
            (slope,) = torch.autograd.grad(plain.p.max(), leaf, retain_graph=True)
            norms = slope[0, 1:-1].norm(dim=-1)
            np.testing.assert_allclose(measured.vector(f"gradient.meister.{at}")[i], norms / norms.sum(), atol=2e-4)
        held = plain.output(plain.weights.detach()).max()
        (slope,) = torch.autograd.grad(held, plain.embedded, retain_graph=True)
        product = (slope * plain.embedded)[0, 1:-1].sum(-1).abs().detach()
        np.testing.assert_allclose(
            measured.vector("gradient.jain_wallace.inputs")[i], product / product.sum(), atol=2e-4
        )
        moved = []
        for gone in range(1, len(plain.weights) - 1):
            ids = plain.ids[0].tolist()
            moved.append(plain.tvd(Plain(model, one, ids[:gone] + ids[gone + 1 :]).p))
        total = sum(moved)  # nothing can change if only one answer is possible
        shares = np.array(moved) / total if total else np.full(len(moved), np.nan)
        np.testing.assert_allclose(measured.vector("leave_one_out.inputs")[i], shares, atol=5e-4)
        count = len(plain.weights) - 2
        even = torch.tensor([0.0, *[1 / count] * count, 0.0])
        assert measured.scalar("uniform.tvd")[i] == pytest.approx(plain.tvd(plain.output(even)), abs=1e-5)
        if count == 2:
            both = [
                plain.tvd(plain.output(torch.tensor([0.0, *order, 0.0])))
                for order in permutations(plain.weights[1:-1].tolist())
            ]
            assert min(both) - 1e-6 <= measured.scalar("permutation.tvd")[i] <= max(both) + 1e-6


def test_answers_are_classes_of_the_text_or_all_if_it_mentions_none(tmp_path: Path) -> None:
    saved(tmp_path, "question")
    adapter = checkpoint_folder.load(tmp_path)
    p = adapter.run(adapter.collate(ROWS)).logits.double().softmax(-1)
    assert (p == 0).tolist() == [[False, False, True], [True, False, True], [False] * 3, [False] * 3]
    assert mentioned_classes(("new york", "york", "new"), Instance(id="1", text="to New York.")) == [True] * 3
    assert mentioned_classes(("new york", "york"), Instance(id="1", text="York, new")) == [False, True]


#: Every encoder and every alignment with a query, in both forms.
EVERY = [
    *(("pair", {"encoder": one}) for one in ENCODERS),
    *(("question", {"encoder": "mlp", "alignment": one}) for one in ALIGNMENTS),
    ("question", {"encoder": "bilstm", "layers": 2, "projection": "entmax"}),
    ("question", {"encoder": "average", "projection": "sparsegen", "states": "concat", "alignment": "dot"}),
]


@pytest.mark.parametrize(
    ("form", "parts"), EVERY, ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one.values()))
)
@pytest.mark.parametrize("classes", [PLACES, ("garden", "hall")], ids=["three", "two"])
def test_models_with_a_query_pass_the_full_conformance_check(
    form: str, parts: dict[str, object], classes: tuple[str, ...], tmp_path: Path
) -> None:
    saved(tmp_path, form, classes, **parts)
    adapter = checkpoint_folder.load(tmp_path)
    check_adapter(adapter, ROWS)
    assert adapter.capabilities.query
    assert not adapter.capabilities.linear_decoder
    assert adapter.capabilities.shares_states == (
        parts["encoder"] not in ("gru", "transformer") and "layers" not in parts
    )


def test_movie_reviews_are_paired_for_a_model_that_needs_a_query(tmp_path: Path) -> None:
    saved(tmp_path, "question")
    check_adapter(checkpoint_folder.load(tmp_path))


class LinearInTheContext(PooledAttentionAdapter):
    """An adapter whose decoder is linear in [context; query], so that its bias depends on the row."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, linear_decoder=True)

    def decoder_weights(self) -> tuple[Tensor, Tensor]:
        return self.modules[0].linear.weight[:, :6], self.modules[0].linear.bias


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.linear, self.score = nn.Embedding(len(VOCABULARY), 6), nn.Linear(12, 2), nn.Linear(6, 6)

    def adapter(self) -> LinearInTheContext:
        return LinearInTheContext(
            embedding=self.embedding,
            encoder=lambda e, mask: torch.tanh(e) * mask[..., None],
            attention=lambda h, allowed, q: (
                (h @ self.score(q)[..., None])[..., 0].masked_fill(~allowed, -torch.inf).softmax(-1)
            ),
            decoder=lambda c, q: self.linear(torch.cat([c, q], -1)),
            query=lambda e, mask: (e * mask[..., None]).sum(1),
            tokenize=VOCABULARY.encode,
            classes=("garden", "hall"),
            modules=(self,),
        )


def test_a_linear_decoder_with_a_bias_per_row_has_the_exact_adversary() -> None:
    small = Small()
    adapter = small.adapter()
    check_adapter(adapter, ROWS)
    measured = measure(adapter, DATA, ["adversarial.0.05", "permutation"], model="linear", seed=0)[0]
    assert measured.facts["adversarial.method"] == "exact"
    trace = adapter.run(adapter.collate(ROWS), hidden=True)
    for i, _ in enumerate(ROWS):
        real = trace.allowed["attention"][i, 0, 0]
        weights, states = (
            trace.attention["attention"][i, 0, 0][real].double(),
            trace.hidden["attention"][i][real].double(),
        )
        logits = (states @ small.linear.weight[:, :6].double().T).detach()
        bias = (small.linear.weight[:, 6:] @ trace.decoder_condition[i] + small.linear.bias).double().detach()
        _, expected = exact_adversarial_attention(
            weights[None].detach(), (logits[:, 1] - logits[:, 0])[None], (bias[1] - bias[0])[None], 0.05
        )
        assert measured.scalar("adversarial.0.05.jsd")[i] == pytest.approx(expected.item(), abs=1e-6)


def test_a_linear_layer_as_decoder_reads_the_context_only() -> None:
    small = Small()
    small_adapter = small.adapter()
    decoder = nn.Linear(6, 1)
    adapter = PooledAttentionAdapter(
        **{name: getattr(small_adapter, name) for name in ("embedding", "encoder", "attention", "query", "tokenize")},
        decoder=decoder,
        classes=("garden", "hall"),
        modules=(small, decoder),
    )
    assert adapter.capabilities.linear_decoder
    check_adapter(adapter, ROWS)


def test_removing_tokens_of_the_text_leaves_the_query_unchanged(tmp_path: Path) -> None:
    saved(tmp_path, "question")
    adapter = checkpoint_folder.load(tmp_path)
    inputs = adapter.collate(ROWS)
    left = adapter.delete(inputs, STREAM, [(2, 3), (0, 1)])
    assert torch.equal(left.ids[QUERY], inputs.ids[QUERY][[2, 0]])
    assert torch.equal(left.extra["open"], inputs.extra["open"][[2, 0]])
    embedded = adapter.embed(inputs)
    assert {name: one.shape[:2] for name, one in embedded.items()} == {n: i.shape for n, i in inputs.ids.items()}


def test_a_missing_and_a_superfluous_query_are_refused(tmp_path: Path) -> None:
    without = dataclasses.replace(DATA, instances=(*ROWS[:2], dataclasses.replace(ROWS[2], query=None)))
    saved(tmp_path / "pair", "pair")
    with pytest.raises(DataError, match=r"rows.jsonl:3: the row has no query.*Fill the column 'query'"):
        measure(checkpoint_folder.load(tmp_path / "pair"), without, ["uniform"], model="pair", seed=0)
    saved(tmp_path / "text", "text")
    with pytest.raises(DataError, match=r"rows.jsonl:1: the row has a query, but the model reads a single text"):
        measure(checkpoint_folder.load(tmp_path / "text"), DATA, ["uniform"], model="text", seed=0)
    with pytest.raises(AdapterError, match="open_classes is given without query"):
        PooledAttentionAdapter(
            **{name: nn.Identity() for name in ("embedding", "encoder", "attention", "decoder", "tokenize")},
            classes=("a", "b"),
            open_classes=lambda one: [True, True],
        )


# -- training ---------------------------------------------------------------------------------------------------------


def questions(n: int, *, seed: int) -> Dataset:
    """A small version of bAbI: people go to places, and the question asks where one of them is."""
    draw = random.Random(seed)
    rows = []
    for index in range(n):
        places, person = draw.sample(PLACES, 2), draw.randrange(2)
        rows.append(
            Instance(
                id=f"{seed}-{index}",
                text=f"mary {places[0]} john {places[1]}",
                query=f"where {('mary', 'john')[person]}",
                label=places[person],
                where=f"made.jsonl:{index + 1}",
            )
        )
    return Dataset(name="made", source="made.jsonl", description="", instances=tuple(rows), classes=PLACES)


QUESTIONS = TrainingData(train=questions(400, seed=1), dev=questions(80, seed=2))


@pytest.mark.parametrize(
    ("form", "alignment"), [("question", "additive"), pytest.param("pair", "dot", marks=pytest.mark.slow)]
)
def test_a_small_model_learns_to_answer(form: str, alignment: str) -> None:
    architecture = msgspec.structs.replace(TINY, form=form, alignment=alignment)
    trained = train(job(QUESTIONS, architecture, epochs=10))
    assert trained.dev.accuracy >= 0.9  # without the query one half is right


def first_row(**changes: object) -> Dataset:
    """The training questions with their first row changed."""
    data = QUESTIONS.train
    return dataclasses.replace(data, instances=(dataclasses.replace(data.instances[0], **changes), *data.instances[1:]))


@pytest.mark.parametrize(
    ("form", "training", "message"),
    [
        ("text", QUESTIONS.train, "made.jsonl:1: the row has a query, but form 'text'.*--form pair"),
        (
            "pair",
            first_row(query=None),
            "made.jsonl:1: the row has no query, but form 'pair'.*--form text",
        ),
        (
            "question",
            first_row(text="mary nowhere john hall", label="garden"),
            "does not mention its label",
        ),
    ],
)
def test_data_of_another_form_are_refused_by_row(form: str, training: Dataset, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(job(replace(QUESTIONS, train=training), msgspec.structs.replace(TINY, form=form)))


def test_an_unknown_form_is_refused_with_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"Unknown form 'pairs'.*'pair'"):
        Architecture(form="pairs").check()


def test_the_command_trains_a_question_model_whose_folder_loads(tmp_path: Path) -> None:
    for name, part in QUESTIONS.parts.items():
        rows = ({"text": one.text, "query": one.query, "label": one.label} for one in part.instances[:80])
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = tmp_path / "model"
    words = ["--data", tmp_path / "train.jsonl", "--dev", tmp_path / "dev.jsonl", "--out", out, "--form", "question"]
    assert train_command.run(parser().parse_args([*map(str, [*words, *SIZES])])) == 0
    adapter = checkpoint_folder.load(out)
    assert adapter.capabilities.query
    assert "--form question" in json.loads((out / "attnaudit.json").read_text(encoding="utf-8"))["training"]["command"]
    model, _, _ = checkpoint_folder.load_model(out)
    rows = QUESTIONS.dev.instances[:5]
    inputs = adapter.collate(rows)
    assert model.architecture.form == "question"
    assert adapter.run(inputs).logits.shape == (5, 3)
