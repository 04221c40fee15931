"""The entries of population.json: what is known about the attention of each model."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnaudit.records import Record

#: What is known about the attention of a model. In a "graded" model, it is right on a known share of the rows, of the
#: evidence in each row, or of the heads. It is not known whether the attention of a "trend" is faithful. A trend is
#: reported but not scored.
Truth = Literal["faithful", "unfaithful", "graded", "trend"]
#: The models of the "tuning" half determine the thresholds. The published figures come from the "held_out" half.
Half = Literal["tuning", "held_out"]
#: The families of models. Each family has a policy of its own.
Family = Literal["pooled attention", "transformer"]
FAMILIES: tuple[Family, ...] = ("pooled attention", "transformer")


class Entry(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a population, or one reading of a model: an entry of population.json.

    Attributes:
        folder: The checkpoint folder of the model, relative to the folder of the population. FOLDER[LABEL] names the
            label that is explained, for a model that assigns any number of labels.
        kind: The name of the method by which the model was made.
        truth: What is known about the attention of the model. "faithful" and "unfaithful" models are scored. A "graded"
            model must not pass if its share is at most 0.6; other graded models only enter rank correlations. The truth
            of a "trend" model is unknown, and its verdicts are only reported.
        data: The name of a registered data set, or the path of a file. The path is relative to the folder of the
            population or to the checkpoint folder.
        mechanism: What decides the prediction, and what attention has to do with it. Kinds with the same mechanism are
            held out together, and intervals resample mechanisms. The default is the kind.
        share: The share of rows, of the evidence in each row, or of heads on which attention is right, from 0 to 1. The
            default is 1 for a faithful and 0 for an unfaithful model; a graded model needs a number. None for a "trend"
            model.
        reading: The reading of the attention that the entry is about, such as "cls@layer=-1,heads=mean". "" for the
            model's own reading. Several entries may name the same folder with different readings.
        family: The family of the model.
        encoder: The encoder of the model, such as "bilstm".
        alignment: The alignment function of its attention, such as "additive".
        projection: The function that turns attention scores into weights, such as "sparsemax".
        seed: The seed of training.
        level: The units whose contributions are known, such as "tokens".
        rank_agreement: Kendall's τ-b of attention with the contributions that are known by construction. None if it was
            not measured.
        verified_by: The intervention that confirmed the contributions, and its outcome. No check uses this
            intervention. None if the contributions were not verified.
        accuracy: The share of test instances whose predicted class is their label. None if it was not measured.
        bypass_share: The share of the logit's variance that does not pass through attention weights. None if it was not
            measured.
        half: The half that the model belongs to. The default is "held_out", so that no model is used for tuning by
            mistake.
        fails: The questions that the model fails by construction. It is used only for unfaithful and graded models.
    """

    folder: str
    kind: str
    truth: Truth
    data: str
    mechanism: str = ""
    share: float | None = None
    reading: str = ""
    family: Family = "pooled attention"
    encoder: str = ""
    alignment: str = ""
    projection: str = ""
    seed: int = 0
    level: str = ""
    rank_agreement: float | None = None
    verified_by: str | dict[str, str | float | int | bool | None] | None = None
    accuracy: float | None = None
    bypass_share: float | None = None
    half: Half = "held_out"
    fails: tuple[Literal["used", "points"], ...] = ("used", "points")

    def __post_init__(self) -> None:
        if not self.mechanism:
            msgspec.structs.force_setattr(self, "mechanism", self.kind)
        if self.share is None and self.truth in DEFAULT_SHARES:
            msgspec.structs.force_setattr(self, "share", DEFAULT_SHARES[self.truth])

    @property
    def name(self) -> str:
        """The folder, followed by the reading if the entry names one. It is unique within a population."""
        return f"{self.folder} [{self.reading}]" if self.reading else self.folder


#: Truth -> the share of an entry that states none.
DEFAULT_SHARES = {"faithful": 1.0, "unfaithful": 0.0}


class Population(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The models of a population.

    Attributes:
        entries: The models.
        sha256: Hash of population.json.
        notes: One text for each model that is not scored because its rank agreement contradicts its label.
    """

    entries: list[Entry]
    sha256: str
    notes: list[str]
