"""Read `attnaudit.toml`, the file with the labels and the template of a language model.

This module does not import torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnaudit.errors import ModelError, nearest

FILE = "attnaudit.toml"
#: The lines of an example file. Error messages show them.
EXAMPLE = ('template = "{text} It was"', "", "[labels]", 'positive = " good"', 'negative = " bad"')


@dataclass(frozen=True, slots=True)
class Settings:
    """The contents of an `attnaudit.toml`.

    Attributes:
        labels: Class name -> word that stands for the class; None if the file has no labels.
        template: The prompt, in which {text} stands for the text; None if the file has no template.
    """

    labels: Mapping[str, str] | None = None
    template: str | None = None


def read_settings(folder: Path) -> Settings:
    """Read `attnaudit.toml` in a checkpoint folder. If there is no such file, return empty settings.

    Raises:
        ModelError: The file is not valid TOML, or a key or value in it is invalid.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        return Settings()
    try:
        contents = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}). Make the file readable.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid TOML ({error}). Expected, for example:", lines=EXAMPLE) from error
    for key in contents:
        if key not in ("labels", "template"):
            raise ModelError(f"{path}: unknown key '{key}'. {nearest(key, ('labels', 'template'))}")
    labels, template = contents.get("labels"), contents.get("template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{path}: template is {template!r}; expected a quoted text such as '{{text}} It was'.")
    if labels is not None and not (
        isinstance(labels, dict) and labels and all(isinstance(word, str) and word for word in labels.values())
    ):
        raise ModelError(f"{path}: labels is {labels!r}; expected a table of class names and words:", lines=EXAMPLE)
    return Settings(labels=labels, template=template)
