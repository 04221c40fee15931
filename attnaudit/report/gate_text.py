"""Text about the gates of a run, and about what identifies the run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from attnaudit.formatting import plural
from attnaudit.records import Environment, GateRecord, RunRecord
from attnaudit.report.unvalidated import blocked_reason

#: State of a gate, or verdict on it -> the words that follow the number of such gates, in the order of the text.
COUNTED_STATES = {
    "passed": "passed",
    "allowed": "inconclusive but allowed by the policy",
    "failed": "failed",
    "inconclusive": "inconclusive",
    "undefined": "undefined",
    "open": "without a verdict",
    "excepted": "excepted by the policy",
    "informational": "informational for this family of models",
    "not selected": "not selected",
}


def excepted_gates(run: RunRecord) -> set[tuple[str, str, str]]:
    """Return the model, the data set and the check of every gate that the policy excepts."""
    return {_key(gate) for gate in run.gates if gate.state == "excepted"}


def gate_counts(run: RunRecord) -> str:
    """Return how many gates are in each state, such as "2 passed, 1 failed".

    A failed gate whose verdict is inconclusive or undefined is counted under its verdict. A gate that is inconclusive,
    but passes because its settings allow it, is counted separately.
    """
    verdicts = {check.key[:3]: check.verdict for check in run.checks}
    counts = Counter(_counted_as(gate, verdicts.get(_key(gate), "")) for gate in run.gates)
    return ", ".join(f"{counts[state]} {words}" for state, words in COUNTED_STATES.items() if counts[state])


def _counted_as(gate: GateRecord, verdict: str) -> str:
    if gate.state == "passed" and verdict == "inconclusive":
        return "allowed"
    return verdict if gate.state == "failed" and verdict in ("inconclusive", "undefined") else gate.state


def gate_notes(run: RunRecord) -> list[str]:
    """Return lines about the gates of a run.

    They give the number of gates in each state, and the reasons why gates have no verdict. They say what a partial or
    informational run means, and list the test files that were left out and the tests that were run again. A gate whose
    case is in `run.missing` has no line of its own here, because missing cases are listed elsewhere with their reasons.
    """
    lines = [f"gates: {gate_counts(run)}{_although_passed(run)}"] if run.gates else []
    if run.status == "partial":
        lines.append("This run is partial: gates or test files were left out, so it cannot show that the model passes.")
    if run.status == "informational":
        none = "Every gate is informational for its model" if run.gates else "No check of this run is a gate"
        lines.append(f"{none}, so this run neither allows nor blocks a release.")
    missing = {(case.model, case.data, case.check) for case in run.missing}
    for state, intro in (
        ("open", "no verdict"),
        ("not selected", "not selected"),
        ("excepted", "excepted by the policy"),
    ):
        lines += _by_reason(intro, [gate for gate in run.gates if gate.state == state and _key(gate) not in missing])
    lines += [
        f"test file left out, so its gates are unknown: {file}: {reason}" for file, reason in run.files_left_out.items()
    ]
    lines += [f"run again after a failure: {failure.test}: {failure.reason}" for failure in run.earlier_failures]
    return lines


def _although_passed(run: RunRecord) -> str:
    """Return a remark if a run failed although no gate did; otherwise ""."""
    harmless = ("passed", "excepted", "informational")
    if run.status != "failed" or any(gate.state not in harmless for gate in run.gates):
        return ""
    reason = blocked_reason(run)
    return f", but the run failed: {reason[0].lower()}{reason[1:]}" if reason else ", but the run failed"


def identity_notes(run: RunRecord) -> list[str]:
    """Return lines with the SHA-256 hashes of the effective policy and of the data, followed by `option_lines`."""
    hashes = [(run.effective_policy.sha256, "effective policy")] if run.effective_policy else []
    hashes += [(data.sha256, f"data {data.name}") for data in run.data]
    return [*(f"sha256 {sha256} {what}" for sha256, what in hashes), *option_lines(run)]


def device_text(environment: Environment) -> str:
    """Return the device of a run with its threads, such as "cuda:0 (NVIDIA H200), 1 thread"."""
    gpu = f" ({environment.gpu})" if environment.gpu else ""
    return f"{environment.device}{gpu}, {plural(environment.threads, 'thread')}"


def option_lines(run: RunRecord) -> list[str]:
    """Return lines with the options that pytest read from `addopts` or PYTEST_ADDOPTS, one line per source."""
    return [f"options from {source}: {shlex.join(words)}" for source, words in run.added_options.items()]


def _key(gate: GateRecord) -> tuple[str, str, str]:
    return gate.model, gate.data, gate.check


def _by_reason(intro: str, gates: Sequence[GateRecord]) -> list[str]:
    """Return one line for each reason. The line lists the gates with this reason."""
    reasons: dict[str, list[str]] = {}
    for gate in gates:
        reasons.setdefault(gate.reason, []).append(f"{gate.check} ({gate.model} on {gate.data})")
    return [f"{intro}: {'; '.join(names)}: {reason}" for reason, names in reasons.items()]
