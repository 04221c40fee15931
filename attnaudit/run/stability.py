"""Audit a model several times, with different seeds, batch sizes and numbers of workers, and compare the verdicts.

A verdict should not depend on how the numbers were computed. The seed decides which rearrangements, random orders and
bootstrap samples are drawn, so a verdict may depend on it if the value is near the threshold. The batch size and the
number of workers change only the rounding. Runs can be compared only if they audited the same model on the same data.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from attnaudit.checks.base import Check
from attnaudit.checks.policies.effective_policy import effective_policy_of_file
from attnaudit.checks.policies.policy import Policy, sequential_checks
from attnaudit.disk_arrays.temporary_files import temporary_folder
from attnaudit.errors import AuditError, CheckError
from attnaudit.formatting import duration, listed, plural
from attnaudit.progress import ProgressCallback
from attnaudit.records import CheckRecord, DataRecord
from attnaudit.report.run_files import read_run
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.run_choice import newest_run
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.session import AuditSession

Kind: TypeAlias = Literal["seed", "batch tokens", "workers"]
KINDS: tuple[Kind, ...] = ("seed", "batch tokens", "workers")
#: The kind of a variation -> its name in a sentence.
VARIED: dict[Kind, str] = {"seed": "the seed", "batch tokens": "the batch size", "workers": "the number of workers"}
#: The exit statuses of a run of pytest in which all gates passed, or in which a gate did not pass.
JUDGED = (0, 1)
#: How many lines of pytest's output an error message shows if a run failed for another reason than its verdicts.
SHOWN_LINES = 15
#: The test file and the conftest.py of the runs with workers. This conftest.py imports the user's conftest.py files,
#: which may register models and data sets.
TEST_FILE = """from pathlib import Path
from attnaudit import audit, checks

@audit(checks.load_policy(Path({policy!r})))
def test_policy(check):
    check.enforce()
"""
CONFTEST = """from attnaudit.commands.conformance_command import read_conftests

read_conftests()
"""


@dataclass(frozen=True, slots=True)
class Variation:
    """The difference between another run and the first run: its seed, batch size or number of workers.

    Attributes:
        kind: "seed", "batch tokens" or "workers".
        value: The seed, the largest number of tokens in a batch, or the number of pytest-xdist workers.
    """

    kind: Kind
    value: int

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict and the value of one gate in one run.

    Attributes:
        verdict: The verdict.
        value: The value; None if it is undefined.
    """

    verdict: str
    value: float | None


@dataclass(frozen=True, slots=True)
class _Run:
    """What one run audited and found.

    Attributes:
        model_sha256: The hash of the model.
        data: The data set.
        judged: The id of each gate -> its verdict and value.
    """

    model_sha256: str
    data: DataRecord
    judged: Mapping[str, Judged]


@dataclass(frozen=True, slots=True)
class GateStability:
    """The verdicts on one gate.

    Attributes:
        check: The id of the check.
        first: The verdict and the value in the first run.
        varied: The verdicts and the values in the other runs.
    """

    check: str
    first: Judged
    varied: tuple[tuple[Variation, Judged], ...]

    def flips(self, kind: Kind | None = None) -> tuple[int, int]:
        """Return how many runs have another verdict than the first run, and how many runs were compared with it.

        Args:
            kind: The kind of variation to count; None for all.
        """
        counted = [judged for variation, judged in self.varied if kind in (None, variation.kind)]
        return sum(judged.verdict != self.first.verdict for judged in counted), len(counted)

    @property
    def values(self) -> list[float]:
        """The values of all runs, without undefined ones."""
        found = (self.first, *(judged for _, judged in self.varied))
        return [judged.value for judged in found if judged.value is not None]


def variations_of(
    first_seed: int, *, seeds: int, batch_tokens: Sequence[int], workers: Sequence[int]
) -> list[Variation]:
    """Return what differs in each run after the first.

    Args:
        first_seed: The seed of the first run, and of the runs in which only the batch size or the number of workers
            differs.
        seeds: The number of seeds, including the first one.
        batch_tokens: The largest numbers of tokens in a batch.
        workers: The numbers of pytest-xdist workers.

    Raises:
        CheckError: A number is invalid, or there is nothing to vary.
    """
    for option, numbers, least in (
        ("--seeds", [seeds], 1),
        ("--batch-tokens", batch_tokens, 1),
        ("--workers", workers, 1),
    ):
        for number in numbers:
            if number < least:
                raise CheckError(f"{option} {number}: expected a whole number of at least {least}.")
    found = [
        *(Variation("seed", first_seed + i) for i in range(1, seeds)),
        *(Variation("batch tokens", number) for number in dict.fromkeys(batch_tokens)),
        *(Variation("workers", number) for number in dict.fromkeys(workers)),
    ]
    if not found:
        raise CheckError("There is nothing to vary. Give --seeds 2 or more, or values for --batch-tokens or --workers.")
    return found


