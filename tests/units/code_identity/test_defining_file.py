"""The file of a function is found, even if a cache recorded another path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnaudit.code_identity.defining_file import defining_file
from attnaudit.code_identity.source_text import normal_source


def test_code_from_a_cache_with_an_earlier_path_is_read_from_the_present_file(tmp_path: Path) -> None:
    # pytest before version 9.2 takes the code of a copied folder from its cache, with the path of the original.
    original, copied = tmp_path / "original" / "checks.py", tmp_path / "copied" / "checks.py"
    for path, result in ((original, 1), (copied, 2)):
        path.parent.mkdir()
        path.write_text(f"def value(x):\n    return {result}\n", encoding="utf-8")
    variables: dict[str, Any] = {"__file__": str(copied), "__name__": "checks"}
    exec(compile(copied.read_text(encoding="utf-8"), str(original), "exec"), variables)
    assert defining_file(variables["value"].__code__, variables) == str(copied)
    assert normal_source(variables["value"]) == "def value(x):\n    return 2"


@pytest.mark.parametrize("variables", [{}, {"__file__": None}, {"__file__": "/folder/wrapper.py"}])
def test_code_that_belongs_to_another_file_keeps_its_path(variables: dict[str, object]) -> None:
    code = compile("x", "/another/checks.py", "exec")
    assert defining_file(code, variables) == "/another/checks.py"
