"""The records of the gallery, which are stored in one JSON file. The pages are rendered from them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from attnaudit.errors import ReportError
from attnaudit.records import Direction, Record, VerdictName

#: What is wrong with the attention of a planted model. "right": nothing. "partly": it is right only on a share of the
#: texts, of the heads, or of the evidence in each text. "unused": shuffling it hardly changes the output. "elsewhere":
#: it is used, but it points at the wrong tokens.
Outcome = Literal["right", "partly", "unused", "elsewhere"]
OUTCOMES: dict[Outcome, str] = {
    "right": "right",
    "partly": "right in part",
    "unused": "unused",
    "elsewhere": "in the wrong place",
}
DATA_FILE = "gallery.json"
#: A reproduced number is close to the number of the paper if the two differ by at most this.
CLOSE = 0.1


class ShownText(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One text of an exhibit.

    Attributes:
        tokens: Its n tokens.
        attention: (n,) the attention weights.
        effects: (n,) the size of the effect of each token on the logits, with attention weights held fixed.
        predicted: The predicted class.
        probability: The probability of the predicted class.
        shuffled: The lowest and the highest probability of the predicted class under shuffled attention weights. None
            if the weights cannot be shuffled.
    """

    tokens: list[str]
    attention: list[float]
    effects: list[float]
    predicted: str
    probability: float
    shuffled: tuple[float, float] | None


class CheckValue(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one check on one exhibit.

    Attributes:
        check: The id of the check.
        verdict: Its verdict.
        value: The value; None if it is undefined.
        low: The lower limit of its interval; None without an interval.
        high: The upper limit.
        direction: The kind of threshold of a gate; None for an informational check.
        threshold: The threshold of a gate; None for an informational check.
    """

    check: str
    verdict: VerdictName
    value: float | None
    low: float | None
    high: float | None
    direction: Direction | None = None
    threshold: float | None = None


class Exhibit(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One planted model under one reading of its attention, with the results of the checks.

    Attributes:
        mechanism: What decides the prediction of the model, and what attention has to do with it.
        kind: How the model was made.
        description: What is special about the kind; "" if it is not described.
        family: "pooled attention" or "transformer".
        outcome: Whether the attention is right, and if not, what is wrong with it (a key of OUTCOMES).
        share: The share of texts, heads or evidence on which attention is right.
        reading: The reading of the attention; "" for the default reading of the model.
        encoder: The encoder, or the architecture of a Transformer.
        accuracy: The share of texts whose predicted class is their label; None if it was not measured.
        texts: The number of texts that the checks were measured on.
        text: The text that the picture shows, one of the measured texts.
        checks: The results of the checks.
        of_evidence: Whether `share` is a share of the evidence in each text.
    """

    mechanism: str
    kind: str
    description: str
    family: str
    outcome: Outcome
    share: float
    reading: str
    encoder: str
    accuracy: float | None
    texts: int
    text: ShownText
    checks: list[CheckValue]
    of_evidence: bool = False


class CheckText(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The wording of a check.

    Attributes:
        check: The id of the check.
        family: The kind of check, such as "agreement".
        question: The question that it answers.
        how_to_read: How to interpret its value.
        value_name: The name of the value.
    """

    check: str
    family: str
    question: str
    how_to_read: str
    value_name: str


class PaperNumber(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of a paper next to the reproduced one.

    Attributes:
        table: The title of the table.
        row: The row.
        quantity: The quantity in words.
        paper: The number in the paper.
        ours: The mean over the seeds.
    """

    table: str
    row: str
    quantity: str
    paper: float
    ours: float

    @property
    def is_close(self) -> bool:
        """Whether the two numbers differ by no more than CLOSE."""
        return abs(self.paper - self.ours) <= CLOSE


class PaperExhibit(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reproduced paper.

    Attributes:
        name: The name of the paper, as `attnaudit reproduce` expects it.
        title: The title of the paper.
        citation: The authors, the venue and the year.
        families: The kinds of checks of the gallery that the paper introduced or used.
        reports: The names of the reproduction's reports, without extension.
        numbers: The numbers of the paper about attention, each with the reproduced number. If several reports give the
            same number, it comes from a report with word vectors.
    """

    name: str
    title: str
    citation: str
    families: list[str]
    reports: list[str]
    numbers: list[PaperNumber]


class Gallery(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the gallery.

    Attributes:
        attnaudit: The version of attnaudit that measured the gallery.
        seed: The seed of samples, permutations and intervals.
        checks: The wording of the checks, in the order of the pages.
        exhibits: The exhibits, sorted by family, mechanism and outcome.
        papers: The reproduced papers.
    """

    attnaudit: str
    seed: int
    checks: list[CheckText]
    exhibits: list[Exhibit]
    papers: list[PaperExhibit]

    def of_mechanism(self) -> dict[tuple[str, str], list[Exhibit]]:
        """Return (family, mechanism) -> its exhibits, in the order of the gallery."""
        groups: dict[tuple[str, str], list[Exhibit]] = {}
        for exhibit in self.exhibits:
            groups.setdefault((exhibit.family, exhibit.mechanism), []).append(exhibit)
        return groups


def read_gallery(folder: Path) -> Gallery:
    """Read the data file of a gallery.

    Raises:
        ReportError: The file cannot be read, or is not the data file of a gallery.
    """
    path = folder / DATA_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Gallery)
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be read ({error.strerror}). Give --out the folder of a gallery, or leave out --render to "
            "make one."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(
            f"{path}: this file does not contain the data of a gallery ({error}). Leave out --render to write the file "
            "again."
        ) from error
