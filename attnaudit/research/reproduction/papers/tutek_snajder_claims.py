"""The claims of Tutek & Šnajder 2020, and the remedies that follow from their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from attnaudit.formatting import plural
from attnaudit.research.reproduction.paper_report import Reproduction
from attnaudit.research.reproduction.remedies_file import Remedy
from attnaudit.research.reproduction.verdicts_on_claims.claim_cases import (
    Ends,
    differences_between_rows,
    differences_within_rows,
    exclusion,
    row_names,
    values_by_seed,
)
from attnaudit.research.reproduction.verdicts_on_claims.claims import Answer, Claim, holds_in_every_case

#: The F1 of a model counts as good as that of the base model if it is lower by at most this much.
SIMILAR = 0.03
REGULARISED = {"tying": "tying", "mlm": "MLM"}
#: A smaller effect does not count as a remedy. `attnaudit.research.validation` uses the same number.
LEAST_EFFECT = 0.02
#: The option that makes embeddings as wide as the hidden states of the default encoder.
EQUAL_SIZES = "--embedding-size 256"
#: Name of a quantity in the table "fragility" -> name of the same quantity in a remedy.
EFFECTS = {
    "tvd": "permutation_fragility.tvd",
    "permuted": "drop in F1 under permuted attention",
    "f1": "F1",
}


def _larger(
    table: str,
    quantity: str,
    forms: Sequence[str],
    than: Sequence[str],
    what: str,
    *,
    tolerance: float = 0.0,
    ends: Ends | None = None,
) -> Callable[[Reproduction], Answer]:
    """Return a function that answers whether a quantity is larger with some forms of the model than with others.

    Args:
        table: The name of the table.
        quantity: The name of the quantity.
        forms: The forms that are expected to have larger values.
        than: The forms that each of them is compared with.
        what: A description of the difference, for the evidence.
        tolerance: A constant that is added to every difference.
        ends: The ends of the scale of the quantity. None if the scale has no ends.
    """

    def read(report: Reproduction) -> Answer:
        cases = [
            case.shifted(tolerance)
            for form in forms
            for other in than
            for case in differences_between_rows(report, table, quantity, form, other, ends=ends)
        ]
        return holds_in_every_case(cases, what=what, about_scores=quantity == "f1")

    return read


def _layers_make_robust(report: Reproduction) -> Answer:
    cases = differences_between_rows(report, "layers", "permuted", "1-layers", "3-layers")
    return holds_in_every_case(
        [case for case in cases if "/base/" in case.name],
        what="drop in F1 under permuted attention, 1 layer minus 3 layers",
    )


def _adversaries_pay_more(report: Reproduction) -> Answer:
    return holds_in_every_case(
        differences_within_rows(report, "adversary", "cost mlm", "cost base"),
        what="TVD per nat of JSD at the largest λ, MLM minus base",
    )


CLAIMS = (
    *(
        Claim(
            name=f"{form} is fragile",
            sentence=f"With {title}, predictions depend more on attention than in the base model: F1 drops more when "
            "attention is permuted.",
            paper="§4.1, table 1",
            read=_larger(
                "fragility",
                "permuted",
                (form,),
                ("base",),
                f"drop in F1 under permuted attention, {title} minus base",
            ),
        )
        for form, title in REGULARISED.items()
    ),
    *(
        Claim(
            name=f"{form} keeps F1",
            sentence=f"With {title}, predictions are about as good as in the base model: F1 is at most {SIMILAR:g} "
            "lower.",
            paper="§4.1, table 1",
            read=_larger(
                "fragility", "f1", (form,), ("base",), f"F1, {title} minus base, plus {SIMILAR:g}", tolerance=SIMILAR
            ),
        )
        for form, title in REGULARISED.items()
    ),
    Claim(
        name="states retain more",
        sentence="With residual, tying and MLM, hidden states retain more information about their words than in the "
        "base model.",
        paper="§4.2, table 2",
        read=_larger(
            "information",
            "mf retained",
            ("residual", *REGULARISED),
            ("base",),
            "share of information retained (most frequent words), minus that of the base model",
            ends=(0.0, 1.0),
        ),
    ),
    Claim(
        name="one state says less",
        sentence="With tying and MLM, a single state predicts the class with less certainty than in the base model.",
        paper="§5, table 3",
        read=_larger(
            "probability",
            "probability",
            ("base",),
            tuple(REGULARISED),
            "probability of the predicted class from one state, base minus regularised",
            ends=(0.0, 1.0),
        ),
    ),
    Claim(
        name="layers make robust",
        sentence="The more layers the base model has, the less its predictions depend on attention.",
        paper="appendix B, table 6",
        read=_layers_make_robust,
    ),
    Claim(
        name="adversaries pay more",
        sentence="For the same change of attention (JSD), an adversary of the MLM model changes the outputs more (TVD) "
        "than an adversary of the base model.",
        paper="§4.3, figure 1",
        read=_adversaries_pay_more,
    ),
)


def remedies(report: Reproduction, options: Mapping[str, str]) -> tuple[Remedy, ...]:
    """Return the training options that help if attention is not used, with their effects in the reproduced table 1.

    An option counts as a remedy only if it raises the TVD under permuted attention, which `PermutationFragility`
    measures, by at least .02. The numbers in the advice are medians over pairs of rows. One row of a pair was run with
    the option, and the other without. Rows that cannot decide a claim are left out.

    Args:
        report: The report.
        options: Form of the model -> advice.
    """
    found = []
    source = f"Tutek & Šnajder 2020 from {report.vectors.name}" if report.vectors else "Tutek & Šnajder 2020"
    for form, words in options.items():
        bases = [name for name in row_names(report, "fragility") if "/base/" in name]
        measured = [
            pair
            for pair in ((name, name.replace("/base/", f"/{form}/")) for name in bases)
            if all(values_by_seed(report, "fragility", name, quantity) for name in pair for quantity in EFFECTS)
        ]
        pairs = [pair for pair in measured if not any(exclusion(report, "fragility", name) for name in pair)]
        if not pairs:
            continue
        effects = {quantity: _medians(report, pairs, quantity) for quantity in EFFECTS}
        before, after = effects["tvd"]
        if after - before < LEAST_EFFECT:
            continue
        numbers = ", ".join(
            f"{EFFECTS[name]} {plain:.2f} → {treated:.2f}" for name, (plain, treated) in effects.items()
        )
        seeds = sorted({len(values_by_seed(report, "fragility", name, "tvd")) for pair in pairs for name in pair})
        each = plural(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        over = "medians of " if len(pairs) > 1 else ""
        over += f"{plural(len(pairs), 'pair')} of models, without → with the option, {each} each"
        if len(pairs) < len(measured):
            over += f"; {len(measured) - len(pairs)} more do not count, because a model was not trained well enough"
        action = words
        if report.vectors:  # The file sets the size of embeddings, and a state of a BiLSTM has twice the hidden size.
            action = words.replace(EQUAL_SIZES, f"--hidden-size {report.vectors.width // 2}")
            action = f"{action.removesuffix('`')} --vectors FILE`"
        found.append(
            Remedy(
                question="used",
                option=form,
                words=f"{action}: {numbers} ({over}; reproduction of {source})",
            )
        )
    return tuple(found)


def _medians(report: Reproduction, pairs: Sequence[tuple[str, str]], quantity: str) -> tuple[float, float]:
    """Return the median over the first rows of some pairs, and the median over the second rows.

    The value of a row is the mean of the quantity over seeds.
    """
    means = [
        [fmean(values_by_seed(report, "fragility", name, quantity).values()) for name in pair] for pair in pairs
    ]  # fmt: skip
    return median(plain for plain, _ in means), median(treated for _, treated in means)
