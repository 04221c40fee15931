"""Fragility and total effect: how far the output moves when the attention weights are permuted or made uniform.

There are three choices of the rows whose weights are replaced: the rows that the reading (the attention shown to
people) uses, all rows of its layer, or all rows of every layer of its stack (such as the encoder). Later layers are
recomputed from the changed states. Sources: Jain & Wallace 2019, §4.2.1; Tutek & Šnajder 2020; Homma & Saltelli 1996;
Jansen 1999.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from attnaudit.engine.batches import interventions
from attnaudit.engine.batches.attention_view import Extent
from attnaudit.engine.batches.logits import centred_logits, probabilities, without_rounding
from attnaudit.errors import CheckError, nearest
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.measures.rearrangements import rearrangements
from attnaudit.metrics import total_variation
from attnaudit.precision import EPSILONS, FLOAT32

#: Permutations per instance (Jain & Wallace 2019).
PERMUTATIONS = 100
#: Permutations per instance if whole layers are permuted. There are fewer, since each permutation needs a pass through
#: the model.
LAYER_PERMUTATIONS = 10
#: The largest number of rearrangements per instance whose logits are stored.
KEPT = 16
#: The key of the logits under uniform weights in `AttentionView.memo`.
UNIFORM = "uniform"
EXTENTS: tuple[Extent, ...] = ("reading", "layer", "everywhere.live", "everywhere.frozen")


def extent_of(text: str) -> Extent:
    """Parse the argument of a measure of this module: "", "layer", "everywhere.live" or "everywhere.frozen"."""
    extent = next((extent for extent in EXTENTS if extent == (text or "reading")), None)
    if extent is None:
        raise CheckError(f"'{text}' is not a place where attention can be replaced. {nearest(text, EXTENTS)}")
    return extent


def _nothing_shown(view: AttentionView) -> Tensor:
    """Return a (B,) mask, True for instances without attention on real tokens, where nothing can be replaced."""
    return (view.attention.isnan() & view.real).any(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermutedOutputs:
    """The outputs under permuted weights, shared by the measures `permutation` and `rearrangement`.

    Attributes:
        logits: (B, V, C) logits of the variants, float64.
        differs: (B, V) mask, as in `Rearrangements`.
        published: (B, R) indices, as in `Rearrangements`.
        distinct: (B,) numbers, as in `Rearrangements`.
    """

    logits: Tensor
    differs: Tensor
    published: Tensor
    distinct: Tensor


def permuted_outputs(view: AttentionView, extent: Extent) -> PermutedOutputs:
    """Run the model under permuted weights, once for all measures of the batch."""
    key = f"permuted.{extent}"
    if key not in view.memo:
        count = PERMUTATIONS if extent == "reading" else LAYER_PERMUTATIONS
        drawn = rearrangements(view, extent, count)
        rows, variants, width = drawn.index.shape
        step = max(view.variants_per_pass, view.budget * variants // max(1, rows * width))
        with view.sharing(key):
            parts = [
                _permuted_logits(view, extent, drawn.index[:, start : start + step])
                for start in range(0, variants, step)
            ]
        view.memo[key] = PermutedOutputs(
            logits=torch.cat(parts, dim=1),
            differs=drawn.differs,
            published=drawn.published,
            distinct=drawn.distinct,
        )
    view.use(key)
    outputs: PermutedOutputs = view.memo[key]
    return outputs


@measure("permutation", argument=extent_of)
def permutation(view: AttentionView, request: Request) -> Columns:
    """Return how far the output moves under random permutations of the weights. The identity is not excluded.

    The columns are NaN for texts without attention on real tokens:

    * `.tvd`: the total variation between the permuted and the original output, as the median over the permutations.
    * `.predicted`: the predicted class under each permutation.
    """
    permuted = permuted_outputs(view, request.argument)
    output = probabilities(permuted.logits)
    distances = total_variation(output, view.probabilities[:, None, :].expand_as(output)).gather(1, permuted.published)
    median = _median(distances)
    undefined, classes = _nothing_shown(view), output.argmax(-1).gather(1, permuted.published).double()
    return Columns(
        scalars={f"{request.name}.tvd": median.masked_fill(undefined, torch.nan)},
        vectors={f"{request.name}.predicted": classes.masked_fill(undefined[:, None], torch.nan)},
    )


def _median(values: Tensor) -> Tensor:
    """Return the (B,) medians of the rows of values (B, R); NaN for rows with a NaN.

    If R is even, the median is the mean of the two middle values, as in the published code. `quantile` gives the same
    numbers, but takes longer; `median` gives the lower one of the two.
    """
    ordered, last = values.sort(dim=1).values, values.shape[1] - 1
    median = torch.lerp(ordered[:, last // 2], ordered[:, (last + 1) // 2], 0.5)
    return median.masked_fill(ordered[:, last].isnan(), torch.nan)


@measure("rearrangement", argument=extent_of)
def rearrangement(view: AttentionView, request: Request) -> Columns:
    """Return how far the output moves under permutations of the weights that differ from the model's attention.

    If a text has few such permutations, all of them are enumerated. Otherwise, they are drawn at random. If the decoder
    is linear and a single row is permuted, `.logits` is the exact expectation over all such permutations, for texts of
    any length.

    The columns are NaN for texts without attention on real tokens, with one token, or with equal weights only:

    * `.logits`: the mean squared Euclidean distance of the centred logits from those of the original output. Classes
      that are not possible answers for the row are left out.
    * `.probabilities`: the mean squared Euclidean distance of the class probabilities from the original ones.
    * `.tvd`: the median total variation.
    * `.decisions`: the share of the rearrangements under which each class is predicted.
    * `.predicted`: the predicted class under as many rearrangements as `permutation` has permutations. If there are
      fewer rearrangements, they are repeated to reach this number.
    * `.centred_logits`: the centred logits under 16 rearrangements, one after the other. If there are more, 16 random
      ones are stored. If there are fewer, all of them are stored, and the rest is filled with NaN.
    """
    permuted = permuted_outputs(view, request.argument)
    differs = permuted.differs & ~_nothing_shown(view)[:, None]
    number = differs.sum(1)
    defined = number > 0
    output, clean = probabilities(permuted.logits), view.probabilities[:, None, :]

    def mean(values: Tensor) -> Tensor:
        """Return the (B, ...) means of (B, V, ...) values over the rearrangements; NaN for instances without any."""
        mask = differs.reshape(*differs.shape, *[1] * (values.dim() - 2))
        total = torch.where(mask, values, 0.0).sum(1)
        return total / torch.where(defined, number.double(), torch.nan).reshape(-1, *[1] * (values.dim() - 2))

    open_classes = None if view.open_classes is None else view.open_classes[:, None, :]
    original = view.logits[:, None, :]
    logits = centred_logits(without_rounding(permuted.logits, original), open_classes)
    if request.argument == "reading" and view.token_logits is not None:
        moved = torch.where(defined, _expected_squared_change(view, permuted.distinct), torch.nan)
    else:
        change = logits - centred_logits(original, open_classes)
        moved = mean(change.square().sum(-1))
    distances = total_variation(output, clean.expand_as(output)).masked_fill(~differs, torch.nan)
    classes = output.argmax(-1)
    # The rearrangements of a row are repeated until there is one for each permutation.
    first = (~differs).to(torch.uint8).sort(dim=1, stable=True).indices
    repeated = torch.arange(permuted.published.shape[1], device=view.device) % number.clamp_min(1)[:, None]
    predicted = classes.gather(1, first.gather(1, repeated)).double()
    return Columns(
        scalars={
            f"{request.name}.logits": moved,
            f"{request.name}.probabilities": mean((output - clean).square().sum(-1)),
            f"{request.name}.tvd": distances.nanquantile(0.5, dim=1),
        },
        vectors={
            f"{request.name}.decisions": mean(functional.one_hot(classes, output.shape[-1]).double()),
            f"{request.name}.predicted": predicted.masked_fill(~defined[:, None], torch.nan),
            f"{request.name}.centred_logits": _kept(logits, differs, permuted.published, first).flatten(1),
        },
    )


def _kept(logits: Tensor, differs: Tensor, published: Tensor, first: Tensor) -> Tensor:
    """Return the (B, K, C) logits of up to K = 16 rearrangements per instance; NaN if there are fewer.

    Args:
        logits: (B, V, C) logits of the variants.
        differs: (B, V) True at the rearrangements.
        published: (B, R) the variant that equals each of R random permutations. Up to K rearrangements are all kept. If
            there are more, the first ones among the random permutations are kept, because the order of the variants may
            not be random.
        first: (B, V) indices of the variants, with the rearrangements first.
    """
    count, number = min(KEPT, published.shape[1]), differs.sum(1, keepdim=True)
    every = functional.pad(first, (0, max(0, count - first.shape[1])))[:, :count]
    drawn = differs.gather(1, published)
    order = (~drawn).to(torch.uint8).sort(dim=1, stable=True).indices[:, :count]
    few, position = number <= count, torch.arange(count, device=logits.device)
    variant = torch.where(few, every, published.gather(1, order))
    exists = torch.where(few, position < number, drawn.gather(1, order))
    kept = logits.gather(1, variant[..., None].expand(-1, -1, logits.shape[-1]))
    return kept.masked_fill(~exists[..., None], torch.nan)


def _expected_squared_change(view: AttentionView, distinct: Tensor) -> Tensor:
    """Return the (B,) expected squared change of the centred logits under a rearrangement, for a linear decoder.

    Let the n weights α_i have mean ā and variance s², and let the logits w_i of the tokens have mean w̄. Two permuted
    weights have the covariance -s² / (n - 1). Therefore, a random permutation has the expected squared change ‖Σ (ā -
    α_i) w_i‖² + s² n / (n - 1) Σ ‖w_i - w̄‖². A share 1 / `distinct` of the permutations restores α and changes
    nothing. The result is the expectation over all other permutations.
    """
    assert view.token_logits is not None
    movable = view.attendable[:, 0, :, None].double()
    count = movable.sum(1).clamp_min(1)
    of_tokens, weights = view.token_logits[0], view.head_patterns[:, 0, :, None]
    # A very large bias leaves only rounding errors of a class in the logits of the clean pass.
    varying = (of_tokens * movable).abs().amax(1, keepdim=True) > EPSILONS[FLOAT32] * view.logits.abs()[:, None]
    logits = centred_logits(torch.where(varying, of_tokens, 0.0))
    logits = (logits - (logits * movable).sum(1, keepdim=True) / count[:, None]) * movable
    weights = (weights - (weights * movable).sum(1, keepdim=True) / count[:, None]) * movable
    to_uniform = (weights * logits).sum(1).square().sum(-1)
    variance = weights.square().sum(1) / (count - 1).clamp_min(1)
    changed = to_uniform + variance[:, 0] * logits.square().sum((1, 2))
    return changed / (1 - 1 / distinct)


def _permuted_logits(view: AttentionView, extent: Extent, index: Tensor) -> Tensor:
    """Return the (B, V, C) logits under (B, V, T) permutations."""
    if extent == "reading":
        return view.logits_permuted(index)

    def change(weights: Tensor, attendable: Tensor, part: slice) -> Tensor:
        return interventions.permuted(weights, index[:, part].reshape(-1, 1, 1, index.shape[2]), attendable)

    return view.logits_with_changed_layers(extent, index.shape[1], change)


@measure("uniform", argument=extent_of)
def uniform(view: AttentionView, request: Request) -> Columns:
    """Return how far the output moves if each head spreads its weight on real tokens equally over these tokens.

    The columns are NaN for texts without attention on real tokens:

    * `.tvd`: the total variation between the output under uniform weights and the original output.
    * `.predicted`: the predicted class under uniform weights.
    """
    output, undefined = probabilities(_uniform_logits(view, request))[:, 0, :], _nothing_shown(view)
    return Columns(
        scalars={
            f"{request.name}.tvd": total_variation(output, view.probabilities).masked_fill(undefined, torch.nan),
            f"{request.name}.predicted": output.argmax(-1).double().masked_fill(undefined, torch.nan),
        }
    )


def _uniform_logits(view: AttentionView, request: Request) -> Tensor:
    """Return the (B, 1, C) logits under uniform weights."""
    if request.argument == "reading":
        if UNIFORM not in view.memo:
            shares = view.batch.real_tokens.double()[:, None, :]
            views = [one for one in request.views if one.reads_same_row(view)]
            if len(views) > 1:
                with view.batch.sharing(f"{UNIFORM} at {view.site.key}"):
                    together = view.logits_with_token_shares_by_view(views, shares)
                for one, logits in zip(views, together, strict=True):
                    one.memo[UNIFORM] = logits
            else:
                view.memo[UNIFORM] = view.logits_with_token_shares(shares)
        else:
            view.batch.use(f"{UNIFORM} at {view.site.key}")
        under_uniform: Tensor = view.memo[UNIFORM]
        return under_uniform

    def change(weights: Tensor, attendable: Tensor, _part: slice) -> Tensor:
        return interventions.redistributed(weights.double(), attendable.double(), attendable)

    return view.logits_with_changed_layers(request.argument, 1, change)
