"""Retrainings: how another copy of a model is to be trained, as the checks that compare with such copies ask for it.
Imports no torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import quote, unquote

from attnaudit.errors import CheckError, nearest

Encoder = Literal["own", "mlp"]
Attention = Literal["learned", "uniform", "base", "adversary"]
Divergence = Literal["kl", "jsd"]

ENCODERS: tuple[Encoder, ...] = ("own", "mlp")
ATTENTIONS: tuple[Attention, ...] = ("learned", "uniform", "base", "adversary")
DIVERGENCES: tuple[Divergence, ...] = ("kl", "jsd")

#: An adversary is trained for so many times its base's epochs, and no further than so many without a better one. In the
#: published code of Wiegreffe & Pinter 2019 it is 80 where models have 8, or 10 without a better training loss.
LONGER, PATIENCE = 10, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraining:
    """One copy of a model, trained anew.

    seed: added to the seed that the model was trained with: 0 is the same seed, 1 the next one. encoder: "own", or
    "mlp", a linear map and tanh of each token alone. attention: "learned" with the rest; "uniform", 1/n on every real
    token; "base", the audited model's weights, put in place of the copy's own; "adversary": with the own encoder a copy
    that is trained to answer as the audited model does with other attention (for up to LONGER times the model's
    epochs), with an MLP one in which that copy's weights are put. divergence, weight: what such a copy maximises,
    weight (λ) times the KL divergence or the JSD of its attention to the model's. frozen: it has the model's
    parameters, and only attention is trained. train, dev: data to train on and to choose the epoch on, by name or file;
    "" is what the model itself was trained on.
    """

    seed: int = 0
    encoder: Encoder = "own"
    attention: Attention = "learned"
    divergence: Divergence = "kl"
    weight: float = 0.0
    frozen: bool = False
    train: str = ""
    dev: str = ""

    @property
    def text(self) -> str:
        """The form that `parse` reads back, such as "attention=uniform,seed=1": what differs from the defaults, names
        of files quoted so that the text can be part of the name of a measure."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}
        return ",".join(f"{name}={quote(str(value), safe='')}" for name, value in given.items()) or "seed=0"

    @property
    def words(self) -> str:
        """What is trained, in a few words."""
        if self.attention == "adversary":
            seen = "an adversary" if self.encoder == "own" else "an MLP with an adversary's attention"
            return f"{seen} (λ {self.weight:g}, seed +{self.seed})"
        shown = {"learned": "", "uniform": " with uniform attention", "base": " with the model's attention"}
        return f"{'a copy' if self.encoder == 'own' else 'an MLP'}{shown[self.attention]} (seed +{self.seed})"


def parse(text: str) -> Retraining:
    """`attention=uniform,seed=1` and its like. Raises CheckError that names the part that cannot be meant."""
    known = {f.name: f.default for f in dataclasses.fields(Retraining)}
    given: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, _, quoted = part.partition("=")
        word = unquote(quoted)
        if name not in known or name in given:
            why = "is given twice" if name in given else "is not one of its settings"
            raise CheckError(f"retraining {text!r}: {name!r} {why}. {nearest(name, known)}")
        choices = {"encoder": ENCODERS, "attention": ATTENTIONS, "divergence": DIVERGENCES, "frozen": ("True", "False")}
        if name in choices and word not in choices[name]:
            raise CheckError(f"retraining {text!r}: {name}={word!r}. {nearest(word, choices[name])}")
        given[name] = _number(text, name, word) if name in ("seed", "weight") else word
    if "frozen" in given:
        given["frozen"] = given["frozen"] == "True"
    return Retraining(**cast("dict[str, str]", given))  # type: ignore[arg-type]


def _number(text: str, name: str, word: str) -> float:
    try:
        found = int(word) if name == "seed" else float(word)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= 0):
        kind = "a whole number" if name == "seed" else "a number"
        raise CheckError(f"retraining {text!r}: {name}={word!r}, expected {kind} of at least 0.")
    return found
