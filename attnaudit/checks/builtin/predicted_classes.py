"""The predicted classes that have enough rows for a statistic of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from attnaudit.checks.base import Check
from attnaudit.checks.evidence import Mask
from attnaudit.disk_arrays.filed_arrays import filled
from attnaudit.engine.measurements import Measurements
from attnaudit.formatting import listed
from attnaudit.records import CheckRecord
from attnaudit.statistics.balanced_rows import WeightedRows
from attnaudit.statistics.groups import FEW_GROUPS

#: A class has a statistic of its own if it is predicted for at least this many sources. With fewer, its interval would
#: be so wide that the class could block a model by chance, and the interval would use Student's t.
FEWEST_SOURCES = FEW_GROUPS


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequentClasses:
    """The predicted classes with enough rows, and those with too few. Build it with `of`.

    Attributes:
        rows: (n,) True at the rows of the frequent classes; False everywhere if there is only one such class, because
            it cannot be compared with another class. If the output is not a decision, all rows count as one class.
        rare: The names of the classes that are predicted for fewer than 10 sources, but for at least one.
        no_decision: Why the output is not a decision; "" if it is one.
        of_rare: (n,) True at the rows for which these classes are predicted.
        alone: (n,) True at the rows of the frequent class if there is only one.
    """

    rows: Mask
    rare: Sequence[str]
    no_decision: str
    of_rare: Mask
    alone: Mask

    @classmethod
    def of(cls, measurements: Measurements, counted: Mask) -> FrequentClasses:
        """Find the frequent classes.

        Args:
            measurements: The measurements of n rows.
            counted: (n,) True at the rows that have a value.
        """
        nothing, of_rare = (filled(len(measurements), False, np.bool_) for _ in range(2))
        if measurements.no_decision:
            return cls(rows=counted, rare=(), no_decision=measurements.no_decision, of_rare=nothing, alone=nothing)
        groups = measurements.counted_groups(counted)
        classes = WeightedRows.balanced(measurements.predicted, groups)
        rows = filled(len(measurements), False, np.bool_)
        frequent, rare = 0, []
        for members, sources in zip(classes.members, classes.sources_of_classes, strict=True):
            if sources >= FEWEST_SOURCES:
                frequent += 1
                rows[members] = True
            else:
                rare.append(measurements.classes[int(measurements.predicted[members[0]])])
                of_rare[members] = True
        enough = frequent > 1
        return cls(
            rows=rows if enough else nothing,
            rare=rare,
            no_decision="",
            of_rare=of_rare,
            alone=nothing if enough else rows,
        )

    def undefined_reasons(self) -> Sequence[tuple[str, Mask]]:
        """Return why rows with a value do not count, as `PerInstanceCheck.undefined_reasons` does."""
        some = f"at least {FEWEST_SOURCES} texts (texts of one source count once)"
        return (
            (f"their class is not predicted for {some}", self.of_rare),
            (f"no other class is predicted for {some}", self.alone),
        )

    @property
    def note(self) -> str:
        """A remark on the classes, as a clause; "" if all predicted classes count."""
        if self.no_decision:
            return f"the value is the index of all texts, not the smallest index of a class, because {self.no_decision}"
        if not self.rare:
            return ""
        names = listed([f"'{name}'" for name in self.rare])
        each, it = ("this class is", "it") if len(self.rare) == 1 else ("each of these classes is", "them")
        return (
            f"texts predicted as {names} are left out: {each} predicted for fewer than {FEWEST_SOURCES} texts (texts "
            f"of one source count once), and whether attention is used in {it} is unknown"
        )


def with_texts_of(record: CheckRecord, check: Check, measurements: Measurements) -> CheckRecord:
    """Return a record of a value of classes with the texts of a check that does not depend on classes.

    Args:
        record: The record of a model whose output is not a decision.
        check: The check with the texts.
        measurements: The measurements of the model.
    """
    texts = {
        "title": f"{check.title} ({check.reading})" if check.reading else check.title,
        "question": check.question,
        "how_to_read": check.how_to_read,
        "when_failed": check.when_failed,
        "statistic": check.statistic,
        "value_name": check.value_name,
    }
    names = measurements.unit_names
    named = {field: names.named(text, of_weights=check.replaces_weights) for field, text in texts.items()}
    return msgspec.structs.replace(record, **named)
