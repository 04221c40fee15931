"""Scopes: the sites, heads and queries whose attention a reading selects or an intervention changes.

A site is one place in the model where attention weights are computed (see `Site`). A reading selects which attention of
the model is the explanation (see `attnaudit.readings`).

Shapes: N rows, B instances, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TARGET_QUERIES, TEXT, Inputs, ModelAdapter, Site
from attnaudit.adapters.query_blocks import too_large_to_hold
from attnaudit.errors import AdapterError, nearest
from attnaudit.formatting import left_out
from attnaudit.readings import FORM, POOL_FORM, PREDICTED, Reading, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Some attention rows of a model: those of some heads and queries at some sites.

    Attributes:
        sites: The sites.
        heads: Indices of the heads at each site; None for all heads.
        query: Which queries are in scope. "only": the single query of a pooled site. "cls": the first token. "last":
            the last token. "mean": all real tokens of the text, or all tokens of another stream. "target": the tokens
            of the text from which the target is computed, or all tokens of another stream. "all": all tokens.
        differentiates: Whether gradients with respect to the attention weights are needed.
        head_of_row: (B,) number of the only head in scope, for each instance of a batch; None if the heads in scope do
            not differ by instance.
    """

    sites: tuple[Site, ...]
    heads: tuple[int, ...] | None
    query: str
    differentiates: bool = False
    head_of_row: Tensor | None = None

    @property
    def site(self) -> Site:
        """The last site. Its states are the hidden states of the reading."""
        return self.sites[-1]

    @property
    def single_row(self) -> bool:
        """Whether the scope has a single site, with one row of weights per head and instance.

        If so, replacing the weights does not change the states to which they are applied.
        """
        return len(self.sites) == 1 and not self.several_queries

    @property
    def several_queries(self) -> bool:
        """Whether the scope has several queries of each instance."""
        return self.query in ("mean", "target", "all")

    def head_numbers(self, site: Site) -> list[int]:
        """Return the indices of the heads in scope at a site. They must not differ by instance."""
        return list(range(site.heads)) if self.heads is None else list(self.heads)

    def select_heads(self, values: Tensor) -> Tensor:
        """Select the values (B, H', ...) of the H' heads in scope from the values (B, H, ...) of all H heads."""
        if self.head_of_row is not None:
            return values[torch.arange(len(values), device=values.device), self.head_of_row][:, None]
        return values if self.heads is None else values[:, list(self.heads)]

    def replace_heads(self, values: Tensor, of_scope: Tensor) -> Tensor:
        """Return the values (B, V, H, ...) of all heads, with those of the heads in scope replaced.

        Args:
            values: (B, H, ...) values of all heads.
            of_scope: (B, V, H', ...) values of the H' heads in scope.
        """
        if self.heads is None and self.head_of_row is None:
            return of_scope
        all_heads = values[:, None].to(of_scope.dtype).repeat(1, of_scope.shape[1], *[1] * (values.dim() - 1))
        if self.head_of_row is None:
            all_heads[:, :, list(self.heads or ())] = of_scope
            return all_heads
        all_heads[torch.arange(len(values), device=values.device), :, self.head_of_row] = of_scope[:, :, 0]
        return all_heads

    def query_positions(self, inputs: Inputs) -> Tensor:
        """Return the position (B,) of the query in scope. The scope must not have several queries."""
        stream = self.site.query
        mask = inputs.mask[TEXT if stream is None else stream]
        if self.query == "only":
            return torch.zeros(len(mask), dtype=torch.long, device=mask.device)
        if self.query == "last":
            return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
        return mask.int().argmax(1)

    def row_mask(self, site: Site, inputs: Inputs, queries: int, repeats: int = 1, first: int = 0) -> Tensor:
        """Return a mask of the rows in scope at one of its sites.

        Args:
            site: The site.
            inputs: B instances.
            queries: Q, the number of queries that the mask covers.
            repeats: How often each instance is repeated, with its copies next to each other.
            first: Position of the first of these queries.

        Returns:
            (B·repeats, H, Q, 1) mask, True for the heads and queries in scope.
        """
        device = inputs.mask[TEXT].device
        if self.head_of_row is None:
            heads = torch.zeros((1, site.heads), dtype=torch.bool, device=device)
            heads[:, self.head_numbers(site)] = True
        else:
            heads = torch.arange(site.heads, device=device) == self.head_of_row[:, None]
            heads = heads.repeat_interleave(repeats, dim=0)
        if self.several_queries and site.query is not None:
            rows = inputs.mask[site.query]
            if site.query == TEXT and self.query != "all":
                rows = inputs.real() if self.query == "mean" else inputs.extra[TARGET_QUERIES]
            rows = rows[:, first : first + queries]
        else:
            rows = torch.arange(first, first + queries, device=device) == self.query_positions(inputs)[:, None]
        rows = rows.repeat_interleave(repeats, dim=0)
        return heads[:, :, None, None] & rows[:, None, :, None]

    def widened(self, where: str, sites: Sequence[Site]) -> Scope:
        """Return a scope with all heads and all queries.

        Args:
            where: "layer" for the sites of this scope, "everywhere" for all sites of the same stack.
            sites: All sites of the model.
        """
        stack = [s for s in sites if (s.kind, s.query, s.keys) == (self.site.kind, self.site.query, self.site.keys)]
        query = "only" if self.site.query is None else "all"
        return Scope(sites=tuple(stack) if where == "everywhere" else self.sites, heads=None, query=query)


