"""Compare the output and the attention of the audited model with those of a retrained copy.

The argument of the measure specifies how the copy is trained (see `attnaudit.retraining`). Checks with the same
argument share one copy. The adapter chooses the training data, unless the argument names a data set. If the model
cannot be retrained as specified, the columns are undefined, and a fact gives the reason. Checks that need the copy are
refused with this reason, and all other checks still run. Source: Wiegreffe & Pinter 2019, "Attention is not not
Explanation".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from attnaudit.adapters.loading import fingerprint
from attnaudit.adapters.optional_methods import RetrainableAdapter
from attnaudit.adapters.protocol import TEXT, ModelAdapter
from attnaudit.engine.batches.failures import refuse_not_finite
from attnaudit.engine.measurements import Measurements
from attnaudit.errors import AdapterError, AuditError
from attnaudit.measures import AttentionView, Columns, Request, StatefulMeasure, measure
from attnaudit.metrics import jensen_shannon, total_variation
from attnaudit.progress import ProgressCallback
from attnaudit.retraining import Retraining, parse

#: If the weights on the tokens of every text differ by less than this, attention is uniform.
_UNIFORM = 1e-4


@measure(
    "retrained",
    argument=parse,
    canonical=lambda retraining: str(retraining.text),
    optional_capabilities=("retrains",),
)
class Retrained(StatefulMeasure):
    """Train a copy of the model, and compare it with the model.

    The columns are:

    * `.predicted`: index of the class that the copy predicts.
    * `.tvd`: the total variation between the outputs of the model and the copy.
    * `.jsd`: the Jensen-Shannon divergence in nats between the attention of the model and of the copy. NaN for texts
      with one token.
    * `.attention`: the attention of the copy. The column exists only if the copy has the encoder of the model and
      trains its own attention.

    The fact `.sha256` is the hash of the copy's parameters. If there is no copy, `.predicted`, `.tvd` and `.jsd` are
    NaN, `.attention` is missing, and the fact `.refused` gives the reason.
    """

    uses_lengths = False
    keeps_rows = False

    def __init__(self, name: str, argument: Retraining, lengths: Sequence[int]) -> None:
        super().__init__(name, argument, lengths)
        self.retraining = argument
        #: The copy, or the reason why there is no copy; None until the first batch.
        self._copy: ModelAdapter | str | None = None
        self._sha256 = ""

    def compute(self, view: AttentionView, request: Request) -> Columns:
        """Run the copy on the batch, and compare it with the model. The first call trains the copy."""
        if self._copy is None:
            try:
                self._copy = self._train(view, request)
            except AuditError as error:
                self._copy = str(error)
        if isinstance(self._copy, str):
            undefined = torch.full_like(view.special_mass, torch.nan)
            return Columns(
                scalars={f"{self.name}.{column}": undefined for column in ("predicted", "tvd", "jsd")},
                facts={f"{self.name}.refused": self._copy},
            )
        keep_graph = view.reading is not None and view.reading.differentiates
        copy = AttentionView(view.batch.read_by(self._copy, keep_graph=keep_graph), view.reading)
        if copy.inputs.tokens[TEXT] != view.inputs.tokens[TEXT]:
            raise AdapterError(
                "retrain(): the copy does not tokenise the texts as the model does. The copy must use the model's "
                "tokeniser and vocabulary."
            )
        refuse_not_finite(copy.logits, view.instances, "in the retrained copy")
        jsd = jensen_shannon(view.attention, copy.attention, view.real)
        return Columns(
            scalars={
                f"{self.name}.predicted": copy.predicted.double(),
                f"{self.name}.tvd": total_variation(copy.probabilities, view.probabilities),
                f"{self.name}.jsd": jsd.masked_fill(view.lengths < 2, torch.nan),
            },
            tokens={f"{self.name}.attention": copy.attention} if self._trains_attention else {},
            facts={f"{self.name}.sha256": self._sha256} if self._sha256 else {},
        )

    @property
    def _trains_attention(self) -> bool:
        return self.retraining.encoder == "own" and self.retraining.attention in ("learned", "adversary")

    def _train(self, view: AttentionView, request: Request) -> ModelAdapter:
        """Return the trained copy, on the model's device.

        Raises:
            AuditError: The adapter cannot retrain the model as specified, the copy has other classes, or it was not
                retrained.
        """
        if "retrains" in request.lacking:
            raise AdapterError(
                "This check retrains the model, but the adapter declares retrains=False. Implement "
                "retrain(retraining, progress) and declare retrains=True, or leave the check out."
            )
        classes = view.adapter.capabilities.classes
        copy = cast(RetrainableAdapter, view.adapter).retrain(self.retraining, self._progress(view))
        if copy.capabilities.classes != classes:
            raise AdapterError(
                f"retrain(): the copy has the classes {copy.capabilities.classes}; expected those of the model, "
                f"{classes}."
            )
        if any(True for module in copy.modules for _ in module.parameters()):
            self._sha256 = fingerprint(copy)[0]
        if copy is view.adapter or (self._sha256 == fingerprint(view.adapter)[0] and not self._may_be_equal(view)):
            raise AdapterError(
                f"retrain(): {self.retraining.description} has the same parameters as the audited model, so it was not "
                "retrained. The method must train a new model from random values, with the seed of the audited model "
                "plus retraining.seed. If the result of training does not depend on a seed, leave this check out."
            )
        for module in copy.modules:
            module.eval().to(view.device).requires_grad_(False)
        view.pass_counts["models_trained"] += 1
        return copy

    def _may_be_equal(self, view: AttentionView) -> bool:
        """Return whether the copy and the model may have equal parameters, because both were trained in the same way.

        This is so if the copy has the seed of the model and learns its attention, or if the attention of both is
        uniform.
        """
        if self.retraining.seed or self.retraining.attention not in ("learned", "uniform"):
            return False
        highest = view.attention.masked_fill(~view.real, -torch.inf).amax(-1)
        lowest = view.attention.masked_fill(~view.real, torch.inf).amin(-1)
        return self.retraining.attention == "learned" or bool((highest - lowest < _UNIFORM).all())

    def _progress(self, view: AttentionView) -> ProgressCallback | None:
        """Return a callback that reports the progress of training as progress of the audit, if there is one."""
        report = view.batch.progress
        if report is None:
            return None
        return lambda done, total, _note: report(done, total, f"training {self.retraining.description}")

    def finish(self, measurements: Measurements) -> None:
        """Free the copy."""
        self._copy = None
