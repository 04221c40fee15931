"""Does an adapter keep its contract? A suite of checks, selected by the capabilities that the adapter declares. Each is
a function of `Examples` that returns a sentence about what was found, or raises `BrokenContractError`.

The quick form runs before every audit, on a few of the audit's own inputs; `check_adapter`, `parametrize_with_checks`
and `attnaudit conformance` run the full one.
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
