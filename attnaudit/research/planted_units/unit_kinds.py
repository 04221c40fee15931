"""The kinds of planted models of units: what decides their predictions, and what their attention shows.

A kind says what the heads look at and what the states contain. The seed decides everything else: the number of classes,
units and heads, the sharpness of attention, the scale of the logits, and the form of scores and states. The truth of a
reading is not part of a kind: `truth_rule` decides it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from attnaudit.research.planted_units.planted_pool import Looks, PlantedHead, PoolDesign, Value
from attnaudit.research.planted_units.trained_pool import Teaching
from attnaudit.research.planted_units.unit_codes import UnitTask

#: How the attentions of a model are arranged: one attention over a bag, hops over a text, heads over a text, or heads
#: over a bag.
Arrangement = Literal["bag", "hops", "heads", "bag_heads"]
#: The sizes of bags (least, most) among which the seed chooses. The first are for models that encode each unit on its
#: own. The second are for models whose encoder mixes units: they need another forward pass for every erased unit.
SIZES = ((100, 120), (120, 160), (240, 240))
MIXED_SIZES = ((100, 100), (100, 110))
WORDS = (20, 36)
#: The gain of a head that is idle. It is not 0, because a conformance check refuses heads without any influence.
IDLE = 0.002
#: The number of rows of each model.
ROWS = 60
#: The same for models whose number of units is given, which are large bags.
LARGE_ROWS = 40
#: Kinds of which large bags are built. Their encoders read each unit alone, so a masked unit needs no other pass.
LARGE_KINDS = ("key_attended", "graded_evidence", "chosen_by_mark", "uniform_weights", "sink")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitKind:
    """A kind of planted models.

    Attributes:
        name: The name of the kind, and of its mechanism.
        looks: What each head looks at, with its gain. If there is a single pair, all heads of a model with several
            heads use it.
        value: The value that the state of each unit contains (see `PoolDesign`).
        arrangements: The arrangements in which the kind is built.
        read: The numbers of the heads that are audited one by one. Empty to audit the mean over all heads, or the only
            head.
        marked: The shares of rows with a marker. One model is built for each share.
        levels: As in `UnitTask`.
        everywhere: As in `UnitTask`.
        pointed: As in `UnitTask`.
        right: The numbers of the heads that decide, if the reading is the mean over these and other heads. Empty for
            all other readings.
        by_class: Whether the model has one head per class. A head that looks at key units looks at those of its class.
            The reading is the head of the predicted class.
        teaching: What a trained model is taught; None for a compiled model.
        several_labels: Whether the model assigns any number of labels. It has one head per label. A head that looks at
            key units looks at those of its label. One label is explained. The readings are the head of this label, the
            head of another label, and the mean over the heads.
    """

    name: str
    looks: tuple[tuple[Looks, float], ...]
    value: Value = "own"
    arrangements: tuple[Arrangement, ...] = ("bag",)
    read: tuple[int, ...] = ()
    marked: tuple[float, ...] = (0.0,)
    levels: bool = False
    everywhere: bool = False
    pointed: bool = False
    right: tuple[int, ...] = ()
    by_class: bool = False
    teaching: Teaching | None = None
    several_labels: bool = False


ONE: tuple[Arrangement, ...] = ("bag", "heads")
TEXTS: tuple[Arrangement, ...] = ("hops", "heads")
#: Kinds with one attention, or with several attentions that look at the same units.
KINDS = (
    UnitKind(name="key_attended", looks=(("key", 1.0),), arrangements=ONE),
    UnitKind(name="graded_evidence", looks=(("level", 1.0),), levels=True, arrangements=ONE),
    UnitKind(name="chosen_by_mark", looks=(("key", 1.0),), everywhere=True, arrangements=ONE),
    UnitKind(name="mean_bypass", looks=(("key", 1.0),), value="mean", arrangements=ONE),
    UnitKind(name="max_bypass", looks=(("decoy", 1.0),), value="max", arrangements=ONE),
    UnitKind(name="collector", looks=(("collector", 1.0),), value="collected", arrangements=ONE),
    UnitKind(name="shifted", looks=(("after", 1.0),), value="before", arrangements=ONE),
    UnitKind(name="uniform_weights", looks=(("all", 1.0),), arrangements=ONE),
    UnitKind(name="sink", looks=(("sink", 1.0),), arrangements=ONE),
    UnitKind(
        name="marked_rows", looks=(("unless_marked", 1.0),), value="unless_marked", marked=(0.2, 0.5, 0.7),
        arrangements=("bag",),
    ),
    # Two heads or hops, one of which decides.
    UnitKind(name="second_decides", looks=(("decoy", IDLE), ("key", 1.0)), arrangements=TEXTS, read=(0, 1)),
    UnitKind(name="first_decides", looks=(("key", 1.0), ("decoy", IDLE)), arrangements=TEXTS, read=(0, 1)),
    UnitKind(name="asked_by_first", looks=(("pointer", IDLE), ("asked", 1.0)), pointed=True, arrangements=("hops",),
             read=(1,)),
    UnitKind(name="graded_second", looks=(("decoy", IDLE), ("level", 1.0)), levels=True, arrangements=("hops",),
             read=(1,)),
    UnitKind(name="chosen_by_second", looks=(("decoy", IDLE), ("key", 1.0)), everywhere=True, arrangements=("hops",),
             read=(1,)),
    UnitKind(name="two_bypassed", looks=(("decoy", 1.0), ("key", 1.0)), value="mean", arrangements=TEXTS, read=(0, 1)),
    UnitKind(name="looks_without_moving", looks=(("all", 1.0), ("key", IDLE)), arrangements=TEXTS, read=(0, 1)),
    UnitKind(name="second_collects", looks=(("decoy", IDLE), ("collector", 1.0)), value="collected",
             arrangements=("hops",), read=(1,)),
    UnitKind(name="second_shifted", looks=(("key", IDLE), ("after", 1.0)), value="before", arrangements=("hops",),
             read=(1,)),
    UnitKind(name="second_sinks", looks=(("decoy", IDLE), ("sink", 1.0)), arrangements=("hops",), read=(1,)),
    UnitKind(
        name="marked_texts", looks=(("decoy", IDLE), ("unless_marked", 1.0)), value="unless_marked",
        marked=(0.2, 0.5, 0.7), arrangements=("hops",), read=(1,),
    ),
)  # fmt: skip
#: Four heads over a text, of which some decide together. The others look at decoys. The reading is the mean of all
#: heads. These kinds, and those of trained models, are only built in the held-out half.
MIXED_KINDS = tuple(
    UnitKind(
        name=f"{count}_of_4_heads",
        looks=tuple(("key", 1 / count) if head < count else ("decoy", IDLE) for head in range(4)),
        arrangements=("heads",),
        right=tuple(range(count)),
    )
    for count in (1, 2, 3)
)
BRANCHED_KINDS = (
    UnitKind(name="branches", looks=(("key", 1.0),), arrangements=("heads",), by_class=True),
    UnitKind(name="branches_bypassed", looks=(("key", 1.0),), value="mean", arrangements=("heads",), by_class=True),
    UnitKind(name="branches_at_decoys", looks=(("decoy", 1.0),), value="max", arrangements=("heads",), by_class=True),
)
#: Models that assign any number of labels, with one head per label: the name of each kind, what its heads look at, the
#: value in a state, and whether all other units have evidence, too.
LABEL_HEADS = "label_heads"
LABEL_DESIGNS: tuple[tuple[str, Looks, Value, bool], ...] = (
    (LABEL_HEADS, "key", "own", False),
    ("labels_chosen_by_mark", "key", "own", True),
    ("labels_bypassed", "key", "mean", False),
    ("labels_at_decoys", "decoy", "mean", False),
    ("labels_collected", "collector", "collected", False),
    ("labels_uniform", "all", "own", False),
)
LABEL_KINDS = tuple(
    UnitKind(
        name=name, looks=((looks, 1.0),), value=value, everywhere=everywhere, arrangements=("heads",),
        several_labels=True,
    )
    for name, looks, value, everywhere in LABEL_DESIGNS
)  # fmt: skip
TRAINED_KINDS = (
    UnitKind(name="trained_attention", looks=(("key", 1.0),), teaching="labels"),
    UnitKind(name="taught_decoys", looks=(("decoy", 1.0),), value="max", teaching="decoys"),
    UnitKind(name="taught_keys", looks=(("key", 1.0),), value="max", teaching="keys"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """One model to build.

    Attributes:
        kind: The name of the kind.
        arrangement: The arrangement of the attentions.
        seed: The seed.
        marked: The share of rows with a marker.
        units: The number of units of every bag; 0 if the seed decides it.
    """

    kind: str
    arrangement: Arrangement
    seed: int
    marked: float = 0.0
    units: int = 0

    @property
    def name(self) -> str:
        """The name of the model."""
        endings = [f"-{self.marked:g}"] * bool(self.marked) + [f"-{self.units}-units"] * bool(self.units)
        return f"{self.kind}-{self.arrangement}-{self.seed}{''.join(endings)}"

    @property
    def form(self) -> str:
        """The arrangement and, if the seed does not decide it, the number of units."""
        return f"{self.arrangement} of {self.units:,}" if self.units else self.arrangement


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitVariant:
    """The details of a model that its seed decides.

    Attributes:
        task: The task.
        design: The design.
        readings: Text form of each audited reading ("" for the only one) -> the numbers of its heads. None for the head
            of the predicted class.
        width: The number of features of a vector.
        rows: The number of rows.
        label: The number of the explained label, if the model assigns any number of labels; None otherwise.
    """

    task: UnitTask
    design: PoolDesign
    readings: dict[str, tuple[int, ...] | None]
    width: int
    rows: int
    label: int | None = None

    def role(self, reading: str) -> str:
        """Return what a reading shows, for the name of its kind; "" if the model has a single reading.

        It is the number of the head or hop, counted from 1. If the model assigns any number of labels, it is "own" for
        the head of the explained label, "other" for the head of another label, and "mean" for the mean over the heads.
        """
        heads = self.readings[reading]
        if len(self.readings) == 1 or heads is None:
            return ""
        if self.label is None:
            return str(heads[0] + 1)
        return "mean" if len(heads) > 1 else "own" if heads == (self.label,) else "other"


def kind_of(name: str) -> UnitKind:
    """Return the kind with the given name."""
    return next(
        kind for kind in (*KINDS, *MIXED_KINDS, *BRANCHED_KINDS, *LABEL_KINDS, *TRAINED_KINDS) if kind.name == name
    )


def unit_plans(
    arrangements: Sequence[Arrangement], seeds: Iterable[int], *, kinds: Sequence[UnitKind] = KINDS
) -> list[UnitPlan]:
    """Return the models of some kinds, with some arrangements and seeds.

    Kinds whose arrangements are those in ONE, and kinds with several labels, are also built with several heads over a
    bag ("bag_heads"), if `arrangements` contains this arrangement.
    """
    return [
        UnitPlan(kind=kind.name, arrangement=arrangement, seed=seed, marked=marked)
        for kind in kinds
        for arrangement in (*kind.arrangements, *(("bag_heads",) if _also_over_bags(kind) else ()))
        if arrangement in arrangements
        for seed in seeds
        for marked in kind.marked
    ]


def _also_over_bags(kind: UnitKind) -> bool:
    return kind.arrangements == ONE or kind.several_labels


def variant_of(plan: UnitPlan) -> UnitVariant:
    """Return the details of a model."""
    kind = kind_of(plan.kind)
    generator = random.Random(f"{plan.kind} {plan.arrangement} {plan.seed}")
    classes = generator.choice((2, 2, 3, 4))
    count = 1 if plan.arrangement == "bag" else len(kind.looks)
    if plan.arrangement in ("heads", "bag_heads") and count == 1:
        count = generator.choice((2, 3, 4))
    if kind.by_class or kind.several_labels:
        count = classes
    looks = kind.looks * (count if len(kind.looks) == 1 else 1)
    simple = not kind.levels and not any(look == "sink" for look, _ in looks)
    least, most = WORDS
    if plan.arrangement.startswith("bag"):
        mixes = PoolDesign(heads=tuple(PlantedHead(looks=look) for look, _ in looks), value=kind.value).mixes
        least, most = (100, 100) if kind.teaching else generator.choice(MIXED_SIZES if mixes else SIZES)
    if plan.units:
        least = most = plan.units
    # With uniform weights, the mean is multiplied by the number of units, so that one key unit decides.
    gains = [gain / count if len(kind.looks) == 1 else gain for _, gain in looks]
    heads = tuple(
        PlantedHead(
            looks=look,
            gain=gain * (most if look == "all" else 1.0),
            label=number if (kind.by_class or kind.several_labels) and look == "key" else None,
        )
        for number, ((look, _), gain) in enumerate(zip(looks, gains, strict=True))
    )
    design = PoolDesign(
        heads=heads,
        value=kind.value,
        sharpness=math.log(most) + generator.choice((2.5, 4.0, 6.0)),
        logit_scale=generator.choice((3.0, 5.0, 8.0)) * (30.0 if kind.name in ("sink", "second_sinks") else 1.0),
        gated=simple and generator.random() < 0.4,
        jitter=generator.choice((0.0, 0.3, 0.8)),
        relu=generator.random() < 0.5,
        one_logit=classes == 2 and generator.random() < 0.5 and not kind.by_class and not kind.several_labels,
    )
    task = UnitTask(
        classes=classes,
        least=least,
        most=most,
        keys=generator.choice((1, 2, 3)),
        decoys=generator.choice((1, 3)),
        levels=kind.levels,
        everywhere=kind.everywhere,
        pointed=kind.pointed,
        marked=plan.marked,
        noise=0.2 / most,
        several_labels=kind.several_labels,
    )
    width = generator.choice((20, 24, 32))
    label = generator.randrange(classes) if kind.several_labels else None
    return UnitVariant(
        task=task,
        design=design,
        readings=_readings(plan.arrangement, kind, count, label),
        width=width,
        rows=LARGE_ROWS if plan.units else ROWS,
        label=label,
    )


def _readings(
    arrangement: Arrangement, kind: UnitKind, count: int, label: int | None
) -> dict[str, tuple[int, ...] | None]:
    if label is not None:
        other = (label + 1) % count
        shown = {f"own@heads={head}": (head,) for head in (label, other)}
        return {**shown, "own@heads=mean": tuple(range(count))}
    if kind.by_class:
        return {"own@heads=predicted": None}
    if arrangement == "bag":
        return {"": (0,)}
    if arrangement == "hops":
        return {f"own@site=hop {head + 1}": (head,) for head in kind.read}
    if kind.read:
        return {f"own@heads={head}": (head,) for head in kind.read}
    return {"own@heads=mean": tuple(range(count))}
