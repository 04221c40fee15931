"""A section for the model card of Hugging Face, with the results of a run as entries of `model-index`."""

from __future__ import annotations

from typing import Any

from attnaudit.errors import AuditError
from attnaudit.formatting import terminal_safe
from attnaudit.records import CheckRecord, RunRecord
from attnaudit.release_evidence.gate_results import GateResults
from attnaudit.release_evidence.result_tables import WHAT_A_PASS_MEANS, results_table, task_table
from attnaudit.report.markdown import escape
from attnaudit.report.wording import outcome

#: The task of all audited models, by the name that the Hugging Face Hub uses.
TASK = "text-classification"


def require_huggingface_hub() -> None:
    """Require that the package that formats model cards is installed.

    Raises:
        AuditError: The package is not installed.
    """
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise AuditError(
            "the model card needs the package huggingface_hub, which cannot be imported. Run pip install "
            "'attnaudit[evidence]', or leave the model card out with --no-model-card."
        ) from error


def model_card(run: RunRecord, results: GateResults, *, url: str = "") -> str:
    """Return metadata in YAML with an entry of `model-index` per check and score, followed by a section in Markdown.

    Args:
        run: The record of a run of one model.
        results: The result of the run.
        url: The address of the job that ran the audit; "" to leave it out.
    """
    from huggingface_hub import ModelCardData

    (model,) = run.models
    entries = [*_scores(run, url), *(_entry(record, run, url) for record in run.checks)]
    metadata = ModelCardData(model_name=_label(model.name), eval_results=entries).to_yaml()
    decided = outcome(run)
    lines = ["---", metadata, "---", "", "## Attention audit", ""]
    lines += [f"Result: **{results.result}**. {escape(decided.headline)}", ""]
    lines += [f"* {escape(text, 2_000)}" for text in (*results.reasons, *results.warnings)]
    lines += ["", *results_table(run), "", WHAT_A_PASS_MEANS, ""]
    if scores := task_table(run):
        lines += ["The predictions of the model on the same texts:", "", *scores, ""]
    lines += [f"* Audited on {escape(run.created)} with attnaudit {escape(run.attnaudit)}"]
    lines += [f"* Model: {escape(model.name)} (sha256 {escape(model.sha256)})"]
    lines += [f"* Data: {escape(data.name)} (sha256 {escape(data.sha256)})" for data in run.data]
    lines += [f"* Policy: sha256 {escape(run.effective_policy.sha256)}" if run.effective_policy else "* Policy: none"]
    return "\n".join([*lines, ""])


def _scores(run: RunRecord, url: str) -> list[Any]:
    """Return the accuracy and macro F1 on each data set as EvalResults, under the names of the Hub."""
    from huggingface_hub import EvalResult

    hashes = _data_hashes(run)
    return [
        EvalResult(
            task_type=TASK,
            dataset_type=_label(one.data),
            dataset_name=_label(one.data),
            dataset_revision=_label(hashes.get(one.data, "")),
            metric_type=metric,
            metric_name=name,
            metric_value=value,
            metric_args={"n": one.labelled},
            source_name=f"attnaudit {run.attnaudit}" if url else None,
            source_url=url or None,
        )
        for one in run.measured
        for metric, name, value in (("accuracy", "Accuracy", one.accuracy), ("f1", "Macro F1", one.macro_f1))
        if value is not None
    ]


def _data_hashes(run: RunRecord) -> dict[str, str]:
    """Return the name of each data set -> the hash of its audited rows."""
    return {data.name: data.sample_sha256 or data.sha256 for data in run.data}


def _entry(record: CheckRecord, run: RunRecord, url: str) -> Any:
    """Return the result of a check as huggingface_hub's EvalResult."""
    from huggingface_hub import EvalResult

    interval, required = record.interval, record.requirement
    facts: dict[str, Any] = {"verdict": record.verdict, "severity": record.severity, "n": record.n_defined}
    if interval is not None:
        facts |= {"interval": [interval.low, interval.high], "confidence": interval.confidence}
    if required is not None:
        facts |= {required.direction: required.value}
    if record.comparison is not None:
        facts |= {"baseline": record.comparison.baseline, "baseline_sha256": record.comparison.baseline_sha256}
    if record.reading:
        facts |= {"reading": _label(record.reading)}
    return EvalResult(
        task_type=TASK,
        dataset_type=_label(record.data),
        dataset_name=_label(record.data),
        dataset_revision=_label(_data_hashes(run).get(record.data, "")),
        metric_type=_label(f"attnaudit.{record.check}"),
        metric_name=_label(f"{record.title} ({record.value_name})"),
        metric_value="undefined" if record.value is None else record.value,
        metric_args=facts,
        source_name=f"attnaudit {run.attnaudit}" if url else None,
        source_url=url or None,
    )


def _label(text: str) -> str:
    """Return a text for the metadata without invisible characters, line breaks and commands of CI systems.

    A space is put between two colons: YAML may break a long text at any space, and a line that begins with "::" is a
    command of some CI systems.
    """
    return terminal_safe(text).replace("::", ": :")
