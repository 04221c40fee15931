"""The architecture of a reference model, as checkpoints store it."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from attnaudit.errors import ModelError, nearest
from attnaudit.models.alignments import ALIGNMENTS
from attnaudit.models.encoders import ENCODERS, STATES
from attnaudit.models.projections import PROJECTIONS, projection

#: Values of `Planted.evidence`.
EVIDENCE_KINDS = ("free", "unit", "scored")
#: Values of `Planted.label`.
LABEL_POSITIONS = ("nowhere", "everywhere", "first", "last")
#: Values of `Architecture.form`: what a model reads.
FORMS = ("text", "pair", "question")
#: Largest number of features in one layer.
LARGEST_SIZE = 65_536


class Planted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the hidden states of a planted model are computed (see `attnaudit.models.planted_states`).

    Evidence is a number in a hidden state that the decoder adds to the logit, weighted by attention.

    Attributes:
        evidence: How a token's own evidence is computed: "free" (any number), "unit" (magnitude close to 1) or
            "scored" (unit evidence times the sigmoid of the attention score).
        label: Which hidden states contain the evidence of the whole text: none ("nowhere"), all ("everywhere"), or
            that of the "first" or "last" real token, whose attention score is then raised.
    """

    evidence: str = "free"
    label: str = "nowhere"

    def check(self) -> None:
        """Raise ModelError for an unknown value."""
        _require_known("evidence", self.evidence, EVIDENCE_KINDS)
        _require_known("label", self.label, LABEL_POSITIONS)


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything needed to build a model, except its number of words and its number of classes.

    Attributes:
        encoder: A name in `ENCODERS`.
        alignment: A name in `ALIGNMENTS`: the function that scores each token.
        projection: A name in `PROJECTIONS`: the function that turns scores into weights.
        embedding_size: Features of one embedding.
        hidden_size: Features of one hidden state; for "bilstm", of each direction.
        attention_size: Features of the alignment's inner layer; not used by "dot" and "uniform".
        states: "plain" for hidden states as the encoder returns them; "concat" or "residual" to concatenate or add
            each token's embedding to its hidden state.
        planted: How planted hidden states are computed; None for an ordinary model.
        layers: Number of stacked layers, for an encoder that stacks them; None for its default (1 for "bilstm", 2 for
            "transformer").
        projection_parameter: λ of "sparsegen", α of "entmax", temperature of "gumbel"; None for the default.
        form: "text" classifies one text. "pair" classifies a text with a query, such as premise and hypothesis.
            "question" answers a query with one of the classes that the text mentions. Attention is over the text.
    """

    encoder: str = "bilstm"
    alignment: str = "additive"
    projection: str = "softmax"
    embedding_size: int = 128
    hidden_size: int = 128
    attention_size: int = 128
    states: str = "plain"
    planted: Planted | None = None
    layers: int | None = None
    projection_parameter: float | None = None
    form: str = "text"

    def check(self) -> None:
        """Raise ModelError for an unknown name, a size out of range, or a projection that cannot be built.

        Planted states with a form other than "text" are also refused. `layers` is checked when the encoder is built.
        """
        _require_known("encoder", self.encoder, ENCODERS)
        _require_known("alignment", self.alignment, ALIGNMENTS)
        _require_known("projection", self.projection, PROJECTIONS)
        _require_known("states", self.states, STATES)
        _require_known("form", self.form, FORMS)
        if self.planted is not None:
            self.planted.check()
            if self.form != "text":
                raise ModelError(f"form is '{self.form}', but planted states need form 'text'.")
        for name in ("embedding_size", "hidden_size", "attention_size"):
            size = getattr(self, name)
            if not 1 <= size <= LARGEST_SIZE:
                raise ModelError(f"{name} is {size}: expected a whole number from 1 to {LARGEST_SIZE:,}.")
        projection(self.projection, self.projection_parameter)


def _require_known(kind: str, name: str, known: Collection[str]) -> None:
    """Raise ModelError, with the nearest known name, if `name` is not one of them."""
    if name not in known:
        raise ModelError(f"Unknown {kind} '{name}'. {nearest(name, known)}")