def selected_queries(scopes: Iterable[Scope], inputs: Inputs, blocks: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the queries whose attention weights the scopes need.

    Args:
        scopes: The scopes.
        inputs: B instances.
        blocks: Keys of the sites whose weights of all queries are computed in blocks (see `sites_in_blocks`).

    Returns:
        Site key -> (B, R) positions of the queries. Sites at which some scope needs all queries are missing, unless
        they are in `blocks`.
    """
    by_site: dict[str, dict[str, Tensor]] = {}
    whole: set[str] = set()
    for scope in scopes:
        for site in scope.sites:
            if scope.single_row and site.query is not None:
                by_site.setdefault(site.key, {})[scope.query] = scope.query_positions(inputs)
            elif site.key not in blocks:
                whole.add(site.key)
    return {key: torch.stack(list(named.values()), dim=1) for key, named in by_site.items() if key not in whole}


def sites_in_blocks(scopes: Sequence[Scope], adapter: ModelAdapter, inputs: Inputs) -> frozenset[str]:
    """Return the keys of the sites at which the scopes need all queries, but whose weights are too large to keep.

    Sites are left out if gradients with respect to their weights are needed. If the adapter cannot select queries,
    sites at which a scope needs a single query are left out as well.
    """
    keys = {site.key for scope in scopes if not scope.single_row for site in scope.sites}
    for scope in scopes:
        if scope.differentiates or (scope.single_row and not adapter.capabilities.selects_queries):
            keys -= {site.key for site in scope.sites}
    return too_large_to_hold(adapter, inputs, len(inputs.ids[TEXT]), keys)


def own_reading(adapter: ModelAdapter) -> Reading | None:
    """Return the model's own reading, which its capabilities declare, with the layer counted from 0.

    Returns:
        The reading; None for a model with a single row of attention weights.

    Raises:
        AdapterError: The model has no pooled attention, and its capabilities declare no reading; or it lacks the layer,
            the head or the stack of the declared reading.
    """
    sites, declared = adapter.sites(), adapter.capabilities.reading
    if declared:
        return located(adapter, parse(declared))
    if has_choice(sites):
        heads = ", ".join(f"{site.key} with {site.heads} head{'s' * (site.heads > 1)}" for site in sites[:4])
        example = POOL_FORM if any(site.query is None for site in sites) else FORM
        raise AdapterError(
            f"The model has {len(sites)} attention site{'s' * (len(sites) != 1)} ({heads or 'none'}), but its "
            "capabilities name no reading. Declare which attention is shown as the explanation, for example "
            f"reading={example!r}."
        )
    return None


def has_choice(sites: Sequence[Site]) -> bool:
    """Return whether the reading of a model must be named.

    This is the case unless the model has exactly one row of attention weights per text. With a single row, there is
    nothing to name.
    """
    return len(sites) != 1 or sites[0].query is not None or sites[0].heads != 1


def stack_of(adapter: ModelAdapter, reading: Reading) -> list[Site]:
    """Return the sites of the stack that a reading names, from the first layer to the last.

    If the reading names no stack, the model must have only one. Sites of the stack that attend to another stream than
    the text are left out, because their weights are not over the tokens of the text.

    Raises:
        AdapterError: The model does not have this stack, the reading does not name one although it must, or the stack
            does not allow this reading.
    """
    name, stack, others = _whole_stack(adapter, reading)
    if name == "pool" and (reading.kind == "rollout" or reading.query != "own"):
        raise AdapterError(
            f"reading {reading.text!r}: pooled attention has no query tokens. Begin the reading with 'own', as in "
            f"{POOL_FORM!r}."
        )
    over_text = [site for site in stack if site.keys == TEXT]
    if not over_text:
        raise AdapterError(
            f"reading {reading.text!r}: the {len(stack)} sites of the stack '{name}' attend to "
            f"{', '.join(sorted({site.keys for site in stack}))}, not to the text. Use another stack: "
            f"{', '.join(others) or 'none'}."
        )
    if reading.kind == "rollout" and len(over_text) < len(stack):
        raise AdapterError(
            f"reading {reading.text!r}: rollout needs the attention of every layer, but only {len(over_text)} of "
            f"{len(stack)} sites of the stack '{name}' attend to the text. Read a single layer, such as {FORM!r}."
        )
    if reading.kind == "rollout" and name == "cross":
        raise AdapterError(f"reading {reading.text!r}: rollout needs self-attention. Use stack=encoder.")
    mixers = adapter.capabilities.unseen_mixers
    if reading.kind == "rollout" and mixers:
        raise AdapterError(
            f"reading {reading.text!r}: rollout needs the attention of every layer, but {left_out(mixers)}. Read a "
            f"single layer, such as {FORM!r}."
        )
    return over_text


def _whole_stack(adapter: ModelAdapter, reading: Reading) -> tuple[str, list[Site], list[str]]:
    """Return the name of the stack of a reading, its sites by layer, and the other stacks with sites over the text.

    Raises:
        AdapterError: The model does not have this stack, or the reading does not name one although it must.
    """
    sites = adapter.sites()
    if not has_choice(sites):
        raise AdapterError(
            f"reading {reading.text!r}: the attention of the model has a single row of weights per text, so there is "
            "nothing to choose. Remove the argument `reading`."
        )
    stacks = {
        "encoder": [s for s in sites if s.kind == "self" and s.query == TEXT and s.keys == TEXT],
        "decoder": [s for s in sites if s.kind == "self" and s.query != TEXT],
        "cross": [s for s in sites if s.kind == "cross"],
        "pool": [s for s in sites if s.query is None],
    }
    available = [name for name, members in stacks.items() if members]
    name = reading.stack or (available[0] if len(available) == 1 else "")
    if not name or not stacks[name]:
        raise AdapterError(
            f"reading {reading.text!r}: the model has these attention stacks: {', '.join(available)}. Name one, as in "
            f"'{reading.query}@layer=-1,heads=mean,stack={available[-1]}'."
        )
    others = [other for other in available if other != name and any(site.keys == TEXT for site in stacks[other])]
    return name, sorted(stacks[name], key=lambda site: site.layer), others


def located(adapter: ModelAdapter, reading: Reading) -> Reading:
    """Resolve a reading for a model.

    In the result, the layer is the number of the site's layer, and the model's own query replaces the query "own". A
    negative layer counts from the last layer that attends to the text.

    Raises:
        AdapterError: The model lacks the layer, the head or the stack, or the layer attends to another stream.
    """
    if reading.query == "own" and reading.stack != "pool":
        own = parse(adapter.capabilities.reading) if adapter.capabilities.reading else Reading()
        reading = replace(reading, query=own.query, stack=reading.stack or own.stack)
    if reading.query == "target" and not adapter.capabilities.target.differs_by_row:
        raise AdapterError(
            f"reading {reading.text!r}: the target, {adapter.capabilities.target.text}, is computed from the same "
            "tokens in every row. Use the model's own reading instead: 'own@layer=-1,heads=mean'."
        )
    stack = stack_of(adapter, reading)
    layer = reading.layer
    if isinstance(layer, int) and reading.kind != "rollout":
        layer = _site_of(adapter, reading, stack).layer
    heads = _heads_of(stack, layer)
    if isinstance(reading.heads, int) and reading.heads >= heads:
        raise AdapterError(
            f"reading {reading.text!r}: there is no head {reading.heads}; the model has heads 0 to {heads - 1}."
        )
    if reading.heads == PREDICTED and (stack[0].query is not None or heads != len(adapter.capabilities.classes)):
        raise AdapterError(
            f"reading {reading.text!r}: the head of the predicted class needs pooled attention with one head for each "
            f"of the {len(adapter.capabilities.classes)} classes; the site has {heads}. Name a head, or the mean."
        )
    return Reading(kind=reading.kind, query=reading.query, layer=layer, heads=reading.heads, stack=reading.stack)


def _site_of(adapter: ModelAdapter, reading: Reading, stack: Sequence[Site]) -> Site:
    """Return the site whose name or layer a reading gives.

    Args:
        adapter: The model.
        reading: A reading with a site or a layer number.
        stack: The sites of its stack that attend to the text.

    Raises:
        AdapterError: The stack lacks the site or the layer, or the site attends to another stream than the text.
    """
    layer, (_, whole, _) = int(reading.layer), _whole_stack(adapter, reading)
    if not reading.site and layer < 0:
        found = stack[layer] if -len(stack) <= layer else None
    else:
        found = next((one for one in whole if (one.key == reading.site if reading.site else one.layer == layer)), None)
    if found is None and reading.site:
        keys = [site.key for site in stack]
        elsewhere = any(site.key == reading.site for site in adapter.sites())
        hint = "It is in another stack of the model." if elsewhere else nearest(reading.site, keys)
        raise AdapterError(f"reading {reading.text!r}: the stack has no site {reading.site!r}. {hint}")
    if found is not None and found.keys == TEXT:
        return found
    numbers = [site.layer for site in stack]
    listed = f"{numbers[0]} to {numbers[-1]}" if numbers == list(range(len(numbers))) else ", ".join(map(str, numbers))
    if found is not None:
        raise AdapterError(
            f"reading {reading.text!r}: the site '{found.key}' attends to '{found.keys}', not to the text. The layers "
            f"that attend to the text are {listed}."
        )
    raise AdapterError(f"reading {reading.text!r}: there is no layer {layer}; the model has layers {listed}.")


def _heads_of(stack: Sequence[Site], layer: int | str) -> int:
    """Return the number of heads of a layer. For every layer ("*"), and for rollout, it is the smallest number."""
    of_layer = [site.heads for site in stack if site.layer == layer]
    return min(of_layer or [site.heads for site in stack])


def expanded(adapter: ModelAdapter, text: str) -> list[Reading]:
    """Return the single readings that the text of a reading stands for in this model.

    Their layers are the numbers of the layers of their sites.

    Raises:
        AdapterError: The model lacks the layer, the head or the stack.
    """
    reading = located(adapter, parse(text))
    stack = stack_of(adapter, reading)
    return list(reading.each({site.layer: site.heads for site in stack}))


def scope_of(adapter: ModelAdapter, reading: Reading | None) -> Scope:
    """Return the scope of a single reading.

    Args:
        adapter: The model.
        reading: A single reading from the result of `expanded`; None for a model with a single row of attention
            weights.
    """
    if reading is None:
        return Scope(sites=adapter.sites()[:1], heads=None, query="only")
    stack = stack_of(adapter, reading)
    sites = tuple(stack) if reading.kind == "rollout" else (_site_of(adapter, reading, stack),)
    heads = (reading.heads,) if isinstance(reading.heads, int) else None
    if sites[0].query is None:
        return Scope(sites=sites, heads=heads, query="only", differentiates=reading.differentiates)
    return Scope(
        sites=sites,
        heads=heads,
        query=reading.query if reading.kind != "rollout" else "all",
        differentiates=reading.differentiates,
    )
