"""`attnaudit plan`: say how many rows a policy needs, and how long an audit takes."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.checks.base import Check
from attnaudit.checks.policies.policy import Policy, load_policy
from attnaudit.checks.policies.policy_choice import choose_policy, require_families_of_several
from attnaudit.command_parser import whole_number
from attnaudit.commands.conformance_command import read_conftests
from attnaudit.devices import AUTO, NAMES, chosen_device, gpu_name, require_device
from attnaudit.disk_arrays.temporary_files import temporary_folder
from attnaudit.errors import AuditError, CheckError, shown_error
from attnaudit.formatting import duration, plural, terminal_safe
from attnaudit.model_families import audited_family
from attnaudit.records import CheckCost
from attnaudit.report.check_costs import PASS_UNIT, CostLine
from attnaudit.run.audited_data import require_known_labels
from attnaudit.run.cost_probe import CostEstimate, MemoryEstimate, estimate_cost
from attnaudit.run.gate_planning import DEFAULT_EFFECT, GatePlan, plan_gates
from attnaudit.run.run_choice import newest_run, require_run_folder
from attnaudit.run.verification.integrity import read_unedited
from attnaudit.statistics.sample_size import POWER

if TYPE_CHECKING:
    from attnaudit.adapters.loading import LoadedModel
    from attnaudit.data.draws import Draws

#: Number of rows from which the time of an audit is estimated.
PROBE_ROWS = 32
DEFAULT_DATA = "movie-reviews"
#: The folder in which `attnaudit init` writes the policies.
AUDITS = "audits"
ENOUGH, NOT_ENOUGH, CANNOT_RUN = 0, 1, 2
PROCESSOR_TIME = (
    "The time is processor time, which does not include waiting for other programs. An audit in one process takes "
    "about this long if the machine does nothing else."
)
DEVICE_TIME = (
    "The time is wall-clock time, and includes the work of the device. It is longer if other programs use the device "
    "or the CPUs at the same time."
)
MOST_ROWS, SMALLEST_EFFECT = 10**12, 1e-9
STATUS = (
    "Exit status: 0 if the number of rows is known for every gate and, with --rows, N is enough; 1 if not; 2 if an "
    "option is invalid or a file cannot be read."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `attnaudit plan`."""
    parser.epilog = STATUS
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help=f"the policy file (.toml). By default, the policy in the folder {AUDITS} that applies to the family of "
        "--model; if there is no such folder, the policy that `attnaudit init` writes for this family",
    )
    parser.add_argument(
        "--rows",
        metavar="N",
        type=whole_number,
        help="also show which differences N rows can detect, and whether N rows are enough",
    )
    parser.add_argument(
        "--from",
        dest="run",
        metavar="RUN",
        help="take the spread of the values from this run: its folder, or reports/ for the newest run. By default, the "
        "spread is that of the demo model, or the largest possible one for gates not measured on the demo model",
    )
    parser.add_argument(
        "--effect",
        metavar="[GATE=]X",
        action="append",
        default=[],
        help="how far the true value is from the threshold, in the unit of the value, for one gate or for all; may be "
        f"repeated. Default: {DEFAULT_EFFECT:g}, or the margin of a gate that compares with a baseline",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"also estimate the time and memory of an audit of this model, by measuring {PROBE_ROWS} rows of --data",
    )
    parser.add_argument("--data", metavar="DATA", help=f"the data for --model (default: {DEFAULT_DATA})")
    parser.add_argument("--device", default=AUTO, help=f"the device for --model: auto, {NAMES} (default: auto)")
    parser.add_argument(
        "--unit",
        choices=("tokens", "words", "sources"),
        help="the units of the audit of --model, as in pytest --audit-unit (default: tokens)",
    )


