"""The symbols that the pages of papers explain."""

from __future__ import annotations

import re

import pytest

from attnaudit.research.reproduction.pages.glossary import SYMBOLS, symbols_in


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Weighted τ is higher.", ["τ"]),
        ("τ-b with the gradient", ["τ-b"]),
        ("Δτ of the adversary", ["τ", "Δτ"]),  # the definition of Δτ contains τ
        ("largest JSD", ["JSD", "nat"]),
        ("sst/tying/additive and MLM", ["additive", "tying, δ", "MLM, η"]),
        ("sst/mlp/dot and deep", ["dot", "deep"]),
        ("H̃ of the influence, residual, concat", ["H̃", "concat", "residual"]),
        ("signature, concatenation, additives and dotted", []),
    ],
)
def test_a_symbol_is_found_where_it_is_used_or_needed_by_a_definition(text: str, names: list[str]) -> None:
    assert [symbol.name for symbol in symbols_in(text)] == names


def test_every_symbol_is_found_by_its_own_name() -> None:
    assert len({symbol.name for symbol in SYMBOLS}) == len(SYMBOLS)
    for symbol in SYMBOLS:
        assert re.search(symbol.pattern, symbol.name)
