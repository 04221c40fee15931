"""`attnaudit stability`: verdicts that depend on the seed are found, through real runs of a small model."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from attnaudit import cli
from attnaudit.commands.stability_command import conclusion, markdown, table
from attnaudit.errors import CheckError
from attnaudit.run.stability import GateStability, Judged, Variation, variations_of
from tests.audited_project import AuditedProject
from tests.forking_interpreter import Completed

#: The value is 1 with odd seeds, and otherwise 0.
PARITY = """
import numpy as np

@attnaudit.checks.check(title="Parity", question="Is the seed odd?", low=0, high=1)
def parity(measurements):
    return np.full(len(measurements), float(measurements.seed % 2))
"""
POLICY = """
[[check]]
name = "attention_peak"
at_most = 0.99

[[check]]
name = "parity"
at_most = 0.5

[[check]]
name = "UniformFragility"
severity = "report"
"""
#: Models and data that differ each time they are loaded, or in each worker.
DIFFERENT = """
import itertools, os, random

LOADED = itertools.count()

def with_bias(number):
    adapter = tiny()
    adapter.modules[2].bias.data.fill_(number)
    return adapter

@attnaudit.register_model("unseeded")
def unseeded():
    return with_bias(random.SystemRandom().random())

@attnaudit.register_model("by_worker")
def by_worker():
    return with_bias({"gw1": 1.0}.get(os.environ.get("PYTEST_XDIST_WORKER"), 0.0))

@attnaudit.register_model("ends_gw1")
def ends_gw1():
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        os._exit(9)
    return tiny()

@attnaudit.register_dataset("growing")
def growing():
    import dataclasses
    data = rows()
    return dataclasses.replace(data, instances=data.instances[next(LOADED):])
