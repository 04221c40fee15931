"""The claims of Meister et al. 2021."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.papers.meister_numbers import SOFTMAX
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import (
    TAU_ENDS,
    Case,
    difference,
    differences_within_rows,
    each_row,
    exclusion,
    has_new_seeds,
    unfinished,
    values_by_seed,
)
from attnaudit.research.reproduction.verdicts_on_claims.claims import Answer, Claim, holds_in_every_case

#: The lowest entropy in table 1 of the paper. The paper calls all entropies in this table high.
LOWEST = 0.46
#: Two attention distributions count as different if their JSD, in nats, is above this value.
DIFFERENT_ATTENTION = math.log(2) / 2
#: An accuracy or an entropy counts as lower only if it is lower by more than this.
TOLERANCE = 0.02


def _influence_is_spread(report: Reproduction) -> Answer:
    return holds_in_every_case(each_row(report, "influence", "entropy", minus=LOWEST), what=f"H̃ minus {LOWEST:g}")


def _higher_at_states(kind: str) -> Callable[[Reproduction], Answer]:
    def read(report: Reproduction) -> Answer:
        cases = differences_within_rows(report, "agreement", f"{kind} hidden", f"{kind} inputs", ends=TAU_ENDS)
        return holds_in_every_case(cases, what=f"τ-b with {kind} at hidden states, minus τ-b with {kind} at the inputs")

    return read


def _falls_with_lambda(table: str, quantity: str, what: str) -> Callable[[Reproduction], Answer]:
    def read(report: Reproduction) -> Answer:
        negated = [case.reversed() for case in each_row(report, table, quantity)]
        return holds_in_every_case(negated, what=f"negative of the τ-b between λ and {what}")

    return read


def _importance_no_sparser(report: Reproduction) -> Answer:
    cases = [
        case.shifted(TOLERANCE)
        for case in differences_within_rows(report, "importance-entropy", "gradient λ=0", f"gradient {SOFTMAX}")
    ]
    return holds_in_every_case(cases, what=f"H̃ of the gradient with sparsemax minus H̃ with softmax, plus {TOLERANCE:g}")


def _first_with_different_attention(report: Reproduction, which: str) -> dict[str, str]:
    """Find, for each model, the smallest λ at which the attention of its adversary differs (mean JSD above ½ ln 2).

    Args:
        report: The report.
        which: "frozen" or "unfrozen", the kind of adversary.

    Returns:
        "corpus/encoder/alignment" -> name of the row with this λ. Models without such a λ are left out.
    """
    rows: dict[str, str] = {}
    for case in each_row(report, "adversary", f"jsd {which}", minus=DIFFERENT_ATTENTION):  # Ordered by λ.
        if case.values and statistics.fmean(case.values) > 0:
            rows.setdefault(case.name.rpartition("/")[0], case.name)
    return rows


def _frozen_costs_accuracy(report: Reproduction) -> Answer:
    """Compare the accuracies of the frozen and the unfrozen adversary.

    Each adversary is taken at the smallest λ at which its attention differs.
    """
    frozen = _first_with_different_attention(report, "frozen")
    unfrozen = _first_with_different_attention(report, "unfrozen")
    cases = []
    for model in (name for name in frozen if name in unfrozen):
        of_unfrozen = values_by_seed(report, "adversary", unfrozen[model], "accuracy unfrozen")
        of_frozen = values_by_seed(report, "adversary", frozen[model], "accuracy frozen")
        rows = (frozen[model], unfrozen[model])
        excluded = "; ".join(dict.fromkeys(why for row in rows for why in [exclusion(report, "adversary", row)] if why))
        of_both = unfinished(report, "adversary", *rows)
        again = has_new_seeds(report, "adversary", *rows)
        cases.append(difference(model, of_unfrozen, of_frozen, excluded=excluded, unfinished=of_both, again=again))
    if not cases and any(case.values for case in each_row(report, "adversary", "jsd frozen")):
        reason = "In no row do both adversaries reach a JSD above ½ ln 2 at any λ."
        return Answer(verdict="undecided", reason=reason, cause="unpaired")
    return holds_in_every_case(cases, what="accuracy of the unfrozen adversary minus that of the frozen one")


def _retrained_attends_elsewhere(report: Reproduction) -> Answer:
    """Answer whether the unfrozen adversary has different attention, but about the same accuracy as its base model.

    The accuracy of each adversary is taken at the smallest λ at which its mean JSD is above ½ ln 2. Its JSD is then not
    tested again, because λ was chosen by it. If its attention differs at no λ, and all λ were run, its JSD at the
    largest λ contradicts the claim.
    """
    chosen = _first_with_different_attention(report, "unfrozen")
    by_model: dict[str, list[Case]] = {}
    for case in each_row(report, "adversary", "jsd unfrozen", minus=DIFFERENT_ATTENTION):
        by_model.setdefault(case.name.rpartition("/")[0], []).append(case)
    cases = [
        of_model[-1].renamed(f"{of_model[-1].name} JSD")
        for model, of_model in by_model.items()
        if model not in chosen and all(case.values for case in of_model)
    ]
    for case in differences_within_rows(report, "adversary", "accuracy unfrozen", "accuracy base"):
        if case.name in chosen.values():
            cases.append(case.renamed(f"{case.name} accuracy").shifted(TOLERANCE))
    what = (
        f"accuracy of the unfrozen adversary minus the base model's accuracy plus {TOLERANCE:g}, at the smallest λ "
        "with a JSD above ½ ln 2; where no λ has one, its JSD minus ½ ln 2"
    )
    return holds_in_every_case(cases, what=what)


CLAIMS = (
    Claim(
        name="influence is spread",
        sentence="The influence on a hidden state is spread over many inputs: its normalised entropy H̃ is high in all "
        f"settings (here: above {LOWEST:g}, the lowest value that the paper calls high).",
        paper="table 1",
        read=_influence_is_spread,
    ),
    Claim(
        name="states over inputs, gradient",
        sentence="Attention agrees more with the gradient at hidden states than with the gradient at the inputs, in "
        "all models.",
        paper="figure 1",
        read=_higher_at_states("gradient"),
    ),
    Claim(
        name="states over inputs, leave-one-out",
        sentence="Attention agrees more with leave-one-out at hidden states than with leave-one-out at the inputs, in "
        "all models. (The paper's own table 6 contradicts this for the Transformer.)",
        paper="figure 4",
        read=_higher_at_states("leave-one-out"),
    ),
    Claim(
        name="entropy falls with λ",
        sentence="H̃ of the gradient and λ are negatively correlated. (This is the sign in table 2; the paper's text "
        "says the opposite, that entropy grows with sparsity.)",
        paper="table 2",
        read=_falls_with_lambda("sparsity", "means", "H̃ of the gradient"),
        explanations={
            "sst/bilstm/*": "With the BiLSTM on SST, entropy grows with λ, as the paper's text says. Table 2 of the "
            "paper contradicts this text. With the Transformer on SST, and on 20News, whose row does not count, the "
            "sign is that of table 2 (GloVe)."
        },
    ),
    Claim(
        name="importance no sparser",
        sentence="Sparse attention does not make the importance of the inputs sparser (here: its H̃ falls by less than "
        f"{TOLERANCE:g}).",
        paper="§4, figure 2",
        read=_importance_no_sparser,
        explanations={
            "20news/bilstm/*": "On 20News, H̃ of the gradient falls from .947 with softmax to .828 with sparsemax, and "
            "further with λ > 0 (random embeddings). Table 2 of the paper also says that it falls with λ there."
        },
    ),
    Claim(
        name="agreement falls with λ",
        sentence="The sparser attention is, the less it agrees with the gradient at the inputs (the paper shows this "
        "on IMDb).",
        paper="figure 3",
        read=_falls_with_lambda("agreement-by-sparsity", "gradient means", "the τ-b of attention with the gradient"),
    ),
    Claim(
        name="frozen adversary costs accuracy",
        sentence="An adversary that keeps the base model's states is less accurate than a retrained one (here: each "
        "at the smallest λ at which its JSD is above ½ ln 2).",
        paper="table 5",
        read=_frozen_costs_accuracy,
    ),
    Claim(
        name="retrained adversary attends elsewhere",
        sentence="A retrained adversary has very different attention (here: a JSD above ½ ln 2, at the smallest λ that "
        f"gives it), and is about as accurate as the base model (here: less than {TOLERANCE:g} lower).",
        paper="table 5",
        read=_retrained_attends_elsewhere,
    ),
)
