"""One name, one thing: registering does not replace what is there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from attnaudit.errors import AuditError
from attnaudit.registry import Registry, checks, datasets, models


def test_a_shipped_name_is_not_replaced() -> None:
    for registry, name in ((models, "demo"), (datasets, "movie-reviews")):
        with pytest.raises(AuditError, match=f"'{name}' is registered twice, by attnaudit.* and by tests.*rename"):

            @registry.register(name)
            def mine() -> None: ...

    assert checks.get("UniformFragility").__module__ == "attnaudit.checks.uniform"


def test_a_name_is_registered_once() -> None:
    own: Registry[object] = Registry("thing", "attnaudit.no_such_group")
    own.register("one")(test_a_shipped_name_is_not_replaced)
    own.register("one")(test_a_shipped_name_is_not_replaced)
    with pytest.raises(AuditError, match="thing 'one' is registered twice"):
        own.register("one")(test_a_name_is_registered_once)


MINE = """
from attnaudit.registry import models

@models.register("mine")
def mine(): ...
"""


def test_two_files_of_one_module_name_are_two_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_known", {})
    monkeypatch.setattr(models, "_origin", {})
    files = [tmp_path / folder / "conftest.py" for folder in ("one", "two")]

    def read(file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(MINE)
        spec = importlib.util.spec_from_file_location("conftest", file)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))

    read(files[0])
    read(files[0])
    with pytest.raises(AuditError, match=rf"model 'mine' is registered twice, in {files[0]} and in {files[1]}: rename"):
        read(files[1])


def test_a_cell_of_a_notebook_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own: Registry[object] = Registry("thing", "attnaudit.no_such_group")
    for cell in ("<ipython-input-1>", "<ipython-input-2>"):
        names: dict[str, object] = {"__name__": "__main__", "models": own}
        exec(compile(MINE.replace("from attnaudit.registry import models", ""), cell, "exec"), names)
        assert own.get("mine") is names["mine"]
