"""Planted states: contributions agree with the construction, and the models fulfil the adapter contract."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.adapters.protocol import TEXT
from attnaudit.conformance import quick
from attnaudit.errors import ModelError
from attnaudit.instances import Instance
from attnaudit.models import checkpoint_folder
from attnaudit.models.architecture import EVIDENCE_KINDS, LABEL_POSITIONS, Architecture, Planted
from attnaudit.models.planted_states import OWN, TEXT_EVIDENCE, PlantedEncoder
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.construction import (
    planted_contributions,
    remove_biases,
    score_evidence_correlation,
    silence_evidence,
    state_contributions,
    uncorrelated_objective,
)
from attnaudit.research.planted.verify_label import neutral_effect

VOCABULARY = Vocabulary(["<pad>", "<unk>", "<sos>", "<eos>", *"abcdefgh"])
INSTANCES = [Instance(id=str(i), text=text) for i, text in enumerate(["a b c d e", "h g", "c", "f f a b", "d e z a"])]
COMBINATIONS = [
    parts
    for parts in itertools.product(EVIDENCE_KINDS, LABEL_POSITIONS, ("average", "bilstm"), ("softmax", "sparsemax"))
    if (parts[0], parts[2]) != ("scored", "bilstm")
]


def model(evidence: str, label: str, encoder: str = "average", projection: str = "softmax") -> PooledClassifier:
    torch.manual_seed(3)
    architecture = Architecture(
        encoder=encoder,
        projection=projection,
        alignment="dot",
        embedding_size=12,
        hidden_size=5,
        attention_size=4,
        planted=Planted(evidence=evidence, label=label),
    )
    classifier = PooledClassifier(architecture, vocabulary_size=len(VOCABULARY), classes=2)
    with torch.no_grad():
        classifier.embedding.weight.normal_()
        classifier.embedding.weight[0] = 0.0
        classifier.decoder.weight.zero_()
        classifier.decoder.weight[0, OWN], classifier.decoder.weight[0, TEXT_EVIDENCE] = 1.5, 0.7
        classifier.decoder.bias.zero_()
    silence_evidence(classifier)
    return classifier.eval().double()


def adapter(classifier: PooledClassifier) -> PooledAttentionAdapter:
    return PooledAttentionAdapter(
        embedding=classifier.embedding,
        encoder=classifier.encoder,
        attention=classifier.attention,
        decoder=classifier.decoder,
        tokenize=VOCABULARY.encode,
        classes=("negative", "positive"),
        modules=(classifier,),
    )


IN_CONTEXT = [("free", "everywhere", encoder, "softmax") for encoder in ("cnn", "gru", "transformer")]


@pytest.mark.parametrize("parts", COMBINATIONS + IN_CONTEXT, ids="-".join)
def test_contributions_sum_to_the_logit_and_equal_the_effect_of_removal(parts: tuple[str, str, str, str]) -> None:
    classifier = model(*parts)
    wrapped = adapter(classifier)
    inputs = wrapped.collate(INSTANCES)
    traced = classifier.trace(inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT])
    contributions = planted_contributions(classifier, VOCABULARY, traced) * traced.real
    torch.testing.assert_close(contributions.sum(dim=1), traced.logits[:, 0])
    torch.testing.assert_close(neutral_effect(wrapped, INSTANCES), contributions)
    assert contributions[traced.real].abs().max() > 0.01


@pytest.mark.parametrize("parts", COMBINATIONS + IN_CONTEXT, ids="-".join)
def test_planted_models_pass_the_conformance_check_of_an_audit(parts: tuple[str, str, str, str]) -> None:
    assert {one.outcome for one in quick(adapter(model(*parts).float()), INSTANCES)} == {"pass"}


@pytest.mark.parametrize("encoder", ["average", "mlp"])
def test_a_context_free_classifier_without_bias_has_exact_contributions(encoder: str) -> None:
    torch.manual_seed(1)
    classifier = PooledClassifier(
        Architecture(encoder=encoder, projection="sparsemax", embedding_size=6, hidden_size=6, attention_size=4),
        vocabulary_size=len(VOCABULARY),
        classes=2,
    )
    with torch.no_grad():
        classifier.embedding.weight[1:].normal_()
    remove_biases(classifier)
    classifier.eval().double()
    wrapped = adapter(classifier)
    inputs = wrapped.collate(INSTANCES)
    traced = classifier.trace(inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT])
    torch.testing.assert_close(
        neutral_effect(wrapped, INSTANCES), state_contributions(classifier, VOCABULARY, traced) * traced.real
    )


@pytest.mark.parametrize(("label", "place"), [("first", 1), ("last", -2)])
def test_one_state_carries_the_label_and_has_most_of_the_attention(label: str, place: int) -> None:
    classifier = model("free", label)
    for text in ("a b c d e", "h g", "c"):
        inputs = adapter(classifier).collate([Instance(id="0", text=text)])
        traced = classifier.trace(inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT])
        carried = traced.hidden[0, :, TEXT_EVIDENCE] != 0
        assert carried.nonzero().flatten().tolist() == [place % len(carried)]
        assert traced.weights[0].argmax() == place % len(carried)
        assert traced.weights[0].max() > 0.5


def test_unit_evidence_is_the_sign_of_free_evidence() -> None:
    free, unit = model("free", "nowhere"), model("unit", "nowhere")
    embedded = torch.randn(2, 40, 12, dtype=torch.float64)
    assert isinstance(free.encoder, PlantedEncoder)
    assert isinstance(unit.encoder, PlantedEncoder)
    z = free.encoder.evidence(embedded)
    clear = z.abs() > 0.1
    torch.testing.assert_close(unit.encoder.evidence(embedded)[clear], z.sign()[clear], atol=6e-3, rtol=0)
    assert unit.encoder.evidence(torch.zeros_like(embedded)).abs().max() == 0


def test_silent_words_stay_silent_in_training() -> None:
    classifier = model("free", "everywhere").float().train()
    silence_evidence(classifier, own=torch.tensor([entry in "ab" for entry in VOCABULARY.entries]))
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.1)
    inputs = adapter(classifier).collate(INSTANCES)
    for _ in range(3):
        traced = classifier.trace(inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT])
        optimizer.zero_grad()
        traced.logits.sum().backward()
        optimizer.step()
    assert isinstance(classifier.encoder, PlantedEncoder)
    own = classifier.encoder.parts(classifier.embedding.weight)[1].abs().sum(dim=1)
    silent = [VOCABULARY.encode("a").ids[1], VOCABULARY.encode("b").ids[1], 0, 2, 3]
    assert own[silent].max() == 0
    assert own[VOCABULARY.encode("c").ids[1]] > 0


def test_related_is_the_squared_mean_correlation_of_scores_and_ranks() -> None:
    classifier = model("free", "everywhere")
    inputs = adapter(classifier).collate(INSTANCES[:2])
    traced = classifier.trace(inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT])
    assert isinstance(classifier.encoder, PlantedEncoder)
    evidence = classifier.encoder.text_evidence(traced.embedded).abs()
    correlations = []
    for row in range(2):
        real = traced.real[row]
        ranks = evidence[row][real].argsort().argsort().double()
        correlations.append(torch.corrcoef(torch.stack([traced.hidden[row, real, 0], ranks]))[0, 1])
    expected = torch.stack(correlations).mean().square()
    torch.testing.assert_close(score_evidence_correlation(classifier, traced, traced.real), expected)
    loss = uncorrelated_objective(classifier, traced, torch.zeros(2), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(loss, 1 + 10 * expected)


def test_a_stored_planted_model_is_the_same_model(tmp_path: Path) -> None:
    classifier = model("unit", "first", encoder="bilstm").float()
    checkpoint_folder.save(tmp_path, classifier, VOCABULARY, ("negative", "positive"))
    again, _, card = checkpoint_folder.load_model(tmp_path)
    assert card.architecture == classifier.architecture
    inputs = adapter(classifier).collate(INSTANCES)
    given = inputs.ids[TEXT], inputs.mask[TEXT], inputs.special[TEXT]
    torch.testing.assert_close(again(*given), classifier(*given), atol=1e-4, rtol=0)


def test_unknown_values_are_refused() -> None:
    with pytest.raises(ModelError, match="everywhere"):
        Architecture(planted=Planted(label="everywere")).check()
    with pytest.raises(ModelError, match="unit"):
        Architecture(planted=Planted(evidence="unti")).check()
    scored = Architecture(encoder="bilstm", planted=Planted(evidence="scored"))
    with pytest.raises(ModelError, match=r"'scored' .* encoder 'average'"):
        PooledClassifier(scored, vocabulary_size=9, classes=2)
    with pytest.raises(ModelError, match="at least 4"):
        PooledClassifier(Architecture(embedding_size=3, planted=Planted()), vocabulary_size=9, classes=2)


def test_attention_over_planted_states_has_no_parameters() -> None:
    classifier = model("free", "nowhere")
    assert not list(classifier.attention.parameters())
    assert isinstance(classifier.decoder, nn.Linear)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"layers": 2}, "layers is 2"), ({"form": "pair"}, "form is 'pair'")],
)
def test_planted_states_support_one_layer_and_one_form(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        PooledClassifier(Architecture(planted=Planted(), **changes), vocabulary_size=9, classes=2)
