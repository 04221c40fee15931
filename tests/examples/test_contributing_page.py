"""docs/contributing.md: the example of a new check, as a file of its own with its own test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.forking_interpreter import run_module

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
#: Makes a folder part of the package, as if its files were in attnaudit/checks/builtin/.
CONFTEST = """
from pathlib import Path
import attnaudit.checks.builtin
attnaudit.checks.builtin.__path__.append(str(Path(__file__).parent / "checks"))
"""


def examples() -> dict[str, str]:
    return dict(re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def test_the_example_of_a_check_works_with_no_other_edit(tmp_path: Path) -> None:
    (check_path, check), (test_path, test) = examples().items()
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / Path(check_path).name).write_text(check, encoding="utf-8")
    (tmp_path / Path(test_path).name).write_text(test, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    done = run_module("pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_page_lists_every_folder_of_the_package() -> None:
    folders = {path.name for path in (ROOT / "attnaudit").iterdir() if (path / "__init__.py").is_file()}
    listing = re.search(r"```\nattnaudit/\n(.*?)```", PAGE, re.DOTALL)
    assert listing is not None
    assert folders <= set(re.findall(r"\b(\w+)/", listing[1]))
