"""The search with the published settings, compared with the exact optimum of the same instances."""

from __future__ import annotations

import numpy as np
import pytest

from attnaudit.checks import AdversarialDivergence
from attnaudit.engine.measuring import measure
from attnaudit.engine.planning import resolve
from attnaudit.errors import CheckError
from tests.small_models import TEXTS, adapter, dataset

PUBLISHED = AdversarialDivergence(tvd=0.05, preset="jain_wallace", severity="report")
EXACT = AdversarialDivergence(tvd=0.05, severity="report")


def test_the_search_is_feasible_and_never_above_the_optimum() -> None:
    needs = (*PUBLISHED.needs(), "adversarial.0.05")
    measurements, _ = measure(
        adapter(), dataset(), needs, model="small", seed=0, labels=[i % 2 for i in range(len(TEXTS))]
    )
    searched, exact = (
        measurements.scalar("adversarial.jain_wallace.0.05.jsd"),
        measurements.scalar("adversarial.0.05.jsd"),
    )
    several = measurements.lengths > 1
    assert (searched[several] <= exact[several] + 1e-6).all()
    assert searched[several].mean() > 0.8 * exact[several].mean()
    assert (measurements.scalar("adversarial.jain_wallace.0.05.tvd")[several] <= 0.05 + 1e-5).all()
    assert measurements.facts == {"adversarial.method": "exact", "adversarial.jain_wallace.method": "searched"}
    record = PUBLISHED.judge(measurements)
    assert record.check == "adversarial_divergence.jain_wallace.0.05"
    assert record.value == pytest.approx(np.nanmean(searched))
    assert record.details["method"] == "searched"
    assert "the true maximum may be larger" in record.note
    assert [len(series.x) for series in record.charts[0].series] == [1]


def test_the_search_is_measured_only_at_its_own_bound() -> None:
    assert PUBLISHED.needs() == ("adversarial.jain_wallace.0.05",)
    assert len(EXACT.needs()) > 1
    assert PUBLISHED.id != EXACT.id


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(CheckError, match="unknown preset 'jain-wallace'"):
        AdversarialDivergence(preset="jain-wallace", severity="report")  # type: ignore[arg-type]
    with pytest.raises(CheckError, match="expected a total variation"):
        resolve(["adversarial.jain.0.05"])
