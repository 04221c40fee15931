"""What Meister et al. 2021 say of their numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from attnaudit.research.reproduction.claims import Answer, Case, Claim, by_seed, everywhere, levels, within
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.papers.meister_numbers import SOFTMAX

#: The lowest entropy in the paper's table 1, of which it says that it is high throughout.
LOWEST = 0.46
#: JSD from which on attention is called other, in nats.
FAR = math.log(2) / 2
#: Accuracy that may be missing where it is called equal, entropy where it is called no lower.
ALLOWED = 0.02


def _spread(one: Reproduction) -> Answer:
    return everywhere(levels(one, "influence", "entropy", above=LOWEST), what=f"H̃ less {LOWEST:g}")


def _higher_at_states(kind: str) -> Callable[[Reproduction], Answer]:
    def read(one: Reproduction) -> Answer:
        cases = within(one, "agreement", f"{kind} hidden", f"{kind} inputs")
        return everywhere(cases, what=f"τ-b with {kind} at hidden states less that at the inputs")

    return read


def _falls(table: str, quantity: str, what: str) -> Callable[[Reproduction], Answer]:
    def read(one: Reproduction) -> Answer:
        turned = [
            Case(name=case.name, values=tuple(-value for value in case.values)) for case in levels(one, table, quantity)
        ]
        return everywhere(turned, what=f"minus the τ-b of λ with {what}")

    return read


def _no_sparser(one: Reproduction) -> Answer:
    cases = [
        Case(name=case.name, values=tuple(value + ALLOWED for value in case.values))
        for case in within(one, "importance-entropy", "gradient λ=0", f"gradient {SOFTMAX}")
    ]
    return everywhere(cases, what=f"H̃ of the gradient under sparsemax less that under softmax, plus {ALLOWED:g}")


def _elsewhere(one: Reproduction, which: str) -> dict[str, str]:
    """corpus/encoder/alignment -> the row with the smallest λ at which the adversary's mean JSD is above ½ ln 2."""
    found: dict[str, str] = {}
    for case in levels(one, "adversary", f"jsd {which}", above=FAR):  # rows come with growing λ
        if case.values and statistics.fmean(case.values) > 0:
            found.setdefault(case.name.rpartition("/")[0], case.name)
    return found


def _frozen_costs(one: Reproduction) -> Answer:
    """Each at the λ where it attends elsewhere."""
    frozen, unfrozen = _elsewhere(one, "frozen"), _elsewhere(one, "unfrozen")
    cases = []
    for model in (name for name in frozen if name in unfrozen):
        kept = by_seed(one, "adversary", unfrozen[model], "accuracy unfrozen")
        lost = by_seed(one, "adversary", frozen[model], "accuracy frozen")
        cases.append(Case(name=model, values=tuple(kept[seed] - lost[seed] for seed in kept if seed in lost)))
    return everywhere(cases, what="accuracy of the unfrozen adversary less that of the frozen one")


def _retrained_elsewhere(one: Reproduction) -> Answer:
    """Each at the λ where it attends elsewhere, else at the largest, where its JSD speaks against it."""
    moved = {case.name: case.values for case in levels(one, "adversary", "jsd unfrozen", above=FAR) if case.values}
    at = {name.rpartition("/")[0]: name for name in moved} | _elsewhere(one, "unfrozen")
    cases = [Case(name=f"{name} JSD", values=moved[name]) for name in at.values()]
    for case in within(one, "adversary", "accuracy unfrozen", "accuracy base"):
        if case.name in at.values():
            cases.append(Case(name=f"{case.name} accuracy", values=tuple(value + ALLOWED for value in case.values)))
    what = f"JSD of the unfrozen adversary less ½ ln 2, and its accuracy less the base's plus {ALLOWED:g}"
    return everywhere(cases, what=what)


CLAIMS = (
    Claim(
        name="influence is spread",
        sentence=f"Every token has a say in a hidden state: H̃ is high in all settings (here: above {LOWEST:g}, the "
        "lowest that the paper calls high).",
        paper="table 1",
        read=_spread,
    ),
    Claim(
        name="states over inputs, gradient",
        sentence="Attention agrees more with the gradient at hidden states than at the inputs, in all models.",
        paper="figure 1",
        read=_higher_at_states("gradient"),
    ),
    Claim(
        name="states over inputs, leave-one-out",
        sentence="Attention agrees more with leave-one-out at hidden states than at the inputs, in all models. (In the "
        "paper's own table 6 not so for the Transformer.)",
        paper="figure 4",
        read=_higher_at_states("leave-one-out"),
    ),
    Claim(
        name="entropy falls with λ",
        sentence="H̃ of the gradient and λ are negatively correlated (the sign in table 2; the paper's prose says the "
        "reverse, that entropy grows with sparsity).",
        paper="table 2",
        read=_falls("sparsity", "means", "H̃ of the gradient"),
    ),
    Claim(
        name="importance no sparser",
        sentence="Sparse attention does not make the importance of the inputs sparser (here: its H̃ does not fall by "
        f"{ALLOWED:g}).",
        paper="§4, figure 2",
        read=_no_sparser,
    ),
    Claim(
        name="agreement falls with λ",
        sentence="The sparser attention is, the less it agrees with the gradient at the inputs (the paper: on IMDb).",
        paper="figure 3",
        read=_falls("agreement-by-sparsity", "gradient means", "the τ-b of attention with the gradient"),
    ),
    Claim(
        name="frozen adversary costs accuracy",
        sentence="An adversary with the base's states loses accuracy that one trained anew keeps (here: each at the "
        "smallest λ at which its JSD is above ½ ln 2).",
        paper="table 5",
        read=_frozen_costs,
    ),
    Claim(
        name="retrained adversary attends elsewhere",
        sentence="An adversary trained anew has far other attention (here: a JSD above ½ ln 2, at the smallest λ that "
        f"gives it) at the base's accuracy (here: less than {ALLOWED:g} below).",
        paper="table 5",
        read=_retrained_elsewhere,
    ),
)
