"""Results of Transformers that come from the same passes, or from passes that begin at a recorded state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.huggingface.passes.query_replay import replay_after_position, replay_full
from attnaudit.adapters.padding import repeated
from attnaudit.adapters.protocol import Site
from attnaudit.engine.batches.attention_view import AttentionView
from attnaudit.engine.batches.batch import Batch
from attnaudit.engine.batches.held_attention import gives_both, held_and_live
from attnaudit.instances import Dataset, Instance
from attnaudit.readings import parse
from tests.architectures import SENTENCES

LoadAdapter = Callable[[str], Any]
INSTANCES = [Instance(id=str(n), text=text) for n, text in enumerate((SENTENCES[0][:11], *SENTENCES[1:3]))]
CLOSE = {"atol": 2e-6, "rtol": 0}


def batch_of(adapter: Any) -> Batch:
    return Batch(adapter, INSTANCES, range(len(INSTANCES)), seed=0, keep_graph=False, budget=64, pass_counts=Counter())


def all_masks(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the rows, and the units that are kept, of the texts with one unit, without one unit and with none."""
    rows, unit = batch.real.nonzero(as_tuple=True)
    this = torch.arange(batch.real.shape[1]) == unit[:, None]
    everything = torch.arange(len(batch.real))
    return (
        torch.cat([rows, rows, everything]),
        torch.cat([batch.real[rows] & ~this, this, torch.zeros_like(batch.real)]),
    )


@pytest.mark.parametrize("reading", ["cls@layer=-1,heads=mean", "cls@layer=-1,heads=1", "last@layer=0,heads=mean"])
@pytest.mark.parametrize("name", ["bert", pytest.param("deberta", marks=pytest.mark.slow)])
def test_held_and_live_outputs_come_from_one_pass_per_text(name: str, reading: str, load_adapter: LoadAdapter) -> None:
    adapter = load_adapter(name)
    together, apart = batch_of(adapter), batch_of(adapter)
    rows, keep = all_masks(together)
    view = AttentionView(together, parse(reading))
    assert gives_both(view)
    assert view.head_patterns is not None  # runs the clean pass
    before = together.pass_counts["forward_rows"]
    held, live = held_and_live(view, rows, keep)
    assert together.pass_counts["forward_rows"] - before == len(rows)
    expected = AttentionView(apart, parse(reading)).masked_with_attention_held(rows, keep)
    torch.testing.assert_close(held, expected, **CLOSE)
    torch.testing.assert_close(live, apart.masked(rows, keep), **CLOSE)
    assert (held - live).abs().max() > 1e-5


@pytest.mark.parametrize("reading", ["mean@layer=0,heads=0", "rollout@query=cls"])
def test_readings_of_several_queries_or_layers_need_a_pass_of_their_own(
    reading: str, load_adapter: LoadAdapter
) -> None:
    assert not gives_both(AttentionView(batch_of(load_adapter("bert")), parse(reading)))


def test_effects_of_masked_tokens_share_their_passes_with_erasure(load_adapter: LoadAdapter) -> None:
    adapter, dataset = (
        load_adapter("bert"),
        Dataset(name="texts", instances=tuple(INSTANCES), source="test", description=""),
    )
    needs = ["comprehensiveness.mask", "sufficiency.mask", "pointing.held", "pointing.live"]
    together, record = measured(adapter, dataset, needs)
    rows = 0
    for need in needs:
        alone, one = measured(adapter, dataset, [need])
        rows += one.passes["forward_rows"]
        for column in alone.scalars:
            torch.testing.assert_close(
                torch.tensor(together.scalar(column)), torch.tensor(alone.scalar(column)), equal_nan=True, **CLOSE
            )
    assert record.passes["forward_rows"] < 0.6 * rows


def measured(adapter: Any, dataset: Dataset, needs: list[str]) -> tuple[Any, Any]:
    from attnaudit.engine.measuring import measure

    return measure(adapter, dataset, needs, model="bert", seed=0)


def test_uniform_weights_of_single_heads_share_their_passes(load_adapter: LoadAdapter) -> None:
    adapter, dataset = (
        load_adapter("bert"),
        Dataset(name="texts", instances=tuple(INSTANCES), source="test", description=""),
    )
    together, record = measured(adapter, dataset, ["uniform", "uniform/own@layer=*,heads=*"])
    sites = adapter.sites()
    assert record.passes["replay"] == len(sites)
    for layer, head in ((0, 1), (len(sites) - 1, 0)):
        reading = f"own@layer={layer},heads={head}"
        alone, _ = measured(adapter, dataset, [f"uniform/{reading}"])
        (text,) = alone.readings_of(reading)
        values = [torch.tensor(one.under(text).scalar("uniform.tvd")) for one in (together, alone)]
        torch.testing.assert_close(*values, **CLOSE)


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "deberta", "t5"])
def test_layers_after_the_replaced_query_resume_from_its_state(name: str, load_adapter: LoadAdapter) -> None:
    adapter = load_adapter(name)
    *earlier, last = adapter.sites()
    assert not adapter.replay_forms(last).after_position
    if name in ("deberta", "t5"):  # a softmax is replaced, or there are several streams
        assert not any(adapter.replay_forms(site).after_position for site in earlier)
        return
    inputs = adapter.collate(INSTANCES)
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        for site in earlier:
            assert adapter.replay_forms(site).after_position
            queries = (inputs.mask["text"].sum(1) - 1) // 2
            weights = torch.rand(len(INSTANCES), 3, site.heads, inputs.mask["text"].shape[1])
            weights = weights * trace.allowed[site.key][torch.arange(len(INSTANCES)), :, queries][:, None]
            weights = weights / weights.sum(-1, keepdim=True)
            found = replay_after_position(adapter.runner, inputs, trace, site, queries, weights)
            expected = replay_full(adapter.runner, inputs, site, queries, weights)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert", "gpt2", "deberta", "t5"])
def test_whole_layers_resume_from_recorded_states(
    name: str, load_adapter: LoadAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = load_adapter(name)
    inputs, variants = adapter.collate(INSTANCES), 2
    with torch.no_grad():
        trace = adapter.run(inputs, hidden=True)
        for site in adapter.sites():

            def flipped(at: Site, weights: Tensor, _allowed: Tensor, _first: int = 0, key: str = site.key) -> Any:
                return weights.flip(1) if at.key == key else None

            found = adapter.resume(inputs, trace, site, variants, flipped)
            expected = adapter.run(repeated(inputs, variants), intervene=flipped).logits
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        without = replace(trace, cache=None)
        torch.testing.assert_close(adapter.resume(inputs, without, site, variants, flipped), found, atol=1e-5, rtol=0)
