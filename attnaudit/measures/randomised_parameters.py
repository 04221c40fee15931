"""Model-parameter randomisation: attention and importance of copies of the model with re-drawn parameters (Adebayo et
al. 2018, "Sanity checks for saliency maps")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations

import torch
from torch import Tensor, nn

from attnaudit.adapters.protocol import ModelAdapter
from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import Batch
from attnaudit.engine.columns import Columns, Measure
from attnaudit.engine.measurements import Measurements
from attnaudit.measures.gradient import normalised
from attnaudit.measures.prediction import no_argument
from attnaudit.metrics import jensen_shannon, kendall_tau_b
from attnaudit.registry import measures
from attnaudit.seeding import keyed_integer

#: Re-drawn copies.
COPIES = 3


def parameters_of(adapter: ModelAdapter) -> dict[str, nn.Parameter]:
    """Every parameter once, by the number of its module and its name."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for number, module in enumerate(adapter.modules):
        for name, parameter in module.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{number}.{name}"] = parameter
    return found


def drawn_again(name: str, parameter: Tensor, *, seed: int, copy: int) -> Tensor:
    """Normal entries with the mean and the standard deviation of the parameter's own, so that scale is kept and
    structure lost. Entries that are all equal stay as they are; a single entry gets a random sign."""
    generator = torch.Generator().manual_seed(keyed_integer(seed, "randomised", str(copy), name))
    noise = torch.randn(parameter.shape, generator=generator).to(parameter)
    if parameter.numel() == 1:
        return parameter.detach() * noise.sign()
    return parameter.detach().mean() + parameter.detach().std() * noise


@contextmanager
def redrawn(adapter: ModelAdapter, values: dict[str, Tensor]) -> Iterator[None]:
    """The model with other parameter values; its own tensors are put back at the end, whatever happens.

    They are exchanged rather than copied with the model, since parts given as functions keep hold of the modules that
    they were made with."""
    parameters = parameters_of(adapter)
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = values[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]


class Randomised:
    """.attention.tau, .gradient.tau: Kendall's τ-b between the model's and a re-drawn copy's attention, and gradient
    norm at the inputs (each of its own predicted class), mean over the copies. .jsd: Jensen-Shannon divergence (nats)
    of the same. .tau.1, ...: of each copy. .tau.floor, .jsd.floor: the same between two copies, mean over pairs.
    Undefined with one token; τ also where all are tied."""

    name = "randomised"
    requires: tuple[str, ...] = ("gradient.meister.inputs",)
    gradients = True
    depends_on_reading = True

    def __init__(self) -> None:
        self._values: list[dict[str, Tensor]] = []

    def start(self, lengths: object) -> None:
        self._values = []

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        if not self._values:
            parameters = parameters_of(view.adapter)
            self._values = [
                {name: drawn_again(name, p, seed=view.seed, copy=copy) for name, p in parameters.items()}
                for copy in range(COPIES)
            ]
        rows: dict[str, list[Tensor]] = {
            "attention": [view.attention],
            "gradient": [columns.tokens["gradient.meister.inputs"]],
        }
        for values in self._values:
            attention, gradient = self._copy(view, values)
            rows["attention"].append(attention)
            rows["gradient"].append(gradient)
        real, undefined = view.real, view.lengths < 2
        scalars: dict[str, Tensor] = {}
        for what, (own, *copies) in rows.items():
            for name, compare in (("tau", kendall_tau_b), ("jsd", jensen_shannon)):
                each = torch.stack([compare(own, copy, real) for copy in copies])
                between = torch.stack([compare(a, b, real) for a, b in combinations(copies, 2)]).nanmean(0)
                scalars[f"{self.name}.{what}.{name}"] = each.nanmean(0).masked_fill(undefined, torch.nan)
                for number, one in enumerate(each, start=1):
                    scalars[f"{self.name}.{what}.{name}.{number}"] = one.masked_fill(undefined, torch.nan)
                scalars[f"{self.name}.{what}.{name}.floor"] = between.masked_fill(undefined, torch.nan)
        return Columns(scalars=scalars)

    def _copy(self, view: AttentionView, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        with redrawn(view.adapter, values):
            batch = Batch(
                view.adapter,
                view.instances,
                view.positions,
                seed=view.seed,
                gradients=True,
                budget=view.budget,
                counts=view.counts,
                unit=view.batch.unit,
            )
            copy = AttentionView(batch, view.reading_text)
            gradient = normalised(copy.norms_of(copy.gradient[0]), copy.real)
            return copy.attention, gradient

    def finish(self, measurements: Measurements) -> None:
        self._values = []


@measures.register("randomised")
def randomised(argument: str) -> Measure:
    no_argument("randomised", argument)
    return Randomised()
