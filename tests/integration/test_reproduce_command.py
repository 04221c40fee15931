"""`attnaudit reproduce` on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from attnaudit import cli
from attnaudit.research.reproduction.papers import PAPERS
from attnaudit.research.reproduction.render_reports import read_reports

ROOT = Path(__file__).parents[2]


def reproduce(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    command = [sys.executable, "-m", "attnaudit", "reproduce", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def test_rows_that_cannot_be_measured_are_named_and_the_command_fails(tmp_path: Path) -> None:
    one_class = [
        {"text": " ".join(["good"] * length), "label": 1, "split": part}
        for part in ("train", "dev", "test")
        for length in range(6, 12)
    ]
    (tmp_path / "sst").mkdir()
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(one_class), tmp_path / "sst" / "sst_binary_jain_wallace.parquet"
    )
    only = ("--only", "sst/average/additive", "--table", "agreement", "--data-root", ".", "--jobs", "1")
    done = reproduce("jain-wallace", "--quick", *only, folder=tmp_path)
    assert done.returncode == 1
    assert "1 row could not be measured:\n  sst/average/additive (agreement): " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_one_row_of_jain_wallace_on_the_embedded_data(tmp_path: Path) -> None:
    only = ("--only", "*/average/additive", "--jobs", "1")
    done = reproduce("jain-wallace", "--quick", *only, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "QUICK: not a reproduction" in done.stdout
    papers = tmp_path / "reproduction" / "quick" / "papers"
    assert f"{(papers / 'pages' / 'jain-wallace.html').relative_to(tmp_path)}" in done.stdout
    assert (papers / "jain-wallace-embedded-quick.jsonl").is_file()
    report = read_reports(papers)["jain-wallace-embedded-quick"]
    assert report.quick
    for table in report.tables:
        row = next(one for one in table.rows if one.name == "movie-reviews/average/additive")
        assert row.notes == ()
        assert all(line.paper is None for line in row.lines)
        assert all(line.ours is not None for line in row.lines), table.name
        assert {figure.row for figure in table.figures if figure.row} == {row.name}  # strip plots show all rows: ""
    again = reproduce("jain-wallace", "--quick", *only, folder=tmp_path)
    assert again.stdout == done.stdout  # nothing is trained or measured again
    pages = {path.relative_to(papers): path.read_text(encoding="utf-8") for path in papers.rglob("*.[mh]*")}
    assert len(pages) == 4
    for name in pages:
        (papers / name).unlink()
    for options in (("--quick",), ("--quick", "--out", "reproduction"), ("--out", "reproduction/quick")):
        rendered = reproduce("--render", *options, folder=tmp_path)
        assert rendered.returncode == 0, rendered.stderr
        found = {path.relative_to(papers): path.read_text(encoding="utf-8") for path in papers.rglob("*.[mh]*")}
        assert found == pages


def test_render_rebuilds_the_committed_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    committed = ROOT / "reports" / "papers"
    papers = tmp_path / "reports" / "papers"
    papers.mkdir(parents=True)
    for path in (*committed.glob("*.jsonl"), committed / "seeds.toml"):
        (papers / path.name).write_bytes(path.read_bytes())
    assert cli.main(["reproduce", "wen", "--render"]) == 0
    assert {path.stem for path in papers.rglob("*.html")} == {"wen", "index"}
    capsys.readouterr()
    assert cli.main(["reproduce", "--render"]) == 0
    printed = capsys.readouterr().out
    stems = {path.stem for path in papers.glob("*.jsonl")}
    pages = {f"pages/{name}.html" for name in (*PAPERS, "index")}
    assert {path.relative_to(papers).as_posix() for path in papers.rglob("*.html")} == pages
    for name in (*(f"{stem}.md" for stem in stems), *pages, "claims.md", "remedies.json"):
        assert (papers / name).read_text(encoding="utf-8") == (committed / name).read_text(encoding="utf-8")
        assert f"reports/papers/{name}" in printed


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("jain-walace",), "Did you mean 'jain-wallace'?"),
        (("jain-wallace", "--data-root", "nowhere"), "--data-root nowhere: there is no such folder"),
        (("jain-wallace", "--data-root", "."), "sst/sst_binary_jain_wallace.parquet: there is no such file"),
        (("jain-wallace", "--table", "agrement"), "Did you mean 'agreement'?"),
        (("jain-wallace", "--vectors", "none.txt"), "none.txt: the word vectors cannot be read"),
        (("jain-wallace", "--seeds", "0"), "--seeds 0: expected a whole number of at least 1."),
        ((), "PAPER is missing. Expected one of: jain-wallace, "),
        (("--render",), "--render: there are no results (*.jsonl) in reproduction/papers or reports/papers."),
        (("wen", "--render", "--out", "."), "--render: there are no results (wen*.jsonl) in papers."),
        (("wne", "--render"), "Unknown paper 'wne'. Did you mean 'wen'?"),
        (
            ("--render", "--quick"),
            "there are no results (*.jsonl) in reproduction/quick/papers or reports/quick/papers.",
        ),
        (("wen", "--render", "--only", "x"), "--only: --render measures nothing, so it cannot be used with --only."),
        (("--render", "--data-root", "."), "--data-root: --render measures nothing, so it cannot be used with"),
        (("wen", "--jobs", "0"), "--jobs 0: expected a whole number of at least 1."),
        (("wen", "--only", "nothing/*"), "--only nothing/*: no row matches."),
    ],
)
def test_invalid_options_are_named(
    arguments: tuple[str, ...],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["reproduce", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_render_rebuilds_the_pages_of_quick_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    papers = tmp_path / "reproduction" / "quick" / "papers"
    papers.mkdir(parents=True)
    header, *lines = (ROOT / "reports" / "papers" / "wen.jsonl").read_text(encoding="utf-8").splitlines()
    quick = header.replace('"quick":false', '"quick":true').replace('"quick": false', '"quick": true')
    assert quick != header
    (papers / "wen-quick.jsonl").write_text("\n".join([quick, *lines, ""]), encoding="utf-8")
    assert cli.main(["reproduce", "--render"]) == 2
    assert "There are results of a quick run: add --quick to rebuild their pages." in capsys.readouterr().err
    assert cli.main(["reproduce", "wen", "--render", "--quick"]) == 0
    assert (papers / "wen-quick.md").is_file()
    assert "reproduction/quick/papers/pages/wen.html" in capsys.readouterr().out


@pytest.mark.slow
def test_the_whole_quick_run_on_the_embedded_data(tmp_path: Path) -> None:
    done = reproduce("jain-wallace", "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
