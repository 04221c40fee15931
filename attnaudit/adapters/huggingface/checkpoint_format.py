"""Checkpoint folders of Transformers models, as a format that `--model` knows. Imports no torch, no Transformers."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.errors import ModelError

if TYPE_CHECKING:
    from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter

INSTALL = "pip install 'attnaudit[transformers]'"
OLDEST = 5


def recognises(folder: Path) -> bool:
    """True for a folder whose config.json names a model_type (or cannot be read, which `load` says), or with a PEFT
    adapter."""
    config = Path(folder) / "config.json"
    if (Path(folder) / "adapter_config.json").is_file():
        return True
    if not config.is_file():
        return False
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True
    return isinstance(found, dict) and bool({"model_type", "architectures", "auto_map"} & set(found))


def load(folder: Path) -> HuggingFaceAdapter:
    """The model in `folder` as an adapter, in float32 and evaluation mode on the CPU, with the settings of its
    attnaudit.toml. Raises ModelError naming the file, what is wrong with it and the mend."""
    require("a Transformers model")
    from attnaudit.adapters.huggingface import language_model_settings
    from attnaudit.adapters.huggingface.build import from_folder

    said = language_model_settings.read(Path(folder))
    return from_folder(Path(folder), labels=said.labels, template=said.template)


def require(what: str) -> None:
    """Raises ModelError that names the extra, where Transformers is missing or too old. what: needs it."""
    try:
        found = version("transformers")
    except PackageNotFoundError:
        raise ModelError(f"{what} needs Transformers, which is not installed. Install it: {INSTALL}") from None
    if int(found.partition(".")[0]) < OLDEST:
        raise ModelError(f"{what} needs Transformers {OLDEST} or newer; {found} is installed. Upgrade it: {INSTALL}")
