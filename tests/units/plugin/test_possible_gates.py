"""Which files may declare gates: test files that mention audits or import what does, and others that use @audit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnaudit.plugin.possible_gates import PossibleGates, declares_gates, is_of_project, project_folders

GATES = "from attnaudit import audit\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"audits/test_a.py": "@audit(check)\n"}, True),
        ({"audits/test_a.py": "import attnaudit\n"}, False),
        ({"audits/test_a.py": "from gatelib import strict\n", "gatelib.py": GATES}, True),
        ({"audits/test_a.py": "import gatelib.strict as gates\n", "gatelib/strict.py": GATES}, True),
        ({"audits/test_a.py": "from gatelib import strict\n", "gatelib/strict.py": GATES}, True),
        ({"audits/test_a.py": "from gatelib import strict\n", "gatelib/__init__.py": GATES}, True),
        ({"audits/test_a.py": "from .base import Base\n", "audits/base.py": GATES}, True),
        ({"audits/test_a.py": "from . import base\n", "audits/base.py": GATES}, True),
        ({"audits/deep/test_a.py": "from ..base import Base\n", "audits/base.py": GATES}, True),
        ({"audits/test_a.py": "import one\n", "one.py": "import two\n", "two.py": "import one\n" + GATES}, True),
        ({"audits/test_a.py": "import one\n", "one.py": "import two\n", "two.py": "import one\n"}, False),
        ({"audits/test_a.py": "import models\n", "models.py": "from attnaudit import register_model\n"}, False),
        ({"audits/test_a.py": "import log\n", "log.py": "AUDIT_TRAIL = 'audit.log'\n"}, False),
        ({"audits/test_a.py": "import json, torch\nfrom pytest import fixture\n"}, False),
        ({"audits/test_a.py": "print 'no Python 3'\n"}, False),
    ],
)
def test_modules_that_make_gates_are_found(tmp_path: Path, files: dict[str, str], found: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert PossibleGates(tmp_path).may_be_in(tmp_path / next(iter(files))) is found


def test_a_module_outside_the_project_is_found_in_the_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, installed = tmp_path / "project", tmp_path / "installed"
    for folder in (project, installed):
        folder.mkdir()
    (project / "test_a.py").write_text("from company_gates.strict import strict\n", encoding="utf-8")
    (installed / "company_gates").mkdir()
    (installed / "company_gates" / "strict.py").write_text(GATES, encoding="utf-8")
    assert not PossibleGates(project).may_be_in(project / "test_a.py")
    monkeypatch.syspath_prepend(installed)
    assert PossibleGates(project).may_be_in(project / "test_a.py")


def test_a_file_that_cannot_be_read_may_declare_gates(tmp_path: Path) -> None:
    assert PossibleGates(tmp_path).may_be_in(tmp_path / "absent.py")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("project/ci/helper.py", True),
        ("project/helper.py", True),
        ("shared/helper.py", True),
        ("helper.py", False),
        ("project/venv/site-packages/helper.py", False),
        ("shared/site-packages/helper.py", False),
    ],
)
def test_modules_of_the_project_may_be_outside_the_rootdir(tmp_path: Path, module: str, expected: bool) -> None:
    project, shared = tmp_path / "project", tmp_path / "shared"
    for folder in (project / "ci", shared / "deep"):
        folder.mkdir(parents=True)
    (project / "audits").symlink_to(shared)
    config: Any = SimpleNamespace(rootpath=project / "ci", invocation_params=SimpleNamespace(dir=project))
    folders = project_folders(config, [project / "audits" / "deep" / "test_a.py"])
    assert is_of_project((tmp_path / module).resolve(), folders) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from attnaudit import audit\n\n@audit(CHECK)\ndef test_a(check): ...\n", True),
        ("from attnaudit import audit as gates\n\n@gates(CHECK)\nasync def test_a(check): ...\n", True),
        ("import attnaudit\n\nif True:\n  class TestA:\n    @attnaudit.audit(CHECK)\n    def a(s, check): ...\n", True),
        ("from attnaudit import audit\n\ndef made(check):\n  @audit(check)\n  def test_a(check): ...\n", False),
        ("from attnaudit import audit\n\nTEXT = '@audit(CHECK)'\n", False),
        ("from company import audit\n\n@audit(CHECK)\ndef log(): ...\n", False),
        ("from attnaudit import audit\n\n@audit(CHECK)\nprint 'no Python 3'\n", False),
    ],
    ids=["function", "another name", "method", "made", "text", "another package", "no Python 3"],
)
def test_functions_that_are_decorated_with_audit_are_found(tmp_path: Path, code: str, expected: bool) -> None:
    path = tmp_path / "attention.py"
    path.write_text(code, encoding="utf-8")
    assert declares_gates(path) is expected
    assert not declares_gates(tmp_path / "absent.py")
