"""Write the spreads of values that `attnaudit plan` assumes without an earlier run.

    pytest audits/ --model demo && python -m benchmarks.planning_values reports/

The spreads come from the checks in a run of the demo model on the packaged reviews. The policy of this run must have
every check for which a spread is needed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from attnaudit.records import CheckRecord
from attnaudit.run.gate_planning import PlanningValue
from attnaudit.run.run_choice import newest_run
from attnaudit.run.verification.integrity import read_unedited


def planning_value(record: CheckRecord) -> PlanningValue | None:
    """Return the spread of the value in a record; None if it is unknown, or if more rows do not reduce it."""
    error, value = record.sampling_error, record.value
    if error is None or value is None or not error.standard_error or not error.narrows_with_rows:
        return None
    return PlanningValue(
        value=round(value, 4),
        deviation=float(f"{error.standard_error * math.sqrt(record.n_defined):.3g}"),
        slope=float(f"{error.slope:.3g}"),
        rows_per_row=None if error.share_rows is None else float(f"{record.n_defined / error.share_rows:.3g}"),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write planning_values.json. The return value is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of the run, or the one with the newest run")
    run = read_unedited(newest_run(parser.parse_args(arguments).runs))
    found = {record.check: planning_value(record) for record in run.checks if not record.reading}
    known = {check: value for check, value in sorted(found.items()) if value is not None}
    written = msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n"
    Path(str(files("attnaudit.run"))).joinpath("planning_values.json").write_bytes(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
