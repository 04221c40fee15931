"""Runs with sequential gates: when they stop, what they record, and what `attnaudit verify` accepts."""

from __future__ import annotations

import pytest

from tests.audited_project import AuditedProject, Run
from tests.conftest import newest_run
from tests.integration.sequential_policy import POLICY, TVD, records

# Each test runs pytest in a process of its own: minutes together.
pytestmark = pytest.mark.slow

WITH_CONICITY = f"""{POLICY}
[[check]]
name = "Conicity"
severity = "report"
"""
#: 1,200 texts, none of which has the same tokens as another.
MANY_ROWS = """
import itertools

@attnaudit.register_dataset("many")
def many():
    texts = [" ".join(words) for words in itertools.islice(itertools.permutations(WORDS, 4), 1200)]
    return tuple(
        Instance(id=f"m{i}", text=text, label=("negative", "positive")[i % 2]) for i, text in enumerate(texts)
    )
"""
TEST = """
from attnaudit import audit, checks

@audit(checks.Conicity(at_most=0.9))
def test_faithful(check):
    check.enforce()
"""


def run(audited: AuditedProject, *options: str, measure: str = "tvd", at_least: float = 1e-4) -> Run:
    if "def many" not in (audited.root / "conftest.py").read_text(encoding="utf-8"):
        audited.extend(MANY_ROWS)
        audited.write("test_audit.py", TEST)
    audited.write("policy.toml", WITH_CONICITY.format(measure=measure, at_least=at_least))
    return audited.pytest("--data=many", "--policy=policy.toml", *options)


def test_a_run_stops_when_all_gates_have_settled_and_is_verified(audited: AuditedProject) -> None:
    alone = run(audited)
    assert alone.status == 0, alone.text
    (data,) = alone.audit["data"]
    assert (data["rows"], data["audited"], data["sample_seed"]) == (1200, 250, 0)
    for record in alone.audit["checks"]:
        assert record["n"] == 250
        if record["severity"] == "gate":
            assert record["parameters"]["sampling"] == "sequential"
            assert record["interval"]["method"] == "betting confidence sequence"
            assert 30 <= record["details"]["rows needed for the verdict, in random order"] <= 250
            assert record["details"]["upper bound on the probability of a wrong verdict"] == pytest.approx(0.025)
        else:
            assert "valid only for a fixed number of rows" in record["note"]
    verified = audited.verify("--data=many", "--policy=policy.toml")
    assert verified.status == 0, verified.out
    assert "250 of 1,200 rows" in verified.out
    assert not (newest_run(audited.root) / "parts").exists(), "the shards of all blocks are removed"
    workers = run(audited, "-n2")
    assert workers.status == 0, workers.text
    assert records(workers) == records(alone)
    one_gate = run(audited, "-k", TVD)
    assert one_gate.audit["data"][0]["audited"] == 250


def test_a_gate_that_never_settles_uses_all_rows_and_is_red(audited: AuditedProject) -> None:
    usual = run(audited, measure="f1_drop", at_least=-0.9)
    assert usual.audit["data"][0]["audited"] == 1200, "this gate has no sequence, so all rows are measured"
    value = next(one["details"]["mean TVD"] for one in usual.audit["checks"] if "mean TVD" in one["details"])
    undecided = run(audited, at_least=value)
    assert undecided.audit["data"][0]["audited"] == 1200
    audited.assert_red(undecided, {TVD: "failed: "})
    assert {one["check"]: one["verdict"] for one in records(undecided)}[TVD] == "inconclusive"


def test_a_sample_is_refused_if_a_gate_has_no_sequence(audited: AuditedProject) -> None:
    sample = run(audited, "--audit-max-instances=300", measure="f1_drop", at_least=-0.9)
    assert sample.status == 0, sample.text
    done = audited.verify("--data=many", "--policy=policy.toml")
    assert done.status == 1
    assert "Only 300 of 1,200 rows" in done.out


def test_the_option_and_the_configuration_file_do_what_the_key_of_the_policy_does(audited: AuditedProject) -> None:
    with_key = run(audited)
    audited.write(
        "policy.toml", WITH_CONICITY.format(measure="tvd", at_least=1e-4).replace('sampling = "sequential"', "")
    )
    plain = ("--data=many", "--policy=policy.toml")
    option = audited.pytest(*plain, "--audit-sequential")
    assert option.status == 0, option.text
    assert ", sequential, device" in option.text
    assert records(option) == records(with_key)
    assert option.audit["data"] == with_key.audit["data"]
    assert option.audit["effective_policy"] == with_key.audit["effective_policy"]
    not_named = audited.verify(*plain)
    assert not_named.status == 1
    assert "The run applied a policy with another hash" in not_named.out
    named = audited.verify(*plain, "--sequential")
    assert named.status == 0, named.out
    assert audited.verify("--sequential").status == 2
    workers = audited.pytest(*plain, "--audit-sequential", "-n2")
    assert records(workers) == records(option)
    audited.write("pytest.ini", "[pytest]\naudit_sequential = true\n")
    ini = audited.pytest(*plain)
    assert records(ini) == records(option)
    assert audited.pytest(*plain, "-oaudit_sequential=false").audit["data"][0]["audited"] == 1200


def test_a_red_case_names_the_option_in_its_command(audited: AuditedProject) -> None:
    audited.extend(MANY_ROWS)
    audited.write("test_audit.py", TEST.replace("0.9", "0.001"))
    failed = audited.pytest("--data=many", "--audit-sequential", "--audit-seed=3")
    assert failed.status == 1
    assert "--audit-seed 3 --audit-sequential" in failed.text
    assert failed.audit["checks"][0]["parameters"]["sampling"] == "sequential"
