"""`attnaudit verify`: check that the newest run passed, was not edited, and audited the models to be released."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from attnaudit.checks.policies.effective_policy import effective_policy_of_file
from attnaudit.command_parser import one_of, whole_number
from attnaudit.commands.conformance_command import read_conftests
from attnaudit.errors import AuditError, UnknownCheckError, require_reachable, shown_error
from attnaudit.formatting import one_line
from attnaudit.records import BASELINE_NAMES, DataRecord
from attnaudit.registry import datasets, models
from attnaudit.report.run_files import read_run
from attnaudit.run.audit_items import FACTORY
from attnaudit.run.baselines.baseline_file import read_baseline
from attnaudit.run.run_choice import newer_runs, newest_run, require_run_folder
from attnaudit.run.verification.expectations import (
    Expectations,
    Expected,
    allowed_lines,
    exception_lines,
    objections,
    run_objections,
    sample_lines,
    summary_line,
    unvalidated_lines,
)
from attnaudit.run.verification.integrity import mismatches, require_ended
from attnaudit.targets import labels_in, split_label

VERIFIED, NOT_VERIFIED, USAGE_ERROR = 0, 1, 2
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
#: Matches the name of a model or data set in a run with its hash, such as "release=3f...". A path may contain "=" too.
NAME_AND_HASH = re.compile(r"(?P<name>.+)=(?P<sha256>[0-9a-fA-F]{64})", re.DOTALL)


EDITED = "audit.json or measurements.parquet was edited or damaged after the run: run the audit again."
#: The smallest accepted time in seconds since 1970. A smaller number may be meant as a date, such as 20260131.
FEWEST_SECONDS = 1e9


class UsageError(AuditError):
    """Raised when an option is invalid."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attnaudit verify`."""
    parser.add_argument(
        "folder",
        nargs="?",
        default="reports",
        metavar="DIR",
        help="the folder of one run, or the folder of all runs, whose newest run is then verified (default: reports)",
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="a model that the run must have audited; required and repeatable. Give it in the same way as to pytest "
        "--model: the model is then loaded, and its weights and configuration are compared. Or give its NAME in the "
        "run, or NAME=SHA256",
    )
    parser.add_argument(
        "--data",
        action="append",
        metavar="DATA",
        help="a data set that the run must have audited; repeatable. Give it in the same way as to pytest --data: the "
        "data are then read and compared. Or give its NAME in the run, or NAME=SHA256 (default: any)",
    )
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        help="the policy file that the run must have applied, or the SHA-256 hash of its effective policy (default: "
        "any)",
    )
    parser.add_argument(
        "--sequential",
        action="store_true",
        help="require that the run used --audit-sequential when it applied the file given with --policy",
    )
    parser.add_argument(
        "--after",
        metavar="TIME",
        help="the earliest time at which the run may have begun, in ISO 8601 or in seconds since 1970, as `date +%%s` "
        "prints (default: any)",
    )
    parser.add_argument(
        "--attnaudit", metavar="VERSION", help="the version of attnaudit that must have run the audit (default: any)"
    )
    parser.add_argument(
        "--seed", type=whole_number, default=0, metavar="N", help="the seed that the run must have used (default: 0)"
    )
    parser.add_argument(
        "--unit",
        type=one_of(("tokens", "words", "sources")),
        metavar="{tokens,words,sources}",
        default="tokens",
        help="the units over which the run must have computed statistics (default: tokens)",
    )
    parser.add_argument(
        "--allow-sample", action="store_true", help="accept a run that audited a sample (--audit-max-instances)"
    )
    parser.add_argument(
        "--baseline",
        metavar="DIR",
        help="the folder of the baseline files with which the run must have compared its models (default: any)",
    )
    parser.epilog = "Exit status: 0 if the run is verified; 1 if it is not; 2 if an option is invalid."
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Verify a run and print the result.

    Returns:
        The exit status: 0 if the run is verified, 1 if it is not, 2 if an option is invalid.
    """
    given = Path(options.folder)
    try:
        after = _require_valid(options)
        folder = newest_run(require_run_folder("verify", given))
        record = read_run(folder)
        require_ended(record, folder)
        edited = mismatches(record, folder)
        reasons = run_objections(record)
        # Models and data are loaded, which runs their code, only for a run that passed by itself.
        expected = None if edited or reasons else _expectations(options, after, record.data)
    except UsageError as error:
        print(f"attnaudit verify: {shown_error(error)}", file=sys.stderr)
        return USAGE_ERROR
    except AuditError as error:
        return _refuse([str(error)], options.folder)
    if edited:
        return _refuse([f"{what}. {EDITED}" for what in edited], str(folder))
    for line in (*exception_lines(record), *allowed_lines(record), *unvalidated_lines(record)):
        _print(line)
    if expected is not None:
        reasons = objections(record, expected)
    if folder != given:
        reasons += newer_runs(folder, record)
    if reasons or expected is None:
        return _refuse(reasons, str(folder))
    for line in (*sample_lines(record), *_not_compared(options, expected)):
        _print(line)
    _print(f"verified: {folder}: {summary_line(record)}")
    return VERIFIED


def _print(text: str) -> None:
    """Print a text as one line that is harmless in a terminal. The text may quote files that anyone wrote."""
    print(one_line(text))


def _refuse(reasons: list[str], folder: str) -> int:
    for reason in reasons:
        _print(f"- {reason}")
    _print(f"not verified: {folder}: {len(reasons)} {'reason' if len(reasons) == 1 else 'reasons'}, listed above")
    return NOT_VERIFIED


def _require_valid(options: argparse.Namespace) -> datetime | None:
    """Check the options that need no file, and return the time of --after; None without it.

    Raises:
        UsageError: An option is invalid.
    """
    if not options.model:
        raise UsageError(
            "--model is missing. Name every model that is to be released, as you gave it to pytest, such as --model "
            "checkpoints/release. Otherwise a run of another model could be verified."
        )
    if options.sequential and (options.policy is None or SHA256.fullmatch(options.policy)):
        raise UsageError(
            "--sequential: this option says how the run applied the file given with --policy, but no file is given. "
            "Add --policy FILE, or remove --sequential."
        )
    return None if options.after is None else _time(options.after)


def _expectations(options: argparse.Namespace, after: datetime | None, audited: Sequence[DataRecord]) -> Expectations:
    """Return what the options require of the run. Models, data and the policy are read to find out.

    Args:
        options: The options.
        after: The time of --after; None without it.
        audited: The data sets of the run.

    Raises:
        AuditError: A model, a data set or the policy cannot be read.
    """
    for one in options.model:
        require_reachable("--model", Path(one))
    for one in options.data or ():
        require_reachable("--data", Path(one))
    paths = [(one, _is_folder(one)) for one in options.model] + [
        (one, Path(one).exists()) for one in options.data or ()
    ]
    if any(_must_be_looked_up(one) for one, is_path in paths if not is_path):
        read_conftests()
    policy = None if options.policy is None else _policy_hash(options.policy, sequential=options.sequential)
    return Expectations(
        models=[_expected_model(one) for one in dict.fromkeys(chain.from_iterable(map(_by_label, options.model)))],
        data=[_expected_data(one, audited) for one in dict.fromkeys(options.data or ())],
        policy_sha256=policy,
        after=after,
        version=options.attnaudit,
        seed=options.seed,
        unit=options.unit,
        allow_sample=options.allow_sample,
        baselines=None if options.baseline is None else _baseline_hashes(Path(options.baseline)),
    )


def _must_be_looked_up(given: str) -> bool:
    """Return whether the value of an option may be a name that a conftest.py registers."""
    return not (given in models or given in datasets or NAME_AND_HASH.fullmatch(given) or FACTORY.fullmatch(given))


def _is_folder(given: str) -> bool:
    """Return whether a value of --model is a checkpoint folder, or FOLDER[LABEL]."""
    return Path(split_label(given)[0]).is_dir()


def _by_label(given: str) -> list[str]:
    """Return FOLDER[LABEL] for each label that the attnaudit.toml of a checkpoint folder lists, as pytest audits it.

    A value of --model without such a list is returned as it is.
    """
    folder, label = split_label(given)
    labels = () if label or given in models else labels_in(Path(folder))
    return [f"{folder}[{one}]" for one in labels] or [given]


def _expected_model(given: str) -> Expected:
    """Load the model that a value of --model names.

    A value that is neither a registered name nor a folder, with or without a label, nor a factory is the name of a
    model in the run.
    """
    if given in models or _is_folder(given) or FACTORY.fullmatch(given):
        from attnaudit.adapters.loading import load_model

        loaded = load_model(given)
        return Expected(given=given, name=None, sha256=loaded.sha256, family=loaded.family)
    return _named(given)


def _expected_data(given: str, audited: Sequence[DataRecord]) -> Expected:
    """Read the data set that a value of --data names, and hash it as the run did.

    A value that is neither a registered name nor a file or folder is the name of a data set in the run.

    Args:
        given: The value.
        audited: The data sets of the run.
    """
    if given not in datasets and not Path(given).exists():
        return _named(given)
    from attnaudit.data.draws import open_draws

    draws = {lazily: open_draws(given, 0, lazily=lazily) for lazily in {one.hashed == "file" for one in audited}}
    # No more rows of a stream are read than the run read of its streams, because a later row may be broken.
    alike = [one for one in audited if draws[one.hashed == "file"].hashed == one.hashed] or audited
    # If the run read a stream to its end, one more row is asked for, because an added row must change the hash.
    hashes = [draws[one.hashed == "file"].sha256(one.audited + (one.rows is not None)) for one in alike]
    same = (sha256 for one, sha256 in zip(alike, hashes, strict=True) if sha256 == one.sha256)
    return Expected(given=given, name=None, sha256=next(same, hashes[0] if hashes else ""))


def _named(given: str) -> Expected:
    match = NAME_AND_HASH.fullmatch(given)
    if match is None:
        return Expected(given=given, name=given, sha256=None)
    return Expected(given=given, name=match["name"], sha256=match["sha256"].lower())


def _policy_hash(given: str, *, sequential: bool) -> str:
    """Return the hash of an effective policy. The value is the hash itself, or the path of a policy file.

    `sequential` says whether the run was given --audit-sequential.
    """
    if SHA256.fullmatch(given):
        return given.lower()
    try:
        return effective_policy_of_file(Path(given), sequential=sequential).sha256
    except UnknownCheckError:
        read_conftests()  # conftest.py may register the check
        return effective_policy_of_file(Path(given), sequential=sequential).sha256


def _baseline_hashes(folder: Path) -> dict[str, str]:
    """Return the name of each baseline in a folder -> its hash.

    Raises:
        ReportError: A file is invalid.
    """
    present = {name: read_baseline(folder, name) for name in BASELINE_NAMES}
    return {name: baseline.sha256 for name, baseline in present.items() if baseline is not None}


def _time(text: str) -> datetime:
    """Parse the value of --after.

    The time is rounded down to a second, because the times in audit.json are rounded in the same way.

    Raises:
        UsageError: The value is neither a time in ISO 8601 with a time zone nor a number of seconds since 1970.
    """
    expected = (
        f"--after {text}: expected a time in ISO 8601 with a time zone, such as 2026-01-31T14:05:00+00:00, or seconds "
        "since 1970. For example, write started=$(date +%s) before pytest, and give --after $started."
    )
    try:
        seconds = float(text)
        if not FEWEST_SECONDS <= seconds < math.inf:
            raise UsageError(expected)
        time = datetime.fromtimestamp(math.floor(seconds), UTC)
    except (OverflowError, OSError):
        raise UsageError(expected) from None
    except ValueError:
        time = _iso_time(text, expected)
    return time.replace(microsecond=0)


def _iso_time(text: str, expected: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(expected) from None
    if time.tzinfo is None:
        raise UsageError(expected)
    return time


def _not_compared(options: argparse.Namespace, expected: Expectations) -> list[str]:
    """Return one line that lists what was not compared, and one that lists what was compared only by its name.

    The list is empty if everything was compared by its content.
    """
    absent = [f"--{name}" for name in ("data", "policy", "after", "attnaudit") if getattr(options, name) is None]
    only_named = [one.given for one in (*expected.models, *expected.data) if one.sha256 is None]
    lines = []
    if absent:
        lines.append(f"not compared, because these options were not given: {', '.join(absent)}")
    if only_named:
        lines.append(f"compared by name only: {', '.join(only_named)}")
    return lines
