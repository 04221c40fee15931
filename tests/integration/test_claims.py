"""The claims of the papers, answered from small models that are trained on the packaged sentences."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnaudit.research.reproduction import prepare_corpora, reproduce
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.papers import paper
from attnaudit.research.reproduction.reproduce_options import ReproductionOptions

#: paper -> (tables, rows)
ASKED = {
    "jain-wallace": ((), ("*/bilstm/additive", "*/average/additive")),
    "meister": (("influence", "agreement"), ("*/bilstm/additive/*",)),
    "tutek-snajder": (
        ("fragility", "information", "probability"),
        ("*/base/additive", "*/residual/additive", "*/tying/additive", "*/mlm/additive"),
    ),
    "wen": (("ranking", "fixed", "adversarial"), ("*/bilstm/additive", "*/bilstm/dot")),
    "wiegreffe-pinter": (("uniform", "adversary"), ("*/bilstm/additive",)),
}
#: Claims that hold for small models over three seeds. The others may come out either way.
HOLD: dict[str, set[str]] = {
    "jain-wallace": {"other attention gives the same output", "the search falls short"},
    "meister": {"influence is spread", "states over inputs, gradient"},
    "tutek-snajder": {"states retain more", "one state says less"},
    "wen": set(),  # with so few texts, rounding in the training changes the ranking
    "wiegreffe-pinter": set(),  # the intervals over three seeds of adversaries contain 0
}
#: Claims that small models never contradict, though three seeds may leave them undecided.
NOT_REVERSED = {
    "jain-wallace": {"attention agrees little", "without context it agrees more", "permuting changes little"},
    "meister": {"states over inputs, leave-one-out"},
    "tutek-snajder": {"tying keeps F1", "tying is fragile", "mlm is fragile", "mlm keeps F1"},
    "wen": {"additive-over-dot", "adversary-keeps-ranking"},
    "wiegreffe-pinter": {
        "an adversary differs more than another seed",
        "trained adversaries differ less than those found text by text",
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("claims")


def _reproduced(name: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> Reproduction:
    monkeypatch.setattr(prepare_corpora, "QUICK", {"train": 4000, "dev": 600, "test": 300})
    monkeypatch.setattr(reproduce, "QUICK_SEEDS", 3)
    monkeypatch.setattr(reproduce, "QUICK_TRAINING", {"epochs": 5, "learning_rate": 0.003})
    monkeypatch.setattr(reproduce, "QUICK_SIZES", {"embedding_size": 64, "hidden_size": 32, "attention_size": 32})

    @contextlib.contextmanager
    def shown(_what: str) -> Iterator[Any]:
        yield lambda _done, _total, _name: None

    tables, only = ASKED[name]
    options = ReproductionOptions(paper=paper(name), out=out, command="", tables=tables, only=only, jobs=2, quick=True)
    report, _, _ = reproduce.reproduce(options, progress_bar=shown)
    return report


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_the_answers_to_claims(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _reproduced(name, folder, monkeypatch)
    found = {finding.claim: finding for finding in one.findings}
    for claim in HOLD[name]:
        # On some processors, a seed of these small models trains so badly that its row does not count.
        untrained = found[claim].cause == "untrained"
        assert found[claim].verdict == ("undecided" if untrained else "holds"), found[claim]
    for claim in NOT_REVERSED[name]:
        assert found[claim].verdict != "does not hold", found[claim]
    for finding in one.findings:
        assert finding.reason


@pytest.mark.slow
def test_no_search_finds_more_than_the_exact_adversary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _reproduced("jain-wallace", folder, monkeypatch)
    (table,) = (table for table in one.tables if table.name == "adversarial")
    rows = [row for row in table.rows if row.lines]
    assert len(rows) == 2
    for row in rows:
        lines = {line.quantity: line for line in row.lines}
        for epsilon in (".01", ".05"):
            excess = lines[f"excess {epsilon}"]
            assert len(excess.values) == 3
            assert all(value is not None and value > -1e-6 for value in excess.values)
