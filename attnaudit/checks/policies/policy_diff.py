"""Compare two effective policies, and classify each difference as stricter or laxer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnaudit.checks.check_arguments import Parameter
from attnaudit.errors import CheckError
from attnaudit.formatting import plural
from attnaudit.model_families import covers, is_informational
from attnaudit.records import EffectivePolicy, PolicyException
from attnaudit.statistics.threshold import Expression, parse
from attnaudit.statistics.verdict import fail_confidence

Kind = Literal["laxer", "disappeared", "compare by hand", "stricter", "appeared", "changed"]
#: The kinds of changes that may let the new policy pass models that the old policy blocks. They are listed first.
SUSPECT: tuple[Kind, ...] = ("laxer", "disappeared", "compare by hand")
KINDS: tuple[Kind, ...] = (*SUSPECT, "stricter", "appeared", "changed")
DIRECTIONS = ("at_least", "at_most")
#: The arguments that decide how a value is judged. All other arguments decide what is measured.
JUDGING = (*DIRECTIONS, "severity", "confidence", "inconclusive", "unseen_mixers")
INCONCLUSIVE = ("pass", "warn", "fail")
#: The possible effects of a policy on the models of a family, from the laxest to the strictest.
EFFECTS = ("the gates are informational", "the gates apply", "the run fails")

Table = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between an old and a new policy.

    Attributes:
        kind: The effect of the difference. "laxer": the new policy may pass models that the old policy blocks.
            "stricter": the new policy may block models that the old policy passes. "disappeared": only the old policy
            has the check. "appeared": only the new policy has the check. "changed": the difference does not affect
            which models are blocked. "compare by hand": the policies alone do not show the effect.
        subject: The id of the check, or "policy" for the policy as a whole.
        text: What differs, as a clause without a full stop.
    """

    kind: Kind
    subject: str
    text: str


def differences(old: EffectivePolicy, new: EffectivePolicy) -> list[Change]:
    """Return the differences between two policies, starting with the kinds in `SUSPECT`."""
    changes = [
        *_of_checks(old, new),
        *_of_exceptions(old.exceptions, new.exceptions),
        *_of_validations(old, new),
    ]
    if new.informational and not old.informational:
        changes.append(Change("laxer", "policy", "is now declared informational, so no check can block a release"))
    if old.informational and not new.informational:
        changes.append(Change("stricter", "policy", "is no longer declared informational"))
    return sorted(changes, key=lambda change: (KINDS.index(change.kind), change.subject, change.text))


def _of_checks(old: EffectivePolicy, new: EffectivePolicy) -> Iterator[Change]:
    before, after = _by_id(old.checks), _by_id(new.checks)
    gates = (_number_of_gates(old.checks), _number_of_gates(new.checks))
    for id_ in before.keys() - after.keys():
        yield Change("disappeared", id_, _described(before[id_][0]))
    for id_ in after.keys() - before.keys():
        yield Change("appeared", id_, _described(after[id_][0]))
    for id_ in before.keys() & after.keys():
        if len(before[id_]) == len(after[id_]) == 1:
            for kind, text in _of_check(before[id_][0], after[id_][0], gates):
                yield Change(kind, id_, text)
        elif before[id_] != after[id_]:
            text = "is declared several times with different arguments, so the versions cannot be matched"
            yield Change("compare by hand", id_, text)


def _by_id(tables: Sequence[Table]) -> dict[str, list[Table]]:
    by_id: dict[str, list[Table]] = {}
    for table in tables:
        by_id.setdefault(str(table.get("id")), []).append(table)
    return by_id


def _is_gate(table: Table) -> bool:
    return table.get("severity") == "gate"


def _number_of_gates(tables: Sequence[Table]) -> int:
    return len({table.get("id") for table in tables if _is_gate(table)})


def _described(table: Table) -> str:
    if not _is_gate(table):
        return "an informational check"
    limits = [f"{direction} {_shown(table[direction])}" for direction in DIRECTIONS if table.get(direction) is not None]
    return f"a gate with {', '.join(limits) or 'no threshold'}"


