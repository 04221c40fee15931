"""Audit a model several times, with different seeds, batch sizes and numbers of workers, and compare the verdicts.

A verdict should not depend on how the numbers were computed. The seed decides which rearrangements, random orders and
bootstrap samples are drawn, so a verdict may depend on it if the value is near the threshold. The batch size and the
number of workers change only the rounding.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from attnaudit.checks.base import Check
from attnaudit.checks.policies.effective_policy import effective_policy_of_file
from attnaudit.checks.policies.policy import Policy, sequential_checks
from attnaudit.disk_arrays.temporary_files import temporary_folder
from attnaudit.errors import AuditError, CheckError
from attnaudit.formatting import duration, plural
from attnaudit.progress import ProgressCallback
from attnaudit.records import CheckRecord
from attnaudit.report.run_files import read_run
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.run_choice import newest_run
from attnaudit.run.run_folder import RunFolder
from attnaudit.run.session import AuditSession

Kind: TypeAlias = Literal["seed", "batch tokens", "workers"]
KINDS: tuple[Kind, ...] = ("seed", "batch tokens", "workers")
#: How many lines of pytest's output an error message shows if a run judged nothing.
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
        verdict: The verdict; "none" if the run has none.
        value: The value; None if it is undefined.
    """

    verdict: str
    value: float | None


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
        AuditError: The model or the data cannot be audited, the policy has no gate, or TMPDIR names a folder that
            cannot be used.
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
            first[gate.id],
            tuple((variation, judged[gate.id]) for variation, judged in zip(variations, others, strict=True)),
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
) -> Iterator[dict[str, Judged]]:
    """Yield what each run found on every gate, the first run first."""
    started = time.perf_counter()
    total = 1 + len(variations)
    progress(0, total, f"{plural(total, 'run')} to go")
    for done, variation in enumerate((None, *variations), start=1):
        if variation is not None and variation.kind == "workers":
            yield _in_pytest(options, gates, policy_file, folder, variation.value)
        else:
            yield _in_process(_varied(options, variation), gates, policy_file)
        left = (time.perf_counter() - started) / done * (total - done)
        note = f"run {done} of {total} done ({variation or 'first run'})"
        progress(done, total, f"{note}, about {duration(left)} left" if left else note)


def _varied(options: AuditOptions, variation: Variation | None) -> AuditOptions:
    if variation is None:
        return options
    if variation.kind == "seed":
        return replace(options, seed=variation.value)
    return replace(options, batch_tokens=variation.value)


def _in_process(options: AuditOptions, gates: Sequence[Check], policy_file: Path) -> dict[str, Judged]:
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
    return {gate.id: _judged(session.judge(gate, model.id, data.id)) for gate in gates}


def _in_pytest(
    options: AuditOptions, gates: Sequence[Check], policy_file: Path, folder: Path, workers: int
) -> dict[str, Judged]:
    """Judge the gates in a run of pytest with workers.

    Raises:
        AuditError: The run measured nothing.
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
    if not run.checks:
        raise AuditError(f"pytest -n {workers} judged nothing. {_last_lines(done)}")
    by_id = {record.check: _judged(record) for record in run.checks}
    return {gate.id: by_id.get(gate.id, Judged("none", None)) for gate in gates}


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
