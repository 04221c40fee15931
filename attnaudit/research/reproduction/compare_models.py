"""Quantities that compare the attention or the outputs of two models, text by text.

The models belong to one row of a table. Each has a role in the row, which is a name such as "base". To compare
attention, the audits of the table must store it: `Audit(checks=..., tokens=("attention",))`.
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
#: A function of the models of a row and of a role. It returns one number per text.
ByTextOfRole = Callable[[Models, str], list[float | None]]
Statistic = Callable[[Sequence[float]], float]


def jsd_between(of: str, against: str = MODEL) -> Read:
    """Return a function that computes the mean Jensen-Shannon divergence between the attention of two models.

    The divergence is in nats and at most ln 2. The mean is taken over texts. Texts of a single token are left out,
    because their divergence is 0 for any two models.

    Args:
        of: The role of the first model in the row (see `RowPlan`).
        against: The role of the second model in the row (see `RowPlan`).
    """
    return _mean(lambda models: jsd_by_text(models, of, against))


def tvd_between(of: str, against: str = MODEL) -> Read:
    """Return a function that computes the mean total variation distance between the outputs of two models.

    The distance of a text is ½ Σ|p - q| over its class probabilities. The mean is over texts.

    Args:
        of: The role of the first model in the row (see `RowPlan`).
        against: The role of the second model in the row (see `RowPlan`).
    """
    return _mean(lambda models: tvd_by_text(models, of, against))


def jsd_by_text(models: Models, of: str, against: str = MODEL) -> list[float | None]:
    """Compute the Jensen-Shannon divergence between the attention of two models for each text.

    Args:
        models: Role -> model.
        of: The role of the first model in the row (see `RowPlan`).
        against: The role of the second model in the row (see `RowPlan`).

    Returns:
        One divergence per text, in nats, in the order of the audits. It is None for a text of a single token, and for a
        text with undefined attention.

    Raises:
        CheckError: The attention of a model was not stored, or the models were audited on different texts.
    """
    first, second = _audits(models, of, against, attention=True)
    pairs = zip(first.per_token[ATTENTION], second.per_token[ATTENTION], strict=True)
    return [_jsd(p, q) for p, q in pairs]


def tvd_by_text(models: Models, of: str, against: str = MODEL) -> list[float | None]:
    """Compute the total variation distance between the class probabilities of two models for each text.

    Args:
        models: Role -> model.
        of: The role of the first model in the row (see `RowPlan`).
        against: The role of the second model in the row (see `RowPlan`).

    Returns:
        One distance per text, in the order of the audits.

    Raises:
        CheckError: A model has no audit, or the models were audited on different texts.
    """
    first, second = _audits(models, of, against, attention=False)
    distances = total_variation(torch.tensor(first.probabilities), torch.tensor(second.probabilities))
    return [float(distance) for distance in distances]


def difference_of(first: Read, second: Read) -> Read:
    """Return a function that computes the difference of two quantities.

    The difference is None if either quantity is undefined. The function also returns the number of instances of the
    first quantity.

    Args:
        first: Computes the first quantity.
        second: Computes the quantity that is subtracted from it.
    """

    def read(models: Models) -> Reading:
        (value, n), (subtracted, _) = first(models), second(models)
        return (None if value is None or subtracted is None else value - subtracted), n

    return read


def over_roles(of: Callable[[str], Read], roles: Sequence[str], statistic: Statistic) -> Read:
    """Return a function that computes a statistic of one quantity over several models, such as its maximum.

    The result is None if the quantity is undefined for any of the models.

    Args:
        of: Returns the function that computes the quantity for a role.
        roles: The roles of the models in the row (see `RowPlan`).
        statistic: A function of the values, such as `max`.
    """

    def read(models: Models) -> Reading:
        readings = [of(role)(models) for role in roles]
        values = [value for value, _ in readings if value is not None]
        return (statistic(values) if len(values) == len(roles) else None), readings[0][1]

    return read


def over_roles_by_text(by_text: ByTextOfRole, roles: Sequence[str], statistic: Statistic) -> Read:
    """Return a function that computes a statistic over several models for each text, and averages it over the texts.

    An example is the largest JSD between the attention of the models and that of another model.

    Args:
        by_text: Computes one number per text for a role.
        roles: The roles of the models in the row (see `RowPlan`).
        statistic: A function of the numbers of one text, such as `max`.
    """
    return _mean(statistic_by_text(by_text, roles, statistic))


def statistic_by_text(by_text: ByTextOfRole, roles: Sequence[str], statistic: Statistic) -> ByText:
    """Return a function that computes a statistic over several models for each text.

    The statistic of a text is None if the number of any model is None.

    Args:
        by_text: Computes one number per text for a role.
        roles: The roles of the models in the row (see `RowPlan`).
        statistic: A function of the numbers of one text, such as `max`.
    """

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
    """Return the audit with the most instances of each of two models.

    Args:
        models: Role -> model.
        of: The role of the first model in the row (see `RowPlan`).
        against: The role of the second model in the row (see `RowPlan`).
        attention: Whether only audits with stored attention are considered.

    Raises:
        CheckError: A model has no such audit, or the two audits have different texts.
    """
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
        raise CheckError(f"'{of}' and '{against}' were audited on different texts. Declare the same audit for both.")
    return first, second


def _jsd(p: Sequence[float | None], q: Sequence[float | None]) -> float | None:
    """Return the divergence for one text. It is None if the text has a single token or its attention is undefined."""
    if len(p) < 2 or None in p or None in q:
        return None
    value = float(jensen_shannon(torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)))
    return None if math.isnan(value) else value
