"""The compiled circuits: which heads move the evidence of the cue to the row that is read, and which readings show it.

The row that is read is the state of the token from which the classifier computes its output: [CLS] in BERT, and [SEP]
in causal models.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnaudit.research.planted_transformers.circuit_parts import Design, Family, Head, Heads, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import MARKER, lexicon
from attnaudit.research.planted_transformers.feature_space import Features

FAMILIES: tuple[Family, ...] = ("bert", "gpt2", "llama")
#: The families with embeddings of positions. Llama has rotations instead, which the heads of these circuits cannot use.
WITH_POSITIONS: tuple[Family, ...] = ("bert", "gpt2")
#: The gain of a head that averages over all tokens. It is large, so that one cue word among many words decides.
AVERAGE_GAIN = 9.0
#: For a head that looks mostly at the closing word: how much more weight this word has than a cue word, and the gain.
#: Together, two to four cue words then move evidence of 0.17 to 0.33.
CLOSING_WEIGHT, CLOSING_GAIN = 40.0, 3.6

MOVE = (("evidence", "moved", 1.0),)
TO_JUNK = (("decoy", "junk", 0.5), ("cue", "junk", -0.3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What differs between the models of one circuit.

    Attributes:
        family: The family.
        layers: The number of layers.
        heads: The number of heads of each layer.
        classes: The number of classes.
        sharpness: The attention score of the tokens that a head looks at. All other tokens have a score of 0.
        logit_scale: The logit of a class for one unit of evidence.
        reviews: Whether the texts are unchanged review sentences, if the circuit allows it.
        head: The number of the head that moves the cue.
        idle: The tokens that the idle heads look at. An idle head has no effect on the output.
    """

    family: Family
    layers: int
    heads: int
    classes: int
    sharpness: float
    logit_scale: float
    reviews: bool
    head: int
    idle: str

    @property
    def texts(self) -> str:
        """The kind of texts, "reviews" or "cues", for circuits that work on both."""
        return "reviews" if self.reviews else "cues"

    def looks(self, feature: str, **more: float) -> Features:
        """Return the scores of a head that looks at the tokens with a feature."""
        return {feature: self.sharpness, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """A compiled circuit.

    Attributes:
        mechanism: The name of the mechanism.
        half: The half of the population that its models belong to.
        design: Takes a variant and one of the `parameters`, and returns the design.
        families: The families that it is built in.
        least_layers: The smallest number of layers.
        heads: The number of heads; None for 2 or 4.
        may_use_reviews: Whether its texts may be unchanged review sentences.
        most_classes: The largest number of classes.
        parameters: The values that `design` is called with: shares of texts or numbers of heads. One model is built for
            each value. If there is nothing to vary, the only value is 0.0.
        pictures: Whether vision transformers are built with it, too (`planted_patches`).
    """

    mechanism: str
    half: str
    design: Callable[[Variant, float], Design]
    families: tuple[Family, ...] = FAMILIES
    least_layers: int = 2
    heads: int | None = None
    may_use_reviews: bool = False
    most_classes: int = 5
    parameters: tuple[float, ...] = (0.0,)
    pictures: bool = True


def variant(circuit: Circuit, family: Family, seed: int) -> Variant:
    """Return the variant of a circuit for a family and a seed."""
    generator = random.Random(f"{circuit.mechanism} {family} {seed}")
    heads = circuit.heads or generator.choice((2, 4))
    classes = min(circuit.most_classes, generator.choice((2, 2, 3, 5)))
    return Variant(
        family=family,
        layers=generator.randint(circuit.least_layers, 6 if seed else 4),
        heads=heads,
        classes=classes,
        sharpness=generator.choice((5.0, 8.0, 12.0)),
        logit_scale=generator.choice((1.5, 4.0, 8.0)),
        reviews=circuit.may_use_reviews and classes == 2 and generator.random() < 0.7,
        head=generator.randrange(heads),
        idle=generator.choice(("decoy", "sink", "uniform") + ("first",) * (family in WITH_POSITIONS)),
    )


# -- helpers -------------------------------------------------------------------------------------------------------


def _idle(v: Variant, looks: str = "") -> Head:
    """Return a head without an effect on the output."""
    feature = looks or v.idle
    return Head(looks={} if feature == "uniform" else v.looks(feature), moves=TO_JUNK)


def _layers(v: Variant, heads: Mapping[tuple[int, int], Head], idle: str = "") -> tuple[tuple[Head, ...], ...]:
    """Return all heads of a model: the given heads at their (layer, head), and idle heads everywhere else."""
    return tuple(
        tuple(heads.get((layer, head)) or _idle(v, idle) for head in range(v.heads)) for layer in range(v.layers)
    )


def _design(
    v: Variant,
    heads: Mapping[tuple[int, int], Head],
    readings: tuple[LabelledReading, ...],
    *,
    texts: str = "",
    idle: str = "",
    default_class: int | None = None,
    marker_share: float = 0.0,
) -> Design:
    kind = texts or v.texts
    return Design(
        layers=_layers(v, heads, idle),
        readings=readings,
        lexicon=lexicon(kind, v.classes),
        texts=kind,
        classes=v.classes,
        logit_scale=v.logit_scale,
        default_class=default_class,
        marker_share=marker_share,
    )


def _right(role: str, layer: int, heads: int) -> LabelledReading:
    return LabelledReading(role=role, layer=layer, heads=heads, truth="faithful")


def _wrong(role: str, layer: int, heads: Heads, *fails: str) -> LabelledReading:
    return LabelledReading(role=role, layer=layer, heads=heads, truth="unfaithful", fails=fails or ("used", "points"))


def _average(v: Variant, **changes: Any) -> Head:
    """Return a head that moves the mean evidence of all tokens to the row that is read."""
    return Head(**({"looks": {}, "rows": "read", "moves": (("evidence", "moved", AVERAGE_GAIN),)} | changes))


# -- circuits ------------------------------------------------------------------------------------------------------


def _last_layer(v: Variant, _parameter: float) -> Design:
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks=v.looks("cue"), moves=MOVE)
    readings = (_right("mover", last, v.head), _wrong("idle_head", last, other), _wrong("first_layer", 0, "mean"))
    return _design(v, {(last, v.head): mover}, readings)


