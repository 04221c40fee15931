"""The record of a run, and the records that it contains."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnaudit.records.check_records import CheckRecord, Record
from attnaudit.records.cost_records import CheckCost, MeasureCost
from attnaudit.records.model_records import ModelRecord
from attnaudit.records.unit_names import UnitNames

#: The version of the schema of audit.json. Increase it whenever the fields of a record change.
SCHEMA_VERSION = 10

RunStatus = Literal["running", "passed", "failed", "partial", "informational"]
GateState = Literal["passed", "failed", "open", "excepted", "not selected", "informational"]
UnvalidatedRule = Literal["block", "gate", "report"]
HashedContent = Literal["rows", "file", "audited rows"]


class PolicyRemedy(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change that may help if a gate does not pass.

    Attributes:
        text: The change, with its measured effect on the gate if it is known.
        when: The verdicts on the gate for which the remedy is shown.
        families: The families of models to which the change can be applied; empty if it can be applied to all.
        accuracy: The accuracy without and with the change, such as "0.88 → 0.83" or "unchanged". Required if `families`
            is not empty.
    """

    text: str
    when: list[Literal["fail", "inconclusive", "undefined"]] = msgspec.field(default_factory=lambda: ["fail"])
    families: list[str] = msgspec.field(default_factory=list)
    accuracy: str = ""


