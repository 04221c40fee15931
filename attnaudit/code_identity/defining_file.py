"""Find the file that contains the code of a function, even if a cache recorded another path."""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def defining_file(code: types.CodeType, variables: Mapping[str, Any]) -> str:
    """Return the path of the file that contains a code object.

    Python and pytest may read code from a cache that was written when the folder had another path, and
    `code.co_filename` is then that path (pytest before version 9.2). The global variable `__file__` of the module has
    the present path. It is returned if both paths end in the same name.

    Args:
        code: The code object.
        variables: The global variables of the module in which it runs.
    """
    present = variables.get("__file__")
    if isinstance(present, str) and Path(present).name == Path(code.co_filename).name:
        return present
    return code.co_filename
