"""Read the plan of seeds: a file that fixes the seeds of each row, before any of them is run.

The number of seeds decides which claims can be judged. If it were chosen after a look at the results, the intervals
would be too narrow. The plan is the file seeds.toml next to the results. It is committed before a run. If a row needs
more seeds after its results have been seen, the plan gives it new ones (`first`). The earlier ones count until the new
ones have been run.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnaudit.errors import ReportError, require_regular_file
from attnaudit.records import Record

SEED_PLAN = "seeds.toml"


class PlannedSeeds(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The seeds of some rows.

    Attributes:
        reports: A pattern of the names of reports, such as "jain-wallace*".
        rows: A pattern of the names of rows, such as "imdb/*".
        tables: A pattern of the names of tables.
        seeds: The number of seeds per row.
        first: The first seed. The others follow it.
        reason: Why these seeds were chosen.
    """

    reports: str
    rows: str
    seeds: int
    reason: str
    first: int = 0
    tables: str = "*"


class _PlanFile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    planned: tuple[PlannedSeeds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """The content of a plan of seeds.

    Attributes:
        path: The path of the file.
        sha256: The hash of the file.
        planned: The entries. The first one that matches a row counts.
    """

    path: Path
    sha256: str
    planned: tuple[PlannedSeeds, ...]

    def seeds(self, report: str, table: str, row: str) -> range | None:
        """Return the planned seeds of a row.

        Args:
            report: The name of the report: the file name of its results, without extension.
            table: The name of the table.
            row: The name of the row.

        Returns:
            The seeds. None if no entry matches.
        """
        return next(self.matching(report, table, row), None)

    def matching(self, report: str, table: str, row: str) -> Iterator[range]:
        """Yield the seeds of all entries that match a row. If the first entry plans new seeds, earlier ones follow.

        Args:
            report: The name of the report.
            table: The name of the table.
            row: The name of the row.
        """
        for one in self.planned:
            patterns = ((report, one.reports), (table, one.tables), (row, one.rows))
            if all(fnmatch.fnmatchcase(name, pattern) for name, pattern in patterns):
                yield range(one.first, one.first + one.seeds)


def read_seed_plan(folder: Path) -> SeedPlan | None:
    """Read the plan of seeds in a folder with results.

    Returns:
        The plan. None if the folder has no such file.

    Raises:
        ReportError: The file cannot be read, or is not a plan of seeds.
    """
    path = folder / SEED_PLAN
    require_regular_file(path, "plan of seeds", ReportError)
    try:
        content = path.read_bytes()
        found = msgspec.toml.decode(content, type=_PlanFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(
            f"{path}: the file is not a plan of seeds ({error}). Expected entries [[planned]] with reports, rows, "
            "seeds and reason, and optionally first and tables."
        ) from error
    if any(one.seeds < 1 or one.first < 0 for one in found.planned):
        raise ReportError(f"{path}: expected at least 1 seed in every entry, and no first seed below 0.")
    return SeedPlan(path=path, sha256=hashlib.sha256(content).hexdigest(), planned=found.planned)
