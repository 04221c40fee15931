"""The passes of each check, compared with calls of the model's own modules, which hooks count independently."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnaudit.adapters import PooledAttentionAdapter
from attnaudit.checks import (
    Agreement,
    Check,
    Comprehensiveness,
    Conicity,
    PermutationFragility,
    Pointing,
    TotalEffect,
    UniformFragility,
)
from attnaudit.engine.measuring import measure
from attnaudit.records import MeasureRecord, Passes
from attnaudit.report.check_costs import CostTable, cost_table
from tests.small_models import TEXTS, dataset, parts

CHECKS: dict[str, Check] = {
    one.id: one
    for one in (
        TotalEffect(at_least=0.1),
        PermutationFragility(at_least=0.1),
        UniformFragility(at_least=0.1),
        Agreement(importance="gradient", at_least=0.1),
        Agreement(importance="leave_one_out", at_least=0.1),
        Comprehensiveness(at_least=0.1),
        Pointing(at_least=0.1),
        Conicity(at_most=0.9),
    )
}


class Decoder(nn.Module):
    """A decoder that is not linear, so that every changed attention has to be decoded by it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, contexts: Tensor) -> Tensor:
        logits: Tensor = self.layers(contexts)
        return logits


def counted_model() -> tuple[PooledAttentionAdapter, Counter[str]]:
    """Return a model, and the rows that its encoder and decoder have read and of which gradients were computed."""
    made: dict[str, Any] = parts()
    counts: Counter[str] = Counter()

    def backward(gradient: Tensor) -> None:
        counts["backward"] += len(gradient)

    def after_encoder(_module: nn.Module, _given: Any, states: Tensor) -> None:
        counts["encoder"] += len(states)
        if states.requires_grad:
            states.register_hook(backward)

    def after_decoder(_module: nn.Module, given: tuple[Tensor], _logits: Tensor) -> None:
        counts["decoder"] += given[0][..., 0].numel()

    decoder = Decoder()
    made["encoder"].register_forward_hook(after_encoder)
    decoder.register_forward_hook(after_decoder)
    return PooledAttentionAdapter(**{**made, "decoder": decoder, "mask_id": 1}), counts


def audited(*checks: str) -> tuple[CostTable, MeasureRecord, Counter[str]]:
    """Return the costs of an audit with some checks, its record, and the counts of the hooks."""
    model, counts = counted_model()
    counts.clear()
    needs = {check: CHECKS[check].needs_under_reading() for check in checks}
    _, record = measure(model, dataset(), sorted({n for named in needs.values() for n in named}), model="m", seed=0)
    return cost_table(needs, record.costs), record, counts


@pytest.mark.parametrize("check", CHECKS)
def test_the_passes_of_a_check_are_the_calls_of_the_modules(check: str) -> None:
    table, record, counts = audited(check)
    (cost,) = table.checks
    again = record.repeated_rows  # rows that ran again at the end belong to no check
    assert again == len(TEXTS)
    assert cost.passes.forward == counts["encoder"] - again
    assert cost.passes.partial == counts["decoder"] - counts["encoder"]
    assert cost.passes.backward == counts["backward"]


def test_checks_that_share_work_have_the_same_passes_as_alone() -> None:
    """Which of them is measured first does not matter."""
    together, record, counts = audited(*CHECKS)
    for cost in together.checks:
        alone, _, _ = audited(cost.check)
        assert cost.passes == alone.checks[0].passes
    assert together.total.passes.forward == counts["encoder"] - record.repeated_rows
    assert together.total.passes.partial == counts["decoder"] - counts["encoder"]
    assert together.total.passes.backward == counts["backward"]


def test_the_own_passes_and_the_shared_ones_are_those_of_the_run() -> None:
    table, record, _ = audited(*CHECKS)
    lines = [*(cost.own_passes for cost in table.checks), table.shared.passes, table.remaining.passes]
    total = Passes.of(record.passes)
    assert table.total.passes == total
    for kind in ("forward", "partial", "backward"):
        assert sum(getattr(line, kind) for line in lines) == getattr(total, kind)
    assert sum(cost.own_seconds for cost in table.checks) + table.shared.seconds == pytest.approx(table.total.seconds)


def test_rearranged_weights_are_partial_passes_of_both_checks_that_need_them() -> None:
    table, _, _ = audited(TotalEffect(at_least=0.1).id, PermutationFragility(at_least=0.1).id)
    effect, fragility = table.checks
    assert effect.passes.partial == fragility.passes.partial > len(TEXTS)
    assert effect.own_passes.partial == fragility.own_passes.partial == 0
    assert table.shared.passes.partial == effect.passes.partial


def test_without_a_check_exactly_its_own_passes_are_saved() -> None:
    table, _, _ = audited(*CHECKS)
    for cost in table.checks:
        others, _, _ = audited(*(check for check in CHECKS if check != cost.check))
        for kind in ("forward", "partial", "backward"):
            saved = getattr(table.total.passes, kind) - getattr(others.total.passes, kind)
            assert saved == getattr(cost.own_passes, kind), cost.check
