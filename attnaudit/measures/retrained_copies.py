"""Another copy of the model, trained anew, beside the audited one: what it answers and where it attends (Wiegreffe &
Pinter 2019, "Attention is not not Explanation").

How a copy comes about is said by the name of the measure, which the checks write (see `attnaudit.retraining`), so that
checks that need the same copy share it. Which data it is trained on is the adapter's affair: it knows what the model
was trained on, or resolves the names that the retraining gives. A model that cannot be trained anew, or not so, leaves
the columns undefined and the reason in a fact, which the checks of that copy are refused with; others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch

from attnaudit.adapters.protocol import TEXT, ModelAdapter, RetrainableAdapter
from attnaudit.engine.attention_view import AttentionView
from attnaudit.engine.batch import Batch
from attnaudit.engine.columns import Columns, Measure, PerBatch
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AdapterError, AuditError
from attnaudit.metrics import jensen_shannon, total_variation
from attnaudit.progress import ProgressCallback
from attnaudit.registry import measures
from attnaudit.retraining import Retraining, parse


@dataclass(frozen=True, kw_only=True)
class Retrained(PerBatch):
    """predicted: the copy's class. tvd: of its output to the model's. jsd: of its attention to the model's under the
    reading, in nats, NaN for one token. attention: the copy's, of copies of the model's own kind whose attention is
    trained. fact refused: why there is no copy."""

    retraining: Retraining
    #: The copy once it is trained, or why it is not.
    made: list[ModelAdapter | str] = field(default_factory=list, compare=False)

    def compute(self, view: AttentionView, columns: Columns) -> Columns:
        if not self.made:
            try:
                self.made.append(self._trained(view))
            except AuditError as error:
                self.made.append(str(error))
        (made,) = self.made
        if isinstance(made, str):
            nothing = torch.full_like(view.special_mass, torch.nan)
            return Columns(
                scalars={f"{self.name}.{column}": nothing for column in ("predicted", "tvd", "jsd")},
                facts={f"{self.name}.refused": made},
            )
        other = AttentionView(
            Batch(
                made,
                view.instances,
                view.positions,
                seed=view.seed,
                gradients=view.reading_text.startswith("gradients@"),
                budget=view.budget,
                counts=view.counts,
                unit=view.batch.unit,
            ),
            view.reading_text,
        )
        if other.inputs.tokens[TEXT] != view.inputs.tokens[TEXT]:
            raise AdapterError(
                "retrain: the copy reads other tokens than the model. It must tokenize as the model does, with the "
                "same vocabulary."
            )
        jsd = jensen_shannon(view.attention, other.attention, view.real)
        return Columns(
            scalars={
                f"{self.name}.predicted": other.predicted.double(),
                f"{self.name}.tvd": total_variation(other.probabilities, view.probabilities),
                f"{self.name}.jsd": jsd.masked_fill(view.lengths < 2, torch.nan),
            },
            tokens={f"{self.name}.attention": other.attention} if self._shown else {},
        )

    @property
    def _shown(self) -> bool:
        return self.retraining.encoder == "own" and self.retraining.attention in ("learned", "adversary")

    def _trained(self, view: AttentionView) -> ModelAdapter:
        """The copy, on the model's device. Raises AuditError where there can be none."""
        adapter = view.adapter
        if not adapter.capabilities.retrains:
            raise AdapterError(
                "This check trains the model anew, and its adapter does not say how: give it capabilities with "
                "retrains=True and a method retrain(retraining, progress), or leave the check out."
            )
        copy = cast(RetrainableAdapter, adapter).retrain(self.retraining, self._progress(view))
        if copy.capabilities.classes != adapter.capabilities.classes:
            raise AdapterError(
                f"retrain: the copy has the classes {copy.capabilities.classes}; expected those of the model, "
                f"{adapter.capabilities.classes}."
            )
        for module in copy.modules:
            module.eval().to(view.device).requires_grad_(False)
        view.counts["models_trained"] += 1
        return copy

    def _progress(self, view: AttentionView) -> ProgressCallback | None:
        shown = view.batch.progress
        if shown is None:
            return None
        return lambda done, total, _note: shown(done, total, f"training {self.retraining.words}")

    def finish(self, measurements: Measurements) -> None:
        self.made.clear()


@measures.register("retrained")
def retrained(argument: str) -> Measure:
    """retrained.<how>, such as retrained.attention=uniform,seed=1 (see `attnaudit.retraining`)"""
    retraining = parse(argument)
    return Retrained(name=f"retrained.{retraining.text}", retraining=retraining)
