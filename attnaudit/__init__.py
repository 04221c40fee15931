"""attnaudit tests whether attention explains the predictions of a model, with checks that pytest runs.

`audit` declares the checks of a test function, and `checks` contains all checks. `register_model` and
`register_dataset` make models and data sets available by name to --model and --data. Importing the package imports
neither torch nor the checks. Each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "audit", "checks", "register_dataset", "register_model"]

if TYPE_CHECKING:
    from attnaudit import checks
    from attnaudit.checks import audit
    from attnaudit.registry import models, register_dataset

    register_model = models.register


def __getattr__(name: str) -> Any:
    if name == "checks":
        return importlib.import_module("attnaudit.checks")
    if name == "audit":
        return importlib.import_module("attnaudit.checks").audit
    if name == "register_model":
        return importlib.import_module("attnaudit.registry").models.register
    if name == "register_dataset":
        return importlib.import_module("attnaudit.registry").register_dataset
    raise AttributeError(f"module 'attnaudit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
