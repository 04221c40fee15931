"""How the report says things: numbers, verdicts, column names, the outcome in a sentence."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attnaudit.records import CheckRecord, Interval, Requirement, RunRecord
from attnaudit.report.questions import notes as question_notes
from attnaudit.report.questions import remedies

VERDICTS = {
    "pass": "Pass",
    "fail": "Fail",
    "inconclusive": "Inconclusive",
    "undefined": "Undefined",
    "measured": "Measured",
}
SYMBOLS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "undefined": "∅", "measured": "•"}

READING = {
    "agreement": (
        "Kendall's τ-b compares two orderings of the same tokens: 1 means the same order, 0 no relation, "
        "−1 the opposite order. Attribution methods disagree among themselves, so read it between the floor "
        "(shuffled attention) and the ceiling (two importance measures against each other), not against 1."
    ),
    "influence": (
        "Normalised entropy runs from 0 (all influence comes from one token) to 1 (every token matters alike). "
        "The nearer it is to 1, the less a weight says about any single token."
    ),
    "fragility": (
        "Total variation distance runs from 0 (the output does not move when the weights are replaced) to 1. "
        "Near 0, the model does not use which tokens are attended."
    ),
    "adversarial": (
        "Jensen–Shannon divergence runs from 0 (no other attention gives the same output) to ln 2 ≈ 0.693 nats. "
        "It depends on how peaked the attention is, so read it beside the largest divergence possible."
    ),
    "information": (
        "The weighted τ runs from −1 to 1: 1 means that the ranks with more attention hold hidden states with more "
        "information about the output. Heavy first ranks dominate it; read the unweighted τ beside it."
    ),
    "erasure": (
        "Tokens or weights are taken away from the most attended down. At the floor the order of attention does no "
        "better than a random one; the ceiling is an order that knows more: signed leave-one-out, attention × "
        "gradient, or the best single token."
    ),
    "states": (
        "This is about the hidden states that attention weighs, not about the weights: where the states are alike, or "
        "each knows the answer, or none knows its word any more, a weight on one says little about the word there."
    ),
    "randomisation": (
        "The model is held against copies with random parameters of the same scale. What such copies show as well does "
        "not come from what the model has learnt; the floor is how alike two copies are to each other."
    ),
    "retraining": (
        "Jensen–Shannon divergence runs from 0 (the copy attends as the model does) to ln 2 ≈ 0.693 nats. The copies "
        "were trained for this check. The interval is over instances, not over training runs: read it beside the "
        "spread of the seeds."
    ),
}

F1_READING = (
    "The drop is F1 with the model's own attention less F1 with the weights replaced. Near 0, the predictions are "
    "as good without the weights; below 0, they are better without them."
)

RETRAINED_F1_READING = (
    "The difference is between mean F1 scores of models that were trained for this check, or of the audited one. Near "
    "0, the others do as well. The interval is over instances, not over training runs: read it beside the spread of "
    "the seeds."
)

GENERIC_READING = "The number is held against the threshold together with its confidence interval."

IMPORTANCE = {
    "gradient.meister": "Gradient norm",
    "gradient.jain_wallace": "Gradient × input, attention held fixed",
    "input_x_gradient": "Input × gradient",
    "leave_one_out": "Leave-one-out",
}

PLACES = {"inputs": "at the inputs", "hidden": "at the hidden states"}


def number(value: float | int | None, *, digits: int = 3) -> str:
    """A number for people: a true minus, no false zero, thousands separated; an em dash when there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int):
        text = f"{int(value):,}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    elif value != 0 and abs(value) < 0.5 * 10.0**-digits:
        text = f"{value:.1e}"
    else:
        text = f"{value:.{digits}f}"
        if float(text) == 0:
            text = text.lstrip("-")
    return text.replace("-", "−")


def threshold(value: float) -> str:
    """A threshold as it was written: at least two decimals, and none lost."""
    text = repr(float(value))
    if "e" in text or len(text.partition(".")[2]) >= 2:
        return text.replace("-", "−")
    return f"{value:.2f}".replace("-", "−")


def requirement(one: Requirement) -> str:
    return ("≥ " if one.direction == "at_least" else "≤ ") + limit_words(one)


def limit_words(one: Requirement) -> str:
    """The threshold as it was written; of a relative one, what it came to."""
    return threshold(one.value) if one.expression is None else f"{number(one.value)} ({one.expression})"