def run(options: argparse.Namespace) -> int:
    """Print how many rows every gate of a policy needs and, if a model is given, what an audit costs.

    Returns:
        The exit status: 0 if the number of rows is known for every gate and, with --rows, the rows are enough; 1 if
        not; 2 if an option is invalid or a file cannot be read.
    """
    try:
        default, effects = _effects(options.effect)
        if options.rows is not None and not 0 < options.rows <= MOST_ROWS:
            shown = f"{options.rows:,}" if abs(options.rows) < 10**20 else "too large"
            raise CheckError(f"--rows is {shown}; expected a whole number above 0 and at most {MOST_ROWS:,}.")
        read_conftests()  # a policy may name checks that they register
        # Loading the model can take long, so files are read first.
        given = None if options.policy is None else load_policy(Path(options.policy))
        measured = _model_and_data(options)
        policy = given if given is not None else _policy_of_family(options, measured)
        records = []
        if options.run is not None:
            records = read_unedited(newest_run(require_run_folder("--from", Path(options.run)))).checks
        plans = plan_gates(policy, effects=effects, default_effect=default, records=records, rows=options.rows)
        cost = _cost(policy, options, measured)
    except AuditError as error:
        print(f"attnaudit: {shown_error(error)}", file=sys.stderr)
        return CANNOT_RUN
    if options.policy is None:
        folder = f"{AUDITS}/" if Path(AUDITS).is_dir() else "the default "
        chosen = f"Policy: {folder}{policy.record.file}, which applies to the family of {options.model}"
        print(terminal_safe(chosen), end="\n\n")
    if not plans:
        print("The policy has no gate, so it needs no rows.")
    gate_lines = (*_table(plans, options.rows), "", *_conclusion(plans, options.rows)) if plans else ()
    for line in (*gate_lines, *cost):
        print(terminal_safe(line))
    known = all(plan.rows is not None for plan in plans)
    return ENOUGH if known and (options.rows is None or _most(plans) <= options.rows) else NOT_ENOUGH


def _effects(texts: Sequence[str]) -> tuple[float | None, dict[str, float]]:
    """Return the effect of all gates, or None if it is not given; and the effects that are given for single gates.

    Raises:
        CheckError: A text is not "X" or "GATE=X" with a finite number X of at least 1e-9, or a gate is given twice.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            effect = float(number)
        except ValueError:
            effect = math.nan
        if not SMALLEST_EFFECT <= effect < math.inf:
            raise CheckError(
                f"--effect {text}: expected a number above 0 (at least {SMALLEST_EFFECT:g}), or the id of a gate and a "
                "number, such as total_effect.standardised=0.02."
            )
        if name in found:
            raise CheckError(f"--effect: two effects are given for {name or 'all gates'}. Keep one.")
        found[name] = effect
    return found.pop("", None), found


def _most(plans: Sequence[GatePlan]) -> int:
    return max((plan.rows for plan in plans if plan.rows is not None), default=0)


def _table(plans: Sequence[GatePlan], rows: int | None) -> list[str]:
    """Return the lines of the table, with aligned columns."""
    head = ["gate", "threshold", "effect", "rows to pass", "rows to fail"]
    head += [] if rows is None else [f"pass at ({plural(rows, 'row')})", f"fail at ({plural(rows, 'row')})"]
    cells = [[*head, "spread from"], *(_cells(plan, rows) for plan in plans)]
    return _aligned(cells, left=(0, 1, len(head)))


def _aligned(cells: Sequence[Sequence[str]], *, left: Collection[int]) -> list[str]:
    """Return the lines of a table. The columns in `left` are aligned to the left, the others to the right."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        aligned = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    return lines


def _model_and_data(options: argparse.Namespace) -> tuple[LoadedModel, Draws] | None:
    """Open --data and load --model; None if no model is given.

    Raises:
        AuditError: The data cannot be read, the model cannot be loaded or does not know a label of the data, TMPDIR or
            the device cannot be used, or --data, --device or --unit is given without --model.
    """
    if options.model is None:
        for option, given in (
            ("--data", options.data is not None),
            ("--device", options.device != AUTO),
            ("--unit", options.unit is not None),
        ):
            if given:
                raise CheckError(
                    f"{option}: this option is used only with --model. Add --model MODEL to estimate the time of an "
                    "audit."
                )
        return None
    from attnaudit.adapters.loading import load_model
    from attnaudit.data.draws import open_draws

    temporary_folder()  # refuses an unusable TMPDIR, as the audit will
    if options.device != AUTO:
        require_device("--device", options.device)
    draws = open_draws(options.data or DEFAULT_DATA, 0)
    loaded = load_model(options.model)
    if options.data is not None:
        require_known_labels(draws, loaded.adapter.capabilities, PROBE_ROWS)
    return loaded, draws


