"""What two models of a row have in common: quantities over their attention and their outputs, text by text.

A table that reads them keeps "attention" in its audit: `Audit(checks=..., tokens=("attention",))`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch

from attnaudit.errors import CheckError
from attnaudit.metrics import jensen_shannon, total_variation
from attnaudit.reproduction.auditing import Measured
from attnaudit.reproduction.declaring import MODEL, Models, Reading

ATTENTION = "attention"
Comparison = Callable[[Models], list[float | None]]


def jsd_between(of: str, against: str = MODEL) -> Callable[[Models], Reading]:
    """Mean over texts of the Jensen-Shannon divergence of the attention of two roles, in nats (at most ln 2). Texts of
    a single token, where it is 0 for any two models, are left out."""
    return _mean(lambda models: jsd_by_text(models, of, against))


def tvd_between(of: str, against: str = MODEL) -> Callable[[Models], Reading]:
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


def _mean(by_text: Comparison) -> Callable[[Models], Reading]:
    def read(models: Models) -> Reading:
        known = [x for x in by_text(models) if x is not None]
        return (statistics.fmean(known) if known else None), len(known)

    return read


def _audits(models: Models, of: str, against: str, *, attention: bool) -> tuple[Measured, Measured]:
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
