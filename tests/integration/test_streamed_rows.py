"""Sequential runs on data of which only the audited rows are read: .jsonl files, and streams without a known length."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from attnaudit.data.draws import FileDraws
from tests.audited_project import AuditedProject, Run
from tests.conftest import newest_run
from tests.integration.sequential_policy import POLICY, TVD, records

# Each test runs pytest in processes of its own: minutes together.
pytestmark = pytest.mark.slow

#: The words that the model of the project knows.
WORDS = ["film", "plot", "good", "bad", "dull", "bright", "actor", "scene", "joke", "story"]
#: An endless stream of texts. It notes how many rows were read.
STREAM = """
import itertools
from pathlib import Path

@attnaudit.register_dataset("stream", order="random")
def stream():
    "Texts that come in random order."
    for count in itertools.count(1):
        Path("read.txt").write_text(str(count))
        number = count * 2503
        words = [WORDS[(number // 10**digit) % 10] for digit in range(7)]
        yield {"text": " ".join(words), "label": ("negative", "positive")[count % 2]}
"""
ENTROPY = "influence_entropy.hidden"
F1 = "permutation_fragility.f1_drop"


def rows(count: int) -> list[str]:
    """Return the lines of a .jsonl file whose texts have different tokens."""
    texts = [" ".join(words) for words in itertools.islice(itertools.permutations(WORDS, 4), count)]
    return [json.dumps({"text": text, "label": ("negative", "positive")[i % 2]}) for i, text in enumerate(texts)]


def lines_in_order(path: Path) -> list[int]:
    """Return the number of each line, from 1, in the order in which a run with seed 0 reads them."""
    return [int(one.where.rpartition(":")[2]) for one in FileDraws(path, 0).first(None).instances]


def run(audited: AuditedProject, data: str, *options: str, measure: str = "tvd", at_least: float = 1e-4) -> Run:
    audited.write("policy.toml", POLICY.format(measure=measure, at_least=at_least))
    return audited.pytest(f"--data={data}", "--policy=policy.toml", *options)


def verify(audited: AuditedProject, data: str, *options: str) -> tuple[int, str]:
    done = audited.verify(f"--data={data}", "--policy=policy.toml", *options)
    return done.status, done.out


def test_of_a_file_only_the_audited_rows_are_read(audited: AuditedProject) -> None:
    lines = rows(1200)
    path = audited.root / "many.jsonl"
    audited.write(path.name, "\n".join(lines))
    beyond = lines_in_order(path)[600] - 1
    lines[beyond] = '{"text": "never closed'
    audited.write(path.name, "\n".join(lines))
    alone = run(audited, path.name)
    assert alone.status == 0, alone.text
    (data,) = alone.audit["data"]
    assert (data["rows"], data["audited"], data["sample_seed"], data["hashed"]) == (1200, 250, 0, "file")
    assert data["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "sha256 of the file" in alone.page("report.html")
    settled = max(record["details"]["rows needed for the verdict, in random order"] for record in alone.audit["checks"])
    assert 30 <= settled <= 250
    assert verify(audited, path.name)[0] == 0
    workers = run(audited, path.name, "-n2")
    assert (records(workers), workers.audit["data"]) == (records(alone), alone.audit["data"])
    assert records(run(audited, path.name, "--audit-seed=1")) != records(alone)
    audited.write(path.name, "\n".join(lines[::-1]))
    run(audited, "rows", "-k", "nothing")
    changed, text = verify(audited, path.name)
    assert changed == 1, text
    # Without stopping early, the broken row is an error.
    audited.write("plain.toml", POLICY.format(measure="tvd", at_least=1e-4).replace('sampling = "sequential"', ""))
    everything = audited.pytest(f"--data={path.name}", "--policy=plain.toml")
    assert everything.status == 7
    assert "not valid JSON" in everything.text


def test_a_broken_row_ends_the_rows_and_loses_nothing_that_was_measured(audited: AuditedProject) -> None:
    lines = rows(1200)
    path = audited.root / "many.jsonl"
    audited.write(path.name, "\n".join(lines))
    order = lines_in_order(path)
    whole = run(audited, path.name)
    settled = max(record["details"]["rows needed for the verdict, in random order"] for record in whole.audit["checks"])

    def broken_at(position: int, line: str = '{"text": "never closed', **arguments: Any) -> Run:
        changed = [*lines]
        changed[order[position] - 1] = line
        audited.write(path.name, "\n".join(changed))
        return run(audited, path.name, **arguments)

    after = broken_at(settled)
    assert after.status == 0, after.text
    assert after.audit["data"][0]["audited"] == settled
    assert {gate["state"] for gate in after.audit["gates"]} == {"passed"}
    value = next(record["value"] for record in whole.audit["checks"] if record["check"] == TVD)
    before = broken_at(400, at_least=value)
    line = order[400]
    assert before.status == before.audit["exit_status"] == 7
    for check in (ENTROPY, TVD):
        state, reason = before.gates()[check]
        assert (state, f"{path.name}:{line}: not valid JSON" in reason) == ("open", True), reason
    assert f"{path.name}:{line}: not valid JSON" in before.page("report.html")
    audited.assert_not_verified(ENTROPY, TVD)
    measured = pq.read_table(newest_run(audited.root) / "measurements.parquet")
    assert len(set(measured["instance"].to_pylist())) == before.audit["data"][0]["audited"] == 400
    two = audited.pytest(f"--data={path.name}", "--data=rows", "--policy=policy.toml")
    states = {(gate["data"], gate["state"]) for gate in two.audit["gates"]}
    assert ("many", "open") in states
    assert {record["data"] for record in two.audit["checks"]} == {"rows"}
    assert broken_at(3).status == 7
    label = '{"text": "good film", "label": "splendid"}'
    assert broken_at(settled, label).audit["data"][0]["audited"] == settled
    unknown = broken_at(300, label, at_least=value)
    assert unknown.status == 7
    assert f"many.jsonl:{order[300]}: column 'label': 'splendid' is not one of" in " ".join(unknown.text.split())
    assert unknown.audit["data"][0]["audited"] == 300


def test_a_gate_without_a_sequence_takes_a_fixed_sample_and_says_so(audited: AuditedProject) -> None:
    audited.write("many.jsonl", "\n".join(rows(1200)))
    everything = run(audited, "many.jsonl", measure="f1_drop", at_least=-0.9)
    assert everything.audit["data"][0]["audited"] == 1200
    sample = run(audited, "many.jsonl", "--audit-max-instances=300", measure="f1_drop", at_least=-0.9)
    assert sample.status == 0, sample.text
    assert (sample.audit["data"][0]["audited"], sample.audit["data"][0]["rows"]) == (300, 1200)
    (note,) = [record["note"] for record in sample.audit["checks"] if record["check"] == F1]
    assert "valid only for a fixed number of rows" in note
    assert verify(audited, "many.jsonl")[0] == 1
    assert verify(audited, "many.jsonl", "--allow-sample")[0] == 0


def test_of_an_endless_stream_no_more_rows_are_read_than_are_needed(audited: AuditedProject) -> None:
    audited.extend(STREAM)
    alone = run(audited, "stream")
    assert alone.status == 0, alone.text
    (data,) = alone.audit["data"]
    assert (data["rows"], data["audited"], data["sample_seed"], data["hashed"]) == (None, 250, None, "audited rows")
    assert (audited.root / "read.txt").read_text() == "250"
    assert "250 rows of a stream of unknown length" in alone.page("summary.md")
    assert verify(audited, "stream") == (0, verify(audited, "stream")[1])
    assert "250 rows of a stream of unknown length" in verify(audited, "stream")[1]
    workers = run(audited, "stream", "-n2")
    assert (records(workers), workers.audit["data"]) == (records(alone), alone.audit["data"])
    conftest = (audited.root / "conftest.py").read_text(encoding="utf-8")
    audited.write("conftest.py", conftest.replace("count * 2503", "count * 2503 + (count == 250)"))
    assert verify(audited, "stream")[0] == 1


def test_a_stream_needs_a_limit_if_a_gate_needs_a_fixed_number_of_rows(audited: AuditedProject) -> None:
    audited.extend(STREAM)
    endless = run(audited, "stream", measure="f1_drop", at_least=-0.9)
    assert endless.status == 7
    assert f"some gates need a fixed number of rows ({F1}:" in " ".join(endless.text.split())
    assert (audited.root / "read.txt").read_text() == "250"
    limited = run(audited, "stream", "--audit-max-instances=300", measure="f1_drop", at_least=-0.9)
    assert limited.status == 0, limited.text
    assert limited.audit["data"][0]["audited"] == 300
    refused, text = verify(audited, "stream")
    assert (refused, "Only 300 rows of a stream of unknown length of stream were audited" in text) == (1, True), text
    assert verify(audited, "stream", "--allow-sample")[0] == 0
    audited.write("plain.toml", POLICY.format(measure="tvd", at_least=1e-4).replace('sampling = "sequential"', ""))
    plain = audited.pytest("--data=stream", "--policy=plain.toml")
    assert plain.status == 7
    assert "--audit-max-instances N" in " ".join(plain.text.split())
    first = audited.pytest("--data=stream", "--policy=plain.toml", "--audit-max-instances=60")
    assert first.audit["data"][0]["audited"] == 60


@pytest.mark.parametrize("data", ["short.jsonl", "short"])
def test_data_that_end_before_a_gate_settles_leave_it_inconclusive(audited: AuditedProject, data: str) -> None:
    audited.extend(STREAM.replace('"stream"', '"short"').replace("itertools.count(1)", "range(1, 301)"))
    audited.write("short.jsonl", "\n".join(rows(300)))
    passed = run(audited, data, at_least=1e-4)
    value = next(record["value"] for record in passed.audit["checks"] if record["check"] == TVD)
    undecided = run(audited, data, at_least=value)
    (record,) = undecided.audit["data"]
    assert (record["rows"], record["audited"], record["sample_seed"]) == (300, 300, None)
    audited.assert_red(undecided, {TVD: "failed: "})
    assert {one["check"]: one["verdict"] for one in records(undecided)}[TVD] == "inconclusive"
    few = run(audited, data, "--audit-max-instances=20")
    assert {one["verdict"] for one in records(few)} == {"inconclusive"}