def measure_stability(
    options: AuditOptions,
    policy: Policy,
    policy_file: Path,
    variations: Sequence[Variation],
    *,
    progress: ProgressCallback,
) -> list[GateStability]:
    """Audit one model on one data set once, and once more for each variation.

    Args:
        options: The model, the data and the seed of the first run. `reports` is not used.
        policy: The policy.
        policy_file: The file of the policy.
        variations: The differences of the other runs from the first run, one per run.
        progress: Called after every run, with an estimate of the time left.

    Returns:
        The verdicts on each gate, in the order of the policy.

    Raises:
        AuditError: The model or the data cannot be audited or are not the same in all runs, a run of pytest failed
            for another reason than its verdicts, the policy has no gate, or TMPDIR names a folder that cannot be used.
    """
    checks = sequential_checks(policy) if options.sequential else policy
    gates = [check for check in checks if check.severity == "gate"]
    if not gates:
        raise CheckError(f"{policy_file}: the policy has no gate, so there is no verdict that could flip.")
    with tempfile.TemporaryDirectory(prefix="attnaudit-stability-", dir=temporary_folder()) as folder:
        scratch = replace(options, reports=Path(folder) / "reports", policy=policy_file)
        runs = list(_runs(scratch, gates, policy_file, Path(folder), variations, progress))
    first, *others = runs
    return [
        GateStability(
            gate.id,
            first.judged[gate.id],
            tuple((variation, run.judged[gate.id]) for variation, run in zip(variations, others, strict=True)),
        )
        for gate in gates
    ]


def _runs(
    options: AuditOptions,
    gates: Sequence[Check],
    policy_file: Path,
    folder: Path,
    variations: Sequence[Variation],
    progress: ProgressCallback,
) -> Iterator[_Run]:
    """Yield what each run audited and found, the first run first.

    Raises:
        AuditError: A run cannot be compared with the first one (see `measure_stability`).
    """
    started = time.perf_counter()
    total = 1 + len(variations)
    first: _Run | None = None
    progress(0, total, f"{plural(total, 'run')} to go")
    for done, variation in enumerate((None, *variations), start=1):
        if variation is not None and variation.kind == "workers":
            run = _in_pytest(options, gates, policy_file, folder, variation.value)
        else:
            run = _in_process(_varied(options, variation), gates, policy_file)
        first = first or run
        if variation is not None:
            _require_same(options, first, run, variation)
        yield run
        left = (time.perf_counter() - started) / done * (total - done)
        note = f"run {done} of {total} done ({variation or 'first run'})"
        progress(done, total, f"{note}, about {duration(left)} left" if left else note)


def _varied(options: AuditOptions, variation: Variation | None) -> AuditOptions:
    if variation is None:
        return options
    if variation.kind == "seed":
        return replace(options, seed=variation.value)
    return replace(options, batch_tokens=variation.value)


def _require_same(options: AuditOptions, first: _Run, other: _Run, variation: Variation) -> None:
    """Require that a run audited the same model and the same data as the first run.

    The hash of a stream covers only its audited rows, and their number may depend on the run.

    Raises:
        AuditError: The model or the data differ.
    """
    fatal = (
        f"The verdicts of these runs cannot be compared, because {VARIED[variation.kind]} is not their only difference."
    )
    if first.model_sha256 != other.model_sha256:
        raise AuditError(
            f"--model {options.models[0]}: the runs audited different models (sha256 {first.model_sha256[:12]} in the "
            f"first run, {other.model_sha256[:12]} with {variation}). {fatal} Load the weights from a file, or set the "
            "seed before they are drawn. If the weights are the same, an attribute of a module differs, such as a time."
        )
    one, two = first.data, other.data
    of_same_rows = "audited rows" not in (one.hashed, two.hashed) or one.audited == two.audited
    if one.hashed == two.hashed and of_same_rows and one.sha256 != two.sha256:
        raise AuditError(
            f"--data {options.data[0]}: the runs audited different data (sha256 {one.sha256[:12]} in the first run, "
            f"{two.sha256[:12]} with {variation}). {fatal} Do not change the data during the runs. If a function loads "
            "them, let it return the same rows each time."
        )


