"""Compare verdicts and values with the known share on which the attention of a model is right.

The share counts rows, the evidence in each row, or heads.

A mechanism is graded if its models have at least three different shares. Its faithful models (share 1) and unfaithful
models (share 0) are the two ends of its scale.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from attnaudit.research.validation.candidates import Candidate
from attnaudit.research.validation.figures_schema import Guarantee, RankCorrelation, ShareOutcome
from attnaudit.research.validation.roc import wilson
from attnaudit.research.validation.scoring import Gate, JudgedModel, oriented, score

#: A mechanism is graded if its models have at least this number of different shares.
FEWEST_SHARES = 3
#: The number of standard errors of a 95% interval.
NORMAL_QUANTILE = 1.959964
#: Checks whose value is itself a share of the texts on which attention is right.
SHARE_CHECKS = ("pointing.logits.share",)


def graded_mechanisms(models: Sequence[JudgedModel]) -> dict[str, list[JudgedModel]]:
    """Return the models of each graded mechanism, sorted by mechanism.

    Models whose truth is unknown (`truth = "trend"`) are left out.
    """
    by_mechanism: dict[str, list[JudgedModel]] = defaultdict(list)
    for model in models:
        if model.entry.truth != "trend" and model.entry.share is not None:
            by_mechanism[model.entry.mechanism].append(model)
    return {
        name: members
        for name, members in sorted(by_mechanism.items())
        if len({_level(model) for model in members}) >= FEWEST_SHARES
    }


def rank_correlations(
    models: Sequence[JudgedModel], candidates: Sequence[Candidate], gates: Sequence[Gate]
) -> list[RankCorrelation]:
    """Return the rank correlation of each check with the known share on which attention is right.

    Args:
        models: The models of one family, of both halves.
        candidates: The candidate checks. Of these, only the checks that may become gates are used, in addition to the
            gates.
        gates: The gates of the policy.

    Returns:
        For each check, one correlation for each graded mechanism. If there are several mechanisms, also one for all of
        them together. The gates come first. The list is empty without graded mechanisms.
    """
    mechanisms = graded_mechanisms(models)
    groups = list(mechanisms.items())
    if len(groups) > 1:
        groups.append(("", [model for members in mechanisms.values() for model in members]))
    gated = {gate.check for gate in gates}
    compared = sorted(
        (candidate for candidate in candidates if candidate.may_gate or candidate.check.id in gated),
        key=lambda candidate: (candidate.check.id not in gated, candidate.check.id),
    )
    return [
        _correlation(members, candidate, mechanism=name, gated=candidate.check.id in gated)
        for candidate in compared
        for name, members in groups
    ]


def spearman(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float] | None:
    """Return Spearman's rank correlation with its 95% interval.

    The interval is that of Bonett & Wright (2000): Fisher's z with the variance (1 + ρ²/2) / (n - 3).

    Args:
        x: The first number of each pair.
        y: The second number of each pair.

    Returns:
        The correlation and the lower and upper limit of its interval. None for fewer than four pairs, or if all values
        of `x` or of `y` are equal.
    """
    from scipy.stats import spearmanr

    if len(x) < 4 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    value = float(spearmanr(x, y).statistic)
    if abs(value) >= 1 - 1e-12:
        return round(value), round(value), round(value)
    reach = NORMAL_QUANTILE * math.sqrt((1 + value**2 / 2) / (len(x) - 3))
    centre = math.atanh(value)
    return value, math.tanh(centre - reach), math.tanh(centre + reach)


def outcomes_by_share(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> list[ShareOutcome]:
    """Return the verdicts of a policy on graded mechanisms, for each share in ascending order.

    Args:
        models: The models of one family.
        gates: The gates of the policy.
    """
    by_share: dict[float, list[JudgedModel]] = defaultdict(list)
    for members in graded_mechanisms(models).values():
        for model in members:
            by_share[_level(model)].append(model)
    rows = []
    for share, members in sorted(by_share.items()):
        verdicts = [score(model, gates).verdict for model in members]
        values = {gate.check: _values(members, gate.check) for gate in gates}
        rows.append(
            ShareOutcome(
                share=share,
                passes=verdicts.count("pass"),
                fails=verdicts.count("fail"),
                inconclusive=len(verdicts) - verdicts.count("pass") - verdicts.count("fail"),
                median_values={check: median(found) if found else None for check, found in values.items()},
            )
        )
    return rows


def guarantee(models: Sequence[JudgedModel], gates: Sequence[Gate]) -> Guarantee | None:
    """Return what a pass of a policy says about the share on which attention is right.

    If a gate measures the share itself, its threshold is the guarantee by definition. Otherwise, it comes from the
    graded mechanisms: it is the lowest share of a model that passes.

    Args:
        models: The models of one family. Models of unknown truth ("trend") are ignored.
        gates: The gates of the policy.

    Returns:
        The guarantee. It is None if no gate measures the share and no graded model passes.
    """
    for gate in gates:
        if gate.check in SHARE_CHECKS and gate.direction == "at_least" and isinstance(gate.threshold, float):
            return Guarantee(
                share=gate.threshold,
                source="definition",
                sentence=f"A pass guarantees, with 95% confidence, that attention points clearly better than equal "
                f"weights on at least {gate.threshold:.0%} of the texts. Every class counts the same, and texts whose "
                "tokens have larger and more unequal effects count more",
            )
    graded = [model for members in graded_mechanisms(models).values() for model in members]
    passing = [_level(model) for model in graded if gates and not score(model, gates).alarm]
    if not passing:
        return None
    share = min(passing)
    if share <= 0:
        sentence = (
            "A pass does not guarantee that attention is right on any share of the texts, because a model of a graded "
            "mechanism passed although its attention is right nowhere"
        )
        return Guarantee(share=0.0, source="graded models", sentence=sentence)
    below = [model for model in graded if _level(model) < share]
    tuned = sum(model.entry.half == "tuning" for model in below)
    sentence = (
        f"No model of a graded mechanism passed if its attention is right on less than {share:.0%} "
        f"(0 of {len(below)}); "
    )
    if tuned:  # The threshold was chosen so that these models do not pass.
        sentence += f"{tuned} of these models are in the tuning half"
    else:
        sentence += f"with 95% confidence, at most {wilson(0, len(below)).high:.0%} of such models pass"
    return Guarantee(share=share, source="graded models", sentence=sentence)


def _correlation(
    members: Sequence[JudgedModel], candidate: Candidate, *, mechanism: str, gated: bool
) -> RankCorrelation:
    check = candidate.check.id
    pairs = [
        (model.entry.share or 0.0, oriented(model.records[check], candidate.direction))
        for model in members
        if check in model.records
    ]
    defined = [(share, value) for share, value in pairs if math.isfinite(value)]
    found = spearman([share for share, _ in defined], [value for _, value in defined])
    value, low, high = found if found is not None else (None, None, None)
    return RankCorrelation(
        check=check,
        gated=gated,
        mechanism=mechanism,
        value=value,
        low=low,
        high=high,
        models=len(defined),
        shares=len({round(share, 1) for share, _ in defined}),
    )


def _level(model: JudgedModel) -> float:
    """Return the share of a model, rounded to one decimal. Similar measured shares then count as the same share."""
    return round(model.entry.share or 0.0, 1) + 0.0


def _values(models: Sequence[JudgedModel], check: str) -> list[float]:
    records = (model.records.get(check) for model in models)
    return [record.value for record in records if record is not None and record.value is not None]
