"""`attnaudit evidence`: write a statement, a model card and a test report about a run."""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

from attnaudit.errors import ReportError, invalid_input, require_reachable
from attnaudit.formatting import INVISIBLE, one_line
from attnaudit.output_files import same_file
from attnaudit.processes import replace_file
from attnaudit.release_evidence.dated_report import dated_report
from attnaudit.release_evidence.gate_results import gate_results, require_complete
from attnaudit.release_evidence.intoto_statement import checksums, json_text, predicate, statement
from attnaudit.release_evidence.model_card import model_card, require_huggingface_hub
from attnaudit.release_evidence.shipped_files import ShippedFile, compare_checkpoints, labels_left_out, shipped_files
from attnaudit.run.run_choice import newest_run, require_newest, require_run_folder
from attnaudit.run.verification.integrity import MEASUREMENTS, file_sha256, read_unedited

STATEMENT, PREDICATE, CHECKSUMS = "statement.json", "predicate.json", "subjects.sha256"
MODEL_CARD, TEST_REPORT = "model-card.md", "test-report.md"
#: The names of all files that the command writes.
WRITTEN = (STATEMENT, PREDICATE, CHECKSUMS, MODEL_CARD, TEST_REPORT)
WEB_ADDRESS = re.compile(r"https?://[^\s<>]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attnaudit evidence`."""
    parser.add_argument(
        "folder",
        metavar="RUN_DIR",
        help="the folder of a run, such as reports/<run>; for reports/ itself, the newest run is used",
    )
    parser.add_argument(
        "--subject",
        nargs="+",
        action="extend",
        required=True,
        metavar="PATH",
        help="the files of the model that you ship; a folder stands for all files in it. A checkpoint folder is "
        "loaded and must contain the audited model",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="the folder to write to (default: evidence/ in the folder of the run)"
    )
    parser.add_argument("--url", default="", metavar="URL", help="the web address of the CI job that ran the audit")
    parser.add_argument("--no-model-card", action="store_true", help="do not write model-card.md")
    parser.epilog = (
        "Exit status: 0 if the files are written and the result is PASSED or WARNED; 1 if the result is FAILED; "
        "1, without writing anything, if the run is not complete or was edited; 2 if an option is missing or invalid, "
        "or if there is no such folder."
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the evidence about a run, and print its result and the paths of the files.

    Returns:
        The exit status: 0 if the result is "PASSED" or "WARNED", 1 if it is "FAILED".

    Raises:
        AuditError: The run is not complete or was edited, the shipped files are not those of the audited model, or a
            file cannot be read or written. If a file cannot be read or written, other files may already be written. In
            all other cases, no file is written.
    """
    given, paths = Path(options.folder), [Path(one) for one in options.subject]
    with invalid_input():
        _require_url(options.url)
        if options.out is not None:
            _require_separate(Path(options.out), paths)
    if options.out is not None:  # it may contain the evidence about another run
        _remove_earlier(Path(options.out))
    with invalid_input():
        require_run_folder("evidence", given)
    folder = newest_run(given)
    out = folder / "evidence" if options.out is None else Path(options.out)
    _require_separate(out, paths)
    if not options.no_model_card:
        require_huggingface_hub()
    record = read_unedited(folder)
    require_newest(given, folder, record)
    require_complete(record, folder)
    with invalid_input():
        subjects = shipped_files(paths)
    compared = compare_checkpoints(paths, record.models[0], unit=record.unit)
    results = gate_results(record, further_warnings=labels_left_out(compared, record.models[0]))

    content = predicate(record, results, folder=folder, compared=bool(compared), url=options.url)
    files = {STATEMENT: json_text(statement(subjects, content)), PREDICATE: json_text(content)}
    files[CHECKSUMS] = checksums(subjects)
    if not options.no_model_card:
        files[MODEL_CARD] = model_card(record, results, url=options.url)
    hashes = [ShippedFile(name=name, sha256=file_sha256(folder / name)) for name in ("audit.json", MEASUREMENTS)]
    hashes += [ShippedFile(name=name, sha256=hashlib.sha256(text.encode()).hexdigest()) for name, text in files.items()]
    files[TEST_REPORT] = dated_report(record, results, subjects, hashes=hashes)
    _write(out, files)

    if not_compared := [str(path) for path in paths if path not in compared]:
        what = "" if compared else ", because no --subject is a checkpoint folder"
        print(
            one_line(
                f"these files were not compared with the audited model{what}: {', '.join(not_compared)}. Compare the "
                "model with `attnaudit verify --model`."
            )
        )
    print(one_line(f"result: {results.result}"))
    for name in files:
        print(one_line(str(out / name)))
    return 1 if results.result == "FAILED" else 0


def _require_url(url: str) -> None:
    """Raise ReportError if --url is given and not the address of a web page."""
    if url and (not WEB_ADDRESS.fullmatch(url) or INVISIBLE.search(url)):
        raise ReportError(f"--url {url}: expected the address of a web page, such as https://ci.example.org/runs/7.")


def _require_separate(out: Path, paths: list[Path]) -> None:
    """Raise ReportError if the evidence would be written into a folder or over a file that it is about."""
    require_reachable("--out", out)
    for path in paths:
        if out.resolve().is_relative_to(path.resolve()):
            raise ReportError(
                f"--out {out}: this folder is in {path}, which contains the files that the evidence describes. Choose "
                "another folder."
            )
        for name in WRITTEN:
            if path.is_file() and same_file(out / name, path):
                raise ReportError(
                    f"--out {out}: {name} is written to this folder and would replace {path}, which the evidence "
                    "describes. Choose another folder."
                )


def _remove_earlier(out: Path) -> None:
    """Remove the files that an earlier call wrote. If this call fails, no later step can sign or publish them."""
    try:
        for path in (out / name for name in WRITTEN if out.is_dir()):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"{error.filename or out}: cannot be removed ({error.strerror or error}). Choose another folder with --out."
        ) from error


def _write(out: Path, files: dict[str, str]) -> None:
    """Write the files. If they contain no model card, remove the model card of an earlier call."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            replace_file(out / name, text.encode())
        if MODEL_CARD not in files:
            (out / MODEL_CARD).unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(
            f"{error.filename or out}: cannot be written ({error.strerror or error}). Choose a writable folder with "
            "--out."
        ) from error
