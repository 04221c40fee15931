"""Read `attnaudit.toml`, the file with the target of a model and the labels and the template of a language model.

This module does not import torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnaudit.errors import ModelError, nearest
from attnaudit.targets import FILE, Target, targets_of

#: The lines of an example file. Error messages show them.
EXAMPLE = ('template = "{text} It was"', "", "[labels]", 'positive = " good"', 'negative = " bad"')
_KEYS = ("labels", "template", "query_first", "target", "precision")
_PRECISIONS = ("shipped", "float32")


@dataclass(frozen=True, slots=True)
class Settings:
    """The contents of an `attnaudit.toml`.

    Attributes:
        labels: Class name -> word that stands for the class; None if the file has no labels.
        template: The prompt, in which {text} stands for the text; None if the file has no template.
        query_first: Whether the model reads the query before the text; None if the file does not say so.
        targets: What is explained: one target, or one for each label; empty if the file has no target.
        precision: How a model in half precision is audited, "shipped" or "float32"; None if the file does not say so.
    """

    labels: Mapping[str, str] | None = None
    template: str | None = None
    query_first: bool | None = None
    targets: tuple[Target, ...] = ()
    precision: Literal["shipped", "float32"] | None = None

    def target(self, label: str, where: object) -> Target | None:
        """Return the target of a model; None if the file has no target.

        Args:
            label: The label to explain; "" if the caller names none.
            where: The file, for messages.

        Raises:
            ModelError: The file does not name this label, or the file names several labels and `label` is "".
        """
        named = {one.name: one for one in self.targets if one.kind == "label"}
        if label:
            return named.get(label) or Target(kind="label", name=label)
        if len(self.targets) > 1:
            raise ModelError(
                f"{where}: [target] names several labels, but an audit explains only one. Choose one, as in "
                f"FOLDER[{next(iter(named))}] or transformer(FOLDER, target=Target(kind='label', "
                f"name={next(iter(named))!r}))."
            )
        return self.targets[0] if self.targets else None


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
        raise ModelError(
            f"{path}: the file is not valid TOML ({error}). Expected, for example:", lines=EXAMPLE
        ) from error
    for key in contents:
        if key not in _KEYS:
            raise ModelError(f"{path}: unknown key '{key}'. {nearest(key, _KEYS)}")
    labels, template = contents.get("labels"), contents.get("template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{path}: template is {template!r}; expected a quoted text such as '{{text}} It was'.")
    if labels is not None and not (
        isinstance(labels, dict) and labels and all(isinstance(word, str) and word for word in labels.values())
    ):
        raise ModelError(f"{path}: labels is {labels!r}; expected a table of class names and words:", lines=EXAMPLE)
    query_first = contents.get("query_first")
    if query_first is not None and not isinstance(query_first, bool):
        raise ModelError(f"{path}: query_first is {query_first!r}; expected true or false.")
    targets = targets_of(contents["target"], path) if "target" in contents else ()
    precision = contents.get("precision")
    if precision is not None and precision not in _PRECISIONS:
        raise ModelError(f"{path}: precision is {precision!r}; expected 'shipped' or 'float32'.")
    return Settings(labels=labels, template=template, query_first=query_first, targets=targets, precision=precision)
