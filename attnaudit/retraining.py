"""Descriptions of how copies of a model are trained, for checks that compare the model with such copies.

Importing this module does not import torch.
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

#: An adversary is trained for at most LONGER times as many epochs as the audited model. Training stops after PATIENCE
#: epochs without improvement. In the published code of Wiegreffe & Pinter 2019, models are trained for 8 epochs and
#: adversaries for 80, and training stops after 10 epochs without a better training loss.
LONGER, PATIENCE = 10, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraining:
    """How one copy of a model is trained.

    Attributes:
        seed: The number that is added to the seed of the audited model. With 0, the copy has the same seed.
        encoder: "own" for the encoder of the audited model. "mlp" for a linear layer with tanh that is applied to each
            token separately.
        attention: The origin of the attention weights of the copy. "learned": they are trained with the rest of the
            copy. "uniform": they are 1/n on each of the n real tokens. "base": they are those of the audited model.
            "adversary" with encoder="own": the copy is an adversary, which is trained to give the outputs of the
            audited model with different attention. "adversary" with encoder="mlp": the attention weights of an
            adversary replace those of the copy.
        divergence: The divergence from the attention of the audited model that an adversary maximises, "kl" or "jsd".
        weight: λ, the weight of the divergence in the loss of an adversary.
        frozen: Whether only the attention of an adversary is trained. All its other parameters are then those of the
            audited model.
        train: The name or file of the training data; "" for the data that the audited model was trained on.
        dev: The name or file of the data on which the best epoch is chosen; "" for the data that were used for the
            audited model.
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
        """The text form of the retraining, such as "seed=1,attention=uniform". `parse` converts it back.

        It lists the settings that differ from their defaults. If none differs, it is "seed=0". Values are quoted as in
        URLs, so that the text can be part of the name of a measure.
        """
        values = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        changed = {field.name: value for field, value in values if value != field.default}
        return ",".join(f"{name}={quote(str(value), safe='')}" for name, value in changed.items()) or "seed=0"

    @property
    def description(self) -> str:
        """A short description for progress messages, such as "a copy with uniform attention (seed +1)"."""
        if self.attention == "adversary":
            trained = "an adversary" if self.encoder == "own" else "an MLP with an adversary's attention"
            return f"{trained} (λ {self.weight:g}, seed +{self.seed})"
        weights = {"learned": "", "uniform": " with uniform attention", "base": " with the model's attention"}
        return f"{'a copy' if self.encoder == 'own' else 'an MLP'}{weights[self.attention]} (seed +{self.seed})"


def parse(text: str) -> Retraining:
    """Parse the text form of a retraining, such as `attention=uniform,seed=1`.

    Raises:
        CheckError: A setting is invalid. The message names it.
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
    """Parse the value of `seed`, an integer, or of `weight`, a float.

    Raises:
        CheckError: The value is not such a number, or it is negative or not finite.
    """
    try:
        number = int(value) if name == "seed" else float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        kind = "a whole number" if name == "seed" else "a number"
        raise CheckError(f"retraining {text!r}: {name} is {value!r}. Expected {kind} of at least 0.")
    return number
