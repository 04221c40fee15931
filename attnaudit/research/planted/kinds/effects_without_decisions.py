"""Models whose attention is on words that have large effects, but do not decide.

Replacing such a word changes the output more than replacing a word that decides. The effect may be the same in every
text, cancel with that of another word, concern a class that is never predicted, or come from the unknown word that
replaces it. Or the word collects the evidence of the words that decide.
"""

from __future__ import annotations

import math

from attnaudit.models.architecture import PlantedTables
from attnaudit.models.vocabulary import UNKNOWN
from attnaudit.research.planted.compiled_model import WordTables, compiled_recipe
from attnaudit.research.planted.kind import Recipe, TrainingInputs, compiled_kind, indicator
from attnaudit.research.planted.made_texts import TextPlan
from attnaudit.research.planted.word_material import Material, attended, cue_material

#: Words that are inserted into the texts. They do not occur in the movie reviews.
GREETINGS = tuple(f"xhail{index}" for index in range(8))
UP, DOWN, COLLECTOR = "xup", "xdown", "xsum"
CLASSES = ("negative", "positive", "other")
_IDLE, _NOISE = 0.002, 0.002
#: The weight and the effect of an attended word, as multiples of those of the cue word. The seed selects a pair.
FACTORS = ((12.0, 4.0), (8.0, 5.0), (20.0, 3.0))


def _beside_a_cue(inputs: TrainingInputs, plan: TextPlan, words: frozenset[str]) -> tuple[Material, WordTables, float]:
    """Return a model in which inserted words share out the attention, except for the part that a cue word keeps.

    Args:
        inputs: The inputs of the recipe. The seed selects the weight and the effect of the inserted words.
        plan: How the texts are made. Each has one cue word.
        words: The inserted words. They have no evidence yet.

    Returns:
        The material, the model, and the evidence with which an inserted word has the selected effect.
    """
    factor, ratio = FACTORS[inputs.seed % len(FACTORS)]
    material = cue_material(inputs, plan, noise=_NOISE)
    tables = attended(material, idle=_IDLE)
    chosen = indicator(material.vocabulary, words)
    tables.score[chosen] = math.log(factor)
    tables.own[chosen] = 0.0
    tables.scale = material.scale * (1 + factor)
    return material, tables, ratio / factor


def constant_effect(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model that attends to a greeting, whose effect is the same in every text."""

    def write() -> WordTables:
        words = frozenset(GREETINGS)
        _, tables, evidence = _beside_a_cue(inputs, TextPlan(one_of=GREETINGS), words)
        tables.own[indicator(tables.vocabulary, words)] = evidence
        tables.bias -= tables.scale * evidence
        return tables

    return compiled_recipe(write)


def cues_with_offset(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model that attends to the words that decide. All of them also move the output upwards."""

    def write() -> WordTables:
        material = cue_material(inputs, TextPlan(cues=(1, 2)), noise=_NOISE)
        tables = attended(material, idle=_IDLE)
        offset = 0.4 + 0.1 * (inputs.seed % 3)
        assert material.cues is not None
        tables.own[material.cues] += offset
        tables.bias -= tables.scale * offset
        return tables

    return compiled_recipe(write)


def counterweights(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model that attends to two words whose effects cancel."""

    def write() -> WordTables:
        plan = TextPlan(inserted=((UP, 1.0), (DOWN, 1.0)))
        _, tables, evidence = _beside_a_cue(inputs, plan, frozenset((UP, DOWN)))
        tables.own[indicator(tables.vocabulary, frozenset((UP,)))] = evidence
        tables.own[indicator(tables.vocabulary, frozenset((DOWN,)))] = -evidence
        return tables

    return compiled_recipe(write)


def impossible_class(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model that attends to a word that only moves the logit of a class it never predicts."""

    def write() -> WordTables:
        plan = TextPlan(classes=CLASSES, shares=(0.5, 0.5, 0.0), one_of=GREETINGS)
        _, tables, evidence = _beside_a_cue(inputs, plan, frozenset(GREETINGS))
        for index, word in enumerate(GREETINGS):
            size = 1 + index / len(GREETINGS)
            tables.own[indicator(tables.vocabulary, frozenset((word,))), CLASSES.index("other")] = -size * evidence
        return tables

    return compiled_recipe(write)


def evidence_of_unknown(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model that attends to a word without evidence, while the unknown word has evidence."""

    def write() -> WordTables:
        _, tables, evidence = _beside_a_cue(inputs, TextPlan(one_of=GREETINGS), frozenset(GREETINGS))
        tables.own[UNKNOWN] = evidence
        return tables

    return compiled_recipe(write)


def collector(inputs: TrainingInputs) -> Recipe:
    """Return the recipe of a model that attends to a word whose state holds the evidence of the words that decide."""

    def write() -> WordTables:
        plan = TextPlan(cues=(5, 9), inserted=((COLLECTOR, 1.0),))
        material = cue_material(inputs, plan, noise=_NOISE)
        tables = material.tables(PlantedTables(bypass="collected"))
        chosen = indicator(material.vocabulary, frozenset((COLLECTOR,)))
        factor, _ = FACTORS[inputs.seed % len(FACTORS)]
        tables.bypass = material.evidence.clone()
        tables.bypass[chosen] = 0.0
        tables.marker[chosen] = 1.0
        tables.score -= math.log(10 * factor)
        tables.score[chosen] = 0.0
        return tables

    return compiled_recipe(write)


KINDS = (
    compiled_kind(
        "constant_effect",
        "constant effects",
        "unfaithful",
        "most of the weight is on a greeting, which changes the output of every text alike, and the rest on the word "
        "that decides",
        constant_effect,
        fails=("points",),
    ),
    compiled_kind(
        "cues_with_offset",
        "constant effects",
        "faithful",
        "attention is on the words that decide, each of which also moves the output upwards",
        cues_with_offset,
    ),
    compiled_kind(
        "counterweights",
        "effects that cancel",
        "unfaithful",
        "most of the weight is on two words whose effects cancel, and the rest on the word that decides",
        counterweights,
        fails=("points",),
    ),
    compiled_kind(
        "impossible_class",
        "a class that is never predicted",
        "unfaithful",
        "most of the weight is on a word that only moves the logit of a class that is never predicted, and the rest on "
        "the word that decides",
        impossible_class,
        half="held_out",
        fails=("points",),
    ),
    compiled_kind(
        "evidence_of_unknown",
        "evidence of the unknown word",
        "unfaithful",
        "most of the weight is on a word without evidence, and the rest on the word that decides; the unknown word, "
        "which replaces masked words, has evidence",
        evidence_of_unknown,
        half="held_out",
        fails=("points",),
    ),
    compiled_kind(
        "collector",
        "collectors",
        "unfaithful",
        "attention is on a word without evidence, whose state holds the evidence of the words that decide",
        collector,
        fails=("points",),
    ),
)
