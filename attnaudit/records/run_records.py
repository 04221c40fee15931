"""The record of a run, and the records that it consists of."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnaudit.records.check_records import CheckRecord, Record

#: The version of the schema of audit.json. Increase it with every change of a record.
SCHEMA_VERSION = 2


class PolicyQuestion(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that several checks of a policy answer together.

    Attributes:
        name: The key of the question in the policy file.
        asks: The question, such as "Is attention used?".
        checks: The ids of the checks that answer it. The answer is yes if every gate among them passes.
        remedies: Changes that are known to help, with their measured effect. They are shown if a gate does not pass.
    """

    name: str
    asks: str
    checks: list[str]
    remedies: list[str] = msgspec.field(default_factory=list)


class PolicyRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy file of a run.

    Attributes:
        file: The path of the file.
        sha256: The SHA-256 hash of the file.
        name: The name of the policy; "" if it has none.
        validated_on: The families of models on which the policy was validated against known faithfulness; empty if it
            was not validated.
        questions: The questions that its checks answer.
    """

    file: str
    sha256: str
    name: str = ""
    validated_on: list[str] = msgspec.field(default_factory=list)
    questions: list[PolicyQuestion] = msgspec.field(default_factory=list)


class MissingCase(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A selected case without a verdict: it was skipped, it raised an error, or its worker crashed.

    Attributes:
        test: The pytest id of the case.
        model: The name of the model.
        data: The name of the data set.
        check: The id of the check.
        reason: Why there is no verdict.
    """

    test: str
    model: str
    data: str
    check: str
    reason: str


class ConformanceResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one check of the adapter contract.

    Attributes:
        check: The name of the conformance check.
        outcome: "pass", "fail" or "skip".
        detail: What was checked, why it failed, or why it was skipped.
    """

    check: str
    outcome: Literal["pass", "fail", "skip"]
    detail: str


class ModelRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An audited model.

    Attributes:
        name: The name of the model in this run.
        source: Where the model was loaded from.
        description: The adapter's own description of the model; "" if it has none.
        classes: The class names, in the order of the logits.
        parameters: The number of parameters.
        sha256: The SHA-256 hash of the names, types, shapes and values of all tensors.
        linear_decoder: Whether the logits are linear in the attention-weighted sum of the states.
        conformance: The results of the adapter contract's checks.
        family: The family of the model, as a policy's `validated_on` names it; "" if unknown.
    """

    name: str
    source: str
    description: str
    classes: list[str]
    parameters: int
    sha256: str
    linear_decoder: bool
    conformance: list[ConformanceResult]
    family: str = ""


class DataRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An audited data set.

    Attributes:
        name: The name of the data set in this run.
        source: Where the data set was loaded from.
        description: A short description.
        rows: The number of rows before sampling.
        audited: The number of audited instances.
        labelled: The number of audited instances that have a label.
        classes: The class names.
        sha256: The SHA-256 hash of the ids, texts, queries and labels of all rows, in the order of the ids.
        sample_seed: The seed of the sample; None if all rows are audited.
        sample_sha256: The same hash, of the sampled rows alone; None if all rows are audited.
    """

    name: str
    source: str
    description: str
    rows: int
    audited: int
    labelled: int
    classes: list[str]
    sha256: str
    sample_seed: int | None
    sample_sha256: str | None


class MeasureRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it cost to measure one model on one data set.

    Attributes:
        model: The name of the model.
        data: The name of the data set.
        needs: The names of the measures.
        seconds: The wall-clock time in seconds.
        instances: The number of instances.
        tokens: The number of tokens of all instances together.
        passes: Kind of work -> how often it was done, such as "forward" or "backward" passes.
        batch_size: The largest number of instances in one batch.
        device: The device, such as "cpu" or "cuda:0".
        worker: The pytest-xdist worker that measured; "main" without pytest-xdist.
        notes: Remarks on how the numbers were computed, such as how many texts were truncated.
    """

    model: str
    data: str
    needs: list[str]
    seconds: float
    instances: int
    tokens: int
    passes: dict[str, int]
    batch_size: int
    device: str
    worker: str
    notes: list[str] = msgspec.field(default_factory=list)


class Environment(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software and hardware of a run.

    Attributes:
        python: The version of Python.
        platform: The operating system, as `platform.platform()` describes it.
        processor: The processor, or the machine type where the processor is unknown.
        packages: Package -> its version, for the installed packages that the numbers depend on.
        device: The device that `--audit-device` names.
        threads: The number of threads that torch uses.
    """

    python: str
    platform: str
    processor: str
    packages: dict[str, str]
    device: str
    threads: int


class RunRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of audit.json: everything about a run except the numbers per instance (measurements.parquet).

    Attributes:
        schema_version: The version of this schema.
        run: The name of the run, which is also that of its folder.
        created: When the run began, in UTC and ISO 8601.
        finished: When the run ended, in the same form.
        command: The command line.
        seed: The seed of the run.
        exit_status: The exit status of pytest.
        attnaudit: The version of attnaudit.
        policy: Where the thresholds come from: a policy file with its hash, or "declared in Python".
        environment: The software and hardware; None if nothing was measured.
        models: The audited models.
        data: The audited data sets.
        measured: The cost of measuring each model on each data set.
        checks: The results of all cases.
        missing: The selected cases that have no verdict.
        declared_policy: The policy file; None if the checks come from no policy file.
    """

    schema_version: int
    run: str
    created: str
    finished: str
    command: list[str]
    seed: int
    exit_status: int
    attnaudit: str
    policy: str
    environment: Environment | None
    models: list[ModelRecord]
    data: list[DataRecord]
    measured: list[MeasureRecord]
    checks: list[CheckRecord]
    missing: list[MissingCase]
    declared_policy: PolicyRecord | None = None
