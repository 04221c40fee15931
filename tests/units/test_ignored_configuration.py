"""Keys of the audit in a configuration file that pytest ignores."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from attnaudit.plugin.command_line import KEYS
from attnaudit.plugin.displayed_paths import displayed_path
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
    (message,) = _ignored(_config(tmp_path))
    assert message.startswith(f"{name}: pytest ignores audit_policy, because it reads pytest.ini instead.")
    assert _ignored(_config(tmp_path, inifilename="pytest.ini")) == [], "the user has chosen the file"
    (tmp_path / "pytest.ini").write_text("[pytest]\naudit_policy = other.toml\n", encoding="utf-8")
    assert _ignored(_config(tmp_path)) == [], "the file that pytest reads has the key, too"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-q'"),
        ("pyproject.toml", f"[tool.other]\n{KEY}"),
        ("pyproject.toml", "not TOML ["),
        ("setup.cfg", "[flake8]\naudit_policy = strict.toml"),
        ("tox.ini", "no section"),
    ],
)
def test_other_keys_and_files_are_no_error(tmp_path: Any, name: str, content: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert _ignored(_config(tmp_path)) == []
    assert _ignored(_config(tmp_path, inipath=None)) == []


@pytest.mark.parametrize("read", ["project/audits/pytest.ini", "pytest.ini", None])
@pytest.mark.parametrize("ignored", ["pytest.ini", "pyproject.toml"])
def test_a_key_in_another_folder_is_an_error(tmp_path: Any, read: str | None, ignored: str) -> None:
    project = tmp_path / "project"
    (project / "audits").mkdir(parents=True)
    if read is not None:
        (tmp_path / read).write_text("[pytest]\n", encoding="utf-8")
    section = "pytest" if ignored == "pytest.ini" else "tool.pytest"
    (project / ignored).write_text(f"[{section}]\n{KEY}\n", encoding="utf-8")
    inipath = tmp_path / read if read else None
    changes = {"inipath": inipath, "rootpath": inipath.parent if inipath else tmp_path, "args": ["audits/test_a.py::b"]}
    (message,) = _ignored(_config(project, **changes))
    shown = "no configuration file" if inipath is None else f"{displayed_path(inipath, _config(project))} instead"
    assert message.startswith(f"{ignored}: pytest ignores audit_policy, because it reads {shown}.")
    assert f"-c {ignored}" in message
    assert ("--data=FILE" in message) is (read != "project/audits/pytest.ini")
    assert _ignored(_config(project, **changes), everywhere=False) == []
    assert _ignored(_config(project, **changes, inifilename="x.ini")) == [], "the user has chosen the file"
    assert _ignored(_config(project, **changes), keys=["audit_seed"]) == []


def test_files_above_a_repository_do_not_count(tmp_path: Any) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{KEY}\n", encoding="utf-8")
    (message,) = _ignored(_config(project))
    assert message.startswith(f"{tmp_path / 'pytest.ini'}: pytest ignores audit_policy")
    (project / ".git").mkdir()
    assert _ignored(_config(project)) == []


@pytest.mark.parametrize(
    ("name", "section", "right"),
    [
        ("pytest.ini", "tool:pytest", "pytest"),
        ("pytest.ini", "Pytest", "pytest"),
        ("pytest.ini", "attnaudit", "pytest"),
        ("pytest.ini", "DEFAULT", "pytest"),
        ("tox.ini", "tool:pytest", "pytest"),
        ("setup.cfg", "pytest", "tool:pytest"),
        ("pyproject.toml", "tool.pytest.ini-options", "tool.pytest.ini_options"),
        ("pyproject.toml", "pytest.ini_options", "tool.pytest.ini_options"),
        ("pyproject.toml", "tool.attnaudit", "tool.pytest.ini_options"),
        ("pytest.toml", "tool.pytest", "pytest"),
        ("audit.ini", "tool:pytest", "pytest"),
    ],
)
def test_a_key_in_a_section_that_pytest_does_not_read_is_an_error(
    tmp_path: Any, name: str, section: str, right: str
) -> None:
    (tmp_path / name).write_text(f"[{section}]\n{KEY}\n", encoding="utf-8")
    expected = f"{name}: pytest ignores audit_policy in the section [{section}]. Move it to the section [{right}]."
    assert _ignored(_config(tmp_path, inipath=tmp_path / name)) == [expected]
    assert _ignored(_config(tmp_path, inipath=tmp_path / name, inifilename=name)) == [expected]
    if name != "audit.ini":
        assert _ignored(_config(tmp_path, inipath=None)) == [expected]
    with (tmp_path / name).open("a", encoding="utf-8") as file:
        file.write(f"[{right}]\n{KEY}\n")
    assert _ignored(_config(tmp_path, inipath=tmp_path / name)) == [], "pytest also reads the key"


def test_a_key_outside_a_section_is_an_error(tmp_path: Any) -> None:
    (tmp_path / "pyproject.toml").write_text(KEY, encoding="utf-8")
    (message,) = _ignored(_config(tmp_path, inipath=tmp_path / "pyproject.toml"))
    assert message.startswith("pyproject.toml: pytest ignores audit_policy outside a section. Move it to")


def test_an_indented_key_is_an_error(tmp_path: Any) -> None:
    file = tmp_path / "pytest.ini"
    file.write_text("[pytest]\nmarkers =\n    slow: x\n    audit_policy = strict.toml\n", encoding="utf-8")
    assert _ignored(_config(tmp_path)) == [
        "pytest.ini: pytest reads audit_policy as a part of the value of markers, because it is indented. Remove the "
        "spaces before it."
    ]
    file.write_text("[pytest]\naddopts =\n    -o\n    audit_policy=strict.toml\n", encoding="utf-8")
    assert _ignored(_config(tmp_path)) == [], "this is a value of the option -o"


@pytest.mark.parametrize("content", ["[tool:pytest]\naudit_policy = a", "[pytest]\nmarkers = a: b\n audit_policy = a"])
def test_pytest_stops_for_a_misplaced_key(pytester: pytest.Pytester, content: str) -> None:
    pytester.makefile(".ini", pytest=content)
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pytest.ini: pytest * audit_policy *"])


def test_pytest_stops_if_an_audit_ignores_a_file_in_another_folder(pytester: pytest.Pytester) -> None:
    pytester.makefile(".ini", pytest="[pytest]\naudit_policy = strict.toml\n")
    audits = pytester.mkdir("audits")
    (audits / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    test = audits / "test_a.py"
    test.write_text("def test_nothing(): pass\n", encoding="utf-8")
    for options in ((), ("-n1",)):
        assert pytester.runpytest_subprocess("audits", *options).ret == pytest.ExitCode.OK, "nothing is audited"
    test.write_text("def test_nothing(measurements): pass\n", encoding="utf-8")
    result = pytester.runpytest_subprocess("audits")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pytest.ini: pytest ignores audit_policy, because it reads audits/pytest.ini*"])
    result = pytester.runpytest_subprocess("audits", "--policy=other.toml")
    result.stderr.no_fnmatch_line("*pytest ignores*")


def test_pytest_stops_with_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\n{KEY}")
    pytester.makefile(".ini", pytest="[pytest]\n")
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pyproject.toml: pytest ignores audit_policy*"])


def _ignored(config: Any, *, keys: Sequence[str] = KEYS, everywhere: bool = True) -> list[str]:
    return ignored_keys(config, keys, everywhere=everywhere)


def _config(folder: Any, **changes: Any) -> Any:
    """Return what the function reads of pytest's configuration."""
    option = SimpleNamespace(pyargs=False, inifilename=changes.pop("inifilename", None))
    given = {"inipath": folder / "pytest.ini", "option": option, "rootpath": folder, "args": [], **changes}
    return SimpleNamespace(invocation_params=SimpleNamespace(dir=folder), **given)
