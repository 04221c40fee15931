"""The [baseline] table of a policy and the key `not_worse_than_baseline_by`: what they declare, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnaudit.checks import load_policy
from attnaudit.checks.paired_gate import PairedGate
from attnaudit.checks.policies.effective_policy import effective_policy_of_file
from attnaudit.checks.policies.policy_diff import differences
from attnaudit.errors import AuditError
from attnaudit.run.verification.declared_checks import built_in_check

BASELINE = '[baseline]\npath = "kept"\ncompare_with = ["last", "pinned"]\n'
CHECK = '[[check]]\nname = "Pointing"\nat_least = 0.4\nnot_worse_than_baseline_by = {}\n'
POLICY = BASELINE + CHECK.format(0.05)


def written(folder: Path, text: str, name: str = "policy.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_each_baseline_adds_a_gate_that_follows_its_check(tmp_path: Path) -> None:
    reported = '[[check]]\nname = "InfluenceEntropy"\nseverity = "report"\nat_most = 0.9\nconfidence = 0.9\n'
    reported += "not_worse_than_baseline_by = 0.1\n"
    policy = load_policy(written(tmp_path, POLICY + reported))
    assert [(check.id, check.severity, check.threshold) for check in policy] == [
        ("pointing.probabilities", "gate", ("at_least", 0.4)),
        ("pointing.probabilities.vs_last", "gate", ("at_least", -0.05)),
        ("pointing.probabilities.vs_pinned", "gate", ("at_least", -0.05)),
        ("influence_entropy.hidden", "report", ("at_most", 0.9)),
        ("influence_entropy.hidden.vs_last", "gate", ("at_most", 0.1)),
        ("influence_entropy.hidden.vs_pinned", "gate", ("at_most", 0.1)),
    ]
    assert {check.confidence for check in policy[4:]} == {0.9}
    assert isinstance(policy[1], PairedGate)
    assert policy[1].folder == str(tmp_path / "kept")


def test_the_reading_of_the_check_is_compared(tmp_path: Path) -> None:
    reading = 'reading = "cls@layer=-1,heads=mean"\n'
    (base, *gates) = load_policy(written(tmp_path, POLICY + reading))
    assert [gate.id for gate in gates] == [base.id.replace("/", f".vs_{name}/") for name in ("last", "pinned")]
    assert all(gate.needs_under_reading() == base.needs_under_reading() for gate in gates)
    assert all(gate.base_id == base.id for gate in gates if isinstance(gate, PairedGate))


def test_the_table_of_a_gate_declares_it_again(tmp_path: Path) -> None:
    path = written(tmp_path, POLICY)
    declared = {check.id: check for check in load_policy(path)}
    for table in effective_policy_of_file(path).checks:
        again = built_in_check(table)
        assert again is not None
        assert (again.id, again.parameters) == (table["id"], declared[str(table["id"])].parameters)


def test_the_hash_depends_on_the_margin_and_the_names_and_not_on_the_content_of_the_baselines(tmp_path: Path) -> None:
    path = written(tmp_path, POLICY)
    before = effective_policy_of_file(path).sha256
    (tmp_path / "kept").mkdir()
    written(tmp_path / "kept", "{}", "last.json")
    assert effective_policy_of_file(path).sha256 == before
    moved = written(tmp_path, POLICY.replace("kept", "elsewhere"), "moved.toml")
    assert effective_policy_of_file(moved).sha256 == before
    for text in (POLICY.replace("0.05", "0.06"), POLICY.replace('["last", "pinned"]', '["last"]')):
        assert effective_policy_of_file(written(tmp_path, text, "other.toml")).sha256 != before


def test_a_wider_margin_or_a_missing_baseline_is_a_laxer_policy(tmp_path: Path) -> None:
    old = effective_policy_of_file(written(tmp_path, POLICY))
    text = BASELINE.replace(', "pinned"', "") + CHECK.format(0.08)
    changes = differences(old, effective_policy_of_file(written(tmp_path, text, "new.toml")))
    kinds = {(change.kind, change.subject) for change in changes}
    assert {("laxer", "pointing.probabilities.vs_last"), ("disappeared", "pointing.probabilities.vs_pinned")} <= kinds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CHECK.format(0.05), "not_worse_than_baseline_by needs to know the baseline: add [baseline]"),
        (BASELINE + CHECK.replace("not_worse_than_baseline_by = {}", ""), "no [[check]] is compared with the baseline"),
        (BASELINE + CHECK.format(0), "not_worse_than_baseline_by is 0; expected a number above 0"),
        (BASELINE + CHECK.format(-0.1), "not_worse_than_baseline_by is -0.1; expected a number above 0"),
        (BASELINE + CHECK.format("nan"), "not_worse_than_baseline_by is nan; expected a number above 0"),
        (BASELINE + CHECK.format("true"), "not_worse_than_baseline_by is True; expected a number above 0"),
        (BASELINE + CHECK.format('"5%"'), "not_worse_than_baseline_by is '5%'; expected a number above 0"),
        (POLICY.replace('path = "kept"', ""), "[baseline]: path is None; expected the folder"),
        (POLICY.replace('"kept"', '"policy.toml"'), "path is 'policy.toml', which is a file"),
        (POLICY.replace('"pinned"', '"first"'), "compare_with is ['last', 'first']; expected a list of"),
        (POLICY.replace('["last", "pinned"]', "[]"), "compare_with is []; expected a list of"),
        (POLICY.replace('"pinned"', '"last"'), "compare_with names 'last' twice"),
        (POLICY.replace("path", "folder"), "[baseline]: unknown key 'folder'"),
        (POLICY.replace("[baseline]", "[[baseline]]"), "[baseline]: expected one table, but got list"),
        (POLICY.replace("not_worse_than_baseline_by", "not_worse_then_baseline_by"), "not_worse_than_baseline_by"),
        (
            POLICY.replace('"Pointing"', '"UniformFragility"\nmeasure = "f1_drop"'),
            "UniformFragility: not_worse_than_baseline_by cannot be set, because its value is a difference",
        ),
        (
            BASELINE + '[[check]]\nname = "RetrainedUniform"\nseverity = "report"\nnot_worse_than_baseline_by = 0.1\n',
            "also depends on the training runs",
        ),
        (POLICY.replace('"Pointing"', '"Pointing"\nreading = "own@layer=*,heads=*"'), "several readings"),
        (
            BASELINE + CHECK.format(3).replace("Pointing", "InfluenceEntropy").replace("at_least", "at_most"),
            "can never fail",
        ),
        (BASELINE + CHECK.format("9" * 400), "9; expected a number above 0"),
        (POLICY.replace("kept", "k" * 5000), "File name too long"),
    ],
)
def test_invalid_tables_and_margins_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(AuditError) as refused:
        load_policy(written(tmp_path, text))
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path / "policy.toml"))
