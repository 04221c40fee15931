"""Checks: a measure, a statistic and a threshold. Importing this imports no torch."""

from attnaudit.checks.adversarial import AdversarialDivergence
from attnaudit.checks.agreement import Agreement
from attnaudit.checks.base import Check, Description
from attnaudit.checks.custom import CheckFactory, CustomCheck, check
from attnaudit.checks.declare import CheckFailed, InconclusiveWarning, audit, enforce
from attnaudit.checks.evidence import Evidence
from attnaudit.checks.influence import InfluenceEntropy
from attnaudit.checks.information import InformationRanking
from attnaudit.checks.permutation import PermutationFragility
from attnaudit.checks.policy import from_tables, load_policy, to_table
from attnaudit.checks.uniform import UniformFragility

__all__ = [
    "AdversarialDivergence",
    "Agreement",
    "Check",
    "CheckFactory",
    "CheckFailed",
    "CustomCheck",
    "Description",
    "Evidence",
    "InconclusiveWarning",
    "InfluenceEntropy",
    "InformationRanking",
    "PermutationFragility",
    "UniformFragility",
    "audit",
    "check",
    "enforce",
    "from_tables",
    "load_policy",
    "to_table",
]
