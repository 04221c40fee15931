"""The conformance suite, which checks whether an adapter fulfils the contract that an audit relies on.

The suite consists of checks. The declared capabilities of an adapter determine which checks apply to it. Each check is
a function of `Examples`. It returns one sentence about the result, or raises `BrokenContractError`.

The quick suite runs before every audit, on a few of the audit's inputs. `check_adapter`, `parametrize_with_checks` and
`attnaudit conformance` run the full suite.
"""

from attnaudit.conformance.contract import TOLERANCE, BrokenContractError, Check
from attnaudit.conformance.parametrize import parametrize_with_checks
from attnaudit.conformance.run_suite import check_adapter, full, quick
from attnaudit.conformance.sample_texts import Examples
from attnaudit.conformance.suite import CHECKS, Case, Subject, cases

__all__ = [
    "CHECKS",
    "TOLERANCE",
    "BrokenContractError",
    "Case",
    "Check",
    "Examples",
    "Subject",
    "cases",
    "check_adapter",
    "full",
    "parametrize_with_checks",
    "quick",
]
