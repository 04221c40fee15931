"""Readings: which attention weights of a model are presented as the explanation of its prediction.

A reading selects or combines attention weights into one distribution over the input tokens. A Transformer has attention
weights for every layer, head and query, and tools show different parts of them. If a model has more than one row of
weights per text, as a Transformer does, the user must therefore name the reading, for example
`cls@layer=-1,heads=mean`. If a model pools its states with a single row of weights, there is nothing to name. Pooled
attention with several heads or at several sites has no query tokens; its readings begin with "own", as in
`own@heads=0`.

Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from attnaudit.errors import CheckError, nearest

Query = Literal["own", "cls", "last", "mean", "target"]
Kind = Literal["attention", "rollout", "norms", "gradients"]

QUERIES: tuple[Query, ...] = ("own", "cls", "last", "mean", "target")
KINDS: tuple[Kind, ...] = ("rollout", "norms", "gradients")
STACKS = ("encoder", "decoder", "cross", "pool")
#: A value for the heads of a reading: the head with the number of the predicted class.
PREDICTED = "predicted"
#: A value for the layer or the heads of a reading. It stands for a separate reading of every layer or head.
EVERY = "*"
#: Separates the name of a measure from a reading, as in "uniform/cls@layer=0,heads=mean".
SEPARATOR = "/"
#: An example for messages.
FORM = "cls@layer=-1,heads=mean"
#: An example for messages on pooled attention.
POOL_FORM = "own@layer=-1,heads=mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One way to obtain a distribution over the tokens from the attention of a model.

    Attributes:
        kind: What is computed from the attention. "attention": the weights themselves. "rollout": attention rollout
            (Abnar & Zuidema 2020). "norms": the norms of the value vectors after they are transformed and weighted
            (Kobayashi et al. 2020). "gradients": the weights times their gradients, with negative products set to 0
            (Chefer et al. 2021).
        query: The token whose attention to the other tokens is read. "cls": the first token. "last": the last token.
            "mean": the mean over all real tokens. "target": the mean over the tokens from whose states the target is
            computed, such as the tagged word, or the tokens from which an answer is predicted. "own": the query that
            the model's own reading names. For pooled attention, it is the only query.
        layer: The number of the layer, counted from 0, or from the end if it is negative. "*" stands for every layer
            separately. "rollout" uses all layers and heads, and ignores `layer` and `heads`.
        heads: "mean" for the mean over the heads, the number of a head, counted from 0, or "*" for every head
            separately. "predicted", only for pooled attention with one head per class, is the head of the class that
            the model predicts.
        stack: The attention to read in a model with several stacks of layers: "encoder", "decoder", "cross" or "pool"
            (pooled attention). "" if the model has a single stack of layers.
        site: The name of a site of the stack, which can be given instead of `layer`; "" if `layer` is given.
    """

    kind: Kind = "attention"
    query: Query = "cls"
    layer: int | Literal["*"] = -1
    heads: int | Literal["mean", "*", "predicted"] = "mean"
    stack: str = ""
    site: str = ""

    @property
    def text(self) -> str:
        """The text form of the reading. `parse` converts it back."""
        head = self.query if self.kind == "attention" else self.kind
        parts = [] if self.kind == "attention" else [f"query={self.query}"]
        if self.kind != "rollout":
            parts += [f"site={self.site}" if self.site else f"layer={self.layer}", f"heads={self.heads}"]
        if self.stack:
            parts.append(f"stack={self.stack}")
        return f"{head}@{','.join(parts)}"

    @property
    def many(self) -> bool:
        """Whether the reading stands for several readings, one for each layer or head."""
        return EVERY in (self.layer, self.heads)

    @property
    def differentiates(self) -> bool:
        """Whether the reading needs gradients with respect to the attention weights of the unchanged model."""
        return self.kind == "gradients"

    def each(self, heads_of_layers: Mapping[int, int]) -> Iterator[Reading]:
        """Yield the single readings for which this reading stands, layer by layer.

        Args:
            heads_of_layers: The number of each layer that can be read -> the number of its heads.
        """
        for layer in heads_of_layers if self.layer == EVERY else (self.layer,):
            for head in range(heads_of_layers[int(layer)]) if self.heads == EVERY else (self.heads,):
                yield replace(self, layer=layer, heads=head)


def parse(text: str) -> Reading:
    """Parse the text form of a reading, such as `cls@layer=-1,heads=mean`.

    Raises:
        CheckError: A part of the text is invalid. The message names it.
    """
    head, _, rest = text.strip().partition("@")
    kind: Kind = next((k for k in KINDS if k == head), "attention")
    if kind == "attention" and head not in QUERIES:
        raise CheckError(
            f"reading {text!r}: unknown query or kind {head!r}. {nearest(head, (*QUERIES, *KINDS))} "
            f"A valid reading is {FORM!r}."
        )
    allowed = {"layer", "heads", "stack", "site"} | ({"query"} if kind != "attention" else set())
    if kind == "rollout":
        allowed -= {"layer", "heads", "site"}
    settings: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals or name not in allowed or name in settings:
            if name in settings:
                raise CheckError(f"reading {text!r}: {name!r} is given twice. A valid reading is {FORM!r}.")
            raise CheckError(
                f"reading {text!r}: unknown setting {name!r}. {nearest(name, allowed)} A valid reading is {FORM!r}."
            )
        settings[name] = value
    query_text = settings.get("query", "cls") if kind != "attention" else head
    query = next((q for q in QUERIES if q == query_text), None)
    if query is None:
        raise CheckError(f"reading {text!r}: unknown query {query_text!r}. {nearest(query_text, QUERIES)}")
    stack = settings.get("stack", "")
    if stack and stack not in STACKS:
        raise CheckError(f"reading {text!r}: unknown stack {stack!r}. {nearest(stack, STACKS)}")
    site = settings.get("site", "")
    if site and "layer" in settings:
        raise CheckError(f"reading {text!r}: expected either site or layer, but found both. Remove one of them.")
    layer = _number(text, "layer", settings.get("layer", "-1"), (EVERY,))
    heads = _number(text, "heads", settings.get("heads", "mean"), (EVERY, "mean", PREDICTED))
    if isinstance(heads, int) and heads < 0:
        raise CheckError(f"reading {text!r}: heads is {heads}. Expected 'mean', '*' or a head number, counted from 0.")
    return Reading(
        kind=kind,
        query=query,
        layer=cast("int | Literal['*']", layer),
        heads=cast("int | Literal['mean', '*', 'predicted']", heads),
        stack=stack,
        site=site,
    )


def _number(text: str, name: str, value: str, keywords: tuple[str, ...]) -> int | str:
    """Return the value if it is one of the keywords; otherwise, return it as an integer.

    Raises:
        CheckError: The value is neither a keyword nor an integer.
    """
    if value in keywords:
        return value
    try:
        return int(value)
    except ValueError:
        choices = ", ".join(repr(keyword) for keyword in keywords)
        raise CheckError(f"reading {text!r}: {name} is {value!r}. Expected a whole number or {choices}.") from None


def named(need: str, reading: str) -> str:
    """Add a reading to the name of a measure or column. The model's own reading ("") does not change the name."""
    return f"{need}{SEPARATOR}{reading}" if reading else need


def split(name: str) -> tuple[str, str]:
    """Split the name of a measure or column into the plain name and the reading ("" for the model's own reading)."""
    need, _, reading = name.partition(SEPARATOR)
    return need, reading