class PolicyQuestion(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that several checks of a policy answer together.

    Attributes:
        name: The key of the question in the policy file.
        asks: The question, such as "Is attention used?".
        checks: The ids of the checks that answer the question. The answer is yes if all gates among them pass.
        remedies: Changes to a model that are known to help, with their measured effect. They are shown if a gate among
            the checks fails on a model of a family that the policy was validated on.
        remedy: Further changes that may help. Each lists the verdicts and the families for which it is shown.
    """

    name: str
    asks: str
    checks: list[str]
    remedies: list[str] = msgspec.field(default_factory=list)
    remedy: list[PolicyRemedy] = msgspec.field(default_factory=list)


class PolicyException(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exception in a policy: the permission to skip a gate, or to mark it as an expected failure.

    Without an exception, a skipped gate or an expected failure blocks the release.

    Attributes:
        check: The id of the gate.
        reason: Why the gate need not pass.
        model: The name of the model to which the exception applies; "" for all models.
        data: The name of the data set to which the exception applies; "" for all data sets.
    """

    check: str
    reason: str
    model: str = ""
    data: str = ""


class PolicyValidation(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The families of models on which gates were validated, and what happens to models of other families.

    Attributes:
        checks: The ids of the gates.
        validated_on: The families on which the gates were validated. The entry "pooled attention" stands for every
            family that begins with these words. The list is empty if the policy names no family. Its gates then apply
            to every model.
        unvalidated: What happens to a model of another family. "block": the run fails. "gate": the gates apply, and
            every output says that they were not validated. "report": the gates are informational.
    """

    checks: list[str]
    validated_on: list[str]
    unvalidated: UnvalidatedRule


class UnvalidatedModel(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of a family on which gates of the policy were not validated.

    Attributes:
        model: The name of the model.
        family: The family of the model; "" if it is unknown.
        checks: The ids of the gates.
        validated_on: The families on which the gates were validated.
        unvalidated: What the policy does with the model (see `PolicyValidation`).
    """

    model: str
    family: str
    checks: list[str]
    validated_on: list[str]
    unvalidated: UnvalidatedRule


class EffectivePolicy(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The effective policy of a run: all checks of its @audit functions and policy files, in a canonical form.

    Attributes:
        sha256: The SHA-256 hash of the canonical form.
        checks: One table per check, which contains its id, its name and all of its arguments. The tables are sorted.
        exceptions: The gates that may be skipped or expected to fail.
        informational: Whether the policy declares that it has no gate.
        validations: The families on which the gates were validated, for every @audit function and policy file. Empty if
            none of them states a family.
    """

    sha256: str
    checks: list[dict[str, str | float | int | bool | None]]
    exceptions: list[PolicyException] = msgspec.field(default_factory=list)
    informational: bool = False
    validations: list[PolicyValidation] = msgspec.field(default_factory=list)


class PolicyRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy file of a run.

    Attributes:
        file: The name of the file.
        sha256: The SHA-256 hash of the file.
        name: The name of the policy; "" if it has none.
        applies_to: The families of models that the policy was made for. If an @audit function has several policies,
            these families decide which of them applies. If empty, the families in `validated_on` decide.
        validated_on: The families of models on which the policy was validated, with models whose attention is known to
            be faithful or unfaithful. Empty if it was not validated. A family stands for all families that begin with
            its words.
        unvalidated: What happens to a model of another family (see `PolicyValidation`). It applies only if
            `validated_on` is not empty.
        questions: The questions that the checks of the policy answer.
        exceptions: The gates that may be skipped or expected to fail.
        informational: Whether the file declares that the policy has no gate.
    """

    file: str
    sha256: str
    name: str = ""
    applies_to: list[str] = msgspec.field(default_factory=list)
    validated_on: list[str] = msgspec.field(default_factory=list)
    unvalidated: UnvalidatedRule = "block"
    questions: list[PolicyQuestion] = msgspec.field(default_factory=list)
    exceptions: list[PolicyException] = msgspec.field(default_factory=list)
    informational: bool = False


class MissingCase(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A selected case without a verdict, because it was skipped, raised an error or lost its worker to a crash.

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
    """The outcome of a gate, that is, of one check of the policy that must pass on one model and one data set.

    Attributes:
        model: The name of the model.
        data: The name of the data set.
        check: The id of the check.
        state: "passed": the gate passed. "failed": its verdict blocks the release. "open": it has no verdict.
            "excepted": it was skipped or expected to fail, and the policy permits this. "not selected": the command
            line left it out. "informational": the policy was not validated on the family of the model, and makes its
            gates informational for such models.
        reason: Why the gate did not pass; "" if it passed.
        test: The pytest id of the case; "" if no case was collected.
    """

    model: str
    data: str
    check: str
    state: GateState
    reason: str = ""
    test: str = ""


class EarlierFailure(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure or a crash of a test that pytest then ran again.

    Attributes:
        test: The pytest id of the test.
        reason: Why it failed.
    """

    test: str
    reason: str


class DataRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An audited data set.

    Attributes:
        name: The name of the data set in this run.
        source: Where the data set was loaded from.
        description: A short description.
        rows: The number of rows before sampling; None for a stream that was not read to its end.
        audited: The number of audited instances.
        labelled: The number of audited instances that have a label.
        classes: The class names.
        sha256: The SHA-256 hash of the data.
        sample_seed: The seed of the sample; None if all rows are audited, and for streams.
        sample_sha256: The hash of the ids, texts, queries, labels and sources of the sampled rows; None if all rows are
            audited, and for streams.
        hashed: The content that `sha256` hashes. "rows": the ids, texts, queries, labels and sources of all rows,
            whatever their order. "file": the whole file, although only its audited rows were parsed. "audited rows":
            the audited rows of a stream, in their order.
    """

    name: str
    source: str
    description: str
    rows: int | None
    audited: int
    labelled: int
    classes: list[str]
    sha256: str
    sample_seed: int | None
    sample_sha256: str | None
    hashed: HashedContent = "rows"

    @property
    def is_sample(self) -> bool:
        """Whether only some of the rows were audited."""
        return self.sample_seed is not None or self.rows is None or self.audited < self.rows


class MeasureRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of measuring one model on one data set.

    Attributes:
        model: The name of the model.
        data: The name of the data set.
        needs: The names of the measures.
        seconds: The wall-clock time in seconds.
        instances: The number of instances.
        tokens: The total number of tokens of all instances.
        passes: Name of a call, such as "forward" -> how often it was made; and kind of rows, such as "forward_rows" ->
            how many rows these calls had together. The rows that ran a second time are not included.
        batch_size: The largest number of instances in a batch.
        device: The device, such as "cpu" or "cuda:0".
        worker: The pytest-xdist worker that measured; "main" without pytest-xdist.
        notes: Remarks on how the numbers were computed, such as how many texts were truncated.
        repeated_rows: The number of instances that the model ran a second time at the end. A model whose results then
            differ is rejected.
        repeated_difference: The largest difference between the two results of these instances. It is the larger of the
            difference in attention weights and the difference in logits relative to the size of the logits. Up to
            0.0001 counts as rounding.
        labelled: The number of instances with a label, on which `accuracy` and `macro_f1` are computed.
        accuracy: The share of the labelled instances that the model predicts correctly; None if there are no labels.
        macro_f1: The mean F1 over the classes that occur as labels or predictions; None if there are no labels.
        own_reading: The model's own reading, which a check audits if it names no reading; "" for a model with a single
            row of attention weights.
        costs: The cost of each measure.
        check_costs: The cost of each check. Files of earlier versions, which did not count all passes, lack this field.
        unit_names: The names of the units and rows. Records of models that read texts lack this field.
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
    labelled: int = 0
    accuracy: float | None = None
    macro_f1: float | None = None
    own_reading: str = ""
    costs: list[MeasureCost] = msgspec.field(default_factory=list)
    check_costs: list[CheckCost] | msgspec.UnsetType = msgspec.UNSET
    unit_names: UnitNames | msgspec.UnsetType = msgspec.UNSET


class Environment(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software and hardware of a run.

    Attributes:
        python: The version of Python.
        platform: The operating system, without the release of a Linux kernel.
        processor: The processor; the machine type if the processor is unknown.
        packages: Package -> version, for the installed packages on which the numbers depend.
        device: The device that the run measured on, such as "cpu" or "cuda:0".
        threads: The number of threads that torch uses.
        gpu: The name of the GPU, such as "NVIDIA H100 80GB HBM3". A run on a CPU lacks this field.
    """

    python: str
    platform: str
    processor: str
    packages: dict[str, str]
    device: str
    threads: int
    gpu: str | msgspec.UnsetType = msgspec.UNSET


class RunRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of a run, which is the content of audit.json. measurements.parquet contains the numbers per instance.

    Attributes:
        schema_version: The version of this schema.
        run: The name of the run, which is also the name of its folder.
        created: When the run began, in ISO 8601 and UTC.
        finished: When the run ended, in ISO 8601 and UTC.
        command: The command line, word by word.
        seed: The seed of the run.
        exit_status: The exit status of pytest; None while the run has not ended.
        attnaudit: The version of attnaudit.
        policy: The origin of the thresholds: a policy file with its hash, or "declared in Python".
        environment: The software and hardware; None if nothing was measured.
        models: The audited models.
        data: The audited data sets.
        measured: The cost of measuring each model on each data set.
        checks: The results of all cases.
        missing: The selected cases that have no verdict.
        declared_policy: The policy file; None if the checks were declared in Python.
        status: "passed": every gate passed, is excepted, or is informational for its model. "partial": gates or test
            files were left out, and no other gate failed. "informational": there is no gate, or all of them are
            informational. "failed": anything else. "running": the run has not ended, or its process was killed.
        problem: Why the run failed, if the cause is not a verdict but, for example, an invalid option; otherwise "".
        gates: The outcome of every gate that the policy declares, on every model and data set.
        earlier_failures: The failures and crashes of tests that were run again afterwards.
        effective_policy: All checks of the run; None if none were collected.
        added_options: Options that are not in `command`, as lists of words. The keys are their sources: "addopts" for
            the configuration file, or "PYTEST_ADDOPTS" for the environment variable.
        unit: The units into which texts are divided for all statistics: "tokens", "words" or "sources".
        ci: Whether an environment variable showed that the run took place in CI.
        allow_partial: Whether --audit-allow-partial was given.
        files_left_out: The test files that were not collected although they may contain @audit functions, so that
            their gates are unknown. The values are the reasons why the files were not collected. Empty with --policy,
            which names all gates.
        measurements_sha256: The SHA-256 hash of measurements.parquet; "" if there is no such file.
        unvalidated: The measured models whose family is not among those on which the policy was validated.
        digest: The SHA-256 hash of everything else in this record. It shows whether the file was edited.
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
    files_left_out: dict[str, str] = msgspec.field(default_factory=dict)
    measurements_sha256: str = ""
    unvalidated: list[UnvalidatedModel] = msgspec.field(default_factory=list)
    digest: str = ""
