"""While measurements.parquet is read for a report, the memory does not grow with the number of its row groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnaudit.run.measurements_file import SCHEMA

#: The numbers of row groups that are compared. With its whole index, the larger file needs 6 MiB more.
FEW, MANY = 50, 600
#: The largest difference, in KiB.
MOST = 2_048
READ = """
import sys
from pathlib import Path
from attnaudit.report.explorer import explorer_rows
from attnaudit.report.run_files import MeasurementsFile
explorer_rows.MOST_INSTANCES = 20
file = MeasurementsFile(Path(sys.argv[1]))
case = ("m", "d", 0)
assert file.measured == {case: {"attention"}}
assert file.instances([(case, "r7")], ["attention"])[case, "r7"].columns == {"attention": [0.5, 0.5]}
rows = explorer_rows.read_rows(file.path)[case]
assert (rows.total, len(rows.ids), rows.tokens[0]) == (int(sys.argv[2]), 20, ["a", "b"])
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_does_not_grow_with_the_row_groups(tmp_path: Path) -> None:
    def peak(groups: int) -> int:
        """Return the largest resident memory, in KiB, of a process that reads a file with some row groups."""
        folder = tmp_path / str(groups)
        folder.mkdir()
        with pq.ParquetWriter(folder / "measurements.parquet", SCHEMA) as writer:
            for number in range(groups):
                row = {"model": "m", "data": "d", "seed": 0, "instance": f"r{number}", "measure": "attention"}
                row |= {"values": [0.5, 0.5], "tokens": ["a", "b"]}
                writer.write_table(pa.Table.from_pylist([row], schema=SCHEMA))
        command = [sys.executable, "-c", READ, str(folder), str(groups)]
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}  # as in an audit
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return int(done.stdout)

    few, many = peak(FEW), peak(MANY)
    assert many - few < MOST, f"{few} and {many} KiB"