"""
#: The words that the model of the project knows.
TEXT = "film plot good bad dull bright actor scene joke story"
#: A gate whose verdict differs with seed 1, and not with two workers.
UNSTABLE = GateStability(
    "parity.<b>",
    Judged("pass", 0.0),
    (
        (Variation("seed", 1), Judged("fail", 1.0)),
        (Variation("seed", 2), Judged("pass", 0.0)),
        (Variation("workers", 2), Judged("pass", 0.0)),
    ),
)
STABLE = GateStability("peak", Judged("fail", None), tuple((one, Judged("fail", None)) for one, _ in UNSTABLE.varied))


def stability(project: AuditedProject, *arguments: str, model: str = "tiny", data: str = "rows") -> Completed:
    project.extend(PARITY)
    project.write("policy.toml", POLICY)
    words = ("stability", f"--model={model}", f"--data={data}", "--policy=policy.toml", *arguments)
    return project.command(*words, timeout=300)


def test_a_verdict_that_depends_on_the_seed_is_found(audited: AuditedProject) -> None:
    done = stability(audited, "--seeds", "4", "--batch-tokens", "20", "--workers", "--json", "found.json")
    assert done.status == 1, done.err
    found = json.loads((audited.root / "found.json").read_text(encoding="utf-8"))
    peak, parity = found["gates"]
    assert (found["runs"], peak["flips"], parity["flips"], parity["share"]) == (5, 0, 2, 0.5)
    assert [(one["kind"], one["setting"], one["verdict"], one["value"]) for one in parity["varied"]] == [
        ("seed", 1, "fail", 1.0),
        ("seed", 2, "pass", 0.0),
        ("seed", 3, "fail", 1.0),
        ("batch tokens", 20, "pass", 0.0),
    ]
    assert "2 of 8 verdicts (25%) differ from the verdict of the first run." in done.out
    assert "run 5 of 5 done (batch tokens 20)" in done.err
    assert "left" in done.err
    assert not (audited.root / "reports").exists()


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        ("unseeded", "rows", "--model unseeded: the runs audited different models (sha256 "),
        ("tiny", "growing", "--data growing: the runs audited different data (sha256 "),
    ],
)
def test_runs_of_different_models_or_data_are_not_compared(
    audited: AuditedProject, model: str, data: str, words: str
) -> None:
    audited.extend(DIFFERENT)
    done = stability(audited, "--seeds", "2", "--batch-tokens", "--workers", model=model, data=data)
    assert done.status == 2
    assert words in done.err
    assert "cannot be compared, because the seed is not their only difference." in done.err
    assert "No verdict" not in done.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("unseeded", "pytest -n 2 failed. The model unseeded was not the same in all processes"),
        ("by_worker", "pytest -n 2 failed. The model by_worker was not the same in all processes"),
        ("ends_gw1", "pytest -n 2 gave no verdict on "),
    ],
)
def test_a_run_with_workers_that_failed_is_not_compared(audited: AuditedProject, model: str, words: str) -> None:
    audited.extend(DIFFERENT)
    audited.extend(PARITY)
    audited.write("policy.toml", POLICY.partition('\n[[check]]\nname = "UniformFragility"')[0])  # one gate per worker
    words_of_command = (f"--model={model}", "--data=rows", "--policy=policy.toml", "--seeds=1")
    done = audited.command("stability", *words_of_command, "--batch-tokens", "--workers", "2", timeout=300)
    assert done.status == 2, done.out
    assert words in done.err
    assert "The end of its output:" in done.err


@pytest.mark.slow
def test_workers_do_not_change_a_verdict(audited: AuditedProject) -> None:
    done = stability(audited, "--seeds", "1", "--batch-tokens", "--workers", "2", "--markdown", "found.md")
    assert done.status == 0, done.err
    summary = (audited.root / "found.md").read_text(encoding="utf-8")
    assert "**No verdict differs: 2 gates, 2 runs.**" in summary
    assert "| attention\\_peak | pass | 0/1 (0%) | 0/1 |" in summary


@pytest.mark.slow
def test_sequential_gates_stop_as_they_do_in_pytest(audited: AuditedProject) -> None:
    texts = [" ".join(words) for words in itertools.islice(itertools.permutations(TEXT.split(), 4), 600)]
    audited.write("many.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))
    audited.write("policy.toml", '[[check]]\nname = "PermutationFragility"\nat_least = 0.0001\n')
    plain = ("--data=many.jsonl", "--policy=policy.toml")
    values = []
    for options in ((), ("--sequential",)):
        words = ("--model=tiny", *plain, "--seeds=2", "--batch-tokens", "--workers", "--json=found.json", *options)
        done = audited.command("stability", *words)
        assert done.status == 0, done.err
        (gate,) = json.loads((audited.root / "found.json").read_text(encoding="utf-8"))["gates"]
        values.append([gate["first"]["value"], gate["varied"][0]["value"]])
    (all_rows, *_), (first_rows, other_rows) = values
    assert len({all_rows, first_rows, other_rows}) == 3, "each seed draws other rows, and not all of them"
    run = audited.pytest(*plain, "--audit-sequential")
    assert (run.audit["checks"][0]["value"], run.audit["data"][0]["audited"]) == (first_rows, 250)


def test_flips_are_counted_by_kind() -> None:
    assert (UNSTABLE.flips(), UNSTABLE.flips("seed"), UNSTABLE.flips("workers")) == ((1, 3), (1, 2), (0, 1))
    lines = table([UNSTABLE, STABLE])
    assert lines[0].split("  ")[0] == "gate"
    assert lines[1].split() == ["parity.<b>", "pass", "1/3", "(33%)", "1/2", "0/1", "0.0000", "to", "1.0000"]
    assert lines[2].split() == ["peak", "fail", "0/3", "(0%)", "0/2", "0/1", "undefined"]
    assert conclusion([STABLE], 3) == "No verdict differs: 1 gate, 4 runs."
    assert "parity.&lt;b&gt;" in markdown([UNSTABLE])


def test_what_varies_and_what_cannot() -> None:
    assert [str(one) for one in variations_of(0, seeds=3, batch_tokens=[8, 8], workers=[2])] == [
        "seed 1",
        "seed 2",
        "batch tokens 8",
        "workers 2",
    ]
    for numbers, words in (
        ({"seeds": 0, "batch_tokens": [], "workers": []}, "--seeds 0"),
        ({"seeds": 2, "batch_tokens": [0], "workers": []}, "--batch-tokens 0"),
        ({"seeds": 2, "batch_tokens": [], "workers": [-1]}, "--workers -1"),
        ({"seeds": 1, "batch_tokens": [], "workers": []}, "nothing to vary"),
    ):
        with pytest.raises(CheckError, match=words):
            variations_of(0, **numbers)


def test_invalid_options_are_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tags").mkdir()
    (tmp_path / "tags" / "attnaudit.toml").write_text(
        '[target]\nkind = "label"\nlabels = ["toxic", "insult"]\n', encoding="utf-8"
    )
    for arguments, words in (
        (("--model", "tags"), "Choose one, as in --model 'tags[toxic]'."),
        (("--model", "absent"), "--model absent: there is no such model"),
        (("--model", "demo", "--data", "absent.jsonl"), "--data absent.jsonl: there is no such file"),
        (("--model", "demo"), "--policy: there is no policy file in audits/"),
        (("--model", "demo", "--seeds", "0"), "--seeds 0"),
        (("--model", "demo", "--max-instances", "0"), "attnaudit: --max-instances 0: expected 1 or more"),
        (("--model", "demo", "--device", "tpu"), "attnaudit: --device tpu: expected cpu"),
        (("--model", "demo", "--json", "absent/found.json"), "--json absent/found.json: expected a file in a folder"),
        (("--model", "demo", "--markdown", "."), "--markdown .: expected a file in a folder"),
    ):
        assert cli.main(["stability", *arguments]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (("--json", "p.toml"), "--json p.toml: this file is a policy, and would be replaced. Choose another file."),
        (("--markdown", "./p.toml"), "--markdown p.toml: this file is a policy, and would be replaced"),
        (("--json", "d.jsonl"), "--json d.jsonl: this file is also given with --data, and would be replaced"),
        (("--json", "conftest.py"), "--json conftest.py: this file is a conftest.py, and would be replaced"),
        (("--json", "x", "--markdown", "x"), "--markdown x: this file is also the output of --json"),
    ],
)
@pytest.mark.parametrize("given", [("--policy", "p.toml"), ("--policy", "link.toml")])
def test_an_output_that_is_an_input_is_refused(
    outputs: tuple[str, ...],
    message: str,
    given: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {"p.toml": POLICY, "d.jsonl": '{"text": "a"}\n', "conftest.py": "# nothing\n"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "link.toml").symlink_to("p.toml")
    assert cli.main(["stability", "--model", "demo", "--data", "d.jsonl", *given, *outputs]) == 2
    assert message in capsys.readouterr().err
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in contents} == contents
    assert not (tmp_path / "x").exists()


def test_a_policy_in_audits_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audits").mkdir()
    (tmp_path / "audits" / "policy.toml").write_text(POLICY, encoding="utf-8")
    assert cli.main(["stability", "--model", "demo", "--json", "audits/policy.toml"]) == 2
    assert "--json audits/policy.toml: this file is a policy" in capsys.readouterr().err
    assert (tmp_path / "audits" / "policy.toml").read_text(encoding="utf-8") == POLICY
