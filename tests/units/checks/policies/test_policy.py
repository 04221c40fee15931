from __future__ import annotations

import os
from pathlib import Path

import pytest

from attnaudit import checks
from attnaudit.checks import from_tables, load_policy, to_table
from attnaudit.errors import CheckError
from attnaudit.records import PolicyException

SHIPPED = Path(__file__).resolve().parents[4] / "audits"
CHECK = b"[[check]]\nname = 'Agreement'\nat_least = 0.1\n"
REPORTED = b"[[check]]\nname = 'Conicity'\nseverity = 'report'\n"
EXCEPTION = b"[[exception]]\ncheck = 'agreement.gradient.meister.inputs'\nreason = 'known'\n"
EVERY = [
    checks.Agreement(at_least=0.3, confidence=0.9, inconclusive="warn"),
    checks.Agreement(at_least=0.3, preset="jain_wallace", at="hidden"),
    checks.Agreement(importance="leave_one_out", at_least=0.2),
    checks.InfluenceEntropy(of="hidden", at_most=0.8),
    checks.PermutationFragility(at_least=0.05),
    checks.UniformFragility(measure="f1_drop", at_least=0.05),
    checks.AdversarialDivergence(tvd=0.05, severity="report"),
    checks.InformationRanking(at_least=0.5),
    checks.Agreement(importance="input_x_gradient", at_least="floor + 0.5 * (gradient_loo - floor)"),
    checks.AdversarialDivergence(tvd=0.2, at_most="0.9 * largest_possible"),
]


def test_a_check_survives_the_conversion_to_a_table():
    assert from_tables([to_table(check) for check in EVERY], where="here") == EVERY


def test_the_path_of_a_policy_may_be_a_string(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_bytes(CHECK)
    assert load_policy(str(path)) == load_policy(path)
    with pytest.raises(CheckError, match="no such policy file"):
        load_policy(str(tmp_path / "missing.toml"))


def test_a_file_gives_the_same_checks_as_python(tmp_path):
    path = tmp_path / "strict.toml"
    path.write_text(
        '[[check]]\nname = "Agreement"\nimportance = "leave_one_out"\nat_least = 0.2\n\n'
        '[[check]]\nname = "AdversarialDivergence"\ntvd = 0.05\nseverity = "report"\n'
    )
    assert load_policy(path) == [EVERY[2], EVERY[6]]


def test_the_arguments_of_a_check_override_those_of_the_policy(tmp_path):
    path = tmp_path / "strict.toml"
    path.write_text(
        '[policy]\nconfidence = 0.99\ninconclusive = "warn"\n\n'
        '[[check]]\nname = "Agreement"\nat_least = "floor + 0.2"\n\n'
        '[[check]]\nname = "InfluenceEntropy"\nat_most = 0.8\nconfidence = 0.9\n'
    )
    first, second = load_policy(path)
    assert first == checks.Agreement(at_least="floor + 0.2", confidence=0.99, inconclusive="warn")
    assert second == checks.InfluenceEntropy(at_most=0.8, confidence=0.9, inconclusive="warn")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([{"at_least": 0.3}], "p.toml: [[check]] number 1: the key 'name' is missing"),
        (
            [{"name": "Agrement"}],
            "p.toml: [[check]] number 1: unknown check name 'Agrement'. Did you mean 'Agreement'?",
        ),
        ([{"name": 3}], "unknown check name 3"),
        (
            [{"name": "Agreement", "at_least": 0.1}, {"name": "Agreement", "at_leats": 0.3}],
            "p.toml: [[check]] number 2 (Agreement): unknown key 'at_leats'. Did you mean 'at_least'",
        ),
        ([{"name": "Agreement", "at_least": 3}], "number 1 (Agreement): Agreement: at_least is 3; expected"),
        ([{"name": "Agreement", "at_least": "0.3"}], "at_least is '0.3'; expected a number"),
        ([{"name": "Agreement", "at_least": 0.1, "at": ["inputs"]}], "unknown at ['inputs']"),
        (
            [{"name": "Agreement", "at_least": 0.1}, {"name": "Agreement", "at_least": 0.2}],
            "number 1 and number 2 are the same check 'agreement.gradient.meister.inputs': keep one",
        ),
        (["Agreement"], "number 1: expected a table, but got str"),
        ({"name": "Agreement"}, "expected a list of [[check]] tables, but got dict"),
    ],
)
def test_invalid_tables_are_refused(tables, message):
    with pytest.raises(CheckError) as caught:
        from_tables(tables, where="p.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the policy has no [[check]] table"),
        (b"check = [", "not valid TOML"),
        (b"[[checks]]\nname = 'Agreement'\n", "unknown key 'checks'. Did you mean 'check'?"),
        (b"[polcy]\nconfidence = 0.9\n", "unknown key 'polcy'. Did you mean 'policy'?"),
        (b"[policy]\nconfidense = 0.9\n" + CHECK, "[policy]: unknown key 'confidense'. Did you mean 'confidence'?"),
        (b"[policy]\nconfidence = 95\n" + CHECK, "[policy]: confidence is 95; expected a number between"),
        (b"[policy]\ninconclusive = 'stop'\n" + CHECK, "[policy]: unknown inconclusive 'stop'"),
        (b"policy = 3\n" + CHECK, "[policy]: expected one table, but got int"),
        (b"[policy]\nconfidence = 0.9\n", "the policy has no [[check]] table"),
        (b"[check]\nname = 'Agreement'\n", "expected a list of [[check]] tables, but got dict"),
        (b"# \xff\n", "not UTF-8 (byte 2)"),
        (b"[policy]\ninformational = true\n" + CHECK, "is declared informational, but 'agreement.gradient.meister.in"),
        (b"[policy]\ninformational = 1\n" + REPORTED, "[policy]: Expected `bool`, got `int`"),
        (CHECK + REPORTED + EXCEPTION.replace(b"agreement.gradient.meister.inputs", b"conicity"), "is not a gate"),
        (CHECK + EXCEPTION.replace(b"meister", b"meistr"), "Did you mean 'agreement.gradient.meister.inputs'?"),
        (CHECK + EXCEPTION.replace(b"known", b" "), "[[exception]] number 1: reason is empty. Fill it in."),
        (CHECK + EXCEPTION.replace(b"'known'", b"3"), "[[exception]] number 1: reason is 3, expected text"),
        (CHECK + EXCEPTION.replace(b"reason", b"raeson"), "unknown key 'raeson'. Did you mean 'reason'?"),
        (CHECK + b"[[exception]]\ncheck = 'agreement.gradient.meister.inputs'\n", "the key 'reason' is missing"),
        (CHECK + b"[[exception]]\nreason = 'known'\n", "the key 'check' is missing"),
        (CHECK + EXCEPTION + b"model = ''\n", "model is empty. Leave it out"),
        (CHECK + EXCEPTION * 2, "number 2: an exception for 'agreement.gradient.meister.inputs' is given above"),
        (b"exception = 3\n" + CHECK, "expected a list of [[exception]] tables, but got int"),
        (b"exception = [3]\n" + CHECK, "[[exception]] number 1: expected a table, but got int"),
        (b"[policy.questions.q]\nasks = '?'\nchecks = []\n" + CHECK, "none of its checks is a gate"),
    ],
)
def test_invalid_files_are_refused(tmp_path, content, message):
    path = tmp_path / "p.toml"
    path.write_bytes(content)
    with pytest.raises(CheckError) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(CheckError, match="there is no such policy file"):
        load_policy(tmp_path / "none.toml")
    with pytest.raises(CheckError, match="this is a folder, expected a file with the policy"):
        load_policy(tmp_path)


