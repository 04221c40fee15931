"""Retrainings: how to train another copy of a model, for the checks that compare the model with such copies.

Imports no torch.
"""

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

#: An adversary is trained for at most LONGER times the epochs of the model that it copies, and stops after PATIENCE
#: epochs without improvement. In the published code of Wiegreffe & Pinter 2019, an adversary gets 80 epochs where
#: models get 8, and stops after 10 epochs without a better training loss.
LONGER, PATIENCE = 10, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraining:
    """How one copy of a model is trained.

    Attributes:
        seed: added to the seed that the model was trained with; 0 keeps the seed, 1 is the next one.
        encoder: "own" for the model's own encoder, or "mlp" for a linear map and tanh of each token alone.
        attention: where the copy's attention weights come from. "learned": trained with the rest of the copy.
            "uniform": 1/n on every real token. "base": the weights of the audited model. "adversary": with
            encoder="own", the copy is trained to give the audited model's outputs with different attention (for up to
            LONGER times the model's epochs); with encoder="mlp", the copy uses the weights of that adversary.
        divergence: the divergence between the adversary's attention and the model's, "kl" or "jsd", which an adversary
            maximises.
        weight: λ, the weight of that divergence in the adversary's loss.
        frozen: keep the model's parameters and train only the attention.
        train: training data, by name or file; "" for the data that the model was trained on.
        dev: data for choosing the epoch, by name or file; "" for the data that the model's own epoch was chosen on.
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
        """The text form, which `parse` reads back, such as "seed=1,attention=uniform".

        It lists the settings that differ from the defaults, or is "seed=0" if none differs. File names are quoted, so
        that the text can be part of the name of a measure.
        """
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        changed = {field.name: value for field, value in values if value != field.default}
        return ",".join(f"{name}={quote(str(value), safe='')}" for name, value in changed.items()) or "seed=0"

    @property
    def description(self) -> str:
        """A short phrase for progress messages, such as "a copy with uniform attention (seed +1)"."""
        if self.attention == "adversary":
            trained = "an adversary" if self.encoder == "own" else "an MLP with an adversary's attention"
            return f"{trained} (λ {self.weight:g}, seed +{self.seed})"
        weights = {"learned": "", "uniform": " with uniform attention", "base": " with the model's attention"}
        return f"{'a copy' if self.encoder == 'own' else 'an MLP'}{weights[self.attention]} (seed +{self.seed})"


def parse(text: str) -> Retraining:
    """Parse the text form of a retraining, such as `attention=uniform,seed=1`.

    Raises:
        CheckError: a setting is invalid; the message names it.
    """
    fields = {f.name: f.default for f in dataclasses.fields(Retraining)}
    settings: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, _, quoted = part.partition("=")
        value = unquote(quoted)
        if name not in fields or name in settings:
            if name in settings:
                raise CheckError(f"retraining {text!r}: {name!r} is given twice. Give it once.")
            raise CheckError(f"retraining {text!r}: unknown setting {name!r}. {nearest(name, fields)}")
        choices = {"encoder": ENCODERS, "attention": ATTENTIONS, "divergence": DIVERGENCES, "frozen": ("True", "False")}
        if name in choices and value not in choices[name]:
            raise CheckError(
                f"retraining {text!r}: unknown value {value!r} of {name!r}. {nearest(value, choices[name])}"
            )
        settings[name] = _number(text, name, value) if name in ("seed", "weight") else value
    if "frozen" in settings:
        settings["frozen"] = settings["frozen"] == "True"
    return Retraining(**cast("dict[str, str]", settings))  # type: ignore[arg-type]


def _number(text: str, name: str, value: str) -> float:
    """Parse `seed` (an integer) or `weight` (a float). Raises CheckError if it is invalid, negative or not finite."""
    try:
        number = int(value) if name == "seed" else float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        kind = "a whole number" if name == "seed" else "a number"
        raise CheckError(f"retraining {text!r}: {name} is {value!r}. Expected {kind} of at least 0.")
    return number
