from __future__ import annotations

import subprocess
import sys
import warnings

import msgspec
import pytest

from attnaudit.checks import Agreement, CheckFailed, InconclusiveWarning, InformationRanking, audit, enforce
from attnaudit.errors import CheckError
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
        ((Agreement(at_least=0.1), "x"), "argument 2 is 'x', expected a check"),
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