def _of_check(old: Table, new: Table, gates: tuple[int, int]) -> Iterator[tuple[Kind, str]]:
    """Yield the changes of one check.

    A check that becomes a gate makes the policy stricter, and a check that is no longer a gate makes it laxer. Changes
    of other arguments count as "laxer", "stricter" or "compare by hand" only if the check is a gate in both policies.
    Otherwise, they count as "changed".
    """
    if _is_gate(old) and not _is_gate(new):
        yield "laxer", "is no longer a gate"
    elif _is_gate(new) and not _is_gate(old):
        yield "stricter", f"is now {_described(new)}"
    remains = _is_gate(old) and _is_gate(new)
    for argument in sorted({*old, *new} - {*JUDGING, "id"}):
        if old.get(argument) != new.get(argument):
            text = _from_to(argument, old.get(argument), new.get(argument))
            if argument == "code":
                text = "the code that computes it changed"
            yield ("compare by hand", f"{text}, so it may measure something else") if remains else ("changed", text)
    if remains:
        yield from _of_threshold(old, new)
        yield from _of_inconclusive(old, new)
        yield from _of_confidence(old, new, gates)
        yield from _of_unseen_mixers(old, new)
        return
    for argument in (*DIRECTIONS, "confidence", "inconclusive", "unseen_mixers"):
        if old.get(argument) != new.get(argument):
            yield "changed", _from_to(argument, old.get(argument), new.get(argument))


def _of_threshold(old: Table, new: Table) -> Iterator[tuple[Kind, str]]:
    for direction in DIRECTIONS:
        before, after = old.get(direction), new.get(direction)
        if before == after:
            continue
        text = _from_to(direction, before, after)
        change = _change_of_limit(before, after)
        if change is None:
            yield "compare by hand", text
        elif change != 0:
            yield ("stricter" if (change > 0) == (direction == "at_least") else "laxer"), text


def _change_of_limit(old: Parameter, new: Parameter) -> float | None:
    """Return how much higher the new threshold is than the old threshold.

    Return None if the difference depends on the values of references, or if one of the thresholds is missing.
    """
    before, after = _as_expression(old), _as_expression(new)
    if before is None or after is None or before.weights != after.weights:
        return None
    return after.constant - before.constant


def _as_expression(limit: Parameter) -> Expression | None:
    if isinstance(limit, str):
        try:
            return parse(limit, sorted(set(re.findall(r"[A-Za-z_]\w*", limit))) or ["reference"])
        except CheckError:  # a record of another version: show the thresholds as text
            return None
    if limit is None or isinstance(limit, bool):
        return None
    return Expression(str(limit), float(limit), {})


def _of_inconclusive(old: Table, new: Table) -> Iterator[tuple[Kind, str]]:
    before, after = old.get("inconclusive"), new.get("inconclusive")
    if before == after:
        return
    text = _from_to("inconclusive", before, after)
    if before not in INCONCLUSIVE or after not in INCONCLUSIVE:
        yield "compare by hand", text
    else:
        yield ("laxer" if INCONCLUSIVE.index(str(after)) < INCONCLUSIVE.index(str(before)) else "stricter"), text


def _of_confidence(old: Table, new: Table, gates: tuple[int, int]) -> Iterator[tuple[Kind, str]]:
    """Yield how a gate is affected if its confidence or the number of gates changes.

    There are two kinds of gates. With inconclusive="fail", a gate blocks unless its whole interval is on the required
    side. A higher confidence widens the interval, so it is stricter. Any other gate blocks only if its whole interval
    is on the wrong side. For these gates, a higher confidence is laxer. A larger number of gates is laxer too, because
    it widens the interval that decides failures.

    If a gate changes from one kind to the other, `_of_inconclusive` reports this change, and a change of the confidence
    counts only as "changed".
    """
    before, after = old.get("confidence"), new.get("confidence")
    text = _from_to("confidence", before, after)
    if not isinstance(before, float) or not isinstance(after, float):
        if before != after:
            yield "compare by hand", text
        return
    strict = [table.get("inconclusive") == "fail" for table in (old, new)]
    if strict[0] != strict[1]:
        if before != after:
            yield "changed", text
    elif strict[0]:
        if before != after:
            yield ("stricter" if after > before else "laxer"), text
    else:
        levels = [fail_confidence(level, count) for level, count in zip((before, after), gates, strict=True)]
        if levels[0] != levels[1]:
            yield (
                "laxer" if levels[1] > levels[0] else "stricter",
                f"fails only if its whole {levels[1]:.4%} interval is on the wrong side; before, its "
                f"{levels[0]:.4%} interval had to be there (confidence {before:g}, {plural(gates[0], 'gate')} → "
                f"confidence {after:g}, {plural(gates[1], 'gate')})",
            )
        elif before != after:
            yield "changed", text


