"""`attnaudit plan`: the table, the conclusion, the errors and the exit status."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from attnaudit.cli import main
from attnaudit.engine import memory_use
from attnaudit.engine.memory_use import can_measure_memory

POLICY = """
[[check]]
name = "Agreement"
importance = "gradient"
preset = "jain_wallace"
at_least = 0.3

[[check]]
name = "Conicity"
at_most = 0.97
"""


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    return "policy.toml"


def test_the_plan_lists_every_gate_and_the_rows_of_the_policy(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--policy", policy, "--effect", "0.1", "--effect", "conicity=0.02"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "gate"
    first, second = (" ".join(line.split()) for line in lines[1:3])
    assert first == "agreement.gradient.jain_wallace.inputs at least 0.3 0.1 698 878 worst case"
    assert second == "conicity at most 0.97 0.02 1,367 1,101 worst case"
    assert "With these rows, a gate passes or fails with a probability of 80%" in lines[4]
    assert lines[-1] == "The policy needs 1,367 rows."


def test_a_model_without_a_policy_is_planned_with_the_policy_for_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`attnaudit init` writes policies for several families into audits/. Only that of the model is planned."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text\na fine film\na dull plot\n", encoding="utf-8")
    arguments = ["plan", "--model", "demo", "--rows", "1000", "--data", "rows.csv"]
    assert main(arguments) == 0
    packaged = capsys.readouterr().out
    begin = "Policy: the default policy.toml, which applies to the family of demo"
    assert packaged.splitlines()[:2] == [begin, ""]
    assert "total_effect.standardised" in packaged
    assert main(["init"]) == 0
    own = tmp_path / "audits" / "policy.toml"
    own.write_text(f'[policy]\napplies_to = ["pooled attention"]\n{POLICY}', encoding="utf-8")
    capsys.readouterr()
    assert main([*arguments, "--effect", "0.2", "--effect", "conicity=0.02"]) == 1
    of_folder = capsys.readouterr().out
    assert of_folder.startswith("Policy: audits/policy.toml, which applies to the family of demo\n")
    assert "conicity" in of_folder
    assert "total_effect" not in of_folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a policy, as in --policy audits/policy.toml, or a model, as in --model demo"),
        (["--model", "demo"], "the folder audits contains no policy (*.toml). Give one with --policy FILE."),
        (["--model", "slow", "--policy", "plicy.toml"], "plicy.toml"),  # before the model is looked for
    ],
)
def test_a_plan_without_any_policy_has_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audits").mkdir()
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_rows_that_are_not_enough_have_status_1(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--policy", policy, "--rows", "300"]) == 1
    shown = capsys.readouterr().out
    assert "pass at (300 rows)" in shown
    assert "300 rows are not enough." in shown
    assert main(["plan", "--policy", policy, "--rows", "100000", "--effect", "0.02"]) == 0


def test_an_impossible_effect_has_status_1_and_says_what_to_do(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--policy", policy, "--effect", "conicity=0.1"]) == 1
    shown = capsys.readouterr().out
    assert "impossible" in shown
    assert (
        "conicity: the gate cannot fail with this effect. On the side where it fails, no possible value is "
        "0.1 away from the threshold." in shown
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--effect", "-1"], "--effect -1: expected a number above 0"),
        (["--effect", "x=y"], "--effect x=y: expected a number above 0"),
        (["--effect", "conicities=0.1"], "no gate of the policy is 'conicities'"),
        (["--effect", "0.1", "--effect", "0.2"], "--effect: two effects are given for all gates"),
        (["--effect", "1e-300"], "--effect 1e-300: expected a number above 0"),
        (["--rows", "9" * 400], "--rows is too large; expected a whole number above 0"),
        (["--from", "nowhere"], "nowhere: there is no such folder"),
        (["--unit", "words"], "--unit: this option is used only with --model"),
        (["--model", "demo", "--unit", "sources"], "units of this audit are sources, but the model reads no passages"),
        (["--rows", "0"], "--rows is 0; expected a whole number above 0"),
    ],
)
def test_an_invalid_option_has_status_2(
    policy: str, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["plan", "--policy", policy, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_policy_file_has_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--policy", "absent.toml"]) == 2
    assert "there is no such policy file" in capsys.readouterr().err


def test_a_policy_without_gates_needs_no_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "informational.toml"
    file.write_text('[policy]\ninformational = true\n[[check]]\nname = "Conicity"\nseverity = "report"\n')
    assert main(["plan", "--policy", str(file)]) == 0
    assert capsys.readouterr().out == "The policy has no gate, so it needs no rows.\n"


def test_the_cost_of_an_audit_is_estimated_for_each_check(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--policy", policy, "--model", "demo", "--rows", "100000", "--effect", "0.02"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Measuring 100,000 rows takes about"))
    assert "MiB of memory" in lines[start]
    table = [re.split(r"  +", line) for line in lines[start + 2 : start + 7]]
    assert table[0] == ["check", "forward", "partial", "backward", "time", "saved if left out", "memory"]
    shown = {row[0]: row[1:] for row in table[1:]}
    agreement, conicity = shown["agreement.gradient.jain_wallace.inputs"], shown["conicity"]
    shared, together = shown["shared by several checks"], shown["all together"]
    assert conicity[:3] == shared[:3] == ["100,000", "0", "0"]
    assert agreement[0] == together[0]
    assert int(agreement[2].replace(",", "")) >= 100_000  # a gradient of each row
    if can_measure_memory("cpu"):
        assert all(row[-1].endswith(" MiB") for row in (agreement, conicity, together))
    rest = "\n".join(lines[start + 7 :])
    assert "A pass is one row, or one changed copy of a row" in rest
    assert "The time is processor time" in rest
    assert "The passes are estimated from 32 rows." in rest


def test_the_passes_of_data_with_few_rows_are_exact(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few.csv").write_text("text,label\na good film,positive\na bad film,negative\n", encoding="utf-8")
    assert main(["plan", "--policy", policy, "--model", "demo", "--data", "few.csv", "--effect", "0.02"]) == 0
    shown = capsys.readouterr().out
    assert "All rows were measured, so the numbers of passes are exact." in shown
    (together,) = (line.split() for line in shown.splitlines() if line.startswith("all together"))
    # Forward: each text, and its states for leave-one-out. Partial: each text without one of its three words, and once
    # with fixed attention. Backward: with this attention.
    assert together[2:5] == ["4", "8", "2"]


def test_a_peak_memory_that_is_unknown_is_left_out(
    policy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory_use, "can_measure_memory", lambda _device: False)
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert main(["plan", "--policy", policy, "--model", "demo", "--rows", "100", "--effect", "0.02"]) in (0, 1)
    shown = capsys.readouterr().out
    assert re.search(r"Measuring 100 rows takes about [^,]*\d m?s\. Loading, statistics", shown), shown
    assert "memory: not measured" in shown


def test_errors_of_the_cost_are_one_line_with_status_2(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in (
        (["--data", "movie-reviews"], "--data: this option is used only with --model"),
        (["--device", "cpu"], "--device: this option is used only with --model"),
        (["--model", "nothing"], "nothing"),
        (["--model", "demo", "--device", "tpu"], "--device tpu: expected"),
        (["--model", "demo", "--data", "absent.jsonl"], "absent.jsonl"),
    ):
        assert main(["plan", "--policy", policy, *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
