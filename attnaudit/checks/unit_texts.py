"""The texts of a record with the names of the units and rows of the model (see `attnaudit.records.UnitNames`)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnaudit.checks.check_arguments import CheckArguments
from attnaudit.records import Chart, CheckRecord, Series, UnitNames
from attnaudit.records.unit_names import TOKENS_OF_TEXTS, recorded

#: The texts of a record that a check writes. In a custom check, a user may have written the first ones.
WRITTEN_BY_CUSTOM_CHECKS = ("title", "question", "why", "how_to_read", "unit", "value_name")
OTHER_TEXTS = ("in_words", "when_failed", "reason", "statistic", "typical_of", "note")


def with_unit_names(
    record: CheckRecord, names: UnitNames, check: CheckArguments, classes: Sequence[str]
) -> CheckRecord:
    """Return a record whose texts name the units and rows.

    Args:
        record: The record. Its texts are about texts and tokens.
        names: The names.
        check: The check that made the record.
        classes: The names of the classes, which stay unchanged.
    """
    if names == TOKENS_OF_TEXTS:
        return record

    kept = [f"'{name}'" for name in classes]

    def named(text: str) -> str:
        return names.named(text, of_weights=check.replaces_weights, kept=kept)

    def named_chart(chart: Chart) -> Chart:
        series = [Series(name=named(one.name), x=one.x, y=one.y) for one in chart.series]
        return msgspec.structs.replace(
            chart, title=named(chart.title), x_label=named(chart.x_label), y_label=named(chart.y_label), series=series
        )

    fields = OTHER_TEXTS if check.has_custom_texts else (*WRITTEN_BY_CUSTOM_CHECKS, *OTHER_TEXTS)
    distribution = record.distribution
    if distribution is not None:
        distribution = msgspec.structs.replace(distribution, label=named(distribution.label))
    return msgspec.structs.replace(
        record,
        **{field: named(getattr(record, field)) for field in fields},
        undefined={named(reason): count for reason, count in record.undefined.items()},
        references=[msgspec.structs.replace(one, meaning=named(one.meaning)) for one in record.references],
        details={named(name): value for name, value in record.details.items()},
        distribution=distribution,
        charts=[named_chart(chart) for chart in record.charts],
        unit_names=recorded(names),
    )
