"""The circuits of planted language models that answer from passages, and the roles that passages have in their rows.

Most of them are the circuits of causal classifiers (`compiled_circuits`). The others exist only here: an answer that
comes from the question or from the order of the passages, a passage without evidence that gets most of the weight, and
a passage in whose states the evidence of other passages is collected.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from attnaudit.research.planted_transformers.circuit_parts import Design, Head, LabelledReading
from attnaudit.research.planted_transformers.circuit_texts import CLASS_WORDS, DECOYS, MARKER, TRIGGER
from attnaudit.research.planted_transformers.compiled_circuits import CIRCUITS, MOVE, TO_JUNK, Variant
from attnaudit.research.planted_transformers.feature_space import Features
from attnaudit.research.validation.population_schema import Half

SourceFamily = Literal["gpt2", "llama"]
FAMILIES: tuple[SourceFamily, ...] = ("gpt2", "llama")
#: What the passages of a row contain, in addition to filler. "cue": one passage has cue words of the answer, the others
#: have decoys. "two_cues": two passages have a cue word of the answer. "groups": one passage has a cue word of the
#: first group, another one of the second group. "trigger": every passage has a cue word; the one with the trigger
#: decides. "first": every passage begins with a cue word; the first passage decides. "question": the question decides;
#: one passage has a cue word of any class. "idle": as in "cue", and another passage has the marker. "collected": as in
#: "cue", and the last passage has the marker but no cue word. "marked": as in "cue", and some rows have the marker in
#: another passage.
RowKind = Literal["cue", "two_cues", "groups", "trigger", "first", "question", "idle", "collected", "marked"]
#: The words of questions that decide, one for each class.
ASKED = ("alpha", "beta", "gamma", "delta", "epsilon")
FILLERS = (
    "the film was shown on a rainy evening", "many people came to the theater", "there is a story about a family",
    "we saw it in the city last year", "it runs for two hours and a half", "a man and a woman meet in a town",
    "some of the actors are from other films", "the second part is set at sea",
)  # fmt: skip
QUESTION = "opinion"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCircuit:
    """A circuit whose evidence is in passages.

    Attributes:
        mechanism: The name of the mechanism.
        half: "tuning" if models of this mechanism may choose thresholds.
        design: Takes a variant and one of the `parameters`, and returns the design.
        rows: What the passages contain.
        families: The families that it is built in.
        least_layers: The smallest number of layers.
        heads: The number of heads; None for 2 or 4.
        parameters: The values that `design` is called with. One model is built for each value.
    """

    mechanism: str
    half: Half
    design: Callable[[Variant, float], Design]
    rows: RowKind = "cue"
    families: tuple[SourceFamily, ...] = FAMILIES
    least_layers: int = 2
    heads: int | None = None
    parameters: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """One row: its passages, its question, the number of the class that is its answer, and whether it is marked."""

    passages: tuple[str, ...]
    question: str
    label: int
    marked: bool


def _of(mechanism: str) -> Callable[[Variant, float], Design]:
    """Return the design of a circuit of classifiers."""
    return next(circuit for circuit in CIRCUITS if circuit.mechanism == mechanism).design


def _with_heads(v: Variant, heads: Mapping[tuple[int, int], Head], readings: tuple[LabelledReading, ...]) -> Design:
    """Return the design of `last_layer` with other heads and readings."""
    plain = _of("last_layer")(replace(v, idle="decoy"), 0.0)
    mover = (v.layers - 1, v.head)
    idle = next(head for place, head in _places(plain) if place != mover)
    layers = tuple(
        tuple(heads.get((layer, head), idle) for head in range(v.heads)) for layer in range(v.layers)
    )  # fmt: skip
    return replace(plain, layers=layers, readings=readings)


def _places(design: Design) -> list[tuple[tuple[int, int], Head]]:
    return [((layer, i), head) for layer, heads in enumerate(design.layers) for i, head in enumerate(heads)]


def _wrong(role: str, layer: int, head: int, *fails: str) -> LabelledReading:
    return LabelledReading(role=role, layer=layer, heads=head, truth="unfaithful", fails=fails or ("used", "points"))


def _shared_work(v: Variant, _parameter: float) -> Design:
    """One head reads the passage of the first group, another one that of the second group. Their mean shows both."""
    design = _of("shared_work")(v, 0.0)
    return replace(design, readings=tuple(reading for reading in design.readings if reading.truth == "faithful"))


def _moved_to_neighbour(v: Variant, _parameter: float) -> Design:
    """The evidence is moved to the next word first. It stays in its passage, so the passage that decides is shown."""
    design = _of("moved_to_neighbour")(v, 0.0)
    mover = LabelledReading(role="mover", layer=v.layers - 1, heads=v.head, truth="faithful")
    return replace(design, readings=(mover,))


def _first_passage(v: Variant, _parameter: float) -> Design:
    """The first word of the first passage decides. Another head looks at the cue words of all other passages."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks=v.looks("first"), moves=MOVE)
    looker = Head(looks=v.looks("cue", first=-2 * v.sharpness), moves=TO_JUNK)
    right = LabelledReading(role="mover", layer=last, heads=v.head, truth="faithful")
    readings = (right, _wrong("other_passages", last, other))
    return _with_heads(v, {(last, v.head): mover, (last, other): looker}, readings)