def _policy_of_family(options: argparse.Namespace, measured: tuple[LoadedModel, object] | None) -> Policy:
    """Return the policy that applies to the family of --model.

    Raises:
        CheckError: A policy file is invalid, no policy or several policies apply to the model, or --model is not given.
    """
    if measured is None:
        raise CheckError(
            "give a policy, as in --policy audits/policy.toml, or a model, as in --model demo. With --model alone, the "
            "policy is the one that applies to the family of the model."
        )
    folder = Path(AUDITS) if Path(AUDITS).is_dir() else Path(str(files("attnaudit.run") / "templates"))
    policies = [load_policy(file) for file in sorted(folder.glob("*.toml"))]
    if not policies:
        raise CheckError(f"the folder {AUDITS} contains no policy (*.toml). Give one with --policy FILE.")
    if len(policies) > 1:
        require_families_of_several(policies)
    return choose_policy(policies, {options.model: audited_family(measured[0].family, options.unit or "tokens")})


def _cost(
    policy: Sequence[Check], options: argparse.Namespace, measured: tuple[LoadedModel, Draws] | None
) -> list[str]:
    """Return lines that say what an audit of a model on its data costs; no lines if there is no model.

    Raises:
        AuditError: The rows cannot be read or measured.
    """
    if measured is None:
        return []
    loaded, draws = measured
    data = draws.first(PROBE_ROWS if draws.size is None else None)
    device = chosen_device(options.device)
    cost = estimate_cost(
        loaded.adapter,
        data,
        policy,
        probe=PROBE_ROWS,
        rows=options.rows,
        device=device,
        unit=options.unit or "tokens",
    )
    return ["", *_cost_lines(cost, gpu_name(device))]


def _cost_lines(cost: CostEstimate, gpu: str) -> list[str]:
    """Return the table of what each check costs, and the sentences around it.

    Args:
        cost: The costs.
        gpu: The name of the GPU on which they were measured; "" for a CPU.
    """
    table, memory = cost.costs, cost.memory

    def cells(name: str, line: CheckCost | CostLine, saved: str, growth: str) -> list[str]:
        passes = [line.passes.forward, line.passes.partial, line.passes.backward]
        # If every row needs the same number of passes, no rounding is needed.
        known = [cost.exact_passes or count % cost.rows == 0 for count in passes]
        counts = [f"{count if exact else _rounded(count):,}" for count, exact in zip(passes, known, strict=True)]
        return [name, *counts, duration(line.seconds), saved, growth]

    rows = [["check", "forward", "partial", "backward", "time", "saved if left out", "memory"]]
    for one in table.checks:
        growth = _mebibytes(None if memory is None else memory.checks[one.check])
        rows.append(cells(one.check, one, duration(one.own_seconds), growth))
    rows.append(cells("shared by several checks", table.shared, "-", "-"))
    rows.append(cells("all together", table.total, "-", _mebibytes(None if memory is None else memory.total)))
    estimated = f"The passes are estimated from {plural(cost.probed, 'row')}. They depend on the lengths of the texts."
    if cost.exact_passes:
        estimated = "All rows were measured, so the numbers of passes are exact."
    place = f" on the GPU ({gpu})" if gpu else ""
    least = "" if cost.highest is None else f" and at least {cost.highest / 2**20:,.0f} MiB of memory"
    return [
        f"Measuring {plural(cost.rows, 'row')}{place} takes about {duration(table.total.seconds)}{least}. Loading, "
        "statistics and the report take further time.",
        "",
        *_aligned(rows, left=(0,)),
        "",
        f"forward, partial, backward: the number of passes. {PASS_UNIT} {estimated}",
        "time: the time of all measures that the check needs. A measure that several checks need is computed once, but "
        "counts for each of them. “saved if left out” is the time of the measures that no other check needs.",
        PROCESSOR_TIME if cost.processor_time else DEVICE_TIME,
        *_memory_lines(memory, "the GPU" if gpu else "the process"),
        *(
            f"{one.check}: trains {plural(one.models_trained, 'model')}. The passes of training are not counted."
            for one in table.checks
            if one.models_trained
        ),
        *(f"{check}: the model does not support this check." for check in cost.unmeasurable),
    ]


