"""The report of a run folder: its content, and the errors of a broken folder."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.errors import ReportError
from attnaudit.records import SCHEMA_VERSION, EarlierFailure, EffectivePolicy, GateRecord, MissingCase, RankedInstance
from attnaudit.report import audit_schema, build
from attnaudit.report.heatmaps import EXCERPT_TOKENS, MOST_TOKENS, columns_to_show, heatmap, positions, token_row
from attnaudit.report.run_files import MeasuredInstance
from tests.units.report.example_checks import check_record, seven_checks
from tests.units.report.example_runs import HOSTILE_TOKENS, hostile, realistic, run_record, token_rows, write_run


def page(folder: Path) -> str:
    build(folder)
    return (folder / "report.html").read_text(encoding="utf-8")


def text_of(source: str) -> str:
    body = re.sub(r"<style>.*?</style>", "", source, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_headline_comes_first(tmp_path: Path) -> None:
    text = text_of(page(realistic(tmp_path)))
    assert text.index("This release is blocked") < text.index("Verdicts") < text.index("Question")


def test_every_case_has_a_row_a_section_and_its_evidence(tmp_path: Path) -> None:
    source = page(realistic(tmp_path))
    text = text_of(source)
    for check in seven_checks():
        assert check.title in text
        assert check.question in text
    anchors = set(re.findall(r'id="([^"]+)"', source))
    assert set(re.findall(r'href="#([^"]+)"', source)) <= anchors
    for part in (
        "0.199 to 0.226",
        "≥ 0.30",
        "fewer than two tokens",
        "τ between gradient and leave-one-out",
        "pytest audits/ --model demo",
        "3f" * 32,
        "a1" * 32,
        "2.13.0",
        "largest error 1.2e-7",
        "1 min 11 s",
    ):
        assert part in text
    assert "faithful" not in text


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    source = page(realistic(tmp_path))
    assert "default-src 'none'" in source
    scripts = [tag for tag in re.findall("<script[^>]*>", source) if 'type="text/plain"' not in tag]
    assert scripts == ["<script>"]  # that of the explorer
    assert not re.findall(r'(?:src|href)="(?!#|data:)', source)


def test_two_models_are_compared_side_by_side(tmp_path: Path) -> None:
    source = page(realistic(tmp_path, second_model=True))
    assert "Side by side" in source
    assert source.count('class="finding') == 14
    assert "Side by side" not in page(realistic(tmp_path / "one"))
    ids = re.findall(r'id="([^"]+)"', source)
    assert len(ids) == len(set(ids))


def test_cases_without_a_verdict_come_before_the_verdicts(tmp_path: Path) -> None:
    missing = [MissingCase(test="t.py::t[x]", model="demo", data="d", check="agreement.x", reason="worker gw1 crashed")]
    text = text_of(page(realistic(tmp_path, missing=missing)))
    assert text.index("worker gw1 crashed") < text.index("Verdicts")


def test_gates_without_a_case_are_named_with_their_reasons(tmp_path: Path) -> None:
    same = {"model": "demo", "data": "d"}
    gates = [
        GateRecord(**same, check="one", state="passed"),
        GateRecord(**same, check="two", state="not selected", reason="left out by -k <b>"),
        GateRecord(**same, check="three", state="excepted", reason="attention is not shown"),
        GateRecord(**same, check="four", state="open", reason="no collected test judges this gate"),
    ]
    crashed = EarlierFailure(test="t.py::t[one]", reason="worker gw0 crashed")
    checks = [check_record(check="one", data="d", verdict="pass", blocks=False)]
    run = run_record(checks, gates=gates, earlier_failures=[crashed])
    source = page(write_run(tmp_path, run, []))
    for line in (
        "Gates: 1 passed, 1 without a verdict, 1 excepted by the policy, 1 not selected.",
        "Not selected: two (demo on d): left out by -k &lt;b&gt;.",
        "Excepted by the policy: three (demo on d): attention is not shown.",
        "No verdict: four (demo on d): no collected test judges this gate.",
        "Run again after a failure: t.py::t[one]: worker gw0 crashed.",
    ):
        assert f"<li>{line}</li>" in source
    assert source.index("<li>Gates:") < source.index("Verdicts")


def test_a_gate_that_failed_but_is_excepted_does_not_block(tmp_path: Path) -> None:
    check = check_record()
    gate = GateRecord(model=check.model, data=check.data, check=check.check, state="excepted", reason="not shown")
    run = run_record([check, check_record(data="other", verdict="pass", blocks=False)], gates=[gate], exit_status=0)
    text = text_of(page(write_run(tmp_path, run, [])))
    assert "gate, excepted by the policy" in text
    assert "gate, blocks the release" not in text
    assert "gate, excepted by the policy" in (tmp_path / "summary.md").read_text(encoding="utf-8")


def test_a_run_in_which_all_gates_were_judged_has_no_list_of_gates(tmp_path: Path) -> None:
    assert 'id="gates"' not in page(realistic(tmp_path))


def test_the_page_shows_what_identifies_the_run(tmp_path: Path) -> None:
    policy = EffectivePolicy(sha256="5e" * 32, checks=[], exceptions=[], informational=False)
    added = {"PYTEST_ADDOPTS": ["-k", "a b"]}
    text = text_of(
        page(write_run(tmp_path, run_record([check_record()], effective_policy=policy, added_options=added), []))
    )
    assert f"sha256 of the effective policy {'5e' * 32}" in text
    assert "options from PYTEST_ADDOPTS: -k 'a b'" in text
    assert "status failed exit status 1" in text


def test_a_check_without_a_unit_or_a_reason_leaves_them_out(tmp_path: Path) -> None:
    source = page(write_run(tmp_path, run_record([check_record(unit="", why="")]), []))
    assert "<span>mean</span>" in source
    assert "Why it matters" not in source


def test_cases_that_share_a_reason_are_listed_together(tmp_path: Path) -> None:
    missing = [MissingCase(test=f"t[{c}]", model="demo", data="d", check=c, reason="no checkpoint") for c in "abc"]
    text = text_of(page(write_run(tmp_path, run_record([], missing=missing, models=[]), [])))
    assert text.count("no checkpoint") == 2
    assert "Next step Get a verdict on a, b, c: no checkpoint." in text
    assert "no checkpoint a demo on d b demo on d c demo on d" in text


def test_a_run_without_any_check_still_has_a_report(tmp_path: Path) -> None:
    text = text_of(page(write_run(tmp_path, run_record([], exit_status=5), [])))
    assert "The run failed for a reason other than a gate" in text


def test_the_file_stays_small(tmp_path: Path) -> None:
    worst = [RankedInstance(instance=f"r{j}", value=0.0) for j in range(50)]
    checks = [
        check_record(check=f"agreement.{i}", model=model, worst=worst) for i in range(7) for model in ("a", "b", "c")
    ]
    words = [f"token{i}" for i in range(2000)]
    rows = [r for m in "abc" for j in range(50) for r in token_rows(check_record(model=m), f"r{j}", words[: 60 + j])]
    build(write_run(tmp_path, run_record(checks), rows))
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
    assert "audit.json lists 48 more instances" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    source = page(hostile(tmp_path))
    for token in HOSTILE_TOKENS:
        if "<" in token:
            assert token not in source
    assert "<img" not in source
    assert "{{7*7}}" in source
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", source)


def test_the_schema_validates_a_written_audit(tmp_path: Path) -> None:
    realistic(tmp_path)
    written = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    schema = audit_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(written)
    written["checks"][0]["verdict"] = "faithful"
    written["surprise"] = 1
    assert {"faithful", "surprise"} == {
        word for e in validator.iter_errors(written) for word in ("faithful", "surprise") if word in str(e.message)
    }


def test_no_torch_is_needed(tmp_path: Path) -> None:
    realistic(tmp_path)
    code = "import sys; from pathlib import Path; from attnaudit.report import build; build(Path(sys.argv[1]));"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"audit\.json: there is no such file.*Give the folder"):
        build(tmp_path)
    (tmp_path / "latest.txt").write_text("x")
    with pytest.raises(ReportError, match=r"latest\.txt names the newest run"):
        build(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", f'{{"schema_version": {SCHEMA_VERSION}}}'.encode(), b'{"schema_version": "x"}'],
)
def test_a_corrupt_audit_names_the_file_and_the_fix(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "audit.json").write_bytes(content)
    with pytest.raises(ReportError, match=r"audit\.json: not a valid audit record: .*Run the audit again"):
        build(tmp_path)


def test_another_version_of_the_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text('{"schema_version": 99}')
    with pytest.raises(ReportError, match=f"schema_version is 99, expected {SCHEMA_VERSION}"):
        build(tmp_path)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    realistic(tmp_path)
    path = tmp_path / "measurements.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["tokens", "seed"]), path)
    with pytest.raises(ReportError, match=r"measurements\.parquet: the file has no column 'seed', 'tokens'"):
        build(tmp_path)


def test_corrupt_measurements_are_refused(tmp_path: Path) -> None:
    realistic(tmp_path)
    (tmp_path / "measurements.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ReportError, match=r"measurements\.parquet: cannot be read .*Run the audit again"):
        build(tmp_path)


def test_without_measurements_the_verdicts_are_still_shown(tmp_path: Path) -> None:
    realistic(tmp_path)
    (tmp_path / "measurements.parquet").unlink()
    text = text_of(page(tmp_path))
    assert "measurements.parquet is not in this folder" in text
    assert "0.199 to 0.226" in text


def test_dictionary_encoded_columns_give_the_same_report(tmp_path: Path) -> None:
    first = page(realistic(tmp_path))
    path = tmp_path / "measurements.parquet"
    table = pq.read_table(path)
    for name in ("model", "data", "instance", "measure", "label"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).dictionary_encode())
    assert pa.types.is_dictionary(table.schema.field("measure").type)
    pq.write_table(table, path)
    assert page(tmp_path) == first


def test_the_summary_names_the_report_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = realistic(tmp_path / "reports" / "one")
    monkeypatch.chdir(tmp_path)
    build(folder)
    assert "Report: reports/one/report.html" in (folder / "summary.md").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_written_names_the_file(tmp_path: Path) -> None:
    realistic(tmp_path)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(ReportError, match=r"report\.html: cannot be written"):
        build(tmp_path)


def test_a_heatmap_shows_attention_gradient_leave_one_out_and_the_adversary() -> None:
    check = check_record(token_columns=["attention"])
    measured = ["attention", "gradient.meister.inputs", "leave_one_out.hidden", "adversarial.0.05.attention", "x"]
    assert columns_to_show(check, measured) == measured[:4]
    assert columns_to_show(check, ["attention"]) == ["attention", "gradient", "leave_one_out", "adversarial"]
    named = check_record(token_columns=["attention", "gradient.jain_wallace.inputs"])
    assert "gradient.meister.inputs" not in columns_to_show(named, measured)


def test_a_row_that_cannot_be_drawn_says_why() -> None:
    instance = MeasuredInstance(
        label=None,
        predicted="positive",
        tokens=["good", "film"],
        columns={"attention": [0.9, 0.1], "leave_one_out.inputs": None, "gradient.meister.inputs": [1.0]},
    )
    measured = ["attention", "leave_one_out.inputs", "gradient.meister.inputs"]
    view = heatmap(check_record(token_columns=[]), "r0", 0.1, instance, measured, classes=[], file_absent=False)
    notes = {row.name: row.note for row in view.rows}
    assert notes == {
        "Attention": "",
        "Gradient norm, at the inputs": "has 1 number for 2 tokens",
        "Leave-one-out, at the inputs": "undefined for this instance",
        "Adversarial attention": "not measured in this run",
    }
    assert view.not_measured == ["Adversarial attention"]
    assert [(cell.text, cell.heat, cell.number) for cell in view.rows[0].cells] == [
        ("good", 0.9, "0.90"),
        ("film", 0.1, "0.10"),
    ]


def test_equal_weights_stay_light_and_all_rows_have_one_colour_scale() -> None:
    tokens = [f"t{i}" for i in range(12)]
    even = token_row("attention", [1 / 12] * 12, tokens, range(12))
    assert {cell.heat for cell in even.cells} == {
        0.17
    }  # 1/6: the darkest tokens have six times the share of equal ones
    one = token_row("leave_one_out.inputs", [-0.5, *[0.0] * 11], tokens, range(12))
    assert [cell.heat for cell in one.cells] == [1.0, *[0.0] * 11]
    scaled = token_row("leave_one_out.inputs", [-0.005, *[0.0] * 11], tokens, range(12))
    assert [cell.heat for cell in scaled.cells] == [cell.heat for cell in one.cells]


@pytest.mark.parametrize(
    ("tokens", "direction"),
    [(["good", "film"], "ltr"), (["שלום", "עולם", "ok"], "rtl"), (["مرحبا"], "rtl"), ([], "ltr")],
)
def test_tokens_run_in_the_direction_of_most_of_their_letters(tokens: list[str], direction: str) -> None:
    columns = {"attention": [1.0 / max(1, len(tokens))] * len(tokens)}
    instance = MeasuredInstance(label=None, predicted="", tokens=tokens, columns=columns)
    view = heatmap(check_record(), "r0", 0.1, instance, ["attention"], classes=[], file_absent=False)
    assert view.direction == direction


def test_a_card_shows_the_probability_before_and_after_rearranging() -> None:
    logits = [0.0, 0.0, math.nan, math.nan, -1.0, 1.0]
    columns = {"probabilities": [0.25, 0.75], "rearrangement.centred_logits": logits, "attention": [1.0]}
    instance = MeasuredInstance(label=None, predicted="positive", tokens=["good"], columns=columns)
    arguments = {"measured": ["attention"], "classes": ["negative", "positive"], "file_absent": False}
    view = heatmap(check_record(), "r0", 0.1, instance, **arguments)  # type: ignore[arg-type]
    assert view.outputs == "probability 0.750; with rearranged weights 0.500 to 0.881"
    del columns["rearrangement.centred_logits"]
    assert heatmap(check_record(), "r0", 0.1, instance, **arguments).outputs == "probability 0.750"  # type: ignore[arg-type]


def test_a_long_text_shows_the_tokens_with_the_largest_values() -> None:
    first, second = [0.0] * 2000, [0.0] * 2000
    first[1500], second[3] = 0.9, 0.8
    shown = positions([first, second], 2000)
    assert {1500, 3} <= set(shown)
    assert len(shown) <= EXCERPT_TOKENS
    assert shown == sorted(set(shown))
    assert positions([first[:MOST_TOKENS]], MOST_TOKENS) == list(range(MOST_TOKENS))
    assert positions([], 500)


def test_a_long_text_counts_the_tokens_that_it_leaves_out(tmp_path: Path) -> None:
    check = check_record(worst=[RankedInstance(instance="r0", value=0.0)])
    rows = token_rows(check, "r0", [f"w{i}" for i in range(700)])
    source = page(write_run(tmp_path, run_record([check]), rows))
    row = re.search(r'<p class="tokens" dir="ltr">(.*?)</p>', source, flags=re.S)
    assert row is not None
    skipped = sum(int(n) for n in re.findall(r"… ([\d,]+) tokens?", row[1]))
    assert skipped + len(re.findall(r"<span ", row[1])) == 700


def test_a_record_is_the_same_after_writing_and_reading() -> None:
    run = run_record(seven_checks())
    assert msgspec.json.decode(msgspec.json.encode(run), type=type(run)) == run
