"""Where a reading is read, and where an intervention on it takes place: sites, heads and queries.

Shapes: N rows, B instances, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Inputs, ModelAdapter, Site
from attnaudit.errors import AdapterError
from attnaudit.readings import FORM, Reading, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """sites: those whose weights are read. heads: numbers of the heads at each of them; None: all. query: "only" for
    the single query of a pooled site, "cls", "last", "mean" (every real query) or "all" (every query but padding)."""

    sites: tuple[Site, ...]
    heads: tuple[int, ...] | None
    query: str

    @property
    def site(self) -> Site:
        """The last one: whose states are the hidden states of the reading."""
        return self.sites[-1]

    @property
    def single(self) -> bool:
        """One row of weights per head and instance, so that replacing it leaves all states fixed."""
        return len(self.sites) == 1 and self.query not in ("mean", "all")

    def head_numbers(self, site: Site) -> list[int]:
        return list(range(site.heads)) if self.heads is None else list(self.heads)

    def queries(self, inputs: Inputs) -> Tensor:
        """(B,) position of the query that is read. Of no meaning for "mean"."""
        stream = self.site.query
        mask = inputs.mask[TEXT if stream is None else stream]
        if self.query == "only":
            return torch.zeros(len(mask), dtype=torch.long, device=mask.device)
        if self.query == "last":
            return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        return mask.int().argmax(1)

    def chosen(self, site: Site, inputs: Inputs, width: int, times: int = 1) -> Tensor:
        """(B·times, H, Q, 1) True on the rows that belong to the scope at one of its sites, `width` queries wide."""
        device = inputs.mask[TEXT].device
        heads = torch.zeros(site.heads, dtype=torch.bool, device=device)
        heads[self.head_numbers(site)] = True
        if self.query in ("mean", "all") and site.query is not None:
            rows = inputs.real() if (self.query, site.query) == ("mean", TEXT) else inputs.mask[site.query]
        else:
            rows = torch.arange(width, device=device) == self.queries(inputs)[:, None]
        rows = rows.repeat_interleave(times, dim=0)
        return heads[None, :, None, None] & rows[:, None, :, None]

    def widened(self, where: str, sites: Sequence[Site]) -> Scope:
        """The same reading's scope for interventions on a whole "layer" or "everywhere": all heads and queries."""
        stack = [s for s in sites if (s.kind, s.query, s.keys) == (self.site.kind, self.site.query, self.site.keys)]
        query = "only" if self.site.query is None else "all"
        return Scope(sites=tuple(stack) if where == "everywhere" else self.sites, heads=None, query=query)


def own_reading(adapter: ModelAdapter) -> str:
    """The model's own reading in full; "" for a model with one pooled attention.

    Raises AdapterError when a model with several sites does not say which of them is shown."""
    sites, said = adapter.sites(), adapter.capabilities.reading
    if said:
        return located(adapter, parse(said)).text
    if len(sites) != 1 or sites[0].query is not None or sites[0].heads != 1:
        raise AdapterError(
            f"The model has {len(sites)} attention sites ({', '.join(s.key for s in sites[:4]) or 'none'}), and its "
            f"capabilities name no reading. Say which part is shown as the explanation, such as reading={FORM!r}."
        )
    return ""


def stack_of(adapter: ModelAdapter, reading: Reading) -> list[Site]:
    """The sites of the stack that a reading names, layer by layer. Raises AdapterError where there is none."""
    sites = adapter.sites()
    if all(site.query is None for site in sites):
        raise AdapterError(
            f"reading {reading.text!r}: the model has one pooled attention and no layers or heads. Leave reading out."
        )
    stacks = {
        "encoder": [s for s in sites if s.kind == "self" and s.query == TEXT and s.keys == TEXT],
        "decoder": [s for s in sites if s.kind == "self" and s.query != TEXT],
        "cross": [s for s in sites if s.kind == "cross"],
    }
    filled = [name for name, found in stacks.items() if found]
    name = reading.stack or (filled[0] if len(filled) == 1 else "")
    if not name or not stacks[name]:
        raise AdapterError(
            f"reading {reading.text!r}: the model has these attentions: {', '.join(filled)}. Add one of them, as in "
            f"'{reading.query}@layer=-1,heads=mean,stack={filled[-1]}'."
        )
    if stacks[name][0].keys != TEXT:
        raise AdapterError(
            f"reading {reading.text!r}: the {name}'s own attention is over its outputs, not over the text. Read "
            "stack=cross or stack=encoder."
        )
    if reading.kind == "rollout" and name == "cross":
        raise AdapterError(f"reading {reading.text!r}: rollout needs self-attention. Use stack=encoder.")
    return sorted(stacks[name], key=lambda site: site.layer)


def located(adapter: ModelAdapter, reading: Reading) -> Reading:
    """The reading with its layer counted from 0. Raises AdapterError for a layer or head that the model lacks."""
    if reading.query == "own":
        own = parse(adapter.capabilities.reading) if adapter.capabilities.reading else Reading()
        reading = replace(reading, query=own.query, stack=reading.stack or own.stack)
    stack = stack_of(adapter, reading)
    layers, heads = len(stack), stack[0].heads
    layer = reading.layer
    if isinstance(layer, int) and reading.kind != "rollout":
        if not -layers <= layer < layers:
            raise AdapterError(f"reading {reading.text!r}: the model has layers 0 to {layers - 1}.")
        layer = layer % layers
    if isinstance(reading.heads, int) and reading.heads >= heads:
        raise AdapterError(f"reading {reading.text!r}: the model has heads 0 to {heads - 1}.")
    return Reading(kind=reading.kind, query=reading.query, layer=layer, heads=reading.heads, stack=reading.stack)


def expanded(adapter: ModelAdapter, text: str) -> list[Reading]:
    """The readings that a text stands for in this model, each with its layer counted from 0."""
    reading = located(adapter, parse(text))
    stack = stack_of(adapter, reading)
    return list(reading.each(len(stack), stack[0].heads))


def scope_of(adapter: ModelAdapter, text: str) -> Scope:
    """The scope of a single reading, as `expanded` gives them; "" is the pooled site's."""
    if not text:
        return Scope(sites=adapter.sites()[:1], heads=None, query="only")
    reading = parse(text)
    stack = stack_of(adapter, reading)
    sites = tuple(stack) if reading.kind == "rollout" else (stack[int(reading.layer)],)
    heads = (reading.heads,) if isinstance(reading.heads, int) else None
    return Scope(sites=sites, heads=heads, query=reading.query if reading.kind != "rollout" else "all")
