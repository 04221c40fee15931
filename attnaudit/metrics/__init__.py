"""Metrics: pure functions of batched tensors.

Most metrics take padded rows (..., T) with a boolean mask that is True at real tokens. They compute in float64. A
metric that is undefined for a row returns NaN, never 0. Divergences and mutual information are in nats.
"""

from attnaudit.metrics.divergence import jensen_shannon, largest_jensen_shannon, total_variation
from attnaudit.metrics.entropy import normalized_entropy
from attnaudit.metrics.exact_adversary import adversarial_upper_bound, exact_adversarial_attention
from attnaudit.metrics.f1 import f1
from attnaudit.metrics.kendall import kendall, kendall_p_value, kendall_tau_b, near_tied_pairs, weighted_kendall_tau
from attnaudit.metrics.mutual_information import mutual_information, shuffled_information
from attnaudit.metrics.ranked_information import InformationRanking, choose_ranks, information_ranking
from attnaudit.metrics.searched_adversary import keyed_noise, searched_adversarial_attention

__all__ = [
    "InformationRanking",
    "adversarial_upper_bound",
    "choose_ranks",
    "exact_adversarial_attention",
    "f1",
    "information_ranking",
    "jensen_shannon",
    "kendall",
    "kendall_p_value",
    "kendall_tau_b",
    "keyed_noise",
    "largest_jensen_shannon",
    "mutual_information",
    "near_tied_pairs",
    "normalized_entropy",
    "searched_adversarial_attention",
    "shuffled_information",
    "total_variation",
    "weighted_kendall_tau",
]
