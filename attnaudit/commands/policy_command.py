"""`attnaudit policy`: compare two policies, or print the hash of a policy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

from attnaudit.checks.policies.effective_policy import effective_policy_of_file, hash_of
from attnaudit.checks.policies.policy import load_policy
from attnaudit.checks.policies.policy_diff import SUSPECT, Change, differences
from attnaudit.errors import AuditError, CheckError, ReportError, UnknownCheckError, require_reachable
from attnaudit.formatting import terminal_safe
from attnaudit.records import EffectivePolicy
from attnaudit.report.run_files import read_run, read_run_file
from attnaudit.run.run_choice import newest_run

#: The exit status if a policy cannot be read.
CANNOT_RUN = 2
SOURCES = "a policy file (.toml), an audit.json, the folder of a run, or reports/ for the newest run"
DIFF = "show the differences between two policies, and whether they make the new policy stricter or laxer"
STATUS = (
    "Exit status: 0 if nothing became laxer; 1 if something became laxer, disappeared, or must be compared by hand; 2 "
    "if a policy cannot be read."
)
HASH = "print the SHA-256 hash of the checks of a policy; it does not depend on their order or the layout of the file"


class Source(NamedTuple):
    """An effective policy that the command reads, and the version of attnaudit that applied it.

    Attributes:
        policy: The effective policy.
        attnaudit: The version of attnaudit in the record of the run; "" if the policy was read from a policy file.
        applies_to: The families in the policy file; None if the policy was read from the record of a run.
    """

    policy: EffectivePolicy
    attnaudit: str
    applies_to: tuple[str, ...] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands `diff` and `hash` of `attnaudit policy`."""
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)
    diff = actions.add_parser("diff", help=DIFF, description=f"{DIFF.capitalize()}.", epilog=STATUS)
    diff.add_argument("old", metavar="OLD", help=SOURCES)
    diff.add_argument("new", metavar="NEW", help="the new policy, in one of the same forms")
    digest = actions.add_parser("hash", help=HASH, description=f"{HASH[0].upper()}{HASH[1:]}.")
    digest.add_argument("file", metavar="FILE", help=SOURCES)


def run(options: argparse.Namespace) -> int:
    """Print the differences between two policies, or the hash of a policy.

    Returns:
        The exit status: 2 if a policy cannot be read, 1 if `diff` finds that the new policy may be laxer, otherwise 0.
    """
    try:
        if options.action == "hash":
            print(read_source(Path(options.file)).policy.sha256)
            return 0
        old, new = read_source(Path(options.old)), read_source(Path(options.new))
    except AuditError as error:
        print(terminal_safe(f"attnaudit: {error}"), file=sys.stderr)
        return CANNOT_RUN
    changes = [*_of_families(old, new), *differences(old.policy, new.policy)]
    if old.attnaudit and new.attnaudit and old.attnaudit != new.attnaudit:
        text = (
            f"the version changed from {old.attnaudit} to {new.attnaudit}, so built-in checks may measure differently"
        )
        changes.append(Change("changed", "attnaudit", text))
    for change in changes:
        print(terminal_safe(f"{change.kind}: {change.subject}: {change.text}"))
    suspect = sum(change.kind in SUSPECT for change in changes)
    if not changes:
        print("The policies are the same.")
    elif suspect:
        print(
            f"The new policy may pass models that the old one blocks: see the first {suspect} of {len(changes)} lines."
        )
    else:
        print("Nothing became laxer.")
    return int(suspect > 0)


def read_source(path: Path) -> Source:
    """Read the effective policy of a policy file or of a run.

    Args:
        path: A policy file, an audit.json, the folder of a run, or a folder that contains several runs. Of several
            runs, the newest one is used.

    Raises:
        AuditError: The file cannot be read. Or the record of the run contains no policy, or a policy that was edited.
    """
    require_reachable("policy", path)
    if not path.is_dir() and path.suffix.lower() != ".json":
        try:
            return Source(effective_policy_of_file(path), "", tuple(sorted(load_policy(path).record.applies_to)))
        except UnknownCheckError as error:
            raise CheckError(
                f"{error} If conftest.py defines this check, only a run knows it: give the folder of a run instead."
            ) from error
    record = read_run(newest_run(path)) if path.is_dir() else read_run_file(path)
    if record.effective_policy is None:
        raise ReportError(f"{path}: the record of this run contains no policy. Give a run that judged checks.")
    if hash_of(record.effective_policy) != record.effective_policy.sha256:
        raise ReportError(
            f"{path}: the policy in this record does not match its SHA-256 hash, so the file was edited. Restore the "
            "file, or run the audit again."
        )
    return Source(record.effective_policy, record.attnaudit, None)


def _of_families(old: Source, new: Source) -> list[Change]:
    """Return a change if two policy files apply to other families of models."""
    if old.applies_to is None or new.applies_to is None or old.applies_to == new.applies_to:
        return []
    before, after = (", ".join(one.applies_to or ()) or "nothing" for one in (old, new))
    text = (
        f"applies_to changed from {before} to {after}, so an @audit function with several policies may apply another "
        "one to a model"
    )
    return [Change("compare by hand", "policy", text)]
