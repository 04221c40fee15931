"""Quantities that compare the attention or the outputs of two models of a row, text by text.

To compare attention, a table must store it in its audits: `Audit(checks=..., tokens=("attention",))`.
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
#: (models, role) -> one number per text
ByTextOfRole = Callable[[Models, str], list[float | None]]
Statistic = Callable[[Sequence[float]], float]


def jsd_between(of: str, against: str = MODEL) -> Read:
    """Read the Jensen-Shannon divergence between the attention of two roles, in nats (at most ln 2), as the mean over
    texts.

    Texts of a single token are left out, because their divergence is 0 for any two models.
    """
    return _mean(lambda models: jsd_by_text(models, of, against))


def tvd_between(of: str, against: str = MODEL) -> Read:
    """Read the total variation distance ½ Σ|p - q| between the class probabilities of two roles, as the mean over
    texts."""
    return _mean(lambda models: tvd_by_text(models, of, against))


def jsd_by_text(models: Models, of: str, against: str = MODEL) -> list[float | None]:
    """Return the Jensen-Shannon divergence between the attention of two roles for each text, in nats.

    Returns:
        One value per text, in the order of the audit of `against`; None for texts of a single token or with
        undefined attention.

    Raises:
        CheckError: the two were not audited on the same texts, or their attention was not stored.
    """
    first, second = _audits(models, of, against, attention=True)
    pairs = zip(first.per_token[ATTENTION], second.per_token[ATTENTION], strict=True)
    return [_jsd(p, q) for p, q in pairs]


def tvd_by_text(models: Models, of: str, against: str = MODEL) -> list[float | None]:
    """Return the total variation distance between the class probabilities of two roles for each text.

    Returns:
        One value per text, in the order of the audit of `against`.

    Raises:
        CheckError: a role has no audit, or the two were not audited on the same texts.
    """
    first, second = _audits(models, of, against, attention=False)
    distances = total_variation(torch.tensor(first.probabilities), torch.tensor(second.probabilities))
    return [float(distance) for distance in distances]


def difference_of(first: Read, second: Read) -> Read:
    """Read one quantity minus another; None if either is undefined. n is that of the first quantity."""

    def read(models: Models) -> Reading:
        (value, n), (subtracted, _) = first(models), second(models)
        return (None if value is None or subtracted is None else value - subtracted), n

    return read


def over_roles(of: Callable[[str], Read], roles: Sequence[str], statistic: Statistic) -> Read:
    """Read a statistic of a quantity over several roles, such as its maximum; None if it is undefined for a role."""

    def read(models: Models) -> Reading:
        readings = [of(role)(models) for role in roles]
        values = [value for value, _ in readings if value is not None]
        return (statistic(values) if len(values) == len(roles) else None), readings[0][1]

    return read


def over_roles_by_text(by_text: ByTextOfRole, roles: Sequence[str], statistic: Statistic) -> Read:
    """Compute a statistic over roles for each text, such as the largest JSD, and read its mean over texts."""
    return _mean(statistic_by_text(by_text, roles, statistic))


def statistic_by_text(by_text: ByTextOfRole, roles: Sequence[str], statistic: Statistic) -> ByText:
    """Return a function that computes a statistic over roles for each text; None where a role has no value."""

    def read(models: Models) -> list[float | None]:
        folded: list[float | None] = []
        for values in zip(*(by_text(models, role) for role in roles), strict=True):
            known = [value for value in values if value is not None]
            folded.append(statistic(known) if len(known) == len(roles) else None)
        return folded

    return read


def _mean(by_text: ByText) -> Read:
    def read(models: Models) -> Reading:
        known = [value for value in by_text(models) if value is not None]
        return (statistics.fmean(known) if known else None), len(known)

    return read


def _audits(models: Models, of: str, against: str, *, attention: bool) -> tuple[AuditedModel, AuditedModel]:
    """Return the largest audit of each role; if attention is needed, the largest one with stored attention."""
    needed = f'tokens=("{ATTENTION}",)' if attention else "checks"
    largest = []
    for role in (of, against):
        audits = [audit for audit in models[role].audits if not attention or ATTENTION in audit.per_token]
        if not audits:
            raise CheckError(
                f"'{role}' has no audit to compare. Add an audit with {needed} for this role to the table."
            )
        largest.append(audits[0])
    first, second = largest
    if first.ids != second.ids or (attention and first.tokens != second.tokens):
        raise CheckError(f"'{of}' and '{against}' were audited on different texts. Give both the same audit.")
    return first, second


def _jsd(p: Sequence[float | None], q: Sequence[float | None]) -> float | None:
    """Return the divergence of one text; None for a single token, or if attention is undefined."""
    if len(p) < 2 or None in p or None in q:
        return None
    value = float(jensen_shannon(torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)))
    return None if math.isnan(value) else value
