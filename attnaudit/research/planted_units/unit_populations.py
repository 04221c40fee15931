"""The models of the populations of planted units, and their seeds.

The tuning half of a population serves to choose gates. The held-out half was audited in several *looks*: each look
audited new models once, after the gates had been chosen. The gates for passages and for bags were changed after a look.
The gates for passages that were tested with the seed 100 had too many false alarms. The models of this look became part
of the tuning half, and the new gates were tested in a second look. The rule for bags was changed after two looks: if
the kind `collector` was left out, it had chosen a gate that all models of this kind pass. The new gates were tested in
a third look at bags, and in a fourth look at large bags. In the third look, two graded models of the kind
`trained_attention` passed, because a mean over the rows hid the class in which they do not use attention. Then the
check of the gate "used" was changed (`unit_audits.bag_candidates`), and tested in a fourth look at bags and in a fifth
look at large bags. Then the plain cosine became the gate "points", except for passages, and was tested in another look
at each population. Then held sufficiency became a third gate, except for passages, because models had passed whose
attention is at a unit with the same effect in every row. It was tested in the last look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnaudit.research.planted_transformers.circuit_parts import CircuitPlan
from attnaudit.research.planted_transformers.planted_patches import PatchPlan, patch_plans
from attnaudit.research.planted_transformers.planted_sources import SourcePlan, source_plans
from attnaudit.research.planted_transformers.source_audits import SourceTask
from attnaudit.research.planted_transformers.source_circuits import CIRCUITS_OF_SOURCES
from attnaudit.research.planted_units.unit_kinds import (
    BRANCHED_KINDS,
    LABEL_KINDS,
    LARGE_KINDS,
    MIXED_KINDS,
    TRAINED_KINDS,
    Arrangement,
    UnitPlan,
    kind_of,
    unit_plans,
)
from attnaudit.research.validation.population_schema import Half

PopulationName = Literal["bags", "large_bags", "attentions", "pictures", "labels", "sources"]
POPULATIONS: tuple[PopulationName, ...] = ("bags", "large_bags", "attentions", "pictures", "labels", "sources")
HALVES: tuple[Half, ...] = ("held_out", "tuning")
#: If a smaller share of the evidence bypasses the head of a model with two routes, the head is used.
USED_ROUTE = 0.5
TUNING_SEEDS = range(4)
#: The same for models that answer from passages, for each half of their mechanisms (`SourceCircuit.half`). Models with
#: the seed 100 were held out at first. After the check `Pointing` had changed, they became part of the tuning half.
SOURCE_TUNING_SEEDS: dict[Half, Sequence[int]] = {"tuning": (0, 1, 100), "held_out": (100,)}
ATTENTION_SEEDS, HEADS_OVER_BAGS = range(100, 115), (*range(100, 103), *range(105, 108), *range(110, 113))
#: Population -> the seeds of its held-out models, for each look that the command can still run.
LOOKS: dict[PopulationName, tuple[range, ...]] = {
    "bags": (range(100, 110), range(110, 116), range(116, 132), range(132, 180), range(180, 228), range(400, 448)),
    "large_bags": (
        *(range(first, first + 20) for first in (200, 220, 240, 260)),
        range(280, 284),
        range(284, 288),
        range(288, 292),
    ),
    "attentions": (range(100, 105), range(105, 110), range(110, 115)),
    # The seeds 10, 11, 20 and 21 were audited with the mean patch as the erasure. The typical patch replaced it then.
    "pictures": (range(22, 25), range(25, 28), range(28, 31)),
    "labels": (range(300, 316), range(316, 332), range(332, 348)),
    "sources": (range(101, 104), range(104, 107)),
}
#: Mechanisms of pictures and passages whose readings all fail both questions. They are not in the looks. The mechanism
#: `from_question` is, because its answer depends on no passage.
BLOCKED_TWICE = ("bag_of_words", "evidence_everywhere")
#: Mechanisms of pictures and of passages without a faithful reading. Only the first seed of a look has them.
UNFAITHFUL_PICTURES = ("looks_without_moving", "moved_to_neighbour")
UNFAITHFUL_SOURCES = ("idle_passage", "collecting_passage", "looks_without_moving", "from_question")
#: Kinds whose encoders mix units, so that every erased unit needs another pass over the bag.
MIXING_KINDS = ("mean_bypass", "max_bypass", "collector", "shifted")
FAITHFUL_KINDS = ("key_attended", "graded_evidence", "chosen_by_mark")
#: The seeds of held-out bags. Kinds that always fail, and graded kinds, have fewer seeds. From the fourth look on, the
#: kind `trained_attention` has three times as many seeds as the others, because some of its models had passed in the
#: third look.
FAITHFUL_SEEDS = (*range(100, 148), *range(180, 196), *range(400, 416))
TRAINED_SEEDS = (*range(100, 228), *range(400, 448))
TAUGHT_SEEDS = FAITHFUL_SEEDS
UNFAITHFUL_SEEDS = (
    *range(100, 107),
    *range(110, 113),
    *range(116, 124),
    *range(132, 140),
    *range(180, 188),
    *range(400, 408),
)
GRADED_SEEDS = (*range(100, 103), 110, *range(116, 119), *range(132, 135), *range(180, 183), *range(400, 403))


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeBags:
    """A group of large bags: the kinds, the number of units of each bag, and the seeds."""

    kinds: Sequence[str]
    units: int
    seeds: Sequence[int]


LARGE_BAGS = (
    LargeBags(kinds=LARGE_KINDS, units=1_000, seeds=range(200, 203)),
    LargeBags(kinds=LARGE_KINDS, units=10_000, seeds=range(210, 212)),
    LargeBags(kinds=FAITHFUL_KINDS, units=1_000, seeds=range(220, 237)),
    LargeBags(kinds=("uniform_weights", "sink"), units=1_000, seeds=range(220, 230)),
    LargeBags(kinds=(*MIXING_KINDS, *(kind.name for kind in TRAINED_KINDS)), units=1_000, seeds=range(240, 248)),
    LargeBags(kinds=FAITHFUL_KINDS, units=1_000, seeds=range(260, 280)),
    LargeBags(kinds=("uniform_weights", "sink"), units=1_000, seeds=range(260, 270)),
    LargeBags(kinds=LARGE_KINDS, units=1_000, seeds=range(280, 292)),
)


def unit_tasks(population: PopulationName) -> list[tuple[UnitPlan, Half]]:
    """Return the models of "bags" or "attentions", each with its half."""
    arrangements: tuple[Arrangement, ...] = ("bag",) if population == "bags" else ("hops", "heads")
    tasks: list[tuple[UnitPlan, Half]] = [(plan, "tuning") for plan in unit_plans(arrangements, TUNING_SEEDS)]
    if population == "attentions":
        held_out = unit_plans(arrangements, ATTENTION_SEEDS)
        held_out += unit_plans(arrangements, ATTENTION_SEEDS, kinds=MIXED_KINDS)
        held_out += unit_plans(arrangements, ATTENTION_SEEDS, kinds=BRANCHED_KINDS)
        held_out += unit_plans(("bag_heads",), HEADS_OVER_BAGS)
        return tasks + [(plan, "held_out") for plan in held_out]
    kept = [plan for plan in unit_plans(arrangements, FAITHFUL_SEEDS) if plan.seed in _seeds(plan)]
    for kind in TRAINED_KINDS:
        seeds = TRAINED_SEEDS if kind.teaching == "labels" else TAUGHT_SEEDS
        kept += unit_plans(arrangements, seeds, kinds=[kind])
    return tasks + [(plan, "held_out") for plan in kept]


def _seeds(plan: UnitPlan) -> Sequence[int]:
    if plan.kind in FAITHFUL_KINDS:
        return FAITHFUL_SEEDS
    return GRADED_SEEDS if plan.marked else UNFAITHFUL_SEEDS


def large_bags() -> list[tuple[UnitPlan, Half]]:
    """Return the models of large bags, which are all held out. The first models have different kinds and sizes."""
    plans = [
        (number, replace(plan, units=group.units))
        for group in LARGE_BAGS
        for kind in group.kinds
        for number, seed in enumerate(group.seeds)
        for plan in unit_plans(("bag",), [seed], kinds=[kind_of(kind)])
    ]
    return [(plan, "held_out") for _, plan in sorted(plans, key=lambda one: one[0])]


def label_models() -> list[tuple[UnitPlan, Half]]:
    """Return the models that assign any number of labels, which are all held out."""
    seeds = [seed for each in LOOKS["labels"] for seed in each]
    return [(plan, "held_out") for plan in unit_plans(("heads", "bag_heads"), seeds, kinds=LABEL_KINDS)]


def picture_plans(seeds: Sequence[int]) -> list[PatchPlan]:
    """Return the vision transformers of a look, which are all held out. Its first seed has more mechanisms."""
    return [
        plan
        for seed in seeds
        for half in HALVES
        for plan in patch_plans(half, [seed])
        if _in_look(plan, () if _is_first("pictures", seed) else UNFAITHFUL_PICTURES)
    ]


def source_tasks(seeds: Sequence[int]) -> list[SourceTask]:
    """Return the models that answer from passages: those of the tuning half, and those of a look.

    The first seed of the look has more mechanisms.
    """
    tuning = [plan for half, each in SOURCE_TUNING_SEEDS.items() for plan in _sources_of(half, each)]
    held_out = [
        plan
        for seed in seeds
        for plan in source_plans("held_out", [seed])
        if _in_look(plan, () if _is_first("sources", seed) else UNFAITHFUL_SOURCES)
    ]
    halves: tuple[tuple[Half, list[SourcePlan]], ...] = (("tuning", tuning), ("held_out", held_out))
    return [SourceTask(plan=plan, half=half) for half, plans in halves for plan in plans]


def _sources_of(half: Half, seeds: Sequence[int]) -> list[SourcePlan]:
    """Return the models whose mechanisms belong to one half."""
    mechanisms = {circuit.mechanism for circuit in CIRCUITS_OF_SOURCES if circuit.half == half}
    return [plan for plan in source_plans("held_out", seeds) if plan.mechanism in mechanisms]


def _in_look(plan: CircuitPlan, left_out: Sequence[str]) -> bool:
    """Return whether a model of patches or passages is in a look.

    It is if a reading is faithful or fails only one question, or if its mechanism is `from_question`.

    Args:
        plan: The model.
        left_out: Mechanisms without a faithful reading that are not in the look. If there are any, models of two routes
            whose head is not used are not in the look either.
    """
    if plan.mechanism in ("marked_texts", "marked_rows"):
        return plan.parameter == 0
    if plan.mechanism == "several_heads":
        return plan.parameter == 1
    if plan.mechanism == "two_routes" and left_out:
        return plan.parameter < USED_ROUTE
    return plan.mechanism not in (*BLOCKED_TWICE, *left_out)


def _is_first(population: PopulationName, seed: int) -> bool:
    """Return whether a seed is the first one of a look."""
    return any(seed == seeds[0] for seeds in LOOKS[population])


def look_of(population: PopulationName, seed: int) -> int:
    """Return the number of the look, from 1, in which held-out models with this seed were audited."""
    return next(number for number, seeds in enumerate(LOOKS[population], start=1) if seed in seeds)
