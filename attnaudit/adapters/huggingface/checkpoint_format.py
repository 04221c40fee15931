"""The checkpoint format of Transformers models, for `--model`.

The package registers this module under the entry point group `attnaudit.checkpoints`. To load a folder, attnaudit calls
`recognises` and `load`. Importing this module imports neither torch nor Transformers.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from attnaudit.errors import ModelError
from attnaudit.targets import FILE

if TYPE_CHECKING:
    from attnaudit.adapters.huggingface.transformer_adapter import HuggingFaceAdapter

INSTALL = "pip install 'attnaudit[transformers]'"
#: Oldest major version of Transformers that is supported.
OLDEST = 5


def recognises(folder: Path) -> bool:
    """Return whether a folder contains a Transformers model or a PEFT adapter.

    The result is also True if config.json exists but cannot be read, so that `load` can report the problem.
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


def load(folder: Path, label: str = "") -> HuggingFaceAdapter:
    """Load the model in a folder, with the settings of its attnaudit.toml.

    Args:
        folder: The folder.
        label: The label to explain, for a model that assigns any number of labels to a text. If it is "", the target in
            attnaudit.toml is explained.

    Returns:
        An adapter for the model. The model is in evaluation mode, on the CPU.

    Raises:
        ModelError: The model cannot be loaded. The message names the file, the problem and the fix.
        AdapterError: The architecture cannot be audited.
    """
    require_transformers("a Transformers model")
    from attnaudit.adapters.huggingface.build import from_folder
    from attnaudit.adapters.huggingface.checkpoints.language_model_settings import read_settings

    settings = read_settings(Path(folder))
    return from_folder(
        Path(folder),
        labels=settings.labels,
        template=settings.template,
        target=settings.target(label, Path(folder) / FILE),
        query_first=settings.query_first,
        precision=settings.precision,
    )


def require_transformers(what: str) -> None:
    """Check that a supported version of Transformers is installed.

    Args:
        what: The thing that needs Transformers. It is the subject of the error message.

    Raises:
        ModelError: Transformers is missing or too old. The message gives the command that installs it.
    """
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        raise ModelError(f"{what} needs Transformers, which is not installed. Install it: {INSTALL}") from None
    if int(installed.partition(".")[0]) < OLDEST:
        raise ModelError(
            f"{what} needs Transformers {OLDEST} or newer; {installed} is installed. Upgrade it: {INSTALL}"
        )
