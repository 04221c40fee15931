"""Targets: which output of a model an audit explains. Importing this module does not import torch.

An audit works with the logits of classes. A model with another output is audited on one target, which determines
the logits. A target other than a class or a tag has a single logit, whose sigmoid is the probability of the target.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from attnaudit.errors import ModelError, nearest

Kind = Literal["class", "label", "score", "tag", "span", "string"]

KINDS: tuple[Kind, ...] = get_args(Kind)
#: The documentation of targets, for messages.
PAGE = "docs/targets.md"
#: Kind -> the words that the family of a model ends in (see `attnaudit.model_families`).
FAMILIES: Mapping[Kind, str] = {
    "class": "",
    "label": "multi-label",
    "score": "score",
    "tag": "tag",
    "span": "span",
    "string": "string",
}
#: The file in a checkpoint folder with the target.
FILE = "attnaudit.toml"
_WITH_LABEL = re.compile(r"(.+)\[([^\[\]]+)\]")
#: The word that the family of a model ends in if the model answers from passages, whatever its target is.
SOURCES = "sources"
#: The word that takes its place if the units of the audit are the tokens or the words of the passages.
PASSAGES = "passages"
#: The word that the family of a model ends in if the model reads pictures.
PICTURES = "pictures"
#: The words that take its place if an erased patch is not replaced by the typical patch of its picture.
OTHERWISE_ERASED = "pictures with another erasure"
#: The word that the family of a model ends in if the model reads recordings of sound.
RECORDINGS = "recordings"
#: Kind -> the settings that it takes.
_SETTINGS: Mapping[Kind, tuple[str, ...]] = {
    "class": (),
    "label": ("name",),
    "score": ("name", "threshold", "scale"),
    "tag": ("outside",),
    "span": (),
    "string": ("name",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which output of a model an audit explains.

    Attributes:
        kind: "class": the classes of a model that assigns one of them to a text. "label": one label of a model that
            assigns any number of labels to a text. "score": a score, such as that of a regression or of a reranker.
            "tag": the tag of one word. "span": a span of the text that answers a question. "string": the
            probability of a string under a language model.
        name: For a label: its name. For a score: its name, if the model has several scores. For a string: the string,
            if it is the same for every row. "" otherwise.
        threshold: For a score: the smallest score that counts as a positive decision. Without a threshold, a score
            is not a decision.
        scale: For a score: the difference in scores that counts as one logit; 1 by default.
        outside: For a tag: the name of the tag of words that belong to no entity. If a row has no position, the word
            with the most probable other tag is explained.

    Raises:
        ModelError: A setting is invalid or does not fit the kind.

    Examples:
        >>> Target(kind="label", name="toxic").classes
        ('not toxic', 'toxic')
    """

    kind: Kind = "class"
    name: str = ""
    threshold: float | None = None
    scale: float | None = None
    outside: str = "O"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ModelError(f"target: unknown kind {self.kind!r}. {nearest(str(self.kind), KINDS)} See {PAGE}.")
        for setting in ("name", "outside"):
            if not isinstance(getattr(self, setting), str):
                raise ModelError(f"target: {setting} is {getattr(self, setting)!r}; expected a text.")
        for field in fields(self):
            if field.name in ("kind", *_SETTINGS[self.kind]) or getattr(self, field.name) == field.default:
                continue
            takes = ", ".join(_SETTINGS[self.kind]) or "no settings"
            raise ModelError(
                f"target: {field.name} does not apply to a target of kind '{self.kind}', which takes {takes}. Remove "
                f"{field.name}. See {PAGE}."
            )
        for setting in ("threshold", "scale"):
            value = getattr(self, setting)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ModelError(f"target: {setting} is {value!r}; expected a number.")
            if value is not None and not math.isfinite(value):
                raise ModelError(f"target: {setting} is {value}; expected a finite number.")
        if self.scale is not None and self.scale <= 0:
            raise ModelError(f"target: scale is {self.scale:g}; expected a positive number.")
        if self.kind == "score" and self.scale is None and self.threshold is None:
            raise ModelError(
                "target: a score needs a threshold or a scale. If the score decides something, give threshold: the "
                "score from which the decision is positive, such as 0.5. Otherwise, give scale: the difference "
                "between two scores that counts as one logit, such as the standard deviation of the scores. "
                f"See {PAGE}#a-score."
            )
        if self.kind == "label" and not self.name:
            raise ModelError(f"target: a label needs a name, as in name = 'toxic'. See {PAGE}#a-label.")

    @property
    def decides(self) -> bool:
        """Whether the target is a decision, which can be right or wrong."""
        return self.kind in ("class", "label", "tag") or (self.kind == "score" and self.threshold is not None)

    @property
    def at_tokens(self) -> bool:
        """Whether the target is computed from tokens of the text. Without these tokens, it is undefined."""
        return self.kind in ("tag", "span")

    @property
    def differs_by_row(self) -> bool:
        """Whether the target depends on the row, for example on its answer."""
        return self.kind in ("tag", "span", "string")

    @property
    def family(self) -> str:
        """The words for this target at the end of a model's family (see `attnaudit.model_families`); "" for a class."""
        return FAMILIES[self.kind]

    @property
    def classes(self) -> tuple[str, str]:
        """The names of the two classes of a target with a single logit. The second one is the target itself.

        If the target is not a decision, these names say what the two probabilities are.
        """
        if self.kind == "label":
            return f"not {self.name}", self.name
        if self.kind == "score" and self.threshold is not None:
            return f"below {self.threshold:g}", f"at least {self.threshold:g}"
        return {
            "score": ("lower score", "higher score"),
            "span": ("any other span", "the span"),
            "string": ("any other string", "the string"),
        }[self.kind]

    @property
    def text(self) -> str:
        """The explained output in words, for reports, such as "the label 'toxic'"."""
        if self.kind == "score":
            named = f"the score '{self.name}'" if self.name else "the score"
            numbers = [f"threshold {self.threshold:g}"] if self.threshold is not None else ["no threshold"]
            numbers += [f"scale {self.scale:g}"] if self.scale is not None else []
            return f"{named} ({', '.join(numbers)})"
        return {
            "class": "the class",
            "label": f"the label '{self.name}'",
            "tag": "the tag of one word",
            "span": "the span that answers the query",
            "string": f"the probability of {self.name!r}" if self.name else "the probability of the row's answer",
        }[self.kind]

    @property
    def no_decision(self) -> str:
        """The reason why values that need decisions are undefined, as a clause; "" if the target is a decision."""
        if self.decides:
            return ""
        fix = "; declare a threshold" if self.kind == "score" else ""
        return f"the target, {self.text}, is not a decision{fix}"


