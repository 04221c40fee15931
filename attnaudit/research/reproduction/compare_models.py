"""What the models of a row have in common: quantities over their attention and their outputs, text by text.

A table that reads them keeps "attention" in its audit: `Audit(checks=..., tokens=("attention",))`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch

from attnaudit.errors import CheckError
from attnaudit.metrics import jensen_shannon, total_variation
from attnaudit.research.reproduction.audit_models import AuditedModel
from attnaudit.research.reproduction.paper_tables import MODEL, Models, Reading

ATTENTION = "attention"
Read = Callable[[Models], Reading]
ByText = Callable[[Models], list[float | None]]
#: (models, role) -> a number per text
OfRole = Callable[[Models, str], list[float | None]]
Fold = Callable[[Sequence[float]], float]


def jsd_between(of: str, against: str = MODEL) -> Read:
    """Mean over texts of the Jensen-Shannon divergence of the attention of two roles, in nats (at most ln 2). Texts of
    a single token, where it is 0 for any two models, are left out."""
    return _mean(lambda models: jsd_by_text(models, of, against))


def tvd_between(of: str, against: str = MODEL) -> Read:
    """Mean over texts of the total variation distance ½ Σ|p - q| of the class probabilities of two roles."""
    return _mean(lambda models: tvd_by_text(models, of, against))


def jsd_by_text(models: Models, of: str, against: str = MODEL) -> list[float | None]:
    """In the order of the audit of `against`; None for texts of a single token. Raises CheckError where the two were
    not audited on the same texts with their attention kept."""
    one, other = _audits(models, of, against, attention=True)
    pairs = zip(one.per_token[ATTENTION], other.per_token[ATTENTION], strict=True)
    return [_jsd(a, b) for a, b in pairs]


def tvd_by_text(models: Models, of: str, against: str = MODEL) -> list[float | None]:
    """In the order of the audit of `against`. Raises CheckError where the two were not audited on the same texts."""
    one, other = _audits(models, of, against, attention=False)
    apart = total_variation(torch.tensor(one.probabilities), torch.tensor(other.probabilities))
    return [float(x) for x in apart]


def less(more: Read, other: Read) -> Read:
    """One reading less another; None where either is. n is that of the first."""

    def read(models: Models) -> Reading:
        (one, n), (two, _) = more(models), other(models)
        return (None if one is None or two is None else one - two), n

    return read


def of_roles(one: Callable[[str], Read], roles: Sequence[str], fold: Fold) -> Read:
    """A statistic over roles of a number that each has; None where one has none."""

    def read(models: Models) -> Reading:
        found = [one(role)(models) for role in roles]
        values = [value for value, _ in found if value is not None]
        return (fold(values) if len(values) == len(roles) else None), found[0][1]

    return read


def over_roles(by_text: OfRole, roles: Sequence[str], fold: Fold) -> Read:
    """Mean over texts of a number per text and role, folded over the roles, such as the largest JSD to any of them."""
    return _mean(folded_by_text(by_text, roles, fold))


def folded_by_text(by_text: OfRole, roles: Sequence[str], fold: Fold) -> ByText:
    """The same text by text; None where one role has none."""

    def read(models: Models) -> list[float | None]:
        folded: list[float | None] = []
        for values in zip(*(by_text(models, role) for role in roles), strict=True):
            known = [value for value in values if value is not None]
            folded.append(fold(known) if len(known) == len(roles) else None)
        return folded

    return read


def _mean(by_text: ByText) -> Read:
    def read(models: Models) -> Reading:
        known = [x for x in by_text(models) if x is not None]
        return (statistics.fmean(known) if known else None), len(known)

    return read


def _audits(models: Models, of: str, against: str, *, attention: bool) -> tuple[AuditedModel, AuditedModel]:
    """The largest audits of the two that hold what is needed."""
    needed = f'tokens=("{ATTENTION}",)' if attention else "checks"
    found = []
    for role in (of, against):
        audits = [one for one in models[role].audits if not attention or ATTENTION in one.per_token]
        if not audits:
            raise CheckError(f"'{role}' has no audit to compare: give the table one with {needed} for this role.")
        found.append(audits[0])
    one, other = found
    if one.ids != other.ids or (attention and one.tokens != other.tokens):
        raise CheckError(f"'{of}' and '{against}' were audited on different texts. Give both the same audit.")
    return one, other


def _jsd(one: Sequence[float | None], other: Sequence[float | None]) -> float | None:
    """None for a single token, or where attention is undefined."""
    if len(one) < 2 or None in one or None in other:
        return None
    found = float(jensen_shannon(torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)))
    return None if math.isnan(found) else found
