"""The influence of the inputs on the hidden states, and the entropy of feature importances (Meister et al. 2021)."""

from __future__ import annotations

import torch

from attnaudit.adapters.protocol import TEXT
from attnaudit.errors import CheckError
from attnaudit.measures import AttentionView, Columns, Request, measure, one_of
from attnaudit.measures.gradient import normalised
from attnaudit.metrics import normalized_entropy
from attnaudit.precision import tolerance


@measure("influence", argument=one_of("hidden"), gradients=True)
def influence(view: AttentionView, request: Request) -> Columns:
    """Return how the influence on each hidden state is distributed over the inputs (Meister et al. 2021, eq. 5).

    The influence of token i on hidden state p is ‖∂‖h_p‖₂/∂E_i‖₂, where E_i is the embedding of token i. Let g_p be the
    distribution of the influence on hidden state p over the real tokens. If the encoder ends with a normalisation layer
    and the adapter gives the states before it (`Trace.before_norm`), h_p is the state before it. The columns are:

    * `.entropy`: normalised entropy of g_p, averaged over p.
    * `.own_share`: the share of token p in g_p, averaged over p. It is the influence of a token on its own state.
    * `.rival_share`: the largest share of any other token in g_p, averaged over p.
    * `.co_indexed_entropy`: normalised entropy of the influences of the tokens i on their own hidden states i, after
      these influences are divided by their sum.

    All columns are undefined for texts with one token, and for texts with a hidden state whose norm no input changes.
    After a normalisation layer with equal weights, for instance, every state has the same norm, and its gradients are
    rounding errors.
    """
    real, lengths = view.real, view.lengths
    entropy = torch.zeros(real.shape[0], dtype=torch.float64, device=real.device)
    own_share, rival_share = torch.zeros_like(entropy), torch.zeros_like(entropy)
    on_own_state = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
    no_influence = torch.zeros_like(real[:, 0])
    for p in range(real.shape[1]):  # one position at a time: the (B, T, T) influences may not fit in memory
        is_real = real[:, p]
        if not bool(is_real.any()):
            continue
        influences = _without_rounding_errors(view, p, view.influence(p))
        on_own_state[:, p] = torch.where(is_real, influences[:, p], 0.0)
        shares = normalised(influences, real)
        no_influence = no_influence | (is_real & shares[:, p].isnan())
        shares = shares.nan_to_num(0.0)
        others = shares.clone()
        others[:, p] = 0.0
        entropy += torch.where(is_real, normalized_entropy(shares, real).nan_to_num(0.0), 0.0)
        own_share += torch.where(is_real, shares[:, p], 0.0)
        rival_share += torch.where(is_real, others.amax(1), 0.0)
        view.batch.report_progress(p + 1, real.shape[1], "influences on hidden states")
    undefined = (lengths < 2) | no_influence
    scalars = {
        "entropy": entropy / lengths,
        "own_share": own_share / lengths,
        "rival_share": rival_share / lengths,
        "co_indexed_entropy": normalized_entropy(on_own_state, real),
    }
    return Columns(
        scalars={
            f"{request.name}.{column}": values.masked_fill(undefined, float("nan"))
            for column, values in scalars.items()
        }
    )


def _without_rounding_errors(view: AttentionView, position: int, influences: torch.Tensor) -> torch.Tensor:
    """Set the influences (B, T) on one hidden state to zero in the rows in which they are only rounding errors."""
    relative = influences.norm(dim=-1) * view.embeddings[TEXT].detach().double().norm(dim=(-2, -1))
    norms = view.influenced_states[:, position].detach().double().norm(dim=-1)
    # A relative change of ‖h_p‖, per relative change of all embeddings, below the tolerance is a rounding error.
    return torch.where((relative > tolerance(view.precision) * norms)[:, None], influences, 0.0)


def _importance(text: str) -> str:
    """Parse the name of a feature importance.

    Raises:
        CheckError: The name is empty.
    """
    if not text:
        raise CheckError("the feature importance is missing. Name it, as in entropy.gradient.meister.inputs.")
    return text


@measure("entropy", argument=_importance, requires=lambda importance: (importance,))
def entropy(view: AttentionView, request: Request) -> Columns:
    """Return the normalised entropy of a feature importance over the real tokens.

    It is undefined for texts with one token, and for texts whose feature importance is undefined.
    """
    scores = request.required.tokens[request.argument]
    return Columns(scalars={request.name: normalized_entropy(scores, view.real)})