def _memory_lines(memory: MemoryEstimate | None, owner: str) -> list[str]:
    """Return a sentence that says what the column “memory” shows.

    Args:
        memory: The memory.
        owner: Whose memory it is: "the process" or "the GPU".
    """
    if memory is None:
        return ["memory: not measured, because this system does not report the peak memory of a part of a process."]
    return [
        f"memory: how much the memory of {owner} grows at most beyond the {memory.before / 2**20:,.0f} MiB for the "
        "model, the data and the libraries, while only the measures that the check needs are computed for a full batch "
        f"({plural(memory.rows, 'row')}, {memory.tokens:,} tokens with padding). It can differ by about a tenth if "
        "you run this command again."
    ]


def _rounded(count: int) -> int:
    """Round an estimated number to three significant digits."""
    return round(count, min(0, 3 - len(str(count))))


def _mebibytes(size: int | None) -> str:
    if size is None:
        return "not measured"
    return "< 1 MiB" if size < 2**20 else f"{size / 2**20:,.0f} MiB"


def _cells(plan: GatePlan, rows: int | None) -> list[str]:
    required, wrong = ("+", "-") if plan.direction == "at_least" else ("-", "+")
    cells = [plan.check, f"{plan.direction.replace('_', ' ')} {plan.limit}", f"{plan.effect:g}"]
    none = "unknown" if plan.problem else "impossible"
    cells += [none if count is None else f"{count:,}" for count in (plan.to_pass, plan.to_fail)]
    if rows is not None:
        cells += [
            none if distance is None else f"{sign}{distance:.2g}"
            for sign, distance in zip((required, wrong), plan.smallest, strict=True)
        ]
    return [*cells, plan.basis or "-"]


def _conclusion(plans: Sequence[GatePlan], rows: int | None) -> list[str]:
    """Return sentences that say how many rows the policy needs, and for which gates the number is unknown."""
    lines = [
        f"With these rows, a gate passes or fails with a probability of {POWER:.0%} if the distance of the true "
        "value from the threshold equals the effect.",
    ]
    if rows is not None:
        lines.append(
            f"With {plural(rows, 'row')}, a gate passes or fails with this probability if the true value is as far "
            "from the threshold as the columns “pass at” and “fail at” show."
        )
    lines.append("Rows with the same source give less information than rows with different sources.")
    for plan in plans:
        if plan.problem:
            lines.append(f"{plan.check}: the number of rows is unknown, because {plan.problem}.")
        elif plan.rows is None:
            verdict, side = ("pass", "passes") if plan.to_pass is None else ("fail", "fails")
            lines.append(
                f"{plan.check}: the gate cannot {verdict} with this effect. On the side where it {side}, no "
                f"possible value is {plan.effect:g} away from the threshold. Give a smaller effect, "
                f"--effect {plan.check}=X, or change the threshold."
            )
    if any(plan.rows is not None for plan in plans):
        other = "" if all(plan.rows is not None for plan in plans) else "The other gates of the policy need"
        lines.append(f"{other or 'The policy needs'} {plural(_most(plans), 'row')}.")
        if rows is not None:
            lines.append(f"{plural(rows, 'row')} {'are' if _most(plans) <= rows else 'are not'} enough.")
    return lines