#: The target of models that assign one class to a text.
CLASS = Target()


def targets_of(table: object, where: object) -> tuple[Target, ...]:
    """Convert the table `[target]` of an attnaudit.toml to targets: one for each label in `labels`, otherwise one.

    Args:
        table: The table.
        where: The file, for messages.

    Raises:
        ModelError: A key or value is invalid. The message names the file and the key.
    """
    if not isinstance(table, dict):
        raise ModelError(f"{where}: target is {table!r}; expected a table such as:", lines=EXAMPLE)
    known = (*(field.name for field in fields(Target)), "labels")
    for key in table:
        if key not in known:
            raise ModelError(f"{where}: unknown key '{key}' in [target]. {nearest(key, known)} See {PAGE}.")
    if "kind" not in table:
        raise ModelError(f"{where}: [target] has no kind. Expected one of {', '.join(KINDS)}, as in:", lines=EXAMPLE)
    settings: dict[str, Any] = dict(table)
    names = settings.pop("labels", None)
    try:
        if names is None:
            return (Target(**settings),)
        if settings.get("kind") != "label":
            raise ModelError("target: labels is for a target of kind 'label'. Remove labels, or correct the kind.")
        if "name" in settings:
            raise ModelError("target: both name and labels are given. Remove one of them.")
        if not (isinstance(names, list) and names and all(isinstance(one, str) and one for one in names)):
            raise ModelError(f"target: labels is {names!r}; expected a list of label names, such as ['toxic'].")
        if len(set(names)) != len(names):
            raise ModelError(f"target: labels is {names!r}; expected every label once.")
        return tuple(Target(**settings, name=name) for name in names)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error


def split_label(name: str, base: Path = Path()) -> tuple[str, str]:
    """Split "FOLDER[LABEL]", a checkpoint folder with the label to explain, into the folder and the label.

    Args:
        name: The value of `--model`.
        base: The folder that relative paths start from.

    Returns:
        The folder and the label. If the value does not have this form, the whole value and "".
    """
    found = _WITH_LABEL.fullmatch(name)
    if found is None or (base / name).is_dir() or not (base / found.group(1)).is_dir():
        return name, ""
    return found.group(1), found.group(2)


def labels_in(folder: Path) -> tuple[str, ...]:
    """Return the labels that the attnaudit.toml of a checkpoint folder lists.

    The result is empty if the folder has no such file, or if the file is invalid. An invalid file is reported when the
    model is loaded.
    """
    try:
        contents = tomllib.loads((folder / FILE).read_text(encoding="utf-8-sig"))
        found = targets_of(contents["target"], folder / FILE)
    except (OSError, ValueError, RecursionError, KeyError, ModelError):
        return ()
    return tuple(one.name for one in found) if "labels" in contents["target"] else ()


#: The lines of an example table, for messages.
EXAMPLE = ("[target]", 'kind = "label"', 'name = "toxic"')
