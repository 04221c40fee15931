"""Adversarial attention: weights that differ as much as possible but leave the output almost unchanged.

The adversarial attention changes the output by a total variation of at most ε. Among all such attention weights, it has
the largest Jensen-Shannon divergence (JSD) to the model's attention (Jain & Wallace 2019, §4.2.2). For linear decoders
with two classes, it is computed exactly (see `attnaudit.metrics.exact_adversarial_attention`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnaudit.engine.batches.logits import probabilities
from attnaudit.errors import AdapterError, CheckError
from attnaudit.measures import AttentionView, Columns, Request, measure
from attnaudit.metrics import (
    adversarial_upper_bound,
    exact_adversarial_attention,
    jensen_shannon,
    largest_jensen_shannon,
    total_variation,
)
from attnaudit.metrics.searched_adversary import PRESETS, search
from attnaudit.precision import logit_rounding
from attnaudit.seeding import keyed_integer

#: When a float32 model runs with the adversarial attention, the total variation may exceed ε by this amount, because of
#: rounding. In half precision, it may exceed ε by half of the rounding error of the logits.
ROUNDING = 1e-5
#: Name of the preset with the published search of Jain & Wallace 2019, for comparison. The search is slower than the
#: exact computation, and never finds a larger JSD.
JAIN_WALLACE = "jain_wallace"
COLUMNS = ("jsd", "most", "share", "tvd", "upper")


@dataclass(frozen=True)
class AdversarialArgument:
    """The argument of `adversarial`.

    Attributes:
        epsilon: Largest total variation of the output.
        preset: Name of the settings of a gradient search; "" to choose the best method for the decoder.
    """

    epsilon: float
    preset: str

    @property
    def fact(self) -> str:
        """Name of the fact that records the method, such as "adversarial.method"."""
        return ".".join(part for part in ("adversarial", self.preset, "method") if part)


def preset_and_epsilon(text: str) -> AdversarialArgument:
    """Parse "<ε>" or "jain_wallace.<ε>", such as "0.01".

    Raises:
        CheckError: ε is not a number between 0 and 1.
    """
    number = text.removeprefix(f"{JAIN_WALLACE}.")
    try:
        epsilon = float(number)
    except ValueError:
        epsilon = math.nan
    if not 0 <= epsilon <= 1:
        raise CheckError(f"expected a total variation between 0 and 1, as in adversarial.0.01, but got '{text}'.")
    return AdversarialArgument(epsilon, JAIN_WALLACE if number != text else "")


def searchable(view: AttentionView) -> bool:
    """Return whether the reading (the attention shown to people) is plain attention with one row per head.

    Adversarial weights replace this row. Other readings have no such row.
    """
    return view.plain_attention and view.scope.single_row


@measure("adversarial", argument=preset_and_epsilon)
def adversarial(view: AttentionView, request: Request) -> Columns:
    """Return the adversarial attention of every instance, and how far it is from the model's attention.

    The columns are:

    * `.jsd`: JSD between the adversarial attention and the model's attention, in nats. NaN for texts with one token.
    * `.most`: the largest JSD between any attention and the model's attention, without the limit on the output. NaN for
      texts with one token.
    * `.share`: `.jsd` divided by `.most`.
    * `.tvd`: total variation of the output when the model runs with the adversarial attention.
    * `.upper`: an upper bound on the JSD of any attention within the limit. It equals `.jsd` for an exact optimum. It
      is NaN if the method has no bound.
    * `.attention`: the adversarial attention.

    The fact `adversarial.method` (with a preset, `adversarial.<preset>.method`) records the method: "exact",
    "bracketed" for a search with an upper bound, or "searched" for a search without one. If the reading is not plain
    attention with one row per head, all columns are NaN, and the fact is "not possible for this reading".

    Raises:
        AdapterError: The total variation exceeds ε when the model runs with the adversarial attention.
    """
    argument: AdversarialArgument = request.argument
    real, attention = view.real, view.attention
    if not searchable(view):
        undefined = torch.full_like(view.special_mass, torch.nan)
        return Columns(
            scalars={f"{request.name}.{column}": undefined for column in COLUMNS},
            tokens={f"{request.name}.attention": torch.full_like(attention, torch.nan)},
            facts={argument.fact: "not possible for this reading"},
        )
    head_patterns, upper, method = _find(view, request.name, argument)
    adversary = view.to_attention(head_patterns)
    single = view.lengths < 2
    jsd = jensen_shannon(adversary, attention, real).masked_fill(single, torch.nan)
    most = largest_jensen_shannon(attention, real).masked_fill(single, torch.nan)
    output = probabilities(view.decode_by_model(head_patterns[:, None]))[:, 0, :]
    tvd = total_variation(output, view.probabilities)
    counted = view.logits if view.open_classes is None else view.logits.masked_fill(~view.open_classes, 0.0)
    rounding = logit_rounding(view.precision) * counted.abs().amax(-1).clamp(min=1) / 2
    exceeds = tvd > argument.epsilon + rounding.clamp(min=ROUNDING)
    if bool(exceeds.any()):
        row = int(exceeds.int().argmax())
        instance = view.instances[row]
        raise AdapterError(
            f"{instance.where or instance.id}: the adversarial attention found at ε={argument.epsilon:g} changes the "
            f"output by a total variation of {tvd[row].item():.6f} when the model is run with it; expected at most ε. "
            "The output of the adapter's decoder must depend only on the weights and the hidden states."
        )
    scalars = {
        "jsd": jsd,
        "most": most,
        "share": torch.where(most > 0, jsd / most, torch.full_like(jsd, torch.nan)),
        "tvd": tvd,
        "upper": torch.maximum(upper, jsd),
    }
    return Columns(
        scalars={f"{request.name}.{column}": scalars[column] for column in COLUMNS},
        tokens={f"{request.name}.attention": adversary},
        facts={argument.fact: method},
    )


def _find(view: AttentionView, name: str, argument: AdversarialArgument) -> tuple[Tensor, Tensor, str]:
    """Find the adversarial attention by the best method for the decoder.

    Returns:
        (B, H, T) adversarial weights, one row per head, including special tokens; (B,) upper bound of the JSD, NaN if
        the method has none; and the method: "exact", "bracketed" or "searched".
    """
    unknown = torch.full_like(view.special_mass, torch.nan)
    if argument.preset:
        return _descend(view, name, argument.epsilon, settings=argument.preset), unknown, "searched"
    real, attention = view.attendable[:, 0], view.token_attention
    if view.token_logits is not None:
        token_logits, bias = view.token_logits
        # Special tokens keep their weights, so they contribute a constant to the logits. The other contributions are
        # scaled by the total weight on real tokens.
        real_mass = 1 - view.special_mass
        constant = ((view.token_scores * ~real)[:, None, :] @ token_logits)[:, 0, :] + bias
        token_logits = token_logits * real_mass[:, None, None]
        if token_logits.shape[-1] <= 2:
            if token_logits.shape[-1] == 1:
                slope, offset = token_logits[..., 0], constant[..., 0]
            else:
                slope, offset = token_logits[..., 1] - token_logits[..., 0], constant[..., 1] - constant[..., 0]
            adversary, jsd = exact_adversarial_attention(attention, slope, offset, argument.epsilon, real)
            return view.to_head_patterns(adversary[:, None]), jsd, "exact"
        bound = adversarial_upper_bound(attention, token_logits, constant, argument.epsilon, real)
        return _search(view, name, argument.epsilon), bound, "bracketed"
    return _search(view, name, argument.epsilon), unknown, "searched"


def _search(view: AttentionView, name: str, epsilon: float) -> Tensor:
    """Search for (B, H, T) adversarial weights, one row per head.

    For most models, this is a gradient search. For a model without `decode`, every step of the gradient search needs a
    pass through the layers. If such a model has two classes, the search therefore begins with the vertices and edges of
    the simplex of weights. A short gradient search follows only if, for some instance, these contain no weights within
    the limit.
    """
    if view.probabilities.shape[-1] == 2 and not view.adapter.capabilities.decodes:
        point, feasible = view.edge_candidates.best(epsilon)
        if bool((feasible | view.attention.isnan().all(1) | (view.lengths < 2)).all()):
            return view.to_head_patterns(point[:, None])
        searched = _descend(view, name, epsilon, settings="brief")
        return torch.where(feasible[:, None, None], view.to_head_patterns(point[:, None]), searched)
    return _descend(view, name, epsilon, settings="default")


def _descend(view: AttentionView, name: str, epsilon: float, *, settings: str) -> Tensor:
    """Return (B, H, T) weights found by gradient search, one row per head.

    The random starting points of an instance depend only on the seed of the audit, the name of the measure, the id of
    the instance and the number of its attendable tokens.

    Args:
        view: B instances.
        name: Name of the measure.
        epsilon: Largest total variation of the output.
        settings: Name of the settings in `PRESETS`.
    """

    def decode(weights: Tensor) -> Tensor:
        return probabilities(view.decode_differentiably(view.to_head_patterns(weights)))

    result = search(
        view.head_attention,
        decode,
        epsilon,
        view.attendable[:, 0],
        settings=PRESETS[settings],
        seeds=[keyed_integer(view.seed, name, instance.id) for instance in view.instances],
        shares=view.head_real_mass,
    )
    return view.to_head_patterns(result.heads)
