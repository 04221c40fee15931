"""The instances on which the checks run, and the passes over them that the checks share."""

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

#: The data set to use if no instances are given, and the number of instances to select from it.
DEFAULT_DATA, DEFAULT_COUNT = "movie-reviews", 36
#: The largest number of words in an example. If all instances are longer, the shortest one is used.
LONGEST = 256
#: The largest number of examples in the quick suite, in the full suite, and in expensive checks.
COUNT, FULL_COUNT, FEW = 6, 24, 4
#: If all examples have the same logits: how many instances are searched for one with other logits, and how many of them
#: run in one batch.
SEARCHED, SEARCH_BATCH = 10_000, 32
#: Logits are the same if they differ by at most this fraction of the largest logit.
SAME = 1e-4
#: The largest number of words in the long example, and of its attention weights at all sites together.
LONG_WORDS, LONG_WEIGHTS = 1024, 2**25


@dataclass
class Examples:
    """The instances on which the checks of one adapter run, with the results that several checks need.

    Attributes:
        adapter: The adapter to check.
        instances: The instances to run it on.
        thorough: Whether the examples are for the full suite. Some checks then test more cases.
        long_instance: An instance that is longer than all others; None if there is none that memory allows.
    """

    adapter: ModelAdapter
    instances: Sequence[Instance]
    thorough: bool = False
    long_instance: Instance | None = None

    @cached_property
    def capabilities(self) -> Capabilities:
        """The declared capabilities."""
        return self.adapter.capabilities

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The attention sites of the model."""
        return tuple(self.adapter.sites())

    @cached_property
    def inputs(self) -> Inputs:
        """All instances in one batch."""
        return self.adapter.collate(self.instances)

    @cached_property
    def trace(self) -> Trace:
        """The trace of a pass over all instances."""
        return self.run(self.inputs)

    @cached_property
    def few(self) -> Examples:
        """At most four of the instances, for expensive checks. Their lengths range from the shortest to the longest."""
        if len(self.instances) <= FEW:
            return self
        return Examples(self.adapter, spread(self.instances, FEW), self.thorough)

    @cached_property
    def long(self) -> Examples | None:
        """The long instance alone, for checks of models that treat long texts differently; None if there is none."""
        return None if self.long_instance is None else Examples(self.adapter, [self.long_instance], self.thorough)

    @property
    def device(self) -> torch.device:
        """The device of the inputs."""
        return self.inputs.ids[TEXT].device

    @cached_property
    def padded_left(self) -> bool:
        """Whether collate() pads on the left."""
        return bool((~self.inputs.mask[TEXT][:, 0]).any())

    def run(
        self,
        inputs: Inputs,
        intervene: Intervention | None = None,
        *,
        embeddings: Mapping[str, Tensor] | None = None,
    ) -> Trace:
        """Run the model without gradients, and return the trace, which includes the hidden states.

        Args:
            inputs: The batch.
            intervene: As in `ModelAdapter.run`.
            embeddings: As in `ModelAdapter.run`.
        """
        with torch.no_grad():
            return self.adapter.run(inputs, embeddings=embeddings, intervene=intervene, hidden=True)

    def leaves(self) -> dict[str, Tensor]:
        """Return the embeddings (B, T, d) of every stream as leaf tensors that require gradients."""
        with torch.no_grad():
            embedded = self.adapter.embed(self.inputs)
        return {name: value.detach().clone().requires_grad_(True) for name, value in embedded.items()}

    @contextmanager
    def differentiating(self) -> Iterator[None]:
        """Enable gradients inside the context. On a GPU, also disable cuDNN."""
        # cuDNN cannot compute the backward pass of a recurrent network in evaluation mode.
        with torch.backends.cudnn.flags(enabled=self.device.type != "cuda"), torch.enable_grad():
            yield

    def allowed(self, site: Site) -> Tensor:
        """Return a mask (B, H, Q, K) that is True at the keys to which each query of each head may attend."""
        return self.trace.allowed[site.key].expand_as(self.trace.attention[site.key])

    def first_allowed(self, site: Site) -> Tensor:
        """Return weights (B, H, Q, K) that are 1 at the first allowed key of each query, and 0 elsewhere."""
        allowed = self.allowed(site)
        weights = torch.zeros_like(self.trace.attention[site.key])
        return weights.scatter(-1, allowed.int().argmax(-1, keepdim=True), 1.0) * allowed.any(-1, keepdim=True)

    def random_weights(self, site: Site, seed: int) -> Tensor:
        """Return random weights (B, H, Q, K) that sum to one over the allowed keys and are 0 elsewhere."""
        allowed = self.allowed(site)
        noise = torch.rand(allowed.shape, generator=torch.Generator().manual_seed(seed)) + 0.01
        weights = noise.to(self.trace.attention[site.key]) * allowed
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)


def at_tokens(weights: Tensor, inputs: Inputs, site: Site, row: int) -> Tensor:
    """Return the weights (H, Q, K) of one row, without the queries and keys that are padding.

    Args:
        weights: (B, H, Q, K) weights.
        inputs: The batch.
        site: The site of the weights.
        row: The index of the row.
    """
    at_keys = weights[row][:, :, inputs.mask[site.keys][row]]
    return at_keys if site.query is None else at_keys[:, inputs.mask[site.query][row]]


def per_token(inputs: Inputs) -> list[str]:
    """Return the names of the entries in `inputs.extra` that have one value per token, such as token types."""
    return [name for name, value in inputs.extra.items() if value.shape[:2] == inputs.ids[TEXT].shape]


def spread(instances: Sequence[Instance], count: int) -> list[Instance]:
    """Sort the instances by length, and select at most `count` of them, evenly spaced in this order."""
    ranked = sorted(instances, key=lambda i: (len(i.text), i.id))
    places = sorted({round(i * (len(ranked) - 1) / max(1, count - 1)) for i in range(count)})
    return [ranked[p] for p in places]


def examples(adapter: ModelAdapter, instances: Sequence[Instance], *, thorough: bool = False) -> Examples:
    """Select the examples for an adapter, sorted from short to long.

    If all of them have the same logits, the checks cannot tell whether the model uses its attention. One of them is
    then replaced by an instance with other logits, if there is one.

    Args:
        adapter: The adapter to check.
        instances: The instances to select from.
        thorough: Whether the examples are for the full suite, which uses more of them.
    """
    count = FULL_COUNT if thorough else COUNT
    limit = adapter.capabilities.max_tokens
    longest = LONGEST if limit is None else min(LONGEST, max(1, limit // 2))
    first = list(instances[: 16 * count])
    short = [one for one in first if len(one.text.split()) <= longest] or spread(first, 2)[:1]
    chosen = _readable(adapter, spread(short, count))
    different = _with_other_logits(adapter, instances, chosen)
    if different is not None:
        chosen = spread([*chosen[:-1], different], count)
    return Examples(adapter, chosen, thorough, _long_instance(adapter, first, chosen))


def _long_instance(adapter: ModelAdapter, instances: Sequence[Instance], chosen: Sequence[Instance]) -> Instance | None:
    """Return the longest instance that memory and the model allow, if it is longer than all chosen ones."""
    limit = adapter.capabilities.max_tokens
    most = LONG_WORDS if limit is None else min(LONG_WORDS, limit // 2)
    rows = sum(site.heads for site in adapter.sites() if site.query is None)
    squares = sum(site.heads for site in adapter.sites() if site.query is not None)
    if squares:
        most = min(most, int((LONG_WEIGHTS / squares) ** 0.5))
    least = max(len(one.text.split()) for one in chosen)
    longer = [one for one in instances if least < len(one.text.split()) <= most]
    for one in sorted(longer, key=lambda one: (-len(one.text.split()), one.id)):
        try:
            tokens = int(adapter.collate([one]).mask[TEXT].sum())
        except Exception:  # The checks run on other instances, and the audit reports the error.
            return None
        if tokens * rows + tokens**2 * squares <= LONG_WEIGHTS:
            return one
    return None


def _with_other_logits(
    adapter: ModelAdapter, instances: Sequence[Instance], chosen: Sequence[Instance]
) -> Instance | None:
    """Return an instance whose logits differ from those of the chosen instances, if these all have the same logits.

    Args:
        adapter: The adapter.
        instances: The instances to search, from short to long. Only the first `SEARCHED` of them are read.
        chosen: The chosen instances.
    """
    try:
        with torch.no_grad():
            logits = adapter.run(adapter.collate(chosen)).logits
    except Exception:  # The checks run on the chosen instances, and report the error.
        return None
    if len(chosen) < 2 or bool(_differs(logits, logits[:1]).any()):
        return None
    others = sorted(instances[:SEARCHED], key=lambda one: len(one.text.split()))
    for start in range(0, len(others), SEARCH_BATCH):
        part = others[start : start + SEARCH_BATCH]
        try:
            with torch.no_grad():
                differs = _differs(adapter.run(adapter.collate(part)).logits, logits[:1])
        except Exception:  # The audit reports the error when it measures these instances.
            continue
        if bool(differs.any()):
            return part[int(differs.long().argmax())]
    return None


def _differs(logits: Tensor, first: Tensor) -> Tensor:
    """Return a mask (B,), True where logits (B, C) differ from the logits (1, C) of one row."""
    return ((logits - first).abs() > SAME * first.abs().max()).any(1)


def default_instances(adapter: ModelAdapter) -> list[Instance]:
    """Select instances of the default data set, sorted from short to long.

    If the adapter declares query=True and raises an exception for an instance without a query, each instance gets the
    text of another instance as its query. If the target is the probability of the row's answer, answers are added.
    """
    dataset: Dataset = datasets.get(DEFAULT_DATA)()
    chosen = spread(dataset.instances, DEFAULT_COUNT)
    target = adapter.capabilities.target
    if target.kind == "string" and not target.name:
        chosen = [replace(one, answer=dataset.instances[n].text.split()[0]) for n, one in enumerate(chosen)]
    if not adapter.capabilities.query:
        return chosen
    try:
        adapter.run(adapter.collate(chosen[:1]))
    except Exception:  # If a missing query is not the cause, the checks report the error.
        return paired(chosen)
    return chosen


def paired(instances: Sequence[Instance]) -> list[Instance]:
    """Return the instances, each with the text of another instance as its query."""
    others = [*instances[len(instances) // 2 :], *instances[: len(instances) // 2]]
    return [replace(one, query=other.text) for one, other in zip(instances, others, strict=True)]


def _readable(adapter: ModelAdapter, chosen: list[Instance]) -> list[Instance]:
    """Return the instances that have a real token.

    If no instance has a real token, or if collate() raises an exception, return all instances. The checks then report
    the cause.
    """
    try:
        real = adapter.collate(chosen).real().any(1).tolist()
    except Exception:
        return chosen
    return [one for one, is_readable in zip(chosen, real, strict=True) if is_readable] or chosen
