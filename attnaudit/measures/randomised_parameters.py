"""Model-parameter randomisation: the attention and the gradient importance of copies with redrawn parameters.

A redrawn copy has the architecture of the model, but random parameters of the same scale. Source: Adebayo et al. 2018,
"Sanity checks for saliency maps".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations

import torch
from torch import Tensor, nn

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AdapterError
from attnaudit.measures import AttentionView, Columns, Request, StatefulMeasure, measure
from attnaudit.measures.gradient import normalised
from attnaudit.metrics import jensen_shannon, kendall_tau_b
from attnaudit.seeding import keyed_integer

#: Number of redrawn copies.
COPIES = 3
#: The feature importance that is compared in addition to attention.
IMPORTANCE = "gradient.meister.inputs"


def parameters_of(adapter: ModelAdapter) -> dict[str, nn.Parameter]:
    """Return all parameters of a model, each exactly once.

    Returns:
        "<index of the module>.<name of the parameter>" -> parameter. A shared parameter appears only under the first of
        its names.

    Raises:
        AdapterError: A parameter is offloaded.
    """
    parameters: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for number, module in enumerate(adapter.modules):
        for name, parameter in module.named_parameters():
            if parameter.is_meta:
                raise AdapterError(
                    f"Parameter randomisation replaces all parameters, but accelerate has offloaded '{name}'. Load the "
                    "model without offloading, or remove the check ParameterRandomisation from the policy."
                )
            if id(parameter) not in seen:
                seen.add(id(parameter))
                parameters[f"{number}.{name}"] = parameter
    return parameters


def redrawn_values(name: str, parameter: Tensor, *, seed: int, copy: int) -> Tensor:
    """Redraw a parameter from a normal distribution with the mean and standard deviation of its entries.

    This keeps the scale of the parameter and destroys its structure. A tensor with equal entries does not change. A
    tensor with a single entry is multiplied by a random sign.

    Args:
        name: Name of the parameter. The random numbers depend on the name, the seed and the copy.
        parameter: The trained parameter.
        seed: Seed of the audit.
        copy: Index of the copy.
    """
    generator = torch.Generator().manual_seed(keyed_integer(seed, "randomised", str(copy), name))
    noise = torch.randn(parameter.shape, generator=generator).to(parameter)
    if parameter.numel() == 1:
        return parameter.detach() * noise.sign()
    return parameter.detach().mean() + parameter.detach().std() * noise


@contextmanager
def redrawn(adapter: ModelAdapter, values: dict[str, Tensor]) -> Iterator[None]:
    """Replace the parameter values of the model inside the context, and restore them at the end, even after an error.

    The values are replaced in the model itself, because a copy of the adapter might still run the original modules: the
    functions from which the adapter was built may refer to them.

    Args:
        adapter: The model.
        values: New value of every parameter, with the keys of `parameters_of`.
    """
    parameters = parameters_of(adapter)
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = values[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]


@measure("randomised", requires=(IMPORTANCE,), gradients=True)
class Randomised(StatefulMeasure):
    """Compare the attention and the gradient importance of the model with those of copies with redrawn parameters.

    The gradient importance is the gradient norm at the inputs. For each copy, it is the gradient of the class that this
    copy predicts. The name of a column begins with `.attention` or `.gradient`, and continues with:

    * `.tau`: Kendall's τ-b between the model and a copy, averaged over the copies.
    * `.jsd`: the Jensen-Shannon divergence in nats between the model and a copy, averaged over the copies.
    * `.tau.1`, `.jsd.1` and so on: the value for a single copy.
    * `.tau.floor`, `.jsd.floor`: τ-b and the JSD between two copies, averaged over all pairs of copies.

    All columns are undefined for texts with one token. τ-b is also undefined if all values of the model or of a copy
    are tied.
    """

    uses_lengths = False
    keeps_rows = False

    def __init__(self, name: str, argument: None, lengths: Sequence[int]) -> None:
        super().__init__(name, argument, lengths)
        self._copies: list[dict[str, Tensor]] = []

    def compute(self, view: AttentionView, request: Request) -> Columns:
        """Run every copy on the batch, and compare it with the model and with the other copies."""
        if not self._copies:
            parameters = parameters_of(view.adapter)
            self._copies = [
                {name: redrawn_values(name, p, seed=view.seed, copy=copy) for name, p in parameters.items()}
                for copy in range(COPIES)
            ]
        rows: dict[str, list[Tensor]] = {
            "attention": [view.attention],
            "gradient": [request.required.tokens[IMPORTANCE]],
        }
        for values in self._copies:
            attention, gradient = self._run_copy(view, values)
            rows["attention"].append(attention)
            rows["gradient"].append(gradient)
        real, undefined = view.real, view.lengths < 2
        scalars: dict[str, Tensor] = {}
        for quantity, (own, *copies) in rows.items():
            for statistic, compare in (("tau", kendall_tau_b), ("jsd", jensen_shannon)):
                to_copy = torch.stack([compare(own, copy, real) for copy in copies])
                between = torch.stack([compare(a, b, real) for a, b in combinations(copies, 2)]).nanmean(0)
                column = f"{self.name}.{quantity}.{statistic}"
                scalars[column] = to_copy.nanmean(0).masked_fill(undefined, torch.nan)
                for number, values_of_copy in enumerate(to_copy, start=1):
                    scalars[f"{column}.{number}"] = values_of_copy.masked_fill(undefined, torch.nan)
                scalars[f"{column}.floor"] = between.masked_fill(undefined, torch.nan)
        return Columns(scalars=scalars)

    def _run_copy(self, view: AttentionView, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the attention and the gradient importance, each (B, T), under other parameter values."""
        with redrawn(view.adapter, values):
            copy = AttentionView(view.batch.read_by(view.adapter, keep_graph=True), view.reading)
            gradient = normalised(copy.unit_norms(copy.gradient[0]), copy.real)
            return copy.attention, gradient

    def finish(self, measurements: Measurements) -> None:
        """Free the redrawn parameters."""
        self._copies = []
