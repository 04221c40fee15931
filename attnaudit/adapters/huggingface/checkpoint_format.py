"""Checkpoint folders of Transformers models as a format that `--model` accepts. Imports neither torch nor Transformers.

The entry point `attnaudit.checkpoints` names this module, and calls its functions `recognises` and `load`.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.errors import ModelError

if TYPE_CHECKING:
    from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter

INSTALL = "pip install 'attnaudit[transformers]'"
#: Oldest major version of Transformers that is supported.
OLDEST = 5


def recognises(folder: Path) -> bool:
    """Tell whether a folder contains a Transformers model or a PEFT adapter.

    A folder whose config.json cannot be read is recognised too, so that `load` can report the problem.
    """
    config = Path(folder) / "config.json"
    if (Path(folder) / "adapter_config.json").is_file():
        return True
    if not config.is_file():
        return False
    try:
        contents = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(contents, dict) and bool({"model_type", "architectures", "auto_map"} & set(contents))


def load(folder: Path) -> HuggingFaceAdapter:
    """Load the model in a folder, with the settings of its attnaudit.toml.

    Returns:
        An adapter of the model in float32 and evaluation mode, on the CPU.

    Raises:
        ModelError: The model cannot be loaded or audited; the message names the file, the problem and the fix.
    """
    require_transformers("a Transformers model")
    from attnaudit.adapters.huggingface.build import from_folder
    from attnaudit.adapters.huggingface.language_model_settings import read_settings

    settings = read_settings(Path(folder))
    return from_folder(Path(folder), labels=settings.labels, template=settings.template)


def require_transformers(what: str) -> None:
    """Raise ModelError if Transformers is missing or too old. The message gives the command that installs it.

    Args:
        what: What needs Transformers, as the subject of the message.
    """
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        raise ModelError(f"{what} needs Transformers, which is not installed. Install it: {INSTALL}") from None
    if int(installed.partition(".")[0]) < OLDEST:
        raise ModelError(
            f"{what} needs Transformers {OLDEST} or newer; {installed} is installed. Upgrade it: {INSTALL}"
        )
