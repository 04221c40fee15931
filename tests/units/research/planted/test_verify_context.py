"""Exchange in context: the donors, the positions, and models whose answer to each exchange is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnaudit.errors import ModelError
from attnaudit.instances import Dataset, Instance
from attnaudit.models.architecture import Architecture
from attnaudit.models.encoded_rows import EncodedRows
from attnaudit.models.pooled_classifier import ForwardPass, PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.context_attention import (
    encoder_for,
    first_of,
    held_to,
    last_token,
    next_to,
    state_logits,
    words_of,
)
from attnaudit.research.planted.kind import Kind, Recipe, TrainingInputs
from attnaudit.research.planted.verify_context import exchange_in_context, verify_in_context
from attnaudit.research.planted.verify_label import ExchangeEvidence

VOCABULARY = Vocabulary(["<pad>", "<unk>", "<sos>", "<eos>", "good", "bad", "the", "film"])
CLASSES = ("negative", "positive")
TEXTS = ("the good film", "bad the film", "film good the", "the film bad", "good", "bad")
DATA = Dataset(
    name="texts",
    source="test",
    description="",
    instances=tuple(
        Instance(id=str(index), text=text, label=CLASSES["good" in text]) for index, text in enumerate(TEXTS)
    ),
    classes=CLASSES,
)
ROWS = EncodedRows(DATA, VOCABULARY, CLASSES)


class Evidence(nn.Module):
    """States with two features: the evidence of the token, and that of the text."""

    width = 2

    def forward(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        own = embeddings[..., 0] * mask
        return torch.stack([own, own.sum(dim=1, keepdim=True) * mask], dim=-1)


class Looks(nn.Module):
    """Attention that is at the tokens with evidence, or at all others."""

    def __init__(self, *, right: bool) -> None:
        super().__init__()
        self.right = right

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        chosen = allowed & ((hidden[..., 0] != 0) == self.right)
        chosen = torch.where(chosen.any(dim=1, keepdim=True), chosen, allowed)
        return chosen.to(hidden.dtype) / chosen.sum(dim=1, keepdim=True)


def model(*, right: bool, reads: tuple[float, float]) -> PooledClassifier:
    """Return a model of which each token's evidence is known: 1 for "good", -1 for "bad" and 0 for all others.

    Args:
        right: Whether attention is at the tokens with evidence.
        reads: The weights of the token's own evidence and of the text's evidence.
    """
    classifier = PooledClassifier(
        Architecture(encoder="mlp", embedding_size=1, hidden_size=2, attention_size=1), vocabulary_size=8, classes=2
    )
    classifier.encoder, classifier.attention = Evidence(), Looks(right=right)
    with torch.no_grad():
        classifier.embedding.weight.zero_()
        classifier.embedding.weight[4], classifier.embedding.weight[5] = 1.0, -1.0
        classifier.decoder.weight.copy_(torch.tensor([reads]))
        classifier.decoder.bias.zero_()
    return classifier.eval()


def traced(classifier: PooledClassifier) -> ForwardPass:
    return classifier.trace(*ROWS.batch(range(len(TEXTS))))


def measured(*, right: bool, reads: tuple[float, float]) -> ExchangeEvidence:
    classifier = model(right=right, reads=reads)
    return exchange_in_context(classifier, traced(classifier), [None] * len(TEXTS))


def test_attended_evidence_decides_in_a_faithful_model() -> None:
    found = measured(right=True, reads=(1.0, 0.0))
    assert (found.attended, found.rest, found.states, found.rows) == (1.0, 0.0, 1.0, 6)


def test_other_tokens_decide_if_states_leak() -> None:
    found = measured(right=False, reads=(0.0, 1.0))
    # In the two texts of one token, attention can only be at the cue itself.
    assert found.attended == pytest.approx(2 / 6)
    assert found.rest == pytest.approx(4 / 6)
    assert (found.states, found.alone) == (1.0, 1.0)


def test_a_single_state_of_a_faithful_model_does_not_give_the_class() -> None:
    found = measured(right=True, reads=(1.0, 0.0))
    # A state without evidence has the logit 0, which counts as negative.
    right = sum(len(text.split()) if "bad" in text else text.split().count("good") for text in TEXTS)
    assert found.alone == pytest.approx(right / sum(len(text.split()) for text in TEXTS))


def test_a_text_without_a_donor_is_left_out() -> None:
    classifier = model(right=True, reads=(1.0, 0.0))
    found = exchange_in_context(classifier, traced(classifier), ["a", "b", "a", "b", "a", "b"])
    assert found.rows == 0
    assert found.attended is None


def test_several_logits_are_refused() -> None:
    classifier = model(right=True, reads=(1.0, 0.0))
    several = PooledClassifier(Architecture(encoder="mlp", embedding_size=2), vocabulary_size=8, classes=3)
    with pytest.raises(ModelError, match="3 logits"):
        exchange_in_context(classifier, traced(several), [None] * len(TEXTS))


def kind(truth: str, fails: tuple[str, ...] = ("used", "points")) -> Kind:
    def none(_inputs: TrainingInputs) -> Recipe:
        raise NotImplementedError

    return Kind(name="test", mechanism="test", truth=truth, description="", recipe=none, fails=fails)


@pytest.mark.parametrize(
    ("truth", "right", "reads", "expected"),
    [
        ("faithful", True, (1.0, 0.0), []),
        ("faithful", False, (0.0, 1.0), ["the attended tokens", "the other tokens"]),
        ("unfaithful", True, (1.0, 0.0), ["the attended tokens", "the other tokens", "single states"]),
    ],
)
def test_unmet_requirements_are_named(
    truth: str, right: bool, reads: tuple[float, float], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnaudit.research.planted.verify_exchange.FEWEST_ROWS", 1)
    classifier = model(right=right, reads=reads)
    recipe = Recipe(architecture=Architecture())
    evidence = verify_in_context(kind(truth), recipe, classifier, VOCABULARY, CLASSES, DATA)
    assert evidence.accuracy == 1.0
    assert len(evidence.unmet) == len(expected)
    for reason, part in zip(evidence.unmet, expected, strict=True):
        assert part in reason


def test_plans_name_tokens() -> None:
    classifier = model(right=True, reads=(1.0, 0.0))
    passed = traced(classifier)
    cue = words_of("praise", "blame")

    def places(plan: object) -> list[list[int]]:
        found = plan(VOCABULARY)(passed) & passed.real  # type: ignore[operator]
        return [row.nonzero().flatten().tolist() for row in found]

    # START is at position 0.
    assert places(cue) == [[2], [1], [2], [3], [1], [1]]
    assert places(first_of(cue)) == places(cue)
    assert places(next_to(cue)) == [[3], [2], [3], [], [], []]
    assert places(last_token) == [[3], [3], [3], [3], [1], [1]]


def test_the_losses_of_a_plan_are_those_computed_by_hand() -> None:
    classifier = model(right=True, reads=(1.0, 0.0))
    passed = traced(classifier)
    classes, zero = torch.tensor([1, 0, 1, 0, 1, 0]), torch.tensor(0.0)
    # All weight is at the cues, and all other states have the logit 0.
    kept = held_to(words_of("praise", "blame"), label="attended")(VOCABULARY)(classifier, passed, classes, zero)
    torch.testing.assert_close(kept, torch.tensor(0.0))
    # The last word has no weight in texts 0, 1 and 2, whose cue is elsewhere; its state logit is squared in the others.
    last = held_to(last_token, label="attended")(VOCABULARY)(classifier, passed, classes, zero)
    log, squared = -torch.log(torch.tensor(1e-6)), 1 / 2
    torch.testing.assert_close(last, 3 * (log + squared) / 6)
    everywhere = held_to(words_of("praise", "blame"), label="everywhere")(VOCABULARY)(classifier, passed, classes, zero)
    logits = state_logits(classifier, passed)
    wanted = classes[:, None].expand_as(logits).float()
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    expected = torch.stack([row[real].mean() for row, real in zip(entropy, passed.real, strict=True)]).mean()
    torch.testing.assert_close(everywhere, expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_encoders_take_turns_and_meet_both_alignments(count: int) -> None:
    names = [str(index) for index in range(count)]
    met = {(encoder_for(seed, names), seed % 2) for seed in range(2 * count)}
    assert len(met) == 2 * count