def _middle_layer(v: Variant, _parameter: float) -> Design:
    """The cue is moved in a middle layer to the row that is read. The last layer looks elsewhere."""
    middle, last = v.layers // 2, v.layers - 1
    mover = Head(looks=v.looks("cue"), rows="read", moves=MOVE)
    readings = (_right("mover", middle, v.head), _wrong("last_layer", last, "mean"))
    return _design(v, {(middle, v.head): mover}, readings)


def _first_layer(v: Variant, _parameter: float) -> Design:
    mover = Head(looks=v.looks("cue"), rows="read", moves=MOVE)
    readings = (_right("mover", 0, v.head), _wrong("last_layer", v.layers - 1, v.head))
    return _design(v, {(0, v.head): mover}, readings)


def _bag_of_words(v: Variant, _parameter: float) -> Design:
    """The first layer moves the average of all words to the row that is read. The last layer looks at other words."""
    readings = (_wrong("last_layer", v.layers - 1, "mean"), _wrong("last_layer_head", v.layers - 1, v.head))
    return _design(v, {(0, v.head): _average(v)}, readings)


def _collector(v: Variant, collect: Head) -> Design:
    """The first layer collects evidence in the state of the closing word. The last layer moves it from there."""
    last = v.layers - 1
    mover = Head(looks=v.looks("marker"), moves=(("shared", "moved", 1.0),))
    readings = (_wrong("mover", last, v.head, "points"),)
    return _design(v, {(0, v.head): collect, (last, v.head): mover}, readings, texts="closed")


def _collected_cues(v: Variant, _parameter: float) -> Design:
    """The closing word collects the mean of the cue words, so that no single cue word has an effect."""
    return _collector(v, Head(looks=v.looks("cue"), rows="marker", moves=(("evidence", "shared", 1.0),)))


def _collected_words(v: Variant, _parameter: float) -> Design:
    """The closing word collects the mean of all words."""
    return _collector(v, Head(rows="marker", moves=(("evidence", "shared", AVERAGE_GAIN),)))


