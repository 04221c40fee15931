"""Load the image processor or the feature extractor of a checkpoint folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnaudit.adapters.huggingface.checkpoints import checkpoint_files
from attnaudit.errors import ModelError

#: The files in which a checkpoint folder stores either of them.
FILES = ("preprocessor_config.json", "processor_config.json")


def read_image_processor(folder: Path) -> Any:
    """Load the image processor in a folder.

    Raises:
        ModelError: The folder has no image processor, or it cannot be loaded.
    """
    return _read(folder, "AutoImageProcessor", "image processor")


def read_feature_extractor(folder: Path) -> Any:
    """Load the feature extractor in a folder.

    Raises:
        ModelError: The folder has no feature extractor, or it cannot be loaded.
    """
    return _read(folder, "AutoFeatureExtractor", "feature extractor")


def _read(folder: Path, loader: str, name: str) -> Any:
    fix = f"Save it next to the model: {name.replace(' ', '_')}.save_pretrained(folder)."
    if not any((folder / file).is_file() for file in FILES):
        raise ModelError(f"{folder}: no {name} ({FILES[0]}). {fix}")
    try:
        import transformers

        with checkpoint_files.quiet():
            return getattr(transformers, loader).from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:
        raise ModelError(
            f"{folder}: its {name} cannot be loaded ({type(error).__name__}: {checkpoint_files.first_line(error)}). "
            f"{fix}"
        ) from error
