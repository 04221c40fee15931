"""The table of model classes: what the page shows, how results are read, and how a configuration is made small."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import transformers

from benchmarks import model_classes
from benchmarks.measured_classes import Row, one_line
from benchmarks.small_configurations import tiny_config
from tests import architectures

AUDITED = Row(
    "causal", "JambaForCausalLM", "audited", "", 27, 4, {"JambaMambaMixer": 2}, 3.1, "transformers 5, torch 2"
)
REFUSED = Row("causal", "MambaForCausalLM", "refused", "no attention | weights", seconds=2.9, versions=AUDITED.versions)


def test_the_page_counts_classes_and_names_unseen_modules_and_classes_that_were_not_run() -> None:
    rows = {(row.family, row.name): row for row in (AUDITED, REFUSED)}
    text = model_classes.page(rows, {"causal": ["JambaForCausalLM", "MambaForCausalLM", "MptForCausalLM"]})
    assert "| Causal language models | 3 | 1 | 1 | 0 | 0 | 0 | 1 | 1 |" in text
    assert "| JambaForCausalLM | audited | 27 passed, 4 not applicable | 2 × JambaMambaMixer |" in text
    assert "| MambaForCausalLM | refused | no attention / weights | — |" in text
    assert "| MptForCausalLM | not run | — | — |" in text
    assert "transformers 5, torch 2, CPU, float32; 10 texts. 0 minutes of CPU time, 3.0 s per class." in text


def test_the_page_says_if_classes_were_measured_with_suites_of_different_size() -> None:
    older = Row("causal", "MptForCausalLM", "audited", "", 26, 4, {}, 3.0, AUDITED.versions)
    names = {"causal": [AUDITED.name, older.name]}
    text = model_classes.page({(row.family, row.name): row for row in (AUDITED, older)}, names)
    assert "Number of classes with each number of checks: 1 with 30, 1 with 31." in text
    assert "has grown" not in model_classes.page({("causal", AUDITED.name): AUDITED}, names)


def test_a_results_file_resumes_and_its_last_line_for_a_class_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert model_classes.read_rows(path) == {}
    lines = [model_classes.line_of(row) for row in (REFUSED, Row("causal", AUDITED.name, "timed out"), AUDITED)]
    path.write_text("\n".join(lines), encoding="utf-8")
    rows = model_classes.read_rows(path)
    assert list(rows.values()) == [REFUSED, AUDITED]
    model_classes.write_rows(path, rows.values())
    assert path.read_text(encoding="utf-8").splitlines() == [lines[2], lines[0]]


def test_the_committed_page_agrees_with_the_committed_results() -> None:
    rows = model_classes.read_rows(model_classes.RESULTS)
    text = model_classes.PAGE.read_text(encoding="utf-8")
    names = {family: [name for of, name in rows if of == family] for family in model_classes.FAMILIES}
    expected = model_classes.page(rows, names).splitlines()
    assert [line for line in expected if line.startswith("| ") and "For" in line and line not in text] == []


def test_the_guide_states_the_counts_of_the_committed_results() -> None:
    rows = model_classes.read_rows(model_classes.RESULTS).values()
    guide = (model_classes.PAGE.parent / "transformers.md").read_text(encoding="utf-8")
    for family in model_classes.FAMILIES:
        states = [row.state for row in rows if row.family == family]
        assert f"{states.count('audited')} of {len(states)} " in guide


def test_measuring_skips_the_classes_that_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, measured = tmp_path / "rows.jsonl", []
    path.write_text(model_classes.line_of(REFUSED) + "\n", encoding="utf-8")

    def measure(family: str, name: str, _limit: int) -> Row:
        measured.append(name)
        return Row(family, name, "audited")

    monkeypatch.setattr(model_classes, "measured", measure)
    monkeypatch.setattr(model_classes, "class_names", lambda family: [AUDITED.name, REFUSED.name])
    command = ["model_classes", "--family", "causal", "--out", str(path)]
    monkeypatch.setattr("sys.argv", command)
    model_classes.main()
    assert measured == [AUDITED.name]
    model_classes.main()
    assert measured == [AUDITED.name]
    monkeypatch.setattr("sys.argv", [*command, "--only", "Unknown"])
    with pytest.raises(SystemExit):
        model_classes.main()


@pytest.mark.slow
def test_a_small_configuration_has_a_layer_of_each_kind_in_every_part() -> None:
    tokenizer = architectures.tokenizer("unigram")
    config = tiny_config(transformers.Gemma3ForConditionalGeneration, tokenizer, classifies=False)
    assert config.text_config.layer_types == ["sliding_attention", "full_attention"]
    assert (config.text_config.num_hidden_layers, config.text_config.vocab_size) == (2, len(tokenizer))
    assert config.vision_config.hidden_size == config.text_config.hidden_size == 32
    classifier = tiny_config(transformers.Qwen3NextForSequenceClassification, tokenizer, classifies=True)
    assert classifier.layer_types == ["linear_attention", "full_attention"]
    assert classifier.num_labels == 2


def test_a_long_reason_ends_after_a_whole_word() -> None:
    assert one_line("a\n  b") == "a b"
    assert one_line("word " * 100) == "word " * 59 + "word ..."
