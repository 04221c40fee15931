"""Adversarial attention: the largest JSD to the model's attention that moves the output by at most ε in TVD (JW; exact
form in the docstring of `exact_adversarial_attention`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import probabilities
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import AdapterError, CheckError
from attnaudit.metrics import (
    adversarial_upper_bound,
    exact_adversarial_attention,
    jensen_shannon,
    largest_jensen_shannon,
    total_variation,
)
from attnaudit.metrics.searched_adversary import PRESETS, search
from attnaudit.registry import measures
from attnaudit.seeding import keyed_integer

#: How far above ε the model's own output may move when it is run with the attention found: rounding in float32.
ROUNDING = 1e-5
#: The published search (JW), for comparison: slower than the exact form, and never above it.
JAIN_WALLACE = "jain_wallace"


def searchable(view: AttentionView) -> bool:
    """Whether the reading is plain attention, one row per head, so that other weights can be put in its place."""
    plain = view.named is None or view.named.kind == "attention"
    return plain and view.scope.single


@dataclass(frozen=True, kw_only=True)
class Adversarial(PerBatch):
    """jsd in nats (NaN for a single token, which has no other attention), most: the largest JSD any attention has,
    share: jsd as a share of it, tvd as measured by running the model with the attention found, upper: a bound no
    attention exceeds (equal to jsd where the optimum is exact, NaN where only searched), attention: the distribution
    found. fact adversarial.method: exact, bracketed or searched.

    preset: search with these settings of `searched_adversary`, also where the optimum has an exact form; the fact is
    then adversarial.<preset>.method."""

    epsilon: float
    preset: str = ""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        real, reading = view.real, view.attention
        if not searchable(view):
            nothing = torch.full_like(view.special_mass, torch.nan)
            names = ("jsd", "most", "share", "tvd", "upper")
            return Columns(
                scalars={f"{self.name}.{name}": nothing for name in names},
                tokens={f"{self.name}.attention": torch.full_like(reading, torch.nan)},
                facts={self._fact: "not possible for this reading"},
            )
        heads, upper, method = self._find(view)
        found = view.shown(heads)
        single = view.lengths < 2
        jsd = jensen_shannon(found, reading, real).masked_fill(single, torch.nan)
        most = largest_jensen_shannon(reading, real).masked_fill(single, torch.nan)
        output = probabilities(view.decode_by_model(heads[:, None]))[:, 0, :]
        moved = total_variation(output, view.probabilities)
        beyond = moved > self.epsilon + ROUNDING
        if bool(beyond.any()):
            row = int(beyond.int().argmax())
            one = view.instances[row]
            raise AdapterError(
                f"{one.where or one.id}: adversarial attention found at ε={self.epsilon:g} moves the model's own "
                f"output by {moved[row].item():.6f}. The decoder is not the function of weights and states it was said "
                "to be."
            )
        return Columns(
            scalars={
                f"{self.name}.jsd": jsd,
                f"{self.name}.most": most,
                f"{self.name}.share": torch.where(most > 0, jsd / most, torch.full_like(jsd, torch.nan)),
                f"{self.name}.tvd": moved,
                f"{self.name}.upper": torch.maximum(upper, jsd),
            },
            tokens={f"{self.name}.attention": found},
            facts={self._fact: method},
        )

    @property
    def _fact(self) -> str:
        return ".".join(part for part in ("adversarial", self.preset, "method") if part)

    def _find(self, view: AttentionView) -> tuple[Tensor, Tensor, str]:
        """(B, H, T) rows of the heads, special tokens included; bound; method."""
        nothing = torch.full_like(view.special_mass, torch.nan)
        if self.preset:
            return self._descend(view, settings=self.preset), nothing, "searched"
        real, reading = view.free[:, 0], view.token_attention
        if view.token_logits is not None:
            token_logits, bias = view.token_logits
            # Special tokens keep their mass: they shift the bias, and the rest of the logit shrinks.
            kept = 1 - view.special_mass
            shift = ((view.token_scores * ~real)[:, None, :] @ token_logits)[:, 0, :] + bias
            token_logits = token_logits * kept[:, None, None]
            if token_logits.shape[-1] <= 2:
                if token_logits.shape[-1] == 1:
                    slope, offset = token_logits[..., 0], shift[..., 0]
                else:
                    slope, offset = token_logits[..., 1] - token_logits[..., 0], shift[..., 1] - shift[..., 0]
                attention, jsd = exact_adversarial_attention(reading, slope, offset, self.epsilon, real)
                return view.rows_of(attention[:, None]), jsd, "exact"
            bound = adversarial_upper_bound(reading, token_logits, shift, self.epsilon, real)
            return self._search(view), bound, "bracketed"
        return self._search(view), nothing, "searched"

    def _search(self, view: AttentionView) -> Tensor:
        """By gradient; where a model of two classes must be run for it, among vertices and edges first, and by gradient
        only for batches in which some instance has no feasible one."""
        if view.probabilities.shape[-1] == 2 and not view.adapter.capabilities.decodes:
            point, feasible = view.edges.best(self.epsilon)
            if bool((feasible | view.attention.isnan().all(1) | (view.lengths < 2)).all()):
                return view.rows_of(point[:, None])
            found = self._descend(view, settings="brief")
            return torch.where(feasible[:, None, None], view.rows_of(point[:, None]), found)
        return self._descend(view, settings="default")

    def _descend(self, view: AttentionView, *, settings: str) -> Tensor:
        def decode(weights: Tensor) -> Tensor:
            return probabilities(view.decode_differentiably(view.rows_of(weights)))

        found = search(
            view.head_attention,
            decode,
            self.epsilon,
            view.free[:, 0],
            settings=PRESETS[settings],
            seeds=[keyed_integer(view.seed, self.name, one.id) for one in view.instances],
            shares=view.head_mass,
        )
        return view.rows_of(found.heads)


@measures.register("adversarial")
def adversarial(argument: str) -> Measure:
    """adversarial.<ε>, such as adversarial.0.01, or adversarial.jain_wallace.<ε>: searched as they do"""
    named = argument.removeprefix(f"{JAIN_WALLACE}.")
    try:
        epsilon = float(named)
    except ValueError:
        epsilon = math.nan
    if not 0 <= epsilon <= 1:
        raise CheckError(f"'adversarial.{argument}': expected a total variation between 0 and 1, as adversarial.0.01.")
    preset = JAIN_WALLACE if named != argument else ""
    return Adversarial(name=f"adversarial.{argument}", epsilon=epsilon, preset=preset)
