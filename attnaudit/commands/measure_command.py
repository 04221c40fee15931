"""`attnaudit measure`: measure some of the shards of an audit, for example in one job of a cluster."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.command_parser import require_writable_folder, whole_number
from attnaudit.commands.conformance_command import read_conftests
from attnaudit.disk_arrays.temporary_files import temporary_folder
from attnaudit.errors import AuditError, CheckError, shown_error
from attnaudit.formatting import plural, terminal_safe
from attnaudit.progress import progress_bar

if TYPE_CHECKING:
    from attnaudit.run import AuditOptions

_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)", re.ASCII)
MEASURED, CANNOT_RUN = 0, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit measure`."""
    parser.epilog = (
        "Afterwards, `attnaudit merge` merges the shards of all jobs, and pytest judges them with "
        "--audit-resume. Exit status: 0 if the shards were measured; 2 if not."
    )
    parser.add_argument(
        "--model",
        action="append",
        required=True,
        help="the model to audit, in the same form as for pytest --model; may be repeated",
    )
    parser.add_argument(
        "--data", action="append", help="the data to audit on, in the same form as for pytest --data; may be repeated"
    )
    parser.add_argument("--policy", metavar="FILE", required=True, help="the policy file (.toml)")
    parser.add_argument(
        "--shard",
        metavar="I/N",
        default="1/1",
        help="divide the shards into N parts, and measure the I-th one (default: 1/1, all shards)",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder to write the shards to")
    parser.add_argument("--max-instances", type=whole_number, metavar="N", help="same as pytest --audit-max-instances")
    parser.add_argument("--device", default="auto", help="same as pytest --audit-device (default: auto)")
    parser.add_argument(
        "--unit", choices=("tokens", "words", "sources"), default="tokens", help="same as pytest --audit-unit"
    )
    parser.add_argument("--seed", type=whole_number, default=0, help="same as pytest --audit-seed (default: 0)")
    parser.add_argument("--workers", type=whole_number, default=1, metavar="N", help="same as pytest --audit-workers")
    parser.add_argument(
        "--worker-timeout", type=whole_number, metavar="SECONDS", help="same as pytest --audit-worker-timeout"
    )
    parser.add_argument("--batch-tokens", type=whole_number, metavar="N", help="same as pytest --audit-batch-tokens")
    parser.add_argument(
        "--threads", type=whole_number, default=1, metavar="N", help="number of PyTorch threads (default: 1)"
    )


def run(options: argparse.Namespace) -> int:
    """Measure the shards.

    Returns:
        The exit status: 0 if the shards were measured, 2 if not.
    """
    from attnaudit.checks.policies.effective_policy import effective_policy_of_file
    from attnaudit.checks.policies.policy import load_policy
    from attnaudit.plugin.command_line import DEFAULT_DATA
    from attnaudit.run import AuditOptions
    from attnaudit.run.shards.partial_measurement import measure_part

    try:
        part, parts = _part(options.shard)
        here = Path.cwd()
        audit = AuditOptions(
            models=tuple(options.model),
            data=tuple(options.data or (DEFAULT_DATA,)),
            models_base=here,
            data_base=here,
            reports=here,
            device=options.device,
            max_instances=options.max_instances,
            unit=options.unit,
            seed=options.seed,
            workers=options.workers,
            threads=options.threads,
            worker_timeout=options.worker_timeout,
            batch_tokens=options.batch_tokens,
        )
        _validate(audit)
        temporary_folder()  # refuses an unusable TMPDIR before anything is measured
        require_writable_folder("--out", Path(options.out))
        read_conftests()
        policy = load_policy(Path(options.policy))
        with progress_bar("measuring", unit="texts") as progress:
            measured, total = measure_part(
                audit,
                policy,
                policy_sha256=effective_policy_of_file(Path(options.policy)).sha256,
                part=part,
                parts=parts,
                folder=Path(options.out),
                progress=progress,
            )
    except AuditError as error:
        print(f"attnaudit: {shown_error(error)}", file=sys.stderr)
        return CANNOT_RUN
    print(terminal_safe(f"Measured {measured} of {plural(total, 'shard')} into {options.out}."))
    return MEASURED


def _validate(audit: AuditOptions) -> None:
    """Validate the options that pytest has as well. The message names them as this command does.

    Raises:
        AuditError: One of them is invalid.
    """
    try:
        audit.validate()
    except AuditError as error:
        raise AuditError(str(error).replace("--audit-", "--")) from None


def _part(text: str) -> tuple[int, int]:
    """Return which part to measure, counted from 0, and the number of parts.

    Raises:
        CheckError: The text is not "I/N" with 1 ≤ I ≤ N.
    """
    match = _SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise CheckError(f"--shard {text}: expected I/N with I from 1 to N, such as 3/64.")
    return int(match[1]) - 1, int(match[2])
