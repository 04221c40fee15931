"""`attnaudit stability`: audit a model several times, and report verdicts that depend on seeds, batches or workers."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnaudit.command_parser import whole_number
from attnaudit.commands.conformance_command import read_conftests
from attnaudit.devices import AUTO, NAMES, require_name
from attnaudit.errors import AuditError, CheckError, require_reachable, shown_error
from attnaudit.formatting import plain_number, plural, terminal_safe
from attnaudit.model_families import audited_family
from attnaudit.output_files import require_separate
from attnaudit.targets import split_label

if TYPE_CHECKING:
    from attnaudit.run.stability import GateStability, Variation

STABLE, FLIPPED, CANNOT_RUN = 0, 1, 2
AUDITS = Path("audits")
SEEDS, BATCH_TOKENS, WORKERS = 5, (256, 16384), (2,)
STATUS = (
    "Exit status: 0 if every run reached the same verdict on every gate; 1 if a verdict differs; 2 if an option is "
    "invalid, the model cannot be audited, or the runs audited different models or data."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit stability`."""
    parser.epilog = STATUS
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help="the model to audit, in the same form as for pytest --model"
    )
    parser.add_argument(
        "--data", default="movie-reviews", metavar="DATA", help="the data to audit on (default: movie-reviews)"
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="the policy (default: the file in audits/ that applies to the model)",
    )
    parser.add_argument(
        "--seeds",
        type=whole_number,
        default=SEEDS,
        metavar="N",
        help=f"audit with the seeds 0 to N - 1 (default: {SEEDS})",
    )
    parser.add_argument(
        "--batch-tokens",
        type=whole_number,
        nargs="*",
        default=list(BATCH_TOKENS),
        metavar="N",
        help="audit with batches of at most N tokens, once for each N; without a number, batches are not varied "
        f"(default: {' '.join(map(str, BATCH_TOKENS))})",
    )
    parser.add_argument(
        "--workers",
        type=whole_number,
        nargs="*",
        metavar="N",
        help="audit with N pytest-xdist workers, once for each N; without a number, workers are not used "
        f"(default: {' '.join(map(str, WORKERS))} if pytest-xdist is installed)",
    )
    parser.add_argument("--max-instances", type=whole_number, metavar="N", help="audit a random sample of N instances")
    parser.add_argument(
        "--sequential",
        action="store_true",
        help="measure rows until every gate has a verdict, as pytest --audit-sequential does",
    )
    parser.add_argument(
        "--unit",
        choices=("tokens", "words", "sources"),
        default="tokens",
        help="the units of the audit, as in pytest --audit-unit (default: tokens)",
    )
    parser.add_argument("--device", default=AUTO, help=f"the device to measure on: auto, {NAMES} (default: auto)")
    parser.add_argument("--json", metavar="FILE", help="also write the verdicts of all runs as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="also write the table as Markdown")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Audit a model several times and print which verdicts differ.

    Returns:
        The exit status: 0 if no verdict differs, 1 if one does, 2 if an option is invalid, the model cannot be audited,
        or the runs audited different models or data.
    """
    try:
        gates, variations = _measured(options)
        if options.json is not None:
            _write("--json", options.json, msgspec.json.format(msgspec.json.encode(_as_json(gates)), indent=1).decode())
        if options.markdown is not None:
            _write("--markdown", options.markdown, markdown(gates))
    except AuditError as error:
        print(f"attnaudit: {shown_error(error)}", file=sys.stderr)
        return CANNOT_RUN
    for line in (*table(gates), "", conclusion(gates, len(variations))):
        print(terminal_safe(line))
    return FLIPPED if any(gate.flips()[0] for gate in gates) else STABLE


def _measured(options: argparse.Namespace) -> tuple[list[GateStability], list[Variation]]:
    from attnaudit.adapters.loading import load_model
    from attnaudit.progress import progress_bar
    from attnaudit.run.audit_options import AuditOptions
    from attnaudit.run.stability import measure_stability, policy_for, variations_of

    workers = options.workers
    if workers is None:
        workers = list(WORKERS) if _has_workers() else []
    elif workers and not _has_workers():
        raise CheckError("--workers: pytest-xdist is not installed. Run: pip install pytest-xdist")
    if options.max_instances is not None and options.max_instances < 1:
        raise CheckError(f"--max-instances {options.max_instances}: expected 1 or more.")
    if options.device != AUTO:
        require_name("--device", options.device)
    outputs = [
        (option, Path(given))
        for option, given in (("--json", options.json), ("--markdown", options.markdown))
        if given is not None
    ]
    for option, path in outputs:
        _require_file(option, path)
    policies = [Path(options.policy)] if options.policy is not None else AUDITS.glob("*.toml")
    read = [("also given with --data", Path(options.data)), ("also given with --model", Path(options.model))]
    read += [("a policy", one) for one in policies]
    read += [("a conftest.py", folder / "conftest.py") for folder in (Path(), AUDITS)]
    require_separate(outputs, read)
    variations = variations_of(0, seeds=options.seeds, batch_tokens=options.batch_tokens, workers=workers)
    read_conftests()
    audit = AuditOptions(
        models=(options.model,),
        data=(options.data,),
        models_base=Path.cwd(),
        data_base=Path.cwd(),
        reports=Path(),
        device=options.device,
        unit=options.unit,
        max_instances=options.max_instances,
        sequential=options.sequential,
    )
    audit.validate()
    audit.data_items()
    model, *others = audit.model_items()
    if others:
        raise CheckError(
            f"--model {options.model}: its attnaudit.toml names several labels, and each is audited as a model. Choose "
            f"one, as in --model '{options.model}[{split_label(model.source, Path())[1]}]'."
        )
    policy, file = policy_for(options.policy, lambda: audited_family(load_model(model.source).family, audit.unit))
    with progress_bar("stability", print_notes=True) as progress:
        return measure_stability(audit, policy, file, variations, progress=progress), variations


def _has_workers() -> bool:
    return importlib.util.find_spec("xdist") is not None


def table(gates: Sequence[GateStability]) -> list[str]:
    """Return the lines of a table with one row per gate, with aligned columns."""
    rows = _rows(gates)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def markdown(gates: Sequence[GateStability]) -> str:
    """Return the table as Markdown, with the conclusion above it."""
    from attnaudit.report.markdown import escape

    head, *rows = _rows(gates)
    count = len(gates[0].varied)
    lines = ["## Stability of the verdicts", "", f"**{conclusion(gates, count)}**", "", f"| {' | '.join(head)} |"]
    lines.append(f"|{'|'.join('---' for _ in head)}|")
    lines += [f"| {' | '.join(map(escape, row))} |" for row in rows]
    return "\n".join([*lines, ""])


def _rows(gates: Sequence[GateStability]) -> list[list[str]]:
    from attnaudit.run.stability import KINDS

    kinds = [kind for kind in KINDS if gates[0].flips(kind)[1]]
    rows = [["gate", "first verdict", "flips", *(f"by {kind}" for kind in kinds), "values"]]
    for gate in gates:
        flips, runs = gate.flips()
        values = gate.values
        spread = f"{plain_number(min(values), 4)} to {plain_number(max(values), 4)}" if values else "undefined"
        parts = [f"{changed}/{count}" for changed, count in map(gate.flips, kinds)]
        rows.append([gate.check, gate.first.verdict, f"{flips}/{runs} ({flips / runs:.0%})", *parts, spread])
    return rows


def conclusion(gates: Sequence[GateStability], runs: int) -> str:
    """Return one sentence that says how many verdicts differ."""
    flips, count = sum(gate.flips()[0] for gate in gates), runs * len(gates)
    if not flips:
        return f"No verdict differs: {plural(len(gates), 'gate')}, {plural(runs + 1, 'run')}."
    return (
        f"{flips} of {plural(count, 'verdict')} ({flips / count:.0%}) {'differs' if flips == 1 else 'differ'} from "
        "the verdict of the first run. A verdict that flips has a value near its threshold. Audit more instances to "
        "settle it."
    )


def _as_json(gates: Sequence[GateStability]) -> dict[str, Any]:
    """Return the verdicts of all runs in a form that JSON can hold."""
    return {
        "runs": 1 + len(gates[0].varied),
        "gates": [
            {
                "check": gate.check,
                "flips": gate.flips()[0],
                "share": gate.flips()[0] / gate.flips()[1],
                "first": {"verdict": gate.first.verdict, "value": gate.first.value},
                "varied": [
                    {
                        "kind": variation.kind,
                        "setting": variation.value,
                        "verdict": judged.verdict,
                        "value": judged.value,
                    }
                    for variation, judged in gate.varied
                ],
            }
            for gate in gates
        ],
    }


def _require_file(option: str, path: Path) -> None:
    """Before the audits, which may take long, require that a file can probably be written."""
    require_reachable(option, path)
    if path.is_dir() or not path.parent.is_dir():
        raise CheckError(f"{option} {path}: expected a file in a folder that exists.")


def _write(option: str, given: str, text: str) -> None:
    try:
        Path(given).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckError(f"{option} {given}: cannot be written ({error.strerror}). Give a writable file.") from error
