"""Each name stands for one object: registering a name again does not replace the first object."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import attnaudit
from attnaudit.errors import AuditError
from attnaudit.registry import Registry, checks, datasets, models


def test_a_shipped_name_is_not_replaced() -> None:
    for registry, name in ((models, "demo"), (datasets, "movie-reviews")):
        with pytest.raises(AuditError, match=f"'{name}' is registered twice, by attnaudit.* and by tests.*Rename one"):

            @registry.register(name)
            def mine() -> None: ...

    assert checks.get("UniformFragility").__module__ == "attnaudit.checks.builtin.uniform_fragility"


def test_a_name_is_registered_only_once() -> None:
    own: Registry[object] = Registry("thing", "attnaudit.no_such_group")
    own.register("one")(test_a_shipped_name_is_not_replaced)
    own.register("one")(test_a_shipped_name_is_not_replaced)
    with pytest.raises(AuditError, match="thing 'one' is registered twice"):
        own.register("one")(test_a_name_is_registered_only_once)


def conftest(folder: Path, kind: str) -> ModuleType:
    """Import a conftest.py that defines `one`. pytest gives all of them the same module name."""
    folder.mkdir()
    path = folder / "conftest.py"
    path.write_text(f"{kind} one{'()' if kind == 'def' else ''}:\n    def run(self): pass\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["def", "class"])
def test_two_conftest_files_do_not_register_the_same_name(tmp_path: Path, kind: str) -> None:
    own: Registry[object] = Registry("thing", "attnaudit.no_such_group")
    first, second = conftest(tmp_path / "root", kind), conftest(tmp_path / "audits", kind)
    own.register("one")(first.one)
    own.register("one")(first.one)
    with pytest.raises(AuditError, match=r"thing 'one' is registered twice, in .*root.* and in .*audits.*Rename one"):
        own.register("one")(second.one)
    own.forget_files()  # as for the conftest.py of another project
    own.register("one")(second.one)


@pytest.mark.parametrize("decorator", ["@attnaudit.register_dataset('own-rows')", "@attnaudit.checks.check(**TEXTS)"])
def test_one_file_does_not_register_the_same_name_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decorator: str
) -> None:
    """Even if the functions have the same name, so that the second one would replace the first one in Python, too."""
    path, function = tmp_path / "own_rows.py", f"{decorator}\ndef own_rows(*arguments): ...\n"
    head = "import attnaudit\nTEXTS = {'title': 'Own', 'question': 'Own?', 'low': 0, 'high': 1}\n"
    path.write_text(head + function, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for registry in (datasets, checks):
        monkeypatch.setattr(registry, "_known", dict(registry._known))
    module = importlib.import_module("own_rows")
    importlib.reload(module)  # registers the same name again
    path.write_text(f"{head}\n{function}\n{function}", encoding="utf-8")
    importlib.invalidate_caches()
    with pytest.raises(AuditError, match=r"'own.rows' is registered twice, in lines 4 and 7 of .*own_rows\.py"):
        importlib.reload(module)
    monkeypatch.delitem(sys.modules, "own_rows")


@pytest.mark.parametrize("name", ["register_model", "register_dataset"])
def test_a_decorator_needs_parentheses(name: str) -> None:
    with pytest.raises(AuditError, match=rf'expected text\. Write @attnaudit\.{name}\("name"\)\.'):

        @getattr(attnaudit, name)
        def mine() -> None: ...

    with pytest.raises(AuditError, match=r"thing name: found 1; expected text\.$"):
        Registry("thing", "attnaudit.no_such_group").register(1)  # type: ignore[arg-type]