def plural(count: int, one: str) -> str:
    return f"{count:,} {one if count == 1 else one + 's'}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def column(name: str) -> str:
    """A measured column in words, with the reading where it names one; an unknown one keeps its name."""
    plain, _, reading = name.partition("/")
    if reading:
        return f"{column(plain)}, {reading}"
    if name == "attention":
        return "Attention"
    found = re.fullmatch(r"adversarial\.(.+)\.attention", name)
    if found:
        return f"Adversarial attention (TVD ≤ {found[1]})"
    if re.fullmatch(r"retrained\..+\.attention", name):
        return (
            f"Attention of {'the trained adversary' if 'attention=adversary' in name else 'a copy from another seed'}"
        )
    changed = name.removesuffix(".change")
    stem, _, place = changed.rpartition(".")
    if stem in IMPORTANCE and place in PLACES:
        return f"{IMPORTANCE[stem]}, {PLACES[place]}" + (", change of output (TVD)" if changed != name else "")
    return name


def reading(check: CheckRecord) -> str:
    """How to read the number of a check of a known family."""
    family = check.family.partition("_")[0]
    if family == "fragility" and check.unit == "F1":
        return F1_READING
    if family == "retraining" and check.unit == "F1":
        return RETRAINED_F1_READING
    return READING.get(family, GENERIC_READING)


def judged(check: CheckRecord) -> str:
    """The verdict, or "measured" where there is no threshold to judge by and nothing is blocked."""
    free = check.requirement is None and check.verdict != "undefined" and not check.blocks
    return "measured" if free else check.verdict


def digits(check: CheckRecord) -> int:
    """Three decimals, or as many (up to six) as keep a number from being rounded onto a threshold it misses."""
    if check.requirement is None:
        return 3
    limit = check.requirement.value
    ends = (check.interval.low, check.interval.high) if check.interval else ()
    near = [v for v in (check.value, *ends) if v is not None and v != limit]
    return next((d for d in range(3, 6) if all(f"{v:.{d}f}" != f"{limit:.{d}f}" for v in near)), 6)


def interval(check: CheckRecord) -> str:
    if check.interval is None:
        return "—"
    return ends(check.interval, digits(check))


def ends(one: Interval, places: int) -> str:
    return f"{number(one.low, digits=places)} to {number(one.high, digits=places)}"


def verdict_sentence(check: CheckRecord) -> str:
    """Why the verdict is what it is, from the numbers of the record."""
    if check.verdict == "undefined" and check.n_defined < 0.8 * check.n:
        few = f"Only {check.n_defined:,}" if check.n_defined else "None"
        return f"{few} of {plural(check.n, 'instance')} could be measured: too few to judge."
    if check.value is None:
        return "The statistic is undefined on this data."
    if check.requirement is None:
        return "There is no threshold: the value is shown for information."
    needed = "at least" if check.requirement.direction == "at_least" else "at most"
    needed = f"{needed} {limit_words(check.requirement)}"
    if check.interval is None:
        return f"The check asks for {needed}; the value comes without an interval."
    span = f"{check.interval.level} interval from {interval(check)}"
    if check.verdict == "pass":
        return f"The whole {span} meets the requirement of {needed}."
    if check.verdict == "fail":
        return f"The whole {span} misses the requirement of {needed}."
    strict, limit = check.fail_interval, check.requirement.value
    at_least = check.requirement.direction == "at_least"
    missed = check.interval.high < limit if at_least else check.interval.low > limit
    if missed and strict is not None and strict.low <= limit <= strict.high:
        return (
            f"The whole {span} misses the requirement of {needed}, but among {check.gated} gated checks a failure "
            f"needs that of the {strict.level} interval from {ends(strict, digits(check))}."
        )
    if check.interval.low <= check.requirement.value <= check.interval.high:
        return f"The {span} reaches to both sides of the threshold; the check asks for {needed}."
    return f"The check asks for {needed}; {plural(check.n_defined, 'instance')} are too few to judge the {span}."


def planned(check: CheckRecord) -> str:
    """What would decide an inconclusive case, in a sentence."""
    if check.planning is None:
        return ""
    text = check.planning.words
    return f"{text[0].upper()}{text[1:]}."


