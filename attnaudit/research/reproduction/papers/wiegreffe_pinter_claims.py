"""What Wiegreffe & Pinter 2019 say of their four tests, read off the tables of `wiegreffe_pinter`."""

from __future__ import annotations

from collections.abc import Callable

from attnaudit.checks.base import LN2
from attnaudit.research.reproduction.claims import Answer, Case, Claim, everywhere, levels, within
from attnaudit.research.reproduction.paper_report import Reproduction

#: What is high and what is equal here: half of the largest JSD there is, and two points of F1.
FAR, CLOSE = round(LN2 / 2, 3), 0.02


def _adversary_holds(one: Reproduction) -> Answer:
    far = levels(one, "adversary", "jsd", above=FAR)
    near = within(one, "adversary", "f1 adversary", "f1")
    return everywhere(
        [
            *(Case(name=f"{case.name} JSD", values=case.values) for case in far),
            *(Case(name=f"{case.name} F1", values=tuple(value + CLOSE for value in case.values)) for case in near),
        ],
        what=f"JSD of the adversary less {FAR:g}, and its F1 less the model's plus {CLOSE:g}",
    )


def _uniform_is_enough(one: Reproduction) -> Answer:
    cases = [
        Case(name=case.name, values=tuple(value + CLOSE for value in case.values))
        for case in within(one, "uniform", "f1 uniform", "f1")
        if case.name.startswith(("agnews/", "20news/"))
    ]
    return everywhere(cases, what=f"F1 with uniform weights less F1 with attention, plus {CLOSE:g}")


def _compared(table: str, more: str, less: str, what: str) -> Callable[[Reproduction], Answer]:
    return lambda one: everywhere(within(one, table, more, less), what=what)


CLAIMS = (
    Claim(
        name="uniform is enough for two corpora",
        sentence="On AG News and 20News a model that is trained with uniform weights does about as well",
        paper="test 1",
        read=_uniform_is_enough,
    ),
    Claim(
        name="attention guides an MLP",
        sentence="An MLP that sees words one by one does better with the BiLSTM's attention than with uniform weights",
        paper="test 3",
        read=_compared("guided-mlp", "f1 base", "f1 uniform", "F1 with the BiLSTM's weights less F1 with uniform ones"),
    ),
    Claim(
        name="attention guides better than what an MLP learns",
        sentence="An MLP does better with the BiLSTM's attention than with weights that it learns itself",
        paper="test 3",
        read=_compared("guided-mlp", "f1 base", "f1 learnt", "F1 with the BiLSTM's weights less F1 with its own"),
    ),
    Claim(
        name="an adversary guides an MLP worse",
        sentence="An MLP does better with the BiLSTM's attention than with that of an adversary which answers alike",
        paper="test 3",
        read=_compared("guided-mlp", "f1 base", "f1 adversary", "F1 with the BiLSTM's weights less the other's"),
    ),
    Claim(
        name="an adversary can be trained",
        sentence=f"A trained adversary reaches a high JSD (above {FAR:g}, half of what there is) at equal F1 (no more "
        f"than {CLOSE:g} lower)",
        paper="test 4",
        read=_adversary_holds,
    ),
    Claim(
        name="an adversary goes further than a seed",
        sentence="A trained adversary's attention is further away than that of another seed",
        paper="test 4",
        read=_compared("adversary", "jsd", "jsd seed", "JSD of the adversary less that of the next seed"),
    ),
    Claim(
        name="trained adversaries stay behind those sought per text",
        sentence="Attention as far away as can be found text by text is not reached by training a model for it",
        paper="test 4",
        read=_compared("adversary", "jsd per text", "jsd", "JSD at TVD ≤ .01 sought by text less the adversary's"),
    ),
)
