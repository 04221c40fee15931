"""The architecture of a reference model, in the form that checkpoints store."""

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
#: Values of `PlantedTables.bypass`.
BYPASSES = ("none", "sum", "saturating", "first", "collected")
#: Values of `Architecture.form`.
FORMS = ("text", "pair", "question")
#: Largest number of features in one layer.
LARGEST_SIZE = 65_536


class PlantedTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a planted model computes hidden states from given values for each word.

    A word has a score and two kinds of evidence: evidence that is multiplied by the attention weight, and bypass
    evidence, which reaches the decoder regardless of attention (see `attnaudit.models.planted_tables`).

    Attributes:
        outputs: The number of logits to which a word adds evidence: 1 with two classes, otherwise one per class.
        bypass: How the bypass evidence of a text is computed. "none": there is none. "sum": the sum of the bypass
            evidence of all tokens. "saturating": the hyperbolic tangent of this sum. "first": the bypass evidence of
            the first real token. "collected": the sum, but only in the states of marker words.
        switched: Whether a marker word in the text selects the kind of evidence. If True, only bypass evidence counts
            in texts with a marker, and only evidence multiplied by attention counts in other texts. If False, both
            kinds count in every text.
        first_score: The number to add to the attention score of the first real token.
    """

    outputs: int = 1
    bypass: str = "none"
    switched: bool = False
    first_score: float = 0.0

    @property
    def columns(self) -> int:
        """Number of features of an embedding: a score, two kinds of evidence per output, and a flag for markers."""
        return 2 + 2 * self.outputs

    def check(self) -> None:
        """Raise ModelError if a value is invalid."""
        _require_known("bypass", self.bypass, BYPASSES)
        if not 1 <= self.outputs <= LARGEST_SIZE:
            raise ModelError(f"outputs is {self.outputs}: expected a whole number from 1 to {LARGEST_SIZE:,}.")


class Planted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How the hidden states of a planted model are computed (see `attnaudit.models.planted_states`).

    Evidence is a number in a hidden state. The decoder multiplies it by the attention weight of the state, and adds the
    product to the logit.

    Attributes:
        evidence: How a token's own evidence is computed. "free": any number. "unit": a number with a magnitude close to
            1. "scored": unit evidence times the sigmoid of the attention score.
        label: Which hidden states contain the evidence of the whole text. "nowhere": none. "everywhere": all. "first"
            or "last": only the state of the first or last real token, whose attention score is then raised.
        tables: How embeddings that contain the score and the evidence of a word are turned into hidden states; None for
            trained embeddings. If it is given, `evidence` and `label` are ignored.
    """

    evidence: str = "free"
    label: str = "nowhere"
    tables: PlantedTables | None = None

    def check(self) -> None:
        """Raise ModelError if a value is invalid."""
        _require_known("evidence", self.evidence, EVIDENCE_KINDS)
        _require_known("label", self.label, LABEL_POSITIONS)
        if self.tables is not None:
            self.tables.check()


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is needed to build a model, except the size of its vocabulary and its number of classes.

    Attributes:
        encoder: A name in `ENCODERS`.
        alignment: A name in `ALIGNMENTS`: the function that scores each token.
        projection: A name in `PROJECTIONS`: the function that turns scores into weights.
        embedding_size: Number of features of an embedding.
        hidden_size: Number of features of a hidden state; for "bilstm", of each direction.
        attention_size: Number of features of the inner layer of the alignment. "dot" and "uniform" do not use it.
        states: Whether hidden states also contain embeddings. "plain": hidden states are as the encoder returns them.
            "concat": the embedding of each token is concatenated to its hidden state. "residual": the embedding is
            added to the hidden state.
        planted: How planted hidden states are computed; None for an ordinary model.
        layers: Number of layers of a "bilstm" or "transformer". None stands for the default: 1 for "bilstm", 2 for
            "transformer". It must be None for other encoders.
        projection_parameter: λ of "sparsegen", α of "entmax" or temperature of "gumbel"; None for the default. It must
            be None for other projections.
        form: The inputs and the task. "text": classify one text. "pair": classify a text and a query together, such as
            a premise and a hypothesis. "question": answer a query about a text with one of the classes that the text
            mentions. In all three forms, attention is over the text.
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
        """Validate all fields except `layers`, which is validated when the encoder is built.

        Raises:
            ModelError: A name is unknown, a size is out of range, the projection cannot be built, or the states are
                planted although the form is not "text".
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
    """Raise ModelError if `name` is not one of the known names. The message suggests similar ones."""
    if name not in known:
        raise ModelError(f"Unknown {kind} '{name}'. {nearest(name, known)}")
