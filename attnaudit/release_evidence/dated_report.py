"""The dated test report of a run in Markdown, with fields for the responsible person."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from attnaudit.formatting import number
from attnaudit.records import DataRecord, ModelRecord, RunRecord
from attnaudit.release_evidence.gate_results import GateResults
from attnaudit.release_evidence.result_tables import WHAT_A_PASS_MEANS, results_table, table, task_table
from attnaudit.release_evidence.shipped_files import ShippedFile
from attnaudit.report.audited_rows import HASH_NAMES, row_count
from attnaudit.report.markdown import LONGEST_REASON, escape
from attnaudit.report.wording import outcome
from attnaudit.verdict_text import required_words

#: The fields that the responsible person fills in.
FIELDS = ("Name", "Function", "Organisation", "Decision on the release, with reasons", "Date", "Signature")


def dated_report(
    run: RunRecord, results: GateResults, subjects: Sequence[ShippedFile], *, hashes: Sequence[ShippedFile]
) -> str:
    """Return the test report of a run.

    Args:
        run: The record of a run of one model.
        results: The result of the run.
        subjects: The shipped files.
        hashes: Other files, such as the statement, whose hashes the report lists so that its signature covers them.
    """
    decided = outcome(run)
    (model,) = run.models
    lines = ["# Test report: attention audit", ""]
    lines += [f"**Result: {results.result}.** {escape(decided.headline)}", ""]
    lines += [f"* {escape(text, LONGEST_REASON)}" for text in (*results.reasons, *results.warnings)]
    lines += ["", WHAT_A_PASS_MEANS, "", "## Test", "", *table(("", ""), _test(run))]
    lines += ["", "## Model", "", *table(("", ""), _model(model))]
    lines += ["", "Files that are shipped:", ""]
    lines += table(("File", "SHA-256"), [(escape(file.name, LONGEST_REASON), file.sha256) for file in subjects])
    for data in run.data:
        lines += ["", f"## Data: {escape(data.name)}", "", *table(("", ""), _data(data))]
    lines += ["", "## Procedure", "", *_procedure(run), "", "## Results", "", *results_table(run)]
    if scores := task_table(run):
        lines += ["", "The predictions of the model on the same texts:", "", *scores]
    lines += ["", "## Files", "", "A signature under this report covers the files with these hashes.", ""]
    lines += table(("File", "SHA-256"), [(escape(file.name), file.sha256 or "no such file") for file in hashes])
    lines += ["", "## Responsible person"]
    for field in FIELDS:
        lines += ["", f"{field}: {'_' * 50}"]
    return "\n".join([*lines, ""])


def _test(run: RunRecord) -> Iterator[tuple[str, str]]:
    yield "Run", escape(run.run)
    yield "Began", escape(run.created)
    yield "Ended", escape(run.finished)
    yield "Command", escape(shlex.join(run.command), LONGEST_REASON)
    for source, words in run.added_options.items():
        yield f"Options from {escape(source)}", escape(shlex.join(words), LONGEST_REASON)
    yield "Seed", str(run.seed)
    yield "Unit", escape(run.unit)
    yield "attnaudit", escape(run.attnaudit)
    if run.environment is not None:
        yield "Python", escape(run.environment.python)
        yield "Platform", escape(f"{run.environment.platform}, {run.environment.processor}")
        yield "Device", escape(run.environment.device)
        packages = (f"{name} {version}" for name, version in run.environment.packages.items())
        yield "Packages", escape(", ".join(packages), LONGEST_REASON)


def _model(model: ModelRecord) -> Iterator[tuple[str, str]]:
    yield "Name", escape(model.name)
    yield "Source", escape(model.source)
    yield "Description", escape(model.description, LONGEST_REASON) or "—"
    yield "Family", escape(model.family) or "—"
    yield "Classes", escape(", ".join(model.classes), LONGEST_REASON)
    if model.target is not None:
        yield "Explained", escape(model.target.text, LONGEST_REASON)
    yield "Parameters", number(model.parameters)
    yield "SHA-256 of parameters and configuration", escape(model.sha256)


def _data(data: DataRecord) -> Iterator[tuple[str, str]]:
    yield "Source", escape(data.source)
    yield "Description", escape(data.description, LONGEST_REASON) or "—"
    yield "Rows", row_count(data)
    yield "Audited", number(data.audited)
    yield "Rows with a label", number(data.labelled)
    yield "Classes", escape(", ".join(data.classes), LONGEST_REASON)
    yield f"SHA-256 of {HASH_NAMES[data.hashed]}", escape(data.sha256)
    if data.sample_sha256 is not None:
        yield "SHA-256 of the sample", escape(data.sample_sha256)
        yield "Seed of the sample", str(data.sample_seed)


def _procedure(run: RunRecord) -> list[str]:
    """Return the policy, and what each gate asks and requires."""
    declared = run.declared_policy
    lines = [f"* Policy: {escape(run.policy)}"]
    if declared is not None:
        lines.append(f"* Name of the policy: {escape(declared.name) or '—'}")
        families = "; ".join(declared.validated_on) or "no family of models"
        lines.append(f"* Validated on: {escape(families, LONGEST_REASON)}")
    if run.effective_policy is not None:
        lines.append(f"* SHA-256 of the effective policy: {escape(run.effective_policy.sha256)}")
    for record in run.checks:
        if record.severity == "gate":
            required = f" Required: {required_words(record.requirement)}." if record.requirement else ""
            method = f" Interval: {record.interval.method}." if record.interval else ""
            text = f"{record.check}: {record.question} {record.why} {record.how_to_read}{required}{method}"
            lines.append(f"* {escape(text, LONGEST_REASON)}")
    return lines
