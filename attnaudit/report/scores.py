"""The accuracy and macro F1 of the models of a run on their tasks."""

from __future__ import annotations

from dataclasses import dataclass

from attnaudit.formatting import number
from attnaudit.records import RunRecord
from attnaudit.records.unit_names import names_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The accuracy and macro F1 of a model on its task, on one data set.

    Attributes:
        model: The name of the model.
        data: The name of the data set.
        text: A line with accuracy, macro F1 and the number of labelled texts.
        wrong: The number of labelled texts that the model predicts wrongly.
    """

    model: str
    data: str
    text: str
    wrong: int


def scores(run: RunRecord) -> tuple[Score, ...]:
    """Return the scores of each model on each data set with labels."""
    several = len(run.measured) > 1
    return tuple(
        Score(
            model=one.model,
            data=one.data,
            text=(f"{one.model} on {one.data}: accuracy" if several else "Accuracy")
            + f" {number(one.accuracy, digits=3)}, macro F1 {number(one.macro_f1, digits=3)} "
            f"on {names_of(one.unit_names).count_of_rows(one.labelled, which='labelled')}",
            wrong=round((1 - one.accuracy) * one.labelled),
        )
        for one in run.measured
        if one.accuracy is not None
    )
