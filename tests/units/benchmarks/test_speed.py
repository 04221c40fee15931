"""The speed benchmark on a few tiny instances: both sides give the same numbers. No time is asserted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnaudit.models.architecture import Architecture
from attnaudit.models.pooled_classifier import PooledClassifier
from attnaudit.models.vocabulary import Vocabulary
from benchmarks.speed import pooled, ranks, running, subjects, timing, writing
from benchmarks.speed.timing import Clock, Comparison, DisagreementError, compare
from tests.forking_interpreter import run_module

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the trained model by a narrow untrained one."""
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(one.text for one in subjects.short_texts(50).instances)
    architecture = Architecture(embedding_size=12, hidden_size=8, attention_size=8)
    model = PooledClassifier(architecture, vocabulary_size=len(vocabulary), classes=2).eval().requires_grad_(False)
    with torch.no_grad():
        model.decoder.weight.mul_(5)
        model.attention.alignment.score.weight.mul_(10)
    monkeypatch.setattr(subjects, "trained", lambda: (model, vocabulary))
    monkeypatch.setattr(timing, "STRETCH", 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["n≈20", "n≈40"])
def test_pooled_comparisons_agree(small: None, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("captum", reason="captum is in the extra `test`")
    monkeypatch.setattr(pooled, "long_texts", lambda count: subjects.long_texts(count, 40))
    found = [compare(one, 1) for one in pooled.Pooled(label, 3, 2, steps=3).every()]
    assert {one.name for one in found} > {f"gradient, {label}", f"leave-one-out by deletion, {label}"}
    for one in found:
        assert one.difference <= one.tolerance
        assert one.our_passes["forward"] >= 1
        assert sum(one.their_passes.values()) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("family", [ranks.kendall, ranks.weighted, ranks.information])
def test_rank_comparisons_agree(family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "STRETCH", 1e-9)
    monkeypatch.setattr(ranks, "LENGTHS", {20: (12, 12, 10.0), 60: (4, 4, 1.0)})
    assert all(compare(one, 1).ratio > 0 for one in family())


@pytest.mark.slow
def test_a_small_transformer_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is an extra")
    pytest.importorskip("captum", reason="captum is in the extra `test`")
    from benchmarks.speed import minilm

    small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
    monkeypatch.setattr(subjects, "MINILM", {**subjects.MINILM, **small})
    monkeypatch.setattr(timing, "STRETCH", 1e-9)
    subjects.minilm_as_it_ships.cache_clear()
    try:
        rival, subject = minilm.Rival(), subjects.minilm("n≈20", subjects.short_texts(2))
        made = [*minilm.passes("MiniLM size", rival, subject), *minilm._of(rival, subject)]
        found = [compare(one, 1) for one in made]
    finally:
        subjects.minilm_as_it_ships.cache_clear()
    assert len(found) == 5


def test_results_that_differ_are_refused() -> None:
    one = Comparison(
        name="a", rival="b", instances=1, ours=lambda: 1.0, theirs=lambda: 2.0,
        difference=lambda a, b: abs(a - b), tolerance=0.5,
    )  # fmt: skip
    with pytest.raises(DisagreementError, match="differs from b by 1"):
        compare(one, 1)
    assert compare(replace(one, tolerance=1.0), 1).difference == 1.0


def test_a_clock_counts_nested_calls_once() -> None:
    clock = Clock()
    thing = SimpleNamespace(inner=lambda: sum(range(20_000)), outer=lambda: thing.inner())
    clock.wrap(thing, "inner")
    clock.wrap(thing, "outer")
    started = timing.device.now()
    thing.outer()
    assert 0 < clock.seconds <= timing.device.now() - started


def test_the_page_says_which_targets_are_met(tmp_path: Path) -> None:
    timed = timing.Timed(
        name="gradient, n≈20", rival="a loop", instances=2, repeats=1, ours_ms=1.0, theirs_ms=3.0, ratio=3.0, low=2.5,
        high=3.5, difference=1e-7, tolerance=1e-5, our_passes={"forward": 1, "forward_rows": 2}, target=10.0,
    )  # fmt: skip
    found = {
        "machine": writing.machine(),
        "comparisons": [writing.plain(timed), writing.plain(replace(timed, name="forward pass, n≈20", target=2.0))],
        "audit": {
            "total": 3.0, "passes": 2.0, "engine": 0.5, "rest": 0.5, "ratio": 1.5, "low": 1.4, "high": 1.6,
            "repeats": 3, "instances": 10,
        },
        "startup": [
            {"command": "attnaudit --help", "seconds": 0.1, "low": 0.1, "high": 0.2, "cpu": 0.1, "imports_torch": False}
        ],
    }  # fmt: skip
    (tmp_path / "README.md").write_text(f"before\n{writing.BEGIN}\nold\n{writing.END}\nafter\n", encoding="utf-8")
    writing.write(found, tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert "| gradient, n≈20: compared with a loop | ≥10× | 3×, 1 ms | **not met** |" in page
    assert "| forward pass, n≈20: compared with a loop | ≥2× | 3×, 1 ms | met |" in page
    assert "1 f (2 rows)" in page
    assert json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))["comparisons"][0]["met"] is False


def test_the_committed_page_is_that_of_the_committed_figures() -> None:
    found = json.loads(writing.JSON.read_text(encoding="utf-8"))
    assert writing.page(found) in writing.PAGE.read_text(encoding="utf-8")


def test_the_command_lists_its_options() -> None:
    done = run_module("benchmarks.speed", "--help", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
    assert "--only" in done.stdout


def test_only_selects_by_parts_of_names() -> None:
    name = "MiniLM size: gradient, n≈20: Captum Saliency, batches of 16"
    assert running.selects((), name)
    assert running.selects(("audit", "minilm size: GRADIENT"), name)
    assert not running.selects(("audit", "leave-one-out"), name)
