"""Readings never show weights over another text than the audited one."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from attnaudit.adapters.protocol import QUERY, TEXT, Capabilities, Site
from attnaudit.engine.batches.scopes import expanded, scope_of
from attnaudit.errors import AdapterError


def model(*streams: str) -> Any:
    """Return a model whose cross-attention layers read these streams in turn."""
    sites = tuple(
        Site(key=f"cross.{n}", layer=n, kind="cross", heads=2, query="decoder", keys=stream)
        for n, stream in enumerate(streams)
    )
    capabilities = Capabilities(classes=("no", "yes"), reading="last@layer=-1,heads=mean")
    return SimpleNamespace(sites=lambda: sites, capabilities=capabilities)


def test_only_sites_over_the_text_are_read() -> None:
    mixed = model(QUERY, TEXT, QUERY, TEXT, QUERY)
    readings = expanded(mixed, "last@layer=*,heads=mean")
    assert [scope_of(mixed, reading).site.key for reading in readings] == ["cross.1", "cross.3"]
    assert [reading.layer for reading in readings] == [1, 3]
    (last,) = expanded(mixed, "own@layer=-1,heads=mean")
    assert scope_of(mixed, last).site.key == "cross.3"
    for own in ("layer=1", "layer=-2", "site=cross.1"):
        (first,) = expanded(mixed, f"last@{own},heads=mean")
        assert first.text == "last@layer=1,heads=mean"
        assert scope_of(mixed, first).site.key == "cross.1"


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            "layer=2",
            "the site 'cross.2' attends to 'query', not to the text. The layers that attend to the text are",
        ),
        ("site=cross.4", "the site 'cross.4' attends to 'query', not to the text"),
        ("layer=7", "there is no layer 7; the model has layers 1, 3"),
        ("layer=-3", "there is no layer -3"),
        ("site=cross.9", "the stack has no site 'cross.9'. Did you mean 'cross."),
    ],
)
def test_a_site_over_another_stream_is_refused_by_name(own: str, message: str) -> None:
    with pytest.raises(AdapterError, match=re.escape(message)):
        expanded(model(QUERY, TEXT, QUERY, TEXT, QUERY), f"last@{own},heads=mean")


def test_a_stack_without_a_site_over_the_text() -> None:
    with pytest.raises(AdapterError, match="the 2 sites of the stack 'cross' attend to query, not to the text"):
        expanded(model(QUERY, QUERY), "last@layer=-1,heads=mean")


def test_rollout_needs_every_layer() -> None:
    with pytest.raises(AdapterError, match="only 1 of 2 sites of the stack 'cross' attend to the text"):
        expanded(model(QUERY, TEXT), "rollout@query=last")


def test_every_head_of_every_layer_is_read() -> None:
    """The layers can have different numbers of heads."""
    mixed = model(TEXT, QUERY, TEXT)
    sites = [replace(site, heads=heads) for site, heads in zip(mixed.sites(), (2, 5, 3), strict=True)]
    mixed.sites = lambda: tuple(sites)
    places = [(reading.layer, reading.heads) for reading in expanded(mixed, "last@layer=*,heads=*")]
    assert places == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    assert [reading.layer for reading in expanded(mixed, "last@layer=*,heads=1")] == [0, 2]
    with pytest.raises(AdapterError, match="there is no head 2; the model has heads 0 to 1"):
        expanded(mixed, "last@layer=*,heads=2")
