"""A classifier that pools units with one or several attentions. Its parts are known by construction.

The encoder reads the codes of the units (see `unit_codes`). It writes the features that the heads look at, and the
value that the heads move, into the state of each unit. The design of a model decides both. For example, a head may look
at decoys while every state has the mean evidence of all units.

Shapes: B rows, T units, d features of a vector, m features of a state, H heads, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from attnaudit.research.planted_units.unit_codes import SCALARS, TAGS, UnitSpace, code_names

#: What a head looks at. "key", "decoy", "collector" and "pointer": the units with this role. "after": the unit after a
#: key unit. "level": key units, in proportion to their evidence. "all": all units alike. "sink": an idle unit, which
#: gets most of the weight, and key units, which get the rest. "asked": the candidate that an earlier hop asked for.
#: "unless_marked": decoys on rows with a marker, and key units on all other rows.
Looks = Literal["key", "decoy", "collector", "pointer", "after", "level", "all", "sink", "asked", "unless_marked"]
#: The value in the state of a unit. "own": its own evidence. "mean": the mean over all units, times their number.
#: "max": the maximum over all units. "before": the evidence of the unit before it. "collected": the sum over all
#: units, at the collector only. "none": nothing. "unless_marked": as for "mean" on rows with a marker, and as for "own"
#: on all other rows.
Value = Literal["own", "mean", "max", "before", "collected", "none", "unless_marked"]
#: For a head that looks at a sink: the attention score of an idle unit minus that of a key unit.
SINK = 4.0
#: Values that depend on other units.
MIXING = ("mean", "max", "before", "collected", "unless_marked")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedHead:
    """One attention of a planted model.

    Attributes:
        looks: What the head looks at.
        gain: The factor by which the context of the head (the weighted sum of the values) is multiplied in the output.
            A head with a gain of 0 has no effect.
        label: The class whose key units the head looks at, if there is one head per class or label. None for all
            classes.
    """

    looks: Looks
    gain: float = 1.0
    label: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDesign:
    """The design of a planted model.

    Attributes:
        heads: The attentions.
        value: The value that the state of each unit contains.
        sharpness: The attention score of the units that a head looks at. Other units have a score of about 0.
        logit_scale: The logit of a class for one unit of evidence.
        gated: Whether scores are computed by the gated attention of Ilse et al. (2018), not by a linear map.
        jitter: The standard deviation of the random part of the scores, which does not depend on the roles of the
            units.
        relu: Whether a state contains the positive and the negative part of each number instead of the number itself.
        one_logit: Whether a model of two classes has a single logit.
    """

    heads: tuple[PlantedHead, ...]
    value: Value = "own"
    sharpness: float = 8.0
    logit_scale: float = 6.0
    gated: bool = False
    jitter: float = 0.0
    relu: bool = False
    one_logit: bool = False

    @property
    def mixes(self) -> bool:
        """Whether the state of a unit depends on other units."""
        return self.value in MIXING or any(head.looks in ("after", "unless_marked") for head in self.heads)


@dataclass(frozen=True, slots=True)
class Pooled:
    """The outcome of a forward pass: logits (B, C), and the weights (B, T) of each head."""

    logits: Tensor
    weights: list[Tensor] = field(default_factory=list)


#: Replaces the weights (B, T) of a head, given its number and the weights that the model computes.
Replace = Callable[[int, Tensor], Tensor]


class PlantedPool(nn.Module):
    """A planted model."""

    def __init__(self, design: PoolDesign, space: UnitSpace, seed: int) -> None:
        """Build a model.

        Args:
            design: The design.
            space: The rotation of codes into vectors.
            seed: The seed of the rotation of states.
        """
        super().__init__()
        self.design, self.classes = design, space.classes
        self.names = code_names(space.classes)
        size = len(design.heads) + TAGS + space.classes
        width = size * (2 if design.relu else 1)
        square = torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.code = nn.Parameter(space.rotation.T.contiguous())  # (d, k)
        self.states = nn.Parameter(torch.linalg.qr(square).Q.float())  # (m, m)
        self.random = nn.Parameter(space.random_direction * design.jitter / design.sharpness)  # (d,)
        self.scale = nn.Parameter(torch.tensor(design.logit_scale))

    def encode(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Compute the states (B, T, m) of units from their vectors (B, T, d) and the mask (B, T) of real units."""
        codes = vectors @ self.code
        real = mask[..., None].to(codes.dtype)
        part = {name: codes[..., i] for i, name in enumerate(SCALARS)}
        evidence = codes[..., -self.classes :]
        marked = (part["marker"] * mask).amax(1, keepdim=True)[..., None].clamp(0, 1)
        jitter = (vectors @ self.random)[..., None]
        looks = [self._looked(head, part, evidence, marked, mask) + jitter for head in self.design.heads]
        tags = codes[..., len(SCALARS) : len(SCALARS) + TAGS]
        numbers = torch.cat([*looks, tags, self._value(part, evidence, marked, real)], dim=-1)
        if self.design.relu:
            numbers = torch.cat([numbers.relu(), (-numbers).relu()], dim=-1)
        return (numbers @ self.states) * real

    def _looked(
        self, head: PlantedHead, part: dict[str, Tensor], evidence: Tensor, marked: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the feature (B, T, 1) that a head looks at."""
        if head.looks == "all":
            return torch.zeros_like(part["key"])[..., None]
        if head.looks == "level":  # the weight of a key unit is proportional to its evidence
            return (part["key"] + part["level"] / self.design.sharpness)[..., None]
        if head.looks == "after":
            return _before(part["key"][..., None], mask)
        if head.looks == "sink":
            return (part["idle"] + part["key"] * (1 - SINK / self.design.sharpness))[..., None]
        if head.looks == "asked":
            return part["candidate"][..., None]
        if head.looks == "unless_marked":
            return part["key"][..., None] * (1 - marked) + part["decoy"][..., None] * marked
        looked = part[head.looks]
        return (looked if head.label is None else looked * (evidence[..., head.label].abs() > 0.25))[..., None]

    def _value(self, part: dict[str, Tensor], evidence: Tensor, marked: Tensor, real: Tensor) -> Tensor:
        """Return the value (B, T, C) that the state of each unit has."""
        total = (evidence * real).sum(1, keepdim=True).expand_as(evidence)
        match self.design.value:
            case "own":
                return evidence
            case "none":
                return torch.zeros_like(evidence)
            case "mean":
                return total
            case "max":
                return (evidence * real).amax(1, keepdim=True).expand_as(evidence)
            case "before":
                return _before(evidence, real[..., 0] > 0)
            case "collected":
                return total * part["collector"][..., None]
            case "unless_marked":
                return evidence * (1 - marked) + total * marked

    def numbers(self, states: Tensor) -> Tensor:
        """Recover the numbers (..., H + tags + C) that `encode` wrote into states (..., m)."""
        numbers = states @ self.states.T
        if not self.design.relu:
            return numbers
        half = numbers.shape[-1] // 2
        return numbers[..., :half] - numbers[..., half:]

    def scores(self, states: Tensor, head: int, asked: Tensor | None) -> Tensor:
        """Return the attention scores (B, T) of a head. `asked` (B, tags) is the tag that an earlier hop has found."""
        numbers = self.numbers(states)
        looked = numbers[..., head]
        if self.design.heads[head].looks == "asked" and asked is not None:
            looked = looked * (self._tags(numbers) * asked[:, None]).sum(-1)
        if self.design.gated:  # increases with `looked`, and is 0 for 0
            looked = (2 * looked).tanh() / 0.964 * (4 * looked).sigmoid() / 0.982
        return self.design.sharpness * looked

    def attend(self, states: Tensor, allowed: Tensor) -> Tensor:
        """Return the weights of all heads: (B, T) for one head, else (B, H, T)."""
        rows = [_softmax(self.scores(states, head, None), allowed) for head in range(len(self.design.heads))]
        return rows[0] if len(rows) == 1 else torch.stack(rows, dim=1)

    def decode(self, contexts: Tensor) -> Tensor:
        """Compute the logits (..., C) from the contexts (..., H · m) of the heads."""
        count = len(self.design.heads)
        values = self._evidence(self.numbers(contexts.reshape(*contexts.shape[:-1], count, -1)))
        gains = values.new_tensor([head.gain for head in self.design.heads])
        logits = self.scale * (gains[:, None] * values).sum(-2)
        return logits[..., 1:] - logits[..., :1] if self.design.one_logit else logits

    def hops(self, states: Tensor, allowed: Tensor, attend: Callable[[str, Tensor, Tensor], Tensor]) -> Tensor:
        """Return the logits (B, C). The heads are hops: each of them may use what earlier ones have found."""
        asked = states.new_ones(len(states), TAGS)
        contexts = []
        for head, name in enumerate(self.sites):
            context = attend(name, _softmax(self.scores(states, head, asked), allowed), states)
            contexts.append(context)
            if self.design.heads[head].looks == "pointer":
                asked = self._tags(self.numbers(context))
        return self.decode(torch.cat(contexts, dim=-1))

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the hops."""
        return tuple(f"hop {number}" for number in range(1, len(self.design.heads) + 1))

    def run(self, vectors: Tensor, mask: Tensor, replace: Replace | None = None, *, hops: bool = False) -> Pooled:
        """Run the model without an adapter.

        Args:
            vectors: (B, T, d) vectors of the units.
            mask: (B, T) which units are real.
            replace: Replaces the weights of heads; None to keep them.
            hops: Whether the heads are hops.
        """
        used: list[Tensor] = []

        def attend(_name: str, weights: Tensor, values: Tensor) -> Tensor:
            used.append(weights if replace is None else replace(len(used), weights))
            return (used[-1][:, None] @ values)[:, 0]

        states = self.encode(vectors, mask)
        if hops:
            return Pooled(self.hops(states, mask, attend), used)
        weights = self.attend(states, mask)
        rows = [weights] if weights.dim() == 2 else list(weights.unbind(1))
        contexts = [attend("", one, states) for one in rows]
        return Pooled(self.decode(torch.cat(contexts, dim=-1)), used)

    def _tags(self, numbers: Tensor) -> Tensor:
        start = len(self.design.heads)
        return numbers[..., start : start + TAGS]

    def _evidence(self, numbers: Tensor) -> Tensor:
        return numbers[..., len(self.design.heads) + TAGS :]


def two_logits(logits: Tensor) -> Tensor:
    """Return logits (B, C) from the single logit of class 1, or from the logits of all classes."""
    return torch.cat([torch.zeros_like(logits), logits], dim=-1) if logits.shape[-1] == 1 else logits


def _before(values: Tensor, mask: Tensor) -> Tensor:
    """Return, for each unit, the values (B, T, v) of the unit before it. They are 0 for the first unit."""
    return torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1]], dim=1) * mask[..., None]


def _softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


def classes_of(count: int) -> Sequence[str]:
    """Return the names of the classes."""
    return [f"class {number}" for number in range(count)]
