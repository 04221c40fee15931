"""Does an adapter keep its contract? A suite of checks, selected by the capabilities that the adapter declares. Each is
a function of `Examples` that returns a sentence about what was found, or raises `BrokenContractError`.

The quick form runs before every audit, on a few of the audit's own inputs; `check_adapter`, `parametrize_with_checks`
and `attnaudit conformance` run the full one.
"""

from attnaudit.adapters.conformance.cases import CHECKS, Case, Subject, cases
from attnaudit.adapters.conformance.contract import TOLERANCE, BrokenContractError, Check
from attnaudit.adapters.conformance.examples import Examples
from attnaudit.adapters.conformance.parametrising import parametrize_with_checks
from attnaudit.adapters.conformance.running import check_adapter, full, quick

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