def _idle_collector(v: Variant, _parameter: float) -> Design:
    """The closing word collects the mean of the cue words, but the last layer moves evidence from the cue words."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    collect = Head(looks=v.looks("cue"), rows="marker", moves=(("evidence", "shared", 1.0),))
    mover = Head(looks=v.looks("cue"), moves=MOVE)
    readings = (_right("mover", last, v.head), _wrong("idle_head", last, other))
    heads = {(0, v.head): collect, (last, v.head): mover, (last, other): Head(looks=v.looks("marker"), moves=TO_JUNK)}
    return _design(v, heads, readings, texts="closed")


def _constant_word(v: Variant, _parameter: float) -> Design:
    """Most of the weight is on the closing word, which speaks against class 0 in every text. The cue words decide.

    Without the closing word, class 0 would be the default class. Replacing this word therefore changes the output more
    than replacing a cue word does.
    """
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(
        looks={"cue": v.sharpness, "marker": v.sharpness + math.log(CLOSING_WEIGHT)},
        moves=(("evidence", "moved", CLOSING_GAIN),),
    )
    readings = (_wrong("mover", last, v.head, "points"), _wrong("idle_head", last, other))
    design = _design(v, {(last, v.head): mover}, readings, texts="closed", default_class=0)
    against = {"marker": 1.0, "evidence.0": -0.5 / CLOSING_GAIN}
    return replace(design, lexicon={**design.lexicon, MARKER: against})


def _evidence_everywhere(v: Variant, _parameter: float) -> Design:
    """The first layer writes the average into every state. The last layer moves it from any token."""
    last = v.layers - 1
    spread = _average(v, rows="all", moves=(("evidence", "shared", AVERAGE_GAIN),))
    mover = Head(looks=v.looks("decoy"), moves=(("shared", "moved", 1.0),))
    return _design(v, {(0, v.head): spread, (last, v.head): mover}, (_wrong("mover", last, v.head),))


def _looks_without_moving(v: Variant, _parameter: float) -> Design:
    """The average of the first layer decides. A head of the last layer looks at the cue, but moves nothing."""
    last = v.layers - 1
    looker = Head(looks=v.looks("cue"), moves=TO_JUNK)
    return _design(v, {(0, v.head): _average(v), (last, v.head): looker}, (_wrong("looker", last, v.head, "used"),))


def _moved_to_neighbour(v: Variant, _parameter: float) -> Design:
    """Each token's evidence is moved to the next token first, and from there to the row that is read."""
    last = v.layers - 1
    previous = Head(previous=True, moves=(("evidence", "neighbour", 1.0), ("cue", "after", 1.0)))
    mover = Head(looks=v.looks("after"), moves=(("neighbour", "moved", 1.0),))
    readings = (_wrong("mover", last, v.head, "points"),)
    return _design(v, {(0, v.head): previous, (last, v.head): mover}, readings)


def _chosen_by_context(v: Variant, _parameter: float) -> Design:
    """Several words have evidence. A previous-token head marks the word after the trigger. Only this word is moved."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    previous = Head(previous=True, moves=(("trigger", "chosen", 1.0),))
    mover = Head(looks=v.looks("chosen"), moves=MOVE)
    looker = Head(looks=v.looks("content", chosen=-2 * v.sharpness), moves=TO_JUNK)
    readings = (_right("mover", last, v.head), _wrong("other_candidates", last, other))
    heads = {(0, v.head): previous, (last, v.head): mover, (last, other): looker}
    return _design(v, heads, readings, texts="trigger")


def _weighted_cues(v: Variant, _parameter: float) -> Design:
    """Words of the first group get about four times the weight of the second group, and have four times the effect."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks={"cue": v.sharpness, "weak": v.sharpness - 1.4}, moves=MOVE)
    readings = (_right("mover", last, v.head), _wrong("idle_head", last, other))
    return _design(v, {(last, v.head): mover}, readings, texts="weighted")


def _uneven_evidence(v: Variant, _parameter: float) -> Design:
    """Words of the second group get the same weight as words of the first group, but have half as much evidence."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks=v.looks("cue"), moves=MOVE)
    readings = (_right("mover", last, v.head), _wrong("idle_head", last, other))
    return _design(v, {(last, v.head): mover}, readings, texts="uneven")


def _several_heads(v: Variant, parameter: float) -> Design:
    """Some heads of the last layer move the cue together; others look elsewhere. The reading averages all heads."""
    last, right = v.layers - 1, round(parameter)
    parts = tuple(sorted((v.head + i) % v.heads for i in range(right)))
    mover = Head(looks=v.looks("cue"), moves=(("evidence", "moved", 1 / right),))
    mean = LabelledReading(
        role=f"{right}_of_{v.heads}", layer=last, heads="mean", truth="graded", share=right / v.heads, parts=parts
    )
    idle = _wrong("idle_head", last, (v.head + right) % v.heads)
    readings = (mean, idle, _right("only_mover", last, v.head)) if right == 1 else (mean, idle)
    return _design(v, {(last, head): mover for head in parts}, readings, idle="decoy")


def _shared_work(v: Variant, _parameter: float) -> Design:
    """One head moves the cue words of one group, and another head those of the other group. Their mean shows both."""
    last = v.layers - 1
    heads = {
        (last, 0): Head(looks=v.looks("cue", group=-2 * v.sharpness), moves=MOVE),
        (last, 1): Head(looks=v.looks("group"), moves=MOVE),
    }
    mean = LabelledReading(role="mean", layer=last, heads="mean", truth="faithful")
    return _design(v, heads, (mean, _wrong("first_layer", 0, "mean")), texts="groups")


def _sink_on_separator(v: Variant, _parameter: float) -> Design:
    """The head that moves the cue keeps most of its weight on a special token, which has no evidence."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks={"cue": v.sharpness, "sink": v.sharpness + 1.5}, moves=(("evidence", "moved", 4.0),))
    readings = (_right("mover", last, v.head), _wrong("idle_head", last, other))
    return _design(v, {(last, v.head): mover}, readings)


