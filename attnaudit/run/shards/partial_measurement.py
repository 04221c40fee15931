"""Measure some of the shards of an audit, and merge shards from several machines, without judging them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.devices import chosen_device, require_device
from attnaudit.errors import AuditError, CheckError, ReportError
from attnaudit.formatting import listed, plural
from attnaudit.processes import replace_file
from attnaudit.progress import ProgressCallback
from attnaudit.run.audit_options import AuditOptions
from attnaudit.run.run_folder import SHARDS
from attnaudit.run.shards.shard_setup import ShardedMeasurement
from attnaudit.run.shards.stored_shards import PLAN, ShardPlan, read_plan, read_record

if TYPE_CHECKING:
    from attnaudit.checks.base import Check

#: Number of missing shards that a message names.
MOST_NAMED = 8


def measure_part(
    options: AuditOptions,
    checks: Sequence[Check],
    *,
    policy_sha256: str,
    part: int,
    parts: int,
    folder: Path,
    progress: ProgressCallback | None,
) -> tuple[int, int]:
    """Measure every `parts`-th shard of every model and data set, and store it in a folder.

    Args:
        options: The options of the audit.
        checks: The checks of its policy.
        policy_sha256: The hash of its effective policy.
        part: The number of this part, counted from 0. The part consists of the shards whose number leaves this
            remainder when it is divided by `parts`.
        parts: The number of parts.
        folder: The folder to write to. Shards that it contains already are kept.
        progress: Called to report progress; None to report none.

    Returns:
        The number of shards of the part, and the number of shards of the whole audit.

    Raises:
        AuditError: A model or a data set cannot be audited, or a shard cannot be measured.
    """
    import torch

    if any(check.sampling == "sequential" and check.severity == "gate" for check in checks):
        raise CheckError(
            'A policy with sampling = "sequential" measures as many rows as its gates need, so its shards are not '
            "known in advance. Remove the key, or audit with pytest."
        )
    options = dataclasses.replace(options, device=chosen_device(options.device))
    require_device("--device", options.device)
    torch.set_num_threads(options.threads or 1)
    measured = total = 0
    for model in options.model_items():
        for data in options.data_items():
            counts = _measure_pair(
                options,
                checks,
                (model.id, model.source, data.id, data.source),
                policy_sha256=policy_sha256,
                part=(part, parts),
                folder=folder,
                progress=progress,
            )
            measured, total = measured + counts[0], total + counts[1]
    return measured, total


def _measure_pair(
    options: AuditOptions,
    checks: Sequence[Check],
    names: tuple[str, str, str, str],
    *,
    policy_sha256: str,
    part: tuple[int, int],
    folder: Path,
    progress: ProgressCallback | None,
) -> tuple[int, int]:
    """Measure the shards of one model and data set, as `measure_part` does."""
    from attnaudit.adapters.loading import load_model
    from attnaudit.conformance import quick
    from attnaudit.data import label_indices
    from attnaudit.data.draws import open_draws
    from attnaudit.engine.measuring import Shards, in_order_of_ids, lengths_for
    from attnaudit.engine.planning import refusals, refuse_unauditable
    from attnaudit.engine.shard_measuring import ShardMeasurer

    model, model_source, data, data_source = names
    draws = open_draws(data_source, options.seed)
    rows = draws.first(options.max_instances)
    loaded = load_model(model_source)
    refuse_unauditable(loaded.adapter)
    capabilities = loaded.adapter.capabilities
    label_indices(rows, capabilities.classes, capabilities.target, capabilities.labels)
    quick(loaded.adapter, rows.instances)
    wanted = sorted({need for check in checks for need in check.needs_under_reading()})
    needs = sorted(set(wanted) - set(refusals(loaded.adapter, wanted, options.engine_unit)))
    instances, _ = in_order_of_ids(rows.instances)
    shards = Shards(instances)
    runner = ShardedMeasurement(
        options=options,
        loaded=loaded,
        source=model_source,
        model=model,
        data=data,
        data_sha256=draws.sha256(len(rows.instances)),
        rows=len(rows.instances),
        rows_before=None,
        needs=needs,
        policy_sha256=policy_sha256,
        threads=options.threads or 1,
    ).runner(folder, progress, chosen=lambda index: index % part[1] == part[0])
    measurer = ShardMeasurer(
        loaded.adapter,
        needs,
        seed=options.seed,
        device=options.device,
        batch_tokens=options.batch_tokens,
        unit=options.engine_unit,
        sha256=loaded.parameters_sha256,
    )
    if measurer.keeps_rows:
        raise AuditError(
            f"The measure {', '.join(measurer.keeps_rows)} stores numbers of earlier rows in its attributes, so one "
            "process must measure all rows. Audit with pytest instead."
        )
    lengths = lengths_for(measurer, instances)
    measurer.start(lengths)

    def report(done: int) -> None:
        if progress is not None:
            progress(done, None, f"measuring {model} on {data}")

    runner.measure_missing(runner.open_folder(len(shards)), measurer, shards, lengths, report)
    return len(range(part[0], len(shards), part[1])), len(shards)


def merge_shards(folders: Sequence[Path], run: Path) -> int:
    """Copy shards that were measured on several machines into the folder of a new run, which can then be resumed.

    Args:
        folders: The folders that `measure_part` wrote to.
        run: The folder of the run. It must not exist.

    Returns:
        The number of shards.

    Raises:
        ReportError: A folder was given twice. A shard is missing, was measured twice, is damaged or belongs to another
            plan. Or the folder of the run exists. Nothing is copied then.
    """
    _refuse_repeated(folders)
    if run.exists():
        named = run if run.name else run.resolve()  # "." has no name
        others = (Path(f"{named}-{number}") for number in count(2))
        free = next(other for other in others if not other.exists())
        raise ReportError(f"{run}: this folder already exists. Give a new one, such as {free}.")
    found: dict[str, dict[int, Path]] = {}
    plans: dict[str, tuple[ShardPlan, Path]] = {}
    for folder in folders:
        names = sorted(file.parent for file in folder.glob(f"*/{PLAN}"))
        if not names:
            raise ReportError(_no_shards(folder))
        for one in names:
            plan = read_plan(one / PLAN)
            known, first = plans.setdefault(one.name, (plan, one))
            if known != plan:
                raise ReportError(
                    f"{one}: its shards do not belong to the same audit as those in {first}. They differ in: "
                    f"{listed(known.differences(plan))}. Measure all shards with the same model, data, policy, options "
                    "and version of attnaudit."
                )
            if one.name != plan.folder_name():
                raise ReportError(
                    f"{one}: expected the name {plan.folder_name()}, which `attnaudit measure` gave to the folder of "
                    "these shards. Rename it, or remove it if it is a copy."
                )
            shards = found.setdefault(one.name, {})
            for record in sorted(one.glob("[0-9]*.json")):
                _add(record, plan, shards)
    for name, (plan, first) in plans.items():
        missing = [index for index in range(plan.shards) if index not in found[name]]
        if missing:
            listing = ", ".join(map(str, missing[:MOST_NAMED])) + (", ..." if len(missing) > MOST_NAMED else "")
            raise ReportError(
                f"{plan.model} on {plan.data}: {len(missing)} of {plural(plan.shards, 'shard')} "
                f"{'is' if len(missing) == 1 else 'are'} missing ({listing}). {_without_shards(plan, folders)}Measure "
                f"the missing parts with `attnaudit measure --shard`, and merge again. First folder: {first}."
            )
    try:
        for name, (_, first) in plans.items():
            target = run / "parts" / SHARDS / "main" / name
            for record in found[name].values():
                for file in (record.with_suffix(".parquet"), record):
                    replace_file(target / file.name, file.read_bytes())
            replace_file(target / PLAN, (first / PLAN).read_bytes())
    except OSError as error:
        raise ReportError(f"{error.filename or run}: cannot be written ({error.strerror or error}).") from error
    return sum(map(len, found.values()))


def _no_shards(folder: Path) -> str:
    """Return the message for a folder in which no shards are found, with the reason where it is known."""
    lost = next((file.parent for file in sorted(folder.glob("*/[0-9]*.json"))), None)
    if lost is not None:
        return (
            f"{lost}: the shards in this folder cannot be merged, because {PLAN} is missing. Restore it, or measure "
            "the part again with `attnaudit measure`."
        )
    if any(folder.glob(f"*/*/{PLAN}")):
        return f"{folder}: there are no shards here, but in its subfolders. Give them instead, such as {folder}/*."
    return f"{folder}: there are no shards here. Give a folder that `attnaudit measure` wrote to."


def _refuse_repeated(folders: Sequence[Path]) -> None:
    """Refuse a folder that was given twice.

    Raises:
        ReportError: Two paths lead to the same folder.
    """
    seen: dict[Path, Path] = {}
    for folder in folders:
        path = Path(os.path.realpath(folder))
        if path in seen:
            also = "" if seen[path] == folder else f" (the first time as {seen[path]})"
            raise ReportError(f"{folder}: this folder was given twice{also}. Give it once; delete nothing.")
        seen[path] = folder


def _without_shards(plan: ShardPlan, folders: Sequence[Path]) -> str:
    """Return sentences that name the folders without a shard of an incomplete plan, and say what they contain instead.

    Args:
        plan: The plan.
        folders: The folders to merge.
    """
    name, reasons = plan.folder_name(), []
    for folder in folders:
        if any((folder / name).glob("[0-9]*.json")):
            continue
        others = [read_plan(file) for file in sorted(folder.glob(f"*/{PLAN}")) if file.parent.name != name]
        if others:
            pairs = listed([f"{other.model} on {other.data}" for other in others])
            reasons.append(f"{folder} has no shards of {plan.model} on {plan.data}, but of {pairs}. ")
        else:
            reasons.append(
                f"{folder} has no shards: `attnaudit measure` was stopped before the first one, or its part has none. "
            )
    more = f"Other folders without such shards: {len(reasons) - MOST_NAMED}. " if len(reasons) > MOST_NAMED else ""
    return "".join(reasons[:MOST_NAMED]) + more


def _add(path: Path, plan: ShardPlan, shards: dict[int, Path]) -> None:
    """Add the record of a shard to those that were found.

    Raises:
        ReportError: The shard was found before, is damaged or belongs to another plan.
    """
    record = read_record(path)
    if path.stem != f"{record.index:06d}":
        raise ReportError(
            f"{path}: this is the record of shard {record.index}, so expected the name {record.index:06d}.json. Rename "
            "the file and its .parquet file, or remove both if they are copies."
        )
    if record.plan_sha256 != plan.sha256() or not 0 <= record.index < plan.shards:
        raise ReportError(f"{path}: this shard belongs to another audit. Remove it, and measure the shard again.")
    if record.index in shards:
        if path.samefile(shards[record.index]):
            raise ReportError(
                f"{path}: this is the same file as {shards[record.index]}, through a link. Leave out the folder that "
                "contains the link; delete nothing."
            )
        raise ReportError(
            f"{path}: shard {record.index} was measured twice; it is also in {shards[record.index].parent}. Remove one "
            "of them."
        )
    numbers = path.with_suffix(".parquet")
    try:
        digest = hashlib.sha256(numbers.read_bytes()).hexdigest()
    except OSError as error:
        raise ReportError(f"{numbers}: cannot be read ({error.strerror or error}). Measure the shard again.") from error
    if digest != record.sha256:
        raise ReportError(
            f"{numbers}: its SHA-256 hash is not the one in {path.name}, so the file was changed or damaged. Delete "
            "both files, and measure the shard again."
        )
    shards[record.index] = path
