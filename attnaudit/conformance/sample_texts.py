"""A few instances of different lengths, and passes over them that the checks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attnaudit.adapters.protocol import TEXT, Capabilities, Inputs, Intervention, ModelAdapter, Site, Trace
from attnaudit.instances import Dataset, Instance
from attnaudit.registry import datasets

#: The data set whose texts an adapter is tried on when none are given, and how many of them.
DEFAULT_DATA, DEFAULT_COUNT = "movie-reviews", 36
#: Longest example, in words, and how many there are in the quick form, in the full form, and where each costs much.
LONGEST, COUNT, FULL_COUNT, FEW = 256, 6, 24, 4


@dataclass
class Examples:
    """thorough: the full form, in which a check may take more time."""

    adapter: ModelAdapter
    instances: Sequence[Instance]
    thorough: bool = False

    @cached_property
    def capabilities(self) -> Capabilities:
        return self.adapter.capabilities

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        return tuple(self.adapter.sites())

    @cached_property
    def inputs(self) -> Inputs:
        return self.adapter.collate(self.instances)

    @cached_property
    def trace(self) -> Trace:
        return self.run(self.inputs)

    @cached_property
    def few(self) -> Examples:
        """At most four of them, from the shortest to the longest."""
        if len(self.instances) <= FEW:
            return self
        return Examples(self.adapter, spread(self.instances, FEW), self.thorough)

    @property
    def device(self) -> torch.device:
        return self.inputs.ids[TEXT].device

    @cached_property
    def padded_left(self) -> bool:
        """Whether collate itself pads on the left."""
        return bool((~self.inputs.mask[TEXT][:, 0]).any())

    def run(
        self,
        inputs: Inputs,
        intervene: Intervention | None = None,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
    ) -> Trace:
        with torch.no_grad():
            return self.adapter.run(inputs, embeddings=embeddings, intervene=intervene, hidden=True)

    def leaves(self) -> dict[str, Tensor]:
        """stream -> (B, T, d) embeddings that gradients are taken at."""
        with torch.no_grad():
            embedded = self.adapter.embed(self.inputs)
        return {name: value.detach().clone().requires_grad_(True) for name, value in embedded.items()}

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        # cuDNN refuses the backward pass of a recurrent network in evaluation mode.
        with torch.backends.cudnn.flags(enabled=self.device.type != "cuda"), torch.enable_grad():
            yield

    def allowed(self, site: Site) -> Tensor:
        """(B, H, Q, K) True where a query of a head may attend."""
        return self.trace.allowed[site.key].expand_as(self.trace.attention[site.key])

    def first_allowed(self, site: Site) -> Tensor:
        """(B, H, Q, K) all of each row's weight on the first key that it may attend to."""
        allowed = self.allowed(site)
        weights = torch.zeros_like(self.trace.attention[site.key])
        return weights.scatter(-1, allowed.int().argmax(-1, keepdim=True), 1.0) * allowed.any(-1, keepdim=True)

    def random_weights(self, site: Site, seed: int) -> Tensor:
        """(B, H, Q, K) weights drawn over the allowed keys that sum to one."""
        allowed = self.allowed(site)
        noise = torch.rand(allowed.shape, generator=torch.Generator().manual_seed(seed)) + 0.01
        drawn = noise.to(self.trace.attention[site.key]) * allowed
        return drawn / drawn.sum(-1, keepdim=True).clamp_min(1e-9)


def at_tokens(weights: Tensor, inputs: Inputs, site: Site, row: int) -> Tensor:
    """(B, H, Q, K) -> (H, Q', K') of one row, without the padding of either stream."""
    kept = weights[row][:, :, inputs.mask[site.keys][row]]
    return kept if site.query is None else kept[:, inputs.mask[site.query][row]]


def per_token(inputs: Inputs) -> list[str]:
    """Names of the extra entries that hold one value per token of the text, such as token types."""
    return [name for name, value in inputs.extra.items() if value.shape[:2] == inputs.ids[TEXT].shape]


def spread(instances: Sequence[Instance], count: int) -> list[Instance]:
    """So many of them, evenly from the shortest to the longest."""
    ranked = sorted(instances, key=lambda i: (len(i.text), i.id))
    places = sorted({round(i * (len(ranked) - 1) / max(1, count - 1)) for i in range(count)})
    return [ranked[p] for p in places]


def examples(adapter: ModelAdapter, instances: Sequence[Instance], *, thorough: bool = False) -> Examples:
    """A spread of lengths: the shortest, the longest that is not over long, and some between."""
    count = FULL_COUNT if thorough else COUNT
    most = adapter.capabilities.max_tokens
    longest = LONGEST if most is None else min(LONGEST, max(1, most // 2))
    first = list(instances[: 16 * count])
    short = [one for one in first if len(one.text.split()) <= longest] or spread(first, 2)[:1]
    return Examples(adapter, _readable(adapter, spread(short, count)), thorough)


def default_instances(adapter: ModelAdapter) -> list[Instance]:
    """Texts of the default data set from the shortest to the longest, each with another as its query where the adapter
    cannot do without one."""
    dataset: Dataset = datasets.get(DEFAULT_DATA)()
    chosen = spread(dataset.instances, DEFAULT_COUNT)
    if not adapter.capabilities.query:
        return chosen
    try:
        adapter.run(adapter.collate(chosen[:1]))
    except Exception:  # if it was not for want of a query, the checks fail on these and tell it
        return paired(chosen)
    return chosen


def paired(instances: Sequence[Instance]) -> list[Instance]:
    """Each with the text of another as its query."""
    others = [*instances[len(instances) // 2 :], *instances[: len(instances) // 2]]
    return [replace(one, query=other.text) for one, other in zip(instances, others, strict=True)]


def _readable(adapter: ModelAdapter, chosen: list[Instance]) -> list[Instance]:
    """Those with a real token; all, where there is none or the adapter cannot say: the checks will."""
    try:
        real = adapter.collate(chosen).real().any(1).tolist()
    except Exception:
        return chosen
    return [one for one, some in zip(chosen, real, strict=True) if some] or chosen
