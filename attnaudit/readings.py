"""Readings: which distribution over the input tokens is shown to people as the explanation. Imports no torch.

A pooled model has one attention and needs no name for it. A Transformer has layers × heads × queries, and tools show
different parts of them; a reading says which, such as `cls@layer=-1,heads=mean`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, cast

from attnaudit.errors import CheckError, nearest

Query = Literal["own", "cls", "last", "mean"]
Kind = Literal["attention", "rollout", "norms", "gradients"]

QUERIES: tuple[Query, ...] = ("own", "cls", "last", "mean")
KINDS: tuple[Kind, ...] = ("rollout", "norms", "gradients")
STACKS = ("encoder", "decoder", "cross")
EVERY = "*"
SEPARATOR = "/"
FORM = "cls@layer=-1,heads=mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """kind: "attention" (weights as they are), "rollout" (Abnar & Zuidema 2020), "norms" (of the weighted, transformed
    value vectors; Kobayashi et al. 2020) or "gradients" (weights times their gradient, negative parts left out; Chefer
    et al. 2021). query: the row that is read: that of the first token ("cls"), of the last ("last"), the mean over all
    real tokens ("mean"), or whichever of these the model's own reading has ("own"). layer: counted from 0, or from the
    end with -1; "*" is every layer. heads: their mean, one by number, or "*", each by itself. stack: which attention of
    an encoder–decoder, "encoder", "decoder" or "cross"; "" where the model has one stack."""

    kind: Kind = "attention"
    query: Query = "cls"
    layer: int | Literal["*"] = -1
    heads: int | Literal["mean", "*"] = "mean"
    stack: str = ""

    @property
    def text(self) -> str:
        """The form that `parse` reads back."""
        head = self.query if self.kind == "attention" else self.kind
        parts = [] if self.kind == "attention" else [f"query={self.query}"]
        if self.kind != "rollout":
            parts += [f"layer={self.layer}", f"heads={self.heads}"]
        if self.stack:
            parts.append(f"stack={self.stack}")
        return f"{head}@{','.join(parts)}"

    @property
    def many(self) -> bool:
        """Whether it stands for several readings, one per layer or head."""
        return EVERY in (self.layer, self.heads)

    def each(self, layers: int, heads: int) -> Iterator[Reading]:
        """The readings that this one stands for in a stack of so many layers and heads, layer by layer."""
        for layer in range(layers) if self.layer == EVERY else (self.layer,):
            for head in range(heads) if self.heads == EVERY else (self.heads,):
                yield replace(self, layer=layer, heads=head)


def parse(text: str) -> Reading:
    """`cls@layer=-1,heads=mean` and its like. Raises CheckError that names the part that cannot be meant."""
    head, _, rest = text.strip().partition("@")
    kind: Kind = next((k for k in KINDS if k == head), "attention")
    if kind == "attention" and head not in QUERIES:
        raise CheckError(
            f"reading {text!r}: it begins with {head!r}. {nearest(head, (*QUERIES, *KINDS))} For example {FORM!r}."
        )
    known = {"layer", "heads", "stack"} if kind == "attention" else {"query", "layer", "heads", "stack"}
    if kind == "rollout":
        known -= {"layer", "heads"}
    given: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals or name not in known or name in given:
            why = "is given twice" if name in given else "is not one of its settings"
            raise CheckError(f"reading {text!r}: {name!r} {why}. {nearest(name, known)} For example {FORM!r}.")
        given[name] = value
    asked = given.get("query", "cls") if kind != "attention" else head
    query = next((q for q in QUERIES if q == asked), None)
    if query is None:
        raise CheckError(f"reading {text!r}: query={asked!r}. {nearest(asked, QUERIES)}")
    stack = given.get("stack", "")
    if stack and stack not in STACKS:
        raise CheckError(f"reading {text!r}: stack={stack!r}. {nearest(stack, STACKS)}")
    layer = _number(text, "layer", given.get("layer", "-1"), (EVERY,))
    heads = _number(text, "heads", given.get("heads", "mean"), (EVERY, "mean"))
    if isinstance(heads, int) and heads < 0:
        raise CheckError(f"reading {text!r}: heads={heads}, expected 'mean', '*' or a number from 0.")
    return Reading(
        kind=kind,
        query=query,
        layer=cast("int | Literal['*']", layer),
        heads=cast("int | Literal['mean', '*']", heads),
        stack=stack,
    )


def _number(text: str, name: str, value: str, words: tuple[str, ...]) -> int | str:
    if value in words:
        return value
    try:
        return int(value)
    except ValueError:
        listed = ", ".join(repr(w) for w in words)
        raise CheckError(f"reading {text!r}: {name}={value!r}, expected a whole number or {listed}.") from None


def named(need: str, reading: str) -> str:
    """The name of a need, or of a column, under a reading; "" is the model's own."""
    return f"{need}{SEPARATOR}{reading}" if reading else need


def split(name: str) -> tuple[str, str]:
    """The need or column, and the reading ("" for the model's own)."""
    need, _, reading = name.partition(SEPARATOR)
    return need, reading
