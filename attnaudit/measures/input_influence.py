"""Input influence on hidden states: how much of h_p comes from each token (M eq. 5)."""

from __future__ import annotations

import torch

from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.errors import CheckError
from attnaudit.measures.gradient import normalised
from attnaudit.metrics import normalized_entropy
from attnaudit.registry import measures


class Influence(PerBatch):
    """entropy: H̃ of g_{h_p}(x), mean over p; undefined with one token. own_share: g_{h_p}(x_p), mean over p.
    rival_share: the largest share of another token, mean over p. co_indexed_entropy: H̃ of one distribution, the
    influence of each token on its own state, ‖∂‖h_i‖₂/∂E_i‖₂ normalised over i. The (B, T, T) influences are never
    held: one position at a time."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        real, lengths = view.real, view.lengths
        entropy = torch.zeros(real.shape[0], dtype=torch.float64, device=real.device)
        own, rival = torch.zeros_like(entropy), torch.zeros_like(entropy)
        on_own = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
        nothing = torch.zeros_like(real[:, 0])
        for p in range(real.shape[1]):
            here = real[:, p]
            if not bool(here.any()):
                continue
            influence = view.influence(p)
            on_own[:, p] = torch.where(here, influence[:, p], 0.0)
            shares = normalised(influence, real)
            nothing = nothing | (here & shares[:, p].isnan())
            kept = shares.nan_to_num(0.0)
            others = kept.clone()
            others[:, p] = 0.0
            entropy += torch.where(here, normalized_entropy(kept, real).nan_to_num(0.0), 0.0)
            own += torch.where(here, kept[:, p], 0.0)
            rival += torch.where(here, others.amax(1), 0.0)
            view.batch.tell(p + 1, real.shape[1], "influences on hidden states")
        undefined = (lengths < 2) | nothing
        scalars = {
            "entropy": entropy / lengths,
            "own_share": own / lengths,
            "rival_share": rival / lengths,
            "co_indexed_entropy": normalized_entropy(on_own, real),
        }
        return Columns(scalars={f"{self.name}.{k}": v.masked_fill(undefined, float("nan")) for k, v in scalars.items()})


@measures.register("influence")
def influence(argument: str) -> Measure:
    if argument != "hidden":
        raise CheckError(f"'influence.{argument}': expected influence.hidden.")
    return Influence(name="influence.hidden", gradients=True)


class Entropy(PerBatch):
    """H̃ of a feature importance over the real tokens; undefined with one token or where the importance is."""

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        scores = columns.tokens[self.requires[0]]
        return Columns(scalars={self.name: normalized_entropy(scores, view.real)})


@measures.register("entropy")
def entropy(argument: str) -> Measure:
    """entropy.<feature importance>"""
    if not argument:
        raise CheckError("'entropy': name the feature importance, such as entropy.gradient.meister.inputs.")
    return Entropy(name=f"entropy.{argument}", requires=(argument,))
