"""A class that is not a possible answer has no effect on any check: the model could as well lack it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnaudit import checks
from attnaudit.adapters import Encoding, PooledAttentionAdapter
from attnaudit.engine.measuring import measure
from attnaudit.instances import Dataset, Instance

CANDIDATES = 6
WORDS = tuple(f"w{i}" for i in range(CANDIDATES))
CHECKS = (
    checks.TotalEffect(on="logits", severity="report", classes="as_sampled"),
    checks.TotalEffect(severity="report", classes="as_sampled", on="standardised"),
    checks.TotalEffect(severity="report", on="standardised", classes="smallest"),
    checks.Pointing(on="logits", severity="report"),
    checks.Pointing(on="logits", measure="share", severity="report"),
    checks.Polarity(severity="report"),
    checks.Agreement(severity="report"),
    checks.Agreement(importance="leave_one_out", severity="report"),
    checks.Agreement(importance="leave_one_out", at="hidden", severity="report"),
)

Answers = Callable[[Instance], Sequence[bool]]


def reader(
    answers: Answers | None, *, closed: int = 0, factor: float = 1.0, sharpness: float = 6.0
) -> PooledAttentionAdapter:
    """Return a model that attends to the word of the query, and answers with the word that it attends to.

    Args:
        answers: The argument `open_classes`.
        closed: The number of further classes.
        factor: All logits are multiplied by this number.
        sharpness: How sharp the attention is.
    """
    torch.manual_seed(0)
    embedding = nn.Embedding(CANDIDATES + 2, 8, padding_idx=0)
    decoder = nn.Linear(8, CANDIDATES)
    with torch.no_grad():
        embedding.weight.zero_()
        embedding.weight[2:, :CANDIDATES] = 3 * torch.eye(CANDIDATES)
        embedding.weight[2:] += 0.1 * torch.randn(CANDIDATES, 8)
        decoder.weight.copy_(torch.randn(CANDIDATES, 8))
        decoder.weight[:, :CANDIDATES] += 8 * torch.eye(CANDIDATES)
        for parameter in decoder.parameters():
            parameter.mul_(factor)

    def attention(states: Tensor, allowed: Tensor, query: Tensor) -> Tensor:
        scores = sharpness * (states * query[:, None]).sum(-1)
        return torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)

    return PooledAttentionAdapter(
        embedding=embedding,
        encoder=lambda embedded, _mask: torch.tanh(embedded),
        attention=attention,
        decoder=lambda context, _query: torch.cat([decoder(context), 100 * context[..., :closed]], dim=-1),
        tokenize=lambda text: Encoding([2 + WORDS.index(word) for word in text.split()], text.split()),
        classes=(*WORDS, *(f"never {i}" for i in range(closed))),
        modules=(embedding, decoder),
        mask_id=1,
        query=lambda embedded, _mask: torch.tanh(embedded).sum(1),
        open_classes=answers,
    )


def questions(count: int = 60) -> Dataset:
    random = np.random.default_rng(0)
    rows = []
    for i in range(count):
        words = random.choice(CANDIDATES, 4, replace=False)
        answer = WORDS[words[random.integers(4)]]
        text = " ".join(WORDS[word] for word in words)
        rows.append(Instance(id=f"r{i:03d}", text=text, query=answer, label=answer))
    return Dataset(name="questions", source="questions", description="", instances=tuple(rows), classes=WORDS)


def values(model: PooledAttentionAdapter, chosen: Sequence[checks.Check] = CHECKS) -> list[float | None]:
    needs = sorted({need for check in chosen for need in check.needs()})
    measurements = measure(model, questions(), needs, model="reader", seed=0)[0]
    return [check.judge(measurements).value for check in chosen]


def test_classes_that_are_closed_in_every_row_change_nothing() -> None:
    def answers(_instance: Instance) -> list[bool]:
        return [True] * CANDIDATES + [False] * 3

    found = values(reader(answers, closed=3, sharpness=0.3))
    assert found == pytest.approx(values(reader(None, sharpness=0.3)), abs=1e-5)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e4])
def test_a_faithful_model_passes_if_the_possible_answers_differ_between_rows(factor: float) -> None:
    def answers(instance: Instance) -> list[bool]:
        return [word in instance.text.split() for word in WORDS]

    used = (CHECKS[0], CHECKS[1], CHECKS[2])
    found = values(reader(answers, factor=factor), used)
    assert min(value for value in found if value is not None) > 0.7
    assert found == pytest.approx(values(reader(answers), used), rel=1e-4)