def test_a_pipe_is_refused_and_not_read(tmp_path):
    os.mkfifo(tmp_path / "p.toml")
    with pytest.raises(
        CheckError, match=r"p\.toml: this is a pipe, expected a regular file with the policy\. Write the"
    ):
        load_policy(tmp_path / "p.toml")
    with pytest.raises(CheckError, match="/dev/zero: this is a device"):
        load_policy(Path("/dev/zero"))


def test_a_policy_without_a_gate_is_declared_informational(tmp_path):
    path = tmp_path / "p.toml"
    path.write_bytes(b"[policy]\ninformational = true\n" + REPORTED)
    assert load_policy(path).record.informational
    path.write_bytes(REPORTED)
    with pytest.raises(CheckError) as caught:
        load_policy(path)
    assert str(caught.value) == (
        f"{path}: no check is a gate, so the audit could never fail. Make a check a gate: give it a threshold and "
        "leave out severity. If the checks should only report their values, add informational = true under [policy]."
    )
    path.write_bytes(b"[[check]]\nname = 'RetrainedUniform'\nat_least = 0.01\n")
    with pytest.raises(CheckError, match="Set severity = \"gate\" for 'retrained_uniform', which has a threshold"):
        load_policy(path)


def test_exceptions_are_read(tmp_path):
    path = tmp_path / "p.toml"
    path.write_bytes(CHECK + EXCEPTION + EXCEPTION + b"model = 'demo'\ndata = 'mine'\n")
    assert load_policy(path).record.exceptions == [
        PolicyException(check="agreement.gradient.meister.inputs", reason="known"),
        PolicyException(check="agreement.gradient.meister.inputs", reason="known", model="demo", data="mine"),
    ]


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b'\xef\xbb\xbf[[check]]\nname = "UniformFragility"\nat_least = 0.1\n')
    assert [check.id for check in load_policy(tmp_path / "mine.toml")] == ["uniform_fragility.tvd"]


@pytest.mark.parametrize(
    ("number", "message"), [("9" * 400, "too large; expected a number"), ("9" * 5000, "not valid TOML")]
)
def test_numbers_with_hundreds_of_digits_are_refused(tmp_path, number, message):
    (tmp_path / "mine.toml").write_text(f'[[check]]\nname = "UniformFragility"\nat_least = {number}\n')
    with pytest.raises(CheckError, match=message):
        load_policy(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    "name", ["policy.toml", "transformer.toml", "attentions.toml", "bags.toml", "pictures.toml", "sources.toml"]
)
def test_the_checks_of_a_shipped_policy_have_different_titles(name):
    titles = [(check.title, check.reading) for check in load_policy(SHIPPED / name)]
    assert len(titles) == len(set(titles))
