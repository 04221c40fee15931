"""`attnaudit reproduce` as it is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from attnaudit.research.reproduction.reproduction_records import Reproduction

ROOT = Path(__file__).parents[2]


def reproduce(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    command = [sys.executable, "-m", "attnaudit.cli", "reproduce", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def test_one_row_of_jain_wallace_on_the_embedded_data(tmp_path: Path) -> None:
    only = ("--only", "*/average/additive", "--jobs", "1")
    done = reproduce("jain-wallace", "--quick", *only, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "QUICK: not a reproduction" in done.stdout
    papers = tmp_path / "reproduction" / "quick" / "papers"
    assert f"{(papers / 'jain-wallace-embedded-quick.html').relative_to(tmp_path)}" in done.stdout
    found = msgspec.json.decode((papers / "jain-wallace-embedded-quick.json").read_bytes(), type=Reproduction)
    assert found.quick
    for table in found.tables:
        row = next(one for one in table.rows if one.name == "movie-reviews/average/additive")
        assert row.notes == ()
        assert all(line.paper is None for line in row.lines)
        assert all(line.ours is not None for line in row.lines), table.name
        assert {figure.row for figure in table.figures} == {row.name}
    again = reproduce("jain-wallace", "--quick", *only, folder=tmp_path)
    assert again.stdout == done.stdout  # nothing is trained or measured again


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("jain-walace",), "Did you mean 'jain-wallace'?"),
        (("jain-wallace", "--data-root", "nowhere"), "--data-root nowhere: there is no such folder"),
        (("jain-wallace", "--data-root", "."), "sst/sst_binary_jain_wallace.parquet: not found"),
        (("jain-wallace", "--table", "agrement"), "Did you mean 'agreement'?"),
        (("jain-wallace", "--vectors", "none.txt"), "none.txt: the word vectors cannot be read"),
        (("jain-wallace", "--seeds", "0"), "--seeds 0: expected a whole number of at least 1."),
    ],
)
def test_what_cannot_be_is_told(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    done = reproduce(*arguments, folder=tmp_path)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_whole_quick_run_on_the_embedded_data(tmp_path: Path) -> None:
    done = reproduce("jain-wallace", "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
