"""The content of a baseline file: the numbers per instance of an accepted run, with which later runs are compared."""

from __future__ import annotations

from typing import Literal

from attnaudit.records.check_records import Record

BaselineName = Literal["last", "pinned"]
#: The name of a baseline -> the description of this baseline.
BASELINE_NAMES: dict[BaselineName, str] = {"last": "last release", "pinned": "pinned release"}

#: The version of the format. Increase it whenever the fields of a record change, or what they mean.
BASELINE_FORMAT = 2


class BaselineCheck(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of a check in an accepted run.

    Attributes:
        check: The id of the check.
        reading: The reading under which it was measured; "" for a model with a single row of attention weights.
        value: The mean of the numbers per instance in the file.
        low: The lower bound of the confidence interval of the value.
        high: The upper bound of this interval.
    """

    check: str
    reading: str
    value: float
    low: float
    high: float


class BaselineSubject(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of one model on one data set.

    Attributes:
        model: The name of the model.
        model_sha256: The SHA-256 hash of the model (see `ModelRecord`).
        data: The name of the data set.
        data_sha256: The SHA-256 hash of the data set (see `DataRecord`).
        sample_sha256: The SHA-256 hash of the audited sample; None if all rows were audited.
        checks: The c checks, sorted by id.
        values: The id of each instance -> c numbers, in the order of `checks`. Each number is the linearised value of
            a check on the instance, to six significant digits; None where it is undefined. The value of a check is the
            mean of these numbers.
    """

    model: str
    model_sha256: str
    data: str
    data_sha256: str
    sample_sha256: str | None
    checks: list[BaselineCheck]
    values: dict[str, list[float | None]]


class Baseline(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a baseline file.

    Attributes:
        format: The version of the format.
        baseline_name: The name of the baseline: "last" for the last release, "pinned" for a release that is seldom
            replaced.
        run: The name of the accepted run.
        created: When this run began, in ISO 8601 and UTC.
        attnaudit: The version of attnaudit that measured.
        measures_sha256: The SHA-256 hash of the code that computes the numbers.
        policy_sha256: The SHA-256 hash of the effective policy.
        seed: The seed of the run.
        unit: The units into which texts are divided for all statistics: "tokens", "words" or "sources".
        not_passed: The gates that had not passed when the run was accepted. Accepting such a run needs an explicit
            option.
        subjects: The numbers of every model on every data set, sorted by their names.
        sha256: The SHA-256 hash of all other fields, which shows whether the file was edited.
    """

    format: int
    baseline_name: BaselineName
    run: str
    created: str
    attnaudit: str
    measures_sha256: str
    policy_sha256: str
    seed: int
    unit: str
    not_passed: list[str]
    subjects: list[BaselineSubject]
    sha256: str