def _of_unseen_mixers(old: Table, new: Table) -> Iterator[tuple[Kind, str]]:
    accepted = [table.get("unseen_mixers") == "accept" for table in (old, new)]
    if accepted[0] != accepted[1]:
        verb = "now" if accepted[1] else "no longer"
        text = f"{verb} accepts models that carry information between tokens without visible weights"
        yield ("laxer" if accepted[1] else "stricter"), text


def _of_exceptions(old: Sequence[PolicyException], new: Sequence[PolicyException]) -> Iterator[Change]:
    for exception in new:
        same = next((other for other in old if _scope(other) == _scope(exception)), None)
        if same is not None:
            if same.reason != exception.reason:
                text = f"the reason for the exception{_where(exception)} changed: {exception.reason}"
                yield Change("changed", exception.check, text)
        else:
            covered = any(_covers(other, exception) for other in old)
            text = f"a skip or expected failure is accepted{_where(exception)}: {exception.reason}"
            yield Change("changed" if covered else "laxer", exception.check, text)
    for exception in old:
        if not any(_scope(other) == _scope(exception) for other in new):
            covered = any(_covers(other, exception) for other in new)
            text = f"a skip or expected failure is no longer accepted{_where(exception)}"
            yield Change("changed" if covered else "stricter", exception.check, text)


def _of_validations(old: EffectivePolicy, new: EffectivePolicy) -> Iterator[Change]:
    """Yield changes in the treatment of models, for each family that a policy names and for all other families."""
    if old.validations == new.validations:
        return
    named = {family for policy in (old, new) for one in policy.validations for family in one.validated_on}
    gates = [
        {str(table["id"]) for table in policy.checks if _is_gate(table) and "id" in table} for policy in (old, new)
    ]
    found = False
    for family in (*sorted(named), ""):
        effects = {(_effect(old, check, family), _effect(new, check, family)) for check in gates[0] & gates[1]}
        for before, after in sorted(effects):
            if before != after:
                found = True
                which = f"family '{family}'" if family else "families that neither policy names"
                text = (
                    f"models of the {which}: {EFFECTS[before]} in the old policy, but {EFFECTS[after]} in the new one"
                )
                yield Change("laxer" if after < before else "stricter", "policy", text)
    if not found:
        yield Change("changed", "policy", "the families on which the gates were validated changed")


def _effect(policy: EffectivePolicy, check: str, family: str) -> int:
    """Return the effect of a policy on the models of a family, for one gate, as an index of EFFECTS."""
    own = [one for one in policy.validations if check in one.checks]
    if any(one.unvalidated == "block" and one.validated_on and not covers(one.validated_on, family) for one in own):
        return EFFECTS.index("the run fails")
    return 0 if is_informational(check, family, policy.validations) else 1


def _scope(exception: PolicyException) -> tuple[str, str, str]:
    return exception.check, exception.model, exception.data


def _covers(wide: PolicyException, narrow: PolicyException) -> bool:
    """Return whether the exception `wide` covers every case that the exception `narrow` covers."""
    return (
        wide.check == narrow.check and wide.model in ("", narrow.model) and wide.data in ("", narrow.data)
    )  # fmt: skip


def _where(exception: PolicyException) -> str:
    """Return the model and the data set of an exception as text, with a leading space; "" if it names neither."""
    model = f" of model {exception.model}" if exception.model else ""
    return model + (f" on data {exception.data}" if exception.data else "")


def _from_to(argument: str, old: Parameter, new: Parameter) -> str:
    return f"{argument} changed from {_shown(old)} to {_shown(new)}"


def _shown(value: Parameter) -> str:
    if value is None:
        return "not set"
    return f"'{value}'" if isinstance(value, str) else f"{value}"