def how_many_defined(check: CheckRecord) -> str:
    if check.n_defined == check.n:
        return f"All {plural(check.n, 'instance')} have a value." if check.n > 1 else ""
    has = "has" if check.n_defined == 1 else "have"
    return f"{check.n_defined:,} of {plural(check.n, 'instance')} {has} a value."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The run in words. state: "pass", "fail", "inconclusive" (incomplete) or "undefined" (nothing was decided)."""

    sentence: str
    state: str
    notes: tuple[str, ...]
    remedies: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]


def _kinds(checks: Sequence[CheckRecord]) -> str:
    words = {"fail": "failed", "inconclusive": "inconclusive", "undefined": "undefined", "pass": "passed"}
    counts = Counter(c.verdict for c in checks)
    return ", ".join(f"{counts[k]} {words[k]}" for k in ("fail", "inconclusive", "undefined", "pass") if counts[k])


def _declared(gated: Sequence[CheckRecord]) -> int:
    """How many gated checks would have run, had all been selected: those of the policy for each model, data set and
    seed."""
    subjects: dict[tuple[str, str, int], int] = {}
    for one in gated:
        key = (one.model, one.data, one.seed)
        subjects[key] = max(subjects.get(key, 0), one.gated)
    return sum(subjects.values())


def outcome(run: RunRecord) -> Outcome:
    """What the run decided. It names checks and counts; it never calls a model faithful."""
    gated = [c for c in run.checks if c.severity == "gate"]
    blocking = [c for c in run.checks if c.blocks]
    missing = len(run.missing)
    of = f"{len(gated)} gated {'check' if len(gated) == 1 else 'checks'}"
    notes = []
    if blocking:
        state = "fail"
        failed = all(c.verdict == "fail" for c in blocking)
        what = "failed" if failed else f"did not pass ({_kinds(blocking)})"
        so = "this release is blocked" if run.exit_status else "pytest was told to let that go (xfail)"
        sentence = f"{len(blocking)} of {of} {what}: {so}."
        if missing:
            notes.append(f"{plural(missing, 'selected case')} {'has' if missing == 1 else 'have'} no verdict.")
    elif missing:
        state = "inconclusive"
        has = "has" if missing == 1 else "have"
        start = f"None of {of} that ran blocks" if gated else "No gated check ran"
        sentence = f"{start}, but {plural(missing, 'selected case')} {has} no verdict: the audit is incomplete."
    elif not gated:
        state = "undefined"
        sentence = (
            f"No gated check ran, so nothing was decided; {plural(len(run.checks), 'check')} measured for information."
            if run.checks
            else "No check has a verdict: nothing was decided."
        )
    elif all(c.verdict == "pass" for c in gated) and (declared := _declared(gated)) > len(gated):
        state = "inconclusive"
        sentence = f"{len(gated)} of {declared} gated checks ran, and passed; the others were not selected."
    elif all(c.verdict == "pass" for c in gated):
        state = "pass"
        sentence = "The one gated check passed." if len(gated) == 1 else f"All {of} passed."
    else:
        state = "pass"
        other = [c for c in gated if c.verdict != "pass"]
        sentence = f"None of {of} blocks this release; {_kinds(other)}, which by the check's own rule does not block."
    if run.exit_status and not blocking and not missing:
        notes.append(f"pytest ended with status {run.exit_status}: something beside these checks went wrong.")
    notes += question_notes(run)
    notes += measuring_notes(run)
    counts = Counter(judged(c) for c in run.checks)
    listed = [(k, counts[k]) for k in VERDICTS if counts[k]] + ([("missing", missing)] if missing else [])
    return Outcome(
        sentence=sentence, state=state, notes=tuple(notes), remedies=tuple(remedies(run)), counts=tuple(listed)
    )


def measuring_notes(run: RunRecord) -> list[str]:
    """How the numbers came about, of each model and data set where there are several."""
    several = len(run.measured) > 1
    said = [(f"{one.model} on {one.data}: " if several else "") + note for one in run.measured for note in one.notes]
    return list(dict.fromkeys(said))


def visible(text: str) -> str:
    """Control characters made visible, so that no text of a data set can hide or rearrange what is around it."""

    def show(found: re.Match[str]) -> str:
        code = ord(found[0])
        if code < 0x20:
            return chr(0x2400 + code)
        return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"

    return re.sub(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]", show, text
    )
