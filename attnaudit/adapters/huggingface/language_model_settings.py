"""`attnaudit.toml` in a checkpoint folder: what cannot be read off a language model. Imports no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnaudit.errors import ModelError, nearest

FILE = "attnaudit.toml"
#: How to write one, for messages.
EXAMPLE = 'template = "{text} It was"\n\n[labels]\npositive = " good"\nnegative = " bad"'


@dataclass(frozen=True, slots=True)
class Settings:
    """labels: class name -> the word that the model writes for it; None for a classifier. template: the text around the
    instance; None: nothing."""

    labels: Mapping[str, str] | None = None
    template: str | None = None


def read(folder: Path) -> Settings:
    """The settings in a folder, empty where there is no file. Raises ModelError that names what cannot be meant."""
    path = Path(folder) / FILE
    if not path.is_file():
        return Settings()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid TOML ({error}). Expected, for example:\n{EXAMPLE}") from error
    for key in found:
        if key not in ("labels", "template"):
            raise ModelError(f"{path}: unknown key '{key}'. {nearest(key, ('labels', 'template'))}")
    labels, template = found.get("labels"), found.get("template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{path}: template is {template!r}, expected a text in quotes such as '{{text}} It was'.")
    if labels is not None and not (
        isinstance(labels, dict) and labels and all(isinstance(word, str) and word for word in labels.values())
    ):
        raise ModelError(f"{path}: labels is {labels!r}, expected a table of class names and words:\n{EXAMPLE}")
    return Settings(labels=labels, template=template)
