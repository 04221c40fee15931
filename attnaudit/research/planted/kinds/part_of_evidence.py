"""Models whose attention is right on a known share of the evidence in each text.

Some of the words that decide are read through attention, which is on them. The others reach the decoder through a
bypass around attention. Unlike in `graded_attention`, both parts count in every text.

There are two variants. In made texts, each text has cue words, which attention reads, and partner words, which take the
bypass, so that the share is the same in every text. In movie reviews, a random half of the words is read, and the
share is a mean: it differs between texts.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from attnaudit.instances import Dataset
from attnaudit.models.architecture import PlantedTables
from attnaudit.models.vocabulary import Vocabulary
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe, proportional_scores
from attnaudit.research.planted.kind import Exchange, Recipe, TrainingInputs, compiled_kind, indicator, truth_of_share
from attnaudit.research.planted.made_texts import TextPlan, partner_words
from attnaudit.research.planted.word_evidence import random_numbers
from attnaudit.research.planted.word_material import UNATTENDED, Material, cue_material, learned_material

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def recipe(inputs: TrainingInputs, *, share: float) -> Recipe:
    """Return the recipe of a model whose attention is right on a share of the evidence in each text."""
    write = partial(_made_tables if inputs.data == "made" else _learned_tables, inputs, share)
    graded = 0 < share < 1
    return compiled_recipe(write, exchange=Exchange(of_evidence=graded), share=share if graded else None)


def _made_tables(inputs: TrainingInputs, share: float) -> WordTables:
    number = 1 + inputs.seed // 2 % 2
    plan = TextPlan(cues=(number, number), partners=True)
    material = cue_material(inputs, plan, noise=0.0)
    partners = torch.zeros(len(material.vocabulary), 1)
    for sign, chosen in zip((-1.0, 1.0), partner_words(plan, inputs.texts).values(), strict=True):
        partners[indicator(material.vocabulary, frozenset(chosen))] = sign
    # Attention gives the cue words of a text a total weight of about 1, but the bypass adds its words up.
    return _tables(material, material.evidence, partners / number, share)


def _learned_tables(inputs: TrainingInputs, share: float) -> WordTables:
    material = learned_material(inputs)
    read = (random_numbers(material.vocabulary, inputs.seed, "half") < 0.5).unsqueeze(1)
    attended, bypassed = material.evidence * read, material.evidence * ~read
    parts = _parts_of_texts(material.vocabulary, attended, bypassed, inputs.texts)
    return _tables(material, attended, bypassed, _factor_for(share, parts))


def _tables(material: Material, attended: Tensor, bypassed: Tensor, factor: float) -> WordTables:
    """Return the tables of a model. The attended evidence is multiplied by a factor, and the rest by one minus it."""
    tables = material.tables(PlantedTables(bypass="sum" if factor < 1 else "none"))
    tables.own, tables.bypass = factor * attended, (1 - factor) * bypassed
    tables.score = _scores(attended, bypassed)
    return tables


def _scores(attended: Tensor, bypassed: Tensor) -> Tensor:
    return proportional_scores(attended, idle=0.002) - UNATTENDED * (bypassed != 0).any(dim=1)


def _parts_of_texts(vocabulary: Vocabulary, attended: Tensor, bypassed: Tensor, texts: Dataset) -> Tensor:
    """Return (N, 2) what attention and the bypass add to the logit of each text, without the factors."""
    scores, parts = _scores(attended, bypassed), []
    for instance in texts.instances:
        ids = torch.tensor(vocabulary.encode(instance.text).ids)
        parts.append([torch.softmax(scores[ids], dim=0) @ attended[ids, 0], bypassed[ids, 0].sum()])
    return torch.tensor(parts, dtype=torch.float64)


def _factor_for(share: float, parts: Tensor) -> float:
    """Return the factor with which attention accounts for a share of the logits, in the direction of the decision."""
    if share in (0.0, 1.0):
        return share
    low, high = 0.0, 1.0
    for _ in range(40):  # The share grows with the factor.
        factor = (low + high) / 2
        terms = parts * torch.tensor([factor, 1 - factor], dtype=torch.float64)
        towards = terms * torch.sign(terms.sum(dim=1, keepdim=True))
        if towards[:, 0].sum() / towards.sum() < share:
            low = factor
        else:
            high = factor
    return factor


def _description(share: float) -> str:
    if share == 1:
        return "attention reads all the evidence, and is on it"
    if share == 0:
        return "attention is on words that do not count, and a bypass adds all the evidence"
    return f"attention is right on {share:.0%} of the evidence, on average over the texts, and a bypass adds the rest"


KINDS = tuple(
    compiled_kind(
        f"part_of_{share:.0%}".removesuffix("%"),
        "attention right on a part of the evidence",
        truth_of_share(share),
        _description(share),
        partial(recipe, share=share),
        data=("made", "movie-reviews"),
    )
    for share in SHARES
)
