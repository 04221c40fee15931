"""Public models of pictures, recordings and passages: the rows, and the page."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.public_recordings import MODELS, RATE, recording
from benchmarks.public_units import PAGE, ROWS, SETUP, larger, passages, require_close


def test_each_row_has_one_passage_that_answers() -> None:
    rows = passages()
    assert len(rows) == ROWS
    for row in rows:
        sentence = f"{row.text} {row.answer}."
        assert row.passages.count(sentence) == 1
        assert len({passage.rpartition(" ")[2] for passage in row.passages}) == 3
    assert {row.passages.index(f"{row.text} {row.answer}.") for row in rows} == {0, 1, 2}


def test_a_difference_or_an_undefined_number_stops_the_command() -> None:
    require_close({"logits": 1e-6}, "model")
    for number in (1e-3, larger(0.0, float("nan"))):
        with pytest.raises(SystemExit, match=r"model: .*expected at most 1e-05"):
            require_close({"attention": 0.0, "logits": number}, "model")


def test_tones_are_high_or_low() -> None:
    for label, pitch in ((0, 500), (1, 2500)):
        samples = recording(label, np.random.default_rng(1))
        loudest = np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples)
        assert abs(loudest / pitch - 1) < 0.25


def test_the_page_has_all_models_and_the_commands() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "| ViTForImageClassification of [Kalash1106/ML_GC_2K24]" in text
    for name, _build, _what in MODELS:
        assert f"| {name} of [transformers]" in text
    assert "| SmolLM2-135M-Instruct of the package" in text
    assert all(command in text for command in SETUP)
