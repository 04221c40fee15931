"""Remedies for gates that did not pass. They suit the verdict on the gate and the family of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from textwrap import shorten

from attnaudit.formatting import listed, number, plural
from attnaudit.model_families import covers
from attnaudit.records import CheckRecord, PolicyQuestion, PolicyRemedy, RunRecord
from attnaudit.records.unit_names import names_of
from attnaudit.report.audited_rows import audited_rows
from attnaudit.report.measured_causes import look_at_typical, remedy_for_equal_weights, remedy_without_cause
from attnaudit.report.questions import seriousness
from attnaudit.verdict_text import digits, planned

#: How many remedies are shown at first. The report shows the others on request.
FIRST_REMEDIES = 3
#: The most characters of the reason for which gates have no verdict. The report has the whole reason in its section.
MOST_OF_REASON = 300


def remedies(run: RunRecord) -> list[str]:
    """Return the remedies for the gates that block the release, each with an introduction."""
    return [f"What may help{f' with {subject}' if subject else ''}: {text}" for subject, text in _clauses(run)]


def next_steps(run: RunRecord) -> list[str]:
    """Return what to do about the gates that did not pass as sentences, for a list with a heading.

    Gates without a verdict come first, because they have to be judged before anything else can help. The remedies for
    the gates that block the release follow.
    """
    clauses = (*_without_verdict(run), *_clauses(run))
    return [f"{f'{subject}: ' if subject else ''}{_sentence(text)}" for subject, text in clauses]


def _sentence(clause: str) -> str:
    end = "" if clause.endswith((".", "?", "…")) else "."
    return f"{clause[:1].upper()}{clause[1:]}{end}"


def _clauses(run: RunRecord) -> list[tuple[str, str]]:
    """Return the remedies for the gates that block the release, as clauses without a capital letter.

    If several pairs of a model and a data set are blocked, the list takes one remedy from each pair in turn, from the
    pair with the most serious verdict to the one with the least serious verdict.

    Returns:
        Pairs of a subject and a remedy. The subject is "" if the remedy is for everything that was audited, and names
        models and data sets otherwise.
    """
    of_pair: dict[tuple[str, str], list[CheckRecord]] = {}
    for check in sorted((check for check in run.checks if check.blocks), key=seriousness):
        of_pair.setdefault((check.model, check.data), []).append(check)
    turns = zip_longest(*([(pair, text) for text in _of_gates(gates, run)] for pair, gates in of_pair.items()))
    pairs_of_text: dict[str, list[tuple[str, str]]] = {}
    for pair, text in filter(None, (entry for turn in turns for entry in turn)):
        pairs_of_text.setdefault(text, []).append(pair)
    audited = len({(check.model, check.data) for check in run.checks})
    return [
        ("" if len(pairs) == audited else listed([f"{model} on {data}" for model, data in pairs]), text)
        for text, pairs in pairs_of_text.items()
    ]


def _without_verdict(run: RunRecord) -> list[tuple[str, str]]:
    """Return what to do about the gates without a verdict, as pairs of a subject and a clause.

    The list is empty if a problem ended the run, because the report has this problem at the top.
    """
    if run.problem:
        return []
    gates = {(gate.model, gate.data, gate.check) for gate in run.gates if gate.state == "open"}
    several = len({(gate.model, gate.data) for gate in run.gates}) > 1
    checks_of: dict[tuple[str, str], list[str]] = {}
    for case in run.missing:
        if (case.model, case.data, case.check) in gates and case.reason:
            subject = f"{case.model} on {case.data}" if several else ""
            checks_of.setdefault((subject, case.reason), []).append(case.check)
    return [
        (subject, f"get a verdict on {listed(checks)}: {shorten(reason, MOST_OF_REASON, placeholder=' …')}")
        for (subject, reason), checks in checks_of.items()
    ]


def _of_gates(blocking: Sequence[CheckRecord], run: RunRecord) -> list[str]:
    """Return the remedies for gates of the same model and data set that block the release.

    The remedies for the most serious verdict come first. For each verdict, the remedies that follow from the verdict
    alone come first. They advise more texts for an inconclusive gate, and other texts for an undefined one. For a
    failed one, they advise what fits the causes that the run measured (see `attnaudit.report.measured_causes`), and
    another reading of the attention, if that reading did better in this run. The remedies of the policy follow. Each of
    them is shown only for the verdicts and families that the policy gives. If gates failed for which there is no
    remedy, the advice is to look at their typical texts.

    Args:
        blocking: The gates, from the most serious verdict to the least serious one.
        run: The run.

    Returns:
        The remedies. The remedies of a question are in the order of the policy. If several questions have remedies, the
        list takes one from each question in turn.
    """
    questions = run.declared_policy.questions if run.declared_policy else []
    found: list[str] = []
    for _, group in groupby(blocking, key=seriousness):
        gates = list(group)
        failed = [check for check in gates if check.verdict == "fail"]
        known = len(found)
        found += filter(None, (remedy_for_equal_weights(check, run) for check in failed))
        found += [text for check in gates for text in _of_verdict(check, run)]
        first_of_seed = {check.seed: check for check in reversed(failed)}
        found += filter(None, (remedy_without_cause(check, run) for check in reversed(first_of_seed.values())))
        by_question = [list(_of_policy(question, gates, run)) for question in questions]
        found += [text for turn in zip_longest(*by_question) for text in turn if text is not None]
        if len(found) == known:
            found += [look_at_typical(check) for check in failed[:1] if check.typical]
    return list(dict.fromkeys(found))


def remedies_in_short(run: RunRecord) -> list[str]:
    """Return the first remedies and, if there are more, a sentence with the number of the others."""
    every = remedies(run)
    more = len(every) - FIRST_REMEDIES
    if more <= 0:
        return every
    return [*every[:FIRST_REMEDIES], f"The report lists {plural(more, 'more thing')} that may help."]


def _of_verdict(check: CheckRecord, run: RunRecord) -> Iterator[str]:
    """Yield the remedies that follow from the verdict on a gate.

    If a model cannot be compared with its baseline, the reason already says what to do, so nothing is added.
    """
    if check.comparison is not None and check.comparison.not_comparable:
        return
    names = names_of(check.unit_names)
    rows = names.rows
    if check.verdict == "inconclusive" and check.planning is not None:
        if check.planning.instances is None:
            yield f"reconsider the threshold of {check.check}, because more {rows} would hardly settle its verdict"
        else:
            estimate = f"{planned(check)[:1].lower()}{planned(check)[1:].rstrip('.')}"
            yield f"audit more {rows} for {check.check}: {estimate}{_rows_left(check, run)}"
    elif check.verdict == "inconclusive":
        yield f"audit more {rows}, or {rows} of more sources, for {check.check}: {check.reason}{_rows_left(check, run)}"
    if check.unseen_mixers:
        yield (
            f"audit a model whose {names.units} are mixed by attention alone. If {check.check} is meant to judge only "
            'the attention that can be seen, set unseen_mixers = "accept" for it in the policy'
        )
    elif check.verdict == "undefined" and check.rounding is not None and check.value is not None:
        yield (
            f"audit more {rows} for {check.check}, so that its interval is further from the required value, or audit a "
            'float32 copy: write precision = "float32" to attnaudit.toml'
        )
    elif check.verdict == "undefined":
        reasons = sorted(check.undefined.items(), key=lambda pair: -pair[1])
        why = f"; the most frequent reason for a missing value is: {reasons[0][0]}" if reasons else ""
        yield f"audit {rows} on which {check.check} has a value{why}"
    if check.verdict == "fail":
        better = _better_reading(check, run)
        if better:
            yield better


def _rows_left(check: CheckRecord, run: RunRecord) -> str:
    """Return a sentence if the data of a check have rows that were not audited; "" otherwise."""
    data = next((one for one in run.data if one.name == check.data), None)
    if data is None or data.rows is None or data.audited >= data.rows:
        return ""
    return f". Only {audited_rows(data)} of {data.name} were audited"


def _better_reading(check: CheckRecord, run: RunRecord) -> str:
    """Return a remedy that names the reading with the best value of a check; "" if none is better."""
    if check.requirement is None or check.value is None:
        return ""
    sign = 1 if check.requirement.direction == "at_least" else -1
    found: list[tuple[float, str]] = []
    for other in run.checks:
        same = (other.model, other.data, other.seed, other.family) == (
            check.model,
            check.data,
            check.seed,
            check.family,
        )
        if not same or other.check == check.check or other.check.partition("/")[0] != check.check.partition("/")[0]:
            continue
        if other.matrix is not None:
            table = other.matrix
            found += [
                (sign * value, f"{table.row_label} {row}, {table.column_label} {column}")
                for row, values in zip(table.rows, table.values, strict=True)
                for column, value in zip(table.columns, values, strict=True)
                if value is not None
            ]
        elif other.value is not None:
            found.append((sign * other.value, other.reading))
    best = max(found, default=(float("-inf"), ""))
    if best[0] <= sign * check.value:
        return ""
    value = number(sign * best[0], digits=digits(check))
    return (
        f"show another reading of the attention: {best[1]} has the best value of {check.check} among the measured "
        f"readings ({value}); {'the accuracy does' if _decides(check, run) else 'the predictions do'} not change"
    )


def _decides(check: CheckRecord, run: RunRecord) -> bool:
    """Return whether the output of the model of a check is a decision, which can be right or wrong."""
    return not any(model.no_decision for model in run.models if model.name == check.model)


def _of_policy(question: PolicyQuestion, blocking: list[CheckRecord], run: RunRecord) -> Iterator[str]:
    """Yield the remedies that a question of the policy gives for gates that block the release."""
    families = {model.name: model.family for model in run.models}
    decides = all(_decides(check, run) for check in blocking if check.check in question.checks)
    own = [(check.verdict, families.get(check.model, "")) for check in blocking if check.check in question.checks]
    validated = run.declared_policy.validated_on if run.declared_policy else []
    if any(verdict == "fail" and (not validated or covers(validated, family)) for verdict, family in own):
        yield from question.remedies
    for remedy in question.remedy:
        if any(
            verdict in remedy.when and (not remedy.families or covers(remedy.families, family))
            for verdict, family in own
        ):
            yield f"{remedy.text}; {_cost(remedy, decides=decides)}" if remedy.accuracy else remedy.text


def _cost(remedy: PolicyRemedy, *, decides: bool) -> str:
    """Return what a remedy costs, in words. A model whose output is no decision has no accuracy."""
    if remedy.accuracy == "unchanged" and not decides:
        return "the predictions do not change"
    return f"accuracy {remedy.accuracy}"
