"""A model that changes while it is measured is refused in every case, on every data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnaudit.adapters import PooledAttentionAdapter, Trace
from attnaudit.errors import AdapterError, AuditError, ChangedModelError
from attnaudit.registry import datasets, models
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.session import AuditSession
from tests.small_models import TEXTS, dataset, parts


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], AuditSession]:
    """Return a function that opens a session of one model and the data sets films and stories."""
    for registry in (models, datasets):
        monkeypatch.setattr(registry, "_known", dict(registry._known))
        monkeypatch.setattr(registry, "_origin", dict(registry._origin))
    datasets.register("films")(dataset)
    datasets.register("stories")(lambda: dataset(TEXTS[::-1], name="stories"))

    def open_session(factory: Any) -> AuditSession:
        models.register("moody")(factory)
        options = AuditOptions(
            models=("moody",),
            data=("films", "stories"),
            models_base=tmp_path,
            data_base=tmp_path,
            reports=tmp_path / "reports",
        )
        opened = AuditSession(options, RunFolder(tmp_path / "reports", "run"))
        for data in options.data:
            opened.request("moody", data, ["uniform", "permutation"])
        return opened

    return open_session


class Moody(PooledAttentionAdapter):
    """Changes a weight when it first reads all texts together, which happens only after the conformance check.

    Args:
        linear: Whether the audit may use the decoder's weights, and so finds the difference before the model is hashed.
    """

    def __init__(self, *, linear: bool) -> None:
        made: dict[str, Any] = parts()
        self.changing = decoder = made["decoder"]
        made["modules"] = tuple(made[name] for name in ("embedding", "encoder", "attention", "decoder"))
        if not linear:
            made["decoder"] = lambda context: decoder(context)
        super().__init__(**made)

    def run(self, inputs: Any, *, embeddings: Any = None, **given: Any) -> Trace:
        trace = super().run(inputs, embeddings=embeddings, **given)
        if len(trace.logits) == len(TEXTS):
            with torch.no_grad():
                self.changing.bias.fill_(1.0)
        return trace


def test_every_case_of_a_changed_model_is_refused(session: Any, tmp_path: Path) -> None:
    opened = session(lambda: Moody(linear=False))
    with pytest.raises(ChangedModelError, match="parameters or buffers changed") as first:
        opened.measurements("moody", "films", ["uniform"])
    # The weight changes only once, so the changed model would be the same throughout the second data set.
    for data, need in (("films", "permutation"), ("stories", "uniform")):
        with pytest.raises(ChangedModelError) as later:
            opened.measurements("moody", data, [need])
        assert later.value is first.value
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_change_that_leads_to_another_error_is_found_with_the_next_data_set(session: Any) -> None:
    opened = session(lambda: Moody(linear=True))
    with pytest.raises(AdapterError, match=r"decoder_weights\(\): the probabilities computed"):
        opened.measurements("moody", "films", ["uniform"])
    with pytest.raises(ChangedModelError, match="parameters or buffers changed"):
        opened.measurements("moody", "stories", ["uniform"])


def test_a_model_that_changes_during_the_conformance_check_is_refused(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(adapter: Any, _instances: Any) -> list[Any]:
        with torch.no_grad():
            adapter.decoder.bias.fill_(1.0)
        return []

    monkeypatch.setattr("attnaudit.conformance.quick", changing)
    with pytest.raises(ChangedModelError, match="parameters or buffers changed"):
        session(lambda: PooledAttentionAdapter(**parts())).measurements("moody", "films")  # type: ignore[arg-type]


def test_a_row_that_fails_on_one_data_set_does_not_refuse_the_others(session: Any) -> None:
    class Fragile(PooledAttentionAdapter):
        def run(self, inputs: Any, **given: Any) -> Trace:
            trace = super().run(inputs, **given)
            broken = len(trace.logits) == len(TEXTS) and inputs.tokens["text"][0] == TEXTS[5].split()
            return replace(trace, logits=trace.logits * torch.nan) if broken and self.fails else trace

        fails = True

    made = Fragile(**parts())  # type: ignore[arg-type]
    opened = session(lambda: made)
    with pytest.raises(AdapterError, match="not finite") as raised:
        opened.measurements("moody", "films")
    assert isinstance(raised.value, AuditError)
    assert not isinstance(raised.value, ChangedModelError)
    made.fails = False
    assert len(opened.measurements("moody", "stories")) == len(TEXTS)
