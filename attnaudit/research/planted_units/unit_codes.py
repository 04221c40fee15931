"""The inputs of planted models: units with roles, as the vectors of a bag or as the words of a text.

Each unit has a *code*: numbers with a name, such as whether the unit is a key. A random rotation turns the code of a
unit into its vector, to which noise is added. The label of a row is the class for which its key units have evidence. If
the model assigns any number of labels, a row has a key unit for each label. Its evidence is 1 if the label applies, and
-1 otherwise.

Shapes: n units, k numbers in a code, d features of a vector.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: The parts of a code that are single numbers. "level" is the logarithm of the evidence of a key unit.
SCALARS = ("key", "decoy", "collector", "idle", "marker", "pointer", "candidate", "level")
#: The number of tags by which a pointer names a candidate.
TAGS = 3
#: The values that the evidence of a key unit can have.
LEVELS = (1.0, 0.5, 2.0)
#: The standard deviation of the noise in each direction outside the code.
OUTSIDE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTask:
    """How the rows of a task are drawn.

    Attributes:
        classes: The number of classes C.
        least: The smallest number of units in a row.
        most: The largest number of units in a row.
        keys: The largest number of key units in a row.
        decoys: The number of decoys in a row: units that look like keys, but have no evidence.
        levels: Whether the evidence of key units differs between units.
        everywhere: Whether all other units have evidence too, for classes that are drawn at random.
        pointed: Whether each row has a pointer and one candidate per tag. The candidate with the tag of the pointer is
            the only key.
        marked: The share of rows with a marker.
        noise: The standard deviation of the noise on the evidence of units without a role.
        several_labels: Whether any number of the classes applies to a row.
    """

    classes: int
    least: int
    most: int
    keys: int = 3
    decoys: int = 3
    levels: bool = False
    everywhere: bool = False
    pointed: bool = False
    marked: float = 0.0
    noise: float = 0.01
    several_labels: bool = False


@dataclass(frozen=True, slots=True)
class UnitRole:
    """One unit: the name of its role, its class, its level of evidence, and its tag."""

    role: str
    label: int = 0
    level: float = 1.0
    tag: int = 0

    @property
    def word(self) -> str:
        """The word that stands for the unit in a text."""
        return f"{self.role}.{self.label}.{self.level:g}.{self.tag}"


def code_names(classes: int) -> tuple[str, ...]:
    """Return the names of the k numbers of a code."""
    return (*SCALARS, *(f"tag.{t}" for t in range(TAGS)), *(f"evidence.{c}" for c in range(classes)))


def code_of(unit: UnitRole, classes: int) -> Tensor:
    """Return the code (k,) of a unit, without noise."""
    names = code_names(classes)
    values = dict.fromkeys(names, 0.0)
    if unit.role in SCALARS:
        values[unit.role] = 1.0
    if unit.role in ("key", "candidate", "other"):
        values[f"evidence.{unit.label}"] = unit.level
    if unit.role == "key":
        values["level"] = math.log(abs(unit.level))
    if unit.role in ("pointer", "candidate"):
        values[f"tag.{unit.tag}"] = 1.0
    return torch.tensor([values[name] for name in names])


def draw_row(task: UnitTask, label: int, generator: random.Random) -> list[UnitRole]:
    """Return the units of a row.

    The label is the number of a class. If the task has several labels, bit c of the number says whether class c
    applies. Key units, candidates and collectors are never next to each other, and never last, so that each has a
    neighbour without a role.
    """
    count = generator.randint(task.least, task.most)
    special: list[UnitRole] = [UnitRole("collector"), UnitRole("idle")]
    if task.pointed:
        chosen = generator.randrange(TAGS)
        special.append(UnitRole("pointer", tag=chosen))
        for tag in range(TAGS):
            own = label if tag == chosen else generator.randrange(task.classes)
            special.append(UnitRole("candidate", label=own, tag=tag))
    elif task.several_labels:
        special += [UnitRole("key", label=c, level=_sign(label >> c & 1)) for c in range(task.classes)]
    else:
        for _ in range(generator.randint(1, task.keys)):
            level = generator.choice(LEVELS) if task.levels else 1.0
            special.append(UnitRole("key", label=label, level=level))
    if generator.random() < task.marked:
        special.append(UnitRole("marker"))
    special += [UnitRole("decoy")] * task.decoys
    slots = range(0, count - 1, 2)
    if len(special) > len(slots):
        raise ValueError(f"a row of {count} units has no room for {len(special)} units with a role")
    units = [_plain(task, generator) for _ in range(count)]
    for place, unit in zip(generator.sample(slots, len(special)), special, strict=True):
        units[place] = unit
    return units


def _plain(task: UnitTask, generator: random.Random) -> UnitRole:
    if task.everywhere:
        level = _sign(generator.randrange(2)) if task.several_labels else 1.0
        return UnitRole("other", label=generator.randrange(task.classes), level=level)
    return UnitRole("plain", tag=generator.randrange(40))


def _sign(applies: int) -> float:
    return 1.0 if applies else -1.0


class UnitSpace:
    """The rotation of codes into vectors.

    Args:
        classes: The number of classes.
        width: The number of features d of a vector, larger than the code.
        noise: The standard deviation of the noise on evidence.
        seed: The seed of the rotation.

    Attributes:
        rotation: (k, d) matrix with orthonormal rows. The code of a vector x is x · rotationᵀ.
        random_direction: (d,) direction outside the code. The vectors of different units differ along it at random,
            with a standard deviation of 1.
    """

    def __init__(self, classes: int, width: int, noise: float, seed: int) -> None:
        size = len(code_names(classes))
        if width <= size:
            raise ValueError(f"a code of {size} numbers needs vectors of more than {size} features; got {width}")
        square = torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.classes, self.noise = classes, noise
        self._basis = torch.linalg.qr(square).Q.float()
        self.rotation = self._basis[:size]
        self.random_direction = self._basis[size] / OUTSIDE

    def vectors(self, units: Sequence[UnitRole], seed: int) -> Tensor:
        """Return the vectors (n, d) of units, with noise.

        Within the code, only the evidence gets noise, so that the roles stay certain. Most of the noise lies outside
        the code.
        """
        generator = torch.Generator().manual_seed(seed)
        size = len(self.rotation)
        code = {unit: code_of(unit, self.classes) for unit in set(units)}
        codes = torch.stack([code[unit] for unit in units])
        rest = OUTSIDE * torch.randn(len(units), self._basis.shape[1] - size, generator=generator)
        codes[:, size - self.classes :] += self.noise * torch.randn(len(units), self.classes, generator=generator)
        vectors: Tensor = torch.cat([codes, rest], dim=1) @ self._basis
        return vectors
