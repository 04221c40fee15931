"""The result of a run as an in-toto Statement with the predicate test-result.

The formats are specified in https://github.com/in-toto/attestation, in spec/v1/statement.md,
spec/v1/resource_descriptor.md and spec/predicates/test-result.md. The statement is not signed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attnaudit.records import DataRecord, ModelRecord, RunRecord
from attnaudit.release_evidence.gate_results import GateResults
from attnaudit.release_evidence.shipped_files import ShippedFile
from attnaudit.report.audited_rows import HASH_NAMES
from attnaudit.run.verification.integrity import MEASUREMENTS, file_sha256

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"

Json: TypeAlias = dict[str, Any]


def predicate(run: RunRecord, results: GateResults, *, folder: Path, compared: bool, url: str = "") -> Json:
    """Return the predicate test-result of a run.

    Args:
        run: The record of the run.
        results: The result of the run.
        folder: The folder of the run.
        compared: Whether the shipped files contain a checkpoint folder with the audited model.
        url: The address of the job that ran the audit; "" to leave it out.
    """
    configuration = [_policy(run), *map(_data, run.data), *(_model(model, compared) for model in run.models)]
    configuration += [*_baselines(run), *_run_files(run, folder)]
    return {
        "result": results.result,
        "configuration": configuration,
        **({"url": url} if url else {}),
        "passedTests": list(results.passed),
        "warnedTests": list(results.warned),
        "failedTests": list(results.failed),
    }


def statement(subjects: Sequence[ShippedFile], content: Json) -> Json:
    """Return an in-toto Statement.

    Args:
        subjects: The shipped files, which the statement is about.
        content: The predicate.
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": file.name, "digest": {"sha256": file.sha256}} for file in subjects],
        "predicateType": PREDICATE_TYPE,
        "predicate": content,
    }


def json_text(content: Json) -> str:
    """Return an object as indented JSON. No text in it can control a terminal or be read as a command by a CI system.

    Control characters, letters beyond ASCII, and the second "#" of two in a row are written as JSON escapes. The values
    stay the same.
    """
    return json.dumps(content, indent=2, ensure_ascii=True, allow_nan=False).replace("##", "#\\u0023") + "\n"


def checksums(subjects: Sequence[ShippedFile]) -> str:
    """Return the hashes of the shipped files in the format of `sha256sum`."""
    return "".join(f"{file.sha256}  {file.name}\n" for file in subjects)


def _policy(run: RunRecord) -> Json:
    annotations: Json = {"digestOf": "the effective policy: all checks with their arguments, in canonical form"}
    if run.declared_policy is not None:
        annotations |= {"file": run.declared_policy.file, "fileSha256": run.declared_policy.sha256}
        annotations |= {"name": run.declared_policy.name} if run.declared_policy.name else {}
    sha256 = run.effective_policy.sha256 if run.effective_policy else ""
    return _described("policy", sha256, annotations)


def _data(data: DataRecord) -> Json:
    sampled = data.sample_sha256 is not None
    annotations: Json = {
        "digestOf": "the file"
        if data.hashed == "file" and not sampled
        else f"ids, texts, queries, labels and sources of {'the sampled rows' if sampled else HASH_NAMES[data.hashed]}",
        **({} if data.rows is None else {"rows": data.rows}),
        "audited": data.audited,
        "labelled": data.labelled,
    }
    if sampled:
        whole = "fileSha256" if data.hashed == "file" else "allRowsSha256"
        annotations |= {"sampleSeed": data.sample_seed, whole: data.sha256}
    return _described(f"data/{data.name}", data.sample_sha256 or data.sha256, annotations)


def _model(model: ModelRecord, compared: bool) -> Json:
    annotations = {
        "digestOf": "the parameters, the persistent buffers and the configuration of the loaded model",
        "foundInSubjects": compared,
    }
    return _described(f"model/{model.name}", model.sha256, annotations)


def _baselines(run: RunRecord) -> list[Json]:
    """Return the descriptors of the baselines with which the run compared the model."""
    found: dict[str, Json] = {}
    for record in run.checks:
        one = record.comparison
        if one is not None and one.baseline_sha256:
            annotations = {"digestOf": "the content of the baseline file", "run": one.baseline_run}
            name = f"baseline/{one.baseline_name}"
            found[name] = _described(name, one.baseline_sha256, annotations)
    return list(found.values())


def _run_files(run: RunRecord, folder: Path) -> list[Json]:
    """Return the descriptors of the files of a run, which contain its settings and its numbers."""
    annotations: Json = {"run": run.run, "began": run.created, "ended": run.finished}
    annotations |= {"attnaudit": run.attnaudit, "seed": run.seed, "unit": run.unit}
    return [
        {**_described("audit.json", file_sha256(folder / "audit.json"), annotations), "mediaType": "application/json"},
        _described(MEASUREMENTS, run.measurements_sha256, {"digestOf": "the numbers of every instance"}),
    ]


def _described(name: str, sha256: str, annotations: Json) -> Json:
    return {"name": name, "digest": {"sha256": sha256}, "annotations": annotations}
