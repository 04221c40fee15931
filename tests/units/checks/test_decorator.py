from __future__ import annotations

import subprocess
import sys
import warnings

import msgspec
import pytest

from attnaudit.checks import (
    Agreement,
    CheckFailed,
    InconclusiveWarning,
    InformationRanking,
    audit,
    enforce,
    load_policy,
)
from attnaudit.errors import CheckError
from attnaudit.records import PolicyException
from attnaudit.verdict_text import failure_message
from tests.units.checks.synthetic_measurements import measured


def test_audit_marks_the_function_and_stores_its_checks():
    one, two = Agreement(at_least=0.3), InformationRanking(at_least=0.5)

    @audit(one, two)
    def test_x(check): ...

    assert test_x.attnaudit_checks == (one, two)
    assert [mark.name for mark in test_x.pytestmark] == ["attnaudit"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no check is given"),
        ((Agreement,), "argument 1 is the class Agreement: call it"),
        ((lambda check: None,), "used without checks"),
        ((Agreement(at_least=0.1), "x"), "argument 2 is 'x'; expected a check"),
        (
            (Agreement(at_least=0.1), Agreement(at_least=0.2)),
            "arguments 1 and 2 are the same check 'agreement.gradient.meister.inputs'",
        ),
    ],
)
def test_an_argument_that_is_not_a_check_is_refused(arguments, message):
    with pytest.raises(CheckError) as caught:
        audit(*arguments)
    assert message in str(caught.value)


def test_exceptions_and_informational_are_stored():
    @audit(Agreement(at_least=0.3), exceptions={"agreement.gradient.meister.inputs": "known"})
    def gated(check): ...

    @audit(Agreement(severity="report"), informational=True)
    def reported(check): ...

    exception = PolicyException(check="agreement.gradient.meister.inputs", reason="known")
    assert (gated.attnaudit_exceptions, gated.attnaudit_informational) == ((exception,), False)
    assert (reported.attnaudit_exceptions, reported.attnaudit_informational) == ((), True)


def test_the_policy_file_gives_its_own_exceptions(tmp_path):
    (tmp_path / "p.toml").write_text(
        '[[check]]\nname = "InformationRanking"\nat_least = 0.5\n'
        '[[exception]]\ncheck = "information_ranking"\nreason = "known"\nmodel = "demo"\n'
    )
    policy = load_policy(tmp_path / "p.toml")

    @audit(policy)
    def test_x(check): ...

    assert test_x.attnaudit_exceptions == (PolicyException(check="information_ranking", reason="known", model="demo"),)
    in_file = {
        "exceptions": {"information_ranking": "known"},
        "informational": True,
        "validated_on": ["a"],
        "unvalidated": "gate",
    }
    for name, value in in_file.items():
        with pytest.raises(CheckError, match=r"cannot be combined with a policy\. Write it in the file p\.toml"):
            audit(policy, **{name: value})


def test_a_policy_cannot_be_combined_with_checks(tmp_path):
    (tmp_path / "p.toml").write_text('[[check]]\nname = "InformationRanking"\nat_least = 0.5\n')
    policy = load_policy(tmp_path / "p.toml")
    for arguments in ((policy, Agreement(severity="report")), (Agreement(severity="report"), policy)):
        with pytest.raises(CheckError) as caught:
            audit(*arguments)
        message = "audit: a policy cannot be combined with checks. Add the checks to its file, p.toml."
        assert str(caught.value) == message


def test_checks_that_are_taken_out_of_a_validated_policy_are_refused(tmp_path):
    check = '[[check]]\nname = "InformationRanking"\nat_least = 0.5\n'
    (tmp_path / "p.toml").write_text('[policy]\nvalidated_on = ["transformer"]\n' + check)
    (tmp_path / "unvalidated.toml").write_text(check)
    policy, added = load_policy(tmp_path / "p.toml"), Agreement(severity="report")
    assert list(policy) == list(load_policy(tmp_path / "unvalidated.toml"))
    with pytest.raises(CheckError, match=r"argument 1 is the check 'information_ranking' of the policy p\.toml, but"):
        audit(*policy)
    with pytest.raises(CheckError, match=r"argument 2 is .* validated_on=\['transformer'\]\)\."):
        audit(added, *policy)

    @audit(*policy, added, validated_on=["transformer"])
    def repeated(check): ...

    assert repeated.attnaudit_validation.validated_on == ["transformer"]
    audit(*load_policy(tmp_path / "unvalidated.toml"), added)


@pytest.mark.parametrize(
    ("severity", "arguments", "message"),
    [
        ("report", {}, "no check is a gate, so the audit could never fail"),
        ("gate", {"informational": True}, "'information_ranking' is a gate. Remove informational=True"),
        ("gate", {"informational": 1}, "informational is 1; expected True or False"),
        ("gate", {"exceptions": {"information_rankin": "known"}}, "Did you mean 'information_ranking'?"),
        ("gate", {"exceptions": {"information_ranking": ""}}, "exceptions['information_ranking']: reason is empty"),
        ("gate", {"exceptions": ["information_ranking"]}, "expected the reason for each gate"),
        ("gate", {"validated_on": "pooled attention"}, "validated_on is 'pooled attention'; expected a list"),
        ("gate", {"validated_on": [" pooled"]}, "validated_on is [' pooled']; expected a list"),
        ("gate", {"validated_on": ["pooled"], "unvalidated": "pass"}, "unvalidated is 'pass'; expected one of"),
        ("gate", {"unvalidated": "gate"}, "validated_on is missing or empty"),
    ],
)
def test_invalid_declarations_are_refused(severity, arguments, message):
    with pytest.raises(CheckError) as caught:
        audit(InformationRanking(at_least=0.5, severity=severity), **arguments)
    assert message in str(caught.value)


def test_a_function_is_decorated_only_once():
    def test_x(check): ...

    audit(Agreement(at_least=0.1))(test_x)
    with pytest.raises(CheckError, match="'test_x' is decorated twice"):
        audit(InformationRanking(at_least=0.1))(test_x)


def test_a_record_that_blocks_fails_with_its_message():
    record = Agreement(at_least=0.9).judge(measured())
    with pytest.raises(CheckFailed) as caught:
        enforce(record)
    assert str(caught.value) == failure_message(record)
    assert caught.value.record is record


def test_an_inconclusive_gate_warns_if_it_was_declared_so():
    record = Agreement(at_least=0.3, inconclusive="warn").judge(measured())
    assert record.verdict == "inconclusive"
    with pytest.warns(InconclusiveWarning, match="agreement.gradient.meister.inputs: inconclusive: mean τ-b"):
        enforce(record)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enforce(msgspec.structs.replace(record, inconclusive="pass"))


def test_importing_and_declaring_checks_imports_no_torch_scipy_or_sklearn():
    code = (
        "import sys; from attnaudit import audit, checks; checks.Agreement(at_least=.1); "
        "checks.from_tables([{'name': 'InformationRanking', 'at_least': .5}], where='x'); "
        "print([m for m in ('torch', 'scipy', 'sklearn', 'attnaudit.metrics') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
