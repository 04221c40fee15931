"""What Tutek & Šnajder 2020 say of their numbers, and what follows for those whose attention fails an audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from attnaudit.report.wording import plural
from attnaudit.research.reproduction.claims import Answer, Claim, against, by_seed, everywhere, names, within
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.remedies_file import Remedy

#: What falls less than this is called a similar F1.
SIMILAR = 0.03
REGULARISED = {"tying": "tying", "mlm": "MLM"}
#: What moves less than this is no remedy; as in `attnaudit.research.validation`.
LEAST_EFFECT = 0.02
#: quantity of the table "fragility" -> how a remedy calls it
SHOWN = {
    "tvd": "permutation_fragility.tvd",
    "permuted": "drop in F1 under permuted attention",
    "f1": "F1",
}


def _more(
    table: str, quantity: str, more: Sequence[str], less: Sequence[str], what: str, *, allowed: float = 0.0
) -> Callable[[Reproduction], Answer]:
    """The quantity is larger in each of `more` than in each of `less`, row by row."""

    def read(one: Reproduction) -> Answer:
        cases = [
            case
            for first in more
            for second in less
            for case in against(one, table, quantity, first, second, allowed=allowed)
        ]
        return everywhere(cases, what=what)

    return read


def _fewer_layers(one: Reproduction) -> Answer:
    cases = against(one, "layers", "permuted", "1-layers", "3-layers")
    return everywhere(
        [case for case in cases if "/base/" in case.name],
        what="drop in F1 under permuted attention, with 1 layer less that with 3",
    )


def _costs_more(one: Reproduction) -> Answer:
    return everywhere(
        within(one, "adversary", "cost mlm", "cost base"), what="TVD per nat of JSD at the largest λ, MLM less base"
    )


CLAIMS = (
    *(
        Claim(
            name=f"{form} is fragile",
            sentence=f"With {called}, predictions depend more on attention than in the base model: F1 drops more when "
            "attention is permuted.",
            paper="§4.1, table 1",
            read=_more(
                "fragility",
                "permuted",
                (form,),
                ("base",),
                f"drop in F1 under permuted attention, {called} less base",
            ),
        )
        for form, called in REGULARISED.items()
    ),
    *(
        Claim(
            name=f"{form} keeps F1",
            sentence=f"With {called}, predictions are about as good as in the base model: F1 at most {SIMILAR:g} less.",
            paper="§4.1, table 1",
            read=_more(
                "fragility", "f1", (form,), ("base",), f"F1, {called} less base, plus {SIMILAR:g}", allowed=SIMILAR
            ),
        )
        for form, called in REGULARISED.items()
    ),
    Claim(
        name="states retain more",
        sentence="With residual, tying and MLM, hidden states retain more of their words than in the base model.",
        paper="§4.2, table 2",
        read=_more(
            "information",
            "mf retained",
            ("residual", *REGULARISED),
            ("base",),
            "share of information retained (most frequent words), less base",
        ),
    ),
    Claim(
        name="one state says less",
        sentence="With tying and MLM, a single state is less sure of the prediction than in the base model.",
        paper="§5, table 3",
        read=_more(
            "probability",
            "probability",
            ("base",),
            tuple(REGULARISED),
            "probability of the predicted class from one state, base less regularised",
        ),
    ),
    Claim(
        name="layers make robust",
        sentence="The more layers the base model has, the less its predictions depend on attention.",
        paper="appendix B, table 6",
        read=_fewer_layers,
    ),
    Claim(
        name="adversaries pay more",
        sentence="An adversary of the MLM model pays more TVD for its JSD than one of the base model.",
        paper="§4.3, figure 1",
        read=_costs_more,
    ),
)


def remedies(one: Reproduction, options: Mapping[str, str]) -> tuple[Remedy, ...]:
    """What helps where attention is not used, with the figures of table 1 done again.

    options: form -> what to do, in words. Medians over the rows that were run with the form and as base; nothing is
    said of a form that does not move what a policy gates by .02 or more."""
    found = []
    again = f"done again from {one.vectors.name}" if one.vectors else "done again"
    for form, words in options.items():
        bases = [name for name in names(one, "fragility") if "/base/" in name]
        pairs = [(name, name.replace("/base/", f"/{form}/")) for name in bases]
        pairs = [pair for pair in pairs if all(by_seed(one, "fragility", name, q) for name in pair for q in SHOWN)]
        if not pairs:
            continue
        effects = {quantity: _medians(one, pairs, quantity) for quantity in SHOWN}
        plain, treated = effects["tvd"]
        if treated - plain < LEAST_EFFECT:
            continue
        said = ", ".join(f"{SHOWN[q]} {before:.2f} → {after:.2f}" for q, (before, after) in effects.items())
        seeds = sorted({len(by_seed(one, "fragility", name, "tvd")) for pair in pairs for name in pair})
        each = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        over = f"medians of {plural(len(pairs), 'pair')} of models, base → with it, {each} each"
        do = f"{words.removesuffix('`')} --vectors FILE`" if one.vectors else words
        found.append(
            Remedy(
                question="used",
                option=form,
                words=f"{do}: {said} ({over}, Tutek & Šnajder 2020 {again})",
            )
        )
    return tuple(found)


def _medians(one: Reproduction, pairs: Sequence[tuple[str, str]], quantity: str) -> tuple[float, float]:
    """Over the pairs, of the mean over seeds: of the first of each pair, and of the second."""
    means = [[fmean(by_seed(one, "fragility", name, quantity).values()) for name in pair] for pair in pairs]
    return median(plain for plain, _ in means), median(treated for _, treated in means)