def _in_process(options: AuditOptions, gates: Sequence[Check], policy_file: Path) -> _Run:
    """Judge the gates as a run of pytest without workers does."""
    (model,), (data,) = options.model_items(), options.data_items()
    folder = RunFolder(options.reports, f"seed{options.seed}")
    folder.create()
    session = AuditSession(options, folder)
    policy = effective_policy_of_file(policy_file)
    session.declared.validations, session.declared.policy_sha256 = policy.validations, policy.sha256
    for gate in gates:
        session.declared.add(gate)
        session.request(model.id, data.id, gate.needs_under_reading())
    judged = {gate.id: _judged(session.judge(gate, model.id, data.id)) for gate in gates}
    (part,) = folder.read_parts()
    return _Run(part.model.sha256, part.data, judged)


def _in_pytest(options: AuditOptions, gates: Sequence[Check], policy_file: Path, folder: Path, workers: int) -> _Run:
    """Judge the gates in a run of pytest with workers.

    Raises:
        AuditError: The run failed for another reason than its verdicts, or a gate has no verdict.
    """
    (folder / "test_policy.py").write_text(TEST_FILE.format(policy=str(policy_file.resolve())), encoding="utf-8")
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    reports = folder / f"workers{workers}"
    command = [sys.executable, "-m", "pytest", str(folder / "test_policy.py"), "--rootdir", str(folder), "-q"]
    # The conftest.py of the user is imported under the name "conftest", too. Only this mode allows equal names.
    command += ["--import-mode", "importlib", "-p", "no:cacheprovider", "-n", str(workers)]
    command += ["--model", options.models[0], "--data", options.data[0]]
    command += ["--audit-reports", str(reports), "--audit-seed", str(options.seed), "--audit-device", options.device]
    command += ["--audit-unit", options.unit, "--audit-allow-partial"]
    if options.max_instances is not None:
        command += ["--audit-max-instances", str(options.max_instances)]
    if options.sequential:
        command.append("--audit-sequential")
    environment = {name: text for name, text in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    try:
        run = read_run(newest_run(reports))
    except AuditError as error:
        raise AuditError(f"pytest -n {workers} wrote no run. {_last_lines(done)}") from error
    if run.problem or done.returncode not in JUDGED:
        reason = run.problem or f"Its exit status is {done.returncode}."
        raise AuditError(f"pytest -n {workers} failed. {reason} {_last_lines(done)}")
    judged = {record.check: _judged(record) for record in run.checks}
    open_gates = [gate.id for gate in gates if gate.id not in judged]
    if open_gates:
        raise AuditError(f"pytest -n {workers} gave no verdict on {listed(open_gates)}. {_last_lines(done)}")
    (model,), (data,) = run.models, run.data
    return _Run(model.sha256, data, judged)


def _last_lines(done: subprocess.CompletedProcess[str]) -> str:
    lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()[-SHOWN_LINES:]
    return "\n".join(["The end of its output:", *lines])


def _judged(record: CheckRecord) -> Judged:
    return Judged(record.verdict, record.value)


def policy_for(given: str | None, family: Callable[[], str]) -> tuple[Policy, Path]:
    """Return the policy to apply and its file.

    Args:
        given: The policy file; None to choose the file in audits/ that applies to the family of the model.
        family: Returns the family of the model.

    Raises:
        CheckError: There is no policy file, or none of several applies to the model.
    """
    from attnaudit.checks.policies.policy import load_policy
    from attnaudit.checks.policies.policy_choice import choose_policy

    files = [Path(given)] if given is not None else sorted(Path("audits").glob("*.toml"))
    if not files:
        raise CheckError("--policy: there is no policy file in audits/. Name one, such as --policy audits/policy.toml.")
    policies = [load_policy(file) for file in files]
    chosen = policies[0] if len(policies) == 1 else choose_policy(policies, {"the model": family()})
    return chosen, files[[policy is chosen for policy in policies].index(True)]
