"""The weights of some queries are recomputed next to the fused kernel, and equal those of eager attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'attnaudit[transformers]'")

from attnaudit.adapters.protocol import Inputs, Site
from attnaudit.adapters.site_selection import at_queries, at_query
from attnaudit.errors import AdapterError
from attnaudit.instances import Instance

Load = Callable[[str], Any]

#: An encoder, causal models without and with groups of heads and a sliding window, and encoder–decoder models. The
#: decoder of "bart-lm" reads a single token, so that its first and its last query are the same.
NAMES = (
    "bert",
    "gpt2",
    "mistral",
    "bart",
    "bart-lm",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "t5")),
)


def ends(inputs: Inputs, site: Site) -> torch.Tensor:
    """Return the positions (B, 2) of the first and the last query."""
    mask = inputs.mask[str(site.query)]
    return torch.stack([mask.int().argmax(1), mask.shape[1] - 1 - mask.flip(1).int().argmax(1)], dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_selected_queries_have_the_weights_of_eager_attention(
    name: str, load_adapter: Load, instances: list[Instance]
) -> None:
    adapter = load_adapter(name)
    assert adapter.capabilities.selects_queries
    for texts in (instances, instances[1:2]):
        inputs = adapter.collate(texts)
        queries = {site.key: ends(inputs, site) for site in adapter.sites()}
        with torch.no_grad():
            whole = adapter.run(inputs)
            trace = adapter.run(inputs, sites=tuple(queries), queries=queries)
        torch.testing.assert_close(trace.logits, whole.logits, atol=1e-5, rtol=1e-5)
        for key, positions in queries.items():
            assert trace.attention[key].shape[2] == 2
            for r in range(2):
                expected = at_query(whole, whole.attention[key], key, positions[:, r])
                torch.testing.assert_close(trace.attention[key][:, :, r], expected, atol=1e-5, rtol=0)
                assert torch.equal(
                    trace.allowed[key][:, :, r], at_query(whole, whole.allowed[key], key, positions[:, r])
                )


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_interventions_are_those_of_eager_attention(
    name: str, load_adapter: Load, instances: list[Instance]
) -> None:
    adapter = load_adapter(name)
    inputs = adapter.collate(instances)
    site = adapter.sites()[-1]
    queries = {site.key: ends(inputs, site)}
    embedded = {stream: value.detach() for stream, value in adapter.embed(inputs).items()}

    def reverse(at: Site, weights: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor | None:
        return 0.5 * weights + 0.5 * allowed / allowed.sum(-1, keepdim=True) if at.key == site.key else None

    found = []
    for selects in (True, False):
        results = []
        for change in (None, reverse):
            leaves = {stream: value.clone().requires_grad_(True) for stream, value in embedded.items()}
            if selects:
                trace = adapter.run(inputs, embeddings=leaves, intervene=change, sites=(site.key,), queries=queries)
                weights = trace.attention[site.key]
            else:
                whole = None if change is None else at_queries(change, queries)
                trace = adapter.run(inputs, embeddings=leaves, intervene=whole)
                weights = trace.attention[site.key]
            target = trace.logits.square().sum()
            at_weights, at_text = torch.autograd.grad(target, (weights, leaves["text"]))
            at_weights = at_weights * trace.allowed[site.key]  # the states of padding differ between the kernels
            read = [at_query(trace, at_weights, site.key, positions) for positions in queries[site.key].T]
            results += [trace.logits.detach(), *read, at_text]
        found.append(results)
    for recomputed, eager in zip(*found, strict=True):
        size = max(1.0, float(eager.abs().max()))
        torch.testing.assert_close(recomputed, eager, atol=1e-5 * size, rtol=0)


def test_a_query_that_the_trace_lacks_is_not_read(load_adapter: Load, instances: list[Instance]) -> None:
    adapter = load_adapter("bert")
    inputs, site = adapter.collate(instances), adapter.sites()[-1]
    first, last = ends(inputs, site).T
    with torch.no_grad():
        trace = adapter.run(inputs, sites=(site.key,), queries={site.key: first[:, None]})
    weights = trace.attention[site.key]
    assert torch.equal(at_query(trace, weights, site.key, first), weights[:, :, 0])
    with pytest.raises(AdapterError, match=f"lacks the attention of the query that the reading needs at '{site.key}'"):
        at_query(trace, weights, site.key, last)
