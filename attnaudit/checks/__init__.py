"""Checks: a measure, a statistic and a threshold. Importing this imports no torch."""

from attnaudit.checks.adversarial_divergence import AdversarialDivergence
from attnaudit.checks.agreement import Agreement
from attnaudit.checks.base import Check, Description
from attnaudit.checks.comprehensiveness import Comprehensiveness
from attnaudit.checks.conicity import Conicity
from attnaudit.checks.custom_check import CheckFactory, CustomCheck, check
from attnaudit.checks.decision_flip import DecisionFlip
from attnaudit.checks.decorator import CheckFailed, InconclusiveWarning, audit, enforce
from attnaudit.checks.evidence import Evidence
from attnaudit.checks.guided_mlp import GuidedMLP
from attnaudit.checks.influence_entropy import InfluenceEntropy
from attnaudit.checks.information_ranking import InformationRanking
from attnaudit.checks.information_retained import InformationRetained
from attnaudit.checks.parameter_randomisation import ParameterRandomisation
from attnaudit.checks.permutation_fragility import PermutationFragility
from attnaudit.checks.policy import from_tables, load_policy, to_table
from attnaudit.checks.retrained_uniform import RetrainedUniform
from attnaudit.checks.seed_variance import SeedVariance
from attnaudit.checks.sufficiency import Sufficiency
from attnaudit.checks.token_probability import TokenProbability
from attnaudit.checks.top_token_erasure import TopTokenErasure
from attnaudit.checks.trained_adversary import TrainedAdversary
from attnaudit.checks.uniform_fragility import UniformFragility

__all__ = [
    "AdversarialDivergence",
    "Agreement",
    "Check",
    "CheckFactory",
    "CheckFailed",
    "Comprehensiveness",
    "Conicity",
    "CustomCheck",
    "DecisionFlip",
    "Description",
    "Evidence",
    "GuidedMLP",
    "InconclusiveWarning",
    "InfluenceEntropy",
    "InformationRanking",
    "InformationRetained",
    "ParameterRandomisation",
    "PermutationFragility",
    "RetrainedUniform",
    "SeedVariance",
    "Sufficiency",
    "TokenProbability",
    "TopTokenErasure",
    "TrainedAdversary",
    "UniformFragility",
    "audit",
    "check",
    "enforce",
    "from_tables",
    "load_policy",
    "to_table",
]
