"""Describe the audited model and the audited rows of a data set, for audit.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnaudit.arrays import Integers
from attnaudit.data.labels import class_indices
from attnaudit.disk_arrays.filed_arrays import from_numbers
from attnaudit.disk_arrays.mapped_arrays import release_mapped
from attnaudit.errors import DataError
from attnaudit.formatting import number, plural
from attnaudit.instances import Dataset, labels_of
from attnaudit.model_families import audited_family
from attnaudit.records import ConformanceResult, DataRecord, MeasureRecord, ModelRecord, TargetRecord
from attnaudit.statistics.verdict import MINIMUM_DEFINED

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.adapters.protocol import Capabilities, ModelAdapter
    from attnaudit.data.draws import Draws

#: An accuracy is doubted if a constant answer had one that is as low with a probability below this.
IMPROBABLE = 0.01


def indices_of_labels(rows: Dataset, capabilities: Capabilities) -> Integers:
    """Return the class index of each row as an (n,) array, in a temporary file if there are many rows.

    Raises:
        DataError: The model does not know a label (see `attnaudit.data.labels.class_indices`).
    """
    found = class_indices(rows, capabilities.classes, capabilities.target, capabilities.labels)
    indices: Integers = from_numbers(found, np.int64)
    release_mapped()  # the labels that were read
    return indices


def require_known_labels(draws: Draws, capabilities: Capabilities, most: int) -> None:
    """Refuse data with a label that the model does not know, as an audit does.

    Args:
        draws: The rows of the data.
        capabilities: The capabilities of the model.
        most: The number of rows to read if their total number is unknown.

    Raises:
        DataError: The model does not know a label. The message is that of an audit of all rows.
    """
    indices_of_labels(draws.first(most if draws.size is None else None), capabilities)


def data_record(rows: Dataset, draws: Draws, *, name: str) -> DataRecord:
    """Return the record of a data set.

    Args:
        rows: The audited rows.
        draws: All rows of the data set, from which the audited rows were drawn.
        name: The id of the data set in the run.
    """
    return DataRecord(
        name=name,
        source=rows.source,
        description=rows.description,
        rows=rows.rows if rows.rows >= 0 else None,
        audited=len(rows.instances),
        labelled=sum(label is not None for label in labels_of(rows.instances)),
        classes=list(rows.classes),
        sha256=draws.sha256(len(rows.instances)),
        sample_seed=rows.sample_seed,
        sample_sha256=None if rows.sample_seed is None else rows.audited_sha256(),
        hashed=draws.hashed,
    )


def comparison_notes(adapter: ModelAdapter) -> list[str]:
    """Return a sentence if the adapter is not compared with the model's own forward pass (see `not_compared`)."""
    from attnaudit.adapters.optional_methods import not_compared

    clause = not_compared(adapter)
    return [f"The adapter was {clause}."] if clause else []


def data_notes(rows: Dataset, draws: Draws, error: DataError | None) -> list[str]:
    """Return sentences about problems in data that were read only in part.

    If the data had been read completely, these problems would be errors.

    Args:
        rows: The audited rows.
        draws: All rows of the data set, from which the audited rows were drawn.
        error: An error in a row that follows the audited rows. The audited rows are enough for the gates. None if no
            error was found.
    """
    notes = []
    if error is not None:
        notes.append(
            f"The gates were decided on {plural(len(rows.instances), 'row')}. A later row of the data contains an "
            f"error: {str(error).rstrip('.')}."
        )
    labelled = sum(label is not None for label in labels_of(rows.instances))
    if draws.hashed != "rows" and len(rows.classes) == 1 and labelled >= MINIMUM_DEFINED:
        notes.append(
            f"The labels of the audited rows are all '{rows.classes[0]}', so accuracy and F1 say little about the "
            "model. Check whether the data contain another class."
        )
    return notes


def accuracy_notes(record: MeasureRecord, labels: Integers) -> list[str]:
    """Return a sentence if the accuracy is lower than that of a constant answer, and chance is improbable.

    A usual reason is that the names of the classes are in another order than the outputs of the model. The run does not
    fail: attention can be faithful to wrong decisions, too.

    Args:
        record: The accuracy, and the number of rows with a label.
        labels: (n,) the indices of the labels; -1 for a row without a label.
    """
    from scipy.special import bdtr

    if record.accuracy is None:
        return []
    constant = int(np.bincount(labels[labels >= 0]).max()) / record.labelled
    if bdtr(round(record.accuracy * record.labelled), record.labelled, constant) >= IMPROBABLE:
        return []
    return [
        f"The accuracy is {number(record.accuracy)}. It would be {number(constant)} if the model always predicted the "
        "most frequent label. Check that the class names are in the order of the model's outputs, that the labels are "
        "correct, and that the audited rows are not almost all of one class by mistake."
    ]


def model_record(name: str, loaded: LoadedModel, conformance: list[ConformanceResult], *, unit: str) -> ModelRecord:
    """Return the record of a model.

    Args:
        name: The id of the model in the run.
        loaded: The model.
        conformance: The results of the test of its adapter.
        unit: The units of the audit.
    """
    target = loaded.adapter.capabilities.target
    return ModelRecord(
        name=name,
        source=loaded.source,
        description=loaded.description,
        classes=list(loaded.adapter.capabilities.classes),
        parameters=loaded.parameters,
        sha256=loaded.sha256,
        linear_decoder=loaded.adapter.capabilities.linear_decoder,
        conformance=list(conformance),
        family=audited_family(loaded.family, unit),
        unseen_mixers=list(loaded.adapter.capabilities.unseen_mixers),
        target=None
        if target.kind == "class"
        else TargetRecord(
            kind=target.kind, name=target.name, threshold=target.threshold, scale=target.scale, text=target.text
        ),
        no_decision=loaded.adapter.capabilities.no_decision,
        precision=loaded.adapter.capabilities.precision,
    )
