"""Keys of the audit in a configuration file that pytest ignores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attnaudit.plugin.command_line import KEYS
from attnaudit.plugin.ignored_configuration import ignored_keys

KEY = 'audit_policy = "strict.toml"'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", f"[tool.pytest.ini_options]\n{KEY}"),
        ("pyproject.toml", f"[tool.pytest]\n{KEY}"),
        ("tox.ini", "[pytest]\naudit_policy = 100%.toml"),
        ("setup.cfg", "[tool:pytest]\naudit_policy: strict.toml"),
        (".pytest.toml", f"[pytest]\n{KEY}"),
    ],
)
def test_a_key_in_a_file_that_pytest_ignores_is_an_error(tmp_path: Any, name: str, content: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n", encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    (message,) = ignored_keys(_config(tmp_path), KEYS)
    assert message.startswith(f"{name}: pytest ignores audit_policy, because it reads pytest.ini instead.")
    assert ignored_keys(_config(tmp_path, inifilename="pytest.ini"), KEYS) == [], "the user has chosen the file"
    (tmp_path / "pytest.ini").write_text("[pytest]\naudit_policy = other.toml\n", encoding="utf-8")
    assert ignored_keys(_config(tmp_path), KEYS) == [], "the file that pytest reads has the key, too"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-q'"),
        ("pyproject.toml", f"[tool.other]\n{KEY}"),
        ("pyproject.toml", "not TOML ["),
        ("setup.cfg", "[pytest]\naudit_policy = strict.toml"),
        ("tox.ini", "no section"),
    ],
)
def test_other_keys_and_files_are_no_error(tmp_path: Any, name: str, content: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert ignored_keys(_config(tmp_path), KEYS) == []
    assert ignored_keys(_config(tmp_path, inipath=None), KEYS) == []


def test_pytest_stops_with_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\n{KEY}")
    pytester.makefile(".ini", pytest="[pytest]\n")
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pyproject.toml: pytest ignores audit_policy*"])


def _config(folder: Any, **changes: Any) -> Any:
    """Return what the function reads of pytest's configuration."""
    option = SimpleNamespace(inifilename=changes.pop("inifilename", None))
    given = {"inipath": folder / "pytest.ini", "option": option, "rootpath": folder, **changes}
    return SimpleNamespace(invocation_params=SimpleNamespace(dir=folder), **given)