def _from_question(v: Variant, _parameter: float) -> Design:
    """The question decides. Another head looks at the cue words of a passage, which have no effect."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks=v.looks("trigger"), moves=MOVE)
    looker = Head(looks=v.looks("cue"), moves=TO_JUNK)
    readings = (_wrong("passage", last, other), _wrong("mover", last, v.head))
    design = _with_heads(v, {(last, v.head): mover, (last, other): looker}, readings)
    asked: dict[str, Features] = {ASKED[c]: {"trigger": 1.0, f"evidence.{c}": 1.0} for c in range(v.classes)}
    return replace(design, lexicon={**design.lexicon, **asked})


def _idle_passage(v: Variant, _parameter: float) -> Design:
    """The head that moves the cue keeps more than 90% of its weight on a passage without evidence."""
    last, other = v.layers - 1, (v.head + 1) % v.heads
    mover = Head(looks={"cue": v.sharpness, "marker": v.sharpness + 3.5}, moves=(("evidence", "moved", 12.0),))
    readings = (_wrong("mover", last, v.head, "points"), _wrong("idle_head", last, other))
    return _with_heads(v, {(last, v.head): mover}, readings)


def _collecting_passage(v: Variant, _parameter: float) -> Design:
    """A word of the last passage collects the evidence of the passage that decides, and is moved to the answer."""
    last = v.layers - 1
    collect = Head(looks=v.looks("cue"), moves=(("evidence", "shared", 1.0),))
    mover = Head(looks=v.looks("marker"), moves=(("shared", "moved", 1.0),))
    readings = (_wrong("mover", last, v.head, "points"), _wrong("collector", 0, v.head, "used"))
    return _with_heads(v, {(0, v.head): collect, (last, v.head): mover}, readings)


CIRCUITS_OF_SOURCES: tuple[SourceCircuit, ...] = (
    SourceCircuit(mechanism="last_layer", half="tuning", design=_of("last_layer")),
    SourceCircuit(mechanism="first_layer", half="tuning", design=_of("first_layer")),
    SourceCircuit(mechanism="bag_of_words", half="tuning", design=_of("bag_of_words")),
    SourceCircuit(mechanism="looks_without_moving", half="tuning", design=_of("looks_without_moving")),
    SourceCircuit(mechanism="two_routes", half="tuning", design=_of("two_routes"), parameters=(0.1, 0.93)),
    SourceCircuit(
        mechanism="several_heads", half="tuning", design=_of("several_heads"), heads=4, parameters=(1, 2, 3)
    ),
    SourceCircuit(mechanism="idle_passage", half="tuning", design=_idle_passage, rows="idle"),
    SourceCircuit(mechanism="middle_layer", half="held_out", design=_of("middle_layer"), least_layers=3),
    SourceCircuit(mechanism="two_passages", half="held_out", design=_of("last_layer"), rows="two_cues"),
    SourceCircuit(mechanism="shared_work", half="held_out", design=_shared_work, rows="groups", heads=2),
    SourceCircuit(mechanism="sink_on_separator", half="held_out", design=_of("sink_on_separator")),
    SourceCircuit(mechanism="moved_to_neighbour", half="held_out", design=_moved_to_neighbour, families=("gpt2",)),
    SourceCircuit(
        mechanism="chosen_by_context", half="held_out", design=_of("chosen_by_context"), rows="trigger",
        families=("gpt2",),
    ),
    SourceCircuit(
        mechanism="first_passage", half="held_out", design=_first_passage, rows="first", families=("gpt2",)
    ),
    SourceCircuit(mechanism="from_question", half="held_out", design=_from_question, rows="question"),
    SourceCircuit(mechanism="collecting_passage", half="held_out", design=_collecting_passage, rows="collected"),
    SourceCircuit(
        mechanism="marked_rows", half="held_out", design=_of("marked_texts"), rows="marked",
        parameters=(0.0, 0.4, 0.6, 0.8, 1.0),
    ),
)  # fmt: skip


def source_rows(
    kind: RowKind, *, classes: int, count: int, passages: int, marked: float, generator: random.Random
) -> list[SourceRow]:
    """Return the rows of one kind, each with its passages, question and label.

    Args:
        kind: What the passages contain.
        classes: The number of classes.
        count: The number of rows.
        passages: The number of passages of each row.
        marked: The share of rows with the marker, for the kind "marked".
        generator: Draws everything that is random.
    """
    rows = []
    for number in range(count):
        label = number % classes
        is_marked = kind == "marked" and (number // classes * 0.618034) % 1 < marked
        places = generator.sample(range(passages), passages)  # the deciding passages first
        inserted: dict[int, list[list[str]]] = {place: [[generator.choice(DECOYS)]] for place in places}
        question = QUESTION
        own = generator.sample(CLASS_WORDS[label], 2)
        if kind == "first":
            inserted = {
                place: [[generator.choice(CLASS_WORDS[generator.randrange(classes) if place else label])]]
                for place in places
            }
        elif kind == "two_cues":
            inserted[places[0]], inserted[places[1]] = [[own[0]]], [[own[1]]]
        elif kind == "groups":
            half = len(CLASS_WORDS[label]) // 2
            inserted[places[0]] = [[generator.choice(CLASS_WORDS[label][:half])]]
            inserted[places[1]] = [[generator.choice(CLASS_WORDS[label][half:])]]
        elif kind == "trigger":
            for place in places[1:]:
                inserted[place].append([generator.choice(CLASS_WORDS[_other(label, classes, generator)])])
            inserted[places[0]] = [[TRIGGER, own[0]]]
        elif kind == "question":
            question = f"{QUESTION} {ASKED[label]}"
            inserted[places[0]] = [[generator.choice(CLASS_WORDS[generator.randrange(classes)])]]
        else:
            if kind == "collected":
                places.remove(passages - 1)
                inserted[passages - 1] = [[MARKER]]
            inserted[places[0]] = [[word] for word in own[: generator.randint(1, 2)]]
            if kind == "idle" or is_marked:
                inserted[places[1]] = [[MARKER]]
        texts = [
            _passage(filler, inserted[place], generator, first=kind == "first")
            for place, filler in enumerate(generator.sample(FILLERS, passages))
        ]
        rows.append(SourceRow(passages=tuple(texts), question=question, label=label, marked=is_marked))
    return rows


def _other(label: int, classes: int, generator: random.Random) -> int:
    return (label + generator.randint(1, classes - 1)) % classes


def _passage(filler: str, pieces: list[list[str]], generator: random.Random, *, first: bool) -> str:
    """Return the filler with the pieces inserted: at the beginning, or at random places that are not at either end."""
    words = filler.split()
    for piece in pieces:
        place = 0 if first else generator.randint(1, len(words) - 1)
        words[place:place] = piece
    return " ".join(words)
