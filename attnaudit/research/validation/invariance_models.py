"""The models on which the invariances are measured: the demo model, and two with hand-written weights.

The hand-made models have a vocabulary with a score and evidence for each word:

    h_i = [score_i; v_i; s]      logits = Σ α_i (v_i + s)      α = softmax(score)      s = r · mean_j v_j

Cues have evidence v_i for one class and a high score. Weak cues have evidence and a low score. Decoys have no evidence
and a high score. Fillers have no evidence, and a score so low that their weight is below .001. The part s of the
evidence reaches the decoder whatever the attention weights are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.adapters.pooled.token_streams import Encoding
from attnaudit.data.movie_reviews import split
from attnaudit.instances import Dataset, Instance
from attnaudit.models import demo_model
from attnaudit.seeding import keyed_generator

TEXTS = 60
#: Fewest and most words of a text for the demo model.
SHORTEST, LONGEST = 3, 14
FILLERS = 6
CUES = 3
#: The range of the scores of the fillers. All other scores are above -1, so the fillers get weights below .001.
FILLER_SCORES = (-10.5, -9.0)
PADDING, MASK = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InvarianceModel:
    """A model on which the invariances are measured, with its texts.

    Attributes:
        name: The name of the model.
        adapter: The model.
        dataset: The texts, all with a label.
        moved_weights: The same model with the scores of the fillers exchanged among each other; None if it is not
            hand-made.
        shifted_scores: The same model with a constant added to all attention scores; None if it is not hand-made.
    """

    name: str
    adapter: PooledAttentionAdapter
    dataset: Dataset
    moved_weights: PooledAttentionAdapter | None = None
    shifted_scores: PooledAttentionAdapter | None = None


def invariance_models(seed: int) -> list[InvarianceModel]:
    """Return the demo model on short movie reviews, and hand-made models of two and of three classes."""
    return [demo(), hand_made(2, seed=seed), hand_made(3, seed=seed, residual=2.0)]


def demo(texts: int = TEXTS) -> InvarianceModel:
    """Return the demo model and the first short reviews of the test part."""
    whole = split("test")
    short = [one for one in whole.instances if SHORTEST <= len(one.text.split()) <= LONGEST]
    dataset = Dataset(
        name="short movie reviews",
        source=whole.source,
        description="",
        instances=tuple(short[:texts]),
        classes=whole.classes,
    )
    return InvarianceModel(name="demo", adapter=demo_model.model(), dataset=dataset)


def hand_made(classes: int, *, seed: int, texts: int = TEXTS, residual: float = 0.5) -> InvarianceModel:
    """Build a model whose parts are written by hand.

    Its texts have decoys, words without evidence that get much attention, and weak cues, which have evidence and get
    little.

    Args:
        classes: The number of classes.
        seed: The seed of the evidence, the scores and the texts.
        texts: The number of texts.
        residual: The weight r of the evidence that does not depend on attention.
    """
    # The first key must stay as it is: another one would draw other models, and change the published values.
    random = keyed_generator(seed, "law model", str(classes))
    words = _Words(classes, random)
    dataset = _texts(words, texts, random)
    return InvarianceModel(
        name=f"hand-made, {classes} classes",
        adapter=words.adapter(residual),
        dataset=dataset,
        moved_weights=words.adapter(residual, fillers=np.roll(words.filler_scores, 2)),
        shifted_scores=words.adapter(residual, constant=25.0),
    )


@dataclass(slots=True)
class _Words:
    """The vocabulary of a hand-made model, with the scores and the evidence of its words."""

    classes: int
    random: np.random.Generator
    names: list[str] = field(init=False)
    scores: np.ndarray = field(init=False)
    evidence: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        random, classes = self.random, self.classes
        self.names = ["<pad>", "<mask>", *(f"filler{i}" for i in range(FILLERS))]
        scores = [-9.5, -9.5, *np.linspace(*FILLER_SCORES, FILLERS)]
        evidence = [np.zeros(classes) for _ in self.names]
        for kind in ("cue", "weak"):
            for label in range(classes):
                for i in range(CUES):
                    self.names.append(f"{kind}{label}-{i}")
                    strength = random.uniform(1.0, 4.0)
                    evidence.append(strength * np.eye(classes)[label] + random.normal(0, 0.3, classes))
                    scores.append(strength / 4 if kind == "cue" else -1.0)
        for i in range(CUES):
            self.names.append(f"decoy{i}")
            evidence.append(np.zeros(classes))
            scores.append(0.5)
        self.scores, self.evidence = np.array(scores), np.array(evidence)

    @property
    def filler_scores(self) -> np.ndarray:
        return self.scores[2 : 2 + FILLERS]

    def adapter(
        self, residual: float, *, fillers: np.ndarray | None = None, constant: float = 0.0
    ) -> PooledAttentionAdapter:
        """Build the model.

        Args:
            residual: The weight of the evidence that does not depend on attention.
            fillers: Other scores of the fillers; None to keep them.
            constant: Added to all scores.
        """
        scores, count = self.scores.copy(), self.classes
        if fillers is not None:
            scores[2 : 2 + FILLERS] = fillers
        table = torch.from_numpy(np.column_stack([scores + constant, self.evidence]))
        embedding = nn.Embedding(len(table), 1 + count, dtype=torch.float64)
        decoder = nn.Linear(1 + 2 * count, count, dtype=torch.float64)
        with torch.no_grad():
            embedding.weight.copy_(table)
            decoder.weight.copy_(torch.from_numpy(np.hstack([np.zeros((count, 1)), np.eye(count), np.eye(count)])))
            decoder.bias.zero_()

        def encoder(embedded: Tensor, mask: Tensor) -> Tensor:
            total = (embedded[..., 1:] * mask[..., None]).sum(1, keepdim=True)
            mean = total / mask.sum(1).clamp_min(1)[:, None, None]
            return torch.cat([embedded, (residual * mean).expand_as(embedded[..., 1:])], dim=-1)

        return PooledAttentionAdapter(
            embedding=embedding,
            encoder=encoder,
            attention=lambda states, allowed: torch.softmax(states[..., 0].masked_fill(~allowed, -torch.inf), -1),
            decoder=decoder,
            tokenize=self._tokenizer(),
            classes=[f"class {label}" for label in range(count)],
            modules=(embedding, decoder),
            pad_id=PADDING,
            mask_id=MASK,
        )

    def _tokenizer(self) -> Callable[[str], Encoding]:
        ids = {name: index for index, name in enumerate(self.names)}

        def tokenize(text: str) -> Encoding:
            tokens = text.split()
            return Encoding([ids.get(token, MASK) for token in tokens], tokens)

        return tokenize


def _texts(words: _Words, count: int, random: np.random.Generator) -> Dataset:
    """Return texts. Each has a cue for its label, other cues that mostly agree with the label, decoys and fillers."""
    classes = [f"class {label}" for label in range(words.classes)]
    rows = []
    for number in range(count):
        label = number % words.classes
        text = [f"cue{label}-{random.integers(CUES)}"]
        for _ in range(random.integers(0, 4)):
            shown = label if random.random() < 0.7 else random.integers(words.classes)
            kind = "weak" if random.random() < 0.4 else "cue"
            text.append(f"{kind}{shown}-{random.integers(CUES)}")
        text += [f"decoy{random.integers(CUES)}" for _ in range(random.integers(0, 3))]
        text += [f"filler{random.integers(FILLERS)}" for _ in range(random.integers(1, 6))]
        random.shuffle(text)
        rows.append(Instance(id=f"text-{number:03d}", text=" ".join(text), label=classes[label]))
    return Dataset(
        name="hand-made texts", source="generated", description="", instances=tuple(rows), classes=tuple(classes)
    )
