"""The record of a run, and the records that it consists of."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnaudit.records.check_records import CheckRecord, Record

#: The version of the schema of audit.json. Increase it with every change of a record.
SCHEMA_VERSION = 3

RunStatus = Literal["running", "passed", "failed", "partial", "informational"]
GateState = Literal["passed", "failed", "open", "excepted", "not selected"]


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


class PolicyException(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Permission to skip a gate or to mark it as an expected failure. Without one, such a gate blocks the release.

    Attributes:
        check: The id of the gate.
        reason: Why the gate need not pass.
        model: The name of the only model that this applies to; "" for every model.
        data: The name of the only data set that this applies to; "" for every data set.
    """

    check: str
    reason: str
    model: str = ""
    data: str = ""


class EffectivePolicy(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All checks that a run applied, from every @audit function and policy file, in a canonical form.

    Attributes:
        sha256: The SHA-256 hash of the canonical form.
        checks: The table of every check with all its arguments, sorted.
        exceptions: The gates that may be skipped or expected to fail.
        informational: Whether the policy declares that it has no gate.
    """

    sha256: str
    checks: list[dict[str, str | float | int | bool | None]]
    exceptions: list[PolicyException] = msgspec.field(default_factory=list)
    informational: bool = False


class PolicyRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy file of a run.

    Attributes:
        file: The path of the file.
        sha256: The SHA-256 hash of the file.
        name: The name of the policy; "" if it has none.
        validated_on: The families of models on which the policy was validated against known faithfulness; empty if it
            was not validated.
        questions: The questions that its checks answer.
        exceptions: The gates that may be skipped or expected to fail.
        informational: Whether the file declares that its policy has no gate.
    """

    file: str
    sha256: str
    name: str = ""
    validated_on: list[str] = msgspec.field(default_factory=list)
    questions: list[PolicyQuestion] = msgspec.field(default_factory=list)
    exceptions: list[PolicyException] = msgspec.field(default_factory=list)
    informational: bool = False


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


class GateRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of a gate, that is, of one check of the policy that had to pass on one model and one data set.

    Attributes:
        model: The name of the model.
        data: The name of the data set.
        check: The id of the check.
        state: "passed"; "failed" if its verdict blocks the release; "open" if it has no verdict; "excepted" if it was
            skipped or expected to fail and the policy permits that; "not selected" if the command line left it out.
        reason: Why it did not pass; "" if it did.
        test: The pytest id of its case; "" if no case was collected.
    """

    model: str
    data: str
    check: str
    state: GateState
    reason: str = ""
    test: str = ""


class EarlierFailure(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure or a crash of a test that was then run again.

    Attributes:
        test: The pytest id of the test.
        reason: Why it failed.
    """

    test: str
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
        repeated_rows: The number of instances that ran a second time at the end, to refuse a model that does not give
            the same result again.
        repeated_difference: The largest difference between their two results, in logits, relative to the size of the
            logits, and in attention weights. Up to 0.0001 counts as rounding.
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
    repeated_rows: int = 0
    repeated_difference: float = 0.0


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
        exit_status: The exit status of pytest; None while the run has not ended.
        attnaudit: The version of attnaudit.
        policy: Where the thresholds come from: a policy file with its hash, or "declared in Python".
        environment: The software and hardware; None if nothing was measured.
        models: The audited models.
        data: The audited data sets.
        measured: The cost of measuring each model on each data set.
        checks: The results of all cases.
        missing: The selected cases that have no verdict.
        declared_policy: The policy file; None if the checks come from no policy file.
        status: "running" until the run has ended, also if its process was killed; "passed" if every gate passed or is
            excepted; "partial" if the command line left gates out and no other gate failed; "informational" if there
            is no gate; otherwise "failed".
        problem: Why the run failed, if the reason is not a verdict, such as an invalid option; "" otherwise.
        gates: The outcome of every gate that the policy declares, on every model and data set.
        earlier_failures: The failures and crashes of tests that were then run again.
        effective_policy: All checks that the run applied; None if none were collected.
        added_options: Where options come from that are not in `command` ("addopts" of the configuration file,
            "PYTEST_ADDOPTS" of the environment) -> these options, word by word.
        unit: What the statistics are computed over: "tokens" or "words".
        ci: Whether the run saw the environment variable CI.
        allow_partial: Whether --audit-allow-partial was given.
        measurements_sha256: The SHA-256 hash of measurements.parquet; "" if there is no such file.
        digest: The SHA-256 hash of everything else in this record, by which an edited file is recognised.
    """

    schema_version: int
    run: str
    created: str
    finished: str
    command: list[str]
    seed: int
    exit_status: int | None
    attnaudit: str
    policy: str
    environment: Environment | None
    models: list[ModelRecord]
    data: list[DataRecord]
    measured: list[MeasureRecord]
    checks: list[CheckRecord]
    missing: list[MissingCase]
    declared_policy: PolicyRecord | None = None
    status: RunStatus = "running"
    problem: str = ""
    gates: list[GateRecord] = msgspec.field(default_factory=list)
    earlier_failures: list[EarlierFailure] = msgspec.field(default_factory=list)
    effective_policy: EffectivePolicy | None = None
    added_options: dict[str, list[str]] = msgspec.field(default_factory=dict)
    unit: str = "tokens"
    ci: bool = False
    allow_partial: bool = False
    measurements_sha256: str = ""
    digest: str = ""