def _sink_on_first_word(v: Variant, _parameter: float) -> Design:
    """The head that moves the cue keeps more than 80% of its weight on the first word."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks={"cue": v.sharpness, "first": v.sharpness + 3.5}, moves=(("evidence", "moved", 12.0),))
    readings = (_wrong("mover", last, v.head, "points"), _wrong("idle_head", last, other))
    return _design(v, {(last, v.head): mover}, readings, texts="after_first")


def _two_routes(v: Variant, parameter: float) -> Design:
    """The average of the first layer carries part of the evidence. The head that looks at the cue carries the rest."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    bypass = _average(v, moves=(("evidence", "moved", AVERAGE_GAIN * parameter),))
    mover = Head(looks=v.looks("cue"), moves=(("evidence", "moved", 1 - parameter),))
    readings: tuple[LabelledReading, ...] = (_wrong("weak_mover", last, v.head, "used"),)
    if parameter < 0.5:
        readings = (_right("mover", last, v.head), _wrong("idle_head", last, other))
    return _design(v, {(0, v.head): bypass, (last, v.head): mover}, readings)


def _needle(v: Variant, _parameter: float) -> Design:
    """Most texts have no cue and belong to the default class."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks=v.looks("cue"), moves=MOVE)
    readings = (_right("mover", last, v.head), _wrong("idle_head", last, other))
    return _design(v, {(last, v.head): mover}, readings, texts="needle", default_class=0)


def _marked_texts(v: Variant, parameter: float) -> Design:
    """In texts with the marker, the head looks away, and a head with uniform weights moves the cue instead."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    s = v.sharpness
    flag = Head(looks={"marker": 2 * s, "sink": s}, rows="read", moves=(("marker", "flag", 1.0),))
    mover = Head(looks=v.looks("cue"), if_flagged={"sink": 2 * s, "decoy": s}, rows="read", moves=MOVE)
    instead = _average(v, looks={"sink": 2 * s}, if_flagged={"sink": 0.0})
    share = 1 - parameter
    if parameter == 0:
        reading = _right("mover", last, v.head)
    elif parameter == 1:
        reading = _wrong("mover_never_right", last, v.head)
    else:
        reading = LabelledReading(
            role=f"right_on_{share * 100:.0f}", layer=last, heads=v.head, truth="graded", share=share
        )
    heads = {(0, 0): flag, (last, v.head): mover, (last, other): instead}
    return _design(v, heads, (reading,), texts="marked", marker_share=parameter)


CIRCUITS: tuple[Circuit, ...] = (
    Circuit(mechanism="last_layer", half="tuning", design=_last_layer, may_use_reviews=True),
    Circuit(mechanism="middle_layer", half="held_out", design=_middle_layer, least_layers=3, may_use_reviews=True),
    Circuit(mechanism="first_layer", half="tuning", design=_first_layer, may_use_reviews=True),
    Circuit(mechanism="bag_of_words", half="tuning", design=_bag_of_words, may_use_reviews=True),
    Circuit(mechanism="collected_cues", half="tuning", design=_collected_cues, pictures=False),
    Circuit(mechanism="collected_words", half="held_out", design=_collected_words, pictures=False),
    Circuit(mechanism="idle_collector", half="held_out", design=_idle_collector, pictures=False),
    Circuit(mechanism="constant_word", half="tuning", design=_constant_word, most_classes=2, pictures=False),
    Circuit(mechanism="evidence_everywhere", half="held_out", design=_evidence_everywhere, families=("bert",)),
    Circuit(mechanism="looks_without_moving", half="held_out", design=_looks_without_moving, may_use_reviews=True),
    Circuit(mechanism="moved_to_neighbour", half="tuning", design=_moved_to_neighbour, families=WITH_POSITIONS),
    Circuit(mechanism="chosen_by_context", half="held_out", design=_chosen_by_context, families=WITH_POSITIONS),
    Circuit(mechanism="weighted_cues", half="tuning", design=_weighted_cues),
    Circuit(mechanism="uneven_evidence", half="held_out", design=_uneven_evidence),
    Circuit(mechanism="several_heads", half="tuning", design=_several_heads, heads=4, parameters=(1, 2, 3)),
    Circuit(mechanism="shared_work", half="held_out", design=_shared_work, heads=2),
    Circuit(mechanism="sink_on_separator", half="held_out", design=_sink_on_separator),
    Circuit(mechanism="sink_on_first_word", half="held_out", design=_sink_on_first_word, families=WITH_POSITIONS),
    Circuit(mechanism="two_routes", half="tuning", design=_two_routes, parameters=(0.1, 0.93)),
    Circuit(mechanism="needle", half="tuning", design=_needle, most_classes=2),
    Circuit(mechanism="marked_texts", half="held_out", design=_marked_texts, parameters=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
)
